//! The table on the terminal and `target/sim/report.json`.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::found::{Found, Measure, Rule, Seen};

/// The worst value of a measure over all runs.
#[derive(Debug, Clone)]
pub struct Row {
    /// Name in the report.
    pub name: &'static str,
    /// Meaning, for people.
    pub what: String,
    /// Unit of value and bound.
    pub unit: &'static str,
    /// Worst value.
    pub value: f64,
    /// Bound in the run of the worst value; `None`: no bound.
    pub bound: Option<f64>,
    /// Command-line arguments that repeat the run with the worst value.
    pub place: String,
    /// Whether the bound held in every run.
    pub pass: bool,
}

/// All rows, by name.
#[derive(Debug, Default)]
pub struct Report {
    rows: BTreeMap<&'static str, (Row, f64)>,
    order: Vec<&'static str>,
    /// Violated invariants, each with the arguments that repeat its run.
    pub problems: Vec<String>,
    /// Simulated time of all runs, in ns.
    pub simulated_ns: u64,
    /// Simulated operations of all runs.
    pub operations: u64,
    /// Events that schedulers handled.
    pub decisions: u64,
    /// Number of runs.
    pub runs: u64,
}

impl Report {
    /// Adds the results of one run.
    pub fn add(&mut self, place: &str, found: Found) {
        for seen in &found.seen {
            self.see(place, seen);
        }
        for problem in found.problems {
            if self.problems.len() < 50 {
                self.problems.push(format!("{place}: {problem}"));
            }
        }
        self.simulated_ns += found.simulated_ns;
        self.operations += found.operations;
        self.decisions += found.decisions;
        self.runs += 1;
    }

    fn see(&mut self, place: &str, seen: &Seen) {
        let Measure {
            name,
            what,
            unit,
            rule,
        } = *seen.measure;
        let badness = seen.badness();
        let holds = seen.holds();
        if let Some((row, worst)) = self.rows.get_mut(name) {
            row.pass &= holds;
            if badness <= *worst {
                return;
            }
            *worst = badness;
            row.value = seen.value;
            row.bound = (rule != Rule::Told).then_some(seen.bound);
            row.place = place.to_owned();
            return;
        }
        self.put(
            Row {
                name,
                what: what.to_owned(),
                unit,
                value: seen.value,
                bound: (rule != Rule::Told).then_some(seen.bound),
                place: place.to_owned(),
                pass: holds,
            },
            badness,
        );
    }

    /// Adds a whole row.
    pub fn put(&mut self, row: Row, badness: f64) {
        self.order.push(row.name);
        self.rows.insert(row.name, (row, badness));
    }

    /// The rows in the order in which they were added.
    pub fn rows(&self) -> impl Iterator<Item = &Row> {
        self.order
            .iter()
            .filter_map(|name| self.rows.get(name).map(|(row, _)| row))
    }

    /// Names of the rows whose bound was violated.
    #[must_use]
    pub fn failures(&self) -> Vec<&'static str> {
        self.rows()
            .filter(|row| !row.pass)
            .map(|row| row.name)
            .collect()
    }

    /// Prints the table.
    pub fn print(&self) {
        println!(
            "\n{:28} {:>11} {:>9} {:7} {:4}  {:36} what",
            "proof", "worst seen", "bound", "unit", "", "where"
        );
        for row in self.rows() {
            let bound = row.bound.map_or_else(|| "-".into(), short);
            let verdict = match (row.bound, row.pass) {
                (None, _) => "",
                (_, true) => "ok",
                (_, false) => "FAIL",
            };
            println!(
                "{:28} {:>11} {:>9} {:7} {:4}  {:36} {}",
                row.name,
                short(row.value),
                bound,
                row.unit,
                verdict,
                row.place,
                row.what
            );
        }
        for problem in &self.problems {
            println!("FAIL  {problem}");
        }
    }

    /// Writes the report in the format of the benchmarks. The bound of a row is written as its
    /// baseline.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write(&self, path: &Path, machine: &str) -> Result<()> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir)
                .with_context(|| format!("making the folder {}", dir.display()))?;
        }
        let results: Vec<Value> = self.rows().map(Row::json).collect();
        let text =
            serde_json::to_string_pretty(&json!({ "machine": machine, "results": results }))?;
        std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
    }
}

impl Row {
    fn json(&self) -> Value {
        let ratio = self.bound.filter(|&b| b > 0.0).map(|b| self.value / b);
        json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": if self.bound.is_some() { "the bound" } else { "" },
            "baseline_value": self.bound,
            "ratio": ratio,
            "where": self.place,
            "pass": self.pass,
        })
    }
}

/// Formats with three significant digits; whole numbers without fraction.
fn short(v: f64) -> String {
    match v.abs() {
        0.0 => "0".into(),
        _ if v.fract() == 0.0 => format!("{v:.0}"),
        x if x >= 1000.0 => format!("{v:.0}"),
        x if x >= 100.0 => format!("{v:.1}"),
        x if x >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.4}"),
    }
}
