//! The worker's gate against a device that is made up: streams run in order, side by side or not.

use std::collections::VecDeque;

use proptest::prelude::*;
use vgpu_sched::gate::{
    AHEAD_NS, BESIDE_NS, Config, Direction, Flow, FunctionId, Gate, Hold, Key, LeaseView,
    MARKER_LAUNCHES, MAX_IN_FLIGHT, STALL_NS, Verdict, WINDOW_NS, WaitFor, Waiting, Work,
};

const US: u64 = 1_000;
const MS: u64 = 1_000_000;
const OPEN: LeaseView = LeaseView {
    closing: false,
    slice_end_ns: None,
    beside: false,
};
const CLOSING: LeaseView = LeaseView {
    closing: true,
    slice_end_ns: None,
    beside: false,
};

fn kernel(n: u32) -> Work {
    let function = FunctionId::new(&[1; 32], "f");
    Work::Kernel(Key::kernel(function, [n, 1, 1], [64, 1, 1], 0))
}

/// A session that submits to one device whose streams run one after the other (`serial`) or all at
/// once, and sees completions exactly.
struct Bench {
    gate: Gate,
    now: u64,
    serial: bool,
    flows: Vec<Flow>,
    numbers: Vec<u64>,
    /// (stream, number, ends at)
    running: VecDeque<(usize, u64, u64)>,
    free_at: Vec<u64>,
    place: u64,
}

impl Bench {
    fn new(streams: usize) -> Bench {
        Bench {
            gate: Gate::new(Config::default()),
            now: 0,
            serial: true,
            flows: vec![Flow::default(); streams],
            numbers: vec![0; streams],
            running: VecDeque::new(),
            free_at: vec![0; streams],
            place: 1,
        }
    }

    fn verdict(&mut self, stream: usize, work: Work, lease: &LeaseView) -> Verdict {
        self.gate
            .may_submit(self.now, self.place, work, &self.flows[stream], lease)
    }

    /// Submits if it may; the operation really takes `ns`.
    fn try_submit(&mut self, stream: usize, work: Work, ns: u64, lease: &LeaseView) -> bool {
        let Verdict::Submit(estimate) = self.verdict(stream, work, lease) else {
            return false;
        };
        self.place += 1;
        self.numbers[stream] += 1;
        let number = self.numbers[stream];
        self.gate
            .submitted(self.now, &mut self.flows[stream], number, work, estimate);
        let free = if self.serial {
            self.free_at.iter().copied().max().unwrap_or(0)
        } else {
            self.free_at[stream]
        };
        let ends = free.max(self.now) + ns;
        self.free_at[stream] = ends;
        self.running.push_back((stream, number, ends));
        true
    }

    /// Waits for the next completion and tells the gate.
    fn complete_one(&mut self) -> bool {
        let next = self.running.iter().enumerate().min_by_key(|(_, r)| r.2);
        let Some((at, &(stream, number, ends))) = next else {
            return false;
        };
        self.running.remove(at);
        self.now = self.now.max(ends);
        self.gate
            .completed(self.now, &mut self.flows[stream], number);
        true
    }

    fn drain(&mut self) {
        while self.complete_one() {}
    }

    /// Runs `n` of an operation one after the other, so that the gate knows it.
    fn teach(&mut self, work: Work, ns: u64, n: usize) {
        for _ in 0..n {
            self.drain();
            assert!(self.try_submit(0, work, ns, &OPEN));
        }
        self.drain();
    }

    /// Submits to a stream until the gate says no.
    fn fill(&mut self, stream: usize, work: Work, ns: u64, lease: &LeaseView) -> u64 {
        let before = self.gate.in_flight();
        while self.try_submit(stream, work, ns, lease) {}
        self.gate.in_flight() - before
    }
}

#[test]
fn the_window_is_time_not_operations() {
    for (ns, fits) in [(20 * US, 25), (5 * US, 100), (200 * US, 2), (260 * US, 1)] {
        let mut bench = Bench::new(1);
        bench.teach(kernel(1), ns, 20);
        assert_eq!(bench.fill(0, kernel(1), ns, &OPEN), fits, "{ns} ns");
    }
}

#[test]
fn a_configured_window_is_kept_within_its_range() {
    for (asked, fits) in [(0, 20), (200 * US, 20), (300 * US, 30), (MS, 50)] {
        let mut bench = Bench::new(1);
        bench.gate = Gate::new(Config { window_ns: asked });
        bench.teach(kernel(1), 10 * US, 20);
        assert_eq!(bench.fill(0, kernel(1), 10 * US, &OPEN), fits, "{asked}");
    }
}

#[test]
fn an_unknown_kernel_goes_alone() {
    let mut bench = Bench::new(2);
    bench.teach(kernel(1), 10 * US, 5);
    assert!(bench.try_submit(0, kernel(1), 10 * US, &OPEN));
    assert!(
        !bench.try_submit(0, kernel(2), 10 * US, &OPEN),
        "behind another"
    );
    bench.drain();
    assert!(bench.try_submit(0, kernel(2), 10 * US, &OPEN));
    assert!(
        !bench.try_submit(1, kernel(1), 10 * US, &OPEN),
        "before another"
    );
    bench.drain();
    assert!(bench.try_submit(0, kernel(1), 10 * US, &OPEN));
    assert!(
        bench.try_submit(0, kernel(2), 10 * US, &OPEN),
        "known by now"
    );
}

#[test]
fn a_second_long_kernel_follows_when_the_first_is_nearly_over() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 10 * MS, 3);
    assert!(bench.try_submit(0, kernel(1), 10 * MS, &OPEN));
    let begun = bench.now;
    let Verdict::Wait(wait) = bench.verdict(0, kernel(1), &OPEN) else {
        panic!("two of 10 ms");
    };
    assert_eq!(wait.why, WaitFor::Window);
    assert_eq!(wait.until_ns, Some(begun + 10 * MS - AHEAD_NS));
    bench.now = begun + 10 * MS - AHEAD_NS;
    assert!(bench.try_submit(0, kernel(1), 10 * MS, &OPEN));
    assert!(
        !bench.try_submit(0, kernel(1), 10 * MS, &OPEN),
        "and no third"
    );
    assert!(bench.complete_one());
    assert!(
        !bench.try_submit(0, kernel(1), 10 * MS, &OPEN),
        "the second has just begun"
    );
}

#[test]
fn nothing_goes_past_the_end_of_the_slice_behind_something_else() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 100 * US, 20);
    let slice = |bench: &Bench, left| LeaseView {
        closing: false,
        slice_end_ns: Some(bench.now + left),
        beside: false,
    };
    let ends = slice(&bench, 650 * US);
    let begun = bench.now;
    // The window has room for five.
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &ends), 5);
    assert!(bench.complete_one());
    assert!(bench.try_submit(0, kernel(1), 100 * US, &ends));
    assert!(bench.complete_one());
    let Verdict::Wait(wait) = bench.verdict(0, kernel(1), &ends) else {
        panic!("the seventh would end after the slice");
    };
    assert_eq!(wait.why, WaitFor::SliceEnd);
    // The device would idle from 600 µs on, which is before the slice's end: one follows in time.
    assert_eq!(wait.until_ns, Some(begun + 600 * US - AHEAD_NS));
    assert!(bench.complete_one() && bench.complete_one());
    assert_eq!(bench.now, begun + 600 * US - AHEAD_NS);
    assert!(bench.try_submit(0, kernel(1), 100 * US, &ends));
    let Verdict::Wait(wait) = bench.verdict(0, kernel(1), &ends) else {
        panic!("and one only");
    };
    assert_eq!((wait.why, wait.until_ns), (WaitFor::SliceEnd, None));
    // What would keep the device busy beyond the slice's end anyway is not followed.
    bench.drain();
    let ends = slice(&bench, 80 * US);
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &ends), 1);
    bench.drain();
    // Nothing is in flight: one goes, though it overruns; else the rest of the slice would be lost.
    let ends = slice(&bench, 50 * US);
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &ends), 1);
    // Without anybody who waits the slice's end means nothing.
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &OPEN), 4);
}

#[test]
fn a_misprediction_closes_the_window_to_one_until_predictions_are_kept() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 10 * US, 50);
    assert_eq!(bench.fill(0, kernel(1), 10 * US, &OPEN), 50);
    bench.drain();
    // It takes 5 ms this time.
    assert!(bench.try_submit(0, kernel(1), 5 * MS, &OPEN));
    bench.drain();
    // Another kernel, well known, has no more trust than the session has.
    bench.teach(kernel(2), 10 * US, 1);
    let mut widths = Vec::new();
    for _ in 0..6 {
        widths.push(bench.fill(0, kernel(2), 10 * US, &OPEN));
        bench.drain();
    }
    assert!(widths[0] <= 2, "{widths:?}");
    assert_eq!(widths.last(), Some(&50), "{widths:?}");
}

#[test]
fn a_key_that_alternates_never_gets_depth() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), US, 100);
    let mut deepest = 0;
    for round in 0..200 {
        let depth = bench.fill(
            0,
            kernel(1),
            if round % 2 == 0 { 50 * MS } else { US },
            &OPEN,
        );
        if round > 2 {
            deepest = deepest.max(depth);
        }
        bench.drain();
    }
    assert!(deepest <= 2, "{deepest}");
}

#[test]
fn a_batch_teaches_its_share() {
    let mut bench = Bench::new(1);
    // Learned alone, with 90 µs of being woken; together they take what they take.
    for _ in 0..10 {
        assert!(bench.try_submit(0, kernel(1), 100 * US, &OPEN));
        bench.drain();
    }
    for _ in 0..20 {
        let n = bench.fill(0, kernel(1), 10 * US, &OPEN);
        assert!(n >= 2);
        // One marker behind all of them.
        let last = bench.numbers[0];
        bench.now = bench.free_at[0];
        bench.running.clear();
        bench.gate.completed(bench.now, &mut bench.flows[0], last);
    }
    let known = bench.gate.predictor().peek(kernel(1)).expect("known");
    assert!((10 * US..11 * US).contains(&known.mean_ns), "{known:?}");
}

#[test]
fn a_mixed_batch_is_corrected_in_proportion() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 20 * US, 10);
    bench.teach(kernel(2), 60 * US, 10);
    for _ in 0..30 {
        // Both take half of what was believed.
        assert!(bench.try_submit(0, kernel(1), 10 * US, &OPEN));
        assert!(bench.try_submit(0, kernel(2), 30 * US, &OPEN));
        bench.now = bench.free_at[0];
        bench.running.clear();
        let last = bench.numbers[0];
        bench.gate.completed(bench.now, &mut bench.flows[0], last);
    }
    let mean = |n| {
        bench
            .gate
            .predictor()
            .peek(kernel(n))
            .expect("known")
            .mean_ns
    };
    assert!(mean(1).abs_diff(10 * US) < US, "{}", mean(1));
    assert!(mean(2).abs_diff(30 * US) < 2 * US, "{}", mean(2));
}

#[test]
fn time_without_launches_is_not_taken_for_the_kernels() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 5 * US, 20);
    // One every 200 µs, and one look at the end.
    for _ in 0..10 {
        assert!(bench.try_submit(0, kernel(1), 5 * US, &OPEN));
        bench.now += 200 * US;
    }
    bench.gate.marked(&mut bench.flows[0], true);
    let last = bench.numbers[0];
    let seen = bench.gate.completed(bench.now, &mut bench.flows[0], last);
    assert_eq!((seen.ops, seen.surprise), (10, false));
    let mean = bench
        .gate
        .predictor()
        .peek(kernel(1))
        .expect("known")
        .mean_ns;
    assert!(mean < 30 * US, "{mean}");
}

#[test]
fn streams_that_run_side_by_side_get_a_window_each() {
    let mut bench = Bench::new(16);
    bench.serial = false;
    bench.teach(kernel(1), 800 * US, 3);
    let mut widest = 0;
    for _ in 0..4000 {
        for stream in 0..16 {
            if bench.flows[stream].ops() == 0 {
                bench.try_submit(stream, kernel(1), 800 * US, &OPEN);
            }
        }
        widest = widest.max(bench.gate.in_flight());
        bench.complete_one();
    }
    assert!(widest >= 12, "{widest} of 16 streams at once");

    // On a device that runs one at a time it stays narrow.
    let mut bench = Bench::new(16);
    bench.teach(kernel(1), 800 * US, 3);
    let mut widest = 0;
    for _ in 0..4000 {
        for stream in 0..16 {
            if bench.flows[stream].ops() == 0 {
                bench.try_submit(stream, kernel(1), 800 * US, &OPEN);
            }
        }
        widest = widest.max(bench.gate.in_flight());
        bench.complete_one();
    }
    assert!(widest <= 3, "{widest} in flight on a serial device");
}

#[test]
fn bytes_predict_a_copy() {
    let mut bench = Bench::new(1);
    let copy = Work::Bytes {
        direction: Direction::ToDevice,
        bytes: 1 << 20,
    };
    // Known from the start, by a careful guess; exact later: 50 µs a MiB.
    assert!(bench.fill(0, copy, 50 * US, &OPEN) >= 1);
    bench.drain();
    bench.teach(copy, 50 * US, 60);
    let fits = bench.fill(0, copy, 50 * US, &OPEN);
    assert!((9..=10).contains(&fits), "{fits}");
}

#[test]
fn a_graph_is_one_unit_with_a_learned_cost() {
    let mut bench = Bench::new(1);
    let graph = Work::Graph(Key::graph(7));
    assert!(bench.try_submit(0, graph, 250 * US, &OPEN));
    assert!(
        !bench.try_submit(0, graph, 250 * US, &OPEN),
        "unknown: alone"
    );
    bench.drain();
    assert_eq!(bench.fill(0, graph, 250 * US, &OPEN), 2);
}

#[test]
fn markers_are_dense_where_somebody_waits() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), US, 100);
    let mut at = [0, 0];
    for n in 1..=200 {
        assert!(bench.try_submit(0, kernel(1), US, &OPEN));
        for (i, awaited) in [true, false].into_iter().enumerate() {
            if at[i] == 0 && bench.gate.marker_due(&bench.flows[0], awaited) {
                at[i] = n;
            }
        }
    }
    assert_eq!(at[0], MARKER_LAUNCHES);
    assert!((100..=128).contains(&at[1]), "{at:?}");
    bench.gate.marked(&mut bench.flows[0], false);
    assert!(!bench.gate.marker_due(&bench.flows[0], true));
}

#[test]
fn a_stalled_operation_lets_the_work_of_idle_streams_in() {
    for lease in [OPEN, CLOSING] {
        let mut bench = Bench::new(2);
        assert!(bench.try_submit(0, kernel(1), 1 << 40, &OPEN));
        assert!(!bench.try_submit(1, kernel(2), US, &lease));
        let waiting = [
            Waiting {
                place: 2,
                idle: false,
            },
            Waiting {
                place: 3,
                idle: true,
            },
            Waiting {
                place: 4,
                idle: true,
            },
        ];
        bench.now = STALL_NS - 1;
        assert_eq!(
            bench.gate.relieve(bench.now, waiting, false),
            None,
            "not yet"
        );
        bench.now = STALL_NS;
        assert!(bench.gate.stalled(bench.now));
        assert_eq!(bench.gate.relieve(bench.now, waiting, false), Some(3));
        assert!(
            bench.try_submit(0, kernel(1), US, &lease),
            "what stands before"
        );
        assert!(
            bench.try_submit(1, kernel(2), US, &lease),
            "the idle stream's"
        );
        assert!(!bench.try_submit(1, kernel(2), US, &lease), "and no more");
        assert!(!bench.gate.stalled(bench.now), "next in a millisecond");
        assert_eq!(bench.gate.stall_in(bench.now), Some(STALL_NS));
    }
}

#[test]
fn work_of_an_idle_stream_is_reached_behind_a_thousand_calls() {
    let mut bench = Bench::new(2);
    assert!(bench.try_submit(0, kernel(1), 1 << 40, &OPEN));
    let mut waiting: VecDeque<Waiting> = (2..=800)
        .map(|place| Waiting { place, idle: false })
        .chain([Waiting {
            place: 801,
            idle: true,
        }])
        .collect();
    let mut reliefs = 0;
    while let Some(first) = waiting.front().copied() {
        bench.now += STALL_NS;
        reliefs += 1;
        assert!(reliefs < 10, "it gets there in a few milliseconds");
        let upto = bench.gate.relieve(bench.now, waiting.clone(), false);
        assert!(upto >= Some(first.place));
        while waiting.front().is_some_and(|w| Some(w.place) <= upto) {
            let next = waiting.pop_front().expect("there is one");
            let stream = usize::from(next.idle);
            assert!(bench.try_submit(stream, kernel(1), US, &CLOSING));
        }
    }
    assert!(reliefs > 1, "a bounded set at a time");
    assert!(bench.gate.in_flight() <= MAX_IN_FLIGHT);
}

#[test]
fn without_idle_streams_a_stall_lets_nothing_in_unless_the_program_is_held_up_by_it() {
    let mut bench = Bench::new(1);
    assert!(bench.try_submit(0, kernel(1), 1 << 40, &OPEN));
    let waiting = (2..2000).map(|place| Waiting { place, idle: false });
    bench.now = STALL_NS;
    assert_eq!(bench.gate.relieve(bench.now, waiting.clone(), false), None);
    // The waited-for call may be one that the program cannot send before these have gone.
    let mut last = 1;
    for _ in 0..20 {
        bench.now += STALL_NS;
        let rest = waiting.clone().skip_while(|w| w.place <= last);
        if let Some(upto) = bench.gate.relieve(bench.now, rest, true) {
            for _ in last..upto {
                assert!(bench.try_submit(0, kernel(1), US, &CLOSING));
            }
            last = upto;
        }
    }
    assert_eq!(bench.gate.in_flight(), MAX_IN_FLIGHT, "what a driver takes");
}

#[test]
fn an_exemption_ends_with_the_work_it_was_for() {
    let mut bench = Bench::new(2);
    assert!(bench.try_submit(0, kernel(1), 2 * MS, &OPEN));
    bench.now = STALL_NS;
    let waiting = [Waiting {
        place: 50,
        idle: true,
    }];
    assert_eq!(bench.gate.relieve(bench.now, waiting, false), Some(50));
    assert!(bench.gate.exempted(50));
    bench.drain();
    assert!(!bench.gate.exempted(50));
    assert!(
        !bench.try_submit(1, kernel(2), US, &CLOSING),
        "nothing is in flight: the lease goes back"
    );
}

#[test]
fn after_a_fault_the_gate_is_as_new() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 10 * US, 10);
    bench.fill(0, kernel(1), 10 * US, &OPEN);
    bench.gate.abandon();
    bench.flows[0] = Flow::default();
    assert_eq!((bench.gate.in_flight(), bench.gate.unfinished_ns()), (0, 0));
    assert_eq!(bench.gate.stall_in(bench.now), None);
    assert!(bench.try_submit(0, kernel(9), US, &OPEN));
}

#[derive(Debug, Clone)]
enum Step {
    Submit { stream: usize, work: u32, ns: u64 },
    Copy { stream: usize, bytes: u64 },
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
        8 => Just(Step::Complete),
        1 => (0..4usize).prop_map(|stream| Step::Late { stream }),
        2 => (0..5 * MS).prop_map(Step::Pass),
        1 => any::<bool>().prop_map(Step::Close),
        1 => proptest::option::of(0..5 * MS).prop_map(Step::SliceEnd),
        1 => any::<(bool, bool)>().prop_map(|(idle, backed_up)| Step::Relieve { idle, backed_up }),
    ]
}

proptest! {
    /// Whatever a program does: the counts are right, the bounds hold, and it always goes on.
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
                Step::Complete => {
                    bench.complete_one();
                }
                Step::Late { stream } => bench.gate.marked(&mut bench.flows[stream], true),
                Step::Pass(ns) => {
                    // Time passes no completion by: it is seen when it comes.
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
            prop_assert_eq!(bench.gate.stall_in(bench.now).is_some(), running > 0);
            prop_assert!(bench.gate.in_flight() <= MAX_IN_FLIGHT);
            prop_assert!(bench.gate.predictor().known() <= 4096);
        }
        bench.drain();
        prop_assert_eq!((bench.gate.in_flight(), bench.gate.unfinished_ns()), (0, 0));
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

/// Tries to submit, and checks what the rules promise about the answer.
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
    if before == 0 {
        prop_assert_eq!(
            went,
            !lease.closing,
            "an idle device goes on unless the lease closes"
        );
    } else if went && !exempt {
        prop_assert!(!lease.closing, "nothing new under a lease that goes back");
        prop_assert!(known.is_some(), "an unknown kernel goes alone");
        let widest = WINDOW_NS * 32;
        prop_assert!(bench.gate.unfinished_ns() <= widest || before == 1 || idle);
    }
    if exempt {
        prop_assert!(went);
    }
    Ok(())
}

const BESIDE: LeaseView = LeaseView {
    closing: false,
    slice_end_ns: None,
    beside: true,
};

/// As [`Bench::try_submit`] does it, but the other's turns make it complete `late` later.
fn run_beside(bench: &mut Bench, work: Work, ns: u64, late: u64) {
    assert!(bench.try_submit(0, work, ns + late, &BESIDE));
    bench.drain();
}

#[test]
fn beside_an_overrunner_the_window_is_two_turns_of_the_driver() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 20 * US, 20);
    assert_eq!(
        bench.fill(0, kernel(1), 20 * US, &BESIDE),
        BESIDE_NS / (20 * US)
    );
    // Alone again: nothing more goes in before what is too much has gone.
    assert!(!bench.try_submit(0, kernel(1), 20 * US, &OPEN));
    bench.drain();
    assert_eq!(bench.fill(0, kernel(1), 20 * US, &OPEN), 25);
    bench.drain();
    // The end of the slice counts beside as well, but the driver's turn is used to its end.
    let ends = LeaseView {
        slice_end_ns: Some(bench.now + 100 * US),
        ..BESIDE
    };
    assert_eq!(bench.fill(0, kernel(1), 20 * US, &ends), 55);
}

#[test]
fn times_beside_an_overrunner_teach_nothing_and_break_no_trust() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 20 * US, 20);
    let known = bench.gate.predictor().peek(kernel(1));
    for _ in 0..10 {
        run_beside(&mut bench, kernel(1), 20 * US, 3 * MS);
    }
    assert_eq!(bench.gate.predictor().peek(kernel(1)), known);
    assert_eq!(
        bench.fill(0, kernel(1), 20 * US, &OPEN),
        25,
        "not one alone"
    );
    bench.drain();
    // What was submitted beside teaches nothing either when the overrunner is gone meanwhile.
    assert!(bench.try_submit(0, kernel(1), 3 * MS, &BESIDE));
    assert!(bench.try_submit(0, kernel(1), 20 * US, &OPEN));
    assert!(bench.complete_one());
    assert_eq!(bench.gate.predictor().peek(kernel(1)), known);
    bench.drain();
    // Alone, the same is a misprediction.
    assert!(bench.try_submit(0, kernel(1), 3 * MS, &OPEN));
    bench.drain();
    assert_ne!(bench.gate.predictor().peek(kernel(1)), known);
    assert_eq!(bench.fill(0, kernel(1), 20 * US, &OPEN), 1);
}

#[test]
fn what_the_turns_of_an_overrunner_cannot_explain_is_a_misprediction_beside_it_too() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 20 * US, 20);
    run_beside(&mut bench, kernel(1), 20 * US, 50 * MS);
    let after = bench.gate.predictor().peek(kernel(1)).expect("known");
    assert!(after.mean_ns > 40 * MS, "{after:?}");
    assert_eq!(bench.fill(0, kernel(1), 50 * MS, &BESIDE), 1);
    bench.drain();
    // One that was caught alone is trusted again beside, by what the turns can explain.
    bench.teach(kernel(2), 20 * US, 20);
    assert!(bench.try_submit(0, kernel(2), 3 * MS, &OPEN));
    bench.drain();
    bench.teach(kernel(3), 20 * US, 1);
    for _ in 0..10 {
        run_beside(&mut bench, kernel(3), 20 * US, 2 * MS);
    }
    assert_eq!(
        bench.fill(0, kernel(3), 20 * US, &BESIDE),
        BESIDE_NS / (20 * US)
    );
}

#[test]
fn what_is_unknown_is_guessed_while_beside_an_overrunner_and_forgotten_then() {
    let mut bench = Bench::new(1);
    run_beside(&mut bench, kernel(1), 20 * US, MS);
    assert_eq!(
        bench.fill(0, kernel(1), 20 * US, &BESIDE),
        3,
        "a turn is in it"
    );
    bench.drain();
    // In the midst of its own turns it gets nearer to what it is.
    for _ in 0..60 {
        run_beside(&mut bench, kernel(1), 20 * US, 0);
    }
    assert!(bench.fill(0, kernel(1), 20 * US, &BESIDE) > 40);
    bench.drain();
    assert_eq!(bench.gate.predictor().peek(kernel(1)), None);
    assert_eq!(bench.fill(0, kernel(1), 20 * US, &OPEN), 1, "unknown again");
    bench.drain();
    assert_eq!(
        bench.fill(0, kernel(1), 20 * US, &OPEN),
        25,
        "and known at once"
    );
}

#[test]
fn beside_an_overrunner_a_turn_of_the_other_is_no_stall() {
    let mut bench = Bench::new(2);
    bench.teach(kernel(1), 20 * US, 20);
    for (lease, stalls) in [(BESIDE, STALL_NS + BESIDE_NS), (OPEN, STALL_NS)] {
        assert!(bench.try_submit(0, kernel(1), 20 * US, &lease));
        assert_eq!(bench.gate.stall_in(bench.now), Some(stalls));
        bench.drain();
    }
}
