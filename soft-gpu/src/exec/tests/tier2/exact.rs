//! The reference for rounding. Numbers are fixed-point numbers of 704 bits; rounding searches the
//! nearest among the values of a format. No arithmetic of the interpreter is used.

/// Exponent of the lowest bit. It is below the product of the two smallest bfloat16 subnormals.
const UNIT: i32 = -320;
const LIMBS: usize = 11;

/// A fixed-point number in two's complement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Exact([u64; LIMBS]);

impl Exact {
    /// `m · 2^e`.
    pub(super) fn new(m: i128, e: i32) -> Exact {
        let sign = if m < 0 { u64::MAX } else { 0 };
        let mut wide = [sign; LIMBS + 3];
        wide[0] = m as u64;
        wide[1] = (m >> 64) as u64;
        let shift = (e - UNIT) as usize;
        assert!(shift < 64 * LIMBS - 70, "2^{e} does not fit");
        let (limbs, bits) = (shift / 64, shift % 64);
        let mut out = [0; LIMBS];
        for (k, o) in out.iter_mut().enumerate().skip(limbs) {
            let low = wide[k - limbs] << bits;
            let carry = if bits > 0 && k > limbs {
                wide[k - limbs - 1] >> (64 - bits)
            } else {
                0
            };
            *o = low | carry;
        }
        Exact(out)
    }

    /// The value of a finite double.
    pub(super) fn of(x: f64) -> Exact {
        let bits = x.to_bits();
        let (e, f) = ((bits >> 52 & 0x7ff) as i32, i128::from(bits << 12 >> 12));
        let (m, e) = if e == 0 {
            (f, -1074)
        } else {
            (f | 1 << 52, e - 1075)
        };
        let m = if x < 0.0 { -m } else { m };
        let zeros = if m == 0 { 0 } else { m.trailing_zeros() };
        if m == 0 {
            return Exact([0; LIMBS]);
        }
        Exact::new(m >> zeros, e + zeros as i32)
    }

    pub(super) fn plus(self, other: Exact) -> Exact {
        let mut carry = 0u128;
        let mut out = [0; LIMBS];
        for (k, o) in out.iter_mut().enumerate() {
            let s = u128::from(self.0[k]) + u128::from(other.0[k]) + carry;
            *o = s as u64;
            carry = s >> 64;
        }
        Exact(out)
    }

    pub(super) fn negative(self) -> bool {
        self.0[LIMBS - 1] >> 63 != 0
    }

    pub(super) fn zero(self) -> bool {
        self.0 == [0; LIMBS]
    }

    fn negated(self) -> Exact {
        let mut one = [0; LIMBS];
        one[0] = 1;
        Exact(self.0.map(|l| !l)).plus(Exact(one))
    }

    fn magnitude(self) -> Exact {
        if self.negative() {
            self.negated()
        } else {
            self
        }
    }

    /// Whether `self` is less than `other`. Neither number may be negative.
    fn below(self, other: Exact) -> bool {
        self.0.iter().rev().lt(other.0.iter().rev())
    }
}

/// A 16-bit format: name, bits of the fraction, and exponent bias.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Small {
    pub(super) name: &'static str,
    fraction: u32,
    bias: i32,
}

pub(super) const HALF: Small = Small {
    name: "f16",
    fraction: 10,
    bias: 15,
};
pub(super) const BRAIN: Small = Small {
    name: "bf16",
    fraction: 7,
    bias: 127,
};

/// A rounding rule of the reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Nearest,
    Zero,
    Down,
    Up,
}

impl Small {
    /// The bits of infinity.
    pub(super) fn infinity(self) -> u16 {
        0x7fff >> self.fraction << self.fraction
    }

    pub(super) fn one(self) -> u16 {
        (self.bias as u16) << self.fraction
    }

    pub(super) fn is_nan(self, h: u16) -> bool {
        h & 0x7fff > self.infinity()
    }

    pub(super) fn finite(self, h: u16) -> bool {
        h & 0x7fff < self.infinity()
    }

    /// Significand and exponent of the magnitude of `h`. Infinity counts as the next power of two.
    fn parts(self, h: u16) -> (i128, i32) {
        let h = h & 0x7fff;
        let (e, f) = (
            i32::from(h >> self.fraction),
            h & ((1 << self.fraction) - 1),
        );
        let least = 1 - self.bias - self.fraction as i32;
        match e {
            0 => (i128::from(f), least),
            _ => (i128::from(f | 1 << self.fraction), least + e - 1),
        }
    }

    /// The exact value of a finite number.
    pub(super) fn exact(self, h: u16) -> Exact {
        let (m, e) = self.parts(h);
        Exact::new(if h & 0x8000 != 0 { -m } else { m }, e)
    }

    /// The exact product of two finite numbers.
    pub(super) fn product(self, a: u16, b: u16) -> Exact {
        let ((ma, ea), (mb, eb)) = (self.parts(a), self.parts(b));
        let m = ma * mb;
        Exact::new(if (a ^ b) & 0x8000 != 0 { -m } else { m }, ea + eb)
    }

    /// The value as a double.
    pub(super) fn value(self, h: u16) -> f64 {
        let (m, e) = self.parts(h);
        let x = match h & 0x7fff {
            b if b > self.infinity() => return f64::NAN,
            b if b == self.infinity() => f64::INFINITY,
            _ => m as f64 * 2f64.powi(e),
        };
        if h & 0x8000 != 0 { -x } else { x }
    }

    /// Rounds a number to this format. `zero` is the result for an exact zero, whose sign the
    /// caller knows.
    pub(super) fn round(self, x: Exact, rule: Rule, zero: u16) -> u16 {
        if x.zero() {
            return zero;
        }
        let (sign, size) = (u16::from(x.negative()) << 15, x.magnitude());
        // Searches the largest number of the format that does not exceed `x`.
        let (mut low, mut high) = (0u16, self.infinity());
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if size.below(self.exact(middle)) {
                high = middle;
            } else {
                low = middle;
            }
        }
        if !size.below(self.exact(high)) {
            // `x` is at least the power of two that follows the largest number.
            low = high;
        }
        let rest = !self.exact(low).0.eq(&size.0);
        let up = match rule {
            Rule::Zero => false,
            Rule::Down => rest && sign != 0,
            Rule::Up => rest && sign == 0,
            Rule::Nearest => {
                let middle = self.exact(low).plus(self.exact(low + 1));
                let twice = size.plus(size);
                middle.below(twice) || middle == twice && low & 1 != 0
            }
        };
        let beyond = low >= self.infinity();
        let r = if beyond {
            let outward = match rule {
                Rule::Nearest => true,
                Rule::Zero => false,
                Rule::Down => sign != 0,
                Rule::Up => sign == 0,
            };
            self.infinity() - u16::from(!outward)
        } else {
            low + u16::from(up)
        };
        sign | r
    }

    /// Rounds a double to this format.
    pub(super) fn of(self, x: f64, rule: Rule) -> u16 {
        let sign = u16::from(x.is_sign_negative()) << 15;
        if x.is_nan() {
            return 0x7fff;
        }
        if x.is_infinite() {
            return sign | self.infinity();
        }
        if x.abs() < 2f64.powi(-260) {
            // `x` is far below every number of the format, so only the rounding direction matters.
            let least = match rule {
                Rule::Up => x > 0.0,
                Rule::Down => x < 0.0,
                _ => false,
            };
            return sign | u16::from(least);
        }
        if x.abs() > 2f64.powi(300) {
            return self.of(2f64.powi(300).copysign(x), rule);
        }
        self.round(Exact::of(x), rule, sign)
    }

    /// Numbers around every boundary of the format.
    pub(super) fn edges(self) -> Vec<u16> {
        let inf = self.infinity();
        let normal = 1 << self.fraction;
        let one = self.one();
        let up: Vec<u16> = vec![
            0,
            1,
            2,
            3,
            normal - 1,
            normal,
            normal + 1,
            one / 2,
            one - 1,
            one,
            one + 1,
            one + (normal >> 1),
            one + normal,
            inf - normal,
            inf - 2,
            inf - 1,
            inf,
            inf + 1,
            inf + (normal >> 1),
            0x7fff,
        ];
        up.iter()
            .copied()
            .chain(up.iter().map(|h| h | 0x8000))
            .collect()
    }
}
