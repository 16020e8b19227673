//! When a call that nobody waits for is written.
//!
//! At the latest 50 µs after it was made, by the pump. Setting the timer for that costs several
//! microseconds in a virtual machine (it leaves the guest), more than a write, so it is saved for
//! bursts:
//! - after a synchronous call or a pause, the first calls are written at once: the device may be
//!   idle, and each that starts earlier is time won;
//! - in a burst, calls gather, the timer is set once a buffer, and a full buffer is written by its
//!   caller;
//! - after several full buffers in a row the worker has a backlog behind which the last calls of
//!   the burst wait anyway, so the timer is set once for many buffers, and for longer.

use std::time::{Duration, Instant};

use vgpu_proto::limits::FLUSH_AFTER_US;

/// Calls after a pause or a synchronous call that are written at once.
const PROMPT_CALLS: u32 = 2;
/// How long nothing was written before calls are prompt again.
const PAUSE: Duration = Duration::from_micros(20);
/// Full buffers in a row that make a backlog.
const STREAK: u32 = 4;
/// Full buffers that then share one setting of the timer.
const STREAK_SHARES: u32 = 8;

/// The timer's usual time.
const AFTER: Duration = Duration::from_micros(FLUSH_AFTER_US);
/// Its time in a streak.
const STREAK_AFTER: Duration = Duration::from_micros(8 * FLUSH_AFTER_US);

/// What is to be done about a call just put into the buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    /// Write the buffer now.
    Write,
    /// Set the timer.
    Arm(Duration),
    /// Nothing: the timer runs already.
    Wait,
}

/// The rules above, and what they remember.
#[derive(Debug)]
pub(super) struct Timing {
    /// The timer runs for what is in the buffer.
    armed: bool,
    /// Calls that will still be written at once.
    prompt: u32,
    /// Full buffers in a row.
    streak: u32,
    /// When something was last written.
    written: Instant,
}

impl Timing {
    /// Nothing written yet.
    pub(super) fn new(now: Instant) -> Timing {
        Timing {
            armed: false,
            prompt: PROMPT_CALLS,
            streak: 0,
            written: now,
        }
    }

    /// A call was put into the buffer, which is now full or not. The clock is asked only where it
    /// matters.
    #[inline]
    pub(super) fn posted(&mut self, full: bool, now: impl FnOnce() -> Instant) -> Act {
        if full {
            self.streak = self.streak.saturating_add(1);
            if self.streak < STREAK || self.streak.is_multiple_of(STREAK_SHARES) {
                // The next buffer sets the timer anew, which is all it takes to put it off.
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

    /// A synchronous call is about to write everything; true if the timer should be stopped, which
    /// spares the pump a wake for nothing.
    pub(super) fn synchronous(&mut self) -> bool {
        self.prompt = PROMPT_CALLS;
        self.streak = 0;
        std::mem::take(&mut self.armed)
    }

    /// The timer fired, and the pump is about to write everything.
    pub(super) fn fired(&mut self) {
        self.armed = false;
        self.streak = 0;
    }

    /// Something was written.
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
        // Every sequence of six steps: after each call that was not written, a timer runs.
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
