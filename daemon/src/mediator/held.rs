//! How long a session has held the lease, and what of a device's account of use that explains.
//!
//! A device says what it has counted for a process, and since when it may have more to count: since
//! the oldest work that is not over was submitted. An honest worker submits under a lease and gives
//! it back when its work is over, so whatever the device has yet to count was used in lease time
//! since then. Nothing here depends on how soon the device counts, or on how soon vgpud looks or
//! hears: both may be stopped for any time.

use std::collections::VecDeque;

/// Looks that are remembered. What is older explains as much as it did when it was forgotten.
const MARKS: usize = 64;

/// How long a session has held the lease, by vgpud's account: from before the grant is written to
/// after the release is read.
#[derive(Debug, Default)]
pub(super) struct Held {
    total_ns: u64,
    since_ns: Option<u64>,
    marks: VecDeque<Mark>,
}

/// The devices were going to be asked.
#[derive(Debug)]
struct Mark {
    at_ns: u64,
    total_ns: u64,
}

impl Held {
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    pub(super) fn end(&mut self, now_ns: u64) {
        self.total_ns = self.until(now_ns);
        self.since_ns = None;
    }

    /// Lease time in all.
    fn until(&self, now_ns: u64) -> u64 {
        let since = self
            .since_ns
            .map_or(0, |since| now_ns.saturating_sub(since));
        self.total_ns.saturating_add(since)
    }

    /// The devices are going to be asked: what they answer is of this moment or a later one.
    pub(super) fn mark(&mut self, now_ns: u64) {
        let total_ns = self.until(now_ns);
        self.marks.push_back(Mark {
            at_ns: now_ns,
            total_ns,
        });
        if self.marks.len() > MARKS {
            self.marks.pop_front();
        }
    }

    /// Lease time since a moment, or since the last mark before it; `None` where no mark is as old.
    fn since(&self, at_ns: u64, now_ns: u64) -> Option<u64> {
        let mark = self.marks.iter().rev().find(|mark| mark.at_ns <= at_ns)?;
        Some(self.until(now_ns).saturating_sub(mark.total_ns))
    }
}

/// A session's use of one device, as far as it has been explained.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ExplainedUse {
    /// What the device said at the last look, and the session's lease time when that was heard.
    used_ns: u64,
    held_ns: u64,
    /// Lease time up to then that may yet explain use.
    spare_ns: u64,
}

impl ExplainedUse {
    /// The device says that the session has used it for `used_ns` in all, at some moment since the
    /// last mark, and may not have counted use since `open_ns` (`None`: it has counted all). What
    /// of that can no lease explain?
    pub(super) fn take(
        &mut self,
        held: &Held,
        (used_ns, open_ns): (u64, Option<u64>),
        now_ns: u64,
    ) -> u64 {
        let used = used_ns.saturating_sub(self.used_ns);
        let total = held.until(now_ns);
        let explains = (self.spare_ns).saturating_add(total.saturating_sub(self.held_ns));
        (self.used_ns, self.held_ns) = (used_ns, total);
        // A lease that was held before all the work that is not over explains nothing that is still
        // to come.
        let since = held.since(open_ns.unwrap_or(u64::MAX), now_ns);
        let left = explains.saturating_sub(used);
        self.spare_ns = since.map_or(left, |since| left.min(since));
        used.saturating_sub(explains)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000 * vgpu_sched::MILLIS;

    /// A look at this time, heard `LATE` later.
    fn look(held: &mut Held, gpu: &mut ExplainedUse, at: u64, said: (u64, Option<u64>)) -> u64 {
        const LATE: u64 = 100;
        held.mark(at);
        gpu.take(held, said, at + LATE)
    }

    #[test]
    fn use_is_explained_by_leases_of_the_same_time() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(1_000);
        assert_eq!(look(&mut held, &mut gpu, 1_500, (550, None)), 0);
        held.end(2_000);
        // What was used after the device was last asked and before that was heard is explained.
        assert_eq!(look(&mut held, &mut gpu, 3_000, (990, None)), 0);
        assert_eq!(look(&mut held, &mut gpu, 4_000, (990, None)), 0);
        // A lease that was held long ago does not pay for use without one.
        assert_eq!(look(&mut held, &mut gpu, 5_000, (1_290, None)), 300);
        assert_eq!(look(&mut held, &mut gpu, 6_000, (1_290, None)), 0);
    }

    #[test]
    fn use_that_is_counted_however_late_is_explained_by_the_lease_it_was_made_under() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        // Its threads are stopped while its kernel runs: nothing is counted for minutes, then all.
        for second in 1..=600 {
            let said = (0, Some(1_000));
            assert_eq!(look(&mut held, &mut gpu, second * SECOND, said), 0);
        }
        held.end(600 * SECOND + 10);
        let said = (600 * SECOND, None);
        assert_eq!(look(&mut held, &mut gpu, 601 * SECOND, said), 0);
        // That is paid for, and pays for nothing more.
        let said = (601 * SECOND, None);
        let beyond = look(&mut held, &mut gpu, 602 * SECOND, said);
        assert!(beyond > SECOND - 1_100, "{beyond}");
    }

    #[test]
    fn vgpud_may_be_stopped_for_any_time() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        let said = (SECOND - 20, Some(SECOND - 15));
        assert_eq!(look(&mut held, &mut gpu, SECOND, said), 0);
        // No look for an hour; what was released then is heard after it.
        held.end(3_600 * SECOND);
        let said = (3_599 * SECOND, None);
        assert_eq!(look(&mut held, &mut gpu, 3_601 * SECOND, said), 0);
    }

    #[test]
    fn a_queue_that_never_empties_makes_no_permit_of_idle_leases() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        // Held for ten seconds with a tenth used; some work is always open, none for longer than
        // this.
        const OPEN: u64 = 200 * vgpu_sched::MILLIS;
        for second in 1..=10 {
            let said = (second * SECOND / 10, Some(second * SECOND - OPEN));
            assert_eq!(look(&mut held, &mut gpu, second * SECOND, said), 0);
        }
        held.end(10 * SECOND + 200);
        // Then it goes on without: at most the lease time since the look before the open work is
        // forgiven.
        let said = (SECOND + 3 * SECOND, Some(13 * SECOND - OPEN));
        let beyond = look(&mut held, &mut gpu, 13 * SECOND, said);
        assert!(beyond > SECOND, "{beyond}");
    }

    #[test]
    fn work_that_goes_on_after_the_release_is_found_however_old_it_is() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        // One kernel for as long as it likes, submitted under the lease.
        for second in 1..=100 {
            let said = (second * SECOND, Some(10));
            assert_eq!(look(&mut held, &mut gpu, second * SECOND, said), 0);
        }
        held.end(100 * SECOND + 200);
        let said = (101 * SECOND, Some(10));
        let beyond = look(&mut held, &mut gpu, 101 * SECOND, said);
        assert!(beyond > SECOND - 1_000, "{beyond}");
    }
}
