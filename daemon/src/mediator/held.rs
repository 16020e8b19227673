//! The lease time of a session, and how much of the GPU use that a device reports this lease time
//! explains.
//!
//! A device reports the GPU time that it has counted for a process, and the submission of the
//! oldest unfinished work: from then on the count may be incomplete. An honest worker submits under
//! a lease and releases the lease when the work is complete. So lease time since that submission
//! explains all use that the device has yet to count. The check depends neither on when the device
//! counts nor on when vgpud asks or reads the answer: both may be stopped for any time.

use std::collections::VecDeque;

/// Most marks that are kept. If no mark is old enough, a check does not reduce the lease time that
/// may explain later use.
const MARKS: usize = 64;

/// How long a session has held the lease, by vgpud's account: from before the grant is written to
/// after the release is read.
#[derive(Debug, Default)]
pub(super) struct Held {
    total_ns: u64,
    since_ns: Option<u64>,
    marks: VecDeque<Mark>,
}

/// A time at which the devices were about to be asked.
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

    /// Total lease time in ns.
    fn until(&self, now_ns: u64) -> u64 {
        let since = self
            .since_ns
            .map_or(0, |since| now_ns.saturating_sub(since));
        self.total_ns.saturating_add(since)
    }

    /// Called before the devices are asked: the answers describe this moment or a later one.
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

    /// Lease time in ns since the last mark at or before `at_ns`; `None` if no mark is that old.
    fn since(&self, at_ns: u64, now_ns: u64) -> Option<u64> {
        let mark = self.marks.iter().rev().find(|mark| mark.at_ns <= at_ns)?;
        Some(self.until(now_ns).saturating_sub(mark.total_ns))
    }
}

/// How much of a session's use of one device the leases have explained so far, and how much lease
/// time is left to explain later use.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct ExplainedUse {
    /// Reported use at the last audit, and the session's lease time when the report was read, in
    /// ns.
    used_ns: u64,
    held_ns: u64,
    /// Lease time in ns up to then that may still explain later use.
    spare_ns: u64,
}

impl ExplainedUse {
    /// Returns the use in ns that no lease explains. `used_ns` is the total use that the device
    /// reports, as of some moment since the last mark. `open_ns` is the submission time of the
    /// oldest unfinished work: `used_ns` may lack use since then. `None`: `used_ns` is complete.
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
        // Use that the device has yet to count began at `open_ns` or later. Only lease time since
        // then can explain this use.
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

    /// An audit at `at`, of which vgpud reads the answer `LATE` ns later.
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
        // Use between the last question and its answer is explained.
        assert_eq!(look(&mut held, &mut gpu, 3_000, (990, None)), 0);
        assert_eq!(look(&mut held, &mut gpu, 4_000, (990, None)), 0);
        // A lease of long ago does not explain use without a lease.
        assert_eq!(look(&mut held, &mut gpu, 5_000, (1_290, None)), 300);
        assert_eq!(look(&mut held, &mut gpu, 6_000, (1_290, None)), 0);
    }

    #[test]
    fn use_that_is_counted_late_is_explained_by_the_lease_of_its_time() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        // The device's threads are stopped while the kernel runs: nothing is counted for minutes,
        // then all at once.
        for second in 1..=600 {
            let said = (0, Some(1_000));
            assert_eq!(look(&mut held, &mut gpu, second * SECOND, said), 0);
        }
        held.end(600 * SECOND + 10);
        let said = (600 * SECOND, None);
        assert_eq!(look(&mut held, &mut gpu, 601 * SECOND, said), 0);
        // The lease has explained that use, and explains no further use.
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
        // No audit for an hour; vgpud reads the release of that time afterwards.
        held.end(3_600 * SECOND);
        let said = (3_599 * SECOND, None);
        assert_eq!(look(&mut held, &mut gpu, 3_601 * SECOND, said), 0);
    }

    #[test]
    fn idle_lease_time_does_not_explain_later_use_of_a_queue_that_never_empties() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        // The lease is held for 10 s and used for a tenth. Some work is always unfinished, none for
        // longer than `OPEN`.
        const OPEN: u64 = 200 * vgpu_sched::MILLIS;
        for second in 1..=10 {
            let said = (second * SECOND / 10, Some(second * SECOND - OPEN));
            assert_eq!(look(&mut held, &mut gpu, second * SECOND, said), 0);
        }
        held.end(10 * SECOND + 200);
        // Then the device is used without a lease. Only the lease time since the last mark before
        // the unfinished work explains a part of this use.
        let said = (SECOND + 3 * SECOND, Some(13 * SECOND - OPEN));
        let beyond = look(&mut held, &mut gpu, 13 * SECOND, said);
        assert!(beyond > SECOND, "{beyond}");
    }

    #[test]
    fn work_that_goes_on_after_the_release_is_found_however_old_it_is() {
        let (mut held, mut gpu) = (Held::default(), ExplainedUse::default());
        held.begin(0);
        // One kernel of any length, submitted under the lease.
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
