//! The guest's events.

use std::sync::Arc;

use super::table::{HandleMap, Kind, Table};
use crate::driver::Event;

/// One event.
#[derive(Debug)]
pub(super) struct EventState {
    /// The context's handle.
    pub context: u64,
    /// As created, without what the worker adds.
    pub flags: u32,
    /// The driver's. Replaced by a fresh one when it is recorded again while somebody waits.
    pub driver: Arc<Event>,
    /// Records that wait in the queue.
    pub queued: u64,
    /// The place of the last of them.
    pub last_queued: u64,
    /// (stream, number in it) of the last record that was submitted.
    pub recorded: Option<(u64, u64)>,
}

/// All events of the session.
#[derive(Debug)]
pub(super) struct Events {
    /// By our own handle.
    pub table: Table<EventState>,
    /// The guest's handles.
    pub names: HandleMap<u64>,
}

impl Events {
    /// None yet.
    pub(super) fn new() -> Events {
        Events {
            table: Table::new(Kind::Event),
            names: HandleMap::default(),
        }
    }

    /// The event that a guest names.
    pub(super) fn find(&self, name: u64) -> Option<u64> {
        self.names.get(&name).copied()
    }
}
