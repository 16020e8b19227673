//! A log as text: one JSON value per line.
//!
//! | line | what it says |
//! |---|---|
//! | `{"vgpu_sched_log":{"format":…,"scheduler":"…","first":…,"records":…}}` | the header, once |
//! | `{"state":{…}}` | the whole state before the next record: at the begin, where a segment begins, at the end |
//! | `{"record":{"n":…,"at_ns":…,"event":…,"actions":[…]}}` | one event and what was decided |
//! | `{"end":{"records":…}}` | the last line; without it the file is truncated |

use std::borrow::Cow;

use serde::{Deserialize, Serialize};

use super::{FORMAT, Segment};
use crate::{Action, Event, Scheduler};

/// One line.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Line<'a> {
    /// The first.
    #[serde(rename = "vgpu_sched_log")]
    Header(Header),
    /// The state.
    #[serde(rename = "state")]
    State(Cow<'a, Scheduler>),
    /// An event and its actions.
    #[serde(rename = "record")]
    Record(Record<'a>),
    /// The last.
    #[serde(rename = "end")]
    End(End),
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Header {
    pub(super) format: u32,
    /// The version of the scheduler that decided.
    pub(super) scheduler: String,
    /// The number of the first record: so many came before it and are no longer kept.
    pub(super) first: u64,
    /// How many follow.
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

/// The records of a log at one moment. Cheap to hold: the log goes on without it.
#[derive(Debug)]
pub struct View {
    segments: Vec<Segment>,
    end: Scheduler,
}

impl View {
    pub(super) fn new(segments: Vec<Segment>, end: Scheduler) -> Self {
        Self { segments, end }
    }

    /// How many records it has.
    #[must_use]
    pub fn records(&self) -> u64 {
        self.segments.iter().map(|s| s.records as u64).sum()
    }

    /// The lines, without their line ends.
    ///
    /// # Errors
    /// A line that cannot be written as JSON: a mistake in this crate, told by its tests.
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
