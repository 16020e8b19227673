//! Known failures with their causes, and the comparison of a run with the known failures.
//!
//! One file per suite, `tests/clients/expected/<suite>.toml`:
//!
//! ```toml
//! [least]                    # passed tests of a complete run, per row: fewer is a failure
//! direct = 50
//! [ci]                       # the part of the suite that runs in CI; by default all of it
//! units = ["cudapy/test_array.py"]
//! by_hand = false            # true: CI does not even fetch the suite
//! needs_checkout = false     # true: no package has the tests; CI skips them without a checkout
//! [[left_out]]               # units that do not run
//! units = ["tests/system/*"]
//! cause = "needs two GPUs"
//! [[known]]
//! cause = "graphs are not served"
//! modes = ["remoted"]        # by default every row
//! unsteady = true            # passes sometimes: both outcomes are expected
//! says = "not the same"      # a failure without this text is unexpected
//! tests = ["graph/*", "test_x.py::test_y"]
//! ```
//!
//! `*` in a name stands for any text.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use serde::Deserialize;

use super::events::Outcome;
use crate::paths;

/// The file of a suite.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expected {
    #[serde(default)]
    least: BTreeMap<String, usize>,
    #[serde(default)]
    ci: Ci,
    #[serde(default)]
    left_out: Vec<LeftOut>,
    #[serde(default)]
    known: Vec<Known>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Ci {
    #[serde(default)]
    units: Vec<String>,
    #[serde(default)]
    by_hand: bool,
    #[serde(default)]
    needs_checkout: bool,
}

/// Units that do not run.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeftOut {
    /// Names of the units.
    pub units: Vec<String>,
    /// The cause.
    pub cause: String,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Known {
    cause: String,
    #[serde(default)]
    modes: Vec<String>,
    #[serde(default)]
    unsteady: bool,
    #[serde(default)]
    says: String,
    tests: Vec<String>,
}

/// An outcome, compared with the expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The outcome is the expected outcome.
    AsWanted,
    /// An expected failure, with its cause.
    Known(&'a str),
    /// An unexpected failure.
    News,
    /// The test passed although a failure with this cause was expected.
    PassesNow(&'a str),
}

impl Expected {
    /// Reads the file of a suite.
    ///
    /// # Errors
    /// If the file is missing or not in the format above.
    pub fn read(suite: &str) -> Result<Expected> {
        let path = paths::root()
            .join("tests/clients/expected")
            .join(format!("{suite}.toml"));
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        toml::from_str(&text).with_context(|| format!("in {}", path.display()))
    }

    /// Number of passed tests below which a complete run of this row fails.
    pub fn least(&self, mode: &str) -> usize {
        self.least.get(mode).copied().unwrap_or(0)
    }

    /// Whether a unit runs in CI.
    pub fn in_ci(&self, unit: &str) -> bool {
        self.ci.units.is_empty() || self.ci.units.iter().any(|p| matches(p, unit))
    }

    /// Whether no part of the suite runs in CI.
    pub fn by_hand(&self) -> bool {
        self.ci.by_hand
    }

    /// Whether CI passes although the suite could not be fetched.
    pub fn needs_checkout(&self) -> bool {
        self.ci.needs_checkout
    }

    /// The cause for which a unit does not run; `None` if it runs.
    pub fn left_out(&self, unit: &str) -> Option<&str> {
        let out = |l: &&LeftOut| l.units.iter().any(|p| matches(p, unit));
        self.left_out.iter().find(out).map(|l| &l.cause[..])
    }

    /// All groups of units that do not run.
    pub fn all_left_out(&self) -> &[LeftOut] {
        &self.left_out
    }

    /// Compares an outcome with the file.
    pub fn verdict(&self, mode: &str, test: &str, outcome: &Outcome) -> Verdict<'_> {
        let known = self.known.iter().find(|known| {
            (known.modes.is_empty() || known.modes.iter().any(|m| m == mode))
                && known.tests.iter().any(|p| matches(p, test))
        });
        match (known, outcome) {
            (Some(known), Outcome::Failed(said)) if said.contains(&known.says) => {
                Verdict::Known(&known.cause)
            }
            (Some(known), Outcome::Passed) if !known.unsteady => Verdict::PassesNow(&known.cause),
            (_, Outcome::Failed(_)) => Verdict::News,
            _ => Verdict::AsWanted,
        }
    }
}

/// Whether a name matches a pattern; `*` stands for any text.
fn matches(pattern: &str, name: &str) -> bool {
    let Some((first, rest)) = pattern.split_once('*') else {
        return pattern == name;
    };
    let Some(mut left) = name.strip_prefix(first) else {
        return false;
    };
    let mut parts: Vec<&str> = rest.split('*').collect();
    let last = parts.pop().unwrap_or_default();
    for part in parts {
        match left.find(part) {
            Some(at) => left = &left[at + part.len()..],
            None => return false,
        }
    }
    left.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns() {
        for (pattern, name, is) in [
            ("a::b", "a::b", true),
            ("a::b", "a::bc", false),
            ("a*", "abc", true),
            ("*::b", "x::y::b", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("a[*]", "a[1-2]", true),
            ("ab*ba", "aba", false),
        ] {
            assert_eq!(matches(pattern, name), is, "{pattern} {name}");
        }
    }

    #[test]
    fn verdicts() -> Result<()> {
        let expected: Expected = toml::from_str(
            "[least]\ndirect = 2\n[ci]\nunits = ['u']\n\
             [[left_out]]\nunits = ['v*']\ncause = 'no'\n\
             [[known]]\ncause = 'graphs'\nmodes = ['remoted']\ntests = ['g*']\n\
             [[known]]\ncause = 'timing'\nunsteady = true\ntests = ['t']\n\
             [[known]]\ncause = 'order'\nsays = 'not the same'\ntests = ['s']\n",
        )?;
        let failed = Outcome::Failed(String::new());
        let verdict = |mode, test, outcome| expected.verdict(mode, test, outcome);
        assert_eq!(verdict("remoted", "g1", &failed), Verdict::Known("graphs"));
        assert_eq!(verdict("direct", "g1", &failed), Verdict::News);
        assert_eq!(verdict("direct", "t", &Outcome::Passed), Verdict::AsWanted);
        let other = Outcome::Failed("it is not the same work".into());
        assert_eq!(verdict("direct", "s", &other), Verdict::Known("order"));
        assert_eq!(verdict("direct", "s", &failed), Verdict::News);
        assert_eq!(
            verdict("remoted", "g1", &Outcome::Passed),
            Verdict::PassesNow("graphs")
        );
        assert_eq!((expected.least("direct"), expected.least("gpu")), (2, 0));
        assert!(expected.in_ci("u") && !expected.in_ci("w"));
        assert_eq!(expected.left_out("v1"), Some("no"));
        Ok(())
    }

    #[test]
    fn every_suite_has_a_file_that_reads() -> Result<()> {
        for suite in super::super::suites::ALL {
            Expected::read(suite.name)?;
        }
        Ok(())
    }
}
