//! Runs every proof briefly. The result of a run depends only on its seed.

use vgpu_sim::found::Found;
use vgpu_sim::proofs::{ALL, Plan};
use vgpu_sim::report::Report;
use vgpu_sim::runner;

fn run(name: &str, seed: u64, seconds: u64) -> Found {
    let proof = ALL.iter().find(|proof| proof.name == name).expect("known");
    let verbose = false;
    (proof.run)(Plan {
        seed,
        seconds,
        verbose,
    })
}

#[test]
fn every_proof_holds_for_its_first_seeds() {
    for proof in ALL.iter().filter(|proof| proof.name != "crowd") {
        for seed in 0..4 {
            let found = run(proof.name, seed, 2);
            assert_eq!(
                found.problems,
                Vec::<String>::new(),
                "{} {seed}",
                proof.name
            );
            for seen in &found.seen {
                assert!(seen.holds(), "{} {seed}: {seen:?}", proof.name);
            }
        }
    }
}

#[test]
fn the_same_seed_is_the_same_run_and_another_is_another() {
    let print = |seed| {
        let found = run("adversaries", seed, 2);
        (
            found.operations,
            found.decisions,
            format!("{:?}", found.seen),
        )
    };
    assert_eq!(print(3), print(3));
    assert_ne!(print(3), print(4));
}

#[test]
fn the_number_of_threads_changes_nothing() {
    let jobs = runner::plan(6, 2, 1);
    let table = |threads| {
        let mut report = Report::default();
        runner::run(&jobs, threads, &mut report);
        let rows: Vec<String> = report.rows().map(|row| format!("{row:?}")).collect();
        (rows, report.operations, report.decisions)
    };
    assert_eq!(table(1), table(3));
}

#[test]
fn runs_are_spread_over_all_proofs() {
    for (runs, least) in [(300, 300), (10, 10)] {
        let jobs = runner::plan(runs, 30, 3);
        let long = jobs.iter().filter(|job| job.plan.seconds == 30).count();
        assert_eq!(long, least);
        for proof in ALL {
            assert!(jobs.iter().any(|job| job.proof.name == proof.name));
        }
    }
}
