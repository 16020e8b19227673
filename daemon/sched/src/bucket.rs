//! Rate limits by integer deficit buckets. An operation starts if the bucket is not empty and may
//! take more than the bucket holds; the next operation then waits until the refill has paid the
//! debt.

use serde::{Deserialize, Serialize};

use crate::config::{Rate, SECONDS};

/// A bucket counts in billionths of a unit: a rate of N units per second then adds N per ns,
/// without fractions.
const SCALE: i128 = SECONDS as i128;
/// Upper bound of rates and bursts, so that no product exceeds 128 bits.
const LARGEST: u64 = 1 << 62;

/// A deficit bucket.
///
/// A lease holder borrows credit from the bucket. Until [`Bucket::settle`], the borrowed credit
/// counts as part of the burst, so that credit and level together never exceed the burst. Therefore
/// at most `burst + rate × t` units are used in any `t` seconds, plus the part of one operation
/// that exceeds the credit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Bucket {
    rate: Rate,
    /// Billionths of units that may be used now; negative: a debt.
    level: i128,
    /// Units lent to a lease holder and not yet settled.
    lent: u64,
    /// Time of the last refill.
    at_ns: u64,
}

impl Bucket {
    /// A full bucket.
    pub(crate) fn new(rate: Rate, now_ns: u64) -> Self {
        let rate = sane(rate);
        Self {
            rate,
            level: i128::from(rate.burst) * SCALE,
            lent: 0,
            at_ns: now_ns,
        }
    }

    /// Changes rate and burst. A debt stays.
    pub(crate) fn set_rate(&mut self, rate: Rate, now_ns: u64) {
        self.refill(now_ns);
        self.rate = sane(rate);
        self.level = self.level.min(self.room());
    }

    /// The rate in force.
    pub(crate) fn rate(&self) -> Rate {
        self.rate
    }

    fn room(&self) -> i128 {
        i128::from(self.rate.burst) * SCALE - i128::from(self.lent) * SCALE
    }

    /// Adds the tokens since the last refill, up to the burst.
    fn refill(&mut self, now_ns: u64) {
        let came = self.came(now_ns);
        self.level = (self.level + came).min(self.room());
    }

    /// Tokens earned since the last refill, in billionths, without the limit of the burst.
    fn came(&mut self, now_ns: u64) -> i128 {
        let passed = i128::from(now_ns.saturating_sub(self.at_ns).min(LARGEST));
        self.at_ns = self.at_ns.max(now_ns);
        i128::from(self.rate.per_second) * passed
    }

    /// Whole units that may be used now.
    pub(crate) fn available(&mut self, now_ns: u64) -> u64 {
        self.refill(now_ns);
        u64::try_from((self.level / SCALE).max(0)).unwrap_or(u64::MAX)
    }

    /// Lends all whole units of the bucket to a lease holder. Returns the number of units.
    pub(crate) fn lend(&mut self, now_ns: u64) -> u64 {
        let units = self.available(now_ns);
        self.level -= i128::from(units) * SCALE;
        self.lent += units;
        units
    }

    /// Ends a loan of credit: the holder used `used` units, possibly more than it had borrowed.
    /// Unused units return to the bucket.
    pub(crate) fn settle(&mut self, used: u64, now_ns: u64) {
        self.refill(now_ns);
        self.level += (i128::from(self.lent) - i128::from(used)) * SCALE;
        self.lent = 0;
        self.level = self.level.min(self.room());
    }

    /// Ends a loan of credit whose worker died without a report: charges the whole loan, or `known`
    /// units if those are more.
    pub(crate) fn forfeit(&mut self, known: u64, now_ns: u64) {
        self.settle(self.lent.max(known), now_ns);
    }

    /// Charges units without a loan, used evenly between `from_ns` and `now_ns`. Tokens earned in
    /// that time count even if the bucket was full. Tokens earned before `from_ns` count only up to
    /// the burst. A caller that charges several units for the same time (several GPUs, say) calls
    /// this function once for each; the tokens are added only once.
    pub(crate) fn charge(&mut self, units: u64, from_ns: u64, now_ns: u64) {
        if from_ns >= self.at_ns {
            self.refill(from_ns);
        }
        // The level may exceed the burst here. The next refill reduces the level to the burst,
        // after all charges of the same time.
        self.level += self.came(now_ns) - i128::from(units) * SCALE;
    }

    /// Time in ns at which `units` (at most the burst) can be used, if the level may fall to
    /// `-debt`. `u64::MAX`: never.
    pub(crate) fn ready_at(&mut self, units: u64, debt: u64, now_ns: u64) -> u64 {
        self.refill(now_ns);
        let wanted = i128::from(units.min(self.rate.burst)) - i128::from(debt.min(LARGEST));
        let missing = wanted * SCALE - self.level;
        if missing <= 0 {
            return now_ns;
        }
        if self.rate.per_second == 0 {
            return u64::MAX;
        }
        let rate = i128::from(self.rate.per_second);
        let wait = (missing + rate - 1) / rate;
        u64::try_from(wait).map_or(u64::MAX, |wait| now_ns.saturating_add(wait))
    }

    /// Time in ns at which a use of `per_ns` units per ns lowers the level to `-debt`. `u64::MAX`:
    /// never.
    pub(crate) fn empty_at(&mut self, per_ns: u64, debt: u64, now_ns: u64) -> u64 {
        self.refill(now_ns);
        let drain = SCALE * i128::from(per_ns) - i128::from(self.rate.per_second);
        if drain <= 0 {
            return u64::MAX;
        }
        let left = self.level + i128::from(debt.min(LARGEST)) * SCALE;
        let left = (left.max(0) + drain - 1) / drain;
        u64::try_from(left).map_or(u64::MAX, |left| now_ns.saturating_add(left))
    }
}

fn sane(rate: Rate) -> Rate {
    Rate {
        per_second: rate.per_second.min(LARGEST),
        burst: rate.burst.clamp(1, LARGEST),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bucket(per_second: u64, burst: u64) -> Bucket {
        Bucket::new(Rate { per_second, burst }, 0)
    }

    #[test]
    fn credit_comes_back_and_does_not_multiply() {
        let mut b = bucket(1000, 10);
        assert_eq!(b.lend(0), 10);
        assert_eq!(
            b.available(SECONDS),
            0,
            "lent credit counts against the burst"
        );
        b.settle(3, SECONDS);
        assert_eq!(b.available(SECONDS), 7);
        assert_eq!(b.available(2 * SECONDS), 10);
    }

    #[test]
    fn what_comes_in_before_is_lost_beyond_the_burst() {
        let mut b = bucket(SECONDS / 2, 1_000_000);
        b.charge(3_000_000, SECONDS, SECONDS + 3_000_000);
        assert_eq!(b.available(SECONDS + 3_000_000), 0);
    }

    #[test]
    fn what_comes_in_while_time_is_used_counts_though_the_bucket_was_full() {
        let mut b = bucket(SECONDS / 2, 1_000_000);
        b.charge(3_000_000, 0, 3_000_000);
        assert_eq!(
            b.ready_at(1, 0, 3_000_000),
            4_000_002,
            "half a millisecond is owed"
        );
        b.charge(0, SECONDS, SECONDS);
        assert_eq!(
            b.available(SECONDS),
            1_000_000,
            "and it is never more than full"
        );
    }

    #[test]
    fn a_debt_is_paid_before_anything_else() {
        let mut b = bucket(100, 10);
        assert_eq!(b.lend(0), 10);
        b.settle(1010, 0);
        assert_eq!(b.available(9 * SECONDS), 0);
        assert_eq!(b.ready_at(1, 0, 9 * SECONDS), 10 * SECONDS + SECONDS / 100);
        assert_eq!(b.available(11 * SECONDS), 10);
    }

    #[test]
    fn extremes_do_not_overflow() {
        let mut b = bucket(u64::MAX, u64::MAX);
        b.lend(0);
        b.settle(u64::MAX, u64::MAX);
        b.charge(u64::MAX, 0, u64::MAX);
        assert_eq!(b.empty_at(1, u64::MAX, u64::MAX), u64::MAX);
        let mut none = bucket(0, 0);
        assert_eq!(none.lend(0), 1);
        none.settle(1, 5);
        assert_eq!(none.ready_at(1, 0, 5), u64::MAX);
        assert_eq!(
            none.ready_at(1, 1, 5),
            5,
            "a debt of one unit is allowed, and the bucket is empty"
        );
    }

    #[test]
    fn emptying_takes_longer_while_it_refills() {
        let mut b = bucket(SECONDS / 2, 1_000_000);
        assert_eq!(b.empty_at(1, 0, 0), 2_000_000);
        assert_eq!(
            b.empty_at(1, 500_000, 0),
            3_000_000,
            "the allowed debt adds to the time"
        );
    }

    #[test]
    fn several_uses_of_the_same_time_earn_once_and_lose_nothing_at_the_brim() {
        // 1.5 GPU seconds per second refill the bucket. Two GPUs use 2 × 2 ms in 2 ms, and 3 ms are
        // earned: 1 ms of the full bucket is gone.
        let mut b = bucket(3 * SECONDS / 2, 10_000_000);
        for _ in 0..2 {
            b.charge(2_000_000, SECONDS, SECONDS + 2_000_000);
        }
        assert_eq!(b.available(SECONDS + 2_000_000), 9_000_000);
    }
}
