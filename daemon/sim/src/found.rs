//! What a run found: values beside their bounds.

use vgpu_sched::MILLIS;

use crate::measure::accounting_error;
use crate::world::World;

/// On which side of its bound a value must lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rule {
    /// Not above.
    AtMost,
    /// Not below.
    AtLeast,
    /// Only told.
    Told,
}

/// Something that is measured: a row of the table.
#[derive(Debug, PartialEq, Eq)]
pub struct Measure {
    /// Its name in the report, stable across versions.
    pub name: &'static str,
    /// What it is, for people.
    pub what: &'static str,
    /// Unit of value and bound.
    pub unit: &'static str,
    /// Which side of the bound is good.
    pub rule: Rule,
}

/// A value of a measure.
#[derive(Debug, Clone, Copy)]
pub struct Seen {
    /// Of what.
    pub measure: &'static Measure,
    /// The value.
    pub value: f64,
    /// Its bound (of no meaning where the measure is only told).
    pub bound: f64,
}

impl Seen {
    /// Is it on the right side?
    #[must_use]
    pub fn holds(&self) -> bool {
        match self.measure.rule {
            Rule::AtMost => self.value <= self.bound,
            Rule::AtLeast => self.value >= self.bound,
            Rule::Told => true,
        }
    }

    /// How near the bound, or beyond it: larger is worse.
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

/// All that a run found.
#[derive(Debug, Default)]
pub struct Found {
    /// The values.
    pub seen: Vec<Seen>,
    /// What must not happen and did.
    pub problems: Vec<String>,
    /// Simulated time.
    pub simulated_ns: u64,
    /// Simulated operations.
    pub operations: u64,
    /// Events that the scheduler handled.
    pub decisions: u64,
}

/// What every run checks.
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
    /// Notes a value and its bound.
    pub fn see(&mut self, measure: &'static Measure, value: f64, bound: f64) {
        self.seen.push(Seen {
            measure,
            value,
            bound,
        });
    }

    /// Notes a value that has no bound.
    pub fn tell(&mut self, measure: &'static Measure, value: f64) {
        self.see(measure, value, 0.0);
    }

    /// Takes over what a world found by itself, and checks its accounts.
    pub fn close(&mut self, world: &mut World) {
        let error = accounting_error(world);
        self.see(&always::ACCOUNTING, error as f64, 0.0);
        self.problems.append(&mut world.problems);
        self.simulated_ns += world.now;
        self.operations += world.operations;
        self.decisions += world.decisions;
    }
}

/// In ms.
#[must_use]
pub fn ms(ns: u64) -> f64 {
    ns as f64 / MILLIS as f64
}

/// In percentage points of a window.
#[must_use]
pub fn points(ns: u64, window: u64) -> f64 {
    ns as f64 * 100.0 / window as f64
}
