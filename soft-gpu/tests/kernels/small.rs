//! The 16-bit formats of the references: values by the definition of the format, rounding by
//! search.

/// `f16` (10 bits of fraction) or `bf16` (7 bits).
#[derive(Clone, Copy)]
pub(crate) struct Small {
    fraction: u32,
    bias: i32,
}

pub(crate) const HALF: Small = Small {
    fraction: 10,
    bias: 15,
};
pub(crate) const BRAIN: Small = Small {
    fraction: 7,
    bias: 127,
};

impl Small {
    fn infinity(self) -> u16 {
        0x7fff >> self.fraction << self.fraction
    }

    pub(crate) fn value(self, h: u16) -> f64 {
        let m = h & 0x7fff;
        let (e, f) = (
            i32::from(m >> self.fraction),
            m & ((1 << self.fraction) - 1),
        );
        let least = 2f64.powi(1 - self.bias - self.fraction as i32);
        let x = match m {
            m if m > self.infinity() => return f64::NAN,
            m if m == self.infinity() => f64::INFINITY,
            _ if e == 0 => f64::from(f) * least,
            _ => f64::from(f | 1 << self.fraction) * least * 2f64.powi(e - 1),
        };
        if h & 0x8000 != 0 { -x } else { x }
    }

    /// The nearest value, ties to even. `x` must be below the limit from which numbers round to
    /// infinity.
    pub(crate) fn nearest(self, x: f64) -> u16 {
        if x.is_nan() {
            return 0x7fff;
        }
        let sign = u16::from(x.is_sign_negative()) << 15;
        let (mut low, mut high) = (0, self.infinity());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if x.abs() < self.value(middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        let below = x.abs() - self.value(low);
        let above = self.value(high) - x.abs();
        let up = above < below || above == below && low & 1 != 0;
        sign | (low + u16::from(up))
    }
}
