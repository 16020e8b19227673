//! Operations left out of the queue while their stream is at a host function of the guest.
//!
//! A host function runs in the guest, for as long as it likes. Nothing of its stream is given to
//! the driver meanwhile, so that the session holds no lease for it; other streams go on. What must
//! come after something that is left out is left out too: later operations of the same stream,
//! those that the NULL stream orders behind it, waits for an event whose record is left out.

use std::collections::{BTreeMap, HashMap};

use vgpu_proto::call::Class;
use vgpu_proto::cuda::CuResult;

use super::Flow;
use super::queue::Queued;
use super::streams::{Action, Streams, Target};
use crate::driver::Result;
use crate::session::link::Link;
use crate::session::objects::{HandleMap, Objects, Work};

/// A stream at a host function.
#[derive(Debug)]
struct Held {
    item: Queued,
    number: u64,
    /// The guest has been told to run it.
    called: bool,
}

/// Parked operations of one stream or about one event.
#[derive(Debug, Default, Clone, Copy)]
struct Parked {
    /// The place of the first; 0: none.
    first: u64,
    /// Of an event: the place of the first record.
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

/// All that is left out.
#[derive(Debug, Default)]
pub(crate) struct Parking {
    /// By stream.
    held: HandleMap<Held>,
    /// The guest's numbers of host functions: their streams.
    numbers: HandleMap<u64>,
    /// By place.
    items: BTreeMap<u64, Queued>,
    streams: HashMap<u64, Parked>,
    events: HashMap<u64, Parked>,
}

impl Parking {
    /// Is nothing left out?
    pub(crate) fn is_empty(&self) -> bool {
        self.held.is_empty() && self.items.is_empty()
    }

    /// Does the guest use this number for a host function that is not over?
    pub(crate) fn knows(&self, number: u64) -> bool {
        self.numbers.contains_key(&number)
    }

    /// A number is taken from the moment that its request is received.
    pub(crate) fn announce(&mut self, number: u64, stream: u64) {
        self.numbers.insert(number, stream);
    }

    /// The place of the first of a stream's operations that is left out.
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

    /// Must the first operation of the queue be left out?
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

    /// Is any of the target's work up to `last` left out?
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
    /// Leaves the first operation of the queue out for now.
    pub(crate) fn park(&mut self, item: Queued) {
        self.queue.finished(&item);
        self.parking.park(item);
    }

    /// The stream has been given all that comes before host function `number`: tells the guest when
    /// it is past that.
    pub(crate) fn arrive(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (stream, number): (u64, u64),
    ) -> Result<()> {
        // A place of its own, behind what the driver orders before it in other streams.
        self.streams.submitted(stream);
        self.streams.mark(objects, stream)?;
        let action = Action::HostFunc { stream, number };
        self.streams.after_tip(stream, action);
        self.harvest(objects, link, stream);
        Ok(())
    }

    /// The host function's operation stays until it is over.
    pub(crate) fn hold(&mut self, item: Queued, number: u64) {
        self.queue.finished(&item);
        let held = Held {
            item,
            number,
            called: false,
        };
        self.parking.held.insert(held.item.stream, held);
    }

    /// The stream is at host function `number`.
    pub(crate) fn call_guest(&mut self, link: &mut Link, stream: u64, number: u64) {
        if let Some(held) = self.parking.held.get_mut(&stream) {
            held.called = true;
            link.out.host_function(number);
        }
    }

    /// The guest has run host function `number`: its stream goes on.
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
        // Those that must still wait are parked again when their turn comes.
        self.queue.resume(items);
        self.resume_drains(objects, link);
        Ok(())
    }

    /// The device is of no more use: nothing of what was left out will run.
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
