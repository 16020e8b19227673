//! Any events in any order, honest or not: what must hold holds after each of them. The generator, the
//! model and the checks are the simulator's (`vgpu_sim::fuzz`); `make sim` runs them at length.

use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/any_events.proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    /// Each gene is one step; the seed is the kind of world.
    #[test]
    fn whatever_is_said_the_books_are_right(
        seed in any::<u64>(),
        genes in proptest::collection::vec(any::<u64>(), 1..300),
    ) {
        if let Err(what) = vgpu_sim::fuzz::check(seed, &genes) {
            prop_assert!(false, "{}", what);
        }
    }
}

#[test]
fn the_first_seeds_of_make_sim_pass() {
    let report = vgpu_sim::fuzz::run(400, 2);
    assert!(report.passed(), "{}", report.text());
}
