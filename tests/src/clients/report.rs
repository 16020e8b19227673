//! The results, for people and as `report.json`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::events::Outcome;
use super::expected::{Expected, Verdict};
use super::row::{Part, Row, Tests};

/// A row, compared with the expectation.
#[derive(Debug, Default)]
pub struct Judged {
    /// Number of passed tests.
    pub passed: usize,
    /// Failed tests with their messages and known causes.
    pub failed: Vec<(String, String, Option<String>)>,
    /// Tests that failed beside others of their client and passed alone, with their messages; they
    /// also count as passed.
    pub raced: Vec<(String, String)>,
    /// Reasons of skipped tests, with the number of tests.
    pub skipped: BTreeMap<String, usize>,
    /// Tests that passed although a cause of failure is listed.
    pub pass_now: Vec<(String, String)>,
    /// The required number of passed tests, if fewer passed.
    pub too_few: Option<usize>,
    /// Sentences about the listed causes with more failures than they allow.
    pub exceeded: Vec<String>,
}

impl Judged {
    /// Compares a row with the file of its suite.
    pub fn of(tests: &Tests, expected: &Expected, mode: &str) -> Judged {
        let mut judged = Judged::default();
        let mut known = Vec::new();
        for (test, outcome) in &tests.ended {
            let verdict = expected.verdict(mode, test, outcome);
            match outcome {
                Outcome::Passed => judged.passed += 1,
                Outcome::Raced(why) => {
                    judged.passed += 1;
                    judged.raced.push((test.clone(), why.clone()));
                }
                Outcome::Skipped(why) => *judged.skipped.entry(why.clone()).or_default() += 1,
                Outcome::Failed(why) => {
                    let cause = match verdict {
                        Verdict::Known(of) => {
                            known.push(of);
                            Some(of.cause.clone())
                        }
                        _ => None,
                    };
                    judged.failed.push((test.clone(), why.clone(), cause));
                }
            }
            if let Verdict::PassesNow(cause) = verdict {
                judged.pass_now.push((test.clone(), cause.to_owned()));
            }
        }
        judged.exceeded = expected.exceeded(&known);
        let least = match tests.part {
            Part::Whole => expected.least(mode),
            Part::Ci => expected.least_in_ci(mode),
            Part::Named => 0,
        };
        judged.too_few = (judged.passed < least).then_some(least);
        judged
    }

    /// Unexpected failures.
    pub fn news(&self) -> impl Iterator<Item = &(String, String, Option<String>)> {
        self.failed.iter().filter(|(_, _, cause)| cause.is_none())
    }

    /// Whether this row fails the run.
    pub fn is_bad(&self) -> bool {
        self.too_few.is_some() || !self.exceeded.is_empty() || self.news().next().is_some()
    }

    fn skipped_tests(&self) -> usize {
        self.skipped.values().sum()
    }
}

/// Prints a row and returns whether it is as expected. `ci`: a suite of a published package must
/// run.
pub fn print(row: &Row, expected: &Expected, ci: bool) -> bool {
    let tests = match &row.outcome {
        Ok(tests) => tests,
        Err(why) => {
            println!("SKIPPED: {} {} {}: {why}", row.suite, row.version, row.mode);
            return !ci || expected.needs_checkout();
        }
    };
    let judged = Judged::of(tests, expected, &row.mode.to_string());
    println!(
        "{:16} {:8} {:11} {:5} passed {:4} failed {:4} skipped  {:6.1} s",
        row.suite,
        row.version,
        row.mode,
        judged.passed,
        judged.failed.len(),
        judged.skipped_tests(),
        tests.took.as_secs_f64(),
    );
    for (why, count) in &judged.skipped {
        println!("    skipped {count:4}: {}", short(why));
    }
    let mut causes: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, _, cause) in &judged.failed {
        if let Some(cause) = cause {
            *causes.entry(cause).or_default() += 1;
        }
    }
    for (cause, count) in causes {
        println!("    known   {count:4}: {}", short(cause));
    }
    for (test, why) in &judged.raced {
        println!(
            "    raced with itself, passes alone: {test}: {}",
            short(why)
        );
    }
    for (test, cause) in &judged.pass_now {
        println!("    passes now: {test} (expected: {})", short(cause));
    }
    for (test, why, _) in judged.news() {
        println!("    UNEXPECTED FAILURE: {test}: {}", short(why));
    }
    for exceeded in &judged.exceeded {
        println!("    MORE FAILURES THAN EXPECTED: {}", short(exceeded));
    }
    if let Some(least) = judged.too_few {
        println!("    TOO FEW PASSED: {} of at least {least}", judged.passed);
    }
    !judged.is_bad()
}

/// Prints the times of suites that ran in both rows, side by side.
pub fn print_times(rows: &[Value]) {
    let table = times(rows);
    if !table.is_empty() {
        println!(
            "{:16} {:>10} {:>10} {:>8}",
            "seconds", "directly", "remoted", "ratio"
        );
    }
    for (suite, [direct, remoted]) in table {
        let ratio = remoted / direct.max(0.1);
        println!("{suite:16} {direct:10.1} {remoted:10.1} {ratio:8.2}");
    }
}

/// The times of each suite that ran in both rows, in s: direct, remoted.
fn times(rows: &[Value]) -> Vec<(&str, [f64; 2])> {
    let seconds = |suite: &str, remoted: bool| {
        let row = rows.iter().find(|row| {
            let mode = row["mode"].as_str().unwrap_or_default();
            row["suite"] == suite && mode.ends_with("remoted") == remoted
        });
        row.and_then(|row| row["seconds"].as_f64())
    };
    let mut table: Vec<(&str, [f64; 2])> = Vec::new();
    for suite in rows.iter().filter_map(|row| row["suite"].as_str()) {
        let known = table.iter().any(|(known, _)| *known == suite);
        if let (false, Some(direct), Some(remoted)) =
            (known, seconds(suite, false), seconds(suite, true))
        {
            table.push((suite, [direct, remoted]));
        }
    }
    table
}

fn short(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(200) {
        Some((at, _)) => format!("{}…", &line[..at]),
        None => line.to_owned(),
    }
}

/// A row as an object of `report.json`.
pub fn to_json(row: &Row, expected: &Expected) -> Value {
    let mode = row.mode.to_string();
    let mut object = json!({
        "suite": row.suite, "version": row.version, "mode": mode,
        "passed": 0, "failed": 0, "skipped": 0,
    });
    match &row.outcome {
        Err(why) => object["unavailable"] = json!(why),
        Ok(tests) => {
            let judged = Judged::of(tests, expected, &mode);
            object["passed"] = json!(judged.passed);
            object["failed"] = json!(judged.failed.len());
            object["skipped"] = json!(judged.skipped_tests());
            object["seconds"] = json!(tests.took.as_secs_f64());
            object["whole"] = json!(tests.part == Part::Whole);
            object["skip_reasons"] = json!(judged.skipped);
            let failures = judged.failed.iter();
            let failures = failures
                .map(|(test, said, cause)| json!({ "test": test, "said": said, "cause": cause }));
            object["failures"] = failures.collect();
            let raced = judged.raced.iter();
            object["raced"] = raced
                .map(|(test, said)| json!({ "test": test, "said": said }))
                .collect();
            object["exceeded"] = json!(judged.exceeded);
            let pass_now = judged.pass_now.iter().map(|(test, _)| test);
            object["pass_now"] = pass_now.cloned().collect();
        }
    }
    object
}

/// Writes the report.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, rows: &[Value]) -> Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let text = serde_json::to_string_pretty(rows)? + "\n";
    // Written completely or not at all, because the file may be read while a long run adds rows.
    let new = path.with_extension("new");
    std::fs::write(&new, text).with_context(|| format!("writing {}", new.display()))?;
    std::fs::rename(&new, path).with_context(|| format!("writing {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::stand::Mode;
    use crate::host::Driver;

    fn row(outcomes: &[(&str, Outcome)]) -> Row {
        let ended = outcomes.iter().map(|(n, o)| ((*n).to_owned(), o.clone()));
        Row {
            suite: "sample",
            version: "1.0",
            mode: Mode {
                driver: Driver::Soft,
                remoted: false,
            },
            outcome: Ok(Tests {
                ended: ended.collect(),
                part: Part::Whole,
                ..Tests::default()
            }),
        }
    }

    fn expected() -> Expected {
        let text = "[least]\ndirect = 1\n[ci]\nleast = { direct = 2 }\n\
            [[known]]\ncause = 'graphs'\ntests = ['g', 'h']\n\
            [[known]]\ncause = 'textures'\nat_most = 1\ntests = ['tex*']\n";
        toml::from_str(text).unwrap_or_default()
    }

    #[test]
    fn only_what_nobody_knew_is_bad() {
        let failed = |why: &str| Outcome::Failed(why.into());
        let known = row(&[("a", Outcome::Passed), ("g", failed("801"))]);
        assert!(print(&known, &expected(), true));
        let news = row(&[("a", Outcome::Passed), ("b", failed("700"))]);
        assert!(!print(&news, &expected(), true));
        let passes_now = row(&[("h", Outcome::Passed)]);
        assert!(print(&passes_now, &expected(), true));
        assert_eq!(to_json(&passes_now, &expected())["pass_now"], json!(["h"]));
        let raced = row(&[("r", Outcome::Raced("901".into()))]);
        assert!(print(&raced, &expected(), true));
        let object = to_json(&raced, &expected());
        assert_eq!(object["raced"], json!([{ "test": "r", "said": "901" }]));
        assert_eq!(object["passed"], 1);
        let too_few = row(&[("a", Outcome::Skipped("two GPUs".into()))]);
        assert!(!print(&too_few, &expected(), true));
        let textures = ["a", "tex1", "tex2"].map(|test| match test {
            "a" => (test, Outcome::Passed),
            _ => (test, failed("801")),
        });
        assert!(print(&row(&textures[..2]), &expected(), true));
        let exceeded = row(&textures);
        assert!(!print(&exceeded, &expected(), true));
        assert_eq!(
            to_json(&exceeded, &expected())["exceeded"],
            json!(["2 of at most 1: textures"])
        );
    }

    #[test]
    fn a_part_has_a_number_of_its_own() {
        let of = |part| {
            let mut row = row(&[("a", Outcome::Passed)]);
            row.outcome = row.outcome.map(|tests| Tests { part, ..tests });
            print(&row, &expected(), true)
        };
        assert!(of(Part::Whole) && of(Part::Named));
        assert!(!of(Part::Ci), "two must pass");
    }

    #[test]
    fn times_of_both_rows_stand_side_by_side() {
        let of = |suite: &str, mode: &str, seconds: f64| json!({ "suite": suite, "mode": mode, "seconds": seconds });
        let rows = [
            of("cudarc", "gpu", 2.0),
            of("cudarc", "gpu-remoted", 3.0),
            of("truth", "gpu", 4.0),
            json!({ "suite": "cupy", "mode": "gpu", "unavailable": "no network" }),
            of("cupy", "gpu-remoted", 5.0),
        ];
        assert_eq!(times(&rows), [("cudarc", [2.0, 3.0])]);
    }

    #[test]
    fn the_report_says_what_was_not_to_be_had() {
        let mut row = row(&[]);
        row.outcome = Err("no network".into());
        assert!(print(&row, &expected(), false));
        assert!(!print(&row, &expected(), true), "nothing ran in CI");
        let needs_checkout = toml::from_str("[ci]\nneeds_checkout = true\n").unwrap_or_default();
        assert!(print(&row, &needs_checkout, true));
        let object = to_json(&row, &expected());
        assert_eq!(object["unavailable"], "no network");
        assert_eq!(object["passed"], 0);
    }
}
