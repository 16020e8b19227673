//! A row: the units of a suite in one mode, several at the same time.

use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::events::{Outcome, Record};
use super::expected::Expected;
use super::follow::{self, Unit};
use super::plan::Plan;
use super::same_work::SameWork;
use super::stand::{Mode, Stand};
use super::suites::Suite;

/// The selection of units.
#[derive(Debug, Clone, Default)]
pub struct Choice {
    /// Whether only the units that the suite's file lists for CI run.
    pub ci: bool,
    /// Only units whose names contain one of these texts; empty: all units.
    pub only: Vec<String>,
    /// Number of units at the same time.
    pub jobs: usize,
    /// Folder of the logs.
    pub logs: PathBuf,
}

/// The result of a row.
#[derive(Debug)]
pub struct Row {
    /// Name of the suite.
    pub suite: &'static str,
    /// Version of the suite.
    pub version: &'static str,
    /// Mode of the row.
    pub mode: Mode,
    /// The tests, or the reason for which there are none.
    pub outcome: std::result::Result<Tests, String>,
}

/// The tests of a row.
#[derive(Debug, Default)]
pub struct Tests {
    /// Outcomes by name.
    pub ended: BTreeMap<String, Outcome>,
    /// Duration of the row.
    pub took: Duration,
    /// The part of the suite that ran.
    pub part: Part,
}

/// A part of a suite.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// The units that a person named.
    #[default]
    Named,
    /// The units that the suite's file lists for CI.
    Ci,
    /// All units.
    Whole,
}

/// Largest number of unit names in a message.
const NAMES_MOST: usize = 40;

impl Choice {
    /// A sentence about the texts that no unit of these suites has in its name; `None` if there are
    /// none.
    pub fn named_in_vain(&self, suites: &[(&str, Vec<String>)]) -> Option<String> {
        let mut units = suites.iter().flat_map(|(_, units)| units);
        let vain = self
            .only
            .iter()
            .filter(|text| !units.clone().any(|unit| unit.contains(&text[..])));
        let vain: Vec<&str> = vain.map(String::as_str).collect();
        if vain.is_empty() {
            return None;
        }
        let names: Vec<&str> = suites.iter().map(|(suite, _)| *suite).collect();
        let first: Vec<&str> = units
            .by_ref()
            .take(NAMES_MOST)
            .map(String::as_str)
            .collect();
        let more = match units.count() {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "no unit of {} has this in its name: {}; the units are {}{more}",
            names.join(", "),
            vain.join(", "),
            first.join(", ")
        ))
    }

    fn part(&self, expected: &Expected) -> Part {
        match (self.only.is_empty(), self.ci && expected.has_part_in_ci()) {
            (false, _) => Part::Named,
            (true, true) => Part::Ci,
            (true, false) => Part::Whole,
        }
    }

    fn chooses(&self, unit: &Unit, expected: &Expected) -> bool {
        let named = self.only.is_empty() || self.only.iter().any(|part| unit.name.contains(part));
        named && (!self.ci || expected.in_ci(&unit.name)) && expected.left_out(&unit.name).is_none()
    }
}

/// Runs a row.
///
/// # Errors
/// If processes cannot be started. Failures of tests are no errors.
pub fn run(
    suite: &Suite,
    plan: &Plan,
    mode: Mode,
    expected: &Expected,
    choice: &Choice,
) -> Result<Tests> {
    let start = Instant::now();
    let chosen = plan.units.iter().filter(|u| choice.chooses(u, expected));
    // On a GPU, the work of a suite is not compared, so its units may run beside each other.
    let compares = plan.compares(mode.driver);
    let (alone, mut beside): (Vec<&Unit>, Vec<&Unit>) =
        chosen.partition(|unit| unit.alone && (compares || !plan.same_work));
    for unit in alone.iter().chain(&beside) {
        std::fs::create_dir_all(&unit.dir)?;
    }
    let logs = choice.logs.join(suite.name).join(mode.to_string());
    let jobs = choice.jobs.clamp(1, beside.len().max(1));
    let stand = Stand::set_up(mode, jobs, plan)?;
    let work = compares.then(|| SameWork::of(plan, stand.host(), &logs));
    let mut records = Vec::new();
    for unit in alone {
        let env = stand.env(0, plan)?;
        records.push(match &work {
            Some(work) => work.run(unit, &env)?,
            None => follow::run(unit, &env, &logs)?,
        });
    }
    if let Some(work) = &work {
        work.say();
    }
    let queue = Mutex::new(beside.drain(..).collect());
    records.extend(at_once(jobs, &queue, &stand, plan, &logs)?);
    if let Some(log) = stand.log() {
        std::fs::write(logs.join("vgpud.log"), log)?;
    }
    let ended = records.into_iter().flat_map(|record| record.ended);
    let named = ended.map(|(name, outcome)| {
        let name = name
            .strip_prefix(plan.prefix)
            .map(str::to_owned)
            .unwrap_or(name);
        (name, outcome)
    });
    Ok(Tests {
        ended: named.collect(),
        took: start.elapsed(),
        part: choice.part(expected),
    })
}

/// Runs the units of the queue, `jobs` at a time; each job is a separate VM.
fn at_once(
    jobs: usize,
    queue: &Mutex<VecDeque<&Unit>>,
    stand: &Stand,
    plan: &Plan,
    logs: &Path,
) -> Result<Vec<Record>> {
    let work = |slot: u32| -> Result<Vec<Record>> {
        let mut records = Vec::new();
        let env = stand.env(slot, plan)?;
        loop {
            let next = queue.lock().unwrap_or_else(|e| e.into_inner()).pop_front();
            let Some(unit) = next else {
                return Ok(records);
            };
            records.push(follow::run(unit, &env, logs)?);
        }
    };
    std::thread::scope(|scope| {
        let work = &work;
        let slots = 0..u32::try_from(jobs).unwrap_or(1);
        let threads: Vec<_> = slots.map(|slot| scope.spawn(move || work(slot))).collect();
        let mut all = Vec::new();
        for thread in threads {
            match thread.join() {
                Ok(records) => all.extend(records?),
                Err(panic) => std::panic::resume_unwind(panic),
            }
        }
        Ok(all)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suite_that_runs_whole_in_ci_counts_as_whole() -> Result<()> {
        let part = |file: &str, ci: bool, only: &[&str]| -> Result<Part> {
            let only = only.iter().map(|&text| text.to_owned()).collect();
            let choice = Choice {
                ci,
                only,
                ..Choice::default()
            };
            Ok(choice.part(&toml::from_str(file)?))
        };
        let units = "[ci]\nunits = ['u']\n";
        assert_eq!(part(units, true, &[])?, Part::Ci);
        assert_eq!(part(units, false, &[])?, Part::Whole);
        assert_eq!(part("", true, &[])?, Part::Whole);
        assert_eq!(part(units, true, &["u"])?, Part::Named);
        Ok(())
    }

    #[test]
    fn a_text_that_names_no_unit_is_told_with_the_units_that_there_are() {
        let choice = |texts: &[&str]| Choice {
            only: texts.iter().map(|&text| text.to_owned()).collect(),
            ..Choice::default()
        };
        let small = (
            "small",
            vec!["test_a.py".to_owned(), "test_b.py".to_owned()],
        );
        let large = ("large", (0..50).map(|n| format!("unit_{n}")).collect());
        let suites = [small, large];
        assert_eq!(choice(&[]).named_in_vain(&suites), None);
        assert_eq!(choice(&["_a", "unit"]).named_in_vain(&suites), None);
        assert_eq!(
            choice(&["_a", "_c", "tets"]).named_in_vain(&suites[..1]),
            Some(
                "no unit of small has this in its name: _c, tets; the units are test_a.py, test_b.py"
                    .into()
            )
        );
        let told = choice(&["tets"]).named_in_vain(&suites).expect("a typo");
        assert!(told.ends_with("unit_37 and 12 more"), "{told}");
    }
}
