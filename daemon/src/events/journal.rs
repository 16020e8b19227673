//! The memory of [`super::EventSink`]: bounded, and emptied by the store's writer.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use vgpu_api::{Event, EventKind, Severity, VmUsage};

use crate::model::{UsageDelta, UsageRecord, now_unix_ms};

/// Events kept in memory: for followers, for the status screen, and until they are saved.
const RING: usize = 4_096;
/// Most events in a burst that have the same kind and are about the same VM, or about no VM.
const BURST: u32 = 20;
/// After a burst, one more event of the same kind and about the same VM is allowed per this time.
const REFILL: Duration = Duration::from_secs(3);
/// Sequence numbers skipped after a crash: more than the events that may have been published and
/// not saved.
const RESTART_GAP: u64 = RING as u64;

/// Events and totals that are not saved yet.
#[derive(Debug)]
pub struct Journal {
    ring: Mutex<Ring>,
    usage: Mutex<BTreeMap<u32, UsageEntry>>,
    notes: Mutex<Notes>,
    latest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct Ring {
    events: VecDeque<Event>,
    next_seq: u64,
    saved_before: u64,
    lost: u64,
    rates: BTreeMap<(u8, Option<u32>), Rate>,
    counts: BTreeMap<(u8, &'static str), EventCount>,
}

/// Number of events of one kind (and label) since vgpud started, including suppressed events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EventCount {
    /// The kind.
    pub kind: EventKind,
    /// Distinguishes events within the kind (a cause, the code of a refusal), or empty.
    pub label: &'static str,
    /// Number of events.
    pub count: u64,
}

#[derive(Debug)]
struct Rate {
    tokens: u32,
    since: Instant,
    held_back: u64,
}

#[derive(Debug, Default)]
struct UsageEntry {
    record: UsageRecord,
    dirty: bool,
}

#[derive(Debug, Default)]
struct Notes {
    vms: BTreeMap<u32, VmNote>,
    gpus: BTreeMap<String, GpuNote>,
}

/// A decision of the scheduler about a VM that the store has not saved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct VmNote {
    pub(crate) generation: u64,
    pub(crate) at_unix_ms: u64,
    pub(crate) strikes: Option<u32>,
    pub(crate) quarantine: Option<QuarantineNote>,
}

/// A change of a VM's quarantine by strikes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum QuarantineNote {
    /// The quarantine began.
    Begun {
        reason: String,
        until_unix_ms: Option<u64>,
        /// Quarantines that count, including this one.
        quarantines: u32,
    },
    /// The quarantine is over, and the strikes are forgotten.
    Over,
}

impl VmNote {
    pub(super) fn strike(generation: u64, strikes: u32) -> Self {
        let at_unix_ms = now_unix_ms();
        Self {
            generation,
            at_unix_ms,
            strikes: Some(strikes),
            quarantine: None,
        }
    }

    pub(super) fn quarantine(generation: u64, note: QuarantineNote) -> Self {
        let at_unix_ms = now_unix_ms();
        Self {
            generation,
            at_unix_ms,
            strikes: (note == QuarantineNote::Over).then_some(0),
            quarantine: Some(note),
        }
    }

    /// Merges a later note about the same VM into this note.
    fn merge(&mut self, later: Self) {
        if later.generation > self.generation {
            *self = later;
            return;
        }
        self.at_unix_ms = later.at_unix_ms;
        self.strikes = later.strikes.or(self.strikes);
        self.quarantine = later.quarantine.or_else(|| self.quarantine.take());
    }
}

/// A finding about a GPU that the store has not saved yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum GpuNote {
    Suspect(String),
    Vanished(String),
}

/// An event before it has a number.
#[derive(Debug, Clone)]
pub(crate) struct Draft {
    pub(crate) kind: EventKind,
    pub(crate) severity: Severity,
    pub(crate) vm_id: Option<u32>,
    pub(crate) session_id: Option<u64>,
    pub(crate) gpu_uuid: Option<String>,
    pub(crate) pool: Option<String>,
    pub(crate) message: String,
    pub(crate) label: &'static str,
}

impl Draft {
    pub(crate) fn daemon(kind: EventKind, severity: Severity, message: String) -> Self {
        Self {
            kind,
            severity,
            vm_id: None,
            session_id: None,
            gpu_uuid: None,
            pool: None,
            message,
            label: "",
        }
    }

    pub(crate) fn vm(kind: EventKind, severity: Severity, vm_id: u32, message: String) -> Self {
        Self {
            vm_id: Some(vm_id),
            ..Self::daemon(kind, severity, message)
        }
    }

    pub(super) fn of_vm(self, vm_id: Option<u32>) -> Self {
        Self { vm_id, ..self }
    }

    pub(super) fn of_session(self, session_id: impl Into<Option<u64>>) -> Self {
        Self {
            session_id: session_id.into(),
            ..self
        }
    }

    pub(super) fn on_gpu(self, uuid: impl Into<Option<String>>) -> Self {
        Self {
            gpu_uuid: uuid.into(),
            ..self
        }
    }

    /// Sets the short name of the cause, for metrics.
    pub(super) fn labelled(self, label: &'static str) -> Self {
        Self { label, ..self }
    }
}

/// Data that the writer has to save.
#[derive(Debug, Default)]
pub(crate) struct Unsaved {
    pub(crate) events: Vec<Event>,
    pub(crate) usage: Vec<(u32, UsageRecord)>,
}

impl Default for Journal {
    fn default() -> Self {
        Self::new(0, BTreeMap::new())
    }
}

impl Journal {
    /// The last sequence number that may have been published, if `last_saved` is the last that was
    /// saved.
    #[must_use]
    pub fn after_crash(last_saved: u64) -> u64 {
        match last_saved {
            0 => 0,
            saved => saved.saturating_add(RESTART_GAP),
        }
    }

    /// A journal that continues after the event `last_seq`, with the saved totals.
    #[must_use]
    pub fn new(last_seq: u64, usage: BTreeMap<u32, UsageRecord>) -> Self {
        let next_seq = last_seq.saturating_add(1);
        let usage = usage
            .into_iter()
            .map(|(vm_id, record)| {
                (
                    vm_id,
                    UsageEntry {
                        record,
                        dirty: false,
                    },
                )
            })
            .collect();
        Self {
            ring: Mutex::new(Ring {
                next_seq,
                saved_before: next_seq,
                ..Ring::default()
            }),
            usage: Mutex::new(usage),
            notes: Mutex::new(Notes::default()),
            latest: watch::Sender::new(next_seq - 1),
        }
    }

    /// The sequence number of the newest event. Changes wake followers.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.latest.subscribe()
    }

    /// The oldest sequence number in memory, or the next one if there is none.
    #[must_use]
    pub fn oldest_seq(&self) -> u64 {
        let ring = lock(&self.ring);
        ring.events.front().map_or(ring.next_seq, |event| event.seq)
    }

    /// Events in memory after `since` that pass `wanted`, oldest first, at most `limit`.
    pub fn events_after(
        &self,
        since: u64,
        limit: usize,
        wanted: impl Fn(&Event) -> bool,
    ) -> Vec<Event> {
        let ring = lock(&self.ring);
        let start = ring.events.partition_point(|event| event.seq <= since);
        ring.events
            .range(start..)
            .filter(|event| wanted(event))
            .take(limit)
            .cloned()
            .collect()
    }

    /// The newest events in memory that `wanted` selects, oldest first, at most `limit`.
    pub fn newest(&self, limit: usize, wanted: impl Fn(&Event) -> bool) -> Vec<Event> {
        let ring = lock(&self.ring);
        let newest = ring.events.iter().rev().filter(|event| wanted(event));
        let mut events: Vec<Event> = newest.take(limit).cloned().collect();
        events.reverse();
        events
    }

    /// Number of events per kind since vgpud started.
    #[must_use]
    pub fn counts(&self) -> Vec<EventCount> {
        lock(&self.ring).counts.values().cloned().collect()
    }

    /// Number of events that were dropped before they could be saved.
    #[must_use]
    pub fn lost(&self) -> u64 {
        lock(&self.ring).lost
    }

    /// The totals of a VM.
    #[must_use]
    pub fn usage_of(&self, vm_id: u32) -> UsageRecord {
        lock(&self.usage)
            .get(&vm_id)
            .map_or_else(UsageRecord::default, |entry| entry.record)
    }

    /// The totals of all VMs.
    #[must_use]
    pub fn all_usage(&self) -> BTreeMap<u32, UsageRecord> {
        lock(&self.usage)
            .iter()
            .map(|(vm_id, entry)| (*vm_id, entry.record))
            .collect()
    }

    /// Replaces the totals of a VM by saved totals.
    pub(crate) fn put_usage(&self, vm_id: u32, record: UsageRecord) {
        let dirty = false;
        lock(&self.usage).insert(vm_id, UsageEntry { record, dirty });
    }

    /// Drops the totals of a VM that is no longer registered.
    pub(crate) fn forget_usage(&self, vm_id: u32) {
        lock(&self.usage).remove(&vm_id);
    }

    /// Sets the totals of a VM to zero, unless they belong to a later registration.
    pub(crate) fn reset_usage(&self, vm_id: u32, generation: u64, at_unix_ms: u64) {
        let mut usage = lock(&self.usage);
        let entry = usage.entry(vm_id).or_default();
        if generation >= entry.record.generation {
            entry.record = entry.record.anew(generation, at_unix_ms);
            entry.dirty = true;
        }
    }

    /// Adds to the totals of a VM. An increment of an earlier registration is dropped.
    pub(crate) fn add_usage(&self, vm_id: u32, generation: u64, delta: &UsageDelta) {
        let mut usage = lock(&self.usage);
        let entry = usage.entry(vm_id).or_default();
        if generation < entry.record.generation {
            return;
        }
        if generation > entry.record.generation {
            entry.record = UsageRecord {
                generation,
                ..UsageRecord::default()
            };
        }
        add(&mut entry.record.total, &delta.add);
        entry.record.debt_ns = delta.debt_ns.unwrap_or(entry.record.debt_ns);
        entry.dirty = true;
    }

    pub(super) fn note_vm(&self, vm_id: u32, note: VmNote) {
        let mut notes = lock(&self.notes);
        match notes.vms.entry(vm_id) {
            std::collections::btree_map::Entry::Occupied(mut open) => open.get_mut().merge(note),
            std::collections::btree_map::Entry::Vacant(free) => {
                free.insert(note);
            }
        }
    }

    pub(super) fn note_gpu(&self, uuid: String, note: GpuNote) {
        lock(&self.notes).gpus.insert(uuid, note);
    }

    /// Numbers, logs and keeps an event, unless there are too many events of the same kind about
    /// the same VM (`BURST`, `REFILL`).
    pub(crate) fn record(&self, draft: Draft) {
        let event = {
            let mut ring = lock(&self.ring);
            let kind = draft.kind as u8;
            let count = ring
                .counts
                .entry((kind, draft.label))
                .or_insert(EventCount {
                    kind: draft.kind,
                    label: draft.label,
                    count: 0,
                });
            count.count += 1;
            let Some(held_back) = ring.admit(kind, draft.vm_id, Instant::now()) else {
                return;
            };
            ring.push(draft, held_back)
        };
        super::log(&event);
        self.latest.send_replace(event.seq);
    }

    /// Data to be saved, with at most `limit` events. The data stays until [`Journal::saved`].
    pub(crate) fn unsaved(&self, limit: usize) -> Unsaved {
        let mut unsaved = Unsaved::default();
        {
            let ring = lock(&self.ring);
            let start = ring
                .events
                .partition_point(|event| event.seq < ring.saved_before);
            unsaved.events = ring.events.range(start..).take(limit).cloned().collect();
        }
        let usage = lock(&self.usage);
        let dirty = usage.iter().filter(|(_, entry)| entry.dirty);
        unsaved.usage = dirty.map(|(vm_id, entry)| (*vm_id, entry.record)).collect();
        unsaved
    }

    /// Takes the notes about VMs and GPUs, which the caller must save.
    pub(crate) fn take_notes(&self) -> (BTreeMap<u32, VmNote>, BTreeMap<String, GpuNote>) {
        let mut notes = lock(&self.notes);
        (
            std::mem::take(&mut notes.vms),
            std::mem::take(&mut notes.gpus),
        )
    }

    /// Whether events wait to be saved.
    pub(crate) fn has_unsaved_events(&self) -> bool {
        let ring = lock(&self.ring);
        ring.events
            .back()
            .is_some_and(|event| event.seq >= ring.saved_before)
    }

    /// Marks `saved` as saved. Later changes remain to be saved.
    pub(crate) fn saved(&self, saved: &Unsaved) {
        if let Some(last) = saved.events.last() {
            let mut ring = lock(&self.ring);
            ring.saved_before = ring.saved_before.max(last.seq + 1);
        }
        let mut usage = lock(&self.usage);
        for (vm_id, record) in &saved.usage {
            if let Some(entry) = usage.get_mut(vm_id) {
                entry.dirty = entry.record != *record;
            }
        }
    }
}

impl Ring {
    /// Takes a token for one more event of `kind` about `vm_id`. Returns the number of events that
    /// were suppressed before, or `None` if this event is suppressed too.
    fn admit(&mut self, kind: u8, vm_id: Option<u32>, now: Instant) -> Option<u64> {
        let rate = self.rates.entry((kind, vm_id)).or_insert(Rate {
            tokens: BURST,
            since: now,
            held_back: 0,
        });
        let waited = now.saturating_duration_since(rate.since);
        let refilled = u32::try_from(waited.as_nanos() / REFILL.as_nanos()).unwrap_or(u32::MAX);
        if refilled > 0 {
            rate.tokens = rate.tokens.saturating_add(refilled).min(BURST);
            rate.since = now;
        }
        if rate.tokens == 0 {
            rate.held_back += 1;
            return None;
        }
        rate.tokens -= 1;
        Some(std::mem::take(&mut rate.held_back))
    }

    fn push(&mut self, draft: Draft, held_back: u64) -> Event {
        let mut message = draft.message;
        if held_back > 0 {
            message.push_str(&format!(" ({held_back} like it were not listed)"));
        }
        let event = Event {
            seq: self.next_seq,
            at_unix_ms: now_unix_ms(),
            kind: draft.kind,
            severity: draft.severity,
            vm_id: draft.vm_id,
            session_id: draft.session_id,
            gpu_uuid: draft.gpu_uuid,
            pool: draft.pool,
            message,
        };
        self.next_seq += 1;
        if self.events.len() == RING
            && let Some(oldest) = self.events.pop_front()
            && oldest.seq >= self.saved_before
        {
            self.lost += 1;
            self.saved_before = oldest.seq + 1;
        }
        self.events.push_back(event.clone());
        event
    }
}

fn add(total: &mut VmUsage, more: &VmUsage) {
    let pairs = [
        (&mut total.gpu_ns, more.gpu_ns),
        (&mut total.wait_ns, more.wait_ns),
        (&mut total.throttled_ns, more.throttled_ns),
        (&mut total.calls, more.calls),
        (&mut total.bytes_in, more.bytes_in),
        (&mut total.bytes_out, more.bytes_out),
        (&mut total.sessions, more.sessions),
        (&mut total.kills, more.kills),
        (&mut total.soft_limits, more.soft_limits),
        (&mut total.refusals, more.refusals),
        (&mut total.rate_limited, more.rate_limited),
        (&mut total.turns, more.turns),
    ];
    for (value, increment) in pairs {
        *value = value.saturating_add(increment);
    }
    let peaks = [
        (&mut total.memory_peak_bytes, more.memory_peak_bytes),
        (&mut total.pinned_peak_bytes, more.pinned_peak_bytes),
    ];
    for (peak, seen) in peaks {
        *peak = seen.max(*peak);
    }
}

/// Ignores poisoning, because the journal's state is valid between any two statements.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
