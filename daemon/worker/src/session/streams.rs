//! What is in flight, stream by stream.
//!
//! Every operation given to a stream has a number in it. A *marker* is a driver event recorded behind
//! an operation; when it fires, everything up to its number is complete, and the *actions* that
//! waited for that are done, in order. Markers are recorded only where somebody waits: a
//! synchronising call, data on its way to the guest, a lease to be given back, an idle session.

use std::collections::VecDeque;
use std::sync::Arc;

use vgpu_proto::call::Op;
use vgpu_proto::cuda::CuResult;
use vgpu_sched::gate::{self, Estimate, Flow, Gate};

use super::Session;
use super::drains::Flush;
use super::link::now_ns;
use super::table::{HandleMap, Kind, Table};
use crate::driver::{BLOCKING_SYNC, Block, DISABLE_TIMING, Event, Result, Stream};

/// What to do when a stream is past an operation.
#[derive(Debug)]
pub(super) enum Action {
    /// The data has been fetched; the block is free.
    Staged(Block),
    /// A piece of data for the guest.
    Piece {
        /// Its operation.
        op: Op,
        /// The request.
        id: u64,
        /// From which stream it comes.
        stream: u64,
        /// The data.
        block: Block,
        /// No more follow.
        last: bool,
    },
    /// The copy went wrong after pieces of it had been submitted.
    Failed {
        /// The request.
        id: u64,
        /// Its operation.
        op: Op,
        /// How.
        code: CuResult,
    },
    /// Stream-ordered memory is free again.
    Freed {
        /// Its device.
        device: usize,
        /// Bytes that the VM's ledger gets back.
        charge: u64,
    },
    /// The stream is at a host function of the guest.
    HostFunc {
        /// The stream.
        stream: u64,
        /// The guest's number of the function.
        number: u64,
    },
    /// One of the things that a drain waits for.
    Drain(u64),
    /// All that a drain waited for has come.
    Drained(u64),
}

/// An operation that takes GPU time, and what it is expected to take.
pub(super) type Timed = (gate::Work, Option<Estimate>);

#[derive(Debug)]
struct Marker {
    seq: u64,
    event: Arc<Event>,
}

/// One stream.
#[derive(Debug)]
pub(super) struct StreamState {
    /// The context's handle.
    pub context: u64,
    /// The guest's name for it; 0 for a NULL stream.
    pub name: u64,
    /// The driver's; `None` once destroyed while work is still in it.
    pub driver: Option<Arc<Stream>>,
    /// Waits for, and is waited for by, the NULL stream.
    pub blocking: bool,
    /// Operations that wait in the queue.
    pub queued: u64,
    /// The last of them.
    pub last_queued: u64,
    /// What of it the gate counts.
    pub flow: Flow,
    submitted: u64,
    completed: u64,
    markers: VecDeque<Marker>,
    actions: VecDeque<(u64, Action)>,
    /// Somebody waits for operations up to this one (what only frees something does not count).
    awaited: u64,
    /// A thread waits for the first marker.
    watched: bool,
}

impl StreamState {
    /// A stream without work.
    pub(super) fn new(context: u64, name: u64, driver: Stream, blocking: bool) -> StreamState {
        StreamState {
            context,
            name,
            driver: Some(Arc::new(driver)),
            blocking,
            queued: 0,
            last_queued: 0,
            flow: Flow::default(),
            submitted: 0,
            completed: 0,
            markers: VecDeque::new(),
            actions: VecDeque::new(),
            awaited: 0,
            watched: false,
        }
    }

    /// Is everything that was submitted complete?
    pub(super) fn drained(&self) -> bool {
        self.submitted == self.completed
    }

    /// Operations that were submitted and are not complete.
    pub(super) fn in_flight(&self) -> u64 {
        self.submitted - self.completed
    }

    /// Number of the last operation submitted.
    pub(super) fn tip(&self) -> u64 {
        self.submitted
    }

    /// Is the operation of this number complete?
    pub(super) fn past(&self, seq: u64) -> bool {
        self.completed >= seq
    }

    fn unmarked(&self) -> u64 {
        self.submitted
            - self
                .markers
                .back()
                .map_or(self.completed, |m| m.seq.max(self.completed))
    }

    fn is_awaited(&self) -> bool {
        self.awaited > self.completed
    }

    fn add_action(&mut self, seq: u64, action: Action) {
        if !matches!(action, Action::Staged(_) | Action::Freed { .. }) {
            self.awaited = self.awaited.max(seq);
        }
        let at = self.actions.partition_point(|(s, _)| *s <= seq);
        self.actions.insert(at, (seq, action));
    }
}

/// All streams of the session.
#[derive(Debug)]
pub(super) struct Streams {
    /// By our own handle.
    pub table: Table<StreamState>,
    /// The guest's handles.
    pub names: HandleMap<u64>,
    /// Those with work in flight.
    active: Vec<u64>,
    in_flight: u64,
    /// How much may be unfinished.
    pub gate: Gate,
    /// When the first operation of the queue may be let in though nothing happens.
    pub ask_again: Option<u64>,
    /// What waits goes in only after the slice.
    pub slice_full: bool,
}

impl Streams {
    /// None yet.
    pub(super) fn new() -> Streams {
        Streams {
            table: Table::new(Kind::Stream),
            names: HandleMap::default(),
            active: Vec::new(),
            in_flight: 0,
            gate: Gate::new(gate::Config::default()),
            ask_again: None,
            slice_full: false,
        }
    }

    /// Operations given to the device and not known to be complete.
    pub(super) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Streams with work in flight.
    pub(super) fn active(&self) -> &[u64] {
        &self.active
    }
}

impl Session {
    /// An operation was given to the stream.
    pub(super) fn submitted(&mut self, id: u64) -> u64 {
        let Some(stream) = self.flow.streams.table.get_mut(id) else {
            return 0;
        };
        if stream.drained() {
            self.flow.streams.active.push(id);
        }
        stream.submitted += 1;
        self.flow.streams.in_flight += 1;
        stream.submitted
    }

    /// As [`Session::submitted`], for an operation that takes GPU time.
    pub(super) fn submitted_work(&mut self, now: u64, id: u64, (work, estimate): Timed) {
        let number = self.submitted(id);
        let Streams { table, gate, .. } = &mut self.flow.streams;
        if let Some(stream) = table.get_mut(id) {
            gate.submitted(now, &mut stream.flow, number, work, estimate);
        }
        self.link.lease.count_submitted(1);
    }

    /// As [`Session::submitted`], for a wait for a value in memory.
    pub(super) fn submitted_wait(&mut self, now: u64, id: u64) {
        let number = self.submitted(id);
        let Streams { table, gate, .. } = &mut self.flow.streams;
        if let Some(stream) = table.get_mut(id) {
            gate.submitted_wait(now, &mut stream.flow, number);
        }
    }

    /// Enough without a marker that one is due, so that the window can move? `awaited`: somebody waits
    /// for the lease or for the work.
    pub(super) fn marker_due(&self, id: u64, awaited: bool) -> bool {
        let stream = self.flow.streams.table.get(id);
        stream.is_some_and(|s| self.flow.streams.gate.marker_due(&s.flow, awaited))
    }

    /// Sees to it that a marker stands behind the last operation of the stream.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn mark(&mut self, id: u64) -> Result<()> {
        self.mark_as(id, false)
    }

    /// As [`Session::mark`]. `late`: only now, though the work was submitted some time ago.
    fn mark_as(&mut self, id: u64, late: bool) -> Result<()> {
        let Some(stream) = self.flow.streams.table.get_mut(id) else {
            return Ok(());
        };
        if stream.unmarked() == 0 {
            return Ok(());
        }
        let Some(driver) = stream.driver.as_ref().map(Arc::clone) else {
            return Ok(());
        };
        let event = match self
            .objects
            .contexts
            .get_mut(stream.context)
            .and_then(|c| c.spare.pop())
        {
            Some(event) => event,
            None => Arc::new(Event::create(
                driver.context(),
                BLOCKING_SYNC | DISABLE_TIMING,
            )?),
        };
        event.record(&driver, 0)?;
        stream.markers.push_back(Marker {
            seq: stream.submitted,
            event,
        });
        self.flow.streams.gate.marked(&mut stream.flow, late);
        Ok(())
    }

    /// A marker cannot be had, so nobody who waits would ever be answered.
    pub(super) fn unmarkable(&mut self, code: CuResult) {
        self.device_failed(code, "returned while recording a completion event");
    }

    /// Puts a marker behind the last operation of every stream that has none. `late`: nobody waits for
    /// one, and the work was submitted some time ago.
    pub(super) fn mark_all(&mut self, late: bool) {
        for i in 0..self.flow.streams.active.len() {
            let id = self.flow.streams.active[i];
            if let Err(code) = self.mark_as(id, late) {
                return self.unmarkable(code);
            }
        }
    }

    /// To be called before anything is given to a stream. The NULL stream and the blocking streams of
    /// a context wait for each other's earlier work, markers included: a marker must stand before
    /// what it would otherwise wait for.
    pub(super) fn mark_before(&mut self, id: u64) {
        let Some(stream) = self.flow.streams.table.get(id) else {
            return;
        };
        let (context, null) = (stream.context, stream.name == 0);
        if !null && !stream.blocking {
            return;
        }
        for i in 0..self.flow.streams.active.len() {
            let other = self.flow.streams.active[i];
            let ordered = other != id
                && self.flow.streams.table.get(other).is_some_and(|s| {
                    s.context == context && (if null { s.blocking } else { s.name == 0 })
                });
            if ordered && let Err(code) = self.mark(other) {
                return self.unmarkable(code);
            }
        }
    }

    /// Streams with operations that no marker stands behind.
    pub(super) fn any_unmarked(&self) -> bool {
        self.flow.streams.active.iter().any(|id| {
            self.flow
                .streams
                .table
                .get(*id)
                .is_some_and(|s| s.unmarked() > 0)
        })
    }

    /// Does `action` when the stream is past its last operation, or at once if it is.
    pub(super) fn after_tip(&mut self, id: u64, action: Action) {
        let tip = self.flow.streams.table.get(id).map_or(0, StreamState::tip);
        self.after(id, tip, action);
    }

    /// Does `action` when the stream is past operation `seq`, or at once if it is.
    pub(super) fn after(&mut self, id: u64, seq: u64, action: Action) {
        match self.flow.streams.table.get_mut(id) {
            Some(stream) if !stream.past(seq) => stream.add_action(seq, action),
            _ => self.flow.due.push_back(action),
        }
    }

    /// Lets `event`, which was recorded as operation `seq` of the stream, serve as a marker.
    pub(super) fn mark_with(&mut self, id: u64, seq: u64, event: &Arc<Event>) {
        let Some(stream) = self.flow.streams.table.get_mut(id) else {
            return;
        };
        let at = stream.markers.partition_point(|m| m.seq < seq);
        if stream.past(seq) || stream.markers.get(at).is_some_and(|m| m.seq == seq) {
            return;
        }
        if at == 0 {
            // The thread that waits for a later one is of no use for this.
            stream.watched = false;
        }
        stream.markers.insert(
            at,
            Marker {
                seq,
                event: Arc::clone(event),
            },
        );
    }

    /// Looks which markers of a stream have fired. True: something moved.
    pub(super) fn harvest(&mut self, id: u64) -> bool {
        let (fired, failed) = self.fired(id);
        if let Some(seq) = fired {
            self.complete(id, seq);
        }
        if let Some(code) = failed {
            self.device_failed(code, "seen while looking for completion");
            return true;
        }
        fired.is_some() | self.harvest_tip(id)
    }

    /// Up to where a stream's markers have fired, and what was seen instead of the next.
    fn fired(&self, id: u64) -> (Option<u64>, Option<CuResult>) {
        let markers = self.flow.streams.table.get(id).map(|s| &s.markers);
        let mut fired = None;
        for marker in markers.into_iter().flatten() {
            match marker.event.is_complete() {
                Ok(true) => fired = Some(marker.seq),
                Ok(false) => break,
                Err(code) => return (fired, Some(code)),
            }
        }
        (fired, None)
    }

    /// Asks the driver about a stream behind whose last operation no marker stands, if somebody waits
    /// for that. True: it is complete.
    fn harvest_tip(&mut self, id: u64) -> bool {
        let Some(stream) = self.flow.streams.table.get(id) else {
            return false;
        };
        if !stream.is_awaited() || stream.unmarked() == 0 || !stream.markers.is_empty() {
            return false;
        }
        let Some(driver) = stream.driver.as_ref().map(Arc::clone) else {
            return false;
        };
        // A query of the NULL stream says nothing about the blocking ones.
        if self.joins_others(id) {
            return false;
        }
        match driver.is_complete() {
            Ok(true) => {
                self.complete_all(id);
                true
            }
            Ok(false) => false,
            Err(code) => {
                self.device_failed(code, "seen while looking for completion");
                true
            }
        }
    }

    /// Looks at every stream that somebody waits for. True: something moved.
    pub(super) fn harvest_awaited(&mut self) -> bool {
        let mut moved = false;
        for i in (0..self.flow.streams.active.len()).rev() {
            let Some(&id) = self.flow.streams.active.get(i) else {
                continue;
            };
            if self
                .flow
                .streams
                .table
                .get(id)
                .is_some_and(|s| !s.actions.is_empty())
            {
                moved |= self.harvest(id);
            }
        }
        moved
    }

    /// Looks at every stream with work. True: something moved.
    pub(super) fn harvest_all(&mut self) -> bool {
        let mut moved = false;
        for i in (0..self.flow.streams.active.len()).rev() {
            let Some(&id) = self.flow.streams.active.get(i) else {
                continue;
            };
            moved |= self.harvest(id);
        }
        moved
    }

    /// Does anybody wait for work in flight?
    pub(super) fn awaited(&self) -> bool {
        self.flow.streams.active.iter().any(|id| {
            self.flow
                .streams
                .table
                .get(*id)
                .is_some_and(|s| !s.actions.is_empty())
        })
    }

    /// A thread that waited for a marker has come back.
    pub(super) fn marker_fired(&mut self, id: u64, seq: u64, result: Result<()>) {
        if let Some(stream) = self.flow.streams.table.get_mut(id)
            && stream.markers.front().is_none_or(|m| m.seq <= seq)
        {
            stream.watched = false;
        }
        match result {
            Ok(()) => {
                // All that is seen at a time is told at once: it is taken for one batch.
                let (later, failed) = self.fired(id);
                self.complete(id, later.map_or(seq, |later| later.max(seq)));
                match failed {
                    Some(code) => self.device_failed(code, "seen while waiting for a stream"),
                    None => _ = self.harvest_tip(id),
                }
            }
            Err(code) => self.device_failed(code, "seen while waiting for a stream"),
        }
    }

    /// The stream is past operation `seq`.
    fn complete(&mut self, id: u64, seq: u64) {
        let Some(stream) = self.flow.streams.table.get_mut(id) else {
            return;
        };
        let n = seq.saturating_sub(stream.completed);
        let mut worked = 0;
        if n > 0 {
            stream.completed = seq;
            self.flow.streams.in_flight -= n.min(self.flow.streams.in_flight);
            if stream.flow.busy() {
                let seen = self
                    .flow
                    .streams
                    .gate
                    .completed(now_ns(), &mut stream.flow, seq);
                worked = seen.ops;
                if seen.surprise {
                    tracing::debug!("{} operations took longer than predicted", seen.ops);
                }
            }
        }
        let mut fired = Vec::new();
        while stream.markers.front().is_some_and(|m| m.seq <= seq) {
            fired.extend(stream.markers.pop_front().map(|m| m.event));
            stream.watched = false;
        }
        while stream.actions.front().is_some_and(|(s, _)| *s <= seq) {
            self.flow
                .due
                .extend(stream.actions.pop_front().map(|(_, action)| action));
        }
        let (context, drained) = (stream.context, stream.drained());
        let gone = drained && stream.driver.is_none();
        if let Some(context) = self.objects.contexts.get_mut(context) {
            // Only those that nobody else holds: a guest's event is not for reuse.
            for event in fired {
                if Arc::strong_count(&event) == 1 && context.spare.len() < 64 {
                    context.spare.push(event);
                }
            }
        }
        if worked > 0 {
            self.link.lease.count_completed(worked);
        }
        if drained {
            self.flow.streams.active.retain(|a| *a != id);
        }
        if gone {
            self.flow.streams.table.remove(id);
        }
    }

    /// The driver says that everything in the stream is complete.
    pub(super) fn complete_all(&mut self, id: u64) {
        let tip = self.flow.streams.table.get(id).map_or(0, StreamState::tip);
        self.complete(id, tip);
    }

    /// Gives the first marker of every stream to a thread that waits for it.
    pub(super) fn watch_all(&mut self) {
        for id in &self.flow.streams.active {
            let Some(stream) = self.flow.streams.table.get_mut(*id) else {
                continue;
            };
            if stream.watched {
                continue;
            }
            if let Some(marker) = stream.markers.front() {
                stream.watched = true;
                self.flow
                    .waiters
                    .watch(*id, marker.seq, Arc::clone(&marker.event));
            }
        }
    }

    /// Does what is due, in the order in which it became so. True: there was something.
    pub(super) fn do_due(&mut self) -> bool {
        let any = !self.flow.due.is_empty();
        while let Some(action) = self.flow.due.pop_front() {
            match action {
                Action::Staged(block) => drop(block),
                Action::Piece {
                    op,
                    id,
                    stream,
                    block,
                    last,
                } => {
                    self.flow.pieces_out -= 1;
                    if last {
                        self.print(&Flush::Stream(stream));
                    }
                    self.link.out.piece(op, id, block, last);
                }
                Action::Freed { device, charge } => self.freed(device, charge),
                Action::HostFunc { stream, number } => self.call_guest(stream, number),
                Action::Failed { id, op, code } => self.link.out.status(op, id, code),
                Action::Drain(drain) => {
                    if self.drain_step(drain) {
                        // Data that other streams fetched before this point goes out first.
                        if self.flow.pieces_out > 0 {
                            self.harvest_awaited();
                        }
                        self.flow.due.push_back(Action::Drained(drain));
                    }
                }
                Action::Drained(drain) => self.drained(drain),
            }
        }
        any
    }

    /// Takes every stream's pending actions away: the device is of no more use.
    pub(super) fn abandon_streams(&mut self) -> Vec<Action> {
        let mut left = Vec::new();
        for id in std::mem::take(&mut self.flow.streams.active) {
            let Some(stream) = self.flow.streams.table.get_mut(id) else {
                continue;
            };
            stream.completed = stream.submitted;
            stream.flow = Flow::default();
            stream.markers.clear();
            left.extend(stream.actions.drain(..).map(|(_, action)| action));
        }
        left.extend(self.flow.due.drain(..));
        self.flow.streams.in_flight = 0;
        self.flow.streams.gate.abandon();
        left
    }
}
