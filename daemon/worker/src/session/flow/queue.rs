//! The session's queue: operations that keep their order, checked and with every handle resolved
//! when they were received, so that what a guest frees afterwards does no harm to what came before.

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
    /// Its place, from 1.
    pub seq: u64,
    /// The request.
    pub id: u64,
    /// Its operation.
    pub op: Op,
    /// In which stream; 0: none.
    pub stream: u64,
    /// Bytes that it counts for in the depth of the queue.
    pub bulk: u64,
    /// Bytes that it counts for in credit.
    pub cost: u64,
    /// Credit has been taken for it.
    pub paid: bool,
    /// `Memory::losses` when its memory was last looked at.
    pub seen: u64,
    /// What to do.
    pub work: Work,
}

impl Queued {
    /// Does it need a turn?
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
    /// What waits for a turn.
    pub(crate) fn waiting(&self) -> Depth {
        self.waiting
    }

    /// The place up to which everything has been executed or parked.
    pub(crate) fn executed(&self) -> u64 {
        self.executed
    }

    /// The place of the last operation received.
    pub(crate) fn last(&self) -> u64 {
        self.pushed
    }

    /// The first that waits.
    pub(crate) fn front(&self) -> Option<&Queued> {
        self.list.front()
    }

    /// All that waits, in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Queued> {
        self.list.iter()
    }

    /// Takes the first out; to be followed by [`Queue::put_back`] or [`Queue::finished`].
    pub(crate) fn take(&mut self) -> Option<Queued> {
        self.list.pop_front()
    }

    /// It could not be done yet.
    pub(crate) fn put_back(&mut self, item: Queued) {
        self.list.push_front(item);
    }

    /// It has been done, or parked: either way it waits no more.
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

    /// Puts operations that were parked, in order of their places, back before everything else:
    /// they came earlier than all that is left.
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

/// Where an operation that may be recorded goes.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Place {
    /// Into the queue for a stream.
    Stream(u64),
    /// Into a graph, by the guest's name of it.
    Graph(u64),
}

impl Flow {
    /// Where an operation that may be recorded goes.
    pub(crate) fn place(&self, objects: &Objects, ctx: Ctx, stream: StreamName) -> Result<Place> {
        if !objects.graphs.named.is_empty() && objects.graphs.named.contains_key(&stream.0) {
            return Ok(Place::Graph(stream.0));
        }
        self.streams.find(objects, ctx, stream).map(Place::Stream)
    }

    /// The context of that place.
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

    /// Counts an operation as done: it is off the queue.
    pub(crate) fn dequeued(&mut self, link: &mut Link, item: &Queued) {
        self.queue.finished(item);
        self.settled(link, item);
    }

    /// As [`Flow::dequeued`], for one that was taken off the queue some time ago.
    pub(crate) fn settled(&mut self, link: &mut Link, item: &Queued) {
        if let Some(stream) = self.streams.table.get_mut(item.stream) {
            stream.queued -= 1;
        }
        link.out.took(1, item.bulk);
    }
}
