//! `cvt`: a function for each frequent pair of types, and a general function whose immediate
//! describes the conversion.

use super::family::{each_lane, f1, f2};
use super::float::{flag, ftz, sat64};
use crate::exec::col::Raw;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, Op};
use crate::exec::round::{self, Mode};
use crate::exec::warp::Warp;

/// Type of a number in a conversion. Immediates hold the discriminants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Num {
    U8,
    S8,
    U16,
    S16,
    U32,
    S32,
    U64,
    S64,
    F16,
    BF16,
    F32,
    F64,
}

const ALL: [Num; 12] = [
    Num::U8,
    Num::S8,
    Num::U16,
    Num::S16,
    Num::U32,
    Num::S32,
    Num::U64,
    Num::S64,
    Num::F16,
    Num::BF16,
    Num::F32,
    Num::F64,
];

impl Num {
    fn at(code: u64) -> Num {
        ALL[(code & 15).min(11) as usize]
    }

    /// Width in bits.
    pub(crate) fn bits(self) -> u32 {
        match self {
            Num::U8 | Num::S8 => 8,
            Num::U16 | Num::S16 | Num::F16 | Num::BF16 => 16,
            Num::U32 | Num::S32 | Num::F32 => 32,
            Num::U64 | Num::S64 | Num::F64 => 64,
        }
    }

    /// Whether the type is a floating-point type.
    pub(crate) fn float(self) -> bool {
        matches!(self, Num::F16 | Num::BF16 | Num::F32 | Num::F64)
    }

    fn signed(self) -> bool {
        matches!(self, Num::S8 | Num::S16 | Num::S32 | Num::S64)
    }

    fn range(self) -> (i128, i128) {
        let b = self.bits();
        if self.signed() {
            (-(1 << (b - 1)), (1 << (b - 1)) - 1)
        } else {
            (0, (1 << b) - 1)
        }
    }
}

/// Flag: rounds to an integral value (`.rni` and similar modifiers).
pub(crate) const INTEGRAL: u64 = 16;
/// Flag `.relu`: negative results become zero.
pub(crate) const RELU: u64 = 32;

/// Builds the immediate of a general conversion.
pub(crate) fn describe(dst: Num, src: Num, flags: u64) -> u64 {
    flags | (dst as u64) << 16 | (src as u64) << 24
}

/// Converts a half to a double, exactly.
pub(crate) fn from_f16(h: u16) -> f64 {
    let e = i32::from(h >> 10 & 31);
    let m = f64::from(h & 0x3ff);
    let v = match e {
        0 => m * 2f64.powi(-24),
        31 if m == 0.0 => f64::INFINITY,
        31 => f64::NAN,
        _ => (m + 1024.0) * 2f64.powi(e - 25),
    };
    if h & 0x8000 != 0 { -v } else { v }
}

/// Rounds a floating-point value to a format, and returns the bits. A NaN becomes canonical.
pub(crate) fn to_float(x: f64, dst: Num, mode: Mode) -> u64 {
    match dst {
        Num::F64 => x.to_bits(),
        Num::F32 if x.is_nan() => 0x7fff_ffff,
        Num::F32 if mode == Mode::Nearest => u64::from((x as f32).to_bits()),
        Num::F32 => u64::from(round::narrow(x, mode).to_bits()),
        _ if x.is_nan() => 0x7fff,
        Num::F16 if x.is_infinite() => 0x7c00 | u64::from(x < 0.0) << 15,
        Num::F16 => round::from_f64(x, mode, round::F16),
        _ if x.is_infinite() => 0x7f80 | u64::from(x < 0.0) << 15,
        _ => round::from_f64(x, mode, round::BF16),
    }
}

fn integral(x: f64, mode: Mode) -> f64 {
    match mode {
        Mode::Nearest => x.round_ties_even(),
        Mode::Zero => x.trunc(),
        Mode::Down => x.floor(),
        Mode::Up => x.ceil(),
    }
}

/// Makes a NaN quiet, as arithmetic does. Functions of the C library may return a signalling NaN.
#[inline(always)]
fn quiet(x: f64) -> f64 {
    if x.is_nan() {
        f64::from_bits(x.to_bits() | 1 << 51)
    } else {
        x
    }
}

/// Extends a value of type `t` to 64 bits, with its sign if the type is signed.
fn extend(v: u64, t: Num) -> u64 {
    let k = 64 - t.bits();
    if t.signed() {
        ((v << k) as i64 >> k) as u64
    } else {
        v << k >> k
    }
}

fn int_of(bits: u64, t: Num) -> i128 {
    let v = extend(bits, t);
    if t.signed() {
        i128::from(v as i64)
    } else {
        i128::from(v)
    }
}

fn float_of(bits: u64, t: Num, m: u64) -> f64 {
    match t {
        Num::F16 => from_f16(bits as u16),
        Num::BF16 => f64::from(f32::from_bits((bits as u32) << 16)),
        Num::F32 => {
            let x = f32::from_bits(bits as u32);
            f64::from(if m & flag::FTZ != 0 { ftz(x) } else { x })
        }
        _ => f64::from_bits(bits),
    }
}

fn float_to_int(x: f64, src: Num, dst: Num, mode: Mode) -> u64 {
    if x.is_nan() {
        // NaN becomes zero if both types have at most 32 bits, and otherwise only the top bit is
        // set.
        let wide = src == Num::F64 || dst.bits() == 64;
        return if wide {
            extend(1 << (dst.bits() - 1), dst)
        } else {
            0
        };
    }
    let (lo, hi) = dst.range();
    extend((integral(x, mode) as i128).clamp(lo, hi) as u64, dst)
}

fn int_to_float(v: i128, dst: Num, mode: Mode) -> u64 {
    let f = match dst {
        Num::F16 => round::F16,
        Num::BF16 => round::BF16,
        Num::F32 => round::F32,
        _ => round::F64,
    };
    round::pack(v < 0, v.unsigned_abs(), 0, false, mode, f)
}

/// Converts one value. `m` describes the conversion ([`describe`]).
pub(crate) fn convert(bits: u64, m: u64) -> u64 {
    let (dst, src) = (Num::at(m >> 16), Num::at(m >> 24));
    let mode = Mode::of(m);
    if !src.float() {
        let v = int_of(bits, src);
        if dst.float() {
            let r = int_to_float(v, dst, mode);
            return if m & flag::SAT != 0 {
                saturate(r, dst)
            } else {
                r
            };
        }
        let (lo, hi) = dst.range();
        let v = if m & flag::SAT != 0 {
            v.clamp(lo, hi)
        } else {
            v
        };
        return extend(v as u64, dst);
    }
    let x = float_of(bits, src, m);
    if !dst.float() {
        return float_to_int(x, src, dst, mode);
    }
    if src == dst && m & (INTEGRAL | flag::SAT | RELU) == 0 {
        return match src {
            Num::F32 if m & flag::FTZ != 0 => u64::from(super::float::canon(x as f32).to_bits()),
            _ => bits,
        };
    }
    let x = if m & INTEGRAL != 0 {
        integral(x, mode)
    } else {
        x
    };
    let x = if m & flag::SAT != 0 { sat64(x) } else { x };
    let x = if m & RELU != 0 && x < 0.0 { 0.0 } else { x };
    let r = to_float(x, dst, mode);
    match dst {
        Num::F32 if m & flag::FTZ != 0 => u64::from(ftz(f32::from_bits(r as u32)).to_bits()),
        _ => r,
    }
}

fn saturate(bits: u64, t: Num) -> u64 {
    to_float(sat64(float_of(bits, t, 0)), t, Mode::Nearest)
}

/// Flag of [`PackInts`]: whether the results are signed.
pub(crate) const PACK_SIGNED: u64 = 64;

/// `cvt.pack.sat`: saturates `a` and `b` to the width in the low six bits of the immediate. The
/// result has `b` in its low bits, `a` above `b`, and `c` above `a`.
pub(crate) struct PackInts;
impl super::family::F3 for PackInts {
    type A = i32;
    type B = i32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: i32, b: i32, c: u32, m: u64) -> u32 {
        let bits = (m & 63) as u32;
        let ones = (1u32 << bits) - 1;
        let (lo, hi) = if m & PACK_SIGNED != 0 {
            (-(1i32 << (bits - 1)), (1i32 << (bits - 1)) - 1)
        } else {
            (0, ones as i32)
        };
        let cut = |v: i32| v.clamp(lo, hi) as u32 & ones;
        let rest = u64::from(c) << (2 * bits);
        rest as u32 | cut(a) << bits | cut(b)
    }
}

/// Any conversion, computed lane by lane.
pub(crate) struct Cvt<A, D>(std::marker::PhantomData<(A, D)>);
impl<A: Raw, D: Raw> Op for Cvt<A, D> {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        each_lane(mask, |l| {
            let v = convert(A::src(w, i.a)[l].to_u64(), i.imm);
            D::dst(w, i.d)[l] = D::from_u64(v);
        });
        Flow::Next
    }
}

/// `cvt.rn.{f16x2,bf16x2}.f32`: packs two values, the first in the high half.
pub(crate) struct Pack2;
impl Op for Pack2 {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        each_lane(mask, |l| {
            let hi = convert(u64::from(u32::src(w, i.a)[l]), i.imm) as u32;
            let lo = convert(u64::from(u32::src(w, i.b)[l]), i.imm) as u32;
            u32::dst(w, i.d)[l] = hi << 16 | lo & 0xffff;
        });
        Flow::Next
    }
}

f1! {
    U32FromU8: (a: u8) -> u32 = u32::from(a);
    S32FromS8: (a: i8) -> i32 = i32::from(a);
    U32FromU16: (a: u16) -> u32 = u32::from(a);
    S32FromS16: (a: i16) -> i32 = i32::from(a);
    U64FromU32: (a: u32) -> u64 = u64::from(a);
    S64FromS32: (a: i32) -> i64 = i64::from(a);
    U64FromU16: (a: u16) -> u64 = u64::from(a);
    U32From64: (a: u64) -> u32 = a as u32;
    F32FromS32: (a: i32) -> f32 = a as f32;
    F32FromU32: (a: u32) -> f32 = a as f32;
    F64FromS32: (a: i32) -> f64 = f64::from(a);
    F64FromU32: (a: u32) -> f64 = f64::from(a);
    F64FromF32: (a: f32) -> f64 = f64::from(a);
    F64FromS64: (a: i64) -> f64 = a as f64;
    F64FromU64: (a: u64) -> f64 = a as f64;
    F32FromF64: (a: f64) -> f32 = super::float::canon(a as f32);
    S32FromF32: (a: f32) -> i32 = a as i32;
    U32FromF32: (a: f32) -> u32 = a as u32;
    FloorF32: (a: f32) -> f32 = super::float::canon(a.floor());
    RintF32: (a: f32) -> f32 = super::float::canon(a.round_ties_even());
    TruncF32: (a: f32) -> f32 = super::float::canon(a.trunc());
    CeilF32: (a: f32) -> f32 = super::float::canon(a.ceil());
    FloorF64: (a: f64) -> f64 = quiet(a.floor());
    RintF64: (a: f64) -> f64 = quiet(a.round_ties_even());
    TruncF64: (a: f64) -> f64 = quiet(a.trunc());
    CeilF64: (a: f64) -> f64 = quiet(a.ceil());
    // Packing and unpacking of registers by `mov`.
    Lo32: (a: u64) -> u32 = a as u32;
    Hi32: (a: u64) -> u32 = (a >> 32) as u32;
    Lo16: (a: u32) -> u32 = a & 0xffff;
    Hi16: (a: u32) -> u32 = a >> 16;
}

f2! {
    Join32: (a: u32, b: u32) -> u64 = u64::from(b) << 32 | u64::from(a);
    Join16: (a: u16, b: u16) -> u32 = u32::from(b) << 16 | u32::from(a);
    Join8: (a: u8, b: u8) -> u32 = u32::from(b) << 8 | u32::from(a);
}
