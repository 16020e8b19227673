//! Replay of a log: feeds every event to a scheduler again and compares the decisions.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::FORMAT;
use super::dump::{Line, Record};
use crate::{Action, Scheduler};

/// Result of a replay that reached the end of a log without a difference.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ReplayReport {
    /// Number of the first record.
    pub first: u64,
    /// Records that were replayed with the same result.
    pub records: u64,
    /// Actions in these records.
    pub actions: u64,
    /// Number of states that were compared, including the state at the end.
    pub states: u64,
    /// Time between the first and the last record, in ns.
    pub span_ns: u64,
}

/// Why a replay failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ReplayError {
    /// The first line is not a header.
    #[error(
        "this is not a decision log: the first line is not a header; `vgpu-admin sched log` makes one"
    )]
    NotALog,
    /// The log has another format than this program reads.
    #[error(
        "the log has format {found}, this program reads format {FORMAT}; replay it with the vgpu-sim \
         of the version that made it ({scheduler})"
    )]
    Format {
        /// Format of the log.
        found: u32,
        /// Version of the scheduler that made the log.
        scheduler: String,
    },
    /// A line cannot be read.
    #[error("line {line} cannot be read: {problem}{}", made_by(.other_version))]
    Corrupt {
        /// Number of the line, from 1.
        line: u64,
        /// Cause.
        problem: String,
        /// Version of the scheduler that made the log, if that is another version than this
        /// program's.
        other_version: Option<String>,
    },
    /// The last lines are missing.
    #[error(
        "the log is truncated: it ends after record {last:?} (line {line}) without an end line; make \
         a new log with `vgpu-admin sched log`"
    )]
    Truncated {
        /// Number of the last record.
        last: Option<u64>,
        /// Number of the last line.
        line: u64,
    },
    /// The replay decided other actions.
    #[error(
        "replay diverges at record {n} (line {line}, {at_ns} ns) after {event}: the log has \
         {recorded}, the replay gave {replayed}"
    )]
    Decision {
        /// Number of the record.
        n: u64,
        /// Number of the line.
        line: u64,
        /// Time of the event in ns.
        at_ns: u64,
        /// The event.
        event: String,
        /// Actions in the log.
        recorded: String,
        /// Actions of the replay.
        replayed: String,
    },
    /// The actions agree, but the states differ.
    #[error(
        "the state on line {line} (before record {before}) differs from the replayed state: {difference}"
    )]
    State {
        /// Number of the next record.
        before: u64,
        /// Number of the line.
        line: u64,
        /// The first difference.
        difference: String,
    },
    /// The scheduler panicked at a record. No scheduler reaches this state by itself, so the file
    /// was changed.
    #[error(
        "the scheduler failed at record {n} (line {line}): it never reaches the state in this log"
    )]
    Impossible {
        /// Number of the record.
        n: u64,
        /// Number of the line.
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

/// A replay in progress. The caller feeds the lines of a log in order.
#[derive(Debug, Default)]
pub struct Replay {
    line: u64,
    other_version: Option<String>,
    scheduler: Option<Scheduler>,
    /// Number of the next record.
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
    /// A replay before its first line.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next line and replays its record.
    ///
    /// # Errors
    /// [`ReplayError`] for a line that cannot be read, or whose decision or state differs. The
    /// replay cannot go on after an error.
    pub fn line(&mut self, text: &str) -> Result<(), ReplayError> {
        self.line += 1;
        if self.ended {
            return Err(self.corrupt("this line is after the end line"));
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
            Line::Header(_) => Err(self.corrupt("a second header: only the first line may be one")),
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

    /// Ends the replay, after all lines. Returns its result.
    ///
    /// # Errors
    /// [`ReplayError::NotALog`] without lines, [`ReplayError::Truncated`] without an end line.
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
            let problem = format!("found record {}, expected record {}", record.n, self.next);
            return Err(self.corrupt(problem));
        }
        let Some(scheduler) = &mut self.scheduler else {
            return Err(self.corrupt("a record before the first state"));
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

/// The first difference between two states, as a path of field names and the two values.
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
            // In debug output, a map's key stands on the line on which its value begins. The name
            // for the path is then the line before.
            let name = if closes { leaf } else { name };
            path.push(name.trim_end_matches([' ', ':', ',']).to_owned());
        } else if !closes {
            leaf = text;
        }
    }
    "one state has more lines than the other".into()
}
