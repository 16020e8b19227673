//! What of a session's queue may be on the device at once.

use crate::guest::Op;

/// Placeholder until the production gate is here: 32 operations or 400 µs, well predicted.
#[derive(Debug, Default)]
pub(crate) struct Window {
    in_flight: u64,
    ns: u64,
    unmarked: u32,
    batches: std::collections::VecDeque<(u32, u64)>,
    batch_ns: u64,
}

const MOST: u64 = 64;
const BATCH: u32 = 16;
const WINDOW_NS: u64 = 400_000;

/// What may be done with the first operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admit {
    /// Submit it.
    Now,
    /// Wait for a marker.
    Wait,
}

impl Window {
    /// Operations on the device, as far as known.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight
    }

    /// May it be submitted?
    pub(crate) fn admit(&mut self, now: u64, op: &Op, slice_end: Option<u64>) -> Admit {
        let past_end = slice_end.is_some_and(|end| now + self.ns + op.ns > end);
        if self.in_flight > 0 && (self.in_flight >= MOST || self.ns + op.ns > WINDOW_NS || past_end)
        {
            Admit::Wait
        } else {
            Admit::Now
        }
    }

    /// It was submitted. True: a marker is due behind it.
    pub(crate) fn submitted(&mut self, op: &Op) -> bool {
        self.in_flight += 1;
        self.ns += op.ns;
        self.unmarked += 1;
        self.batch_ns += op.ns;
        self.unmarked >= BATCH
    }

    /// A marker was put.
    pub(crate) fn marked(&mut self) {
        self.batches.push_back((self.unmarked, self.batch_ns));
        (self.unmarked, self.batch_ns) = (0, 0);
    }

    /// A marker has fired.
    pub(crate) fn fired(&mut self) {
        if let Some((ops, ns)) = self.batches.pop_front() {
            self.in_flight -= u64::from(ops);
            self.ns -= ns;
        }
    }
}
