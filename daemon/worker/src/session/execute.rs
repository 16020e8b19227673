//! Running the queue: in order, under the lease, within credit and window.

use std::sync::Arc;

use vgpu_proto::call::Op;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::COPY_PIECE;

use super::Session;
use super::Staging;
use super::queue::{FillWork, LaunchWork, Queued, Work};
use super::streams::Action;
use crate::driver::{
    BLOCKING_SYNC, Event, Launch, Result, Stream, copy_dtod, copy_dtoh, copy_htod, fill, fill_2d,
};
use crate::wire::Bulk;

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
    /// The operation is not (wholly) submitted; it stays first.
    Blocked(Work),
}

impl Session {
    /// Does as much of the queue as may be done now. Tells why it stopped.
    pub(super) fn run_queue(&mut self) -> Stop {
        loop {
            let Some(first) = self.queue.front() else {
                return Stop::Empty;
            };
            let first_seq = first.seq;
            if first.needs_turn() {
                if self.starved() {
                    return Stop::Staging;
                }
                if !self.lease.enter(self.queue.waiting()) {
                    return Stop::Turn;
                }
                if self.streams.window_full(first_seq) {
                    return Stop::Window;
                }
                let (paid, cost) = (first.paid, first.cost);
                if !paid && !self.lease.take(self.queue.waiting(), 1, cost) {
                    return Stop::Turn;
                }
            }
            let Some(mut item) = self.queue.take() else {
                return Stop::Empty;
            };
            item.paid = true;
            let stream = item.stream;
            match self.execute(&mut item) {
                Step::Done => {
                    self.dequeued(&item);
                    self.arm_drains();
                    if self.marker_due(stream)
                        && let Err(code) = self.mark(stream)
                    {
                        self.unmarkable(code);
                    }
                }
                Step::Blocked(work) => {
                    item.work = work;
                    self.queue.put_back(item);
                    return Stop::Staging;
                }
            }
            if self.poison.is_some() {
                return Stop::Empty;
            }
        }
    }

    /// The first operation fetches data for the guest, which does not read what it was sent.
    fn starved(&self) -> bool {
        self.queue
            .front()
            .is_some_and(|q| matches!(q.work, Work::DtoH { .. }))
            && (self.pieces_out >= PIECES || self.out.queued() > UNREAD_LIMIT)
    }

    /// The window has been full without moving: the work of idle streams goes in all the same, and
    /// what stands before it in the queue.
    pub(super) fn unblock_idle_streams(&mut self) {
        let idle = self.queue.iter().find(|item| {
            item.needs_turn()
                && self
                    .streams
                    .table
                    .get(item.stream)
                    .is_some_and(|s| s.drained())
        });
        // Nothing: look again when as much time has passed.
        let place = idle.map_or(0, |item| item.seq);
        self.streams.exempt(place);
    }

    fn execute(&mut self, item: &mut Queued) -> Step {
        let (id, stream) = (item.id, item.stream);
        // Replaced where the operation must stay.
        let work = std::mem::replace(&mut item.work, Work::StreamDestroy);
        if let Work::EventDestroy { event } = work {
            self.events.table.remove(event);
            return Step::Done;
        }
        let Some(driver) = self.driver_stream(stream) else {
            self.failed(item, CuResult::INVALID_HANDLE);
            return Step::Done;
        };
        self.mark_before(stream);
        let result = match work {
            Work::HtoD { dst, data } => match self.send(id, stream, &driver, dst, data) {
                Ok(None) => Ok(()),
                Ok(Some(data)) => return Step::Blocked(Work::HtoD { dst, data }),
                Err(code) => Err(code),
            },
            Work::DtoH { src, len, done } => {
                return self.fetch(item, &driver, (src, len, done));
            }
            Work::DtoD { dst, src, len } => copy_dtod(&driver, dst, src, len),
            Work::Fill(f) => run_fill(&driver, f),
            Work::Launch(launch) => {
                self.printf.launched();
                run_launch(&driver, &launch)
            }
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
            Ok(()) => {
                // A copy has counted itself, with what is to be done when it is over.
                if item.op != Op::MemcpyHtoD {
                    self.submitted(stream);
                }
            }
            Err(code) => self.failed(item, code),
        }
        Step::Done
    }

    fn driver_stream(&self, stream: u64) -> Option<Arc<Stream>> {
        self.streams
            .table
            .get(stream)?
            .driver
            .as_ref()
            .map(Arc::clone)
    }

    fn failed(&mut self, item: &Queued, code: CuResult) {
        match item.op {
            Op::MemcpyDtoH => self.refuse(item.op, item.id, code),
            _ => self.trouble(item.id, code),
        }
    }

    /// Copies to the device. `Some`: there is no block for the data now.
    fn send(
        &mut self,
        _id: u64,
        stream: u64,
        driver: &Stream,
        dst: u64,
        data: Bulk,
    ) -> Result<Option<Bulk>> {
        let block = match data {
            Bulk::None => return Ok(None),
            Bulk::Staged(block) => block,
            Bulk::Heap(bytes) => match self.staging.take(bytes.len())? {
                Some(mut block) => {
                    block.bytes_mut().copy_from_slice(&bytes);
                    block
                }
                None => return Ok(Some(Bulk::Heap(bytes))),
            },
        };
        copy_htod(driver, dst, &block)?;
        let large = Staging::is_large(block.len());
        self.submitted(stream);
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

    /// Copies from the device, piece by piece, each answered as soon as it is there.
    fn fetch(&mut self, item: &Queued, driver: &Stream, (src, len, done): (u64, u64, u64)) -> Step {
        let (id, stream) = (item.id, item.stream);
        let mut done = done;
        while done < len {
            let piece = (len - done).min(COPY_PIECE as u64);
            if self.starved_for_pieces() {
                return Step::Blocked(Work::DtoH { src, len, done });
            }
            self.mark_before(stream);
            let fetched = match self.staging.take(piece as usize) {
                Ok(None) => return Step::Blocked(Work::DtoH { src, len, done }),
                Ok(Some(block)) => copy_dtoh(driver, &block, src + done).map(|()| block),
                Err(code) => Err(code),
            };
            let marked = fetched.and_then(|block| {
                self.submitted(stream);
                done += piece;
                self.pieces_out += 1;
                self.after_tip(
                    stream,
                    Action::Piece {
                        id,
                        stream,
                        block,
                        last: done == len,
                    },
                );
                self.mark(stream)
            });
            if marked.is_ok() {
                // It may be there already: then it goes out while it is in the processor's cache.
                self.harvest(stream);
            }
            if let Err(code) = marked.and(self.poison.map_or(Ok(()), Err)) {
                if code.is_sticky() {
                    self.device_failed(code, "returned by a copy to the host");
                    // Its last piece, if it had been submitted, has been answered with the code.
                    if done < len {
                        self.out.status(item.op, id, code);
                    }
                } else if done < len {
                    self.after_tip(
                        stream,
                        Action::Failed {
                            id,
                            op: item.op,
                            code,
                        },
                    );
                }
                return Step::Done;
            }
        }
        Step::Done
    }

    fn starved_for_pieces(&self) -> bool {
        self.pieces_out >= PIECES || self.out.queued() > UNREAD_LIMIT
    }

    fn destroy_stream(&mut self, id: u64) {
        // What waits for it needs a marker, and nothing can be recorded afterwards.
        if let Err(code) = self.mark(id) {
            return self.unmarkable(code);
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
        // Whoever waits for the earlier record keeps that one.
        if Arc::strong_count(&state.driver) > 1 {
            let fresh = Event::create(stream.context(), state.flags | BLOCKING_SYNC)?;
            state.driver = Arc::new(fresh);
        }
        state.driver.record(stream, flags)?;
        let seq = self.submitted(id);
        if let Some(state) = self.events.table.get_mut(event) {
            state.recorded = Some((id, seq));
        }
        Ok(())
    }

    /// Fails everything that waits in the queue.
    pub(super) fn abandon_queue(&mut self, code: CuResult) {
        while let Some(item) = self.queue.take() {
            if item.op == Op::MemcpyDtoH {
                self.out.status(item.op, item.id, code);
            }
            self.dequeued(&item);
        }
        self.lease.withdraw();
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
