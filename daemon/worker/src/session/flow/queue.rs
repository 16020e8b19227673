//! The session's queue: operations in the order in which they were received. Each operation was
//! checked, and its handles were resolved, when it was received. So objects that the guest frees
//! later do not affect earlier operations.

use std::collections::VecDeque;

use vgpu_proto::call::{Need, Op};
use vgpu_proto::cuda::{Ctx, CuResult, Stream as StreamName};
use vgpu_sched::Depth;

use super::Flow;
use crate::driver::Result;
use crate::session::link::Link;
use crate::session::objects::{Objects, Work};

/// An operation in the queue.
#[derive(Debug)]
pub(crate) struct Queued {
    /// Place in the queue, counted from 1.
    pub seq: u64,
    /// Number of the request.
    pub id: u64,
    /// Operation of the request.
    pub op: Op,
    /// The worker's handle of the stream; 0: no stream.
    pub stream: u64,
    /// Bytes that count in the depth of the queue.
    pub bulk: u64,
    /// Bytes of credit that the operation costs.
    pub cost: u64,
    /// Whether credit was taken for the operation.
    pub paid: bool,
    /// `Memory::losses` at the last check of the addresses that the operation uses. While
    /// `Memory::losses` stays the same, the check remains valid.
    pub seen: u64,
    /// The work that the operation does.
    pub work: Work,
}

impl Queued {
    /// Whether the operation needs the lease.
    pub(crate) fn needs_turn(&self) -> bool {
        self.op.need() == Need::Submit
    }
}

/// The queue.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    list: VecDeque<Queued>,
    pushed: u64,
    executed: u64,
    waiting: Depth,
}

impl Queue {
    /// Calls and bytes that wait for the lease.
    pub(crate) fn waiting(&self) -> Depth {
        self.waiting
    }

    /// Place up to which all operations have been executed or parked.
    pub(crate) fn executed(&self) -> u64 {
        self.executed
    }

    /// The place of the last operation received.
    pub(crate) fn last(&self) -> u64 {
        self.pushed
    }

    /// The first waiting operation.
    pub(crate) fn front(&self) -> Option<&Queued> {
        self.list.front()
    }

    /// All waiting operations, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.list.iter()
    }

    /// Takes the first operation. The caller then calls [`Queue::put_back`] or [`Queue::finished`].
    pub(crate) fn take(&mut self) -> Option<Queued> {
        self.list.pop_front()
    }

    /// Puts back an operation that could not be executed yet.
    pub(crate) fn put_back(&mut self, item: Queued) {
        self.list.push_front(item);
    }

    /// Records that an operation taken from the queue has been executed or parked.
    pub(crate) fn finished(&mut self, item: &Queued) {
        if item.needs_turn() {
            self.waiting.calls -= 1;
            self.waiting.bytes -= item.cost;
        }
        self.look();
    }

    fn look(&mut self) {
        self.executed = self.list.front().map_or(self.pushed, |first| first.seq - 1);
    }

    /// Puts parked operations, ordered by their places, back before all other operations, because
    /// the parked operations were received earlier.
    pub(crate) fn resume(&mut self, items: Vec<Queued>) {
        for item in items.into_iter().rev() {
            if item.needs_turn() {
                self.waiting.calls += 1;
                self.waiting.bytes += item.cost;
            }
            self.list.push_front(item);
        }
        self.look();
    }
}

/// The target of an operation that may be recorded.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// The session's queue, for a stream (the worker's handle).
    Stream(u64),
    /// A graph, by the guest's handle.
    Graph(u64),
}

impl Flow {
    /// The target of an operation that may be recorded: a graph if the guest's handle names one,
    /// else a stream.
    pub(crate) fn place(&self, objects: &Objects, ctx: Ctx, stream: StreamName) -> Result<Place> {
        if !objects.graphs.named.is_empty() && objects.graphs.named.contains_key(&stream.0) {
            return Ok(Place::Graph(stream.0));
        }
        self.streams.find(objects, ctx, stream).map(Place::Stream)
    }

    /// The worker's handle of the target's context.
    pub(crate) fn context_at(&self, objects: &Objects, place: Place) -> Result<u64> {
        let context = match place {
            Place::Stream(stream) => self.streams.table.get(stream).map(|s| s.context),
            Place::Graph(graph) => objects.graphs.named.get(&graph).map(|g| g.context),
        };
        context.ok_or(CuResult::INVALID_HANDLE)
    }

    /// Appends an operation to the queue.
    pub(crate) fn enqueue(
        &mut self,
        objects: &Objects,
        (op, id): (Op, u64),
        stream: u64,
        bulk: u64,
        work: Work,
    ) {
        self.queue.pushed += 1;
        let seq = self.queue.pushed;
        if let Some(stream) = self.streams.table.get_mut(stream) {
            stream.queued += 1;
            stream.last_queued = seq;
        }
        if let Work::EventRecord { event, .. } = work
            && let Some(event) = self.events.table.get_mut(event)
        {
            event.queued += 1;
            event.last_queued = seq;
        }
        let cost = work.bytes();
        let item = Queued {
            seq,
            id,
            op,
            stream,
            bulk,
            cost,
            paid: false,
            seen: objects.memory.losses(),
            work,
        };
        if item.needs_turn() {
            self.queue.waiting.calls += 1;
            self.queue.waiting.bytes += cost;
        }
        self.queue.list.push_back(item);
    }

    /// Records that an operation taken from the queue is done, and returns its depth credit to the
    /// guest.
    pub(crate) fn dequeued(&mut self, link: &mut Link, item: &Queued) {
        self.queue.finished(item);
        self.settled(link, item);
    }

    /// Like [`Flow::dequeued`], for an operation that was taken from the queue before (a host
    /// function, say).
    pub(crate) fn settled(&mut self, link: &mut Link, item: &Queued) {
        if let Some(stream) = self.streams.table.get_mut(item.stream) {
            stream.queued -= 1;
        }
        link.out.took(1, item.bulk);
    }
}
