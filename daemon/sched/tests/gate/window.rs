//! Admission by the gate: window, slice, streams that run at the same time, markers.

use vgpu_sched::gate::{AHEAD_NS, Config, Gate, LeaseView, MARKER_LAUNCHES, Verdict, WaitFor};

use crate::bench::{Bench, MS, OPEN, US, kernel};

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
fn a_new_window_holds_for_what_comes() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 10 * US, 20);
    assert_eq!(bench.fill(0, kernel(1), 10 * US, &OPEN), 50);
    bench.gate.set_window(200 * US);
    assert_eq!(bench.gate.in_flight(), 50, "unfinished operations stay");
    bench.drain();
    assert_eq!(bench.fill(0, kernel(1), 10 * US, &OPEN), 20);
    bench.drain();
    bench.gate.set_window(0);
    assert_eq!(
        bench.fill(0, kernel(1), 10 * US, &OPEN),
        20,
        "the window is at least 200 µs"
    );
}

#[test]
fn an_unknown_kernel_goes_alone() {
    let mut bench = Bench::new(2);
    bench.teach(kernel(1), 10 * US, 5);
    assert!(bench.try_submit(0, kernel(1), 10 * US, &OPEN));
    assert!(
        !bench.try_submit(0, kernel(2), 10 * US, &OPEN),
        "the unknown kernel waits behind another"
    );
    bench.drain();
    assert!(bench.try_submit(0, kernel(2), 10 * US, &OPEN));
    assert!(
        !bench.try_submit(1, kernel(1), 10 * US, &OPEN),
        "no other kernel follows the unknown one"
    );
    bench.drain();
    assert!(bench.try_submit(0, kernel(1), 10 * US, &OPEN));
    assert!(
        bench.try_submit(0, kernel(2), 10 * US, &OPEN),
        "the kernel is known now"
    );
}

#[test]
fn a_second_long_kernel_follows_when_the_first_is_nearly_over() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 10 * MS, 3);
    assert!(bench.try_submit(0, kernel(1), 10 * MS, &OPEN));
    let begun = bench.now;
    let Verdict::Wait(wait) = bench.verdict(0, kernel(1), &OPEN) else {
        panic!("two kernels of 10 ms were admitted at once");
    };
    assert_eq!(wait.why, WaitFor::Window);
    assert_eq!(wait.until_ns, Some(begun + 10 * MS - AHEAD_NS));
    bench.now = begun + 10 * MS - AHEAD_NS;
    assert!(bench.try_submit(0, kernel(1), 10 * MS, &OPEN));
    assert!(
        !bench.try_submit(0, kernel(1), 10 * MS, &OPEN),
        "no third kernel follows"
    );
    assert!(bench.complete_one());
    assert!(
        !bench.try_submit(0, kernel(1), 10 * MS, &OPEN),
        "the second kernel has just begun"
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
    // Five operations fit into the window.
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &ends), 5);
    assert!(bench.complete_one());
    assert!(bench.try_submit(0, kernel(1), 100 * US, &ends));
    assert!(bench.complete_one());
    let Verdict::Wait(wait) = bench.verdict(0, kernel(1), &ends) else {
        panic!("the seventh would end after the slice");
    };
    assert_eq!(wait.why, WaitFor::SliceEnd);
    // The device would idle from 600 µs on, before the end of the slice: one more operation is
    // submitted shortly before.
    assert_eq!(wait.until_ns, Some(begun + 600 * US - AHEAD_NS));
    assert!(bench.complete_one() && bench.complete_one());
    assert_eq!(bench.now, begun + 600 * US - AHEAD_NS);
    assert!(bench.try_submit(0, kernel(1), 100 * US, &ends));
    let Verdict::Wait(wait) = bench.verdict(0, kernel(1), &ends) else {
        panic!("only one operation may follow");
    };
    assert_eq!((wait.why, wait.until_ns), (WaitFor::SliceEnd, None));
    // If the work in flight ends after the slice, no more operation is submitted.
    bench.drain();
    let ends = slice(&bench, 80 * US);
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &ends), 1);
    bench.drain();
    // Nothing is in flight: one operation is submitted although it exceeds the slice. Otherwise the
    // rest of the slice would be lost.
    let ends = slice(&bench, 50 * US);
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &ends), 1);
    // While no session waits, the end of the slice does not count.
    assert_eq!(bench.fill(0, kernel(1), 100 * US, &OPEN), 4);
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

    // On a device that runs one stream at a time, the window does not grow.
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
