//! Distributions of durations, computed with integers, so that every machine draws the same values.

use crate::rng::Rng;

/// A distribution of durations in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// Always this length.
    Const(u64),
    /// Uniform between the two values.
    Uniform(u64, u64),
    /// Exponential with this mean, limited to 16 times the mean.
    Exp(u64),
    /// Log-normal, limited to 64 times the median.
    LogNormal {
        /// Median.
        median: u64,
        /// Standard deviation of the logarithm, in thousandths.
        sigma_milli: u32,
    },
    /// One of two values.
    Bimodal {
        /// The usual value.
        short: u64,
        /// The rare value.
        long: u64,
        /// Frequency of the rare value, in thousandths.
        long_permille: u32,
    },
    /// The two values in turn, so that a prediction by the mean is always wrong.
    Alternate(u64, u64),
    /// `every` times the short value, then once the long value.
    Lure {
        /// The usual value, on which the predictor is trained.
        short: u64,
        /// The value that follows the training.
        long: u64,
        /// Number of short values before a long one.
        every: u32,
    },
    /// The first value once, then the second value forever: a kernel that the driver loads at its
    /// first launch.
    Warm {
        /// The first value.
        first: u64,
        /// Every further value.
        then: u64,
    },
    /// Growing values, then again from the start, so that predictions are always too small.
    Grow {
        /// The first value in ns.
        from: u64,
        /// Size of the next value, in percent of the present value.
        percent: u32,
        /// Upper bound of the values.
        to: u64,
    },
}

/// Shortest duration in ns: less than the cost of a launch.
pub const SHORTEST_NS: u64 = 1_000;

impl Length {
    /// Draws a value in ns. `nth` is the number of earlier draws.
    pub fn draw(&self, rng: &mut Rng, nth: u64) -> u64 {
        let ns = match *self {
            Length::Const(ns) => ns,
            Length::Uniform(low, high) => rng.between(low, high),
            Length::Exp(mean) => {
                let factor = exponential(rng).min(16 << 16);
                scale(mean, factor)
            }
            Length::LogNormal {
                median,
                sigma_milli,
            } => {
                // ln(2) = 0.6931: e^x = 2^(x / ln 2).
                let exponent = normal(rng) * i64::from(sigma_milli) / 693;
                scale(median, exp2(exponent.clamp(-16 << 16, 6 << 16)))
            }
            Length::Bimodal {
                short,
                long,
                long_permille,
            } => {
                if rng.chance(u64::from(long_permille)) {
                    long
                } else {
                    short
                }
            }
            Length::Alternate(a, b) => {
                if nth.is_multiple_of(2) {
                    a
                } else {
                    b
                }
            }
            Length::Lure { short, long, every } => {
                if nth % (u64::from(every) + 1) == u64::from(every) {
                    long
                } else {
                    short
                }
            }
            Length::Warm { first, then } => {
                if nth == 0 {
                    first
                } else {
                    then
                }
            }
            Length::Grow { from, percent, to } => grown(from, percent, to, nth),
        };
        ns.max(SHORTEST_NS)
    }

    /// Upper bound of the values, in ns.
    #[must_use]
    pub fn longest(&self) -> u64 {
        match *self {
            Length::Const(ns) => ns,
            Length::Uniform(_, high) => high,
            Length::Exp(mean) => mean * 16,
            Length::LogNormal { median, .. } => median * 64,
            Length::Bimodal { short, long, .. } | Length::Lure { short, long, .. } => {
                short.max(long)
            }
            Length::Alternate(a, b) => a.max(b),
            Length::Warm { first, then } => first.max(then),
            Length::Grow { from, to, .. } => from.max(to),
        }
        .max(SHORTEST_NS)
    }
}

/// Value `nth` of the sequence that grows from `from` to `to` and then starts again.
fn grown(from: u64, percent: u32, to: u64, nth: u64) -> u64 {
    let steps = std::iter::successors(Some(from.max(1)), |&ns| {
        let next = ns + (ns * u64::from(percent) / 100).saturating_sub(ns).max(1);
        (next <= to).then_some(next)
    });
    let count = steps.clone().count() as u64;
    let mut steps = steps.skip((nth % count) as usize);
    steps.next().unwrap_or(from)
}

fn scale(ns: u64, factor: u64) -> u64 {
    ((u128::from(ns) * u128::from(factor)) >> 16) as u64
}

const STEPS: usize = 256;

/// Table of −ln(1 − i/256), in units of 2^-16.
static MINUS_LN: [u64; STEPS] = minus_ln();

const fn minus_ln() -> [u64; STEPS] {
    let mut table = [0; STEPS];
    let mut i = 0;
    while i < STEPS {
        // ln(2) is in units of 2^-32, log2 in units of 2^-16.
        let log2 = (8 << 16) - log2_fixed((STEPS - i) as u64);
        table[i] = (log2 * 2_977_044_472) >> 32;
        i += 1;
    }
    table
}

/// log2 of a whole number in units of 2^-16, by squaring the mantissa once per bit.
const fn log2_fixed(x: u64) -> u64 {
    let whole = x.ilog2() as u64;
    let mut mantissa = (x << 32) >> whole;
    let mut result = whole << 16;
    let mut bit = 1 << 15;
    while bit > 0 {
        mantissa = ((mantissa as u128 * mantissa as u128) >> 32) as u64;
        if mantissa >= 2 << 32 {
            mantissa >>= 1;
            result += bit;
        }
        bit >>= 1;
    }
    result
}

/// Exponential value with mean 1, in units of 2^-16. A draw beyond the table adds the table's range
/// and draws again, because the exponential distribution has no memory.
fn exponential(rng: &mut Rng) -> u64 {
    let mut base = 0;
    loop {
        let bits = rng.bits();
        let step = (bits >> 56) as usize;
        if step + 1 < STEPS {
            let (low, high) = (MINUS_LN[step], MINUS_LN[step + 1]);
            let fraction = (bits >> 40) & 0xffff;
            return base + low + (((high - low) * fraction) >> 16);
        }
        base += MINUS_LN[STEPS - 1];
    }
}

/// Nearly normal value with mean 0 and deviation 1, in units of 2^-16: the sum of twelve uniform
/// values.
fn normal(rng: &mut Rng) -> i64 {
    let mut sum: i64 = 0;
    for _ in 0..3 {
        let bits = rng.bits();
        for part in 0..4 {
            sum += ((bits >> (16 * part)) & 0xffff) as i64;
        }
    }
    sum - (6 << 16)
}

/// 2^x in units of 2^-16, with x in units of 2^-16. Between whole powers, a parabola approximates
/// the value (error below 0.4 %).
fn exp2(x: i64) -> u64 {
    let whole = x >> 16;
    let f = (x & 0xffff) as u64;
    let mantissa = (1 << 16) + ((f * (43_023 + ((22_513 * f) >> 16))) >> 16);
    if whole >= 0 {
        mantissa << whole
    } else {
        mantissa >> -whole
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mean(of: Length) -> u64 {
        let mut rng = Rng::new(3);
        (0..100_000).map(|n| of.draw(&mut rng, n)).sum::<u64>() / 100_000
    }

    #[test]
    fn means_are_what_they_say() {
        let near = |got: u64, want: u64| assert!(got.abs_diff(want) <= want / 50, "{got}: {want}");
        near(mean(Length::Const(5_000)), 5_000);
        near(mean(Length::Uniform(100_000, 300_000)), 200_000);
        near(mean(Length::Exp(500_000)), 500_000);
        near(mean(Length::Alternate(1_000, 50_000_000)), 25_000_500);
        // e^(σ²/2) = 1.133 for σ = 0.5.
        let log_normal = Length::LogNormal {
            median: 1_000_000,
            sigma_milli: 500,
        };
        near(mean(log_normal), 1_133_000);
        let bimodal = Length::Bimodal {
            short: 10_000,
            long: 1_000_000,
            long_permille: 100,
        };
        near(mean(bimodal), 109_000);
        let lure = Length::Lure {
            short: 1_000,
            long: 100_000,
            every: 9,
        };
        near(mean(lure), 10_900);
    }

    #[test]
    fn none_is_longer_than_the_longest() {
        let mut rng = Rng::new(9);
        for of in [
            Length::Exp(700_000),
            Length::LogNormal {
                median: 30_000,
                sigma_milli: 2_000,
            },
            Length::Uniform(5, 9),
        ] {
            for n in 0..100_000 {
                assert!(of.draw(&mut rng, n) <= of.longest());
            }
        }
    }
}
