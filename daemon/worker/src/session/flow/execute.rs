//! Execution of the queue: in order, under the lease, within credit and window.

use std::sync::Arc;

use vgpu_proto::call::Class;
use vgpu_proto::cuda::CuResult;
use vgpu_sched::gate::lease::{Offer, Refused, head_cost};
use vgpu_sched::gate::{Estimate, MAX_IN_FLIGHT, Waiting};
use vgpu_sched::{Depth, HeadCost};

use super::Flow;
use super::drains::After;
use super::queue::Queued;
use super::streams::{Action, Streams, Target, Timed};
use crate::driver::{Event, Result, Stream, wait_word, write_word};
use crate::session::link::{Lease, Link, now_ns};
use crate::session::objects::{Bulk, FetchWork, Memory, Objects, Region, Staging, Work, run_work};
use vgpu_cuda_abi::numbers::event_flag::BLOCKING_SYNC;

/// Maximum number of data pieces for the guest that are in flight or wait for the socket.
const PIECES: usize = 4;
/// Maximum number of bytes that wait for the guest to read them. Beyond this, no more data is
/// fetched.
const UNREAD_LIMIT: usize = 1 << 20;

/// Why the execution of the queue stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Stop {
    /// No operation is left.
    Empty,
    /// There is no lease or no credit.
    Turn,
    /// The window of unfinished work is full.
    Window,
    /// No staging block is free, or the guest does not read its data.
    Staging,
}

enum Step {
    Done,
    /// The operation is not submitted, or only in part, because no staging block is free. It stays
    /// first in the queue.
    Blocked(Work),
    /// A piece of the operation is submitted. The rest stays first in the queue.
    Partly(Work),
    /// The operation is a host function with this number. No later operation of the stream may run
    /// before the guest has run the function.
    Held(u64),
}

/// Number of operations between two reads of the clock.
const CLOCK_EVERY: u32 = 16;

/// The time in ns, at most a few operations old.
struct Clock {
    now: u64,
    used: u32,
}

impl Clock {
    fn new() -> Clock {
        Clock {
            now: now_ns(),
            used: 0,
        }
    }

    fn advance(&mut self) {
        self.used += 1;
        if self.used == CLOCK_EVERY {
            *self = Clock::new();
        }
    }
}

impl Flow {
    /// Executes as many operations of the queue as allowed now. Returns why the execution stopped.
    pub(crate) fn run_queue(&mut self, objects: &mut Objects, link: &mut Link) -> Stop {
        let mut clock = Clock::new();
        let mut awaited = self.somebody_waits(link);
        self.streams.ask_again = None;
        self.streams.slice_full = false;
        loop {
            let Some(first) = self.queue.front() else {
                return Stop::Empty;
            };
            if self.parking.must_park(&self.streams, first) {
                if let Some(item) = self.queue.take() {
                    self.park(item);
                    self.arm_drains(objects, link);
                }
                continue;
            }
            if is_full(&self.streams, first) {
                return Stop::Window;
            }
            let mut estimate = None;
            if first.needs_turn() {
                if matches!(first.work, Work::DtoH(_)) && self.starved(link) {
                    return Stop::Staging;
                }
                let depth = self.queue.waiting();
                match admit(&mut self.streams, &mut link.lease, clock.now, first, depth) {
                    Ok(known) => estimate = known,
                    Err(stop) => return stop,
                }
                clock.advance();
                if clock.used == 0 {
                    awaited = self.somebody_waits(link);
                }
            }
            let Some(mut item) = self.queue.take() else {
                return Stop::Empty;
            };
            if !item.paid
                && let Work::DtoH(fetch) = &item.work
            {
                link.lease.count_out(fetch.len);
            }
            item.paid = true;
            let step = self.execute(objects, link, &mut item, (clock.now, estimate));
            if let Some(stop) = self.stepped(objects, link, (item, step), awaited) {
                return stop;
            }
            if link.poison.is_some() {
                return Stop::Empty;
            }
        }
    }

    /// Handles the result of one operation, which was taken off the queue. Returns `Some` if the
    /// execution stops.
    fn stepped(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (mut item, step): (Queued, Step),
        awaited: bool,
    ) -> Option<Stop> {
        let stream = item.stream;
        match step {
            Step::Done => {
                self.dequeued(link, &item);
                self.arm_drains(objects, link);
                if self.streams.marker_due(stream, awaited)
                    && let Err(code) = self.streams.mark(objects, stream)
                {
                    self.unmarkable(objects, link, code);
                }
            }
            Step::Held(number) => {
                self.hold(item, number);
                self.arm_drains(objects, link);
            }
            Step::Partly(work) => {
                item.work = work;
                self.queue.put_back(item);
            }
            Step::Blocked(work) => {
                item.work = work;
                self.queue.put_back(item);
                return Some(Stop::Staging);
            }
        }
        None
    }

    /// Whether another session waits for the lease, or a request waits for work.
    fn somebody_waits(&self, link: &Link) -> bool {
        self.drains.len() > 0 || link.lease.wanted()
    }

    /// Expected cost of the first operation of the queue.
    pub(crate) fn head(&self) -> HeadCost {
        self.queue.front().map_or_else(HeadCost::default, |first| {
            head_cost(&self.streams.gate, first.work.timed(), first.cost)
        })
    }

    /// Whether so much data for the guest is in flight or unread that no more may be fetched.
    fn starved(&self, link: &Link) -> bool {
        self.pieces_out >= PIECES || link.out.queued() > UNREAD_LIMIT
    }

    /// Relieves a stall, when nothing in flight has completed for a while: allows the first
    /// operation of an idle stream and all operations before it. That includes operations that take
    /// no GPU time: the program may wait for an event in an idle stream before it sends the
    /// operation for which a kernel waits.
    pub(crate) fn relieve(&mut self, link: &Link) {
        let taken = link.out.taken();
        let calls = link.received.calls - taken.calls;
        let bytes = link.received.bytes - taken.bytes;
        // If half of the guest's depth credit is used up, the guest may be unable to send the
        // operation for which a kernel waits.
        let depth = link.out.depth();
        let backed_up = calls >= depth.calls / 2 || bytes >= depth.bytes / 2;
        let Streams { table, gate, .. } = &mut self.streams;
        // Usually no stream is idle with queued work, because a long kernel runs: then the queue is
        // not searched.
        let any = backed_up || table.iter().any(|(_, s)| s.queued > 0 && s.drained());
        let waiting = self.queue.iter().take(if any { usize::MAX } else { 0 });
        let waiting = waiting.map(|item| Waiting {
            place: item.seq,
            idle: table.get(item.stream).is_some_and(|s| s.drained()),
        });
        if let Some(place) = gate.relieve(now_ns(), waiting, backed_up) {
            tracing::debug!("nothing moves: operations up to {place} are let in");
        }
    }

    fn execute(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        item: &mut Queued,
        (now, estimate): (u64, Option<Estimate>),
    ) -> Step {
        let stream = item.stream;
        // A placeholder. The branches that leave the operation in the queue put `work` back.
        let work = std::mem::replace(&mut item.work, Work::StreamDestroy);
        let timed = work.timed().map(|work| (work, estimate));
        if let Work::EventDestroy { event } = work {
            self.events.table.remove(event);
            return Step::Done;
        }
        let Some(driver) = self.streams.driver(stream) else {
            self.failed(objects, link, item, CuResult::INVALID_HANDLE);
            self.abandon_work(objects, work);
            return Step::Done;
        };
        if let Err(code) = look_again(&objects.memory, item, &work) {
            self.lost(objects, link, item, &work, code);
            self.abandon_work(objects, work);
            return Step::Done;
        }
        self.mark_before(objects, link, stream);
        let result = match work {
            Work::Launch(_) => {
                link.printf.launched();
                run_work(&driver, &work)
            }
            Work::DtoD { .. } | Work::Rows { .. } | Work::Box { .. } | Work::Fill(_) => {
                run_work(&driver, &work)
            }
            Work::Graph(graph) => {
                link.printf.launched();
                let result = graph.run(&driver);
                objects.graph_done(graph);
                result
            }
            Work::WriteWord(word) => write_word(&driver, word),
            Work::StreamWait { event, flags } => self.wait_event(&driver, event, flags),
            work => return self.perform(objects, link, item, &driver, work, (now, timed)),
        };
        match result {
            Ok(()) => self.count(link, stream, (now, timed)),
            Err(code) => self.failed(objects, link, item, code),
        }
        Step::Done
    }

    /// Executes an operation that does its own accounting of submission and completion.
    fn perform(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        item: &Queued,
        driver: &Arc<Stream>,
        work: Work,
        counted: (u64, Option<Timed>),
    ) -> Step {
        let stream = item.stream;
        let done = match work {
            Work::HtoD { to, data } => {
                match self.send(objects, link, (stream, driver), &to, data, counted) {
                    Ok(None) => Ok(()),
                    Ok(Some(data)) => return Step::Blocked(Work::HtoD { to, data }),
                    Err(code) => Err(code),
                }
            }
            Work::DtoH(fetch) => return self.fetch(objects, link, item, driver, fetch, counted),
            Work::WaitWord(word) => {
                wait_word(driver, word).map(|()| self.streams.submitted_wait(counted.0, stream))
            }
            // A helper thread is building a graph that may use this memory: the memory is released
            // after the drain of its stream, like memory that was not allocated in a stream.
            Work::Free { memory, charged } if objects.graphs.building > 0 => {
                let after = After::Release(objects.free_waiting(memory, charged));
                self.drain(objects, link, Target::Stream(stream), after);
                Ok(())
            }
            Work::Free {
                memory,
                charged: (device, charge),
            } => {
                objects.memory.lose([memory.address()]);
                let freed = memory.free_in(driver);
                self.streams.submitted(stream);
                let action = Action::Freed { device, charge };
                self.streams.after_tip(stream, action);
                freed
            }
            Work::HostFunc(number) => match self.arrive(objects, link, (stream, number)) {
                Ok(()) => return Step::Held(number),
                Err(code) => {
                    self.unmarkable(objects, link, code);
                    Ok(())
                }
            },
            Work::StreamDestroy => {
                self.destroy_stream(objects, link, stream);
                Ok(())
            }
            Work::EventRecord { event, flags } => self.record_event(stream, driver, event, flags),
            // Conditional nodes exist only in graphs; the other kinds of work are executed
            // elsewhere.
            _ => Err(CuResult::INVALID_VALUE),
        };
        if let Err(code) = done {
            self.failed(objects, link, item, code);
        }
        Step::Done
    }

    /// Fails an operation whose object no longer exists.
    fn lost(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        item: &Queued,
        work: &Work,
        code: CuResult,
    ) {
        let (op, id) = (item.op, item.id);
        match work {
            // The error is reported after the pieces that are in flight.
            Work::DtoH(_) => self
                .streams
                .after_tip(item.stream, Action::Failed { id, op, code }),
            _ => self.failed(objects, link, item, code),
        }
    }

    fn count(&mut self, link: &mut Link, stream: u64, (now, timed): (u64, Option<Timed>)) {
        match timed {
            Some(timed) => {
                self.streams.submitted_work(now, stream, timed);
                link.lease.count_submitted(1);
            }
            None => _ = self.streams.submitted(stream),
        }
    }

    fn failed(&mut self, objects: &mut Objects, link: &mut Link, item: &Queued, code: CuResult) {
        match item.op.class() {
            Class::Sync => self.refuse(objects, link, (item.op, item.id), code),
            Class::Async => self.trouble(objects, link, item.id, code),
        }
    }

    /// Copies data to the device. Returns the data if no staging block is free.
    fn send(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (stream, driver): (u64, &Stream),
        to: &Region,
        data: Bulk,
        counted: (u64, Option<Timed>),
    ) -> Result<Option<Bulk>> {
        let block = match data {
            Bulk::None => return Ok(None),
            Bulk::Staged(block) => block,
            Bulk::Heap(bytes) => match objects.staging.take(bytes.len())? {
                Some(mut block) => {
                    block.bytes_mut().copy_from_slice(&bytes);
                    block
                }
                None => return Ok(Some(Bulk::Heap(bytes))),
            },
        };
        to.fill(driver, &block)?;
        let large = Staging::is_large(block.len());
        self.count(link, stream, counted);
        self.streams.after_tip(stream, Action::Staged(block));
        // A large block should be free again while it is still in the processor's cache, so its
        // completion is checked now.
        if large {
            match self.streams.mark(objects, stream) {
                Ok(()) => _ = self.harvest(objects, link, stream),
                Err(code) => self.unmarkable(objects, link, code),
            }
        }
        Ok(None)
    }

    /// Copies the next piece of data from the device. The piece is sent to the guest when the copy
    /// is complete.
    fn fetch(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        item: &Queued,
        driver: &Stream,
        mut fetch: FetchWork,
        counted: (u64, Option<Timed>),
    ) -> Step {
        let (op, id, stream) = (item.op, item.id, item.stream);
        let piece = fetch.piece();
        if self.starved(link) {
            return Step::Blocked(Work::DtoH(fetch));
        }
        let fetched = match objects.staging.take(piece as usize) {
            Ok(None) => return Step::Blocked(Work::DtoH(fetch)),
            Ok(Some(block)) => fetch.next().read(driver, &block).map(|()| block),
            Err(code) => Err(code),
        };
        let len = fetch.len;
        let marked = fetched.and_then(|block| {
            self.count(link, stream, counted);
            fetch.done += piece;
            self.pieces_out += 1;
            self.streams.after_tip(
                stream,
                Action::Piece {
                    op,
                    id,
                    stream,
                    block,
                    last: fetch.done == len,
                },
            );
            self.streams.mark(objects, stream)
        });
        if marked.is_ok() {
            // If the copy is complete already, the piece is sent while it is in the processor's
            // cache.
            self.harvest(objects, link, stream);
        }
        let done = fetch.done;
        match marked.and(link.poison.map_or(Ok(()), Err)) {
            Ok(()) if done < len => return Step::Partly(Work::DtoH(fetch)),
            Ok(()) => {}
            Err(code) if code.is_sticky() => {
                self.device_failed(objects, link, code, "returned by a copy to the host");
                // The answer to the last piece, if that was submitted, already has the code.
                if done < len {
                    link.out.status(item.op, id, code);
                }
            }
            Err(code) if done < len => {
                self.streams
                    .after_tip(stream, Action::Failed { id, op, code });
            }
            Err(_) => {}
        }
        Step::Done
    }

    fn destroy_stream(&mut self, objects: &mut Objects, link: &mut Link, id: u64) {
        // Requests that wait for the stream need a marker, and none can be recorded after the
        // destruction.
        if let Err(code) = self.streams.mark(objects, id) {
            return self.unmarkable(objects, link, code);
        }
        let Some(stream) = self.streams.table.get_mut(id) else {
            return;
        };
        stream.driver = None;
        if stream.drained() {
            self.streams.table.remove(id);
        }
    }

    fn wait_event(&mut self, stream: &Stream, event: u64, flags: u32) -> Result<()> {
        let Some(event) = self.events.table.get(event) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        stream.wait(&event.driver, flags)
    }

    fn record_event(&mut self, id: u64, stream: &Stream, event: u64, flags: u32) -> Result<()> {
        let Some(state) = self.events.table.get_mut(event) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        state.queued -= 1;
        // Waiters for the earlier record keep the driver's event of that record.
        if Arc::strong_count(&state.driver) > 1 {
            let fresh = Event::create(stream.context(), state.flags | BLOCKING_SYNC)?;
            state.driver = Arc::new(fresh);
        }
        state.driver.record(stream, flags)?;
        let seq = self.streams.submitted(id);
        if let Some(state) = self.events.table.get_mut(event) {
            state.recorded = Some((id, seq));
        }
        Ok(())
    }

    /// Drops an operation that will not run. Its objects are released on a helper thread, where
    /// waiting is allowed.
    pub(crate) fn abandon_work(&mut self, objects: &mut Objects, work: Work) {
        match work {
            Work::Free { memory, charged } => {
                let release = objects.free_waiting(memory, charged);
                self.release(objects, release);
            }
            Work::Graph(graph) => objects.graph_done(graph),
            _ => {}
        }
    }

    /// Fails all operations in the queue.
    pub(crate) fn abandon_queue(&mut self, objects: &mut Objects, link: &mut Link, code: CuResult) {
        while let Some(item) = self.queue.take() {
            if item.op.class() == Class::Sync {
                link.out.status(item.op, item.id, code);
            }
            self.dequeued(link, &item);
            self.abandon_work(objects, item.work);
        }
        link.lease.withdraw();
    }
}

/// Checks again that the memory which an operation reads or writes still exists. Memory that was
/// freed after the operation was received still counts as existing until it is released to the
/// driver.
fn look_again(memory: &Memory, item: &mut Queued, work: &Work) -> Result<()> {
    let losses = memory.losses();
    if item.seen != losses {
        work.look(&|at, len| memory.still_contains(at, len))?;
        item.seen = losses;
    }
    Ok(())
}

/// Whether so many operations of the stream, waits and events included, are unfinished that the
/// driver could block this thread.
fn is_full(streams: &Streams, first: &Queued) -> bool {
    let adds = !matches!(first.work, Work::StreamDestroy | Work::EventDestroy { .. });
    let stream = streams.table.get(first.stream);
    adds && stream.is_some_and(|stream| stream.in_flight() >= MAX_IN_FLIGHT)
}

/// Asks the lease whether the first operation of the queue may be submitted. Returns the estimate
/// of its duration, if known. `depth`: all waiting calls and bytes that need the lease.
///
/// # Errors
/// The reason for which the execution of the queue stops.
fn admit(
    streams: &mut Streams,
    lease: &mut Lease,
    now: u64,
    first: &Queued,
    depth: Depth,
) -> std::result::Result<Option<Estimate>, Stop> {
    let Streams { table, gate, .. } = streams;
    let stream = table.get(first.stream);
    let offer = Offer {
        place: first.seq,
        work: stream.and_then(|stream| Some((first.work.timed()?, &stream.flow))),
        bytes: first.cost,
        paid: first.paid,
        depth,
    };
    lease
        .admit(gate, now, &offer)
        .map_err(|refused| match refused {
            Refused::Turn => Stop::Turn,
            Refused::Gate(wait) => {
                streams.ask_again = wait.until_ns;
                streams.slice_full = wait.ends_slice();
                Stop::Window
            }
        })
}
