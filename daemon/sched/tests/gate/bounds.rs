//! Bounds that hold for every program.

use proptest::prelude::*;
use vgpu_sched::gate::{Direction, Flow, Hold, LeaseView, MAX_IN_FLIGHT, WINDOW_NS, Waiting, Work};

use crate::bench::{Bench, MS, OPEN, US, kernel};

#[derive(Debug, Clone)]
enum Step {
    Submit { stream: usize, work: u32, ns: u64 },
    Copy { stream: usize, bytes: u64 },
    Wait { stream: usize },
    Written { stream: usize },
    Complete,
    Late { stream: usize },
    Pass(u64),
    Close(bool),
    SliceEnd(Option<u64>),
    Relieve { idle: bool, backed_up: bool },
}

fn any_step() -> impl Strategy<Value = Step> {
    let ns = prop_oneof![1..100 * US, 100 * US..100 * MS];
    prop_oneof![
        8 => (0..4usize, 0..2000u32, ns).prop_map(|(stream, work, ns)| Step::Submit { stream, work: work % 7, ns }),
        1 => (0..4usize, 2000..20_000u32).prop_map(|(stream, work)| Step::Submit { stream, work, ns: 5 * US }),
        2 => (0..4usize, 0..1u64 << 34).prop_map(|(stream, bytes)| Step::Copy { stream, bytes }),
        1 => (0..4usize).prop_map(|stream| Step::Wait { stream }),
        1 => (0..4usize).prop_map(|stream| Step::Written { stream }),
        8 => Just(Step::Complete),
        1 => (0..4usize).prop_map(|stream| Step::Late { stream }),
        2 => (0..5 * MS).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Close),
        1 => proptest::option::of(0..5 * MS).prop_map(Step::SliceEnd),
        1 => any::<(bool, bool)>().prop_map(|(idle, backed_up)| Step::Relieve { idle, backed_up }),
    ]
}

proptest! {
    /// For any program, the gate counts the operations in flight correctly and has at most
    /// [`MAX_IN_FLIGHT`] in flight. The gate predicts at most 4096 kernels and graphs. The session
    /// always makes progress.
    #[test]
    fn the_gate_holds_its_bounds(steps in proptest::collection::vec(any_step(), 1..400), serial: bool) {
        let mut bench = Bench::new(4);
        bench.serial = serial;
        let mut lease = OPEN;
        for step in steps {
            match step {
                Step::Submit { stream, work, ns } => check(&mut bench, stream, kernel(work), ns, &lease)?,
                Step::Copy { stream, bytes } => {
                    let copy = Work::Bytes { direction: Direction::ToHost, bytes };
                    check(&mut bench, stream, copy, bytes / 10 + 1, &lease)?;
                }
                Step::Wait { stream } => bench.submit_wait(stream),
                Step::Written { stream } => bench.end_waits(stream),
                Step::Complete => {
                    bench.complete_one();
                }
                Step::Late { stream } => bench.gate.marked(&mut bench.flows[stream], true),
                Step::Pass(ns) => {
                    // The clock stops at each completion, so that the gate sees the completion at
                    // its exact time.
                    let next = bench.running.iter().map(|r| r.2).min().unwrap_or(u64::MAX);
                    bench.now = (bench.now + ns).min(next.max(bench.now));
                }
                Step::Close(closing) => lease.closing = closing,
                Step::SliceEnd(left) => lease.slice_end_ns = left.map(|ns| bench.now + ns),
                Step::Relieve { idle, backed_up } => {
                    let waiting = (0..100).map(|i| Waiting { place: bench.place + i, idle: idle && i == 99 });
                    let stalled = bench.gate.stalled(bench.now);
                    let place = bench.gate.relieve(bench.now, waiting, backed_up);
                    prop_assert!(place.is_none() || stalled);
                }
            }
            let running = bench.running.len() as u64;
            prop_assert_eq!(bench.gate.in_flight(), running);
            prop_assert_eq!(bench.flows.iter().map(Flow::ops).sum::<u64>(), running);
            let waits = bench.waits.iter().any(Option::is_some);
            prop_assert_eq!(bench.gate.stall_in(bench.now).is_some(), running > 0 || waits);
            prop_assert!(bench.gate.in_flight() <= MAX_IN_FLIGHT);
            prop_assert!(bench.gate.predictor().known() <= 4096);
        }
        bench.drain();
        (0..4).for_each(|stream| bench.end_waits(stream));
        prop_assert_eq!((bench.gate.in_flight(), bench.gate.unfinished_ns()), (0, 0));
        prop_assert_eq!(bench.gate.stall_in(bench.now), None);
        prop_assert!(bench.try_submit(0, kernel(30_000), US, &OPEN), "an idle session goes on");
    }

    #[test]
    fn a_hold_is_never_longer_than_granted(gaps in proptest::collection::vec(0..MS, 0..100), granted in 0..MS) {
        let mut hold = Hold::default();
        let mut now = 0;
        for gap in gaps {
            hold.idle(now);
            now += gap;
            hold.work(now);
            let held = hold.hold_ns(granted);
            prop_assert!(held <= granted);
            prop_assert!(held >= granted.min(50 * US));
        }
    }
}

/// Tries to submit an operation, and checks the gate's answer against the rules.
fn check(
    bench: &mut Bench,
    stream: usize,
    work: Work,
    ns: u64,
    lease: &LeaseView,
) -> Result<(), TestCaseError> {
    let before = bench.gate.in_flight();
    let exempt = bench.gate.exempted(bench.place);
    let known = bench.gate.predictor().peek(work);
    let idle = bench.flows[stream].ops() == 0;
    let went = bench.try_submit(stream, work, ns, lease);
    if exempt {
        prop_assert!(went);
    } else if before == 0 {
        prop_assert_eq!(
            went,
            !lease.closing,
            "an idle device goes on unless the lease closes"
        );
    } else if went {
        prop_assert!(!lease.closing, "nothing new under a lease that goes back");
        prop_assert!(known.is_some(), "an unknown kernel goes alone");
        let widest = WINDOW_NS * 32;
        prop_assert!(bench.gate.unfinished_ns() <= widest || before == 1 || idle);
    }
    Ok(())
}
