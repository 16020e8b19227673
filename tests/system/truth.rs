//! Answers of real cards, row by row: directly on soft-gpu, and through the whole system.

use std::collections::BTreeSet;

use anyhow::{Result, ensure};
use vgpu_tests::clients::events::Outcome;
use vgpu_tests::clients::expected::{Expected, Verdict};
use vgpu_tests::clients::truth::{self, Alike, CARD};
use vgpu_tests::guest::Target;
use vgpu_tests::host::{Host, Options, one_vm};

/// Largest number of rows that may be listed as different.
const MOST_DIFFERENCES: usize = 15;
/// Smallest percentage of equal answers, among the asked rows about every card.
const LEAST_ALIKE: usize = 98;

/// A host with a VM that has two devices like the card.
fn host() -> Result<Host> {
    let host = one_vm(&Options {
        soft_env: CARD.map(|(n, v)| (n.into(), v.into())).to_vec(),
        ..Options::default()
    })?;
    host.admin("assign-gpu --gpu-id=1 --pool=A")?;
    host.admin("vm set 1 --gang")?;
    Ok(host)
}

#[test]
fn answers_are_those_of_real_cards_directly_and_through_the_line() -> Result<()> {
    let rows = truth::table()?;
    let expected = Expected::read("truth")?;
    let ways = [
        ("direct", truth::ask(&Target::SoftGpu)?),
        ("remoted", truth::ask(&host()?.target(1))?),
    ];
    let mut listed = BTreeSet::new();
    let mut wrong = String::new();
    let ways = ways.map(|(way, answers)| (way, truth::outcomes(&rows, &answers)));
    for (way, outcomes) in &ways {
        for (test, outcome) in outcomes {
            match expected.verdict(way, test, outcome) {
                Verdict::AsWanted => {}
                Verdict::Known(_) => drop(listed.insert(test)),
                Verdict::News => wrong += &format!("{way}: {test}: {outcome:?}\n"),
                Verdict::PassesNow(why) => {
                    wrong += &format!("{way}: {test}: alike, and listed: {why}\n");
                }
            }
        }
    }
    ensure!(wrong.is_empty(), "\n{wrong}");
    ensure!(listed.len() <= MOST_DIFFERENCES, "listed: {listed:?}");
    let alike = Alike::of(&rows, &ways.map(|(_, outcomes)| outcomes));
    println!("{alike}");
    ensure!(alike.holds(LEAST_ALIKE), "{alike}");
    Ok(())
}

/// Checks that causes were fixed, not single rows: other arguments of the same calls, by rules that
/// the rows show.
#[test]
fn neighbours_of_those_rows_follow_the_same_rules() -> Result<()> {
    let rows = truth::kin()?;
    let host = host()?;
    let mut wrong = String::new();
    for (way, target) in [("direct", Target::SoftGpu), ("remoted", host.target(1))] {
        for (test, outcome) in truth::outcomes(&rows, &truth::ask_kin(&target)?) {
            if outcome != Outcome::Passed {
                wrong += &format!("{way}: {test}: {outcome:?}\n");
            }
        }
    }
    ensure!(wrong.is_empty(), "\n{wrong}");
    Ok(())
}
