//! The session's streams, and the operations in flight in each.
//!
//! Every operation submitted to a stream has a number in the stream. A *marker* is a driver event
//! recorded after an operation; when the marker fires, all operations up to this number are
//! complete. Then the *actions* that wait for these operations are due, in order. Markers are
//! recorded only where completion matters: for a synchronising call, data for the guest, a lease to
//! return, an idle session.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};

use vgpu_cuda_abi::numbers::stream_flag::NON_BLOCKING;
use vgpu_proto::call::{Op, req};
use vgpu_proto::cuda::{Ctx, CuResult, GUEST_HANDLES, HandleMap, Stream as StreamName};
use vgpu_sched::gate::{self, Estimate, Flow as Counted, Gate};

use crate::driver::{Block, Event, Result, Stream};
use crate::session::objects::{Kind, Objects, Table};

/// The work that a drain waits for.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Target {
    /// All work of a stream.
    Stream(u64),
    /// All work of a context.
    Context(u64),
    /// The work before the last record of an event.
    Event(u64),
    /// All work of the session.
    Everything,
}

/// The action to perform when a stream has completed an operation.
#[derive(Debug)]
pub(crate) enum Action {
    /// Free the staging block: its data has been copied to the device.
    Staged(Block),
    /// Send a piece of data to the guest.
    Piece {
        /// Operation of the request.
        op: Op,
        /// Number of the request.
        id: u64,
        /// The stream that copied the data.
        stream: u64,
        /// The staging block with the data.
        block: Block,
        /// Whether this is the last piece.
        last: bool,
    },
    /// Report an error of a copy after the pieces that were submitted before.
    Failed {
        /// Number of the request.
        id: u64,
        /// Operation of the request.
        op: Op,
        /// The error of the copy.
        code: CuResult,
    },
    /// Stream-ordered memory has been freed: return its bytes to the ledger.
    Freed {
        /// Device of the memory.
        device: usize,
        /// Bytes that the VM's ledger gets back.
        charge: u64,
    },
    /// Tell the guest to run a host function, which the stream has reached.
    HostFunc {
        /// The stream.
        stream: u64,
        /// The guest's number of the function.
        number: u64,
    },
    /// Count one step of the drain with this number as done.
    Drain(u64),
    /// Perform the action of the drain with this number: its last step is done.
    Drained(u64),
}

/// An operation that takes GPU time, with the estimate of the time.
pub(crate) type Timed = (gate::Work, Option<Estimate>);

#[derive(Debug)]
pub(super) struct Marker {
    pub seq: u64,
    pub event: Arc<Event>,
}

/// One stream.
#[derive(Debug)]
pub(crate) struct StreamState {
    /// Our handle of the context.
    pub context: u64,
    /// The guest's handle; 0 for a NULL stream.
    pub name: u64,
    /// The driver's stream; `None` after the guest destroyed the stream while work was in flight.
    pub driver: Option<Arc<Stream>>,
    /// Whether the stream and the NULL stream wait for each other.
    pub blocking: bool,
    /// Number of the stream's operations in the queue.
    pub queued: u64,
    /// Place in the queue of the last of these operations.
    pub last_queued: u64,
    /// The unfinished work, as the gate counts it.
    pub flow: Counted,
    /// Number of the last submitted operation.
    pub submitted: u64,
    /// Number of the last completed operation.
    pub completed: u64,
    pub(super) markers: VecDeque<Marker>,
    pub(super) actions: VecDeque<(u64, Action)>,
    /// Number up to which operations are awaited. (Actions that only free memory do not count.)
    awaited: u64,
    /// Whether a thread waits for the first marker.
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

    /// Whether all submitted operations are complete.
    pub(crate) fn drained(&self) -> bool {
        self.submitted == self.completed
    }

    /// Number of operations that are submitted and not complete.
    pub(crate) fn in_flight(&self) -> u64 {
        self.submitted - self.completed
    }

    /// Number of the last submitted operation.
    pub(crate) fn tip(&self) -> u64 {
        self.submitted
    }

    /// Whether the operation with this number is complete.
    pub(crate) fn past(&self, seq: u64) -> bool {
        self.completed >= seq
    }

    /// Number of operations after the last marker.
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
    /// The streams, by our handle.
    pub table: Table<StreamState>,
    /// Our handle for each handle of the guest.
    pub names: HandleMap<u64>,
    /// Streams with operations in flight.
    pub(super) active: Vec<u64>,
    pub(super) in_flight: u64,
    /// Limits the unfinished work.
    pub gate: Gate,
    /// Time in ns at which the first operation of the queue may be submitted even if no event
    /// occurs.
    pub ask_again: Option<u64>,
    /// Whether the first operation may be submitted only after the present slice.
    pub slice_full: bool,
    /// Actions that are due, in order.
    pub due: VecDeque<Action>,
}

impl Streams {
    /// No streams.
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

    /// Number of operations that are submitted and not known to be complete.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// Our handle of the stream that the guest names.
    pub(crate) fn find(&self, objects: &Objects, ctx: Ctx, stream: StreamName) -> Result<u64> {
        if stream == StreamName::NULL {
            return objects.context(ctx).map(|context| context.null);
        }
        self.names
            .get(&stream.0)
            .copied()
            .ok_or(CuResult::INVALID_HANDLE)
    }

    /// Whether the guest has a stream of this name.
    pub(crate) fn named(&self, stream: StreamName) -> bool {
        self.names.contains_key(&stream.0)
    }

    /// The driver's stream of our handle `stream`, which must belong to this context.
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

    /// The driver's stream; `None` if the guest has destroyed the stream.
    pub(crate) fn driver(&self, stream: u64) -> Option<Arc<Stream>> {
        self.table.get(stream)?.driver.as_ref().map(Arc::clone)
    }

    /// Records the submission of an operation to the stream. Returns its number in the stream.
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

    /// Like [`Streams::submitted`], for an operation that takes GPU time.
    pub(crate) fn submitted_work(&mut self, now: u64, id: u64, (work, estimate): Timed) {
        let number = self.submitted(id);
        if let Some(stream) = self.table.get_mut(id) {
            let flow = &mut stream.flow;
            self.gate.submitted(now, flow, number, work, estimate);
        }
    }

    /// Like [`Streams::submitted`], for a wait for a value in memory.
    pub(crate) fn submitted_wait(&mut self, now: u64, id: u64) {
        let number = self.submitted(id);
        let Streams { table, gate, .. } = self;
        if let Some(stream) = table.get_mut(id) {
            gate.submitted_wait(now, &mut stream.flow, number);
        }
    }

    /// Performs `action` when all submitted operations of the stream are complete.
    pub(crate) fn after_tip(&mut self, id: u64, action: Action) {
        let tip = self.table.get(id).map_or(0, StreamState::tip);
        self.after(id, tip, action);
    }

    /// Performs `action` when the stream's operation `seq` is complete.
    pub(crate) fn after(&mut self, id: u64, seq: u64, action: Action) {
        match self.table.get_mut(id) {
            Some(stream) if !stream.past(seq) => stream.add_action(seq, action),
            _ => self.due.push_back(action),
        }
    }

    /// Whether later work of `stream` waits for earlier work of `other`.
    pub(crate) fn comes_after(&self, stream: u64, other: u64) -> bool {
        if stream == other {
            return true;
        }
        let (Some(s), Some(o)) = (self.table.get(stream), self.table.get(other)) else {
            return false;
        };
        s.context == o.context && (s.name == 0 && o.blocking || s.blocking && o.name == 0)
    }

    /// Whether this is a NULL stream whose context has work in blocking streams.
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

    /// Whether any action waits for work in flight.
    pub(crate) fn awaited(&self) -> bool {
        self.active
            .iter()
            .any(|id| self.table.get(*id).is_some_and(|s| !s.actions.is_empty()))
    }

    /// After a device fault: removes and returns the pending actions of all streams.
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
