//! Events: created in the guest. The state of their last record saves round trips.

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
    /// If the last record was captured: the capture, and the stream's nodes at that time.
    pub(crate) captured: Mutex<Option<(Arc<Capture>, Vec<u64>)>>,
    recorded: AtomicU64,
    completed: AtomicU64,
    /// The work before the last record, and the units of work sent at that time.
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

    /// Notes that the event is about to be recorded.
    pub(crate) fn record(&self) {
        self.recorded.fetch_add(1, Ordering::AcqRel);
    }

    /// Notes that the record was sent to a stream, after `sent` units of work.
    pub(crate) fn stands_behind(&self, stream: Stream, sent: u64) {
        *lock(&self.behind) = (Over::Stream(self.ctx, stream), sent);
    }

    /// The scope that is over when the last record completes, for
    /// [`Session::over`](crate::session::Session::over).
    pub(crate) fn behind(&self) -> (Over, u64) {
        *lock(&self.behind)
    }

    /// The number of the last record; 0: never recorded.
    pub(crate) fn last_record(&self) -> u64 {
        self.recorded.load(Ordering::Acquire)
    }

    /// Notes that the host reported record number `record` as complete.
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
