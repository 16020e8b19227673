//! What real cards answer, row by row: directly on soft-gpu, and through the whole line.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use vgpu_tests::guest::Target;
use vgpu_tests::host::{Options, one_vm};
use vgpu_tests::truth::{self, CARD, Question, Row};

/// Most rows that are listed as answered differently.
const MOST_DIFFERENCES: usize = 15;
/// The least part of the rows that are about every card, in percent, that is answered alike.
const LEAST_ALIKE: usize = 98;

/// Through the whole line, by a VM that has two devices like the card.
fn remoted() -> Result<BTreeMap<Question, String>> {
    let host = one_vm(&Options {
        soft_env: CARD.map(|(n, v)| (n.into(), v.into())).to_vec(),
        ..Options::default()
    })?;
    host.admin("assign-gpu --gpu-id=1 --pool=A")?;
    host.admin("vm set 1 --gang")?;
    truth::ask(&host.target(1))
}

#[test]
fn answers_are_those_of_real_cards_directly_and_through_the_line() -> Result<()> {
    let rows = truth::table()?;
    let known = truth::differences()?;
    let ways = [
        ("directly", truth::ask(&Target::SoftGpu)?),
        ("through the line", remoted()?),
    ];
    let general = rows.iter().filter(|r| r.specific().is_none()).count();
    let mut unlike = BTreeSet::new();
    let mut wrong = String::new();
    for (way, answers) in &ways {
        let found = truth::unlike(&rows, answers);
        for (question, instead) in &found {
            if !known.contains_key(*question) {
                wrong += &format!("{way}: {} ({}): {instead}\n", question.0, question.1);
            }
        }
        unlike.extend(found.into_keys());
    }
    for question in known.keys().filter(|q| !unlike.contains(q)) {
        wrong += &format!(
            "listed, and answered alike: {} ({})\n",
            question.0, question.1
        );
    }
    ensure!(wrong.is_empty(), "\n{wrong}");
    ensure!(
        known.len() <= MOST_DIFFERENCES,
        "{} are listed",
        known.len()
    );
    let alike = general - rows_of(&rows, &unlike);
    println!("{alike} of {general} rows that are about every card are answered alike");
    ensure!(alike * 100 >= general * LEAST_ALIKE, "{alike} of {general}");
    Ok(())
}

/// A question may stand in several rows.
fn rows_of(rows: &[Row], questions: &BTreeSet<&Question>) -> usize {
    rows.iter()
        .filter(|r| questions.contains(&r.question))
        .count()
}
