//! Predicts the time of operations from the time that the same operations took before.

use super::estimate::{Estimate, nearer};
use super::table::Table;
use super::work::{Direction, Key, Work};

/// A copy of at most this many bytes updates the constant part of the cost, a larger copy the rate.
const SMALL_COPY: u64 = 16 << 10;

/// Cost of copies in one direction: a constant and a rate. Both start from a cautious guess, so
/// that every copy has a prediction.
#[derive(Debug, Clone, Copy)]
struct Rate {
    base_ns: u64,
    ps_per_byte: u64,
}

impl Rate {
    fn estimate(&self, bytes: u64) -> Estimate {
        let moving = u128::from(bytes) * u128::from(self.ps_per_byte) / 1000;
        let mean_ns = self
            .base_ns
            .saturating_add(u64::try_from(moving).unwrap_or(u64::MAX))
            .max(1);
        Estimate {
            mean_ns,
            high_ns: mean_ns.saturating_add(mean_ns / 2),
        }
    }

    fn learn(&mut self, bytes: u64, ns: u64, n: u64) {
        let weight = if n < 4 { 3 } else { 1 };
        if bytes <= SMALL_COPY {
            self.base_ns = nearer(self.base_ns, ns, weight).max(1);
        } else {
            let moving = u128::from(ns.saturating_sub(self.base_ns)) * 1000 / u128::from(bytes);
            let moving = u64::try_from(moving).unwrap_or(u64::MAX);
            self.ps_per_byte = nearer(self.ps_per_byte, moving, weight).max(1);
        }
    }
}

/// Predictions for the operations of one session: at most 4,096 kernels and graphs. If the table is
/// full, the least recently used entry is replaced.
#[derive(Debug, Clone)]
pub struct Predictor {
    table: Table,
    rates: [Rate; 4],
}

impl Default for Predictor {
    fn default() -> Predictor {
        // 4 GB/s over the bus, 50 GB/s within the device.
        let slow = Rate {
            base_ns: 10_000,
            ps_per_byte: 250,
        };
        let fast = Rate {
            ps_per_byte: 20,
            ..slow
        };
        Predictor {
            table: Table::default(),
            rates: [slow, slow, fast, fast],
        }
    }
}

impl Predictor {
    /// Predicted time of the operation; `None`: unknown. Counts as a use.
    pub fn predict(&mut self, work: Work) -> Option<Estimate> {
        match work {
            Work::Kernel(key) | Work::Graph(key) => self.table.get(key).copied(),
            Work::Bytes { .. } => self.peek(work),
        }
    }

    /// Like [`Predictor::predict`], but does not count as a use.
    #[must_use]
    pub fn peek(&self, work: Work) -> Option<Estimate> {
        match work {
            Work::Kernel(key) | Work::Graph(key) => self.table.peek(key).copied(),
            Work::Bytes { direction, bytes } => Some(self.rate(direction).estimate(bytes)),
        }
    }

    /// Learns that `n` operations like `work` took `ns` each. `surprise`: the time was far more
    /// than predicted, so the old mean is dropped.
    pub fn learn(&mut self, work: Work, ns: u64, n: u64, surprise: bool) {
        match work {
            Work::Kernel(key) | Work::Graph(key) => self.learn_key(key, ns, n, surprise),
            Work::Bytes { direction, bytes } => {
                self.rates[direction as usize].learn(bytes, ns, n);
            }
        }
    }

    fn learn_key(&mut self, key: Key, ns: u64, n: u64, surprise: bool) {
        match self.table.get(key) {
            Some(estimate) => estimate.learn(ns, n, surprise),
            None => self.table.insert(key, Estimate::exactly(ns)),
        }
    }

    fn rate(&self, direction: Direction) -> &Rate {
        &self.rates[direction as usize]
    }

    /// Number of kernels and graphs with a prediction.
    #[must_use]
    pub fn known(&self) -> usize {
        self.table.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: fn(u64) -> Work = |n| Work::Kernel(Key::graph(n));

    #[test]
    fn a_kernel_is_unknown_until_it_has_run() {
        let mut p = Predictor::default();
        assert_eq!(p.predict(KERNEL(1)), None);
        p.learn(KERNEL(1), 20_000, 1, false);
        assert_eq!(p.predict(KERNEL(1)), Some(Estimate::exactly(20_000)));
        assert_eq!(p.predict(KERNEL(2)), None);
        assert_eq!(p.known(), 1);
    }

    #[test]
    fn the_mean_follows_and_an_outlier_is_remembered_for_a_while() {
        let mut p = Predictor::default();
        for _ in 0..10 {
            p.learn(KERNEL(1), 10_000, 1, false);
        }
        p.learn(KERNEL(1), 50_000, 1, false);
        let after = p.peek(KERNEL(1)).expect("known");
        assert_eq!((after.mean_ns, after.high_ns), (15_000, 50_000));
        for _ in 0..200 {
            p.learn(KERNEL(1), 10_000, 1, false);
        }
        let later = p.peek(KERNEL(1)).expect("known");
        assert!(later.mean_ns <= 10_010, "{later:?}");
        assert!(later.high_ns < 11_000, "{later:?}");
    }

    #[test]
    fn a_key_that_alternates_weighs_as_much_as_its_long_runs_allow() {
        let mut p = Predictor::default();
        for _ in 0..50 {
            p.learn(KERNEL(1), 1_000, 1, false);
            let after_short = p.peek(KERNEL(1)).expect("known").weight_ns();
            p.learn(KERNEL(1), 50_000_000, 1, true);
            let after_long = p.peek(KERNEL(1)).expect("known").weight_ns();
            assert!(after_long > 10_000_000);
            let _ = after_short;
        }
        p.learn(KERNEL(1), 1_000, 1, false);
        assert!(p.peek(KERNEL(1)).expect("known").weight_ns() > 10_000_000);
    }

    #[test]
    fn jitter_does_not_narrow_the_window() {
        let mut p = Predictor::default();
        for n in 0..100u64 {
            p.learn(KERNEL(1), 10_000 + n % 7 * 3_000, 1, false);
        }
        let e = p.peek(KERNEL(1)).expect("known");
        assert_eq!(e.weight_ns(), e.mean_ns);
        assert!((15_000..25_000).contains(&e.mean_ns), "{e:?}");
    }

    #[test]
    fn copies_are_known_from_the_start_and_become_exact() {
        let mut p = Predictor::default();
        let copy = |bytes| Work::Bytes {
            direction: Direction::ToDevice,
            bytes,
        };
        assert!(p.predict(copy(1 << 20)).is_some());
        // The copies cost 5 µs plus 1 ns per 20 bytes (20 GB/s).
        for _ in 0..100 {
            p.learn(copy(1024), 5_000, 1, false);
            p.learn(copy(1 << 20), 5_000 + (1 << 20) / 20, 1, false);
        }
        let near = |work, ns: u64| {
            let mean = p.peek(work).expect("known").mean_ns;
            assert!(mean.abs_diff(ns) * 20 < ns, "{mean} for {ns}");
        };
        near(copy(1 << 20), 5_000 + (1 << 20) / 20);
        near(copy(16 << 20), 5_000 + (16 << 20) / 20);
        near(copy(0), 5_000);
        // The other direction keeps its first guess.
        let other = Work::Bytes {
            direction: Direction::ToHost,
            bytes: 1 << 20,
        };
        assert!(p.peek(other).expect("known").mean_ns > 200_000);
    }

    #[test]
    fn nothing_overflows() {
        let mut p = Predictor::default();
        let huge = Work::Bytes {
            direction: Direction::Fill,
            bytes: u64::MAX,
        };
        assert!(p.predict(huge).is_some());
        p.learn(huge, u64::MAX, 1, true);
        p.learn(KERNEL(1), u64::MAX, 1, false);
        p.learn(KERNEL(1), 0, u64::MAX, false);
        p.learn(KERNEL(1), u64::MAX, 7, true);
        assert!(p.predict(KERNEL(1)).expect("known").weight_ns() > 0);
        assert!(p.predict(huge).expect("known").weight_ns() > 0);
    }
}
