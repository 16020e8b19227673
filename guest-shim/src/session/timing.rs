//! Decides when buffered asynchronous calls are written to the socket.
//!
//! A call is written at most 50 µs (400 µs during a backlog) after it was made, by the pump if by
//! no other thread. A timer that wakes the pump costs several microseconds in a virtual machine,
//! because setting the timer leaves the guest. That is more than the cost of a write, so timers are
//! only used in bursts:
//! - after a synchronous call or a pause, the first calls are written at once: the device may be
//!   idle, and then each earlier start saves time;
//! - in a burst, calls are gathered in the buffer. The timer is set once per buffer, and the
//!   calling thread writes a full buffer;
//! - after several full buffers in a row, the worker has a backlog, and the last calls of the burst
//!   wait for this backlog anyway. The timer is then set once for several buffers, and for a longer
//!   time.

use std::time::{Duration, Instant};

use vgpu_proto::limits::FLUSH_AFTER_US;

/// Number of calls that are written at once after a pause or a synchronous call.
const PROMPT_CALLS: u32 = 2;
/// Time without a write after which the next calls are written at once again.
const PAUSE: Duration = Duration::from_micros(20);
/// Number of successive full buffers that count as a backlog.
const STREAK: u32 = 4;
/// Number of full buffers that share one timer during a backlog.
const STREAK_SHARES: u32 = 8;

/// Usual time of the timer.
const AFTER: Duration = Duration::from_micros(FLUSH_AFTER_US);
/// Time of the timer during a backlog.
const STREAK_AFTER: Duration = Duration::from_micros(8 * FLUSH_AFTER_US);

/// The next step of the caller, after the caller has put a call into the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Write the buffer now.
    Write,
    /// Set the timer.
    Arm(Duration),
    /// Do nothing: the timer is already running.
    Wait,
}

/// The rules above, with their state.
#[derive(Debug)]
pub(super) struct Timing {
    /// Whether the timer runs for the calls in the buffer.
    armed: bool,
    /// Number of calls that will still be written at once.
    prompt: u32,
    /// Number of successive full buffers.
    streak: u32,
    /// Time of the last write.
    written: Instant,
}

impl Timing {
    /// The state before the first write.
    pub(super) fn new(now: Instant) -> Timing {
        Timing {
            armed: false,
            prompt: PROMPT_CALLS,
            streak: 0,
            written: now,
        }
    }

    /// Decides what to do after a call was put into the buffer; `full` says whether the buffer is
    /// full. Reads the clock only if the decision needs the time.
    #[inline]
    pub(super) fn posted(&mut self, full: bool, now: impl FnOnce() -> Instant) -> Act {
        if full {
            self.streak = self.streak.saturating_add(1);
            if self.streak < STREAK || self.streak.is_multiple_of(STREAK_SHARES) {
                // The next buffer then sets the timer again, which postpones the expiry.
                self.armed = false;
            }
            return Act::Write;
        }
        if self.armed {
            return Act::Wait;
        }
        if self.prompt == 0 && now().saturating_duration_since(self.written) > PAUSE {
            self.prompt = PROMPT_CALLS;
            self.streak = 0;
        }
        if self.prompt > 0 {
            self.prompt -= 1;
            return Act::Write;
        }
        self.armed = true;
        Act::Arm(if self.streak < STREAK {
            AFTER
        } else {
            STREAK_AFTER
        })
    }

    /// Notes that a synchronous call is about to write everything. True: the caller stops the
    /// timer, so that the timer does not wake the pump.
    pub(super) fn synchronous(&mut self) -> bool {
        self.prompt = PROMPT_CALLS;
        self.streak = 0;
        std::mem::take(&mut self.armed)
    }

    /// Notes that the timer expired and the pump is about to write everything.
    pub(super) fn fired(&mut self) {
        self.armed = false;
        self.streak = 0;
    }

    /// Records that buffered requests were written to the socket at `now`.
    pub(super) fn wrote(&mut self, now: Instant) {
        self.written = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(us: u64) -> impl Fn() -> Instant {
        use std::sync::OnceLock;
        static START: OnceLock<Instant> = OnceLock::new();
        let start = *START.get_or_init(Instant::now);
        move || start + Duration::from_micros(us)
    }

    #[test]
    fn a_few_calls_then_a_synchronous_one_set_no_timer() {
        let mut timing = Timing::new(at(0)());
        for round in 0..10 {
            assert_eq!(timing.posted(false, at(round)), Act::Write);
            assert_eq!(timing.posted(false, at(round)), Act::Write);
            assert!(!timing.synchronous());
        }
    }

    #[test]
    fn a_burst_sets_the_timer_once_a_buffer() {
        let mut timing = Timing::new(at(0)());
        timing.posted(false, at(0));
        timing.posted(false, at(0));
        timing.wrote(at(0)());
        assert_eq!(timing.posted(false, at(1)), Act::Arm(AFTER));
        assert_eq!(timing.posted(false, at(1)), Act::Wait);
        assert_eq!(timing.posted(true, at(1)), Act::Write);
        timing.wrote(at(1)());
        assert_eq!(timing.posted(false, at(2)), Act::Arm(AFTER));
        assert!(timing.synchronous(), "a running timer is stopped");
    }

    #[test]
    fn a_long_burst_sets_it_rarely() {
        let mut timing = Timing::new(at(0)());
        let mut set = 0;
        for n in 0..800 {
            set += usize::from(matches!(timing.posted(false, at(0)), Act::Arm(_)));
            set += usize::from(matches!(timing.posted(true, at(n)), Act::Arm(_)));
            timing.wrote(at(0)());
        }
        assert!((50..200).contains(&set), "{set}");
    }

    #[test]
    fn whatever_happens_a_waiting_call_has_a_timer() {
        // Checks every sequence of six steps: after each call that was not written, a timer runs.
        for sequence in 0..4_u32.pow(6) {
            let mut timing = Timing::new(at(0)());
            let (mut running, mut rest) = (false, sequence);
            for step in 0..6 {
                match rest % 4 {
                    0 | 1 => match timing.posted(rest % 4 == 1, at(step)) {
                        Act::Write => timing.wrote(at(step)()),
                        Act::Arm(_) => running = true,
                        Act::Wait => assert!(running, "sequence {sequence}, step {step}"),
                    },
                    2 => running &= !timing.synchronous(),
                    _ => {
                        running = false;
                        timing.fired();
                    }
                }
                rest /= 4;
            }
        }
    }

    #[test]
    fn a_pause_makes_calls_prompt_again() {
        let mut timing = Timing::new(at(0)());
        timing.posted(false, at(0));
        timing.posted(false, at(0));
        timing.wrote(at(0)());
        assert!(matches!(timing.posted(false, at(10)), Act::Arm(_)));
        timing.fired();
        timing.wrote(at(60)());
        assert_eq!(timing.posted(false, at(100)), Act::Write);
    }
}
