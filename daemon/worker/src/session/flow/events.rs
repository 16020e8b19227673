//! The events of the guest.

use std::sync::Arc;

use vgpu_cuda_abi::numbers::event_flag::{BLOCKING_SYNC, DISABLE_TIMING};
use vgpu_proto::call::{rep, req};
use vgpu_proto::cuda::{CuResult, Event as EventName, GUEST_HANDLES, HandleMap};

use crate::driver::{Event, Result};
use crate::session::objects::{Kind, Objects, Table};

/// One event.
#[derive(Debug)]
pub(crate) struct EventState {
    /// Our handle of the event's context.
    pub context: u64,
    /// Flags of the guest, without the flags that the worker adds.
    pub flags: u32,
    /// The driver's event. A new event replaces it when the guest records the event again while
    /// another part of the worker waits for it.
    pub driver: Arc<Event>,
    /// Number of records of this event in the queue.
    pub queued: u64,
    /// Place in the queue of the last of these records.
    pub last_queued: u64,
    /// The last submitted record: (stream, number in the stream).
    pub recorded: Option<(u64, u64)>,
}

/// All events of the session.
#[derive(Debug)]
pub(crate) struct Events {
    /// The events, by our handle.
    pub table: Table<EventState>,
    /// Our handle for each handle of the guest.
    pub names: HandleMap<u64>,
}

impl Events {
    /// No events.
    pub(crate) fn new() -> Events {
        Events {
            table: Table::new(Kind::Event),
            names: HandleMap::default(),
        }
    }

    /// Our handle of the event that the guest names.
    pub(crate) fn find(&self, event: EventName) -> Result<u64> {
        let found = self.names.get(&event.0).copied();
        found.ok_or(CuResult::INVALID_HANDLE)
    }

    /// `cuEventCreate`.
    pub(crate) fn create(&mut self, objects: &Objects, r: &req::EventCreate) -> Result<()> {
        let context = objects.context(r.ctx)?;
        if !GUEST_HANDLES.contains(&r.event.0) || self.names.contains_key(&r.event.0) {
            return Err(CuResult::INVALID_HANDLE);
        }
        // Events that are shared between processes are not supported.
        if r.flags & !(BLOCKING_SYNC | DISABLE_TIMING) != 0 {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let driver = Arc::new(Event::create(&context.driver, r.flags | BLOCKING_SYNC)?);
        let state = EventState {
            context: r.ctx.0,
            flags: r.flags,
            driver,
            queued: 0,
            last_queued: 0,
            recorded: None,
        };
        let id = self.table.insert(state).ok_or(CuResult::OUT_OF_MEMORY)?;
        self.names.insert(r.event.0, id);
        Ok(())
    }

    /// Checks that the event may be recorded in a stream of this context.
    pub(crate) fn check_record(&self, context: u64, event: u64, flags: u32) -> Result<()> {
        let event = self.table.get(event).ok_or(CuResult::INVALID_HANDLE)?;
        if context != event.context {
            return Err(CuResult::INVALID_HANDLE);
        }
        // CU_EVENT_RECORD_EXTERNAL has an effect only during capture.
        if flags == 0 {
            Ok(())
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    /// Whether the work before the event's last record is complete.
    pub(crate) fn ready(&self, event: u64) -> Result<bool> {
        let state = self.table.get(event).ok_or(CuResult::INVALID_HANDLE)?;
        if state.queued > 0 {
            Ok(false)
        } else {
            state.driver.is_complete()
        }
    }

    /// Time between two events, in ms.
    pub(crate) fn elapsed(
        &self,
        start: EventName,
        end: EventName,
    ) -> Result<rep::EventElapsedTime> {
        let (start, end) = (self.find(start)?, self.find(end)?);
        let find = |id| self.table.get(id).ok_or(CuResult::INVALID_HANDLE);
        let (start, end) = (find(start)?, find(end)?);
        if start.queued > 0 || end.queued > 0 {
            return Err(CuResult::NOT_READY);
        }
        let milliseconds = start.driver.elapsed_until(&end.driver)?;
        Ok(rep::EventElapsedTime {
            milliseconds_bits: milliseconds.to_bits(),
        })
    }
}
