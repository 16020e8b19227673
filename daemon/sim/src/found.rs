//! Results of a run: values with their bounds.

use vgpu_sched::MILLIS;

use crate::measure::accounting_error;
use crate::world::World;

/// The side of its bound on which a value must lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// At most the bound.
    AtMost,
    /// At least the bound.
    AtLeast,
    /// The value is only reported and has no bound.
    Told,
}

/// A measured quantity: a row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Measure {
    /// Name in the report, stable across versions.
    pub name: &'static str,
    /// Meaning of the value, for the report.
    pub what: &'static str,
    /// Unit of value and bound.
    pub unit: &'static str,
    /// The rule that compares the value with its bound.
    pub rule: Rule,
}

/// A value of a measure.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// The measured quantity.
    pub measure: &'static Measure,
    /// The measured value, in the unit of `measure`.
    pub value: f64,
    /// The bound; unused for [`Rule::Told`].
    pub bound: f64,
}

impl Seen {
    /// Whether the bound holds.
    #[must_use]
    pub fn holds(&self) -> bool {
        match self.measure.rule {
            Rule::AtMost => self.value <= self.bound,
            Rule::AtLeast => self.value >= self.bound,
            Rule::Told => true,
        }
    }

    /// How near the value is to its bound, or how far beyond: a larger number is worse.
    #[must_use]
    pub fn badness(&self) -> f64 {
        match self.measure.rule {
            Rule::AtMost if self.bound > 0.0 => self.value / self.bound,
            Rule::Told if self.measure.name.ends_with("_min") => -self.value,
            Rule::AtMost | Rule::Told => self.value,
            Rule::AtLeast => self.bound / self.value.max(f64::MIN_POSITIVE),
        }
    }
}

/// All results of a run.
#[derive(Debug, Default)]
pub struct Found {
    /// The measured values.
    pub seen: Vec<Seen>,
    /// Descriptions of violated invariants.
    pub problems: Vec<String>,
    /// Simulated time in ns.
    pub simulated_ns: u64,
    /// Simulated operations.
    pub operations: u64,
    /// Events that the scheduler handled.
    pub decisions: u64,
}

/// Measures that every run reports.
pub mod always {
    use super::{Measure, Rule};

    /// See [`crate::measure::accounting_error`].
    pub static ACCOUNTING: Measure = Measure {
        name: "accounting_error_ns",
        what: "charged + idle + switch = wall, and charged = ground truth",
        unit: "ns",
        rule: Rule::AtMost,
    };
}

impl Found {
    /// Records a value and its bound.
    pub fn see(&mut self, measure: &'static Measure, value: f64, bound: f64) {
        self.seen.push(Seen {
            measure,
            value,
            bound,
        });
    }

    /// Records a value without a bound.
    pub fn tell(&mut self, measure: &'static Measure, value: f64) {
        self.see(measure, value, 0.0);
    }

    /// Adds the problems that a world found, and compares its accounts with the scheduler's.
    pub fn close(&mut self, world: &mut World) {
        let error = accounting_error(world);
        self.see(&always::ACCOUNTING, error as f64, 0.0);
        self.problems.append(&mut world.problems);
        self.simulated_ns += world.now;
        self.operations += world.operations;
        self.decisions += world.decisions;
    }
}

/// Converts ns to ms.
#[must_use]
pub fn ms(ns: u64) -> f64 {
    ns as f64 / MILLIS as f64
}

/// Converts ns to percent of a window.
#[must_use]
pub fn points(ns: u64, window: u64) -> f64 {
    ns as f64 * 100.0 / window as f64
}
