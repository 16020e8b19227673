//! Results of real cards: each row of `tests/truth/card-facts.tsv` is a test.

use std::time::Duration;

use anyhow::Result;

use super::events::Dialect;
use super::follow::Unit;
use super::install::{Kit, Missing};
use super::suites::Plan;
use crate::truth::{self, Row};

/// A unit with all rows. Without the runtime's package, rows that need the runtime are skipped.
///
/// # Errors
/// If the table cannot be read; pip's errors, except a failed fetch.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    let (package, version) = truth::RUNTIME;
    match kit.wheel(package, version) {
        Err(e) if e.is::<Missing>() => println!("clients: the runtime that rows ask: {e}"),
        fetched => drop(fetched?),
    }
    let mut tests: Vec<String> = truth::table()?.iter().map(Row::name).collect();
    tests.sort_unstable();
    tests.dedup();
    let program = std::env::current_exe()?.with_file_name("vgpu-truth");
    let unit = Unit {
        name: "cards".into(),
        dialect: Dialect::Libtest,
        words: vec![program.into()],
        dir: kit.dir().join("scratch"),
        env: Vec::new(),
        tests,
        parallel: false,
        patience: Duration::from_secs(240),
        alone: true,
    };
    Ok(Plan {
        units: vec![unit],
        device: truth::CARD.map(|(n, v)| (n.into(), v.into())).to_vec(),
        ..Plan::default()
    })
}
