//! The decision log: records the events that the scheduler took and the actions that it decided,
//! for a replay.
//!
//! [`DecisionLog::handle`] wraps [`Scheduler::handle`] and stores each event, its time and its
//! actions. The log consists of two segments. A segment begins with a snapshot of the scheduler.
//! When a segment is full, a new segment begins and the segment before the full one is dropped. So
//! the log always has one full segment, once the first is full. [`Bounds`] limits the memory of the
//! records; two snapshots come on top.
//!
//! Recording copies the event and its actions: no serialisation, no allocation per event. A new
//! segment costs one clone of the scheduler (`examples/log_cost.rs` measures both). A caller that
//! has nothing to do calls [`DecisionLog::rest`], so that the clone does not delay a decision.
//! [`DecisionLog::view`] shares the records, so that another thread can write them
//! ([`View::lines`]) while recording goes on.
//!
//! A [`Replay`] takes those lines and feeds the events to the snapshot. It reports the first record
//! whose actions differ from the log: the scheduler is another version, or the file was changed.
//! `vgpu-sim replay FILE` runs a replay.
//!
//! The log holds numbers: ids, times, sizes, settings. The scheduler does not know names, addresses
//! or guest data.
//! known to the scheduler.

mod dump;
mod replay;

use std::sync::Arc;

pub use dump::View;
pub use replay::{Replay, ReplayError, ReplayReport};

use crate::{Action, Event, Scheduler};

/// Version of the file format. The state in a log also depends on the version of the scheduler,
/// which the header names.
pub const FORMAT: u32 = 1;

/// Number of records in a chunk, the unit that a [`View`] shares.
const CHUNK: usize = 1_024;

/// Size of a segment. The log holds one to two segments (each at most an eighth longer than this)
/// and two snapshots.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Records in a segment, at least 1.
    pub records: usize,
    /// Memory of the records in a segment, in bytes. The last record may exceed this number.
    pub bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            records: 16_384,
            bytes: 16 << 20,
        }
    }
}

/// An event, and the end of its actions in the chunk's list of actions.
#[derive(Debug, Clone)]
struct Entry {
    at_ns: u64,
    event: Event,
    actions_end: u32,
}

/// Consecutive records.
#[derive(Debug, Default)]
struct Chunk {
    entries: Vec<Entry>,
    actions: Vec<Action>,
}

impl Chunk {
    fn new() -> Self {
        Self {
            entries: Vec::with_capacity(CHUNK),
            actions: Vec::with_capacity(CHUNK),
        }
    }

    /// Adds a record. Returns its size in bytes.
    fn push(&mut self, at_ns: u64, event: Event, actions: &[Action]) -> usize {
        let beside: usize = actions.iter().map(gang_bytes).sum();
        let bytes = size_of::<Entry>() + heap_bytes(&event) + size_of_val(actions) + beside;
        self.actions.extend_from_slice(actions);
        self.entries.push(Entry {
            at_ns,
            event,
            actions_end: u32::try_from(self.actions.len()).unwrap_or(u32::MAX),
        });
        bytes
    }

    fn is_full(&self) -> bool {
        // The second condition keeps `actions_end` within `u32`; in practice no chunk has that many
        // actions.
        self.entries.len() >= CHUNK || self.actions.len() >= 1 << 24
    }

    fn records(&self) -> impl Iterator<Item = (&Entry, &[Action])> {
        let mut begin = 0;
        self.entries.iter().map(move |entry| {
            let end = entry.actions_end as usize;
            let actions = self.actions.get(begin..end).unwrap_or_default();
            begin = end;
            (entry, actions)
        })
    }
}

/// Heap memory of an event, in bytes.
fn heap_bytes(event: &Event) -> usize {
    match event {
        Event::AddVm { config, .. } | Event::SetVm { config, .. } => {
            // A B-tree of numbers takes about twice their size.
            config.gpus.as_ref().map_or(0, |gpus| gpus.len() * 8)
        }
        _ => 0,
    }
}

/// Heap memory of an action, in bytes: the further GPUs of a gang.
fn gang_bytes(action: &Action) -> usize {
    match action {
        Action::Grant(terms) | Action::GrantBeside(terms) => size_of_val(terms.also.as_slice()),
        Action::Admit { also, .. } => size_of_val(also.as_slice()),
        _ => 0,
    }
}

/// A snapshot and the records after it.
#[derive(Debug, Clone)]
struct Segment {
    snapshot: Arc<Scheduler>,
    /// Number of the first record.
    first: u64,
    records: usize,
    bytes: usize,
    chunks: Vec<Arc<Chunk>>,
}

impl Segment {
    fn new(scheduler: &Scheduler, first: u64) -> Self {
        Self {
            snapshot: Arc::new(scheduler.clone()),
            first,
            records: 0,
            bytes: 0,
            chunks: Vec::new(),
        }
    }
}

/// The log of one scheduler.
#[derive(Debug)]
pub struct DecisionLog {
    bounds: Bounds,
    previous: Option<Segment>,
    current: Segment,
    /// The last chunk of the current segment.
    open: Chunk,
}

impl DecisionLog {
    /// A log that begins with the present state of `scheduler`. From then on, all events of this
    /// scheduler must go through [`DecisionLog::handle`].
    #[must_use]
    pub fn new(scheduler: &Scheduler, bounds: Bounds) -> Self {
        Self {
            bounds,
            previous: None,
            current: Segment::new(scheduler, 0),
            open: Chunk::new(),
        }
    }

    /// Calls [`Scheduler::handle`] and records the event and its actions.
    pub fn handle(
        &mut self,
        scheduler: &mut Scheduler,
        now_ns: u64,
        event: Event,
        actions: &mut Vec<Action>,
    ) {
        let eighth = |bound: usize| bound.saturating_add(bound / 8).max(1);
        if self.current.records >= eighth(self.bounds.records)
            || self.current.bytes >= eighth(self.bounds.bytes)
        {
            self.begin_segment(scheduler);
        }
        let before = actions.len();
        let kept = event.clone();
        scheduler.handle(now_ns, event, actions);
        let decided = actions.get(before..).unwrap_or_default();
        self.current.bytes += self.open.push(now_ns, kept, decided);
        self.current.records += 1;
        if self.open.is_full() {
            self.seal();
        }
    }

    /// Begins a new segment if the present segment is full. The caller calls this when it has
    /// nothing to do. Without these calls, [`DecisionLog::handle`] begins the segment an eighth
    /// later.
    pub fn rest(&mut self, scheduler: &Scheduler) {
        let full = self.current.records >= self.bounds.records.max(1)
            || self.current.bytes >= self.bounds.bytes;
        if full {
            self.begin_segment(scheduler);
        }
    }

    /// The stored records and the state after them. `scheduler` must be the recorded scheduler. The
    /// call clones the scheduler once; the records are shared.
    pub fn view(&mut self, scheduler: &Scheduler) -> View {
        self.seal();
        let segments = self.previous.iter().chain([&self.current]);
        View::new(segments.cloned().collect(), scheduler.clone())
    }

    /// Number of kept records.
    #[must_use]
    pub fn len(&self) -> usize {
        self.current.records + self.previous.as_ref().map_or(0, |segment| segment.records)
    }

    /// True before the first record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of memory that the records take, without the snapshots.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.current.bytes + self.previous.as_ref().map_or(0, |segment| segment.bytes)
    }

    fn begin_segment(&mut self, scheduler: &Scheduler) {
        self.seal();
        let first = self.current.first + self.current.records as u64;
        let full = std::mem::replace(&mut self.current, Segment::new(scheduler, first));
        self.previous = Some(full);
    }

    /// Closes the open chunk, so that views can share its records.
    fn seal(&mut self) {
        if self.open.entries.is_empty() {
            return;
        }
        let mut chunk = std::mem::replace(&mut self.open, Chunk::new());
        // A chunk that is closed early has spare capacity, which the log does not count.
        chunk.entries.shrink_to_fit();
        chunk.actions.shrink_to_fit();
        self.current.chunks.push(Arc::new(chunk));
    }
}

#[cfg(test)]
mod tests;
