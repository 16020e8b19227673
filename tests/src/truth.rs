//! What real cards answer: `tests/truth/card-facts.tsv` beside what a driver here answers.
//!
//! The program `tests/truth/truth.c` makes the calls; its lines have the table's form. Which rows say something
//! about one card or about WSL only is [`Row::specific`]'s to know; which others are answered differently here is
//! listed in `tests/truth/differences.tsv`, each with the reason.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::guest::{self, Guest, Target};
use crate::paths;
use crate::wait::SOON;

/// The parts of the program, each a process of its own. `logs` needs one in which nothing was refused yet.
const PARTS: [&str; 26] = [
    "logs",
    "attributes",
    "visible",
    "devices",
    "contexts",
    "tools",
    "peers",
    "copies",
    "arrays",
    "pools",
    "ranges",
    "physical",
    "modules",
    "libraries",
    "functions",
    "shared",
    "kernels",
    "launches",
    "clusters",
    "streams",
    "host",
    "nodes",
    "external",
    "textures",
    "control",
    "values",
];

/// Settings that make a soft device like the card of most rows, a GeForce RTX 3060.
pub const CARD: [(&str, &str); 1] = [("SOFT_GPU_CC", "8.6")];

/// A call and its arguments in words.
pub type Question = (String, String);

/// One row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// What was asked.
    pub question: Question,
    /// The card's answer.
    pub answer: String,
    /// Which card.
    pub note: String,
}

/// Attributes that follow from the compute capability, so that cards of it share them.
const BY_CAPABILITY: [&str; 3] = ["(76)", "(106)", "(120)"];

/// Questions whose answers follow from one property of devices under WSL: managed memory is not shared between
/// the host and a device at once (CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS is 0).
const WITHOUT_CONCURRENT_ACCESS: [(&str, &str); 9] = [
    ("cuDeviceGetAttribute", "ConcurrentManagedAccess, device 0"),
    ("cuDeviceGetAttribute", "ConcurrentManagedAccess, device 1"),
    ("cuMemGetDefaultMemPool", "managed, device 0"),
    ("cuMemPrefetchAsync", "managed to device 1"),
    ("cuMemPrefetchAsync", "managed to the host"),
    ("cuMemAdvise", "set preferred location device 1"),
    ("cuMemAdvise", "unset accessed by device 0"),
    (
        "cuMemRangeGetAttribute",
        "read mostly, after set read mostly (accepted)",
    ),
    ("cuMemRangeGetAttribute", "last prefetch location"),
];

impl Row {
    /// Why the row says nothing about other machines, if so.
    pub fn specific(&self) -> Option<&'static str> {
        let (call, arguments) = (self.question.0.as_str(), self.question.1.as_str());
        if call.starts_with("cuda") {
            return Some("asked through cudart");
        }
        if self.of_each_card() && !BY_CAPABILITY.iter().any(|id| arguments.ends_with(id)) {
            return Some("each card has its own value");
        }
        if WITHOUT_CONCURRENT_ACCESS.contains(&(call, arguments)) {
            return Some("a device under WSL has no concurrent access to managed memory");
        }
        None
    }

    /// Whether the answer has one value a card: `SUCCESS (0); 3060 28, L4 58, …`.
    fn of_each_card(&self) -> bool {
        self.answer.contains("; 3060 ")
    }

    /// The answer that is expected of [`CARD`].
    fn expected(&self) -> String {
        match self.answer.split_once("3060 ") {
            Some((result, values)) if self.of_each_card() => {
                let value = values.split(',').next().unwrap_or(values);
                format!("{result}{value}")
            }
            _ => self.answer.clone(),
        }
    }
}

fn folder() -> PathBuf {
    paths::root().join("tests/truth")
}

fn lines(name: &str) -> Result<Vec<Vec<String>>> {
    let path = folder().join(name);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let rows = text
        .lines()
        .filter(|l| !l.starts_with('#') && !l.is_empty());
    Ok(rows
        .map(|l| l.split('\t').map(str::to_owned).collect())
        .collect())
}

/// The table.
///
/// # Errors
/// If it cannot be read, or a row has not four columns.
pub fn table() -> Result<Vec<Row>> {
    let row = |columns: Vec<String>| -> Result<Row> {
        let [call, arguments, answer, note]: [String; 4] = columns
            .try_into()
            .map_err(|row| anyhow::anyhow!("{row:?} has not four columns"))?;
        Ok(Row {
            question: (call, arguments),
            answer,
            note,
        })
    };
    lines("card-facts.tsv")?.into_iter().map(row).collect()
}

/// The questions that are answered differently here, with the reasons.
///
/// # Errors
/// If the list cannot be read, or a row has not three columns.
pub fn differences() -> Result<BTreeMap<Question, String>> {
    let row = |columns: Vec<String>| -> Result<(Question, String)> {
        let [call, arguments, reason]: [String; 3] = columns
            .try_into()
            .map_err(|row| anyhow::anyhow!("{row:?} has not three columns"))?;
        Ok(((call, arguments), reason))
    };
    lines("differences.tsv")?.into_iter().map(row).collect()
}

/// What a driver answers, by question.
///
/// # Errors
/// If the program does not end well, with what it printed.
pub fn ask(target: &Target) -> Result<BTreeMap<Question, String>> {
    let mut answers = BTreeMap::new();
    for part in PARTS {
        let mut guest = Guest::new(guest::TRUTH, target.clone())?
            .arg(part)
            .arg(folder().join("card-facts.tsv"));
        for (name, value) in CARD {
            guest = guest.env(name, value);
        }
        guest = guest.env("SOFT_GPU_DEVICES", "2");
        let output = guest.run(2 * SOON)?;
        ensure!(
            output.status.success(),
            "{part}: {}",
            guest::describe(&output)
        );
        for line in String::from_utf8_lossy(&output.stdout).lines() {
            let mut columns = line.splitn(3, '\t').map(str::to_owned);
            if let (Some(call), Some(arguments), Some(answer)) =
                (columns.next(), columns.next(), columns.next())
            {
                answers.insert((call, arguments), answer);
            }
        }
    }
    Ok(answers)
}

/// The rows that are not answered as the card answers, with what is answered instead; rows that are specific to
/// the card are left out.
pub fn unlike<'a>(
    rows: &'a [Row],
    answers: &BTreeMap<Question, String>,
) -> BTreeMap<&'a Question, String> {
    let mut found = BTreeMap::new();
    for row in rows.iter().filter(|row| row.specific().is_none()) {
        let answer = answers.get(&row.question).map_or("no line", String::as_str);
        if answer != row.expected() {
            found.insert(
                &row.question,
                format!("{answer} instead of {}", row.expected()),
            );
        }
    }
    found
}
