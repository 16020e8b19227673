//! The work of a session: the queue, its execution under the lease, operations in flight in
//! streams, and requests that wait for completion.

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
use crate::driver::{Result, last_message};

/// The work of one session.
pub(super) struct Flow {
    pub queue: Queue,
    /// Operations that wait because the guest runs a host function.
    pub parking: Parking,
    pub streams: Streams,
    pub events: Events,
    pub drains: Drains,
    /// Number of data pieces for the guest that are in flight.
    pieces_out: usize,
    /// Threads that wait for markers.
    pub waiters: Pool,
}

impl Flow {
    /// A session without work.
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

    /// Performs the actions that are due, in the order in which they became due. Returns true if
    /// there was one.
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
                        // Data that other streams fetched earlier must be sent first.
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

    /// Checks which markers of a stream have fired. Returns true if operations have completed.
    fn harvest(&mut self, objects: &mut Objects, link: &mut Link, id: u64) -> bool {
        let looked = self.streams.harvest(objects, &mut link.lease, id);
        self.looked(objects, link, looked)
    }

    /// Checks every stream that has actions to perform. Returns true if operations have completed.
    pub(super) fn harvest_awaited(&mut self, objects: &mut Objects, link: &mut Link) -> bool {
        let looked = self.streams.harvest_all(objects, &mut link.lease, true);
        self.looked(objects, link, looked)
    }

    /// Checks every stream with work. Returns true if operations have completed.
    pub(super) fn harvest_all(&mut self, objects: &mut Objects, link: &mut Link) -> bool {
        let looked = self.streams.harvest_all(objects, &mut link.lease, false);
        self.looked(objects, link, looked)
    }

    /// Handles the report of a thread that waited for a stream's marker.
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

    /// Whether all operations of the stream are complete, including those in the queue.
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

    /// Like [`Streams::mark_before`], but a failure ends the session's use of the device.
    fn mark_before(&mut self, objects: &mut Objects, link: &mut Link, id: u64) {
        if let Err(code) = self.streams.mark_before(objects, id) {
            self.unmarkable(objects, link, code);
        }
    }

    /// Like [`Streams::mark_all`], but a failure ends the session's use of the device.
    pub(super) fn mark_all(&mut self, objects: &mut Objects, link: &mut Link, late: bool) {
        if let Err(code) = self.streams.mark_all(objects, late) {
            self.unmarkable(objects, link, code);
        }
    }

    /// Ends the session's use of the device, because a marker cannot be recorded: requests that
    /// wait for the marker would never be answered.
    fn unmarkable(&mut self, objects: &mut Objects, link: &mut Link, code: CuResult) {
        let seen = "returned while recording a completion event";
        self.device_failed(objects, link, code, seen);
    }

    /// Like [`Objects::freed`], but a fault ends the session's use of the device.
    fn freed(&mut self, objects: &mut Objects, link: &mut Link, device: usize, charge: u64) {
        if let Err(fault) = objects.freed(link, device, charge) {
            self.fault(objects, link, fault);
        }
    }

    /// Fails a request for memory that met a device fault.
    pub(super) fn fault(&mut self, objects: &mut Objects, link: &mut Link, fault: Fault) {
        let Fault { op, id, code } = fault;
        self.refuse(objects, link, (op, id), code);
    }

    /// Handles the failure of a driver call for request `id` (0: for no request). A device fault
    /// ends the session's use of the device; any other error is sent to the guest as an
    /// asynchronous error.
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

    /// Like [`Flow::trouble`], for a request that the guest waits for.
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

    /// Handles a device fault: all waiting requests fail with the code, and all later requests,
    /// too.
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
        let text = match last_message() {
            Some(message) => format!("{code}, {seen}; the driver's last message: {message}"),
            None => format!("{code}, {seen}"),
        };
        tracing::warn!("device fault: {text}");
        link.poison = Some(code);
        self.streams.print_all(link);
        link.out.device_fault(code, &text);
        link.vgpud.send(FromWorker::Fault { code, text });
        for action in self.streams.abandon() {
            match action {
                Action::Piece {
                    id, op, last: true, ..
                }
                | Action::Failed { id, op, .. } => link.out.status(op, id, code),
                Action::Freed { device, charge } => objects.freed_in_vain(link, device, charge),
                Action::Piece { .. } | Action::Staged(_) | Action::HostFunc { .. } => {}
                // `abandon_drains` answers these drains, and those that no stream received yet.
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
