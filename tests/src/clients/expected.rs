//! Known failures with their causes, and the comparison of a run with the known failures.
//!
//! One file per suite, `tests/clients/expected/<suite>.toml`:
//!
//! ```toml
//! [least]                    # passed tests of a complete run, per row: fewer is a failure
//! direct = 50
//! [ci]                       # the part of the suite that runs in CI; by default all of it
//! units = ["cudapy/test_array.py"]
//! least = { direct = 5 }     # with units: passed tests of a run of this part
//! by_hand = false            # true: CI does not even fetch the suite
//! needs_checkout = false     # true: no package has the tests; CI skips them without a checkout
//! [[left_out]]               # units that do not run
//! units = ["tests/system/*"]
//! cause = "needs two GPUs"
//! [[known]]
//! cause = "graphs are not served"
//! modes = ["remoted"]        # rows in which the cause holds; by default every row
//! unsteady = true            # passes sometimes: both outcomes are expected
//! says = "not the same"      # a failure without this text is unexpected
//! at_most = 7                # more failures in a row are unexpected; required beside a `*`
//! tests = ["graph/*", "test_x.py::test_y"]
//! ```
//!
//! `*` in a name stands for any text. A hang, a death by signal, and tests given up after these are
//! expected only by an entry whose `says` is in the failure's text.

use std::collections::BTreeMap;

use anyhow::{Context, Result, ensure};
use serde::Deserialize;

use super::events::{Outcome, is_loss};
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
    least: BTreeMap<String, usize>,
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

/// Tests that are expected to fail.
#[derive(Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Known {
    /// The cause.
    pub cause: String,
    #[serde(default)]
    modes: Vec<String>,
    #[serde(default)]
    unsteady: bool,
    #[serde(default)]
    says: String,
    at_most: Option<usize>,
    tests: Vec<String>,
}

impl Known {
    fn names(&self, mode: &str, test: &str) -> bool {
        (self.modes.is_empty() || self.modes.iter().any(|m| m == mode))
            && self.tests.iter().any(|p| matches(p, test))
    }

    fn excuses(&self, said: &str) -> bool {
        said.contains(&self.says) && !(is_loss(said) && self.says.is_empty())
    }
}

/// An outcome, compared with the expectation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<'a> {
    /// The outcome is the expected outcome.
    AsWanted,
    /// An expected failure, with its cause.
    Known(&'a Known),
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
        Expected::parse(&text).with_context(|| format!("in {}", path.display()))
    }

    fn parse(text: &str) -> Result<Expected> {
        let expected: Expected = toml::from_str(text)?;
        for known in &expected.known {
            ensure!(
                known.at_most.is_some() || !known.tests.iter().any(|test| test.contains('*')),
                "an entry names tests with `*` and has no at_most: {}",
                known.cause
            );
        }
        Ok(expected)
    }

    /// Number of passed tests below which a complete run of this row fails.
    pub fn least(&self, mode: &str) -> usize {
        self.least.get(mode).copied().unwrap_or(0)
    }

    /// The same for a run of the part of the suite that runs in CI.
    pub fn least_in_ci(&self, mode: &str) -> usize {
        self.ci.least.get(mode).copied().unwrap_or(0)
    }

    /// Whether only a part of the suite runs in CI.
    pub fn has_part_in_ci(&self) -> bool {
        !self.ci.units.is_empty()
    }

    /// A sentence about the names for CI that no unit has; `None` if there are none.
    pub fn ci_in_vain(&self, units: &[String]) -> Option<String> {
        let names = |p: &&String| !units.iter().any(|unit| matches(p, unit));
        let vain: Vec<&str> = self.ci.units.iter().filter(names).map(|p| &p[..]).collect();
        (!vain.is_empty()).then(|| {
            format!(
                "no unit has this name, which [ci] units lists: {}",
                vain.join(", ")
            )
        })
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
        let mut named = self.known.iter().filter(|known| known.names(mode, test));
        match outcome {
            Outcome::Failed(said) => named
                .find(|known| known.excuses(said))
                .map_or(Verdict::News, Verdict::Known),
            Outcome::Passed => match named.next() {
                Some(known) if !known.unsteady => Verdict::PassesNow(&known.cause),
                _ => Verdict::AsWanted,
            },
            _ => Verdict::AsWanted,
        }
    }

    /// Sentences about the entries with more failures than they allow, of the entries of all
    /// expected failures of a row.
    pub fn exceeded(&self, failures: &[&Known]) -> Vec<String> {
        let told = self.known.iter().filter_map(|known| {
            let count = failures
                .iter()
                .filter(|of| std::ptr::eq(**of, known))
                .count();
            let most = known.at_most.filter(|most| count > *most)?;
            Some(format!("{count} of at most {most}: {}", known.cause))
        });
        told.collect()
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
    use super::super::events::{BY_SIGNAL, GIVEN_UP, HUNG};
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
        let expected = Expected::parse(
            "[least]\ndirect = 2\n[ci]\nunits = ['u']\nleast = { direct = 1 }\n\
             [[left_out]]\nunits = ['v*']\ncause = 'no'\n\
             [[known]]\ncause = 'graphs'\nmodes = ['remoted']\nat_most = 9\ntests = ['g*']\n\
             [[known]]\ncause = 'timing'\nunsteady = true\ntests = ['t']\n\
             [[known]]\ncause = 'order'\nsays = 'not the same'\ntests = ['s']\n\
             [[known]]\ncause = 'ends by 11'\nsays = 'signal 11'\ntests = ['d']\n",
        )?;
        let failed = Outcome::Failed(String::new());
        let verdict = |mode: &str, test: &str, outcome: &Outcome| match expected
            .verdict(mode, test, outcome)
        {
            Verdict::Known(known) => known.cause.clone(),
            other => format!("{other:?}"),
        };
        assert_eq!(verdict("remoted", "g1", &failed), "graphs");
        assert_eq!(verdict("direct", "g1", &failed), "News");
        assert_eq!(verdict("direct", "t", &Outcome::Passed), "AsWanted");
        let other = Outcome::Failed("it is not the same work".into());
        assert_eq!(verdict("direct", "s", &other), "order");
        assert_eq!(verdict("direct", "s", &failed), "News");
        let passes = verdict("remoted", "g1", &Outcome::Passed);
        assert_eq!(passes, "PassesNow(\"graphs\")");
        for lost in [HUNG, BY_SIGNAL, GIVEN_UP, &format!("Failed: {BY_SIGNAL}")] {
            let lost = Outcome::Failed(format!("{lost}11"));
            assert_eq!(verdict("direct", "t", &lost), "News");
        }
        let lost = Outcome::Failed(format!("{BY_SIGNAL}11"));
        assert_eq!(verdict("direct", "d", &lost), "ends by 11");
        assert_eq!((expected.least("direct"), expected.least("gpu")), (2, 0));
        assert!(expected.in_ci("u") && !expected.in_ci("w"));
        let units = ["v".to_owned(), "u".to_owned()];
        assert_eq!(
            (expected.least_in_ci("direct"), expected.ci_in_vain(&units)),
            (1, None)
        );
        let vain = expected.ci_in_vain(&units[..1]).unwrap_or_default();
        assert!(vain.ends_with("lists: u"), "{vain}");
        assert_eq!(expected.left_out("v1"), Some("no"));
        Ok(())
    }

    #[test]
    fn a_star_needs_a_number_of_failures() {
        let file = "[[known]]\ncause = 'textures'\ntests = ['test_tex*']\n";
        let refused = Expected::parse(file).expect_err("no number");
        assert!(refused.to_string().contains("textures"), "{refused}");
        assert!(Expected::parse(&format!("{file}at_most = 3\n")).is_ok());
    }

    #[test]
    fn every_suite_has_a_file_that_reads() -> Result<()> {
        for suite in super::super::suites::ALL {
            let expected = Expected::read(suite.name)?;
            let least = ["direct", "remoted"].map(|mode| expected.least_in_ci(mode));
            ensure!(
                !expected.has_part_in_ci() || !least.contains(&0),
                "{}: [ci] has units, but no least for direct and remoted",
                suite.name
            );
        }
        Ok(())
    }
}
