//! The times at which usage is written.

use super::*;

/// Tests the writer's clock, so that slow ticks of a loaded machine do not matter.
#[test]
fn usage_is_due_every_second_of_the_writers_clock() {
    let options = StoreOptions::of(&Default::default(), &Default::default());
    assert_eq!(options.usage_flush, Duration::from_secs(1));
    let begin = Instant::now();
    let mut next = begin;
    let ticks = (0..=600).map(|tick| begin + tick * TICK);
    let written: Vec<Instant> = ticks
        .filter(|now| is_due(&mut next, *now, options.usage_flush))
        .collect();
    assert_eq!(
        written.len(),
        61,
        "once a second for 60 s, and at the start"
    );
    for pair in written.windows(2) {
        assert_eq!(pair[1] - pair[0], Duration::from_secs(1));
    }
}
