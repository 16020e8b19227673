//! What real cards answer: `tests/truth/card-facts.tsv` beside what a driver here answers.
//!
//! The program `tests/truth/truth.c` makes the calls; its lines have the table's form. Which rows say something
//! about one card or about WSL only is [`Row::specific`]'s to know; which others are answered differently here is
//! listed in `tests/clients/expected/truth.toml`, each with the reason.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use crate::clients::events::Outcome;
use crate::clients::install::Kit;
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

/// The package of NVIDIA's runtime that rows ask, of the last version whose `cudaMemAdvise` names devices by number.
pub const RUNTIME: (&str, &str) = ("nvidia-cuda-runtime-cu12", "12.9.79");

/// The runtime's library, where `make clients` has fetched it.
fn runtime() -> Option<PathBuf> {
    let (package, version) = RUNTIME;
    let wheel = Kit::of_checkout()
        .dir()
        .join(format!("{package}-{version}"));
    let library = wheel.join("nvidia/cuda_runtime/lib/libcudart.so.12");
    library.is_file().then_some(library)
}

/// The program's status on other devices.
const OTHER_DEVICES: i32 = 4;

/// Rows cannot be asked here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rows are about two devices of compute capability 8.6, which this machine has not")]
pub struct OtherDevices;

/// Settings that make a soft device like the card of most rows, a GeForce RTX 3060.
pub const CARD: [(&str, &str); 2] = [("SOFT_GPU_CC", "8.6"), ("SOFT_GPU_DEVICES", "2")];

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
const WITHOUT_CONCURRENT_ACCESS: [(&str, &str); 10] = [
    ("cuDeviceGetAttribute", "ConcurrentManagedAccess, device 0"),
    ("cuDeviceGetAttribute", "ConcurrentManagedAccess, device 1"),
    ("cuMemGetDefaultMemPool", "managed, device 0"),
    ("cuMemPrefetchAsync", "managed to device 1"),
    ("cuMemPrefetchAsync", "managed to the host"),
    ("cudaMemPrefetchAsync", "managed to the host"),
    ("cuMemAdvise", "set preferred location device 1"),
    ("cuMemAdvise", "unset accessed by device 0"),
    (
        "cuMemRangeGetAttribute",
        "read mostly, after set read mostly (accepted)",
    ),
    ("cuMemRangeGetAttribute", "last prefetch location"),
];

impl Row {
    /// The row as a test's name.
    pub fn name(&self) -> String {
        format!("{}: {}", self.question.0, self.question.1)
    }

    /// Why the row says nothing about other machines, if so.
    pub fn specific(&self) -> Option<&'static str> {
        let (call, arguments) = (self.question.0.as_str(), self.question.1.as_str());
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

/// The table of what cards answer.
const CARD_FACTS: &str = "card-facts.tsv";

/// The table.
///
/// # Errors
/// If it cannot be read, or a row has not four columns.
pub fn table() -> Result<Vec<Row>> {
    rows(CARD_FACTS)
}

/// Neighbours of its rows, which nobody measured: each follows from a rule that the row's note names.
///
/// # Errors
/// As [`table`].
pub fn kin() -> Result<Vec<Row>> {
    rows("kin.tsv")
}

fn rows(name: &str) -> Result<Vec<Row>> {
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
    lines(name)?.into_iter().map(row).collect()
}

/// What a driver answers, by question.
///
/// # Errors
/// If the program does not end well, with what it printed; [`OtherDevices`].
pub fn ask(target: &Target) -> Result<BTreeMap<Question, String>> {
    let mut answers = BTreeMap::new();
    for part in PARTS {
        answers.extend(ask_part(target, part, &folder().join(CARD_FACTS))?);
    }
    if let Some(library) = runtime() {
        answers.extend(ask_part(target, "runtime", &library)?);
    }
    Ok(answers)
}

/// What a driver answers to the neighbours of those rows.
///
/// # Errors
/// As [`ask`].
pub fn ask_kin(target: &Target) -> Result<BTreeMap<Question, String>> {
    ask_part(target, "kin", Path::new(""))
}

fn ask_part(target: &Target, part: &str, file: &Path) -> Result<BTreeMap<Question, String>> {
    let mut guest = Guest::new(guest::TRUTH, target.clone())?
        .arg(part)
        .arg(file);
    for (name, value) in CARD {
        guest = guest.env(name, value);
    }
    let output = guest.run(2 * SOON)?;
    if output.status.code() == Some(OTHER_DEVICES) {
        bail!(OtherDevices);
    }
    ensure!(
        output.status.success(),
        "{part}: {}",
        guest::describe(&output)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let row = |line: &str| {
        let mut columns = line.splitn(3, '\t').map(str::to_owned);
        Some(((columns.next()?, columns.next()?), columns.next()?))
    };
    Ok(text.lines().filter_map(row).collect())
}

/// The rows as tests, by name: whether they are answered as the card answers. Rows that are specific to the card,
/// and those that could not be asked, are skipped.
pub fn outcomes(rows: &[Row], answers: &BTreeMap<Question, String>) -> BTreeMap<String, Outcome> {
    let mut all = BTreeMap::new();
    let cudart_asked = answers.keys().any(|(call, _)| call.starts_with("cuda"));
    for row in rows {
        let answer = answers.get(&row.question);
        let outcome = match (row.specific(), answer) {
            (Some(why), _) => Outcome::Skipped(why.into()),
            (None, None) if row.question.0.starts_with("cuda") && !cudart_asked => {
                Outcome::Skipped("asked through cudart, which was not fetched".into())
            }
            (None, Some(answer)) if *answer == row.expected() => Outcome::Passed,
            (None, answer) => {
                let answer = answer.map_or("no line", String::as_str);
                Outcome::Failed(format!("{answer} instead of {}", row.expected()))
            }
        };
        all.insert(row.name(), outcome);
    }
    all
}

/// How many rows that are about every card are answered alike in every way of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alike {
    alike: usize,
    asked: usize,
    not_asked: usize,
}

impl Alike {
    /// Of the rows, with their outcomes by name in each way. A question may stand in several rows.
    pub fn of(rows: &[Row], ways: &[BTreeMap<String, Outcome>]) -> Alike {
        let mut sums = Alike {
            alike: 0,
            asked: 0,
            not_asked: 0,
        };
        for row in rows.iter().filter(|row| row.specific().is_none()) {
            let name = row.name();
            let outcomes = ways.iter().map(|way| way.get(&name));
            let asked = |outcome: Option<&Outcome>| {
                matches!(outcome, Some(Outcome::Passed | Outcome::Failed(_)))
            };
            if !outcomes.clone().all(asked) {
                sums.not_asked += 1;
                continue;
            }
            sums.asked += 1;
            let passed = |outcome: Option<&Outcome>| outcome == Some(&Outcome::Passed);
            sums.alike += usize::from(outcomes.clone().all(passed));
        }
        sums
    }

    /// Whether at least so many of a hundred rows that were asked are answered alike, and any was.
    pub fn holds(self, percent: usize) -> bool {
        self.asked > 0 && self.alike * 100 >= self.asked * percent
    }
}

impl fmt::Display for Alike {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Alike {
            alike,
            asked,
            not_asked,
        } = self;
        write!(
            f,
            "{alike} of {asked} rows that are about every card are answered alike; {not_asked} more were not asked"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_are_not_asked_are_not_answered_alike() {
        let row = |call: &str, arguments: &str| Row {
            question: (call.into(), arguments.into()),
            answer: "SUCCESS (0)".into(),
            note: String::new(),
        };
        let rows = [
            row("cuInit", "0"),
            row("cuInit", "1"),
            row("cudaMalloc", "0"),
            row("cudaMalloc", "1"),
            row(
                WITHOUT_CONCURRENT_ACCESS[0].0,
                WITHOUT_CONCURRENT_ACCESS[0].1,
            ),
        ];
        let said = |answer: &str| {
            let answer = |row: &Row| (row.question.clone(), answer.to_owned());
            outcomes(&rows, &rows[..2].iter().map(answer).collect())
        };
        let (right, wrong) = (said("SUCCESS (0)"), said("INVALID_VALUE (1)"));
        let alike = Alike::of(&rows, &[right.clone(), right.clone()]);
        assert_eq!((alike.alike, alike.asked, alike.not_asked), (2, 2, 2));
        assert!(alike.holds(100), "{alike}");
        // One of the two ways is enough to be unlike, and what was not asked makes up for nothing.
        let mut other = right.clone();
        other.extend([("cuInit: 1".to_owned(), wrong["cuInit: 1"].clone())]);
        let alike = Alike::of(&rows, &[right.clone(), other]);
        assert_eq!((alike.alike, alike.asked, alike.not_asked), (1, 2, 2));
        assert!(alike.holds(50) && !alike.holds(51), "{alike}");
        let none = Alike::of(&rows[2..], &[right.clone(), right]);
        assert_eq!((none.alike, none.asked, none.not_asked), (0, 0, 2));
        assert!(!none.holds(0), "{none}");
    }
}
