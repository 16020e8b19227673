//! Work in flight may wait for work that is not submitted: the gate delays work but never
//! deadlocks.

use std::collections::VecDeque;

use vgpu_sched::gate::{Flow, MAX_IN_FLIGHT, STALL_NS, Waiting};

use crate::bench::{Bench, CLOSING, MS, OPEN, US, kernel};

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
            "no stall yet"
        );
        bench.now = STALL_NS;
        assert!(bench.gate.stalled(bench.now));
        assert_eq!(bench.gate.relieve(bench.now, waiting, false), Some(3));
        assert!(
            bench.try_submit(0, kernel(1), US, &lease),
            "the operation before that of the idle stream"
        );
        assert!(
            bench.try_submit(1, kernel(2), US, &lease),
            "the operation of the idle stream"
        );
        assert!(
            !bench.try_submit(1, kernel(2), US, &lease),
            "no further operation"
        );
        assert!(
            !bench.gate.stalled(bench.now),
            "the next relief is in a millisecond"
        );
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
        assert!(reliefs < 10, "a few reliefs reach the operation");
        let upto = bench.gate.relieve(bench.now, waiting.clone(), false);
        assert!(upto >= Some(first.place));
        while waiting.front().is_some_and(|w| Some(w.place) <= upto) {
            let next = waiting.pop_front().expect("there is one");
            let stream = usize::from(next.idle);
            assert!(bench.try_submit(stream, kernel(1), US, &CLOSING));
        }
    }
    assert!(reliefs > 1, "each relief lets in a bounded number");
    assert!(bench.gate.in_flight() <= MAX_IN_FLIGHT);
}

#[test]
fn without_idle_streams_a_stall_lets_nothing_in_unless_the_program_is_held_up_by_it() {
    let mut bench = Bench::new(1);
    assert!(bench.try_submit(0, kernel(1), 1 << 40, &OPEN));
    let waiting = (2..2000).map(|place| Waiting { place, idle: false });
    bench.now = STALL_NS;
    assert_eq!(bench.gate.relieve(bench.now, waiting.clone(), false), None);
    // The work in flight may wait for a call that the program can send only when the queue is
    // shorter.
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
    assert_eq!(
        bench.gate.in_flight(),
        MAX_IN_FLIGHT,
        "as many as a driver takes"
    );
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

/// A wait for a value in memory takes no GPU time. But it may end only after work of another
/// stream, which is behind more work of this stream in the queue.
#[test]
fn a_wait_in_flight_lets_the_work_of_idle_streams_in() {
    let mut bench = Bench::new(2);
    bench.now = 50 * MS;
    bench.submit_wait(0);
    assert!(!bench.try_submit(1, kernel(1), US, &CLOSING));
    let waiting = [(1, false), (2, true)].map(|(place, idle)| Waiting { place, idle });
    assert_eq!(
        bench.gate.relieve(bench.now, waiting, false),
        None,
        "no stall yet"
    );
    bench.now += STALL_NS;
    assert_eq!(bench.gate.relieve(bench.now, waiting, false), Some(2));
    assert!(bench.gate.exempted(1));
    assert!(bench.try_submit(1, kernel(1), US, &CLOSING));
    bench.drain();
    assert!(bench.gate.exempted(2), "the wait is still in flight");
    assert!(
        bench.flows[0].busy(),
        "the wait is unfinished until it is reported complete"
    );
    bench.end_waits(0);
    assert!(!bench.flows[0].busy());
    assert!(!bench.gate.exempted(2));
    assert_eq!(bench.gate.stall_in(bench.now), None);
    assert!(!bench.try_submit(1, kernel(1), US, &CLOSING));
    assert!(bench.try_submit(1, kernel(1), US, &OPEN));
}
