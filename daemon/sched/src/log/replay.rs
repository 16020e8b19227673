//! A log decided again.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::FORMAT;
use super::dump::{Line, Record};
use crate::{Action, Scheduler};

/// What a replay found in a log that it could follow to the end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayReport {
    /// The number of the first record.
    pub first: u64,
    /// Records that were decided again, each as it was the first time.
    pub records: u64,
    /// Actions among them.
    pub actions: u64,
    /// States that were compared, the last one among them.
    pub states: u64,
    /// The time between the first and the last record, in ns.
    pub span_ns: u64,
}

/// Why a log is not what a scheduler decided, or cannot be followed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// Its first line is something else.
    #[error(
        "this is not a decision log: its first line is no header; `vgpu-admin sched log` makes one"
    )]
    NotALog,
    /// Another format.
    #[error(
        "the log has format {found}, this program reads format {FORMAT}; replay it with the vgpu-sim \
         of the version that made it ({scheduler})"
    )]
    Format {
        /// Its format.
        found: u32,
        /// The scheduler that made it.
        scheduler: String,
    },
    /// A line that cannot be read.
    #[error("line {line} cannot be read: {problem}{}", made_by(.other_version))]
    Corrupt {
        /// Which, from 1.
        line: u64,
        /// What is wrong.
        problem: String,
        /// The version of the scheduler that made the log, when it is not ours.
        other_version: Option<String>,
    },
    /// The last lines are missing.
    #[error(
        "the log is truncated: it ends after record {last:?} (line {line}) without its end line; make \
         it anew with `vgpu-admin sched log`"
    )]
    Truncated {
        /// The last record.
        last: Option<u64>,
        /// The last line.
        line: u64,
    },
    /// Other actions.
    #[error(
        "record {n} (line {line}, at {at_ns} ns) is decided otherwise: after {event}, recorded were \
         {recorded}, the replay decides {replayed}"
    )]
    Decision {
        /// The record.
        n: u64,
        /// Its line.
        line: u64,
        /// Its time.
        at_ns: u64,
        /// The event.
        event: String,
        /// What was decided.
        recorded: String,
        /// What is decided now.
        replayed: String,
    },
    /// The same actions, but another state.
    #[error(
        "the state on line {line} (before record {before}) is not what the records lead to: {difference}"
    )]
    State {
        /// The number of the next record.
        before: u64,
        /// Its line.
        line: u64,
        /// The first difference.
        difference: String,
    },
    /// The scheduler broke off: no state or event of its own is like that.
    #[error(
        "the scheduler broke off at record {n} (line {line}): the log's state is none that it can be in"
    )]
    Impossible {
        /// The record.
        n: u64,
        /// Its line.
        line: u64,
    },
}

fn made_by(version: &Option<String>) -> String {
    version.as_ref().map_or_else(String::new, |version| {
        format!(
            " (the log was made by scheduler {version}, this is {}; use the vgpu-sim of that version)",
            env!("CARGO_PKG_VERSION")
        )
    })
}

/// A replay under way: feed it the lines of a log in order.
#[derive(Debug, Default)]
pub struct Replay {
    line: u64,
    other_version: Option<String>,
    scheduler: Option<Scheduler>,
    /// The number of the next record.
    next: u64,
    announced: u64,
    begun: bool,
    ended: bool,
    last: Option<u64>,
    first_ns: Option<u64>,
    last_ns: u64,
    actions: u64,
    states: u64,
    first: u64,
}

impl Replay {
    /// A replay that has seen nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line and decides again what it records.
    ///
    /// # Errors
    /// The first line that cannot be read or that differs. The replay is over then.
    pub fn line(&mut self, text: &str) -> Result<(), ReplayError> {
        self.line += 1;
        if self.ended {
            return Err(self.corrupt("the log ended on the line before"));
        }
        let line = match serde_json::from_str::<Line<'_>>(text) {
            Ok(line) => line,
            Err(_) if !self.begun => return Err(ReplayError::NotALog),
            Err(error) => return Err(self.corrupt(error.to_string())),
        };
        match line {
            Line::Header(header) if !self.begun => {
                if header.format != FORMAT {
                    return Err(ReplayError::Format {
                        found: header.format,
                        scheduler: header.scheduler,
                    });
                }
                self.begun = true;
                self.other_version =
                    Some(header.scheduler).filter(|version| version != env!("CARGO_PKG_VERSION"));
                self.first = header.first;
                self.next = header.first;
                self.announced = header.records;
                Ok(())
            }
            _ if !self.begun => Err(ReplayError::NotALog),
            Line::Header(_) => Err(self.corrupt("a second header")),
            Line::State(state) => self.state(state.into_owned()),
            Line::Record(record) => self.record(record),
            Line::End(end) => {
                let records = self.next - self.first;
                if end.records != records || self.announced != records {
                    let problem = format!(
                        "{records} records were read, the header says {}, the end {}",
                        self.announced, end.records
                    );
                    return Err(self.corrupt(problem));
                }
                self.ended = true;
                Ok(())
            }
        }
    }

    /// The result, when every line was taken.
    ///
    /// # Errors
    /// When the end is missing.
    pub fn finish(self) -> Result<ReplayReport, ReplayError> {
        if !self.begun {
            return Err(ReplayError::NotALog);
        }
        if !self.ended {
            return Err(ReplayError::Truncated {
                last: self.last,
                line: self.line,
            });
        }
        Ok(ReplayReport {
            first: self.first,
            records: self.next - self.first,
            actions: self.actions,
            states: self.states,
            span_ns: self.last_ns.saturating_sub(self.first_ns.unwrap_or(0)),
        })
    }

    fn state(&mut self, recorded: Scheduler) -> Result<(), ReplayError> {
        let Some(reached) = &self.scheduler else {
            self.scheduler = Some(recorded);
            return Ok(());
        };
        self.states += 1;
        if *reached == recorded {
            return Ok(());
        }
        Err(ReplayError::State {
            before: self.next,
            line: self.line,
            difference: difference(&recorded, reached),
        })
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), ReplayError> {
        if record.n != self.next {
            let problem = format!("record {} stands where {} should be", record.n, self.next);
            return Err(self.corrupt(problem));
        }
        let Some(scheduler) = &mut self.scheduler else {
            return Err(self.corrupt("a record before any state"));
        };
        let event = format!("{:?}", record.event);
        let mut replayed = Vec::new();
        let event_now = record.event.into_owned();
        let lived = catch_unwind(AssertUnwindSafe(|| {
            scheduler.handle(record.at_ns, event_now, &mut replayed);
        }));
        if lived.is_err() {
            return Err(ReplayError::Impossible {
                n: record.n,
                line: self.line,
            });
        }
        if replayed[..] != record.actions[..] {
            return Err(ReplayError::Decision {
                n: record.n,
                line: self.line,
                at_ns: record.at_ns,
                event,
                recorded: told(&record.actions),
                replayed: told(&replayed),
            });
        }
        self.actions += replayed.len() as u64;
        self.last = Some(record.n);
        self.first_ns.get_or_insert(record.at_ns);
        self.last_ns = self.last_ns.max(record.at_ns);
        self.next += 1;
        Ok(())
    }

    fn corrupt(&self, problem: impl Into<String>) -> ReplayError {
        ReplayError::Corrupt {
            line: self.line,
            problem: problem.into(),
            other_version: self.other_version.clone(),
        }
    }
}

fn told(actions: &[Action]) -> String {
    if actions.is_empty() {
        "no actions".into()
    } else {
        format!("{actions:?}")
    }
}

/// Where two states first differ, as a path of field names and the two values.
fn difference(recorded: &Scheduler, replayed: &Scheduler) -> String {
    let (a, b) = (format!("{recorded:#?}"), format!("{replayed:#?}"));
    let mut path: Vec<String> = Vec::new();
    let mut leaf = "";
    for (mine, theirs) in a.lines().zip(b.lines()) {
        let text = mine.trim();
        if mine != theirs {
            let (at, theirs) = (path.join("."), theirs.trim());
            return format!("at {at}: recorded `{text}`, replayed `{theirs}`");
        }
        let closes = text.starts_with(['}', ')', ']']);
        if closes {
            path.pop();
        }
        if let Some(name) = text.strip_suffix(['{', '(', '[']) {
            // A map's key ends where its value begins; what was within it is its name.
            let name = if closes { leaf } else { name };
            path.push(name.trim_end_matches([' ', ':', ',']).to_owned());
        } else if !closes {
            leaf = text;
        }
    }
    "one of the two goes on where the other ends".into()
}
