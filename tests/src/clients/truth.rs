//! Answers of real cards: `tests/truth/card-facts.tsv`, compared with a driver of this machine.
//!
//! The program `tests/truth/truth.c` makes the calls and prints lines in the form of the table.
//! [`Row::specific`] identifies rows that apply only to one card or to WSL. Other rows with
//! different answers are listed in `tests/clients/expected/truth.toml`, each with the reason.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};

use super::events::{Dialect, Outcome};
use super::follow::Unit;
use super::install::{Kit, Missing};
use super::plan::{PATIENCE, Plan};
use crate::guest::{self, Guest, Target};
use crate::paths;
use crate::wait::SOON;

/// The parts of the program, each a separate process. `logs` needs a process in which nothing was
/// refused yet.
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

/// The package of NVIDIA's runtime for the rows: the last version whose `cudaMemAdvise` names
/// devices by number.
const RUNTIME: (&str, &str) = ("nvidia-cuda-runtime-cu12", "12.9.79");

/// The runtime's library, if `make clients` has fetched it.
fn runtime() -> Option<PathBuf> {
    let (package, version) = RUNTIME;
    let wheel = Kit::of_checkout()
        .dir()
        .join(format!("{package}-{version}"));
    let library = wheel.join("nvidia/cuda_runtime/lib/libcudart.so.12");
    library.is_file().then_some(library)
}

/// Exit status of the program on other devices.
const OTHER_DEVICES: i32 = 4;

/// The rows do not apply to this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the rows are about two devices of compute capability 8.6, which this machine has not")]
pub struct OtherDevices;

/// Settings that make a soft device like the card of most rows, a GeForce RTX 3060.
pub const CARD: [(&str, &str); 2] = [("SOFT_GPU_CC", "8.6"), ("SOFT_GPU_DEVICES", "2")];

/// A call and its arguments, as text.
pub type Question = (String, String);

/// A row of the table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The call and its arguments.
    pub question: Question,
    /// The card's answer.
    pub answer: String,
    /// The name of the card, and remarks about the measurement.
    pub note: String,
}

/// Attributes that the compute capability determines, so that all cards with it share them.
const BY_CAPABILITY: [&str; 3] = ["(76)", "(106)", "(120)"];

/// Questions whose answers follow from a property of devices under WSL: host and device cannot use
/// managed memory at the same time (CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS is 0).
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
    /// The name of the row as a test.
    pub fn name(&self) -> String {
        format!("{}: {}", self.question.0, self.question.1)
    }

    /// The reason for which the row does not apply to other machines, if so.
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

    /// Whether the answer has one value per card: `SUCCESS (0); 3060 28, L4 58, …`.
    fn of_each_card(&self) -> bool {
        self.answer.contains("; 3060 ")
    }

    /// The expected answer of [`CARD`].
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

/// The file with answers of cards.
const CARD_FACTS: &str = "card-facts.tsv";

/// Reads the table of cards.
///
/// # Errors
/// If the table cannot be read, or a row does not have four columns.
pub fn table() -> Result<Vec<Row>> {
    rows(CARD_FACTS)
}

/// Rows related to those of the table, which were not measured: each follows from a rule in its
/// note.
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

/// The answers of a driver, by question.
///
/// # Errors
/// If the program fails, with its output; [`OtherDevices`].
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

/// The answers of a driver to the related rows.
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

/// The rows as tests, by name: whether the answers equal the card's. Rows that are specific to a
/// card, and rows that could not be asked, are skipped.
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

/// The suite `truth`: one unit, in which each row of the table is a test. Without the runtime's
/// package, rows that need the runtime are skipped.
///
/// # Errors
/// If the table cannot be read; pip's errors, except a failed fetch.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    let (package, version) = RUNTIME;
    match kit.wheel(package, version) {
        Err(e) if e.is::<Missing>() => println!("clients: the runtime that rows ask: {e}"),
        fetched => drop(fetched?),
    }
    let mut tests: Vec<String> = table()?.iter().map(Row::name).collect();
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
        patience: PATIENCE,
        alone: true,
    };
    Ok(Plan {
        units: vec![unit],
        device: CARD.map(|(n, v)| (n.into(), v.into())).to_vec(),
        ..Plan::default()
    })
}

/// Number of rows about every card that have the same answer in all ways of asking.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Alike {
    alike: usize,
    asked: usize,
    not_asked: usize,
}

impl Alike {
    /// Compares the outcomes, by name, of the rows in each way. Several rows may have the same
    /// question.
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

    /// Whether at least `percent` of the asked rows have the same answer, and at least one was
    /// asked.
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
        // A difference in one of the two ways suffices, and rows that were not asked do not
        // compensate for it.
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
