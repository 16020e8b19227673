//! Learning from completions, and the effect of a wrong prediction.

use vgpu_sched::gate::{Direction, Key, Work};

use crate::bench::{Bench, MS, OPEN, US, kernel};

#[test]
fn a_misprediction_closes_the_window_to_one_until_predictions_are_kept() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), 10 * US, 50);
    assert_eq!(bench.fill(0, kernel(1), 10 * US, &OPEN), 50);
    bench.drain();
    // The kernel takes 5 ms this time.
    assert!(bench.try_submit(0, kernel(1), 5 * MS, &OPEN));
    bench.drain();
    // The trust belongs to the session: another kernel with correct predictions gets no more of it.
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
fn operations_that_are_unknown_or_alone_earn_no_depth() {
    let mut bench = Bench::new(1);
    bench.teach(kernel(1), US, 1);
    // A wrong prediction: from now on, only one operation at a time is allowed.
    assert!(bench.try_submit(0, kernel(1), 2 * MS, &OPEN));
    bench.drain();
    for new in 100..120 {
        bench.teach(kernel(new), US, 1);
    }
    assert_eq!(
        bench.fill(0, kernel(100), US, &OPEN),
        1,
        "nothing was predicted"
    );
    bench.drain();
    // The predictions of single operations were right, but never with more than one in flight.
    bench.teach(kernel(101), US, 20);
    assert_eq!(bench.fill(0, kernel(101), US, &OPEN), 2);
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
    // The times of single operations include 90 µs for waking up. Together, the operations take
    // their real time.
    for _ in 0..10 {
        assert!(bench.try_submit(0, kernel(1), 100 * US, &OPEN));
        bench.drain();
    }
    for _ in 0..20 {
        let n = bench.fill(0, kernel(1), 10 * US, &OPEN);
        assert!(n >= 2);
        // One marker follows all operations.
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
        // Both operations take half of the predicted time.
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
    // One launch every 200 µs, and one marker at the end.
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
fn bytes_predict_a_copy() {
    let mut bench = Bench::new(1);
    let copy = Work::Bytes {
        direction: Direction::ToDevice,
        bytes: 1 << 20,
    };
    // At first a cautious guess predicts the copy. Later the prediction is exact: 50 µs per MiB.
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
        "an unknown graph goes alone"
    );
    bench.drain();
    assert_eq!(bench.fill(0, graph, 250 * US, &OPEN), 2);
}
