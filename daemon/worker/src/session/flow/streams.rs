//! The session's streams, and what is in flight in each.
//!
//! Every operation given to a stream has a number in it. A *marker* is a driver event recorded
//! behind an operation; when it fires, everything up to its number is complete, and the *actions*
//! that waited for that are due, in order. Markers are recorded only where somebody waits: a
//! synchronising call, data on its way to the guest, a lease to be given back, an idle session.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use vgpu_proto::call::{Op, req};
use vgpu_proto::cuda::{Ctx, CuResult, GUEST_HANDLES, Stream as StreamName};
use vgpu_sched::gate::{self, Estimate, Flow as Counted, Gate};

use crate::driver::{Block, Event, Result, Stream};
use crate::session::objects::{HandleMap, Kind, Objects, Table};

/// `CU_STREAM_NON_BLOCKING`: takes no part in the NULL stream's order.
const NON_BLOCKING: u32 = 1;

/// Whose earlier work.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// A stream's.
    Stream(u64),
    /// A context's.
    Context(u64),
    /// What an event recorded last.
    Event(u64),
    /// The session's.
    Everything,
}

/// What to do when a stream is past an operation.
#[derive(Debug)]
pub(crate) enum Action {
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
pub(crate) type Timed = (gate::Work, Option<Estimate>);

#[derive(Debug)]
pub(super) struct Marker {
    pub seq: u64,
    pub event: Arc<Event>,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct StreamState {
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
    pub flow: Counted,
    /// The number of the last operation submitted.
    pub submitted: u64,
    /// The number of the last that is complete.
    pub completed: u64,
    pub(super) markers: VecDeque<Marker>,
    pub(super) actions: VecDeque<(u64, Action)>,
    /// Somebody waits for operations up to this one (what only frees something does not count).
    awaited: u64,
    /// A thread waits for the first marker.
    pub(super) watched: bool,
}

impl StreamState {
    /// A stream without work.
    pub(crate) fn new(context: u64, name: u64, driver: Stream, blocking: bool) -> StreamState {
        StreamState {
            context,
            name,
            driver: Some(Arc::new(driver)),
            blocking,
            queued: 0,
            last_queued: 0,
            flow: Counted::default(),
            submitted: 0,
            completed: 0,
            markers: VecDeque::new(),
            actions: VecDeque::new(),
            awaited: 0,
            watched: false,
        }
    }

    /// Is everything that was submitted complete?
    pub(crate) fn drained(&self) -> bool {
        self.submitted == self.completed
    }

    /// Operations that were submitted and are not complete.
    pub(crate) fn in_flight(&self) -> u64 {
        self.submitted - self.completed
    }

    /// Number of the last operation submitted.
    pub(crate) fn tip(&self) -> u64 {
        self.submitted
    }

    /// Is the operation of this number complete?
    pub(crate) fn past(&self, seq: u64) -> bool {
        self.completed >= seq
    }

    /// Operations behind the last marker.
    pub(crate) fn unmarked(&self) -> u64 {
        self.submitted
            - self
                .markers
                .back()
                .map_or(self.completed, |m| m.seq.max(self.completed))
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.awaited > self.completed
    }

    pub(crate) fn add_action(&mut self, seq: u64, action: Action) {
        if !matches!(action, Action::Staged(_) | Action::Freed { .. }) {
            self.awaited = self.awaited.max(seq);
        }
        let at = self.actions.partition_point(|(s, _)| *s <= seq);
        self.actions.insert(at, (seq, action));
    }
}

/// All streams of the session.
#[derive(Debug)]
pub(crate) struct Streams {
    /// By our own handle.
    pub table: Table<StreamState>,
    /// The guest's handles.
    pub names: HandleMap<u64>,
    /// Those with work in flight.
    pub(super) active: Vec<u64>,
    pub(super) in_flight: u64,
    /// How much may be unfinished.
    pub gate: Gate,
    /// When the first operation of the queue may be let in though nothing happens.
    pub ask_again: Option<u64>,
    /// What waits goes in only after the slice.
    pub slice_full: bool,
    /// What streams have passed and what is to be done about it, in order.
    pub due: VecDeque<Action>,
}

impl Streams {
    /// None yet.
    pub(crate) fn new() -> Streams {
        Streams {
            table: Table::new(Kind::Stream),
            names: HandleMap::default(),
            active: Vec::new(),
            in_flight: 0,
            gate: Gate::new(gate::Config::default()),
            ask_again: None,
            slice_full: false,
            due: VecDeque::new(),
        }
    }

    /// Operations given to the device and not known to be complete.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// The stream that a guest names.
    pub(crate) fn find(&self, objects: &Objects, ctx: Ctx, stream: StreamName) -> Result<u64> {
        if stream == StreamName::NULL {
            return objects.context(ctx).map(|context| context.null);
        }
        self.names
            .get(&stream.0)
            .copied()
            .ok_or(CuResult::INVALID_HANDLE)
    }

    /// A stream of this context, as the driver has it.
    pub(crate) fn in_context(
        &self,
        objects: &Objects,
        ctx: Ctx,
        stream: u64,
    ) -> Result<Weak<Stream>> {
        objects.context(ctx)?;
        match self.table.get(stream) {
            Some(state) if state.context == ctx.0 => Ok(state
                .driver
                .as_ref()
                .map(Arc::downgrade)
                .unwrap_or_default()),
            _ => Err(CuResult::INVALID_HANDLE),
        }
    }

    /// `cuStreamCreateWithPriority`.
    pub(crate) fn create(&mut self, objects: &Objects, r: &req::StreamCreate) -> Result<()> {
        let context = objects.context(r.ctx)?;
        if !GUEST_HANDLES.contains(&r.stream.0)
            || self.names.contains_key(&r.stream.0)
            || objects.graphs.knows(r.stream.0)
        {
            return Err(CuResult::INVALID_HANDLE);
        }
        if r.flags & !NON_BLOCKING != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let driver = Stream::create(&context.driver, r.flags, r.priority)?;
        let blocking = r.flags & NON_BLOCKING == 0;
        let state = StreamState::new(r.ctx.0, r.stream.0, driver, blocking);
        let id = self.table.insert(state).ok_or(CuResult::OUT_OF_MEMORY)?;
        self.names.insert(r.stream.0, id);
        Ok(())
    }

    /// The driver's stream.
    pub(crate) fn driver(&self, stream: u64) -> Option<Arc<Stream>> {
        self.table.get(stream)?.driver.as_ref().map(Arc::clone)
    }

    /// An operation was given to the stream.
    pub(crate) fn submitted(&mut self, id: u64) -> u64 {
        let Some(stream) = self.table.get_mut(id) else {
            return 0;
        };
        if stream.drained() {
            self.active.push(id);
        }
        stream.submitted += 1;
        self.in_flight += 1;
        stream.submitted
    }

    /// As [`Streams::submitted`], for an operation that takes GPU time.
    pub(crate) fn submitted_work(&mut self, now: u64, id: u64, (work, estimate): Timed) {
        let number = self.submitted(id);
        if let Some(stream) = self.table.get_mut(id) {
            let flow = &mut stream.flow;
            self.gate.submitted(now, flow, number, work, estimate);
        }
    }

    /// As [`Streams::submitted`], for a wait for a value in memory.
    pub(crate) fn submitted_wait(&mut self, now: u64, id: u64) {
        let number = self.submitted(id);
        let Streams { table, gate, .. } = self;
        if let Some(stream) = table.get_mut(id) {
            gate.submitted_wait(now, &mut stream.flow, number);
        }
    }

    /// Does `action` when the stream is past its last operation, or at once if it is.
    pub(crate) fn after_tip(&mut self, id: u64, action: Action) {
        let tip = self.table.get(id).map_or(0, StreamState::tip);
        self.after(id, tip, action);
    }

    /// Does `action` when the stream is past operation `seq`, or at once if it is.
    pub(crate) fn after(&mut self, id: u64, seq: u64, action: Action) {
        match self.table.get_mut(id) {
            Some(stream) if !stream.past(seq) => stream.add_action(seq, action),
            _ => self.due.push_back(action),
        }
    }

    /// Does work given to `stream` come after what `other` was given before it?
    pub(crate) fn comes_after(&self, stream: u64, other: u64) -> bool {
        if stream == other {
            return true;
        }
        let (Some(s), Some(o)) = (self.table.get(stream), self.table.get(other)) else {
            return false;
        };
        s.context == o.context && (s.name == 0 && o.blocking || s.blocking && o.name == 0)
    }

    /// Is this a NULL stream with work in blocking streams beside it?
    pub(crate) fn joins_others(&self, stream: u64) -> bool {
        let Some(state) = self.table.get(stream) else {
            return false;
        };
        state.name == 0
            && self.active.iter().any(|id| {
                let other = self.table.get(*id);
                other.is_some_and(|s| s.context == state.context && s.blocking)
            })
    }

    /// Does anybody wait for work in flight?
    pub(crate) fn awaited(&self) -> bool {
        self.active
            .iter()
            .any(|id| self.table.get(*id).is_some_and(|s| !s.actions.is_empty()))
    }

    /// Takes every stream's pending actions away: the device is of no more use.
    pub(crate) fn abandon(&mut self) -> Vec<Action> {
        let mut left = Vec::new();
        for id in std::mem::take(&mut self.active) {
            let Some(stream) = self.table.get_mut(id) else {
                continue;
            };
            stream.completed = stream.submitted;
            stream.flow = Counted::default();
            stream.markers.clear();
            left.extend(stream.actions.drain(..).map(|(_, action)| action));
        }
        left.extend(self.due.drain(..));
        self.in_flight = 0;
        self.gate.abandon();
        left
    }
}
