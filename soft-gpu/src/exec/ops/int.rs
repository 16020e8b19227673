//! Integer arithmetic, logic, shifts and bit fields.

use super::family::{f1, f2, f3};
use crate::exec::ops::family::F3;

/// Applies the truth table of `lop3`, which has three inputs.
#[inline(always)]
pub(crate) fn lut3(a: u32, b: u32, c: u32, table: u64) -> u32 {
    let mut r = 0;
    let pick = |bit: u32, yes: u32| if table >> bit & 1 != 0 { yes } else { 0 };
    r |= pick(0, !a & !b & !c);
    r |= pick(1, !a & !b & c);
    r |= pick(2, !a & b & !c);
    r |= pick(3, !a & b & c);
    r |= pick(4, a & !b & !c);
    r |= pick(5, a & !b & c);
    r |= pick(6, a & b & !c);
    r |= pick(7, a & b & c);
    r
}

f2! {
    Add16: (a: u16, b: u16) -> u16 = a.wrapping_add(b);
    Add32: (a: u32, b: u32) -> u32 = a.wrapping_add(b);
    Add64: (a: u64, b: u64) -> u64 = a.wrapping_add(b);
    AddSatS32: (a: i32, b: i32) -> i32 = a.saturating_add(b);
    Sub16: (a: u16, b: u16) -> u16 = a.wrapping_sub(b);
    Sub32: (a: u32, b: u32) -> u32 = a.wrapping_sub(b);
    Sub64: (a: u64, b: u64) -> u64 = a.wrapping_sub(b);
    SubSatS32: (a: i32, b: i32) -> i32 = a.saturating_sub(b);
    Mul16: (a: u16, b: u16) -> u16 = a.wrapping_mul(b);
    Mul32: (a: u32, b: u32) -> u32 = a.wrapping_mul(b);
    Mul64: (a: u64, b: u64) -> u64 = a.wrapping_mul(b);
    MulHiU16: (a: u16, b: u16) -> u16 = ((u32::from(a) * u32::from(b)) >> 16) as u16;
    MulHiS16: (a: i16, b: i16) -> i16 = ((i32::from(a) * i32::from(b)) >> 16) as i16;
    MulHiU32: (a: u32, b: u32) -> u32 = ((u64::from(a) * u64::from(b)) >> 32) as u32;
    MulHiS32: (a: i32, b: i32) -> i32 = ((i64::from(a) * i64::from(b)) >> 32) as i32;
    MulHiU64: (a: u64, b: u64) -> u64 = ((u128::from(a) * u128::from(b)) >> 64) as u64;
    MulHiS64: (a: i64, b: i64) -> i64 = ((i128::from(a) * i128::from(b)) >> 64) as i64;
    MulWideU16: (a: u16, b: u16) -> u32 = u32::from(a) * u32::from(b);
    MulWideS16: (a: i16, b: i16) -> i32 = i32::from(a) * i32::from(b);
    MulWideU32: (a: u32, b: u32) -> u64 = u64::from(a) * u64::from(b);
    MulWideS32: (a: i32, b: i32) -> i64 = i64::from(a) * i64::from(b);
    Mul24LoU: (a: u32, b: u32) -> u32 = ((u64::from(a & 0xff_ffff)) * u64::from(b & 0xff_ffff)) as u32;
    Mul24LoS: (a: u32, b: u32) -> u32 = mul24s(a, b) as u32;
    Mul24HiU: (a: u32, b: u32) -> u32 = (((u64::from(a & 0xff_ffff)) * u64::from(b & 0xff_ffff)) >> 16) as u32;
    Mul24HiS: (a: u32, b: u32) -> u32 = (mul24s(a, b) >> 16) as u32;
    // As on hardware, a division by zero gives all ones, and the remainder is the dividend.
    DivU16: (a: u16, b: u16) -> u16 = a.checked_div(b).unwrap_or(u16::MAX);
    DivS16: (a: i16, b: i16) -> i16 = if b == 0 { -1 } else { a.wrapping_div(b) };
    DivU32: (a: u32, b: u32) -> u32 = a.checked_div(b).unwrap_or(u32::MAX);
    DivS32: (a: i32, b: i32) -> i32 = if b == 0 { -1 } else { a.wrapping_div(b) };
    DivU64: (a: u64, b: u64) -> u64 = a.checked_div(b).unwrap_or(u64::MAX);
    DivS64: (a: i64, b: i64) -> i64 = if b == 0 { -1 } else { a.wrapping_div(b) };
    RemU16: (a: u16, b: u16) -> u16 = if b == 0 { a } else { a % b };
    RemS16: (a: i16, b: i16) -> i16 = if b == 0 { a } else { a.wrapping_rem(b) };
    RemU32: (a: u32, b: u32) -> u32 = if b == 0 { a } else { a % b };
    RemS32: (a: i32, b: i32) -> i32 = if b == 0 { a } else { a.wrapping_rem(b) };
    RemU64: (a: u64, b: u64) -> u64 = if b == 0 { a } else { a % b };
    RemS64: (a: i64, b: i64) -> i64 = if b == 0 { a } else { a.wrapping_rem(b) };
    MinU16: (a: u16, b: u16) -> u16 = a.min(b);
    MinS16: (a: i16, b: i16) -> i16 = a.min(b);
    MinU32: (a: u32, b: u32) -> u32 = a.min(b);
    MinS32: (a: i32, b: i32) -> i32 = a.min(b);
    MinU64: (a: u64, b: u64) -> u64 = a.min(b);
    MinS64: (a: i64, b: i64) -> i64 = a.min(b);
    MaxU16: (a: u16, b: u16) -> u16 = a.max(b);
    MaxS16: (a: i16, b: i16) -> i16 = a.max(b);
    MaxU32: (a: u32, b: u32) -> u32 = a.max(b);
    MaxS32: (a: i32, b: i32) -> i32 = a.max(b);
    MaxU64: (a: u64, b: u64) -> u64 = a.max(b);
    MaxS64: (a: i64, b: i64) -> i64 = a.max(b);
    And32: (a: u32, b: u32) -> u32 = a & b;
    And64: (a: u64, b: u64) -> u64 = a & b;
    Or32: (a: u32, b: u32) -> u32 = a | b;
    Or64: (a: u64, b: u64) -> u64 = a | b;
    Xor32: (a: u32, b: u32) -> u32 = a ^ b;
    Xor64: (a: u64, b: u64) -> u64 = a ^ b;
    // Shift amounts beyond the width count as the width.
    Shl16: (a: u16, b: u32) -> u16 = if b > 15 { 0 } else { a << b };
    Shl32: (a: u32, b: u32) -> u32 = if b > 31 { 0 } else { a << (b & 31) };
    Shl64: (a: u64, b: u32) -> u64 = if b > 63 { 0 } else { a << (b & 63) };
    ShrU16: (a: u16, b: u32) -> u16 = if b > 15 { 0 } else { a >> b };
    ShrU32: (a: u32, b: u32) -> u32 = if b > 31 { 0 } else { a >> (b & 31) };
    ShrU64: (a: u64, b: u32) -> u64 = if b > 63 { 0 } else { a >> (b & 63) };
    ShrS16: (a: i16, b: u32) -> i16 = a >> b.min(15);
    ShrS32: (a: i32, b: u32) -> i32 = a >> b.min(31);
    ShrS64: (a: i64, b: u32) -> i64 = a >> b.min(63);
    BmskClamp: (a: u32, b: u32) -> u32 = bmsk(a, b, true);
    BmskWrap: (a: u32, b: u32) -> u32 = bmsk(a, b, false);
    SzextClampU: (a: u32, b: u32) -> u32 = szext(a, b, true, false);
    SzextClampS: (a: u32, b: u32) -> u32 = szext(a, b, true, true);
    SzextWrapU: (a: u32, b: u32) -> u32 = szext(a, b, false, false);
    SzextWrapS: (a: u32, b: u32) -> u32 = szext(a, b, false, true);
}

f1! {
    AbsS16: (a: i16) -> i16 = a.wrapping_abs();
    AbsS32: (a: i32) -> i32 = a.wrapping_abs();
    AbsS64: (a: i64) -> i64 = a.wrapping_abs();
    NegS16: (a: i16) -> i16 = a.wrapping_neg();
    NegS32: (a: i32) -> i32 = a.wrapping_neg();
    NegS64: (a: i64) -> i64 = a.wrapping_neg();
    Not32: (a: u32) -> u32 = !a;
    Not64: (a: u64) -> u64 = !a;
    Cnot16: (a: u16) -> u16 = u16::from(a == 0);
    Cnot32: (a: u32) -> u32 = u32::from(a == 0);
    Cnot64: (a: u64) -> u64 = u64::from(a == 0);
    Popc32: (a: u32) -> u32 = a.count_ones();
    Popc64: (a: u64) -> u32 = a.count_ones();
    Clz32: (a: u32) -> u32 = a.leading_zeros();
    Clz64: (a: u64) -> u32 = a.leading_zeros();
    Brev32: (a: u32) -> u32 = a.reverse_bits();
    Brev64: (a: u64) -> u64 = a.reverse_bits();
    BfindU32: (a: u32) -> u32 = 31u32.wrapping_sub(a.leading_zeros());
    BfindS32: (a: i32) -> u32 = 31u32.wrapping_sub((a ^ (a >> 31)).leading_zeros());
    BfindU64: (a: u64) -> u32 = 63u32.wrapping_sub(a.leading_zeros());
    BfindS64: (a: i64) -> u32 = 63u32.wrapping_sub((a ^ (a >> 63)).leading_zeros());
    // `.shiftamt`: the left shift that moves the found bit to the top bit.
    BfindShiftU32: (a: u32) -> u32 = if a == 0 { u32::MAX } else { a.leading_zeros() };
    BfindShiftS32: (a: i32) -> u32 = if a ^ (a >> 31) == 0 { u32::MAX } else { (a ^ (a >> 31)).leading_zeros() };
    BfindShiftU64: (a: u64) -> u32 = if a == 0 { u32::MAX } else { a.leading_zeros() };
    BfindShiftS64: (a: i64) -> u32 = if a ^ (a >> 63) == 0 { u32::MAX } else { (a ^ (a >> 63)).leading_zeros() };
}

f3! {
    Mad16: (a: u16, b: u16, c: u16) -> u16 = a.wrapping_mul(b).wrapping_add(c);
    Mad32: (a: u32, b: u32, c: u32) -> u32 = a.wrapping_mul(b).wrapping_add(c);
    Mad64: (a: u64, b: u64, c: u64) -> u64 = a.wrapping_mul(b).wrapping_add(c);
    MadHiU16: (a: u16, b: u16, c: u16) -> u16 = (((u32::from(a) * u32::from(b)) >> 16) as u16).wrapping_add(c);
    MadHiS16: (a: i16, b: i16, c: i16) -> i16 = (((i32::from(a) * i32::from(b)) >> 16) as i16).wrapping_add(c);
    MadHiU32: (a: u32, b: u32, c: u32) -> u32 = (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c);
    MadHiS32: (a: i32, b: i32, c: i32) -> i32 = (((i64::from(a) * i64::from(b)) >> 32) as i32).wrapping_add(c);
    MadHiSatS32: (a: i32, b: i32, c: i32) -> i32 = (((i64::from(a) * i64::from(b)) >> 32) as i32).saturating_add(c);
    MadHiU64: (a: u64, b: u64, c: u64) -> u64 = (((u128::from(a) * u128::from(b)) >> 64) as u64).wrapping_add(c);
    MadHiS64: (a: i64, b: i64, c: i64) -> i64 = (((i128::from(a) * i128::from(b)) >> 64) as i64).wrapping_add(c);
    MadWideU16: (a: u16, b: u16, c: u32) -> u32 = (u32::from(a) * u32::from(b)).wrapping_add(c);
    MadWideS16: (a: i16, b: i16, c: i32) -> i32 = (i32::from(a) * i32::from(b)).wrapping_add(c);
    MadWideU32: (a: u32, b: u32, c: u64) -> u64 = (u64::from(a) * u64::from(b)).wrapping_add(c);
    MadWideS32: (a: i32, b: i32, c: i64) -> i64 = (i64::from(a) * i64::from(b)).wrapping_add(c);
    Mad24LoU: (a: u32, b: u32, c: u32) -> u32 = (((u64::from(a & 0xff_ffff)) * u64::from(b & 0xff_ffff)) as u32).wrapping_add(c);
    Mad24LoS: (a: u32, b: u32, c: u32) -> u32 = (mul24s(a, b) as u32).wrapping_add(c);
    Mad24HiU: (a: u32, b: u32, c: u32) -> u32 = ((((u64::from(a & 0xff_ffff)) * u64::from(b & 0xff_ffff)) >> 16) as u32).wrapping_add(c);
    Mad24HiS: (a: u32, b: u32, c: u32) -> u32 = ((mul24s(a, b) >> 16) as u32).wrapping_add(c);
    Mad24HiSatS: (a: u32, b: u32, c: i32) -> i32 = ((mul24s(a, b) >> 16) as i32).saturating_add(c);
    SadU16: (a: u16, b: u16, c: u16) -> u16 = c.wrapping_add(a.abs_diff(b));
    SadS16: (a: i16, b: i16, c: u16) -> u16 = c.wrapping_add(a.abs_diff(b));
    SadU32: (a: u32, b: u32, c: u32) -> u32 = c.wrapping_add(a.abs_diff(b));
    SadS32: (a: i32, b: i32, c: u32) -> u32 = c.wrapping_add(a.abs_diff(b));
    SadU64: (a: u64, b: u64, c: u64) -> u64 = c.wrapping_add(a.abs_diff(b));
    SadS64: (a: i64, b: i64, c: u64) -> u64 = c.wrapping_add(a.abs_diff(b));
    ShfLClamp: (a: u32, b: u32, c: u32) -> u32 = ((pair(a, b) << c.min(32)) >> 32) as u32;
    ShfLWrap: (a: u32, b: u32, c: u32) -> u32 = ((pair(a, b) << (c & 31)) >> 32) as u32;
    ShfRClamp: (a: u32, b: u32, c: u32) -> u32 = (pair(a, b) >> c.min(32)) as u32;
    ShfRWrap: (a: u32, b: u32, c: u32) -> u32 = (pair(a, b) >> (c & 31)) as u32;
    BfeU32: (a: u32, b: u32, c: u32) -> u32 = bfe_u(u64::from(a), b, c, 32) as u32;
    BfeU64: (a: u64, b: u32, c: u32) -> u64 = bfe_u(a, b, c, 64);
    BfeS32: (a: i32, b: u32, c: u32) -> u32 = bfe_s(i64::from(a), b, c, 32) as u32;
    BfeS64: (a: i64, b: u32, c: u32) -> u64 = bfe_s(a, b, c, 64) as u64;
    Dp4aUU: (a: u32, b: u32, c: u32) -> u32 = dp4a(a, b, c, false, false);
    Dp4aUS: (a: u32, b: u32, c: u32) -> u32 = dp4a(a, b, c, false, true);
    Dp4aSU: (a: u32, b: u32, c: u32) -> u32 = dp4a(a, b, c, true, false);
    Dp4aSS: (a: u32, b: u32, c: u32) -> u32 = dp4a(a, b, c, true, true);
    Slct32: (a: u32, b: u32, c: i32) -> u32 = if c >= 0 { a } else { b };
    Slct64: (a: u64, b: u64, c: i32) -> u64 = if c >= 0 { a } else { b };
    // -0 counts as positive, and NaN as negative.
    SlctF32: (a: u32, b: u32, c: f32) -> u32 = if c >= 0.0 { a } else { b };
    SlctF64: (a: u64, b: u64, c: f32) -> u64 = if c >= 0.0 { a } else { b };
    SlctFtzF32: (a: u32, b: u32, c: f32) -> u32 = if super::float::ftz(c) >= 0.0 { a } else { b };
    SlctFtzF64: (a: u64, b: u64, c: f32) -> u64 = if super::float::ftz(c) >= 0.0 { a } else { b };
    Fns: (a: u32, b: u32, c: i32) -> u32 = fns(a, b, c);
}

/// `lop3.b32`. The immediate is the table.
pub(crate) struct Lop3;
impl F3 for Lop3 {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, c: u32, m: u64) -> u32 {
        lut3(a, b, c, m)
    }
}

/// `prmt.b32`. The immediate is a constant of [`prmt_mode`].
pub(crate) struct Prmt;
impl F3 for Prmt {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, c: u32, m: u64) -> u32 {
        prmt(a, b, c, m)
    }
}

/// Flags of [`Vshr`] in the immediate.
pub(crate) mod vshr {
    /// The type of the result is signed.
    pub(crate) const TO_SIGNED: u64 = 1;
    /// The shifted value is signed.
    pub(crate) const FROM_SIGNED: u64 = 2;
    /// `.sat`.
    pub(crate) const SAT: u64 = 4;
    /// `.wrap` instead of `.clamp`.
    pub(crate) const WRAP: u64 = 8;
    /// Adds the third operand.
    pub(crate) const ADD: u64 = 16;
    /// Takes the minimum with the third operand.
    pub(crate) const MIN: u64 = 32;
    /// Takes the maximum with the third operand.
    pub(crate) const MAX: u64 = 64;
}

/// `vshr` of whole words: shifts a number of 33 bits, converts the result to its type, then
/// combines it with `c`.
pub(crate) struct Vshr;
impl F3 for Vshr {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, c: u32, m: u64) -> u32 {
        let has = |flag: u64| m & flag != 0;
        let of = |v: u32, signed: bool| {
            if signed {
                i64::from(v as i32)
            } else {
                i64::from(v)
            }
        };
        let amount = if has(vshr::WRAP) { b & 31 } else { b.min(32) };
        let signed = has(vshr::TO_SIGNED);
        let mut r = of(a, has(vshr::FROM_SIGNED)) >> amount;
        if has(vshr::SAT) {
            r = match signed {
                true => r.clamp(i32::MIN.into(), i32::MAX.into()),
                false => r.clamp(0, u32::MAX.into()),
            };
        }
        let r = r as u32;
        let first = of(r, signed) < of(c, signed);
        match () {
            () if has(vshr::ADD) => r.wrapping_add(c),
            () if has(vshr::MIN) => {
                if first {
                    r
                } else {
                    c
                }
            }
            () if has(vshr::MAX) => {
                if first {
                    c
                } else {
                    r
                }
            }
            () => r,
        }
    }
}

/// `dp2a`. Bit 0: `.hi`; bit 1: `a` is signed; bit 2: `b` is signed.
pub(crate) struct Dp2a;
impl F3 for Dp2a {
    type A = u32;
    type B = u32;
    type C = u32;
    type D = u32;
    #[inline(always)]
    fn f(a: u32, b: u32, c: u32, m: u64) -> u32 {
        let base = if m & 1 != 0 { 2 } else { 0 };
        let mut sum = c;
        for k in 0..2 {
            let x = (a >> (16 * k)) as u16;
            let y = (b >> (8 * (base + k))) as u8;
            let x = if m & 2 != 0 {
                i32::from(x as i16)
            } else {
                i32::from(x)
            };
            let y = if m & 4 != 0 {
                i32::from(y as i8)
            } else {
                i32::from(y)
            };
            sum = sum.wrapping_add(x.wrapping_mul(y) as u32);
        }
        sum
    }
}

/// Modes of `prmt`.
pub(crate) mod prmt_mode {
    pub(crate) const INDEX: u64 = 0;
    pub(crate) const F4E: u64 = 1;
    pub(crate) const B4E: u64 = 2;
    pub(crate) const RC8: u64 = 3;
    pub(crate) const ECL: u64 = 4;
    pub(crate) const ECR: u64 = 5;
    pub(crate) const RC16: u64 = 6;
}

#[inline(always)]
fn prmt(a: u32, b: u32, c: u32, mode: u64) -> u32 {
    let src = pair(a, b);
    let byte = |n: u32| ((src >> (8 * (n & 7))) & 0xff) as u32;
    let n = c & 3;
    let mut out = 0;
    for k in 0..4u32 {
        let v = match mode {
            prmt_mode::INDEX => {
                let sel = c >> (4 * k);
                let v = byte(sel & 7);
                if sel & 8 != 0 {
                    if v & 0x80 != 0 { 0xff } else { 0 }
                } else {
                    v
                }
            }
            prmt_mode::F4E => byte(n + k),
            prmt_mode::B4E => byte(n.wrapping_sub(k)),
            prmt_mode::RC8 => byte(n),
            prmt_mode::ECL => byte(k.max(n)),
            prmt_mode::ECR => byte(k.min(n)),
            _ => byte((n & 1) * 2 + (k & 1)),
        };
        out |= v << (8 * k);
    }
    out
}

#[inline(always)]
fn pair(lo: u32, hi: u32) -> u64 {
    u64::from(hi) << 32 | u64::from(lo)
}

#[inline(always)]
fn mul24s(a: u32, b: u32) -> i64 {
    let x = i64::from((a as i32) << 8 >> 8);
    let y = i64::from((b as i32) << 8 >> 8);
    x * y
}

#[inline(always)]
fn bfe_u(a: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if pos >= width || len == 0 {
        return 0;
    }
    let v = a >> pos;
    if len >= 64 {
        v
    } else {
        v & ((1u64 << len) - 1)
    }
}

/// `bfe` of signed fields. Result bits above the field are copies of the sign: the highest bit of
/// the field, or the highest bit of the word if the field ends beyond the word.
#[inline(always)]
fn bfe_s(a: i64, pos: u32, len: u32, width: u32) -> i64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    if len == 0 {
        return 0;
    }
    let top = (pos + len - 1).min(width - 1);
    let sign = if a >> top & 1 != 0 { -1i64 } else { 0 };
    if pos >= width {
        return sign;
    }
    let field = top - pos + 1;
    let v = a >> pos;
    if field >= 64 {
        return v;
    }
    let low = ((1u64 << field) - 1) as i64;
    (v & low) | (sign & !low)
}

/// `bfi` for both widths: inserts `len` bits of `a` into `b` at `pos`.
#[inline(always)]
pub(crate) fn bfi(a: u64, b: u64, pos: u32, len: u32, width: u32) -> u64 {
    let (pos, len) = (pos & 0xff, len & 0xff);
    // Without branches, so that the loop over the lanes vectorises: every shift is by less than the
    // width, and a position beyond the width inserts nothing.
    let ones = if len >= 64 {
        u64::MAX
    } else {
        (1u64 << (len & 63)) - 1
    };
    let mask = if pos >= width { 0 } else { ones << (pos & 63) };
    (b & !mask) | ((a << (pos & 63)) & mask)
}

#[inline(always)]
fn dp4a(a: u32, b: u32, c: u32, sa: bool, sb: bool) -> u32 {
    let mut sum = c;
    for k in 0..4 {
        let x = (a >> (8 * k)) as u8;
        let y = (b >> (8 * k)) as u8;
        let x = if sa { i32::from(x as i8) } else { i32::from(x) };
        let y = if sb { i32::from(y as i8) } else { i32::from(y) };
        sum = sum.wrapping_add((x * y) as u32);
    }
    sum
}

#[inline(always)]
fn bmsk(pos: u32, len: u32, clamp: bool) -> u32 {
    let (pos, len) = if clamp {
        (pos.min(32), len.min(32))
    } else {
        (pos & 31, len & 31)
    };
    let ones = (1u64 << len) - 1;
    (ones << pos) as u32
}

#[inline(always)]
fn szext(a: u32, bits: u32, clamp: bool, signed: bool) -> u32 {
    let n = if clamp { bits.min(32) } else { bits & 31 };
    match n {
        0 => 0,
        32 => a,
        n if signed => ((a << (32 - n)) as i32 >> (32 - n)) as u32,
        n => a & ((1 << n) - 1),
    }
}

/// `fns`: position of the n-th set bit, counted from `base` upwards for n > 0 and downwards for n <
/// 0. For n = 0, `base` itself if its bit is set. All ones if there is no such bit.
fn fns(mask: u32, base: u32, n: i32) -> u32 {
    if base > 31 {
        return u32::MAX;
    }
    if n == 0 {
        return if mask >> base & 1 != 0 {
            base
        } else {
            u32::MAX
        };
    }
    let mut left = n.unsigned_abs();
    let mut at = base as i32;
    while (0..32).contains(&at) {
        if mask >> at & 1 != 0 {
            left -= 1;
            if left == 0 {
                return at as u32;
            }
        }
        at += n.signum();
    }
    u32::MAX
}
