//! The gate beside an overrunner.

use vgpu_sched::gate::{BESIDE_NS, LeaseView, STALL_NS, Work};

use crate::bench::{Bench, MS, OPEN, US, kernel};

const BESIDE: LeaseView = LeaseView {
    closing: false,
    slice_end_ns: None,
    beside: true,
};

/// Like [`Bench::try_submit`], but the overrunner's time slices make the operation complete `late`
/// ns later.
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
    // Alone again, the session submits nothing until the work beyond its window is complete.
    assert!(!bench.try_submit(0, kernel(1), 20 * US, &OPEN));
    bench.drain();
    assert_eq!(bench.fill(0, kernel(1), 20 * US, &OPEN), 25);
    bench.drain();
    // The end of the slice counts beside an overrunner, too, but the session uses its time slice of
    // the driver to the end.
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
        "more than one operation"
    );
    bench.drain();
    // The time of work that was submitted beside an overrunner is not learned, even if the
    // overrunner ends before the work completes.
    assert!(bench.try_submit(0, kernel(1), 3 * MS, &BESIDE));
    assert!(bench.try_submit(0, kernel(1), 20 * US, &OPEN));
    assert!(bench.complete_one());
    assert_eq!(bench.gate.predictor().peek(kernel(1)), known);
    bench.drain();
    // Without an overrunner, the same time is a misprediction.
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
    // After a misprediction without overrunner, times beside an overrunner restore the trust if the
    // driver's time slices can explain these times.
    bench.teach(kernel(2), 20 * US, 20);
    assert!(bench.try_submit(0, kernel(2), 3 * MS, &OPEN));
    bench.drain();
    bench.teach(kernel(3), 20 * US, 1);
    for _ in 0..10 {
        bench.fill(0, kernel(3), 20 * US, &BESIDE);
        bench.now += 2 * MS;
        bench.drain();
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
        "the time includes a time slice of the overrunner"
    );
    bench.drain();
    // Samples that contain no time slice of the overrunner bring the guess near the real time.
    for _ in 0..60 {
        run_beside(&mut bench, kernel(1), 20 * US, 0);
    }
    assert!(bench.fill(0, kernel(1), 20 * US, &BESIDE) > 40);
    bench.drain();
    assert_eq!(bench.gate.predictor().peek(kernel(1)), None);
    assert_eq!(
        bench.fill(0, kernel(1), 20 * US, &OPEN),
        1,
        "the time is unknown again"
    );
    bench.drain();
    assert_eq!(
        bench.fill(0, kernel(1), 20 * US, &OPEN),
        25,
        "one completion makes the time known"
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
