//! Running the queue: in order, under the lease, within credit and window.

use std::sync::Arc;

use vgpu_proto::call::Class;
use vgpu_proto::cuda::CuResult;
use vgpu_sched::HeadCost;
use vgpu_sched::gate::lease::{Offer, Refused, head_cost};
use vgpu_sched::gate::{Estimate, MAX_IN_FLIGHT, Waiting};

use super::Session;
use super::Staging;
use super::link::now_ns;
use super::queue::{FetchWork, FillWork, LaunchWork, Queued, Region, Shape, Work};
use super::staging::Bulk;
use super::streams::{Action, Streams, Timed};
use crate::driver::{
    BLOCKING_SYNC, Block, Event, Launch, Result, Rows, Stream, copy_atoh, copy_box, copy_dtod,
    copy_dtoh, copy_htoa, copy_htod, copy_rows_dtod, copy_rows_dtoh, copy_rows_htod, fill, fill_2d,
    wait_word, write_word,
};

/// Pieces of data for the guest that may be in flight or wait for its socket.
const PIECES: usize = 4;
/// Bytes that wait for the guest to read before no more data is fetched for it.
const UNREAD_LIMIT: usize = 1 << 20;

/// What stopped the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stop {
    /// Nothing is left.
    Empty,
    /// No lease, or no credit.
    Turn,
    /// Too much is unfinished.
    Window,
    /// No staging block is free, or the guest does not read.
    Staging,
}

enum Step {
    Done,
    /// The operation is not (wholly) submitted; it stays first, and waits for staging.
    Blocked(Work),
    /// A piece of it is submitted; the rest stays first.
    Partly(Work),
    /// A host function of this number: nothing more of its stream before that has come back.
    Held(u64),
}

/// Operations submitted between two looks at the clock.
const CLOCK_EVERY: u32 = 16;

/// The time, as of a few operations ago.
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

impl Session {
    /// Does as much of the queue as may be done now. Tells why it stopped.
    pub(super) fn run_queue(&mut self) -> Stop {
        let mut clock = Clock::new();
        let mut awaited = self.somebody_waits();
        self.flow.streams.ask_again = None;
        self.flow.streams.slice_full = false;
        loop {
            let Some(first) = self.flow.queue.front() else {
                return Stop::Empty;
            };
            if self.must_park(first) {
                if let Some(item) = self.flow.queue.take() {
                    self.park(item);
                    self.arm_drains();
                }
                continue;
            }
            if self.is_full(first) {
                return Stop::Window;
            }
            let mut estimate = None;
            if first.needs_turn() {
                match self.admit(clock.now) {
                    Ok(known) => estimate = known,
                    Err(stop) => return stop,
                }
                clock.advance();
                if clock.used == 0 {
                    awaited = self.somebody_waits();
                }
            }
            let Some(mut item) = self.flow.queue.take() else {
                return Stop::Empty;
            };
            if !item.paid
                && let Work::DtoH(fetch) = &item.work
            {
                self.link.lease.count_out(fetch.len);
            }
            item.paid = true;
            let stream = item.stream;
            let step = self.execute(&mut item, clock.now, estimate);
            match step {
                Step::Done => {
                    self.dequeued(&item);
                    self.arm_drains();
                    if self.marker_due(stream, awaited)
                        && let Err(code) = self.mark(stream)
                    {
                        self.unmarkable(code);
                    }
                }
                Step::Held(number) => {
                    self.hold(item, number);
                    self.arm_drains();
                }
                Step::Partly(work) => {
                    item.work = work;
                    self.flow.queue.put_back(item);
                }
                Step::Blocked(work) => {
                    item.work = work;
                    self.flow.queue.put_back(item);
                    return Stop::Staging;
                }
            }
            if self.link.poison.is_some() {
                return Stop::Empty;
            }
        }
    }

    /// Is so much of its stream unfinished, waits and events included, that a driver would block this thread?
    fn is_full(&self, first: &Queued) -> bool {
        let adds = !matches!(first.work, Work::StreamDestroy | Work::EventDestroy { .. });
        let stream = self.flow.streams.table.get(first.stream);
        adds && stream.is_some_and(|stream| stream.in_flight() >= MAX_IN_FLIGHT)
    }

    /// May the first operation be submitted? With what is known of how long it takes.
    fn admit(&mut self, now: u64) -> std::result::Result<Option<Estimate>, Stop> {
        let Some(first) = self.flow.queue.front() else {
            return Err(Stop::Empty);
        };
        if self.starved() {
            return Err(Stop::Staging);
        }
        let Streams { table, gate, .. } = &mut self.flow.streams;
        let stream = table.get(first.stream);
        let offer = Offer {
            place: first.seq,
            work: stream.and_then(|stream| Some((first.work.timed()?, &stream.flow))),
            bytes: first.cost,
            paid: first.paid,
            depth: self.flow.queue.waiting(),
        };
        self.link
            .lease
            .admit(gate, now, &offer)
            .map_err(|refused| match refused {
                Refused::Turn => Stop::Turn,
                Refused::Gate(wait) => {
                    self.flow.streams.ask_again = wait.until_ns;
                    self.flow.streams.slice_full = wait.ends_slice();
                    Stop::Window
                }
            })
    }

    /// Does somebody wait for the lease, or for the work?
    fn somebody_waits(&self) -> bool {
        self.flow.drains.len() > 0 || self.link.lease.wanted()
    }

    /// Expected cost of the first operation of the queue.
    pub(super) fn head(&self) -> HeadCost {
        self.flow
            .queue
            .front()
            .map_or_else(HeadCost::default, |first| {
                head_cost(&self.flow.streams.gate, first.work.timed(), first.cost)
            })
    }

    /// The first operation fetches data for the guest, which does not read what it was sent.
    fn starved(&self) -> bool {
        self.flow
            .queue
            .front()
            .is_some_and(|q| matches!(q.work, Work::DtoH(_)))
            && (self.flow.pieces_out >= PIECES || self.link.out.queued() > UNREAD_LIMIT)
    }

    /// Nothing in flight has moved for a while: the work of idle streams goes in all the same, and what
    /// stands before it in the queue. That includes what needs no turn: the program may be waiting for
    /// an event in an idle stream before it sends what a kernel waits for.
    pub(super) fn relieve(&mut self) {
        let taken = self.link.out.taken();
        let calls = self.link.received.calls - taken.calls;
        let bytes = self.link.received.bytes - taken.bytes;
        // With half its credit used up the program may be unable to send the very call that is missing.
        let depth = self.link.out.depth();
        let backed_up = calls >= depth.calls / 2 || bytes >= depth.bytes / 2;
        let Streams { table, gate, .. } = &mut self.flow.streams;
        // Most often there is none, and a long kernel is just that: the queue is not searched.
        let any = backed_up || table.iter().any(|(_, s)| s.queued > 0 && s.drained());
        let waiting = self
            .flow
            .queue
            .iter()
            .take(if any { usize::MAX } else { 0 });
        let waiting = waiting.map(|item| Waiting {
            place: item.seq,
            idle: table.get(item.stream).is_some_and(|s| s.drained()),
        });
        if let Some(place) = gate.relieve(now_ns(), waiting, backed_up) {
            tracing::debug!("nothing moves: operations up to {place} are let in");
        }
    }

    fn execute(&mut self, item: &mut Queued, now: u64, estimate: Option<Estimate>) -> Step {
        let stream = item.stream;
        // Replaced where the operation must stay.
        let work = std::mem::replace(&mut item.work, Work::StreamDestroy);
        let timed = work.timed().map(|work| (work, estimate));
        if let Work::EventDestroy { event } = work {
            self.flow.events.table.remove(event);
            return Step::Done;
        }
        let Some(driver) = self.driver_stream(stream) else {
            self.failed(item, CuResult::INVALID_HANDLE);
            self.abandon_work(work);
            return Step::Done;
        };
        if let Err(code) = self.look_again(item, &work) {
            self.lost(item, &work, code);
            self.abandon_work(work);
            return Step::Done;
        }
        self.mark_before(stream);
        let result = match work {
            Work::HtoD { to, data } => {
                match self.send(stream, &driver, &to, data, (now, timed)) {
                    Ok(None) => {}
                    Ok(Some(data)) => return Step::Blocked(Work::HtoD { to, data }),
                    Err(code) => self.failed(item, code),
                }
                // It has counted itself, with what is to be done when it is over.
                return Step::Done;
            }
            Work::DtoH(fetch) => return self.fetch(item, &driver, fetch, (now, timed)),
            Work::Graph(graph) => {
                self.link.printf.launched();
                let result = graph.run(&driver);
                self.graph_done(graph);
                result
            }
            Work::WriteWord(word) => write_word(&driver, word),
            Work::WaitWord(word) => {
                match wait_word(&driver, word) {
                    Ok(()) => self.submitted_wait(now, stream),
                    Err(code) => self.failed(item, code),
                }
                return Step::Done;
            }
            // Recordings that name it are with a helper just now: it goes as memory of no stream does.
            Work::Free { memory, charged } if self.objects.graphs.building > 0 => {
                self.free_behind(stream, memory, charged);
                return Step::Done;
            }
            Work::Free {
                memory,
                charged: (device, charge),
            } => {
                self.objects.memory.lose([memory.address()]);
                let freed = memory.free_in(&driver);
                self.submitted(stream);
                self.after_tip(stream, Action::Freed { device, charge });
                if let Err(code) = freed {
                    self.failed(item, code);
                }
                return Step::Done;
            }
            Work::HostFunc(number) => {
                return match self.arrive(stream, number) {
                    Ok(()) => Step::Held(number),
                    Err(code) => {
                        self.unmarkable(code);
                        Step::Done
                    }
                };
            }
            Work::Launch(_) => {
                self.link.printf.launched();
                run_work(&driver, &work)
            }
            Work::DtoD { .. } | Work::Rows { .. } | Work::Box { .. } | Work::Fill(_) => {
                run_work(&driver, &work)
            }
            // It is part of graphs, and none waits in the queue by itself.
            Work::Conditional(_) => Err(CuResult::INVALID_VALUE),
            Work::StreamDestroy => {
                self.destroy_stream(stream);
                return Step::Done;
            }
            Work::StreamWait { event, flags } => self.wait_event(&driver, event, flags),
            Work::EventRecord { event, flags } => {
                let recorded = self.record_event(stream, &driver, event, flags);
                if let Err(code) = recorded {
                    self.failed(item, code);
                }
                return Step::Done;
            }
            Work::EventDestroy { .. } => Ok(()),
        };
        match result {
            Ok(()) => self.count(stream, (now, timed)),
            Err(code) => self.failed(item, code),
        }
        Step::Done
    }

    /// Is the memory that an operation names still there? What was freed since it was received is, until
    /// the driver has it back.
    fn look_again(&self, item: &mut Queued, work: &Work) -> Result<()> {
        let losses = self.objects.memory.losses();
        if item.seen != losses {
            work.look(&|at, len| self.objects.memory.still_contains(at, len))?;
            item.seen = losses;
        }
        Ok(())
    }

    /// What an operation names is gone.
    fn lost(&mut self, item: &Queued, work: &Work, code: CuResult) {
        let (op, id) = (item.op, item.id);
        match work {
            // Behind the pieces that are on their way.
            Work::DtoH(_) => self.after_tip(item.stream, Action::Failed { id, op, code }),
            _ => self.failed(item, code),
        }
    }

    fn count(&mut self, stream: u64, (now, timed): (u64, Option<Timed>)) {
        match timed {
            Some(timed) => self.submitted_work(now, stream, timed),
            None => _ = self.submitted(stream),
        }
    }

    pub(super) fn driver_stream(&self, stream: u64) -> Option<Arc<Stream>> {
        self.flow
            .streams
            .table
            .get(stream)?
            .driver
            .as_ref()
            .map(Arc::clone)
    }

    fn failed(&mut self, item: &Queued, code: CuResult) {
        match item.op.class() {
            Class::Sync => self.refuse(item.op, item.id, code),
            Class::Async => self.trouble(item.id, code),
        }
    }

    /// Copies to the device. `Some`: there is no block for the data now.
    fn send(
        &mut self,
        stream: u64,
        driver: &Stream,
        to: &Region,
        data: Bulk,
        counted: (u64, Option<Timed>),
    ) -> Result<Option<Bulk>> {
        let block = match data {
            Bulk::None => return Ok(None),
            Bulk::Staged(block) => block,
            Bulk::Heap(bytes) => match self.objects.staging.take(bytes.len())? {
                Some(mut block) => {
                    block.bytes_mut().copy_from_slice(&bytes);
                    block
                }
                None => return Ok(Some(Bulk::Heap(bytes))),
            },
        };
        to.fill(driver, &block)?;
        let large = Staging::is_large(block.len());
        self.count(stream, counted);
        self.after_tip(stream, Action::Staged(block));
        // A large block is wanted back while it is still in the processor's cache.
        if large {
            match self.mark(stream) {
                Ok(()) => _ = self.harvest(stream),
                Err(code) => self.unmarkable(code),
            }
        }
        Ok(None)
    }

    /// Copies the next piece from the device, answered as soon as it is there.
    fn fetch(
        &mut self,
        item: &Queued,
        driver: &Stream,
        mut fetch: FetchWork,
        counted: (u64, Option<Timed>),
    ) -> Step {
        let (op, id, stream) = (item.op, item.id, item.stream);
        let piece = fetch.piece();
        if self.starved_for_pieces() {
            return Step::Blocked(Work::DtoH(fetch));
        }
        let fetched = match self.objects.staging.take(piece as usize) {
            Ok(None) => return Step::Blocked(Work::DtoH(fetch)),
            Ok(Some(block)) => fetch.next().read(driver, &block).map(|()| block),
            Err(code) => Err(code),
        };
        let len = fetch.len;
        let marked = fetched.and_then(|block| {
            self.count(stream, counted);
            fetch.done += piece;
            self.flow.pieces_out += 1;
            self.after_tip(
                stream,
                Action::Piece {
                    op,
                    id,
                    stream,
                    block,
                    last: fetch.done == len,
                },
            );
            self.mark(stream)
        });
        if marked.is_ok() {
            // It may be there already: then it goes out while it is in the processor's cache.
            self.harvest(stream);
        }
        let done = fetch.done;
        match marked.and(self.link.poison.map_or(Ok(()), Err)) {
            Ok(()) if done < len => return Step::Partly(Work::DtoH(fetch)),
            Ok(()) => {}
            Err(code) if code.is_sticky() => {
                self.device_failed(code, "returned by a copy to the host");
                // Its last piece, if it had been submitted, has been answered with the code.
                if done < len {
                    self.link.out.status(item.op, id, code);
                }
            }
            Err(code) if done < len => {
                self.after_tip(stream, Action::Failed { id, op, code });
            }
            Err(_) => {}
        }
        Step::Done
    }

    fn starved_for_pieces(&self) -> bool {
        self.flow.pieces_out >= PIECES || self.link.out.queued() > UNREAD_LIMIT
    }

    fn destroy_stream(&mut self, id: u64) {
        // What waits for it needs a marker, and nothing can be recorded afterwards.
        if let Err(code) = self.mark(id) {
            return self.unmarkable(code);
        }
        let Some(stream) = self.flow.streams.table.get_mut(id) else {
            return;
        };
        stream.driver = None;
        if stream.drained() {
            self.flow.streams.table.remove(id);
        }
    }

    fn wait_event(&mut self, stream: &Stream, event: u64, flags: u32) -> Result<()> {
        let Some(event) = self.flow.events.table.get(event) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        stream.wait(&event.driver, flags)
    }

    fn record_event(&mut self, id: u64, stream: &Stream, event: u64, flags: u32) -> Result<()> {
        let Some(state) = self.flow.events.table.get_mut(event) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        state.queued -= 1;
        // Whoever waits for the earlier record keeps that one.
        if Arc::strong_count(&state.driver) > 1 {
            let fresh = Event::create(stream.context(), state.flags | BLOCKING_SYNC)?;
            state.driver = Arc::new(fresh);
        }
        state.driver.record(stream, flags)?;
        let seq = self.submitted(id);
        if let Some(state) = self.flow.events.table.get_mut(event) {
            state.recorded = Some((id, seq));
        }
        Ok(())
    }

    /// Fails everything that waits in the queue.
    pub(super) fn abandon_queue(&mut self, code: CuResult) {
        while let Some(item) = self.flow.queue.take() {
            if item.op.class() == Class::Sync {
                self.link.out.status(item.op, item.id, code);
            }
            self.dequeued(&item);
            self.abandon_work(item.work);
        }
        self.link.lease.withdraw();
    }
}

impl Region {
    /// Copies the block there, in a stream.
    fn fill(&self, stream: &Stream, block: &Block) -> Result<()> {
        match self {
            Region::Line(at) => copy_htod(stream, *at, block),
            Region::Rows(at, Shape { width, pitch }) => {
                let rows = Rows {
                    at: *at,
                    pitch: *pitch,
                };
                copy_rows_htod(stream, rows, block, *width as usize)
            }
            Region::Array(there, width) => {
                copy_htoa(stream, &*there.array()?, there.at, block, *width as usize)
            }
        }
    }

    /// Copies as much as the block holds from there, in a stream.
    fn read(&self, stream: &Stream, block: &Block) -> Result<()> {
        match self {
            Region::Line(at) => copy_dtoh(stream, block, *at),
            Region::Rows(at, Shape { width, pitch }) => {
                let rows = Rows {
                    at: *at,
                    pitch: *pitch,
                };
                copy_rows_dtoh(stream, block, rows, *width as usize)
            }
            Region::Array(there, width) => {
                copy_atoh(stream, block, &*there.array()?, there.at, *width as usize)
            }
        }
    }
}

/// Gives an operation that concerns the device alone to a stream.
pub(super) fn run_work(stream: &Stream, work: &Work) -> Result<()> {
    match work {
        Work::DtoD { dst, src, len } => copy_dtod(stream, *dst, *src, *len),
        Work::Rows { dst, src, size } => copy_rows_dtod(stream, *dst, *src, *size),
        Work::Box { dst, src, size } => copy_box(stream, dst, src, *size),
        Work::Fill(f) => run_fill(stream, *f),
        Work::Launch(launch) => run_launch(stream, launch),
        // Nothing else is given to it.
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn run_fill(stream: &Stream, f: FillWork) -> Result<()> {
    match f.rows {
        None => fill(stream, f.dst, f.value, f.width, f.columns),
        Some((rows, pitch)) => fill_2d(stream, (f.dst, pitch), f.value, f.width, (f.columns, rows)),
    }
}

fn run_launch(stream: &Stream, work: &LaunchWork) -> Result<()> {
    work.function.launch(
        stream,
        &Launch {
            grid: work.grid,
            block: work.block,
            shared: work.shared,
            cooperative: work.cooperative,
            params: work.params.bytes(),
        },
    )
}
