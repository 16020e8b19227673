//! The proofs in a hurry: small runs, up to the first that fails.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::fuzz;
use crate::proofs::{ALL, Plan};

/// Random runs: enough that each mutant that they are to notice fails within a few of them.
const SEEDS: u64 = 1_000;
/// Runs of each other proof, and their simulated seconds.
const RUNS: u64 = 2;
const SECONDS: u64 = 3;

/// A proof that failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Caught {
    /// Its name.
    pub by: String,
    /// What did not hold.
    pub what: String,
}

/// Runs the proofs, those that are named first, until one fails.
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
        return Some(format!("there is no proof called {name:?}"));
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
