//! Short versions of the proofs, until the first failure.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fuzz;
use crate::proofs::{ALL, Plan};

/// Number of seeds for the fuzzer. A mutant that the fuzzer must notice fails within a few seeds.
const SEEDS: u64 = 1_000;
/// Number of runs of each other proof, and their length in simulated seconds.
const RUNS: u64 = 2;
const SECONDS: u64 = 3;

/// A failed proof.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    /// Name of the proof.
    pub by: String,
    /// Violated bound or invariant.
    pub what: String,
}

/// Runs the proofs until one fails, first the proofs in `named`.
#[must_use]
pub fn first_failure(named: &[String]) -> Option<Caught> {
    let mut order: Vec<&str> = named.iter().map(String::as_str).collect();
    for name in std::iter::once("fuzz").chain(ALL.iter().map(|proof| proof.name)) {
        if !order.contains(&name) {
            order.push(name);
        }
    }
    order.into_iter().find_map(|name| {
        let what = if name == "fuzz" {
            fuzz::first_failure(SEEDS)
        } else {
            proof(name)
        };
        what.map(|what| Caught {
            by: name.to_owned(),
            what,
        })
    })
}

fn proof(name: &str) -> Option<String> {
    let Some(proof) = ALL.iter().find(|proof| proof.name == name) else {
        return Some(format!("there is no proof {name:?}"));
    };
    (0..RUNS).find_map(|seed| {
        let plan = Plan {
            seed,
            seconds: SECONDS,
            verbose: false,
        };
        match catch_unwind(AssertUnwindSafe(|| (proof.run)(plan))) {
            Err(_) => Some("panic".to_owned()),
            Ok(found) => {
                let broken = found.seen.iter().find(|seen| !seen.holds());
                broken
                    .map(|seen| {
                        let (name, bound) = (seen.measure.name, seen.bound);
                        format!("{name} is {:.4}, bound {bound:.4}", seen.value)
                    })
                    .or_else(|| found.problems.first().cloned())
            }
        }
    })
}
