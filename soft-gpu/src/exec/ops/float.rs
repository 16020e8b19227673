//! Floating-point arithmetic. In single precision, a NaN result is the canonical NaN 0x7fffffff, as
//! on hardware. In double precision, a NaN result has the payload that the CPU gives.

use std::marker::PhantomData;

use super::family::{F1, F2, F3, f1, f2, f3};
use crate::exec::round::{self, Mode};

/// Flags in the immediate. Bits 0 and 1 of the immediate are the rounding mode.
pub(crate) mod flag {
    /// `.ftz`.
    pub(crate) const FTZ: u64 = 4;
    /// `.sat`.
    pub(crate) const SAT: u64 = 8;
}

/// Replaces a subnormal by a zero of the same sign.
#[inline(always)]
pub(crate) fn ftz(x: f32) -> f32 {
    let b = x.to_bits();
    f32::from_bits(if b & 0x7f80_0000 == 0 {
        b & 0x8000_0000
    } else {
        b
    })
}

/// Replaces any NaN by the canonical NaN.
#[inline(always)]
pub(crate) fn canon(x: f32) -> f32 {
    // The check works on bits, because the compiler may exchange the NaN operands of an operation.
    let b = x.to_bits();
    f32::from_bits(if b & 0x7fff_ffff > 0x7f80_0000 {
        0x7fff_ffff
    } else {
        b
    })
}

/// Clamps to [0, 1]; NaN becomes +0.
#[inline(always)]
pub(crate) fn sat(x: f32) -> f32 {
    if x > 0.0 {
        if x < 1.0 { x } else { 1.0 }
    } else {
        0.0
    }
}

/// Clamps to [0, 1]; NaN becomes +0.
#[inline(always)]
pub(crate) fn sat64(x: f64) -> f64 {
    if x > 0.0 {
        if x < 1.0 { x } else { 1.0 }
    } else {
        0.0
    }
}

/// A function `F` with subnormal inputs and results flushed to zero.
pub(crate) struct Ftz<F>(PhantomData<F>);
/// A function `F` with its result clamped to [0, 1].
pub(crate) struct Sat<F>(PhantomData<F>);

impl<F: F1<A = f32, D = f32>> F1 for Ftz<F> {
    type A = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, m: u64) -> f32 {
        ftz(F::f(ftz(a), m))
    }
}
impl<F: F2<A = f32, B = f32, D = f32>> F2 for Ftz<F> {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, b: f32, m: u64) -> f32 {
        ftz(F::f(ftz(a), ftz(b), m))
    }
}
impl<F: F3<A = f32, B = f32, C = f32, D = f32>> F3 for Ftz<F> {
    type A = f32;
    type B = f32;
    type C = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, b: f32, c: f32, m: u64) -> f32 {
        ftz(F::f(ftz(a), ftz(b), ftz(c), m))
    }
}
impl<F: F2<A = f32, B = f32, D = f32>> F2 for Sat<F> {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, b: f32, m: u64) -> f32 {
        sat(F::f(a, b, m))
    }
}
impl<F: F3<A = f32, B = f32, C = f32, D = f32>> F3 for Sat<F> {
    type A = f32;
    type B = f32;
    type C = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, b: f32, c: f32, m: u64) -> f32 {
        sat(F::f(a, b, c, m))
    }
}

/// A function `F` of the magnitudes; the result gets the sign of the product of both inputs
/// (`.xorsign.abs`).
pub(crate) struct XorSign<F>(PhantomData<F>);
impl<F: F2<A = f32, B = f32, D = f32>> F2 for XorSign<F> {
    type A = f32;
    type B = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, b: f32, m: u64) -> f32 {
        let r = F::f(a.abs(), b.abs(), m);
        let sign = (a.to_bits() ^ b.to_bits()) & 0x8000_0000;
        canon(f32::from_bits(r.to_bits() ^ sign))
    }
}

macro_rules! min_max {
    ($($n:ident $t:ty, $bits:ty, $better:tt, $merge:tt, $nan:expr, $canon:expr;)*) => {$(
        /// The minimum or maximum. If one operand is NaN, the result is the other operand, or NaN
        /// in the `.NaN` form. -0 is less than +0.
        pub(crate) struct $n;
        impl F2 for $n {
            type A = $t;
            type B = $t;
            type D = $t;
            #[inline(always)]
            fn f(a: $t, b: $t, _: u64) -> $t {
                let zero = <$t>::from_bits(a.to_bits() $merge b.to_bits());
                let r = if a == b { zero } else if a $better b { a } else { b };
                let r = if b.is_nan() { a } else { r };
                let r = if a.is_nan() { b } else { r };
                if $nan && (a.is_nan() || b.is_nan()) || r.is_nan() { $canon } else { r }
            }
        }
    )*};
}

/// 2^126.
const TWO_126: f32 = f32::from_bits(0x7e80_0000);

const NAN32: f32 = f32::from_bits(0x7fff_ffff);
const NAN64: f64 = f64::from_bits(0x7fff_ffff_ffff_ffff);

min_max! {
    MinF32 f32, u32, <, |, false, NAN32;
    MaxF32 f32, u32, >, &, false, NAN32;
    MinNanF32 f32, u32, <, |, true, NAN32;
    MaxNanF32 f32, u32, >, &, true, NAN32;
    MinF64 f64, u64, <, |, false, NAN64;
    MaxF64 f64, u64, >, &, false, NAN64;
}

f2! {
    AddF32: (a: f32, b: f32) -> f32 = canon(a + b);
    SubF32: (a: f32, b: f32) -> f32 = canon(a - b);
    MulF32: (a: f32, b: f32) -> f32 = canon(a * b);
    DivF32: (a: f32, b: f32) -> f32 = canon(a / b);
    // By the PTX manual, the result is zero if the divisor is above 2^126.
    DivApproxF32: (a: f32, b: f32) -> f32 =
        canon(if b.abs() > TWO_126 && b.is_finite() { a * 0f32.copysign(b) } else { a / b });
    AddF64: (a: f64, b: f64) -> f64 = a + b;
    SubF64: (a: f64, b: f64) -> f64 = a - b;
    MulF64: (a: f64, b: f64) -> f64 = a * b;
    DivF64: (a: f64, b: f64) -> f64 = a / b;
    // The magnitude of the second operand with the sign of the first.
    CopysignF32: (a: f32, b: f32) -> f32 = b.copysign(a);
    CopysignF64: (a: f64, b: f64) -> f64 = b.copysign(a);
}

f3! {
    FmaF32: (a: f32, b: f32, c: f32) -> f32 = canon(a.mul_add(b, c));
    FmaF64: (a: f64, b: f64, c: f64) -> f64 = a.mul_add(b, c);
}

f1! {
    NegF32: (a: f32) -> f32 = -a;
    NegF64: (a: f64) -> f64 = -a;
    AbsF32: (a: f32) -> f32 = a.abs();
    AbsF64: (a: f64) -> f64 = a.abs();
    SqrtF32: (a: f32) -> f32 = canon(a.sqrt());
    SqrtF64: (a: f64) -> f64 = a.sqrt();
    RcpF32: (a: f32) -> f32 = canon(1.0 / a);
    RcpF64: (a: f64) -> f64 = 1.0 / a;
    RsqrtF32: (a: f32) -> f32 = canon((1.0 / f64::from(a).sqrt()) as f32);
    RsqrtF64: (a: f64) -> f64 = 1.0 / a.sqrt();
    // Approximate reciprocals in double precision have zeros in their low 32 bits.
    RcpApproxF64: (a: f64) -> f64 = high_word(1.0 / flush64(a));
    RsqrtApproxF64: (a: f64) -> f64 = high_word(1.0 / flush64(a).sqrt());
    TanhF32: (a: f32) -> f32 = canon(f64::from(a).tanh() as f32);
}

fn high_word(x: f64) -> f64 {
    if x.is_nan() {
        x
    } else {
        f64::from_bits(flush64(x).to_bits() & !0xffff_ffff)
    }
}

fn flush64(x: f64) -> f64 {
    if x.is_subnormal() {
        0f64.copysign(x)
    } else {
        x
    }
}

/// Applies the flags in `m` to the result of a single-precision function.
#[inline(always)]
fn flagged(m: u64, r: f32) -> f32 {
    let r = canon(r);
    let r = if m & flag::FTZ != 0 { ftz(r) } else { r };
    if m & flag::SAT != 0 { sat(r) } else { r }
}

#[inline(always)]
fn input(m: u64, x: f32) -> f32 {
    if m & flag::FTZ != 0 { ftz(x) } else { x }
}

/// Declares operations with directed rounding. Their immediate holds the rounding mode and the
/// flags.
macro_rules! rounded {
    ($($n:ident $tr:ident [$($v:ident),+] f32 = $e:expr;)*) => {$(
        pub(crate) struct $n;
        rounded!(@impl $n $tr [$($v),+] f32, |m| flagged(m, { $(let $v = input(m, $v);)+ $e(Mode::of(m)) }));
    )*};
    (@impl $n:ident F1 [$a:ident] $t:ty, |$m:ident| $e:expr) => {
        impl F1 for $n {
            type A = $t;
            type D = $t;
            #[inline(always)]
            fn f($a: $t, $m: u64) -> $t { $e }
        }
    };
    (@impl $n:ident F2 [$a:ident, $b:ident] $t:ty, |$m:ident| $e:expr) => {
        impl F2 for $n {
            type A = $t;
            type B = $t;
            type D = $t;
            #[inline(always)]
            fn f($a: $t, $b: $t, $m: u64) -> $t { $e }
        }
    };
    (@impl $n:ident F3 [$a:ident, $b:ident, $c:ident] $t:ty, |$m:ident| $e:expr) => {
        impl F3 for $n {
            type A = $t;
            type B = $t;
            type C = $t;
            type D = $t;
            #[inline(always)]
            fn f($a: $t, $b: $t, $c: $t, $m: u64) -> $t { $e }
        }
    };
}

rounded! {
    AddRndF32 F2 [a, b] f32 = |r| round::add32(a, b, r);
    SubRndF32 F2 [a, b] f32 = |r| round::add32(a, -b, r);
    MulRndF32 F2 [a, b] f32 = |r| round::mul32(a, b, r);
    DivRndF32 F2 [a, b] f32 = |r| round::div32(a, b, r);
    FmaRndF32 F3 [a, b, c] f32 = |r| round::fma32(a, b, c, r);
    RcpRndF32 F1 [a] f32 = |r| round::div32(1.0, a, r);
    SqrtRndF32 F1 [a] f32 = |r| round::sqrt32(a, r);
}

macro_rules! rounded64 {
    ($($n:ident $tr:ident [$($v:ident),+] = $e:expr;)*) => {$(
        pub(crate) struct $n;
        rounded!(@impl $n $tr [$($v),+] f64, |m| $e(Mode::of(m)));
    )*};
}

rounded64! {
    AddRndF64 F2 [a, b] = |r| round::add64(a, b, r);
    SubRndF64 F2 [a, b] = |r| round::add64(a, -b, r);
    MulRndF64 F2 [a, b] = |r| round::mul64(a, b, r);
    DivRndF64 F2 [a, b] = |r| round::div64(a, b, r);
    FmaRndF64 F3 [a, b, c] = |r| round::fma64(a, b, c, r);
    RcpRndF64 F1 [a] = |r| round::div64(1.0, a, r);
    SqrtRndF64 F1 [a] = |r| round::sqrt64(a, r);
}
