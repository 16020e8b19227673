//! Instructions on 16-bit floating point (one or two values per register) and on pairs of 16-bit
//! integers; conversions to narrow formats.

use super::arith::{comparison, float_cmps};
use super::func::Func;
use super::mods::Mods;
use super::operand::Want;
use super::{R, Why};
use crate::exec::inst::{Inst, NONE, OpFn, op};
use crate::exec::ops::compare as cmp;
use crate::exec::ops::convert::RELU;
use crate::exec::ops::family::{Each1, Map1, Map2, Map3, combine};
use crate::exec::ops::float::flag::{FTZ, SAT};
use crate::exec::ops::half::{self as hf, Brain, Half, One, Small, Two, extreme};
use crate::exec::ops::narrow::{self as nr, AWAY, E4m3, E5m2, SATFINITE, Target};
use crate::exec::ops::pairs::{SetPair, SetpPair};
use crate::exec::round::Mode;
use crate::ptx::ast::{Operand, Type};

type Form = (OpFn, &'static str);

/// Lowers these instructions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let names = ["f16", "f16x2", "bf16", "bf16x2", "tf32", "u16x2", "s16x2"];
    let tiny = |t: &&str| {
        ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "ue8m0"]
            .iter()
            .any(|n| t.starts_with(n))
    };
    if m.base == "cvt" && m.left().iter().any(tiny) {
        eights(f, m, ops)?;
        return Ok(true);
    }
    if !m.left().iter().any(|t| names.contains(t)) {
        return Ok(false);
    }
    let pairs = m.left().iter().any(|t| matches!(*t, "f16x2" | "bf16x2"));
    match m.base {
        "add" | "sub" | "mul" | "fma" | "min" | "max" | "neg" | "abs" | "ex2" | "tanh" => {
            arithmetic(f, m, ops)?;
            Ok(true)
        }
        "cvt" => narrowing(f, m, ops),
        "setp" if pairs => setp(f, m, ops),
        "set" if pairs => set(f, m, ops),
        _ => Ok(false),
    }
}

/// The type of the values in a register: `f16`, `bf16`, or unsigned or signed 16-bit integers.
#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Half,
    Brain,
    Unsigned,
    Signed,
}

fn arithmetic<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let mut flags = 0;
    for (name, bit) in [
        ("ftz", FTZ),
        ("sat", SAT),
        ("relu", RELU),
        ("NaN", extreme::NAN),
        ("xorsign", extreme::XORSIGN),
    ] {
        if m.has(name) {
            flags |= bit;
        }
    }
    if flags & extreme::XORSIGN != 0 && !m.has("abs") {
        return Err(Why::invalid(".xorsign without .abs"));
    }
    m.ignore(&["rn", "approx"]);
    let types = [
        ("f16", (Kind::Half, false)),
        ("f16x2", (Kind::Half, true)),
        ("bf16", (Kind::Brain, false)),
        ("bf16x2", (Kind::Brain, true)),
        ("u16x2", (Kind::Unsigned, true)),
        ("s16x2", (Kind::Signed, true)),
    ];
    let (kind, two) = m.one(&types).ok_or_else(|| Why::invalid("no type"))?;
    let found = match kind {
        Kind::Half => float::<Half>(m.base, two, flags),
        Kind::Brain => float::<Brain>(m.base, two, flags),
        _ if flags & !RELU != 0 => None,
        _ => integer(m.base, kind == Kind::Signed),
    };
    let (run, sig) = found.ok_or_else(|| Why::unsupported("this form is not served"))?;
    f.plan(run, sig, ops, flags)
}

macro_rules! form {
    ($shape:ident, $lane:ty, $two:expr, $sig:literal) => {
        Some(if $two {
            (op::<$shape<Two<$lane>>>(), $sig)
        } else {
            (op::<$shape<One<$lane>>>(), $sig)
        })
    };
}

fn float<T: Small>(base: &str, two: bool, flags: u64) -> Option<Form> {
    let minmax = matches!(base, "min" | "max");
    if !minmax && flags & (extreme::NAN | extreme::XORSIGN) != 0 {
        return None;
    }
    if minmax {
        if flags & (SAT | RELU) != 0 {
            return None;
        }
        return match base {
            "min" => form!(Map2, hf::Extreme<T, false>, two, "i=ii"),
            _ => form!(Map2, hf::Extreme<T, true>, two, "i=ii"),
        };
    }
    match (base, flags != 0) {
        ("add", false) => form!(Map2, hf::Add<T, false>, two, "i=ii"),
        ("add", true) => form!(Map2, hf::Add<T, true>, two, "i=ii"),
        ("sub", false) => form!(Map2, hf::Sub<T, false>, two, "i=ii"),
        ("sub", true) => form!(Map2, hf::Sub<T, true>, two, "i=ii"),
        ("mul", false) => form!(Map2, hf::Mul<T, false>, two, "i=ii"),
        ("mul", true) => form!(Map2, hf::Mul<T, true>, two, "i=ii"),
        ("fma", false) => form!(Map3, hf::Fma<T, false>, two, "i=iii"),
        ("fma", true) => form!(Map3, hf::Fma<T, true>, two, "i=iii"),
        ("neg", _) => form!(Map1, hf::Neg<T>, two, "i=i"),
        ("abs", _) => form!(Map1, hf::Abs<T>, two, "i=i"),
        ("ex2", _) => form!(Each1, hf::Ex2<T, true>, two, "i=i"),
        ("tanh", _) => form!(Each1, hf::Tanh<T, true>, two, "i=i"),
        _ => None,
    }
}

fn integer(base: &str, signed: bool) -> Option<Form> {
    match (base, signed) {
        ("add", _) => form!(Map2, hf::AddInt, true, "i=ii"),
        ("min", false) => form!(Map2, hf::MinU, true, "i=ii"),
        ("max", false) => form!(Map2, hf::MaxU, true, "i=ii"),
        ("min", true) => form!(Map2, hf::MinS, true, "i=ii"),
        ("max", true) => form!(Map2, hf::MaxS, true, "i=ii"),
        _ => None,
    }
}

/// Lowers conversions that the general `cvt` does not have, and specialises frequent conversions.
fn narrowing<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    if ops.len() == 2 && (f.width(&ops[0]) == 64 || f.width(&ops[1]) == 64) {
        return Ok(false);
    }
    let plain = match m.left() {
        ["f32", "f16"] => Some((op::<Map1<nr::F32FromHalf>>(), "f=i")),
        ["f32", "bf16"] => Some((op::<Map1<nr::F32FromBrain>>(), "f=i")),
        ["rn", "f16", "f32"] => Some((op::<Map1<nr::HalfFromF32>>(), "i=f")),
        ["rn", "bf16", "f32"] => Some((op::<Map1<nr::BrainFromF32>>(), "i=f")),
        ["rn", "f16x2", "f32"] => Some((op::<Map2<nr::HalvesFromF32>>(), "i=ff")),
        ["rn", "bf16x2", "f32"] => Some((op::<Map2<nr::BrainsFromF32>>(), "i=ff")),
        _ => None,
    };
    if let Some((run, sig)) = plain {
        m.clear();
        f.plan(run, sig, ops, 0)?;
        return Ok(true);
    }
    let modified = |n: &&str| {
        let names = ["relu", "satfinite", "rna", "f16x2", "bf16x2", "tf32"];
        names.contains(n)
    };
    if !m.left().iter().any(modified) {
        return Ok(false);
    }
    let mode = m
        .one(&[("rna", AWAY)])
        .or(super::float::rounding(m).map(|r| r as u64));
    let mode = mode.ok_or_else(|| Why::invalid("a rounding mode is missing"))?;
    if ![Mode::Nearest as u64, Mode::Zero as u64, AWAY].contains(&mode) {
        return Err(Why::invalid("this rounding mode"));
    }
    let mut flags = mode;
    for (name, bit) in [("relu", RELU), ("satfinite", SATFINITE)] {
        if m.has(name) {
            flags |= bit;
        }
    }
    let targets = ["f16", "bf16", "f16x2", "bf16x2", "tf32"].map(|n| (n, n));
    let to = m.one(&targets).unwrap_or("");
    if m.ty()? != Type::F32 {
        return Err(Why::unsupported("this conversion is not served"));
    }
    let found = match to {
        "tf32" => Some((op::<Map1<nr::ToTf32>>(), "i=f")),
        _ if flags & AWAY != 0 => None,
        "f16" => Some(to16::<Half>(false)),
        "bf16" => Some(to16::<Brain>(false)),
        "f16x2" => Some(to16::<Half>(true)),
        "bf16x2" => Some(to16::<Brain>(true)),
        _ => None,
    };
    let (run, sig) = found.ok_or_else(|| Why::unsupported("this conversion is not served"))?;
    f.plan(run, sig, ops, flags)?;
    Ok(true)
}

/// Lowers conversions between pairs of 8-bit floats and singles or pairs of halves.
fn eights<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let flags = if m.has("relu") { RELU } else { 0 };
    let (run, sig) = match m.left() {
        ["rn", "satfinite", "e4m3x2", "f32"] => (op::<Map2<nr::To8x2<E4m3>>>(), "i=ff"),
        ["rn", "satfinite", "e5m2x2", "f32"] => (op::<Map2<nr::To8x2<E5m2>>>(), "i=ff"),
        ["rn", "satfinite", "e4m3x2", "f16x2"] => (op::<Map1<nr::HalvesTo8x2<E4m3>>>(), "i=i"),
        ["rn", "satfinite", "e5m2x2", "f16x2"] => (op::<Map1<nr::HalvesTo8x2<E5m2>>>(), "i=i"),
        ["rn", "f16x2", "e4m3x2"] => (op::<Map1<nr::HalvesFrom8x2<E4m3>>>(), "i=i"),
        ["rn", "f16x2", "e5m2x2"] => (op::<Map1<nr::HalvesFrom8x2<E5m2>>>(), "i=i"),
        _ => return Err(Why::unsupported("this conversion is not served")),
    };
    m.clear();
    f.plan(run, sig, ops, flags)
}

fn to16<T: Target>(two: bool) -> Form {
    if two {
        (op::<Map2<nr::To16x2<T>>>(), "i=ff")
    } else {
        (op::<Map1<nr::To16<T>>>(), "i=f")
    }
}

fn setp_form(c: &str, brain: bool, ftz: bool) -> Option<OpFn> {
    match (brain, ftz) {
        (true, _) => float_cmps!(SetpPair, cmp::bf16s, c),
        (false, true) => float_cmps!(SetpPair, cmp::f16zs, c),
        (false, false) => float_cmps!(SetpPair, cmp::f16s, c),
    }
}

fn set_form(c: &str, brain: bool, ftz: bool) -> Option<OpFn> {
    match (brain, ftz) {
        (true, _) => float_cmps!(SetPair, cmp::bf16s, c),
        (false, true) => float_cmps!(SetPair, cmp::f16zs, c),
        (false, false) => float_cmps!(SetPair, cmp::f16s, c),
    }
}

/// `setp.CmpOp{.BoolOp}.f16x2 p|q, a, b{, c}`. `p` is the result for the low halves, `q` for the
/// high halves.
fn setp<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (c, how, ftz) = comparison(m)?;
    let brain = m.ty()? == Type::BF16x2;
    let run = setp_form(c, brain, ftz).ok_or_else(|| Why::unsupported("this comparison"))?;
    Func::count(ops, if how == combine::NONE { 3 } else { 4 })?;
    let mut inst = Inst {
        run,
        imm: how,
        ..f.blank()
    };
    let Operand::Pair(p, q) = &ops[0] else {
        return Err(Why::invalid("a pair of predicates is missing: p|q"));
    };
    (inst.d, inst.e) = (f.dst_pred(p)?, f.dst_pred(q)?);
    emit_comparison(f, inst, ops)
}

/// `set.CmpOp{.BoolOp}.{f16x2,bf16x2,u32,s32}.f16x2`. Each half of the result is 1.0, or all ones,
/// if the comparison holds.
fn set<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (c, how, ftz) = comparison(m)?;
    let (d, t) = (m.ty()?, m.ty()?);
    let yes: u64 = match d {
        Type::F16x2 => 0x3c00,
        Type::BF16x2 => 0x3f80,
        Type::U32 | Type::S32 => 0xffff,
        _ => return Err(Why::unsupported("set of this type")),
    };
    let brain = match t {
        Type::F16x2 => false,
        Type::BF16x2 => true,
        _ => return Err(Why::invalid("set of these types")),
    };
    let run = set_form(c, brain, ftz).ok_or_else(|| Why::unsupported("this comparison"))?;
    Func::count(ops, if how == combine::NONE { 3 } else { 4 })?;
    let mut inst = Inst {
        run,
        imm: how | yes << 32,
        e: NONE,
        ..f.blank()
    };
    inst.d = f.dst(&ops[0], false)?;
    emit_comparison(f, inst, ops)
}

fn emit_comparison(f: &mut Func<'_, '_>, mut inst: Inst, ops: &[Operand]) -> R<bool> {
    inst.a = f.src(&ops[1], Want::I32)?;
    inst.b = f.src(&ops[2], Want::I32)?;
    if inst.imm & 3 != combine::NONE {
        inst.c = f.pred(&ops[3])?;
    }
    f.emit(inst);
    Ok(true)
}
