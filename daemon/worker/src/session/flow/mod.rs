//! The way of work through the session: the queue, the execution under the lease, what is in flight
//! in streams, and what waits for the end of work.

mod contexts;
mod drains;
mod events;
mod execute;
mod markers;
mod parking;
mod print;
mod queue;
mod streams;

use std::sync::Arc;

use vgpu_proto::call::Op;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::worker::FromWorker;

pub(super) use self::drains::After;
use self::drains::Drains;
use self::events::Events;
pub(super) use self::execute::Stop;
use self::parking::Parking;
pub(super) use self::print::Flush;
pub(super) use self::queue::Place;
use self::queue::Queue;
pub(super) use self::streams::Target;
use self::streams::{Action, Streams};
use super::link::Link;
use super::objects::{Fault, Objects, Pool};
use crate::driver::Result;

/// The work of a session.
pub(super) struct Flow {
    pub queue: Queue,
    /// What is left out of the queue until a host function of the guest has come back.
    pub parking: Parking,
    pub streams: Streams,
    pub events: Events,
    pub drains: Drains,
    /// Pieces of data for the guest that are in flight.
    pieces_out: usize,
    /// Threads that wait for events.
    pub waiters: Pool,
}

impl Flow {
    /// The work of a session that begins: none.
    pub(super) fn new(waiters: Pool) -> Flow {
        Flow {
            queue: Queue::default(),
            parking: Parking::default(),
            streams: Streams::new(),
            events: Events::new(),
            drains: Drains::default(),
            pieces_out: 0,
            waiters,
        }
    }

    /// Does what is due, in the order in which it became so. True: there was something.
    pub(super) fn do_due(&mut self, objects: &mut Objects, link: &mut Link) -> bool {
        let any = !self.streams.due.is_empty();
        while let Some(action) = self.streams.due.pop_front() {
            match action {
                Action::Staged(block) => drop(block),
                Action::Piece {
                    op,
                    id,
                    stream,
                    block,
                    last,
                } => {
                    self.pieces_out -= 1;
                    if last {
                        self.streams.print(link, &Flush::Stream(stream));
                    }
                    link.out.piece(op, id, block, last);
                }
                Action::Freed { device, charge } => self.freed(objects, link, device, charge),
                Action::HostFunc { stream, number } => self.call_guest(link, stream, number),
                Action::Failed { id, op, code } => link.out.status(op, id, code),
                Action::Drain(drain) => {
                    if self.drain_step(drain) {
                        // Data that other streams fetched before this point goes out first.
                        if self.pieces_out > 0 {
                            self.harvest_awaited(objects, link);
                        }
                        self.streams.due.push_back(Action::Drained(drain));
                    }
                }
                Action::Drained(drain) => self.drained(objects, link, drain),
            }
        }
        any
    }

    /// Looks which markers of a stream have fired. True: something moved.
    fn harvest(&mut self, objects: &mut Objects, link: &mut Link, id: u64) -> bool {
        let looked = self.streams.harvest(objects, &mut link.lease, id);
        self.looked(objects, link, looked)
    }

    /// Looks at every stream that somebody waits for. True: something moved.
    pub(super) fn harvest_awaited(&mut self, objects: &mut Objects, link: &mut Link) -> bool {
        let looked = self.streams.harvest_all(objects, &mut link.lease, true);
        self.looked(objects, link, looked)
    }

    /// Looks at every stream with work. True: something moved.
    pub(super) fn harvest_all(&mut self, objects: &mut Objects, link: &mut Link) -> bool {
        let looked = self.streams.harvest_all(objects, &mut link.lease, false);
        self.looked(objects, link, looked)
    }

    /// A thread that waited for a stream's marker has come back.
    pub(super) fn marker_fired(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        marker: (u64, u64),
        result: Result<()>,
    ) {
        let lease = &mut link.lease;
        if let Err(code) = self.streams.marker_fired(objects, lease, marker, result) {
            self.device_failed(objects, link, code, "seen while waiting for a stream");
        }
    }

    fn looked(&mut self, objects: &mut Objects, link: &mut Link, looked: Result<bool>) -> bool {
        looked.unwrap_or_else(|code| {
            self.device_failed(objects, link, code, "seen while looking for completion");
            true
        })
    }

    /// Is everything in the stream, and in the queue for it, complete?
    pub(super) fn stream_ready(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        stream: u64,
    ) -> Result<bool> {
        let Some(state) = self.streams.table.get(stream) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        let context = state.context;
        let queued = state.queued > 0
            || (state.name == 0
                && self
                    .streams
                    .table
                    .iter()
                    .any(|(_, s)| s.context == context && s.blocking && s.queued > 0));
        if queued {
            return Ok(false);
        }
        let Some(driver) = state.driver.as_ref().map(Arc::clone) else {
            return Err(CuResult::INVALID_HANDLE);
        };
        let ready = driver.is_complete()?;
        if ready && !self.streams.joins_others(stream) {
            self.streams.complete_all(objects, &mut link.lease, stream);
        }
        Ok(ready)
    }

    /// As [`Streams::mark_before`], where a failure ends the session's use of the device.
    fn mark_before(&mut self, objects: &mut Objects, link: &mut Link, id: u64) {
        if let Err(code) = self.streams.mark_before(objects, id) {
            self.unmarkable(objects, link, code);
        }
    }

    /// As [`Streams::mark_all`], where a failure ends the session's use of the device.
    pub(super) fn mark_all(&mut self, objects: &mut Objects, link: &mut Link, late: bool) {
        if let Err(code) = self.streams.mark_all(objects, late) {
            self.unmarkable(objects, link, code);
        }
    }

    /// A marker cannot be had, so nobody who waits would ever be answered.
    fn unmarkable(&mut self, objects: &mut Objects, link: &mut Link, code: CuResult) {
        let seen = "returned while recording a completion event";
        self.device_failed(objects, link, code, seen);
    }

    /// As [`Objects::freed`], where a fault ends the session's use of the device.
    fn freed(&mut self, objects: &mut Objects, link: &mut Link, device: usize, charge: u64) {
        if let Err(fault) = objects.freed(link, device, charge) {
            self.fault(objects, link, fault);
        }
    }

    /// An allocation met a device fault.
    pub(super) fn fault(&mut self, objects: &mut Objects, link: &mut Link, fault: Fault) {
        let Fault { op, id, code } = fault;
        self.refuse(objects, link, (op, id), code);
    }

    /// A driver call about request `id` failed (0: about none). A device fault ends the session's
    /// use of the device; anything else is told to the guest as an asynchronous error.
    pub(super) fn trouble(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        id: u64,
        code: CuResult,
    ) {
        if code.is_sticky() {
            self.device_failed(objects, link, code, "returned by a driver call");
        } else {
            link.out.async_error(id, code);
        }
    }

    /// As [`Flow::trouble`], for a request whose caller waits for the answer.
    pub(super) fn refuse(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (op, id): (Op, u64),
        code: CuResult,
    ) {
        if code.is_sticky() {
            self.device_failed(objects, link, code, "returned by a driver call");
        }
        link.out.status(op, id, code);
    }

    /// The device reported a fault: whatever waits fails with it, and everything from now on.
    pub(super) fn device_failed(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        code: CuResult,
        seen: &str,
    ) {
        if link.poison.is_some() {
            return;
        }
        tracing::warn!("device fault: {code}, {seen}");
        link.poison = Some(code);
        let text = format!("{code}, {seen}");
        link.vgpud.send(FromWorker::Fault { code, text });
        self.streams.print_all(link);
        link.out.async_error(0, code);
        for action in self.streams.abandon() {
            match action {
                Action::Piece {
                    id, op, last: true, ..
                }
                | Action::Failed { id, op, .. } => link.out.status(op, id, code),
                Action::Freed { device, charge } => objects.freed_in_vain(link, device, charge),
                Action::Piece { .. } | Action::Staged(_) | Action::HostFunc { .. } => {}
                // Below, with those that are not yet attached to a stream.
                Action::Drain(_) | Action::Drained(_) => {}
            }
        }
        self.pieces_out = 0;
        self.abandon_queue(objects, link, code);
        self.abandon_parked(objects, link, code);
        self.abandon_drains(objects, link, code);
        objects.abandon_allocs(link, code);
    }
}
