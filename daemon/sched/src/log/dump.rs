//! A log as text: one JSON value per line.
//!
//! | line | meaning |
//! |---|---|
//! | `{"vgpu_sched_log":{…}}` | the header, once: `format`, `scheduler`, `first`, `records` |
//! | `{"state":{…}}` | the whole state before the next record: first, per segment, and last |
//! | `{"record":{…}}` | an event and its decision: `n`, `at_ns`, `event`, `actions` |
//! | `{"end":{"records":…}}` | the last line; without it the file is truncated |

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{FORMAT, Segment};
use crate::{Action, Event, Scheduler};

/// A line of a log.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line<'a> {
    /// The first line.
    #[serde(rename = "vgpu_sched_log")]
    Header(Header),
    /// A state of the scheduler.
    #[serde(rename = "state")]
    State(Cow<'a, Scheduler>),
    /// An event and its actions.
    #[serde(rename = "record")]
    Record(Record<'a>),
    /// The last line.
    #[serde(rename = "end")]
    End(End),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: u32,
    /// Version of the scheduler that decided.
    pub(super) scheduler: String,
    /// Number of the first record. Earlier records were dropped.
    pub(super) first: u64,
    /// Number of records that follow.
    pub(super) records: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Record<'a> {
    pub(super) n: u64,
    pub(super) at_ns: u64,
    pub(super) event: Cow<'a, Event>,
    pub(super) actions: Cow<'a, [Action]>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct End {
    pub(super) records: u64,
}

/// The records of a log at one moment. The view shares the records with the log, so a view costs
/// little memory while recording goes on.
#[derive(Debug)]
pub struct View {
    segments: Vec<Segment>,
    end: Scheduler,
}

impl View {
    pub(super) fn new(segments: Vec<Segment>, end: Scheduler) -> Self {
        Self { segments, end }
    }

    /// Number of records in the view.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.segments.iter().map(|s| s.records as u64).sum()
    }

    /// The lines, without their line ends.
    ///
    /// # Errors
    /// A line that cannot be written as JSON: a bug of this crate.
    pub fn lines(&self) -> impl Iterator<Item = serde_json::Result<String>> {
        let header = Line::Header(Header {
            format: FORMAT,
            scheduler: env!("CARGO_PKG_VERSION").into(),
            first: self.segments.first().map_or(0, |segment| segment.first),
            records: self.records(),
        });
        let end = [
            Line::State(Cow::Borrowed(&self.end)),
            Line::End(End {
                records: self.records(),
            }),
        ];
        std::iter::once(header)
            .chain(self.segments.iter().flat_map(segment_lines))
            .chain(end)
            .map(|line| serde_json::to_string(&line))
    }
}

fn segment_lines(segment: &Segment) -> impl Iterator<Item = Line<'_>> {
    let records = segment.chunks.iter().flat_map(|chunk| chunk.records());
    let numbered = records.zip(segment.first..).map(|((entry, actions), n)| {
        Line::Record(Record {
            n,
            at_ns: entry.at_ns,
            event: Cow::Borrowed(&entry.event),
            actions: Cow::Borrowed(actions),
        })
    });
    std::iter::once(Line::State(Cow::Borrowed(&*segment.snapshot))).chain(numbered)
}
