//! Integer instructions, one line of a table per form.

use super::func::Func;
use super::mods::Mods;
use super::operand::Want;
use super::{R, Why};
use crate::exec::inst::{Inst, NONE, OpFn, op, op_plain};
use crate::exec::ops::family::{Each2, Map1, Map2, Map3, Mov, PredLogic, Selp, Set, Setp, combine};
use crate::exec::ops::int::{self, prmt_mode};
use crate::exec::ops::{carry, compare as cmp, misc};
use crate::ptx::ast::{Operand, Type};

type Form = (OpFn, &'static str);

macro_rules! form {
    ($family:ident, $f:ty, $sig:literal) => {
        Some((op::<$family<$f>>(), $sig))
    };
}

/// Lowers integer, logic, comparison and carry instructions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let base = m.base;
    match base {
        "add" | "sub" | "mad" if m.has("cc") => carry_op(f, m, ops, carry::flag::SET),
        "addc" | "subc" | "madc" => {
            let set = if m.has("cc") { carry::flag::SET } else { 0 };
            carry_op(f, m, ops, carry::flag::USE | set)
        }
        "add" | "sub" | "mul" | "mad" | "div" | "rem" | "min" | "max" | "abs" | "neg" | "sad"
        | "mul24" | "mad24" | "slct" => integer(f, m, ops),
        "and" | "or" | "xor" | "not" | "cnot" | "shl" | "shr" | "popc" | "clz" | "brev"
        | "bfind" | "bfe" | "bmsk" | "szext" | "fns" | "dp4a" | "dp2a" => bits(f, m, ops),
        "lop3" => lop3(f, m, ops),
        "shf" => shf(f, m, ops),
        "prmt" => prmt(f, m, ops),
        "vshr" => vshr(f, m, ops),
        "bfi" => bfi(f, m, ops),
        "setp" => setp(f, m, ops),
        "set" => set(f, m, ops),
        "selp" => selp(f, m, ops),
        _ => Ok(false),
    }
}

fn is_int(t: Type) -> bool {
    use Type::*;
    matches!(t, B16 | B32 | B64 | U16 | U32 | U64 | S16 | S32 | S64)
}

fn integer<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    if m.base == "slct" {
        return slct(f, m, ops);
    }
    if !m.peek_type().is_some_and(is_int) {
        return Ok(false);
    }
    let t = m.ty()?;
    let sat = m.has("sat");
    let half = m
        .one(&[("lo", "lo"), ("hi", "hi"), ("wide", "wide")])
        .unwrap_or("");
    let found = match (sat, half) {
        (true, "") => saturating(m.base, t),
        (true, "hi") => saturating_hi(m.base, t),
        (false, "") => plain(m.base, t),
        (false, _) => product(m.base, half, t),
        _ => None,
    };
    let (run, sig) = found.ok_or_else(|| Why::unsupported("this form is not served"))?;
    f.plan(run, sig, ops, 0)?;
    Ok(true)
}

fn slct<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (t, c) = (m.ty()?, m.ty()?);
    let ftz = c == Type::F32 && m.has("ftz");
    let wide = t.size() == 8;
    if !matches!(t.size(), 2 | 4 | 8) {
        return Err(Why::invalid("slct of this type"));
    }
    let (run, sig) = match (wide, c) {
        (false, Type::F32) if ftz => (op::<Map3<int::SlctFtzF32>>(), "i=iif"),
        (true, Type::F32) if ftz => (op::<Map3<int::SlctFtzF64>>(), "l=llf"),
        (false, Type::S32) => (op::<Map3<int::Slct32>>(), "i=iii"),
        (true, Type::S32) => (op::<Map3<int::Slct64>>(), "l=lli"),
        (false, Type::F32) => (op::<Map3<int::SlctF32>>(), "i=iif"),
        (true, Type::F32) => (op::<Map3<int::SlctF64>>(), "l=llf"),
        _ => return Err(Why::invalid("slct of this type")),
    };
    f.plan(run, sig, ops, 0)?;
    Ok(true)
}

fn saturating(base: &str, t: Type) -> Option<Form> {
    match (base, t) {
        ("add", Type::S32) => form!(Map2, int::AddSatS32, "i=ii"),
        ("sub", Type::S32) => form!(Map2, int::SubSatS32, "i=ii"),
        _ => None,
    }
}

fn saturating_hi(base: &str, t: Type) -> Option<Form> {
    match (base, t) {
        ("mad", Type::S32) => form!(Map3, int::MadHiSatS32, "i=iii"),
        ("mad24", Type::S32) => form!(Map3, int::Mad24HiSatS, "i=iii"),
        _ => None,
    }
}

fn plain(base: &str, t: Type) -> Option<Form> {
    use Type::*;
    match (base, t) {
        ("add", U16 | S16) => form!(Map2, int::Add16, "i=ii"),
        ("add", U32 | S32) => form!(Map2, int::Add32, "i=ii"),
        ("add", U64 | S64) => form!(Map2, int::Add64, "l=ll"),
        ("sub", U16 | S16) => form!(Map2, int::Sub16, "i=ii"),
        ("sub", U32 | S32) => form!(Map2, int::Sub32, "i=ii"),
        ("sub", U64 | S64) => form!(Map2, int::Sub64, "l=ll"),
        ("div", U16) => form!(Each2, int::DivU16, "i=ii"),
        ("div", S16) => form!(Each2, int::DivS16, "i=ii"),
        ("div", U32) => form!(Each2, int::DivU32, "i=ii"),
        ("div", S32) => form!(Each2, int::DivS32, "i=ii"),
        ("div", U64) => form!(Each2, int::DivU64, "l=ll"),
        ("div", S64) => form!(Each2, int::DivS64, "l=ll"),
        ("rem", U16) => form!(Each2, int::RemU16, "i=ii"),
        ("rem", S16) => form!(Each2, int::RemS16, "i=ii"),
        ("rem", U32) => form!(Each2, int::RemU32, "i=ii"),
        ("rem", S32) => form!(Each2, int::RemS32, "i=ii"),
        ("rem", U64) => form!(Each2, int::RemU64, "l=ll"),
        ("rem", S64) => form!(Each2, int::RemS64, "l=ll"),
        ("min", U16) => form!(Map2, int::MinU16, "i=ii"),
        ("min", S16) => form!(Map2, int::MinS16, "i=ii"),
        ("min", U32) => form!(Map2, int::MinU32, "i=ii"),
        ("min", S32) => form!(Map2, int::MinS32, "i=ii"),
        ("min", U64) => form!(Map2, int::MinU64, "l=ll"),
        ("min", S64) => form!(Map2, int::MinS64, "l=ll"),
        ("max", U16) => form!(Map2, int::MaxU16, "i=ii"),
        ("max", S16) => form!(Map2, int::MaxS16, "i=ii"),
        ("max", U32) => form!(Map2, int::MaxU32, "i=ii"),
        ("max", S32) => form!(Map2, int::MaxS32, "i=ii"),
        ("max", U64) => form!(Map2, int::MaxU64, "l=ll"),
        ("max", S64) => form!(Map2, int::MaxS64, "l=ll"),
        ("abs", S16) => form!(Map1, int::AbsS16, "i=i"),
        ("abs", S32) => form!(Map1, int::AbsS32, "i=i"),
        ("abs", S64) => form!(Map1, int::AbsS64, "l=l"),
        ("neg", S16) => form!(Map1, int::NegS16, "i=i"),
        ("neg", S32) => form!(Map1, int::NegS32, "i=i"),
        ("neg", S64) => form!(Map1, int::NegS64, "l=l"),
        ("sad", U16) => form!(Map3, int::SadU16, "i=iii"),
        ("sad", S16) => form!(Map3, int::SadS16, "i=iii"),
        ("sad", U32) => form!(Map3, int::SadU32, "i=iii"),
        ("sad", S32) => form!(Map3, int::SadS32, "i=iii"),
        ("sad", U64) => form!(Map3, int::SadU64, "l=lll"),
        ("sad", S64) => form!(Map3, int::SadS64, "l=lll"),
        _ => None,
    }
}

fn product(base: &str, half: &str, t: Type) -> Option<Form> {
    use Type::*;
    match (base, half, t) {
        ("mul", "lo", U16 | S16) => form!(Map2, int::Mul16, "i=ii"),
        ("mul", "lo", U32 | S32) => form!(Map2, int::Mul32, "i=ii"),
        ("mul", "lo", U64 | S64) => form!(Map2, int::Mul64, "l=ll"),
        ("mul", "hi", U16) => form!(Map2, int::MulHiU16, "i=ii"),
        ("mul", "hi", S16) => form!(Map2, int::MulHiS16, "i=ii"),
        ("mul", "hi", U32) => form!(Map2, int::MulHiU32, "i=ii"),
        ("mul", "hi", S32) => form!(Map2, int::MulHiS32, "i=ii"),
        ("mul", "hi", U64) => form!(Map2, int::MulHiU64, "l=ll"),
        ("mul", "hi", S64) => form!(Map2, int::MulHiS64, "l=ll"),
        ("mul", "wide", U16) => form!(Map2, int::MulWideU16, "i=ii"),
        ("mul", "wide", S16) => form!(Map2, int::MulWideS16, "i=ii"),
        ("mul", "wide", U32) => form!(Map2, int::MulWideU32, "l=ii"),
        ("mul", "wide", S32) => form!(Map2, int::MulWideS32, "l=ii"),
        ("mad", "lo", U16 | S16) => form!(Map3, int::Mad16, "i=iii"),
        ("mad", "lo", U32 | S32) => form!(Map3, int::Mad32, "i=iii"),
        ("mad", "lo", U64 | S64) => form!(Map3, int::Mad64, "l=lll"),
        ("mad", "hi", U16) => form!(Map3, int::MadHiU16, "i=iii"),
        ("mad", "hi", S16) => form!(Map3, int::MadHiS16, "i=iii"),
        ("mad", "hi", U32) => form!(Map3, int::MadHiU32, "i=iii"),
        ("mad", "hi", S32) => form!(Map3, int::MadHiS32, "i=iii"),
        ("mad", "hi", U64) => form!(Map3, int::MadHiU64, "l=lll"),
        ("mad", "hi", S64) => form!(Map3, int::MadHiS64, "l=lll"),
        ("mad", "wide", U16) => form!(Map3, int::MadWideU16, "i=iii"),
        ("mad", "wide", S16) => form!(Map3, int::MadWideS16, "i=iii"),
        ("mad", "wide", U32) => form!(Map3, int::MadWideU32, "l=iil"),
        ("mad", "wide", S32) => form!(Map3, int::MadWideS32, "l=iil"),
        ("mul24", "lo", U32) => form!(Map2, int::Mul24LoU, "i=ii"),
        ("mul24", "lo", S32) => form!(Map2, int::Mul24LoS, "i=ii"),
        ("mul24", "hi", U32) => form!(Map2, int::Mul24HiU, "i=ii"),
        ("mul24", "hi", S32) => form!(Map2, int::Mul24HiS, "i=ii"),
        ("mad24", "lo", U32) => form!(Map3, int::Mad24LoU, "i=iii"),
        ("mad24", "lo", S32) => form!(Map3, int::Mad24LoS, "i=iii"),
        ("mad24", "hi", U32) => form!(Map3, int::Mad24HiU, "i=iii"),
        ("mad24", "hi", S32) => form!(Map3, int::Mad24HiS, "i=iii"),
        _ => None,
    }
}

fn bits<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let modes: &[(&str, &str)] = match m.base {
        "bfind" => &[("shiftamt", "shiftamt")],
        "bmsk" | "szext" => &[("clamp", "clamp"), ("wrap", "wrap")],
        _ => &[],
    };
    let mode = m.one(modes).unwrap_or("");
    let t = if m.base == "dp2a" {
        return dp2a(f, m, ops);
    } else {
        m.ty()?
    };
    if t == Type::Pred {
        return pred_logic(f, m, ops);
    }
    if m.base == "dp4a" {
        let u = m.ty()?;
        let (run, sig) = dp4a(t, u).ok_or_else(|| Why::invalid("dp4a of these types"))?;
        f.plan(run, sig, ops, 0)?;
        return Ok(true);
    }
    let found = match mode {
        "" => bit_form(m.base, t),
        mode => bit_mode(m.base, mode, t),
    };
    let (run, sig) = found.ok_or_else(|| Why::unsupported("this form is not served"))?;
    f.plan(run, sig, ops, 0)?;
    Ok(true)
}

fn bit_form(base: &str, t: Type) -> Option<Form> {
    use Type::*;
    match (base, t) {
        ("and", B16 | B32) => form!(Map2, int::And32, "i=ii"),
        ("and", B64) => form!(Map2, int::And64, "l=ll"),
        ("or", B16 | B32) => form!(Map2, int::Or32, "i=ii"),
        ("or", B64) => form!(Map2, int::Or64, "l=ll"),
        ("xor", B16 | B32) => form!(Map2, int::Xor32, "i=ii"),
        ("xor", B64) => form!(Map2, int::Xor64, "l=ll"),
        ("not", B16 | B32) => form!(Map1, int::Not32, "i=i"),
        ("not", B64) => form!(Map1, int::Not64, "l=l"),
        ("cnot", B16) => form!(Map1, int::Cnot16, "i=i"),
        ("cnot", B32) => form!(Map1, int::Cnot32, "i=i"),
        ("cnot", B64) => form!(Map1, int::Cnot64, "l=l"),
        ("shl", B16) => form!(Map2, int::Shl16, "i=ii"),
        ("shl", B32) => form!(Map2, int::Shl32, "i=ii"),
        ("shl", B64) => form!(Map2, int::Shl64, "l=li"),
        ("shr", B16 | U16) => form!(Map2, int::ShrU16, "i=ii"),
        ("shr", B32 | U32) => form!(Map2, int::ShrU32, "i=ii"),
        ("shr", B64 | U64) => form!(Map2, int::ShrU64, "l=li"),
        ("shr", S16) => form!(Map2, int::ShrS16, "i=ii"),
        ("shr", S32) => form!(Map2, int::ShrS32, "i=ii"),
        ("shr", S64) => form!(Map2, int::ShrS64, "l=li"),
        ("popc", B32) => form!(Map1, int::Popc32, "i=i"),
        ("popc", B64) => form!(Map1, int::Popc64, "i=l"),
        ("clz", B32) => form!(Map1, int::Clz32, "i=i"),
        ("clz", B64) => form!(Map1, int::Clz64, "i=l"),
        ("brev", B32) => form!(Map1, int::Brev32, "i=i"),
        ("brev", B64) => form!(Map1, int::Brev64, "l=l"),
        ("bfind", U32) => form!(Map1, int::BfindU32, "i=i"),
        ("bfind", S32) => form!(Map1, int::BfindS32, "i=i"),
        ("bfind", U64) => form!(Map1, int::BfindU64, "i=l"),
        ("bfind", S64) => form!(Map1, int::BfindS64, "i=l"),
        ("bfe", U32) => form!(Map3, int::BfeU32, "i=iii"),
        ("bfe", S32) => form!(Map3, int::BfeS32, "i=iii"),
        ("bfe", U64) => form!(Map3, int::BfeU64, "l=lii"),
        ("bfe", S64) => form!(Map3, int::BfeS64, "l=lii"),
        ("fns", B32) => form!(Map3, int::Fns, "i=iii"),
        _ => None,
    }
}

fn bit_mode(base: &str, mode: &str, t: Type) -> Option<Form> {
    use Type::*;
    match (base, mode, t) {
        ("bfind", "shiftamt", U32) => form!(Map1, int::BfindShiftU32, "i=i"),
        ("bfind", "shiftamt", S32) => form!(Map1, int::BfindShiftS32, "i=i"),
        ("bfind", "shiftamt", U64) => form!(Map1, int::BfindShiftU64, "i=l"),
        ("bfind", "shiftamt", S64) => form!(Map1, int::BfindShiftS64, "i=l"),
        ("bmsk", "clamp", B32) => form!(Map2, int::BmskClamp, "i=ii"),
        ("bmsk", "wrap", B32) => form!(Map2, int::BmskWrap, "i=ii"),
        ("szext", "clamp", U32) => form!(Map2, int::SzextClampU, "i=ii"),
        ("szext", "clamp", S32) => form!(Map2, int::SzextClampS, "i=ii"),
        ("szext", "wrap", U32) => form!(Map2, int::SzextWrapU, "i=ii"),
        ("szext", "wrap", S32) => form!(Map2, int::SzextWrapS, "i=ii"),
        _ => None,
    }
}

fn dp4a(t: Type, u: Type) -> Option<Form> {
    use Type::*;
    match (t, u) {
        (U32, U32) => form!(Map3, int::Dp4aUU, "i=iii"),
        (U32, S32) => form!(Map3, int::Dp4aUS, "i=iii"),
        (S32, U32) => form!(Map3, int::Dp4aSU, "i=iii"),
        (S32, S32) => form!(Map3, int::Dp4aSS, "i=iii"),
        _ => None,
    }
}

fn dp2a<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let hi = m.one(&[("lo", 0u64), ("hi", 1)]);
    let hi = hi.ok_or_else(|| Why::invalid("dp2a needs .lo or .hi"))?;
    let (t, u) = (m.ty()?, m.ty()?);
    if !matches!((t, u), (Type::U32 | Type::S32, Type::U32 | Type::S32)) {
        return Err(Why::invalid("dp2a of these types"));
    }
    let imm = hi | u64::from(t == Type::S32) << 1 | u64::from(u == Type::S32) << 2;
    f.plan(op::<Map3<int::Dp2a>>(), "i=iii", ops, imm)?;
    Ok(true)
}

fn pred_logic<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (table, sig) = match m.base {
        "and" => (0xc0, "p=pp"),
        "or" => (0xfc, "p=pp"),
        "xor" => (0x3c, "p=pp"),
        "not" => (0x0f, "p=p"),
        _ => return Err(Why::invalid("this operation on predicates")),
    };
    f.plan(op_plain::<PredLogic>(), sig, ops, table)?;
    let last = f.m.code.len() - 1;
    let inst = &mut f.m.code[last];
    if inst.b == NONE {
        inst.b = inst.a;
    }
    Ok(true)
}

fn carry_op<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand], flags: u64) -> R<bool> {
    let mut flags = flags;
    if m.base.starts_with("sub") {
        flags |= carry::flag::SUB;
    }
    let mad = m.base.starts_with("mad");
    if mad {
        let half = m.one(&[("lo", 0), ("hi", carry::flag::HI)]);
        flags |= half.ok_or_else(|| Why::invalid("mad.cc needs .lo or .hi"))?;
    }
    let t = m.ty()?;
    if !matches!(t, Type::U32 | Type::S32 | Type::U64 | Type::S64) {
        return Err(Why::invalid("carry arithmetic of this type"));
    }
    if matches!(t, Type::S32 | Type::S64) {
        flags |= carry::flag::SIGNED;
    }
    let (run, sig): Form = match (t.size(), mad) {
        (4, false) => (op_plain::<carry::AddSub<u32>>(), "i=ii"),
        (8, false) => (op_plain::<carry::AddSub<u64>>(), "l=ll"),
        (4, true) => (op_plain::<carry::Mad<u32>>(), "i=iii"),
        (8, true) => (op_plain::<carry::Mad<u64>>(), "l=lll"),
        _ => return Err(Why::invalid("carry arithmetic of this type")),
    };
    f.plan(run, sig, ops, flags)?;
    Ok(true)
}

fn lop3<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    m.ignore(&["b32"]);
    let how = m.one(&[("and", combine::AND), ("or", combine::OR)]);
    Func::count(ops, if how.is_some() { 6 } else { 5 })?;
    let table = Func::constant(ops.get(4))? & 0xff;
    let run = op::<Map3<int::Lop3>>();
    let Some(how) = how else {
        f.plan(run, "i=iii", &ops[..4], table)?;
        return Ok(true);
    };
    // `lop3.or.b32 d|p, a, b, c, table, q` also sets p = (d != 0) or q.
    let (d, p) = f.split_pair(&ops[0])?;
    let d = f.dst(d, false)?;
    let mut inst = Inst {
        run,
        d,
        imm: table,
        ..f.blank()
    };
    inst.a = f.src(&ops[1], Want::I32)?;
    inst.b = f.src(&ops[2], Want::I32)?;
    inst.c = f.src(&ops[3], Want::I32)?;
    let q = f.pred(&ops[5])?;
    f.emit(inst);
    let zero = f.m.const32(0)?;
    f.emit(Inst {
        run: op::<Setp<cmp::u32s::Ne>>(),
        d: p,
        a: d,
        b: zero,
        c: q,
        imm: how,
        ..f.blank()
    });
    Ok(true)
}

fn shf<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    m.ignore(&["b32"]);
    let direction = m.one(&[("l", "l"), ("r", "r")]);
    let mode = m.one(&[("clamp", "clamp"), ("wrap", "wrap")]);
    let run = match (direction, mode) {
        (Some("l"), Some("clamp")) => op::<Map3<int::ShfLClamp>>(),
        (Some("l"), Some("wrap")) => op::<Map3<int::ShfLWrap>>(),
        (Some("r"), Some("clamp")) => op::<Map3<int::ShfRClamp>>(),
        (Some("r"), Some("wrap")) => op::<Map3<int::ShfRWrap>>(),
        _ => return Err(Why::invalid("shf needs a direction and .clamp or .wrap")),
    };
    f.plan(run, "i=iii", ops, 0)?;
    Ok(true)
}

/// `vshr.dtype.atype.u32{.sat}.mode{.op2} d, a, b{, c}`, for whole words only.
fn vshr<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    use int::vshr as flag;
    let types = [m.ty()?, m.ty()?, m.ty()?];
    let mut imm = 0;
    for (t, signed) in types.iter().zip([flag::TO_SIGNED, flag::FROM_SIGNED]) {
        imm |= if *t == Type::S32 { signed } else { 0 };
    }
    for (name, bit) in [("sat", flag::SAT), ("wrap", flag::WRAP)] {
        imm |= if m.has(name) { bit } else { 0 };
    }
    m.ignore(&["clamp"]);
    let with = m.one(&[("add", flag::ADD), ("min", flag::MIN), ("max", flag::MAX)]);
    Func::count(ops, if with.is_some() { 4 } else { 3 })?;
    let mut inst = Inst {
        run: op::<Map3<int::Vshr>>(),
        imm: imm | with.unwrap_or(0),
        ..f.blank()
    };
    inst.a = f.src(&ops[1], Want::I32)?;
    inst.b = f.src(&ops[2], Want::I32)?;
    inst.c = match ops.get(3) {
        Some(c) => f.src(c, Want::I32)?,
        None => f.m.const32(0)?,
    };
    inst.d = f.dst(&ops[0], false)?;
    f.emit(inst);
    Ok(true)
}

fn prmt<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    m.ignore(&["b32"]);
    let mode = m.one(&[
        ("f4e", prmt_mode::F4E),
        ("b4e", prmt_mode::B4E),
        ("rc8", prmt_mode::RC8),
        ("ecl", prmt_mode::ECL),
        ("ecr", prmt_mode::ECR),
        ("rc16", prmt_mode::RC16),
    ]);
    f.plan(
        op::<Map3<int::Prmt>>(),
        "i=iii",
        ops,
        mode.unwrap_or(prmt_mode::INDEX),
    )?;
    Ok(true)
}

fn bfi<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    match m.ty()? {
        Type::B32 => f.plan(op::<misc::Bfi<u32>>(), "i=iiii", ops, 0)?,
        Type::B64 => f.plan(op::<misc::Bfi<u64>>(), "l=llii", ops, 0)?,
        _ => return Err(Why::invalid("bfi of this type")),
    }
    Ok(true)
}

macro_rules! int_cmps {
    ($shape:ident, $m:path, $c:expr) => {{
        use $m as k;
        match $c {
            "eq" => Some(op::<$shape<k::Eq>>()),
            "ne" => Some(op::<$shape<k::Ne>>()),
            "lt" | "lo" => Some(op::<$shape<k::Lt>>()),
            "le" | "ls" => Some(op::<$shape<k::Le>>()),
            "gt" | "hi" => Some(op::<$shape<k::Gt>>()),
            "ge" | "hs" => Some(op::<$shape<k::Ge>>()),
            _ => None,
        }
    }};
}

macro_rules! float_cmps {
    ($shape:ident, $m:path, $c:expr) => {{
        use $m as k;
        match $c {
            "eq" => Some(op::<$shape<k::Eq>>()),
            "ne" => Some(op::<$shape<k::Ne>>()),
            "lt" => Some(op::<$shape<k::Lt>>()),
            "le" => Some(op::<$shape<k::Le>>()),
            "gt" => Some(op::<$shape<k::Gt>>()),
            "ge" => Some(op::<$shape<k::Ge>>()),
            "equ" => Some(op::<$shape<k::Equ>>()),
            "neu" => Some(op::<$shape<k::Neu>>()),
            "ltu" => Some(op::<$shape<k::Ltu>>()),
            "leu" => Some(op::<$shape<k::Leu>>()),
            "gtu" => Some(op::<$shape<k::Gtu>>()),
            "geu" => Some(op::<$shape<k::Geu>>()),
            "num" => Some(op::<$shape<k::Num>>()),
            "nan" => Some(op::<$shape<k::Nan>>()),
            _ => None,
        }
    }};
}

pub(super) use float_cmps;

macro_rules! compare_table {
    ($name:ident, $shape:ident) => {
        fn $name(t: Type, c: &str, ftz: bool) -> Option<OpFn> {
            use Type::*;
            let belongs = match c {
                "lo" | "ls" | "hi" | "hs" => matches!(t, U16 | U32 | U64),
                "eq" | "ne" => true,
                _ => !matches!(t, B16 | B32 | B64),
            };
            if !belongs || (ftz && !matches!(t, F16 | F32)) {
                return None;
            }
            match t {
                B16 | U16 => int_cmps!($shape, cmp::u16s, c),
                S16 => int_cmps!($shape, cmp::s16s, c),
                B32 | U32 => int_cmps!($shape, cmp::u32s, c),
                S32 => int_cmps!($shape, cmp::s32s, c),
                B64 | U64 => int_cmps!($shape, cmp::u64s, c),
                S64 => int_cmps!($shape, cmp::s64s, c),
                F32 if ftz => float_cmps!($shape, cmp::f32zs, c),
                F32 => float_cmps!($shape, cmp::f32s, c),
                F64 => float_cmps!($shape, cmp::f64s, c),
                F16 if ftz => float_cmps!($shape, cmp::f16zs, c),
                F16 => float_cmps!($shape, cmp::f16s, c),
                BF16 => float_cmps!($shape, cmp::bf16s, c),
                _ => None,
            }
        }
    };
}
compare_table!(setp_form, Setp);
compare_table!(set_form, Set);

const COMPARISONS: [&str; 18] = [
    "eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu",
    "geu", "num", "nan",
];

/// Takes the comparison, the combination and the `.ftz` modifier of `setp` and `set`.
pub(super) fn comparison(m: &mut Mods<'_>) -> R<(&'static str, u64, bool)> {
    let table: Vec<(&str, &'static str)> = COMPARISONS.iter().map(|c| (*c, *c)).collect();
    let c = m.one(&table).ok_or_else(|| Why::invalid("no comparison"))?;
    let how = m.one(&[
        ("and", combine::AND),
        ("or", combine::OR),
        ("xor", combine::XOR),
    ]);
    Ok((c, how.unwrap_or(combine::NONE), m.has("ftz")))
}

fn setp<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (c, how, ftz) = comparison(m)?;
    let t = m.ty()?;
    let run = setp_form(t, c, ftz).ok_or_else(|| Why::unsupported("this comparison"))?;
    Func::count(ops, if how == combine::NONE { 3 } else { 4 })?;
    let mut inst = Inst {
        run,
        imm: how,
        ..f.blank()
    };
    match &ops[0] {
        Operand::Pair(p, q) => {
            inst.d = if **p == Operand::Sink {
                NONE
            } else {
                f.dst_pred(p)?
            };
            inst.e = if **q == Operand::Sink {
                NONE
            } else {
                f.dst_pred(q)?
            };
        }
        p => inst.d = f.dst_pred(p)?,
    }
    let want = Want::of(t)?;
    inst.a = f.src(&ops[1], want)?;
    inst.b = f.src(&ops[2], want)?;
    if how != combine::NONE {
        inst.c = f.pred(&ops[3])?;
    }
    f.emit(inst);
    Ok(true)
}

fn set<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (c, how, ftz) = comparison(m)?;
    let (d, t) = (m.ty()?, m.ty()?);
    let yes = match d {
        Type::F32 => u64::from(1f32.to_bits()),
        Type::F16 => 0x3c00,
        Type::BF16 => 0x3f80,
        Type::U16 | Type::S16 => u64::from(u16::MAX),
        Type::U32 | Type::S32 => u64::from(u32::MAX),
        _ => return Err(Why::unsupported("set of this type")),
    };
    let run = set_form(t, c, ftz).ok_or_else(|| Why::unsupported("this comparison"))?;
    Func::count(ops, if how == combine::NONE { 3 } else { 4 })?;
    let want = Want::of(t)?;
    let mut inst = Inst {
        run,
        imm: how | yes << 32,
        ..f.blank()
    };
    inst.d = f.dst(&ops[0], false)?;
    inst.a = f.src(&ops[1], want)?;
    inst.b = f.src(&ops[2], want)?;
    if how != combine::NONE {
        inst.c = f.pred(&ops[3])?;
    }
    f.emit(inst);
    Ok(true)
}

fn selp<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let (run, sig) = match m.ty()? {
        Type::F32 => (op::<Selp<u32>>(), "f=ffp"),
        Type::F64 => (op::<Selp<u64>>(), "d=ddp"),
        t if t.size() == 8 => (op::<Selp<u64>>(), "l=llp"),
        t if t.size() <= 4 => (op::<Selp<u32>>(), "i=iip"),
        _ => return Err(Why::unsupported("selp of this type")),
    };
    f.plan(run, sig, ops, 0)?;
    Ok(true)
}

/// The operation that moves one column to another of the same width.
pub(crate) fn copy(wide: bool) -> OpFn {
    if wide {
        op::<Mov<u64>>()
    } else {
        op::<Mov<u32>>()
    }
}
