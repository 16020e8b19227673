//! The model's own token buckets, in billionths of a unit, by the rule in `docs/scheduling.md`:
//! lent credit counts as part of the burst, unused credit returns to the bucket, and use beyond the
//! credit becomes a debt.

use vgpu_sched::{Credits, Limits, Rate, SECONDS, Usage};

const UNIT: i128 = SECONDS as i128;
/// Upper bound of rates and bursts.
const LARGEST: u64 = 1 << 62;

#[derive(Debug, Clone)]
struct Bucket {
    rate: Rate,
    level: i128,
    out: u64,
    at_ns: u64,
}

impl Bucket {
    fn new(rate: Rate, now: u64) -> Self {
        let rate = sane(rate);
        let level = i128::from(rate.burst) * UNIT;
        Self {
            rate,
            level,
            out: 0,
            at_ns: now,
        }
    }

    fn fill(&mut self, now: u64) {
        self.earn(now);
        self.cut();
    }

    /// Adds the tokens until now, without the limit of the burst.
    fn earn(&mut self, now: u64) {
        let passed = i128::from(now.saturating_sub(self.at_ns));
        self.at_ns = self.at_ns.max(now);
        self.level += i128::from(self.rate.per_second) * passed;
    }

    /// The part of `units` that exceeds the burst, in billionths.
    fn lacks(&self, units: u128) -> i128 {
        let units = i128::try_from(units.min(u128::from(LARGEST))).unwrap_or(i128::MAX);
        (units - i128::from(self.rate.burst)).max(0) * UNIT
    }

    fn cut(&mut self) {
        let most = (i128::from(self.rate.burst) - i128::from(self.out)) * UNIT;
        self.level = self.level.min(most);
    }

    fn lend(&mut self, now: u64) -> u64 {
        self.fill(now);
        let units = u64::try_from((self.level / UNIT).max(0)).unwrap_or(u64::MAX);
        self.level -= i128::from(units) * UNIT;
        self.out += units;
        units
    }

    fn settle(&mut self, used: u64, now: u64) {
        self.fill(now);
        self.level += (i128::from(self.out) - i128::from(used)) * UNIT;
        self.out = 0;
        self.cut();
    }
}

fn sane(rate: Rate) -> Rate {
    Rate {
        per_second: rate.per_second.min(LARGEST),
        burst: rate.burst.clamp(1, LARGEST),
    }
}

/// The buckets of a VM.
#[derive(Debug, Clone)]
pub(super) struct Buckets {
    calls: Option<Bucket>,
    bytes: Option<Bucket>,
    gpu_time: Option<Bucket>,
}

impl Buckets {
    pub(super) fn new(limits: &Limits, now: u64) -> Self {
        let full = |rate: Option<Rate>| rate.map(|rate| Bucket::new(rate, now));
        Self {
            calls: full(limits.calls),
            bytes: full(limits.bytes),
            gpu_time: full(limits.gpu_time),
        }
    }

    /// Sets new limits. Debts stay; the bucket of an added limit starts full.
    pub(super) fn configure(&mut self, limits: &Limits, now: u64) {
        let set = |bucket: &mut Option<Bucket>, rate: Option<Rate>| match (bucket.as_mut(), rate) {
            (Some(bucket), Some(rate)) => {
                bucket.fill(now);
                bucket.rate = sane(rate);
                bucket.cut();
            }
            (_, rate) => *bucket = rate.map(|rate| Bucket::new(rate, now)),
        };
        set(&mut self.calls, limits.calls);
        set(&mut self.bytes, limits.bytes);
        set(&mut self.gpu_time, limits.gpu_time);
    }

    /// Lends all tokens to a session. Returns the totals up to which the session may go on, if it
    /// has used `used`.
    pub(super) fn lend(&mut self, used: Usage, now: u64) -> Credits {
        let total = |bucket: &mut Option<Bucket>, used: u64| {
            bucket
                .as_mut()
                .map_or(u64::MAX, |bucket| used.saturating_add(bucket.lend(now)))
        };
        Credits {
            calls: total(&mut self.calls, used.calls),
            bytes: total(&mut self.bytes, used.bytes),
        }
    }

    /// Ends a loan of credit. Use under "no limit" is not charged to a later limit. `died`: the
    /// worker died, so at least all its credit counts as used.
    pub(super) fn settle(&mut self, had: Credits, used: Usage, died: bool, now: u64) {
        let settle = |bucket: &mut Option<Bucket>, had: u64, used: u64| {
            if let Some(bucket) = bucket {
                let used = match had {
                    u64::MAX => 0,
                    _ if died => used.max(bucket.out),
                    _ => used,
                };
                bucket.settle(used, now);
            }
        };
        settle(&mut self.calls, had.calls, used.calls);
        settle(&mut self.bytes, had.bytes, used.bytes);
    }

    /// Charges calls and bytes that were used without credit.
    pub(super) fn charge(&mut self, used: Usage, now: u64) {
        let buckets = [(&mut self.calls, used.calls), (&mut self.bytes, used.bytes)];
        for (bucket, units) in buckets {
            if let Some(bucket) = bucket {
                bucket.fill(now);
                bucket.level -= i128::from(units) * UNIT;
            }
        }
    }

    /// Charges GPU time that was used from `from` to `now`. Tokens of that time count even if the
    /// bucket was full before. A gang is charged once per GPU for the same time; the tokens are
    /// added only the first time.
    pub(super) fn charge_gpu(&mut self, ns: u64, from: u64, now: u64) {
        if let Some(bucket) = &mut self.gpu_time {
            if from >= bucket.at_ns {
                bucket.fill(from);
            }
            bucket.earn(now);
            bucket.level -= i128::from(ns) * UNIT;
        }
    }

    /// Whether at least one nanosecond is left. A turn of `turn_ns` may use, as a debt, the part
    /// that exceeds a full bucket. (The scheduler charges in larger steps and so never has more
    /// than this.)
    pub(super) fn has_gpu_time(&mut self, turn_ns: u128, now: u64) -> bool {
        self.gpu_time.as_mut().is_none_or(|bucket| {
            bucket.fill(now);
            bucket.level + bucket.lacks(turn_ns) >= UNIT
        })
    }

    /// Whether more was used than the bucket had, including the debt that a turn of `turn_ns` may
    /// use.
    pub(super) fn owes_gpu_time(&mut self, turn_ns: u128, now: u64) -> bool {
        self.gpu_time.as_mut().is_some_and(|bucket| {
            bucket.fill(now);
            bucket.level + bucket.lacks(turn_ns) < 0
        })
    }
}
