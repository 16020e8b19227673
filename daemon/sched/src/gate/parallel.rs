//! Learns by trials how many streams of a session run on the device at the same time.
//!
//! The gate compares the sum of the times of completed operations with the time that passed: two
//! operations of 800 µs each that complete within 800 µs ran at the same time. In every fourth
//! phase, while no other session waits, the gate admits one stream more than the estimate.

/// Largest estimate of streams that run at the same time.
const MOST: u64 = 32;
/// Minimum number of completions in a phase.
const PHASE: u64 = 8;
/// One phase of this many phases tries one more stream.
const TRY_EVERY: u64 = 4;

/// The estimate, and the phase that tests it.
#[derive(Debug, Clone)]
pub(super) struct Parallel {
    streams: u64,
    phase: u64,
    completions: u64,
    summed_ns: u64,
    busy_ns: u64,
}

impl Default for Parallel {
    fn default() -> Parallel {
        Parallel {
            streams: 1,
            phase: 0,
            completions: 0,
            summed_ns: 0,
            busy_ns: 0,
        }
    }
}

impl Parallel {
    /// Estimated number of streams that run at the same time, at least 1.
    pub(super) fn streams(&self) -> u64 {
        self.streams
    }

    /// Whether this phase tries one more stream.
    pub(super) fn trying(&self) -> bool {
        self.phase % TRY_EVERY == TRY_EVERY - 1
    }

    /// Records that operations of one stream completed, which took `took_ns`. `busy_ns`: time since
    /// the session's last completion. `overlapped`: another stream had unfinished work at the same
    /// time.
    pub(super) fn completed(&mut self, took_ns: u64, busy_ns: u64, overlapped: bool) {
        self.completions += 1;
        if overlapped {
            self.summed_ns = self.summed_ns.saturating_add(took_ns);
            self.busy_ns = self.busy_ns.saturating_add(busy_ns);
        }
        if self.completions < PHASE.max(2 * self.streams) {
            return;
        }
        let rounded = self.summed_ns.saturating_add(self.busy_ns / 2);
        if let Some(seen) = rounded.checked_div(self.busy_ns) {
            self.streams = seen.clamp(1, MOST);
        }
        *self = Parallel {
            streams: self.streams,
            phase: self.phase + 1,
            ..Parallel::default()
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_by_trying_and_shrinks_by_seeing() {
        let mut p = Parallel::default();
        // The device runs five streams at the same time; the program has more.
        for _ in 0..2_000 {
            let running = (p.streams() + u64::from(p.trying())).min(5);
            p.completed(800 * running, 800, true);
        }
        assert_eq!(p.streams(), 5);
        for _ in 0..100 {
            p.completed(800, 800, true);
        }
        assert_eq!(p.streams(), 1);
    }

    #[test]
    fn one_stream_alone_says_nothing() {
        let mut p = Parallel {
            streams: 4,
            ..Parallel::default()
        };
        for _ in 0..100 {
            p.completed(800, 800, false);
        }
        assert_eq!(p.streams(), 4);
    }
}
