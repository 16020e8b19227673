//! Edge values, comparisons, and the arithmetic of the references.

use std::fmt::Debug;
use std::hint::black_box;

/// Edge values of single precision.
pub(crate) const F32: [f32; 34] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    1.5,
    -2.5,
    0.5,
    3.5,
    0.1,
    -0.1,
    1.0e-45,
    -1.0e-45,
    5.877_472e-39,
    1.175_494_2e-38,
    1.175_494_4e-38,
    -1.175_494_4e-38,
    1.0e-30,
    1.0e30,
    3.402_823_5e38,
    -3.402_823_5e38,
    f32::INFINITY,
    f32::NEG_INFINITY,
    f32::NAN,
    16_777_216.0,
    16_777_217.0,
    127.5,
    -128.5,
    32_767.5,
    65_535.49,
    2_147_483_648.0,
    -2_147_483_648.0,
    4_294_967_296.0,
    9.223_372e18,
    1.844_674_4e19,
];

/// Edge values of double precision.
pub(crate) const F64: [f64; 32] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.1,
    -2.5,
    0.5,
    1.5,
    4.9e-324,
    -4.9e-324,
    2.225_073_858_507_201e-308,
    2.225_073_858_507_201_4e-308,
    1.0e-300,
    1.797_693_134_862_315_7e308,
    -1.797_693_134_862_315_7e308,
    f64::INFINITY,
    f64::NEG_INFINITY,
    f64::NAN,
    9_007_199_254_740_993.0,
    2_147_483_647.5,
    -2_147_483_648.5,
    4_294_967_295.5,
    9_223_372_036_854_775_807.0,
    1.844_674_407_370_955_2e19,
    -9.3e18,
    3.402_823_567_797_336_6e38,
    1.175_494_28e-38,
    7.0e-46,
    0.333_333_333_333_333_3,
    1e16,
    -123_456.789,
    2.0,
];

/// 32-bit integers around every boundary.
pub(crate) const I32: [i32; 22] = [
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    -7,
    31,
    32,
    33,
    64,
    0x7f,
    0x80,
    0xffff,
    -0x8000,
    0x0012_3456,
    i32::MAX,
    i32::MIN,
    i32::MIN + 1,
    0x5555_5555,
    -0x789_abcd,
];

/// 64-bit integers around every boundary.
pub(crate) const I64: [i64; 24] = [
    0,
    1,
    -1,
    2,
    -3,
    10,
    0x7fff_ffff,
    0x8000_0000,
    -0x8000_0000,
    -0x8000_0001,
    0xffff_ffff,
    0x1_0000_0000,
    0x1_0000_0001,
    i64::MAX,
    i64::MIN,
    i64::MIN + 1,
    16_777_217,
    -16_777_219,
    9_007_199_254_740_993,
    0x0123_4567_89ab_cdef,
    -0x0123_4567_89ab_cdef,
    0x7fff_ff40_0000_0001,
    1_000_000_007,
    -255,
];

/// All pairs of two lists, as two columns.
pub(crate) fn pairs<T: Copy>(values: &[T]) -> (Vec<T>, Vec<T>) {
    values
        .iter()
        .flat_map(|&a| values.iter().map(move |&b| (a, b)))
        .unzip()
}

/// Equality of bits, except that all NaNs are equal.
pub(crate) trait Same: Copy + Debug {
    fn same(self, other: Self) -> bool;
}

macro_rules! exact {
    ($($ty:ty)*) => { $(impl Same for $ty { fn same(self, other: Self) -> bool { self == other } })* };
}
exact!(u8 i32 u32 i64 u64);

impl Same for f32 {
    fn same(self, other: Self) -> bool {
        (self.is_nan() && other.is_nan()) || self.to_bits() == other.to_bits()
    }
}

impl Same for f64 {
    fn same(self, other: Self) -> bool {
        (self.is_nan() && other.is_nan()) || self.to_bits() == other.to_bits()
    }
}

/// Compares a table of `width` columns row by row. Reports the first errors of each column.
pub(crate) fn check_rows<T: Same, const W: usize>(
    what: &str,
    got: &[T],
    rows: usize,
    mut want: impl FnMut(usize) -> [T; W],
    inputs: impl Fn(usize) -> String,
) {
    assert_eq!(got.len(), rows * W);
    let mut wrong = [0usize; W];
    let mut report = String::new();
    for row in 0..rows {
        let want = want(row);
        for column in 0..W {
            let (got, want) = (got[row * W + column], want[column]);
            if !got.same(want) {
                wrong[column] += 1;
                if wrong[column] <= 3 {
                    let inputs = inputs(row);
                    report +=
                        &format!("\n  column {column} of {inputs}: got {got:?}, want {want:?}");
                }
            }
        }
    }
    assert!(
        report.is_empty(),
        "{what}: mistakes by column {wrong:?}{report}"
    );
}

/// A rounding direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Round {
    Nearest,
    Zero,
    Down,
    Up,
}

/// The rounding modes, in the order of the columns of the fixtures.
pub(crate) const ROUNDS: [Round; 4] = [Round::Nearest, Round::Zero, Round::Down, Round::Up];

#[cfg(target_arch = "x86_64")]
mod mode {
    use super::Round;

    unsafe extern "C" {
        fn fesetround(round: libc::c_int) -> libc::c_int;
    }

    /// The value of a rounding mode in glibc's `<fenv.h>` for x86-64 (bits of the x87 control
    /// word).
    fn code(round: Round) -> libc::c_int {
        match round {
            Round::Nearest => 0,
            Round::Down => 0x400,
            Round::Up => 0x800,
            Round::Zero => 0xc00,
        }
    }

    /// Sets the rounding mode of this thread until the value is dropped.
    pub(super) struct Scope;

    impl Scope {
        pub(super) fn new(round: Round) -> Self {
            // SAFETY: only the floating-point environment of this thread changes, until the value
            // is dropped. `black_box` keeps the compiler from moving computations out of this
            // scope.
            let code = unsafe { fesetround(code(round)) };
            assert_eq!(code, 0, "fesetround");
            Scope
        }
    }

    impl Drop for Scope {
        fn drop(&mut self) {
            // SAFETY: as above. 0 is the rounding mode that Rust code requires.
            unsafe { fesetround(0) };
        }
    }
}

/// Computes `f` in a rounding mode of the CPU, without code of the interpreter. `f` must use the
/// functions below for its arithmetic.
pub(crate) fn rounded<T>(round: Round, f: impl FnOnce() -> T) -> T {
    let _scope = mode::Scope::new(round);
    black_box(f())
}

macro_rules! arithmetic {
    ($name:ident, $ty:ty, $fma:literal) => {
        /// Arithmetic that the compiler can neither precompute nor move.
        pub(crate) mod $name {
            use std::hint::black_box;

            unsafe extern "C" {
                #[link_name = $fma]
                fn libm_fma(a: $ty, b: $ty, c: $ty) -> $ty;
            }

            #[inline(never)]
            pub(crate) fn add(a: $ty, b: $ty) -> $ty {
                black_box(black_box(a) + black_box(b))
            }
            #[inline(never)]
            pub(crate) fn mul(a: $ty, b: $ty) -> $ty {
                black_box(black_box(a) * black_box(b))
            }
            #[inline(never)]
            pub(crate) fn div(a: $ty, b: $ty) -> $ty {
                black_box(black_box(a) / black_box(b))
            }
            #[inline(never)]
            pub(crate) fn sqrt(a: $ty) -> $ty {
                black_box(black_box(a).sqrt())
            }
            #[inline(never)]
            pub(crate) fn fma(a: $ty, b: $ty, c: $ty) -> $ty {
                // SAFETY: a pure function of libm.
                black_box(unsafe { libm_fma(black_box(a), black_box(b), black_box(c)) })
            }
        }
    };
}
arithmetic!(single, f32, "fmaf");
arithmetic!(double, f64, "fma");

/// Converts a double to a single.
#[inline(never)]
pub(crate) fn narrow(a: f64) -> f32 {
    black_box(black_box(a) as f32)
}

/// Rounds to an integral value in a direction, by exact comparison with the floor.
pub(crate) fn integral(a: f64, round: Round) -> f64 {
    let floor = a.floor();
    let result = match round {
        Round::Down => floor,
        Round::Up => a.ceil(),
        Round::Zero => a.trunc(),
        Round::Nearest => a.round_ties_even(),
    };
    result.copysign(a)
}

/// Rounds an integer to `bits` bits of precision. For `bits <= 53`, the double is exact.
pub(crate) fn from_integer(value: i128, bits: u32, round: Round) -> f64 {
    let magnitude = value.unsigned_abs();
    let length = 128 - magnitude.leading_zeros();
    let drop = length.saturating_sub(bits);
    let (kept, rest) = (magnitude >> drop, magnitude & ((1u128 << drop) - 1));
    let half = if drop == 0 { 0 } else { 1u128 << (drop - 1) };
    let up = match round {
        Round::Nearest => drop > 0 && (rest > half || (rest == half && kept & 1 == 1)),
        Round::Zero => false,
        Round::Down => rest != 0 && value < 0,
        Round::Up => rest != 0 && value > 0,
    };
    let kept = (kept + u128::from(up)) as f64 * 2f64.powi(drop as i32);
    if value < 0 { -kept } else { kept }
}

/// Converts a float to an integer by PTX's rules: rounded and clamped. NaN becomes 0 for a
/// conversion from a single to at most 32 bits, otherwise only the top bit is set (PTX ISA, `cvt`).
pub(crate) fn to_integer(a: f64, round: Round, bits: u32, signed: bool, double: bool) -> i128 {
    let (low, high) = if signed {
        (-(1i128 << (bits - 1)), (1i128 << (bits - 1)) - 1)
    } else {
        (0, (1i128 << bits) - 1)
    };
    if a.is_nan() {
        return match (double || bits == 64, signed) {
            (false, _) => 0,
            (true, true) => low,
            (true, false) => 1i128 << (bits - 1),
        };
    }
    // The cast saturates at limits far outside of both ranges.
    (integral(a, round) as i128).clamp(low, high)
}

/// Distance of a single from the wanted value, in units in the last place of the wanted value.
pub(crate) fn ulps32(got: f32, want: f64) -> f64 {
    if got.is_nan() || want.is_nan() {
        return if got.is_nan() && want.is_nan() {
            0.0
        } else {
            f64::INFINITY
        };
    }
    let nearest = want as f32;
    if got == nearest {
        return 0.0;
    }
    if got.is_infinite() || nearest.is_infinite() {
        // Infinity counts as 2^128, so that an overflow that is too early or too late has a finite
        // distance.
        let (got, want) = (
            f64::from(got).clamp(-2f64.powi(128), 2f64.powi(128)),
            want.clamp(-2f64.powi(128), 2f64.powi(128)),
        );
        return (got - want).abs() / 2f64.powi(104);
    }
    let exponent = (nearest.abs().max(f32::MIN_POSITIVE).to_bits() >> 23) as i32 - 127;
    (f64::from(got) - want).abs() / 2f64.powi(exponent - 23)
}

/// As [`ulps32`], for doubles and a reference of the same precision. Infinity is one step beyond
/// the largest double.
pub(crate) fn ulps64(got: f64, want: f64) -> f64 {
    if got.same(want) || got == want {
        return 0.0;
    }
    if got.is_nan() || want.is_nan() {
        return f64::INFINITY;
    }
    let order = |x: f64| {
        let bits = x.to_bits() as i64;
        if bits < 0 {
            i64::MIN.wrapping_sub(bits)
        } else {
            bits
        }
    };
    order(got).abs_diff(order(want)) as f64
}

/// Replaces a subnormal by a zero of the same sign, as `.ftz` does.
pub(crate) fn flush(a: f32) -> f32 {
    if a.is_subnormal() {
        0f32.copysign(a)
    } else {
        a
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processor_rounds_as_it_is_told() {
        let third = ROUNDS.map(|round| rounded(round, || single::div(1.0, 3.0)).to_bits());
        assert_eq!(third, [0x3eaa_aaab, 0x3eaa_aaaa, 0x3eaa_aaaa, 0x3eaa_aaab]);
        let minus = ROUNDS.map(|round| rounded(round, || double::div(-1.0, 3.0)).to_bits() & 0xf);
        assert_eq!(minus, [5, 5, 6, 5]);
        let tiny = ROUNDS.map(|round| rounded(round, || single::fma(1e-30, 1e-30, 1.0)));
        assert_eq!(tiny, [1.0, 1.0, 1.0, 1.0 + f32::EPSILON]);
        let overflow = ROUNDS.map(|round| rounded(round, || narrow(-1e300)));
        assert_eq!(
            overflow,
            [f32::NEG_INFINITY, -f32::MAX, f32::NEG_INFINITY, -f32::MAX]
        );
        let root = ROUNDS.map(|round| rounded(round, || single::sqrt(2.0)).to_bits() & 0xf);
        assert_eq!(root, [3, 3, 3, 4]);
        assert_eq!(
            single::div(1.0, 3.0).to_bits(),
            0x3eaa_aaab,
            "the rounding mode is restored"
        );
    }

    #[test]
    fn integers_round_like_casts() {
        for value in I64 {
            let (wide, whole) = (i128::from(value), i128::from(value as u64));
            assert_eq!(from_integer(wide, 24, Round::Nearest) as f32, value as f32);
            assert_eq!(from_integer(whole, 53, Round::Nearest), value as u64 as f64);
            let [_, zero, down, up] = ROUNDS.map(|round| from_integer(wide, 24, round) as i128);
            assert!(down <= wide && wide <= up && (zero == down || zero == up));
            assert!(zero.abs() <= wide.abs());
        }
        for value in F64 {
            if !value.is_nan() {
                assert_eq!(
                    to_integer(value, Round::Zero, 32, true, true),
                    i128::from(value as i32)
                );
                assert_eq!(
                    to_integer(value, Round::Zero, 64, false, true),
                    i128::from(value as u64)
                );
            }
        }
    }

    #[test]
    fn ulps_are_counted() {
        assert_eq!(ulps32(1.0, 1.0), 0.0);
        assert_eq!(ulps32(1.0 + f32::EPSILON, 1.0), 1.0);
        assert_eq!(ulps64(1.0, 1.0 + 3.0 * f64::EPSILON), 3.0);
        assert_eq!(ulps64(-4.9e-324, 4.9e-324), 2.0);
        assert!(ulps32(f32::NAN, 0.0).is_infinite());
    }
}
