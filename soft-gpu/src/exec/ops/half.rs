//! Half precision (`f16`) and bfloat16 arithmetic, with one or two values per register.
//!
//! A result is computed in a double, exactly or rounded to odd ([`round`]), and then rounded once
//! to nearest even. The result is therefore correctly rounded, even if it is subnormal. A NaN
//! result is the canonical NaN 0x7fff. `.relu` replaces every negative result, also -0, by +0.

use std::marker::PhantomData;

use super::convert::RELU;
use super::family::{F1, F2, F3};
use super::float::flag::{FTZ, SAT};
use crate::exec::round;

/// Flags of `min` and `max` in the immediate.
pub(crate) mod extreme {
    /// `.NaN`: a NaN operand makes the result NaN.
    pub(crate) const NAN: u64 = 64;
    /// `.xorsign.abs`.
    pub(crate) const XORSIGN: u64 = 128;
}

/// The canonical NaN of both formats.
pub(crate) const NAN16: u16 = 0x7fff;

/// A 16-bit floating-point format.
pub(crate) trait Small {
    /// The bits of infinity, which are also the mask of the exponent field.
    const INFINITY: u16;
    /// The bits of 1.0.
    const ONE: u16;
    /// The value as a double, exactly.
    fn wide(h: u16) -> f64;
    /// Rounds to the nearest value, ties to even.
    fn round(x: f64) -> u16;
    /// The sum of two values of this format, exact or rounded to odd.
    fn sum(a: f64, b: f64) -> f64;
}

/// `f16`: 5 bits of exponent, 10 bits of fraction.
pub(crate) struct Half;
/// `bf16`: the upper half of a single.
pub(crate) struct Brain;

impl Small for Half {
    const INFINITY: u16 = 0x7c00;
    const ONE: u16 = 0x3c00;
    #[inline(always)]
    fn wide(h: u16) -> f64 {
        f64::from(f32_of_half(h))
    }
    #[inline(always)]
    fn round(x: f64) -> u16 {
        half_of_f32(odd(x))
    }
    #[inline(always)]
    fn sum(a: f64, b: f64) -> f64 {
        // The sum is exact: values are multiples of 2^-24 below 2^16, so a sum has at most 41 bits.
        a + b
    }
}

impl Small for Brain {
    const INFINITY: u16 = 0x7f80;
    const ONE: u16 = 0x3f80;
    #[inline(always)]
    fn wide(h: u16) -> f64 {
        f64::from(f32::from_bits(u32::from(h) << 16))
    }
    #[inline(always)]
    fn round(x: f64) -> u16 {
        brain_of_f32(odd(x))
    }
    #[inline(always)]
    fn sum(a: f64, b: f64) -> f64 {
        round::add_odd(a, b)
    }
}

/// Converts a half to a single, exactly. A NaN stays a NaN.
#[inline(always)]
pub(crate) fn f32_of_half(h: u16) -> f32 {
    let magnitude = u32::from(h & 0x7fff) << 13;
    // The exponent bias is 112 too small, so the number is multiplied by 2^112. The product is
    // exact, also for a subnormal.
    let scaled = f32::from_bits(magnitude) * f32::from_bits(0x7780_0000);
    let bits = if magnitude >= 0x0f80_0000 {
        magnitude | 0x7f80_0000
    } else {
        scaled.to_bits()
    };
    f32::from_bits(bits | u32::from(h & 0x8000) << 16)
}

/// Rounds a double to a single, to odd. A later rounding to 16 bits is then correct.
#[inline(always)]
fn odd(x: f64) -> f32 {
    let y = x as f32;
    let w = f64::from(y);
    let bits = y.to_bits() - u32::from(w.abs() > x.abs());
    f32::from_bits(bits | u32::from(w != x))
}

/// Rounds a single to half precision, to nearest even.
#[inline(always)]
pub(crate) fn half_of_f32(x: f32) -> u16 {
    let bits = x.to_bits();
    let a = bits & 0x7fff_ffff;
    let t = a.wrapping_sub(0x3800_0000);
    let normal = (t.wrapping_add(0xfff + (t >> 13 & 1)) >> 13).min(0x7c00);
    // The last bit of 0.5 has the value of the smallest half, so this addition rounds to halves.
    let small = (f32::from_bits(a) + 0.5)
        .to_bits()
        .wrapping_sub(0x3f00_0000);
    let r = if a < 0x3880_0000 { small } else { normal };
    let r = if a > 0x7f80_0000 {
        u32::from(NAN16)
    } else {
        r | (bits >> 16 & 0x8000)
    };
    r as u16
}

/// Rounds a single to bfloat16, to nearest even.
#[inline(always)]
pub(crate) fn brain_of_f32(x: f32) -> u16 {
    let a = x.to_bits();
    let r = a.wrapping_add(0x7fff + (a >> 16 & 1)) >> 16;
    if x.is_nan() { NAN16 } else { r as u16 }
}

#[inline(always)]
fn is_nan<T: Small>(h: u16) -> bool {
    h & 0x7fff > T::INFINITY
}

/// Replaces a subnormal by a zero of the same sign.
#[inline(always)]
fn flushed<T: Small>(h: u16) -> u16 {
    if h & T::INFINITY == 0 { h & 0x8000 } else { h }
}

#[inline(always)]
fn input<T: Small, const FLAGS: bool>(h: u16, m: u64) -> f64 {
    T::wide(if FLAGS && m & FTZ != 0 {
        flushed::<T>(h)
    } else {
        h
    })
}

#[inline(always)]
fn output<T: Small, const FLAGS: bool>(x: f64, m: u64) -> u16 {
    let r = T::round(x);
    if FLAGS { modified::<T>(r, m) } else { r }
}

/// Applies `.ftz`, `.sat` and `.relu` to a result.
fn modified<T: Small>(r: u16, m: u64) -> u16 {
    let r = if m & FTZ != 0 { flushed::<T>(r) } else { r };
    if m & SAT != 0 && is_nan::<T>(r) {
        return 0;
    }
    if m & (SAT | RELU) != 0 && r & 0x8000 != 0 {
        return 0;
    }
    if m & SAT != 0 && r > T::ONE {
        return T::ONE;
    }
    r
}

/// A function of the 16-bit values of one lane. `m` is the immediate of the instruction.
pub(crate) trait Lane {
    /// The function.
    fn f(a: u16, b: u16, c: u16, m: u64) -> u16;
}

macro_rules! lanes {
    ($($n:ident $t:ident |$a:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        /// An arithmetic function. With `FLAGS`, the immediate holds the modifiers.
        pub(crate) struct $n<T, const FLAGS: bool>(PhantomData<T>);
        impl<$t: Small, const FLAGS: bool> Lane for $n<$t, FLAGS> {
            #[inline(always)]
            fn f(a: u16, b: u16, c: u16, m: u64) -> u16 {
                let [$a, $b, $c] = [a, b, c].map(|h| input::<$t, FLAGS>(h, m));
                let _ = ($b, $c);
                output::<$t, FLAGS>($e, m)
            }
        }
    )*};
}

lanes! {
    Add T |a, b, c| T::sum(a, b);
    Sub T |a, b, c| T::sum(a, -b);
    // The product is exact, because it has at most 22 bits.
    Mul T |a, b, c| a * b;
    Fma T |a, b, c| round::add_odd(a * b, c);
    Ex2 T |a, b, c| a.exp2();
    Tanh T |a, b, c| a.tanh();
}

/// `neg`: changes only the sign, even for a NaN.
pub(crate) struct Neg<T>(PhantomData<T>);
impl<T: Small> Lane for Neg<T> {
    #[inline(always)]
    fn f(a: u16, _: u16, _: u16, m: u64) -> u16 {
        let a = if m & FTZ != 0 { flushed::<T>(a) } else { a };
        a ^ 0x8000
    }
}

/// `abs`: changes only the sign, even for a NaN.
pub(crate) struct Abs<T>(PhantomData<T>);
impl<T: Small> Lane for Abs<T> {
    #[inline(always)]
    fn f(a: u16, _: u16, _: u16, m: u64) -> u16 {
        let a = if m & FTZ != 0 { flushed::<T>(a) } else { a };
        a & 0x7fff
    }
}

/// `min` and `max`. If one operand is NaN, the result is the other operand. -0 is less than +0.
pub(crate) struct Extreme<T, const MAX: bool>(PhantomData<T>);
impl<T: Small, const MAX: bool> Lane for Extreme<T, MAX> {
    #[inline(always)]
    fn f(a: u16, b: u16, _: u16, m: u64) -> u16 {
        let mut v = [a, b];
        let mut sign = 0;
        if m & FTZ != 0 {
            v = v.map(flushed::<T>);
        }
        if m & extreme::XORSIGN != 0 {
            sign = (a ^ b) & 0x8000;
            v = v.map(|h| h & 0x7fff);
        }
        // Integers in the same order as the values.
        let key = |h: u16| (h ^ (((h as i16) >> 15) as u16 & 0x7fff)) as i16;
        let [a, b] = v;
        let first = if MAX {
            key(a) >= key(b)
        } else {
            key(a) <= key(b)
        };
        let (x, y) = (is_nan::<T>(a), is_nan::<T>(b));
        if x && y || m & extreme::NAN != 0 && (x || y) {
            return NAN16;
        }
        let r = if y || !x && first { a } else { b };
        r | sign
    }
}

/// Applies a function to registers with one value.
pub(crate) struct One<L>(PhantomData<L>);
/// Applies a function to registers with two independent values.
pub(crate) struct Two<L>(PhantomData<L>);

impl<L: Lane> F1 for One<L> {
    type A = u16;
    type D = u16;
    #[inline(always)]
    fn f(a: u16, m: u64) -> u16 {
        L::f(a, 0, 0, m)
    }
}

impl<L: Lane> F2 for One<L> {
    type A = u16;
    type B = u16;
    type D = u16;
    #[inline(always)]
    fn f(a: u16, b: u16, m: u64) -> u16 {
        L::f(a, b, 0, m)
    }
}

impl<L: Lane> F3 for One<L> {
    type A = u16;
    type B = u16;
    type C = u16;
    type D = u16;
    #[inline(always)]
    fn f(a: u16, b: u16, c: u16, m: u64) -> u16 {
        L::f(a, b, c, m)
    }
}

/// Applies a function to the low halves and to the high halves of three words.
#[inline(always)]
fn halves<L: Lane>(a: u32, b: u32, c: u32, m: u64) -> u32 {
    let low = L::f(a as u16, b as u16, c as u16, m);
    let high = L::f((a >> 16) as u16, (b >> 16) as u16, (c >> 16) as u16, m);
    u32::from(high) << 16 | u32::from(low)
}

impl<L: Lane> F1 for Two<L> {
    type A = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, m: u64) -> u32 {
        halves::<L>(a, 0, 0, m)
    }
}

impl<L: Lane> F2 for Two<L> {
    type A = u32;
    type B = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, m: u64) -> u32 {
        halves::<L>(a, b, 0, m)
    }
}

impl<L: Lane> F3 for Two<L> {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, c: u32, m: u64) -> u32 {
        halves::<L>(a, b, c, m)
    }
}

/// Integer operations on pairs of 16-bit values: `add`, `min`, `max` of `u16x2` and `s16x2`.
macro_rules! integers {
    ($($n:ident |$a:ident, $b:ident| $e:expr;)*) => {$(
        /// An operation on 16-bit integers.
        pub(crate) struct $n;
        impl Lane for $n {
            #[inline(always)]
            fn f($a: u16, $b: u16, _: u16, m: u64) -> u16 {
                let r: u16 = $e;
                if m & RELU != 0 && r & 0x8000 != 0 { 0 } else { r }
            }
        }
    )*};
}

integers! {
    AddInt |a, b| a.wrapping_add(b);
    MinU |a, b| a.min(b);
    MaxU |a, b| a.max(b);
    MinS |a, b| (a as i16).min(b as i16) as u16;
    MaxS |a, b| (a as i16).max(b as i16) as u16;
}
