//! The `.approx` functions: polynomials in double precision without branches, so that the loops
//! over the lanes vectorise. The results, rounded to single precision, are within one unit in the
//! last place, closer than those of hardware.

use std::marker::PhantomData;

use super::family::lane_bits;
use super::float::{canon, ftz};
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// A function with a fast version for common inputs and a slow version for all other inputs.
pub(crate) trait Approx {
    /// The function for an input in the fast range. Any result for other inputs.
    fn fast(a: f32) -> f32;
    /// Whether a value is outside the fast range.
    fn outside(a: f32) -> bool;
    /// The function outside the fast range.
    fn slow(a: f32) -> f32;
}

/// `d = f(a)`. `FTZ` flushes subnormal inputs and results.
pub(crate) struct MapApprox<F, const FTZ: bool>(PhantomData<F>);
impl<F: Approx, const FTZ: bool> Op for MapApprox<F, FTZ> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = u32::src(w, i.a);
        let input = |b: u32| {
            if FTZ {
                ftz(f32::from_bits(b))
            } else {
                f32::from_bits(b)
            }
        };
        let output = |r: f32| if FTZ { ftz(canon(r)) } else { canon(r) }.to_bits();
        let mut t = [0u32; LANES];
        for l in 0..LANES {
            t[l] = output(F::fast(input(a[l])));
        }
        let odd = lane_bits(|l| F::outside(input(a[l])));
        let mut rest = odd & mask;
        while rest != 0 {
            let l = rest.trailing_zeros() as usize;
            t[l] = output(F::slow(input(a[l])));
            rest &= rest - 1;
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}

/// A double plus this number has the nearest integer in its low bits.
const TO_INT: f64 = 6_755_399_441_055_744.0;

/// `2^x`.
pub(crate) struct Ex2;
impl Approx for Ex2 {
    #[inline(always)]
    fn fast(a: f32) -> f32 {
        let x = f64::from(a).clamp(-200.0, 200.0);
        let t = x + TO_INT;
        let r = (x - (t - TO_INT)) * std::f64::consts::LN_2;
        // The Taylor series of e^r for |r| <= 0.35.
        let p = 1.0 / 3_628_800.0;
        let p = p * r + 1.0 / 362_880.0;
        let p = p * r + 1.0 / 40_320.0;
        let p = p * r + 1.0 / 5_040.0;
        let p = p * r + 1.0 / 720.0;
        let p = p * r + 1.0 / 120.0;
        let p = p * r + 1.0 / 24.0;
        let p = p * r + 1.0 / 6.0;
        let p = p * r + 0.5;
        let p = p * r + 1.0;
        let p = p * r + 1.0;
        let scale = f64::from_bits(t.to_bits().wrapping_add(1023) << 52);
        (p * scale) as f32
    }
    #[inline(always)]
    fn outside(a: f32) -> bool {
        a.is_nan()
    }
    fn slow(_: f32) -> f32 {
        f32::NAN
    }
}

/// `log2 x`.
pub(crate) struct Lg2;
impl Approx for Lg2 {
    #[inline(always)]
    fn fast(a: f32) -> f32 {
        // The significand is taken from [√½, √2), so that logarithms near 1 keep their precision.
        const ROOT: u64 = 0x3fe6_a09e_667f_3bcd;
        let k = f64::from(a).to_bits().wrapping_sub(ROOT);
        let e = f64::from((k >> 32) as i32 >> 20);
        let m = f64::from_bits((k & 0x000f_ffff_ffff_ffff).wrapping_add(ROOT));
        let t = (m - 1.0) / (m + 1.0);
        let s = t * t;
        // The series of 2 atanh(t).
        let p = 1.0 / 15.0;
        let p = p * s + 1.0 / 13.0;
        let p = p * s + 1.0 / 11.0;
        let p = p * s + 1.0 / 9.0;
        let p = p * s + 1.0 / 7.0;
        let p = p * s + 1.0 / 5.0;
        let p = p * s + 1.0 / 3.0;
        let p = p * s + 1.0;
        (e + p * t * (2.0 * std::f64::consts::LOG2_E)) as f32
    }
    #[inline(always)]
    fn outside(a: f32) -> bool {
        // Zero, negative, infinite or NaN.
        (a.to_bits().wrapping_sub(1)) >= 0x7f7f_ffff
    }
    fn slow(a: f32) -> f32 {
        f64::from(a).log2() as f32
    }
}

/// Angles beyond this use the C library, which reduces them exactly.
const FAR: f32 = 1.0e5;

/// Reduces an angle to a rest and a number of quarter turns, and evaluates both polynomials.
/// Returns (sine, cosine, quarter turns).
#[inline(always)]
fn angle(a: f32) -> (f64, f64, u64) {
    // π/2 in two parts. The first part has 33 bits, so its product with the number of quarter turns
    // is exact.
    const HIGH: f64 = 1.570_796_326_734_125_6;
    const LOW: f64 = 6.077_100_506_506_192e-11;
    let x = f64::from(a);
    let t = x * std::f64::consts::FRAC_2_PI + TO_INT;
    let n = t - TO_INT;
    let r = (x - n * HIGH) - n * LOW;
    let s = r * r;
    let p = 1.0 / 6_227_020_800.0;
    let p = p * s - 1.0 / 39_916_800.0;
    let p = p * s + 1.0 / 362_880.0;
    let p = p * s - 1.0 / 5_040.0;
    let p = p * s + 1.0 / 120.0;
    let p = p * s - 1.0 / 6.0;
    // This order of operations keeps -0.
    let sine = r * (1.0 + s * p);
    let q = -1.0 / 87_178_291_200.0;
    let q = q * s + 1.0 / 479_001_600.0;
    let q = q * s - 1.0 / 3_628_800.0;
    let q = q * s + 1.0 / 40_320.0;
    let q = q * s - 1.0 / 720.0;
    let q = q * s + 1.0 / 24.0;
    let q = q * s - 0.5;
    let cosine = 1.0 + s * q;
    (sine, cosine, t.to_bits())
}

/// `sin x`.
pub(crate) struct Sin;
impl Approx for Sin {
    #[inline(always)]
    fn fast(a: f32) -> f32 {
        let (s, c, q) = angle(a);
        let v = if q & 1 != 0 { c } else { s };
        f64::from_bits(v.to_bits() ^ (q & 2) << 62) as f32
    }
    #[inline(always)]
    fn outside(a: f32) -> bool {
        a.is_nan() || a.abs() > FAR
    }
    fn slow(a: f32) -> f32 {
        f64::from(a).sin() as f32
    }
}

/// `cos x`.
pub(crate) struct Cos;
impl Approx for Cos {
    #[inline(always)]
    fn fast(a: f32) -> f32 {
        let (s, c, q) = angle(a);
        let v = if q & 1 != 0 { s } else { c };
        f64::from_bits(v.to_bits() ^ (q.wrapping_add(1) & 2) << 62) as f32
    }
    #[inline(always)]
    fn outside(a: f32) -> bool {
        a.is_nan() || a.abs() > FAR
    }
    fn slow(a: f32) -> f32 {
        f64::from(a).cos() as f32
    }
}
