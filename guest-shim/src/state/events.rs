//! Events. The guest chooses their handles, and stores whether the last record has completed, which
//! saves round trips.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_proto::cuda::{Ctx, Event, Stream};

use super::capture::Capture;
use crate::lock;
use crate::mirror::uses::Over;

/// An event.
#[derive(Debug)]
pub(crate) struct EventInfo {
    /// Handle of the event.
    pub(crate) handle: Event,
    /// Context of the event.
    pub(crate) ctx: Ctx,
    /// `CUevent_flags`.
    pub(crate) flags: u32,
    /// If the last record was in a capture: the capture, and the nodes of the stream at that time.
    pub(crate) captured: Mutex<Option<(Arc<Capture>, Vec<u64>)>>,
    recorded: AtomicU64,
    completed: AtomicU64,
    /// The work that must be complete when the last record completes, and the number of units of
    /// work sent at that time.
    behind: Mutex<(Over, u64)>,
}

impl EventInfo {
    /// An event that was never recorded.
    pub(crate) fn new(handle: Event, ctx: Ctx, flags: u32) -> EventInfo {
        EventInfo {
            handle,
            ctx,
            flags,
            captured: Mutex::default(),
            recorded: AtomicU64::new(0),
            completed: AtomicU64::new(0),
            behind: Mutex::new((Over::Unknown, 0)),
        }
    }

    /// Counts a record that is about to be sent.
    pub(crate) fn record(&self) {
        self.recorded.fetch_add(1, Ordering::AcqRel);
    }

    /// Stores the stream of the record that was sent, and the number of units of work sent so far.
    pub(crate) fn stands_behind(&self, stream: Stream, sent: u64) {
        *lock(&self.behind) = (Over::Stream(self.ctx, stream), sent);
    }

    /// The work that is complete when the last record has completed, and the number of units of
    /// work sent before that record. For [`Session::over`](crate::session::Session::over).
    pub(crate) fn behind(&self) -> (Over, u64) {
        *lock(&self.behind)
    }

    /// The number of the last record; 0: never recorded.
    pub(crate) fn last_record(&self) -> u64 {
        self.recorded.load(Ordering::Acquire)
    }

    /// Stores that the host reported record number `record` as complete.
    pub(crate) fn complete(&self, record: u64) {
        self.completed.fetch_max(record, Ordering::AcqRel);
    }

    /// Whether every record has completed.
    pub(crate) fn is_complete(&self) -> bool {
        self.completed.load(Ordering::Acquire) >= self.last_record()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_record_is_not_complete() {
        let event = EventInfo::new(Event(1), Ctx(1), 0);
        assert!(event.is_complete(), "never recorded");
        event.record();
        assert!(!event.is_complete());
        let asked = event.last_record();
        event.record();
        event.complete(asked);
        assert!(
            !event.is_complete(),
            "the answer was about the record before"
        );
        event.complete(event.last_record());
        assert!(event.is_complete());
    }
}
