//! Feeds any events in any order, valid or not, and checks the invariants after each event. The
//! generator, the model and the checks are in the simulator (`vgpu_sim::fuzz`); `make sim` runs
//! them for longer.

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

    /// Each gene decides one step. The seed selects the kind of world.
    #[test]
    fn any_events_keep_the_accounts_right(
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
