//! The predicted time of an operation.

/// Predicted time of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// Mean in ns: each sample moves it by an eighth of the difference.
    pub mean_ns: u64,
    /// High estimate in ns: the largest of about the last 32 samples.
    pub high_ns: u64,
}

impl Estimate {
    /// The estimate after a single sample.
    #[must_use]
    pub fn exactly(ns: u64) -> Estimate {
        let ns = ns.max(1);
        Estimate {
            mean_ns: ns,
            high_ns: ns,
        }
    }

    /// Time in ns that the operation counts in a window: the mean, or a quarter of the high
    /// estimate if that is larger. So ordinary jitter does not narrow the window, but an operation
    /// that alternates between 1 µs and 50 ms counts as long.
    #[must_use]
    pub fn weight_ns(&self) -> u64 {
        self.mean_ns.max(self.high_ns / 4)
    }

    /// Updates the estimate: `n` operations took `ns` each.
    pub(super) fn learn(&mut self, ns: u64, n: u64, surprise: bool) {
        let ns = ns.max(1);
        if surprise {
            // The old mean no longer applies: start from this sample.
            self.mean_ns = ns;
            self.high_ns = self.high_ns.max(ns);
            return;
        }
        let weight = match n {
            0 | 1 => 3,
            2 | 3 => 2,
            _ => 1,
        };
        self.mean_ns = nearer(self.mean_ns, ns, weight).max(1);
        self.high_ns = if ns > self.high_ns {
            ns
        } else {
            let decay = 5 - n.clamp(1, 16).ilog2();
            nearer(self.high_ns, self.mean_ns.max(ns), decay)
        };
    }
}

/// `from`, moved towards `to` by 2^-shift of the difference.
pub(super) fn nearer(from: u64, to: u64, shift: u32) -> u64 {
    if to >= from {
        from + ((to - from) >> shift)
    } else {
        // Rounded up, so that the value reaches `to`.
        from - (from - to).div_ceil(1 << shift)
    }
}
