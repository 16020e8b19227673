//! Log-linear histograms of nanoseconds in fixed memory.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Values below 64 ns share the first bucket: so short a wait does not matter.
const FIRST: u64 = 1 << FIRST_BITS;
const FIRST_BITS: u32 = 6;
/// Eight buckets per power of two: a quantile is at most 12.5 % too high.
const SUB_BITS: u32 = 3;
const SUBS: usize = 1 << SUB_BITS;
/// Values of 2^42 ns (73 minutes) or more share the last bucket.
const LAST_BITS: u32 = 42;
const BUCKETS: usize = 1 + (LAST_BITS - FIRST_BITS) as usize * SUBS + 1;

/// A histogram of durations. It takes about 1.2 KiB, regardless of the number of durations.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// Clones of a histogram share the counts until one clone records a duration, so that a
    /// snapshot of thousands of histograms is cheap.
    #[serde(with = "sparse")]
    counts: Arc<[u32; BUCKETS]>,
    count: u64,
    sum: u128,
    max: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self {
            counts: Arc::new([0; BUCKETS]),
            count: 0,
            sum: 0,
            max: 0,
        }
    }
}

impl Histogram {
    /// Counts one duration.
    pub fn record(&mut self, ns: u64) {
        let bucket = &mut Arc::make_mut(&mut self.counts)[index(ns)];
        *bucket = bucket.saturating_add(1);
        self.count = self.count.saturating_add(1);
        self.sum += u128::from(ns);
        self.max = self.max.max(ns);
    }

    /// Adds the counts of another histogram.
    pub fn merge(&mut self, other: &Self) {
        let mine = Arc::make_mut(&mut self.counts);
        for (mine, theirs) in mine.iter_mut().zip(other.counts.iter()) {
            *mine = mine.saturating_add(*theirs);
        }
        self.count = self.count.saturating_add(other.count);
        self.sum += other.sum;
        self.max = self.max.max(other.max);
    }

    /// Number of recorded durations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Sum in ns.
    #[must_use]
    pub fn sum_ns(&self) -> u128 {
        self.sum
    }

    /// Mean in ns; 0 if nothing was recorded.
    #[must_use]
    pub fn mean_ns(&self) -> u64 {
        if self.count == 0 {
            0
        } else {
            (self.sum / u128::from(self.count)) as u64
        }
    }

    /// Longest recorded duration in ns, exact.
    #[must_use]
    pub fn max_ns(&self) -> u64 {
        self.max
    }

    /// The `permille`/1000 quantile in ns: the smallest bucket bound that at least this part of the
    /// durations does not exceed, or the longest duration if that is smaller. 0 if nothing was
    /// recorded.
    #[must_use]
    pub fn quantile_ns(&self, permille: u32) -> u64 {
        let total: u64 = self.counts.iter().map(|&c| u64::from(c)).sum();
        if total == 0 {
            return 0;
        }
        let rank = (u128::from(total) * u128::from(permille.min(1000)))
            .div_ceil(1000)
            .max(1);
        let mut seen = 0_u128;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += u128::from(count);
            if seen >= rank {
                return upper(bucket).min(self.max);
            }
        }
        self.max
    }

    /// Upper bound in ns and count of each non-empty bucket, in ascending order.
    pub fn buckets(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.counts
            .iter()
            .enumerate()
            .filter(|&(_, &c)| c > 0)
            .map(|(i, &c)| (upper(i), c))
    }
}

/// The bucket of a value.
fn index(ns: u64) -> usize {
    if ns < FIRST {
        return 0;
    }
    let power = 63 - ns.leading_zeros();
    if power >= LAST_BITS {
        return BUCKETS - 1;
    }
    let sub = (ns >> (power - SUB_BITS)) as usize & (SUBS - 1);
    1 + (power - FIRST_BITS) as usize * SUBS + sub
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket == 0 {
        return FIRST - 1;
    }
    if bucket >= BUCKETS - 1 {
        return u64::MAX;
    }
    let power = FIRST_BITS + ((bucket - 1) / SUBS) as u32;
    let sub = ((bucket - 1) % SUBS) as u64;
    let step = 1_u64 << (power - SUB_BITS);
    (1_u64 << power) + (sub + 1) * step - 1
}

/// Serialises only the non-empty buckets, as `[bucket, count]`.
mod sparse {
    use std::sync::Arc;

    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    use super::BUCKETS;

    pub(super) fn serialize<S: Serializer>(
        counts: &[u32; BUCKETS],
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(counts.iter().enumerate().filter(|&(_, &count)| count > 0))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<[u32; BUCKETS]>, D::Error> {
        let mut counts = [0; BUCKETS];
        for (bucket, count) in Vec::<(usize, u32)>::deserialize(deserializer)? {
            let place = counts.get_mut(bucket);
            *place.ok_or_else(|| D::Error::custom("bucket number out of range"))? = count;
        }
        Ok(Arc::new(counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_and_indices_agree() {
        for bucket in 0..BUCKETS - 1 {
            assert_eq!(index(upper(bucket)), bucket);
            assert_eq!(index(upper(bucket) + 1), bucket + 1);
        }
        assert_eq!(index(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn quantiles_are_at_most_an_eighth_too_high() {
        let mut h = Histogram::default();
        for ns in 1..=100_000_u64 {
            h.record(ns * 100);
        }
        for (permille, exact) in [(500, 5_000_000), (950, 9_500_000), (990, 9_900_000)] {
            let got = h.quantile_ns(permille);
            assert!(
                got >= exact && got <= exact + exact / 8,
                "p{permille}: {got} for {exact}"
            );
        }
        assert_eq!(h.max_ns(), 10_000_000);
        assert_eq!(h.quantile_ns(1000), 10_000_000);
        assert_eq!(h.mean_ns(), 5_000_050);
        assert_eq!(
            h.buckets().map(|(_, c)| u64::from(c)).sum::<u64>(),
            h.count()
        );
    }

    #[test]
    fn nothing_counted_is_zero() {
        let h = Histogram::default();
        assert_eq!(
            (h.count(), h.mean_ns(), h.quantile_ns(990), h.max_ns()),
            (0, 0, 0, 0)
        );
    }
}
