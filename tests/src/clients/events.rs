//! Events of test processes: which test begins, and how each test ended.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

/// The outcome of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The test passed.
    Passed,
    /// The test failed, with its message.
    Failed(String),
    /// The test failed beside other tests of its process, but passes alone: the client's tests race
    /// with each other. With its message.
    Raced(String),
    /// The test did not run, with the reason.
    Skipped(String),
}

/// Beginnings of the messages of losses: of a hang, of a death by signal, and of tests that did not
/// run because too many tests before them were lost. `tests/clients/cuda_samples.py` also says
/// [`BY_SIGNAL`].
pub const HUNG: &str = "hung: ";
/// See [`HUNG`].
pub const BY_SIGNAL: &str = "ended its process by signal ";
/// See [`HUNG`].
pub const GIVEN_UP: &str = "given up after ";

/// Whether the message of a failure is that of a loss.
pub fn is_loss(said: &str) -> bool {
    // As pytest writes what a test of `pytest.fail` says.
    let said = said.strip_prefix("Failed: ").unwrap_or(said);
    [HUNG, BY_SIGNAL, GIVEN_UP]
        .iter()
        .any(|begin| said.starts_with(begin))
}

/// The state of a unit's tests.
#[derive(Debug, Default)]
pub struct Record {
    /// Outcomes of the tests that ended.
    pub ended: BTreeMap<String, Outcome>,
    /// Tests that began and have not ended.
    pub running: BTreeSet<String>,
    /// Whether the process found its tests. If not, it ran none.
    pub collected: bool,
}

impl Record {
    /// Records the end of a test.
    pub fn end(&mut self, test: &str, outcome: Outcome) {
        self.running.remove(test);
        self.ended.insert(test.to_owned(), outcome);
    }

    /// Number of failed tests.
    pub fn failed(&self) -> usize {
        let failed = |outcome: &&Outcome| matches!(outcome, Outcome::Failed(_));
        self.ended.values().filter(failed).count()
    }

    /// Removes the failed tests, as if they had not run, and returns them with their messages.
    pub fn take_failed(&mut self) -> Vec<(String, String)> {
        let failed = self
            .ended
            .extract_if(.., |_, o| matches!(o, Outcome::Failed(_)));
        failed
            .filter_map(|(test, outcome)| match outcome {
                Outcome::Failed(said) => Some((test, said)),
                _ => None,
            })
            .collect()
    }
}

/// The format of a test process's events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dialect {
    /// Rust's test harness, on standard output.
    Libtest,
    /// pytest with the plugin `vgpu_events`, in a separate file.
    Pytest,
}

/// Parses events from lines.
#[derive(Debug)]
pub struct Reader {
    dialect: Dialect,
    /// libtest: the test whose captured output is shown, and whether the next line is the message
    /// of its panic.
    shown: Option<String>,
    panicked: bool,
}

#[derive(Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
enum Line {
    Collected,
    Start {
        test: String,
    },
    End {
        test: String,
        outcome: String,
        why: String,
    },
}

impl Reader {
    /// A reader at the beginning of the output.
    pub fn new(dialect: Dialect) -> Reader {
        Reader {
            dialect,
            shown: None,
            panicked: false,
        }
    }

    /// Parses a line; true if the line was about a test.
    pub fn line(&mut self, line: &str, record: &mut Record) -> bool {
        match self.dialect {
            Dialect::Pytest => pytest(line, record),
            Dialect::Libtest => self.libtest(line, record),
        }
    }

    fn libtest(&mut self, line: &str, record: &mut Record) -> bool {
        if line.starts_with("running ") {
            record.collected = true;
            return true;
        }
        if let Some((name, end)) = line
            .strip_prefix("test ")
            .and_then(|rest| rest.split_once(" ... "))
        {
            let outcome = match end {
                "ok" => Outcome::Passed,
                "FAILED" => Outcome::Failed("it said nothing".into()),
                end if end.starts_with("ignored") => {
                    let why = end.strip_prefix("ignored, ").unwrap_or("ignored");
                    Outcome::Skipped(format!("its authors leave it out: {why}"))
                }
                // Other output was printed in between: the test counts as not ended, and runs
                // again.
                _ => return false,
            };
            let name = name.split(" - should panic").next().unwrap_or(name);
            record.end(name, outcome);
            return true;
        }
        if let Some(name) = line
            .strip_prefix("---- ")
            .and_then(|rest| rest.strip_suffix(" stdout ----"))
        {
            self.shown = Some(name.to_owned());
            self.panicked = false;
        } else if let Some(name) = &self.shown {
            // The message of a panic is in the next line; a test that returns an error has one
            // line.
            if self.panicked || line.starts_with("Error: ") {
                let said = Outcome::Failed(line.trim().to_owned());
                record.ended.insert(name.clone(), said);
                self.shown = None;
            } else {
                self.panicked = line.contains(" panicked at ");
            }
        }
        false
    }
}

fn pytest(line: &str, record: &mut Record) -> bool {
    match serde_json::from_str(line) {
        Ok(Line::Collected) => record.collected = true,
        Ok(Line::Start { test }) => {
            record.running.insert(test);
        }
        Ok(Line::End { test, outcome, why }) => {
            let outcome = match &outcome[..] {
                "passed" => Outcome::Passed,
                "skipped" => Outcome::Skipped(why),
                _ => Outcome::Failed(why),
            };
            record.end(&test, outcome);
        }
        // A killed process may leave an incomplete line.
        Err(_) => return false,
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(dialect: Dialect, text: &str) -> Record {
        let mut record = Record::default();
        let mut reader = Reader::new(dialect);
        for line in text.lines() {
            reader.line(line, &mut record);
        }
        record
    }

    #[test]
    fn libtest_names_what_failed_and_why() {
        let record = read(
            Dialect::Libtest,
            "running 5 tests
test a::one ... ok
test a::two - should panic ... ok
test b::three ... FAILED
test b::four ... ignored, needs two GPUs
test b::returns ... FAILED
test c::five ... device printf
failures:

---- b::three stdout ----

thread 'b::three' (12) panicked at src/b.rs:3:4:
0.5 ms vs 1.2 ms
stack backtrace:

---- b::returns stdout ----
Error: DriverError(46)
",
        );
        assert!(record.collected);
        assert_eq!(record.ended.len(), 5, "{record:?}");
        assert_eq!(record.ended["a::two"], Outcome::Passed);
        assert_eq!(
            record.ended["b::three"],
            Outcome::Failed("0.5 ms vs 1.2 ms".into())
        );
        assert_eq!(
            record.ended["b::returns"],
            Outcome::Failed("Error: DriverError(46)".into())
        );
        assert_eq!(
            record.ended["b::four"],
            Outcome::Skipped("its authors leave it out: needs two GPUs".into())
        );
    }

    #[test]
    fn pytest_leaves_the_test_that_did_not_end() {
        let record = read(
            Dialect::Pytest,
            r#"{"event": "collected", "count": 3}
{"event": "start", "test": "t.py::a"}
{"event": "end", "test": "t.py::a", "outcome": "failed", "why": "Error: 700"}
{"event": "start", "test": "t.py::b"}
{"event": "end", "test": "t.p"#,
        );
        assert!(record.collected);
        assert_eq!(
            record.ended["t.py::a"],
            Outcome::Failed("Error: 700".into())
        );
        assert!(record.running.contains("t.py::b"));
    }
}
