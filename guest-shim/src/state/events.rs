//! Events: minted here; what is known about their last record saves round trips.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_proto::cuda::{Ctx, Event, Stream};

use super::capture::Capture;
use crate::lock;
use crate::session::uses::Over;

/// One event.
#[derive(Debug)]
pub(crate) struct EventInfo {
    /// Its handle.
    pub(crate) handle: Event,
    /// Its context.
    pub(crate) ctx: Ctx,
    /// `CUevent_flags`.
    pub(crate) flags: u32,
    /// Recorded last in a captured stream: the capture, and the stream's nodes until then.
    pub(crate) captured: Mutex<Option<(Arc<Capture>, Vec<u64>)>>,
    recorded: AtomicU64,
    completed: AtomicU64,
    /// What its last record is behind of, and how much had been sent then.
    behind: Mutex<(Over, u64)>,
}

impl EventInfo {
    /// Not recorded.
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

    /// It is about to be recorded again.
    pub(crate) fn record(&self) {
        self.recorded.fetch_add(1, Ordering::AcqRel);
    }

    /// Its record has been sent, into a stream for which so much work had been sent before.
    pub(crate) fn stands_behind(&self, stream: Stream, sent: u64) {
        *lock(&self.behind) = (Over::Stream(self.ctx, stream), sent);
    }

    /// What is over when its last record is, for [`Session::over`](crate::session::Session::over).
    pub(crate) fn behind(&self) -> (Over, u64) {
        *lock(&self.behind)
    }

    /// The number of its last record; 0: never.
    pub(crate) fn last_record(&self) -> u64 {
        self.recorded.load(Ordering::Acquire)
    }

    /// The host said that record number `record` completed.
    pub(crate) fn complete(&self, record: u64) {
        self.completed.fetch_max(record, Ordering::AcqRel);
    }

    /// Nothing that was recorded is still running.
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
