//! Parked operations: they wait outside the queue because their stream is at a host function of the
//! guest.
//!
//! A host function runs in the guest, for any length of time. Meanwhile no operation of its stream
//! is submitted to the driver, so that the session need not hold the lease; other streams go on.
//! Operations that must come after a parked operation are parked, too: later operations of the same
//! stream, operations that the NULL stream orders after them, and waits for an event whose record
//! is parked.

use std::collections::{BTreeMap, HashMap};

use vgpu_proto::call::Class;
use vgpu_proto::cuda::{CuResult, HandleMap};

use super::Flow;
use super::queue::Queued;
use super::streams::{Action, Streams, Target};
use crate::driver::Result;
use crate::session::link::Link;
use crate::session::objects::{Objects, Work};

/// A stream that is at a host function.
#[derive(Debug)]
struct Held {
    item: Queued,
    number: u64,
    /// Whether the guest was told to run the function.
    called: bool,
}

/// The parked operations of one stream, or of one event.
#[derive(Debug, Default, Clone, Copy)]
struct Parked {
    /// Place in the queue of the first of these operations; 0: none.
    first: u64,
    /// For an event: place of the first parked record; 0: none.
    first_record: u64,
}

impl Parked {
    fn add(&mut self, seq: u64, record: bool) {
        let first = |place: &mut u64| *place = if *place == 0 { seq } else { *place };
        first(&mut self.first);
        if record {
            first(&mut self.first_record);
        }
    }
}

/// All parked operations.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// Host functions that wait or run, by stream.
    held: HandleMap<Held>,
    /// Stream of each host function, by the guest's number.
    numbers: HandleMap<u64>,
    /// Parked operations, by their place in the queue.
    items: BTreeMap<u64, Queued>,
    streams: HashMap<u64, Parked>,
    events: HashMap<u64, Parked>,
}

impl Parking {
    /// Whether no operation is parked.
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.items.is_empty()
    }

    /// Whether the guest uses this number for a host function that has not ended.
    pub(crate) fn knows(&self, number: u64) -> bool {
        self.numbers.contains_key(&number)
    }

    /// Reserves the number of a host function when its request is received.
    pub(crate) fn announce(&mut self, number: u64, stream: u64) {
        self.numbers.insert(number, stream);
    }

    /// The place of the first parked operation of a stream, the host function included.
    fn first_of(&self, stream: u64) -> Option<u64> {
        let held = self.held.get(&stream).map(|h| h.item.seq);
        let parked = self.streams.get(&stream).map(|p| p.first);
        [held, parked].into_iter().flatten().min()
    }

    fn streams(&self) -> impl Iterator<Item = u64> {
        self.held.keys().chain(self.streams.keys()).copied()
    }

    fn park(&mut self, item: Queued) {
        let about = match &item.work {
            Work::EventRecord { event, .. } => Some((*event, true)),
            Work::StreamWait { event, .. } | Work::EventDestroy { event } => Some((*event, false)),
            _ => None,
        };
        if let Some((event, record)) = about {
            self.events.entry(event).or_default().add(item.seq, record);
        }
        if item.stream != 0 {
            let parked = self.streams.entry(item.stream).or_default();
            parked.add(item.seq, false);
        }
        self.items.insert(item.seq, item);
    }

    /// Whether the first operation of the queue must be parked.
    pub(crate) fn must_park(&self, streams: &Streams, item: &Queued) -> bool {
        if self.is_empty() {
            return false;
        }
        let event = |event: &u64| self.events.get(event).copied().unwrap_or_default();
        match &item.work {
            Work::EventDestroy { event: e } => return event(e).first > 0,
            Work::EventRecord { event: e, .. } | Work::StreamWait { event: e, .. }
                if event(e).first_record > 0 =>
            {
                return true;
            }
            _ => {}
        }
        self.streams()
            .any(|held| streams.comes_after(item.stream, held))
    }

    /// Whether any of the target's operations up to place `last` is parked.
    pub(crate) fn is_parked(&self, streams: &Streams, target: Target, last: u64) -> bool {
        if self.is_empty() {
            return false;
        }
        let before = |place: u64| place > 0 && place <= last;
        if let Target::Event(event) = target {
            let parked = self.events.get(&event);
            return parked.is_some_and(|p| before(p.first_record));
        }
        self.streams().any(|held| {
            let state = streams.table.get(held);
            let concerned = match target {
                Target::Stream(stream) => {
                    let null = streams.table.get(stream).is_some_and(|s| s.name == 0);
                    held == stream || null && streams.comes_after(stream, held)
                }
                Target::Context(context) => state.is_some_and(|s| s.context == context),
                Target::Everything | Target::Event(_) => true,
            };
            concerned && self.first_of(held).is_some_and(before)
        })
    }
}

impl Flow {
    /// Parks the first operation of the queue.
    pub(crate) fn park(&mut self, item: Queued) {
        self.queue.finished(&item);
        self.parking.park(item);
    }

    /// Handles a host function whose earlier operations have all been submitted: sends the number
    /// to the guest when these operations are complete.
    pub(crate) fn arrive(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (stream, number): (u64, u64),
    ) -> Result<()> {
        // The host function gets a number of its own in the stream, with a marker, so that it also
        // waits for the operations that the driver orders before it in other streams.
        self.streams.submitted(stream);
        self.streams.mark(objects, stream)?;
        let action = Action::HostFunc { stream, number };
        self.streams.after_tip(stream, action);
        self.harvest(objects, link, stream);
        Ok(())
    }

    /// Stores the operation of a host function until the guest has run the function.
    pub(crate) fn hold(&mut self, item: Queued, number: u64) {
        self.queue.finished(&item);
        let held = Held {
            item,
            number,
            called: false,
        };
        self.parking.held.insert(held.item.stream, held);
    }

    /// Tells the guest to run host function `number`: the stream has reached it.
    pub(crate) fn call_guest(&mut self, link: &mut Link, stream: u64, number: u64) {
        if let Some(held) = self.parking.held.get_mut(&stream) {
            held.called = true;
            link.out.host_function(number);
        }
    }

    /// Handles the guest's report that host function `number` has ended: the stream goes on.
    pub(crate) fn host_function_done(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        number: u64,
    ) -> Result<()> {
        let parking = &mut self.parking;
        let stream = parking.numbers.get(&number).copied();
        let stream = stream.ok_or(CuResult::INVALID_HANDLE)?;
        let called = parking
            .held
            .get(&stream)
            .is_some_and(|h| h.number == number && h.called);
        if !called {
            return Err(CuResult::INVALID_HANDLE);
        }
        parking.numbers.remove(&number);
        let held = parking.held.remove(&stream);
        let items = std::mem::take(&mut parking.items).into_values().collect();
        parking.streams.clear();
        parking.events.clear();
        if let Some(held) = held {
            self.settled(link, &held.item);
        }
        // Operations that must still wait are parked again when they are first in the queue.
        self.queue.resume(items);
        self.resume_drains(objects, link);
        Ok(())
    }

    /// After a device fault: drops all parked operations, which will not run.
    pub(crate) fn abandon_parked(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        code: CuResult,
    ) {
        let parking = std::mem::take(&mut self.parking);
        for held in parking.held.into_values() {
            self.settled(link, &held.item);
        }
        for item in parking.items.into_values() {
            if item.op.class() == Class::Sync {
                link.out.status(item.op, item.id, code);
            }
            self.settled(link, &item);
            self.abandon_work(objects, item.work);
        }
    }
}
