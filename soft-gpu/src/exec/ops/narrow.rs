//! Conversions of singles to the 16-bit formats and to `tf32`, frequent conversions from the 16-bit
//! formats to singles, and conversions of the 8-bit formats.

use std::marker::PhantomData;

use super::convert::{self, Num, RELU};
use super::family::{F1, F2, f1};
use super::float::canon;
use super::half::{Brain, Half, NAN16, Small, brain_of_f32, f32_of_half, half_of_f32};
use crate::exec::round::{self, Format, Mode};

/// Flag `.satfinite` in an immediate: infinity is replaced by the largest finite value.
pub(crate) const SATFINITE: u64 = 64;
/// Flag `.rna` in an immediate: ties are rounded away from zero.
pub(crate) const AWAY: u64 = 128;

f1! {
    F32FromHalf: (a: u16) -> f32 = canon(f32_of_half(a));
    F32FromBrain: (a: u16) -> f32 = canon(f32::from_bits(u32::from(a) << 16));
    HalfFromF32: (a: f32) -> u16 = half_of_f32(a);
    BrainFromF32: (a: f32) -> u16 = brain_of_f32(a);
}

/// A 16-bit format to which values are converted.
pub(crate) trait Target: Small {
    /// The number of the format in [`convert`].
    const NUM: Num;
}
impl Target for Half {
    const NUM: Num = Num::F16;
}
impl Target for Brain {
    const NUM: Num = Num::BF16;
}

/// Converts a single to 16 bits. The low bits of `m` are the rounding mode, the bits above are
/// flags.
fn to16<T: Target>(x: f32, m: u64) -> u16 {
    let x = relu(x, m);
    let r = convert::to_float(f64::from(x), T::NUM, Mode::of(m)) as u16;
    if m & SATFINITE != 0 && r & 0x7fff == T::INFINITY {
        return r - 1;
    }
    r
}

/// Replaces negative values, also -0, by +0 if the flag is set. A NaN is unchanged.
fn relu(x: f32, m: u64) -> f32 {
    if m & RELU != 0 && x.is_sign_negative() && !x.is_nan() {
        0.0
    } else {
        x
    }
}

/// `cvt.{rn,rz}{.relu}{.satfinite}.{f16,bf16}.f32`.
pub(crate) struct To16<T>(PhantomData<T>);
impl<T: Target> F1 for To16<T> {
    type A = f32;
    type D = u16;
    #[inline(always)]
    fn f(a: f32, m: u64) -> u16 {
        to16::<T>(a, m)
    }
}

/// `cvt.rn.f16x2.f32`. The first source goes to the high half.
pub(crate) struct HalvesFromF32;
impl F2 for HalvesFromF32 {
    type A = f32;
    type B = f32;
    type D = u32;
    #[inline(always)]
    fn f(a: f32, b: f32, _: u64) -> u32 {
        u32::from(half_of_f32(a)) << 16 | u32::from(half_of_f32(b))
    }
}

/// `cvt.rn.bf16x2.f32`. The first source goes to the high half.
pub(crate) struct BrainsFromF32;
impl F2 for BrainsFromF32 {
    type A = f32;
    type B = f32;
    type D = u32;
    #[inline(always)]
    fn f(a: f32, b: f32, _: u64) -> u32 {
        u32::from(brain_of_f32(a)) << 16 | u32::from(brain_of_f32(b))
    }
}

/// `cvt.{rn,rz}{.relu}{.satfinite}.{f16x2,bf16x2}.f32`.
pub(crate) struct To16x2<T>(PhantomData<T>);
impl<T: Target> F2 for To16x2<T> {
    type A = f32;
    type B = f32;
    type D = u32;
    #[inline(always)]
    fn f(a: f32, b: f32, m: u64) -> u32 {
        u32::from(to16::<T>(a, m)) << 16 | u32::from(to16::<T>(b, m))
    }
}

/// `cvt.{rna,rn,rz}{.relu}{.satfinite}.tf32.f32`: clears the low 13 bits.
pub(crate) struct ToTf32;
impl F1 for ToTf32 {
    type A = f32;
    type D = f32;
    #[inline(always)]
    fn f(a: f32, m: u64) -> f32 {
        const REST: u32 = 0x1fff;
        let b = relu(a, m).to_bits();
        let up = match Mode::of(m) {
            _ if m & AWAY != 0 => 0x1000,
            Mode::Nearest => 0xfff + (b >> 13 & 1),
            _ => 0,
        };
        // A carry out of the fraction increases the exponent; the largest exponent then gives
        // infinity.
        let r = b.wrapping_add(up) & !REST;
        let (sign, size) = (r & 0x8000_0000, r & 0x7fff_ffff);
        let largest = if m & SATFINITE != 0 {
            0x7f7f_ffff & !REST
        } else {
            size
        };
        let r = sign | if size == 0x7f80_0000 { largest } else { size };
        // The NaN is selected last, so that all lanes run the same code.
        let nan = a.to_bits() & 0x7fff_ffff > 0x7f80_0000;
        f32::from_bits(if nan { 0x7fff_ffff } else { r })
    }
}

/// An 8-bit format. Conversions to these formats are always `.satfinite`.
pub(crate) trait Tiny {
    /// The format for rounding. In `e4m3`, the exponent of infinity in other formats has numbers.
    const FORMAT: Format;
    /// The largest finite value.
    const LARGEST: u64;
    /// The value as a half, exactly.
    fn half(bits: u8) -> u16;
}

/// `e4m3`: no infinity, and one NaN per sign.
pub(crate) struct E4m3;
impl Tiny for E4m3 {
    const FORMAT: Format = round::E4M3;
    const LARGEST: u64 = 0x7e;
    #[inline(always)]
    fn half(bits: u8) -> u16 {
        let magnitude = u16::from(bits & 0x7f);
        if magnitude == 0x7f {
            return NAN16;
        }
        // The exponent bias of `e4m3` is 8 less than that of a half, so the value is multiplied by
        // 2^8.
        let half = half_of_f32(f32_of_half(magnitude << 7) * 256.0);
        half | u16::from(bits & 0x80) << 8
    }
}

/// `e5m2`: the upper eight bits of a half.
pub(crate) struct E5m2;
impl Tiny for E5m2 {
    const FORMAT: Format = round::E5M2;
    const LARGEST: u64 = 0x7b;
    #[inline(always)]
    fn half(bits: u8) -> u16 {
        let half = u16::from(bits) << 8;
        if bits & 0x7f > 0x7c { NAN16 } else { half }
    }
}

fn to8<T: Tiny>(x: f32, m: u64) -> u8 {
    if x.is_nan() {
        return 0x7f;
    }
    let x = relu(x, m);
    let magnitude = round::from_f64(f64::from(x.abs()), Mode::Nearest, T::FORMAT);
    let sign = u8::from(x.is_sign_negative()) << 7;
    sign | magnitude.min(T::LARGEST) as u8
}

/// `cvt.rn.satfinite{.relu}.{e4m3x2,e5m2x2}.f32`. The first source goes to the high half.
pub(crate) struct To8x2<T>(PhantomData<T>);
impl<T: Tiny> F2 for To8x2<T> {
    type A = f32;
    type B = f32;
    type D = u16;
    #[inline(always)]
    fn f(a: f32, b: f32, m: u64) -> u16 {
        u16::from_be_bytes([to8::<T>(a, m), to8::<T>(b, m)])
    }
}

/// `cvt.rn.satfinite{.relu}.{e4m3x2,e5m2x2}.f16x2`.
pub(crate) struct HalvesTo8x2<T>(PhantomData<T>);
impl<T: Tiny> F1 for HalvesTo8x2<T> {
    type A = u32;
    type D = u16;
    #[inline(always)]
    fn f(a: u32, m: u64) -> u16 {
        let [high, low] = [a >> 16, a].map(|h| to8::<T>(f32_of_half(h as u16), m));
        u16::from_be_bytes([high, low])
    }
}

/// `cvt.rn{.relu}.f16x2.{e4m3x2,e5m2x2}`.
pub(crate) struct HalvesFrom8x2<T>(PhantomData<T>);
impl<T: Tiny> F1 for HalvesFrom8x2<T> {
    type A = u16;
    type D = u32;
    #[inline(always)]
    fn f(a: u16, m: u64) -> u32 {
        let [high, low] = a.to_be_bytes().map(|bits| {
            let half = T::half(bits);
            let negative = half & 0x8000 != 0;
            u32::from(if negative && m & RELU != 0 { 0 } else { half })
        });
        high << 16 | low
    }
}
