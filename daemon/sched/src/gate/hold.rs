//! How long a session keeps its lease without work.
//!
//! A program that synchronises often is idle between a result and its next launch. Moving the GPU
//! to another session for that time costs more than waiting. A program that has ended or sleeps
//! stays idle for longer than any hold. Therefore [`Hold`] learns the hold from the last gaps of
//! the session: the times without work. vgpud grants a longest hold with each lease. Gaps longer
//! than the granted hold are left out; the learned hold covers nine tenths of the remaining gaps.
//! If most gaps are longer than the granted hold, the learned hold is the minimum.

/// Shortest hold: 50 µs, or the granted hold if that is shorter.
const LEAST_NS: u64 = 50_000;
/// Number of remembered gaps.
const GAPS: usize = 32;
/// Minimum number of gaps from which a hold is learned.
const ENOUGH: usize = 4;

/// The learned idle hold of a session.
#[derive(Debug, Clone, Default)]
pub struct Hold {
    gaps: [u64; GAPS],
    /// Number of gaps recorded so far.
    seen: usize,
    idle_since: Option<u64>,
    /// Cached result of [`Hold::hold_ns`]: the granted hold for which the result was computed, and
    /// the learned hold, in ns. The end of a gap clears this field.
    known: Option<(u64, u64)>,
}

impl Hold {
    /// The session has no work since `now`. A repeated call has no effect.
    pub fn idle(&mut self, now: u64) {
        self.idle_since.get_or_insert(now);
    }

    /// The session has work again: the gap ends.
    pub fn work(&mut self, now: u64) {
        let Some(since) = self.idle_since.take() else {
            return;
        };
        self.gaps[self.seen % GAPS] = now.saturating_sub(since);
        self.seen += 1;
        self.known = None;
    }

    /// Time in ns at which the session ran out of work; `None` while it has work.
    #[must_use]
    pub fn idle_since(&self) -> Option<u64> {
        self.idle_since
    }

    /// Time in ns for which to keep the lease after a gap begins: at most `granted`.
    pub fn hold_ns(&mut self, granted: u64) -> u64 {
        match self.known {
            Some((for_granted, hold)) if for_granted == granted => hold,
            _ => {
                let hold = self.learned(granted);
                self.known = Some((granted, hold));
                hold
            }
        }
    }

    /// Whether all of the last 32 gaps were at most `granted`. The next gap probably is, too.
    #[must_use]
    pub fn is_steady(&self, granted: u64) -> bool {
        self.seen >= GAPS && self.gaps.iter().all(|gap| *gap <= granted)
    }

    fn learned(&self, granted: u64) -> u64 {
        let seen = self.seen.min(GAPS);
        if seen < ENOUGH {
            return granted;
        }
        let mut spanned = self.gaps;
        let spanned = &mut spanned[..seen];
        spanned.sort_unstable();
        let within = spanned.partition_point(|gap| *gap <= granted);
        if within * 2 < seen {
            return LEAST_NS.min(granted);
        }
        // The 90th percentile of the gaps that the hold can cover, plus half as much again for
        // variation.
        let ninth = spanned[(within * 9).div_ceil(10).max(1) - 1];
        (ninth + ninth / 2).max(LEAST_NS).min(granted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRANTED: u64 = 200_000;

    fn after(gaps: &[u64]) -> Hold {
        let mut hold = Hold::default();
        let mut now = 0;
        for gap in gaps {
            now += 1_000;
            hold.idle(now);
            hold.idle(now + gap / 2);
            now += gap;
            hold.work(now);
        }
        hold
    }

    #[test]
    fn nothing_known_holds_what_was_granted() {
        assert_eq!(Hold::default().hold_ns(GRANTED), GRANTED);
        assert_eq!(after(&[10, 10]).hold_ns(GRANTED), GRANTED);
    }

    #[test]
    fn a_loop_that_synchronises_is_held_for_its_gap_and_a_little() {
        assert_eq!(after(&[80_000; 40]).hold_ns(GRANTED), 120_000);
        assert_eq!(
            after(&[5_000; 40]).hold_ns(GRANTED),
            LEAST_NS,
            "the shortest hold"
        );
        assert_eq!(
            after(&[190_000; 40]).hold_ns(GRANTED),
            GRANTED,
            "the granted hold"
        );
    }

    #[test]
    fn a_program_that_sleeps_wastes_little() {
        assert_eq!(after(&[10_000_000; 10]).hold_ns(GRANTED), LEAST_NS);
    }

    #[test]
    fn a_pause_now_and_then_changes_nothing() {
        let mut gaps = [80_000; 32];
        for pause in gaps.iter_mut().step_by(4) {
            *pause = 30_000_000;
        }
        assert_eq!(after(&gaps).hold_ns(GRANTED), 120_000);
    }

    #[test]
    fn what_was_granted_is_never_exceeded_and_may_change() {
        let mut hold = after(&[80_000; 40]);
        assert_eq!(hold.hold_ns(0), 0);
        assert_eq!(hold.hold_ns(20_000), 20_000);
        assert_eq!(hold.hold_ns(100_000), 100_000);
        assert_eq!(hold.hold_ns(GRANTED), 120_000);
    }

    #[test]
    fn only_a_loop_without_a_long_pause_is_steady() {
        assert!(after(&[80_000; 32]).is_steady(GRANTED));
        assert!(
            !after(&[80_000; 31]).is_steady(GRANTED),
            "too few pauses are known"
        );
        assert!(!after(&[80_000; 32]).is_steady(70_000));
        let mut gaps = [80_000; 40];
        gaps[20] = 30_000_000;
        assert!(!after(&gaps).is_steady(GRANTED));
    }

    #[test]
    fn old_gaps_are_forgotten() {
        let mut gaps = vec![10_000_000; 32];
        gaps.extend([70_000; 32]);
        assert_eq!(after(&gaps).hold_ns(GRANTED), 105_000);
    }
}
