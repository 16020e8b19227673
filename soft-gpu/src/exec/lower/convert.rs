//! The instructions `cvt`, `mov`, `cvta` and `isspacep`.

use super::arith::copy;
use super::float::rounding;
use super::func::{Func, Reg};
use super::mods::Mods;
use super::operand::Want;
use super::{R, Sym, Why};
use crate::exec::env::{LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW};
use crate::exec::inst::{Inst, OpFn, bank, op, op_plain};
use crate::exec::ops::convert::{self as cv, INTEGRAL, Num, RELU};
use crate::exec::ops::family::{Map1, Map2, Map3, PredLogic};
use crate::exec::ops::float::flag;
use crate::exec::ops::int;
use crate::exec::ops::memory::{IsSpace, Lea, Lea32};
use crate::exec::ops::misc::ReadClock;
use crate::exec::round::Mode;
use crate::exec::special::{self, Special};
use crate::ptx::ast::{Operand, Type};

/// Lowers moves and conversions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    match m.base {
        "cvt" => cvt(f, m, ops)?,
        "mov" => mov(f, m, ops)?,
        "cvta" => cvta(f, m, ops)?,
        "isspacep" => isspacep(f, m, ops)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn num(t: Type) -> R<Num> {
    use Type::*;
    Ok(match t {
        U8 => Num::U8,
        S8 => Num::S8,
        U16 => Num::U16,
        S16 => Num::S16,
        U32 => Num::U32,
        S32 => Num::S32,
        U64 => Num::U64,
        S64 => Num::S64,
        F16 => Num::F16,
        BF16 => Num::BF16,
        F32 => Num::F32,
        F64 => Num::F64,
        _ => return Err(Why::unsupported("conversion of this type")),
    })
}

/// `cvt.pack.sat`: narrows two integers and joins them below the bits of the third operand.
fn pack_integers<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let shapes = [
        ("u16", (16, 0)),
        ("s16", (16, cv::PACK_SIGNED)),
        ("u8", (8, 0)),
        ("s8", (8, cv::PACK_SIGNED)),
        ("u4", (4, 0)),
        ("s4", (4, cv::PACK_SIGNED)),
        ("u2", (2, 0)),
        ("s2", (2, cv::PACK_SIGNED)),
    ];
    let shape = m.one(&shapes);
    let (Some((bits, sign)), true) = (shape, m.has("sat")) else {
        return Err(Why::invalid("cvt.pack needs .sat and an integer type"));
    };
    if m.ty()? != Type::S32 {
        return Err(Why::invalid("cvt.pack takes .s32 operands"));
    }
    let run = op::<Map3<cv::PackInts>>();
    if bits == 16 {
        Func::count(ops, 3)?;
        let mut inst = Inst {
            run,
            imm: bits | sign,
            ..f.blank()
        };
        inst.d = f.dst(&ops[0], false)?;
        inst.a = f.src(&ops[1], Want::I32)?;
        inst.b = f.src(&ops[2], Want::I32)?;
        inst.c = f.m.const32(0)?;
        f.emit(inst);
        return Ok(());
    }
    if m.ty()? != Type::B32 {
        return Err(Why::invalid("the third operand of cvt.pack is .b32"));
    }
    f.plan(run, "i=iii", ops, bits | sign)
}

fn cvt<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    if m.has("pack") {
        return pack_integers(f, m, ops);
    }
    let integral = m.one(&[
        ("rni", Mode::Nearest),
        ("rzi", Mode::Zero),
        ("rmi", Mode::Down),
        ("rpi", Mode::Up),
    ]);
    let rounded = rounding(m);
    let mode = integral.or(rounded).unwrap_or(Mode::Nearest);
    let mut flags = mode as u64;
    for (name, bit) in [("ftz", flag::FTZ), ("sat", flag::SAT), ("relu", RELU)] {
        if m.has(name) {
            flags |= bit;
        }
    }
    if integral.is_some() {
        flags |= INTEGRAL;
    }
    let (d, s) = (m.ty()?, m.ty()?);
    if matches!(d, Type::F16x2 | Type::BF16x2) && s == Type::F32 {
        let half = if d == Type::F16x2 {
            Num::F16
        } else {
            Num::BF16
        };
        return f.plan(
            op_plain::<cv::Pack2>(),
            "i=ff",
            ops,
            cv::describe(half, Num::F32, flags),
        );
    }
    let (dn, sn) = (num(d)?, num(s)?);
    if !belongs(dn, sn, flags, rounded.is_some()) {
        return Err(Why::unsupported(
            "a modifier that this conversion does not have",
        ));
    }
    Func::count(ops, 2)?;
    let wide_d = match &ops[0] {
        Operand::Name(n) => matches!(f.register(n)?, Reg::W64(_)),
        _ => dn.bits() == 64,
    };
    // A source register may be wider than the type. A literal has the width of the type.
    let wide_s = match &ops[1] {
        Operand::Name(_) => f.width(&ops[1]) == 64,
        _ => sn.bits() == 64,
    };
    let narrow = |n: Num, wide: bool| n.bits() > 32 && !wide;
    if narrow(dn, wide_d) || narrow(sn, wide_s) {
        return Err(Why::invalid("a register is narrower than its type"));
    }
    let want = match (sn, wide_s) {
        (Num::F32, false) => Want::F32,
        (Num::F64, _) => Want::F64,
        (_, true) => Want::I64,
        (_, false) => Want::I32,
    };
    if let Operand::Name(n) = &ops[1]
        && let Some(Special::Clock(_)) = special::find(n)
    {
        return Err(Why::unsupported("cvt of a clock register"));
    }
    let mut inst = Inst {
        imm: cv::describe(dn, sn, flags),
        ..f.blank()
    };
    inst.d = f.dst(&ops[0], wide_d)?;
    inst.a = f.src(&ops[1], want)?;
    inst.run = fast(dn, sn, flags, wide_d, wide_s).unwrap_or(match (wide_s, wide_d) {
        (false, false) => op_plain::<cv::Cvt<u32, u32>>(),
        (false, true) => op_plain::<cv::Cvt<u32, u64>>(),
        (true, false) => op_plain::<cv::Cvt<u64, u32>>(),
        (true, true) => op_plain::<cv::Cvt<u64, u64>>(),
    });
    f.emit(inst);
    Ok(())
}

/// Whether PTX allows these modifiers for a conversion from `s` to `d`.
fn belongs(d: Num, s: Num, flags: u64, rounded: bool) -> bool {
    let has = |flag: u64| flags & flag != 0;
    let narrower = !s.float() || (d.bits() <= s.bits() && d != s);
    let to_integer = s.float() && !d.float();
    (!has(INTEGRAL) || to_integer || (s.float() && d == s))
        && (has(INTEGRAL) || !to_integer)
        && (!rounded || (d.float() && narrower))
        && (!has(flag::FTZ) || d == Num::F32 || s == Num::F32)
        && (!has(RELU) || matches!(d, Num::F16 | Num::BF16))
}

/// The specialised function of a frequent conversion. Both registers must be as wide as their
/// types.
fn fast(d: Num, s: Num, flags: u64, wide_d: bool, wide_s: bool) -> Option<OpFn> {
    use Num::*;
    if wide_d != (d.bits() == 64) || wide_s != (s.bits() == 64) {
        return None;
    }
    let near = Mode::Nearest as u64;
    let integral = |mode: Mode| INTEGRAL | mode as u64;
    Some(match (wide_s, wide_d, s, d) {
        (false, false, U8, U32 | S32 | U16 | S16) if flags == 0 => op::<Map1<cv::U32FromU8>>(),
        (false, false, S8, U32 | S32 | S16 | U16) if flags == 0 => op::<Map1<cv::S32FromS8>>(),
        (false, false, U16, U32 | S32) if flags == 0 => op::<Map1<cv::U32FromU16>>(),
        (false, false, S16, U32 | S32) if flags == 0 => op::<Map1<cv::S32FromS16>>(),
        (false, false, U32 | S32, U16) if flags == 0 => op::<Map1<cv::Lo16>>(),
        (false, true, U32, U64 | S64) if flags == 0 => op::<Map1<cv::U64FromU32>>(),
        (false, true, S32, U64 | S64) if flags == 0 => op::<Map1<cv::S64FromS32>>(),
        (false, true, U16, U64 | S64) if flags == 0 => op::<Map1<cv::U64FromU16>>(),
        (true, false, U64 | S64, U32 | S32) if flags == 0 => op::<Map1<cv::U32From64>>(),
        (_, _, S32, F32) if flags == near => op::<Map1<cv::F32FromS32>>(),
        (_, _, U32, F32) if flags == near => op::<Map1<cv::F32FromU32>>(),
        (_, _, S32, F64) if flags == near => op::<Map1<cv::F64FromS32>>(),
        (_, _, U32, F64) if flags == near => op::<Map1<cv::F64FromU32>>(),
        (_, _, S64, F64) if flags == near => op::<Map1<cv::F64FromS64>>(),
        (_, _, U64, F64) if flags == near => op::<Map1<cv::F64FromU64>>(),
        (_, _, F32, F64) if flags == 0 => op::<Map1<cv::F64FromF32>>(),
        (_, _, F64, F32) if flags == near => op::<Map1<cv::F32FromF64>>(),
        (false, false, F32, S32) if flags == integral(Mode::Zero) => op::<Map1<cv::S32FromF32>>(),
        (false, false, F32, U32) if flags == integral(Mode::Zero) => op::<Map1<cv::U32FromF32>>(),
        (_, _, F32, F32) if flags == integral(Mode::Nearest) => op::<Map1<cv::RintF32>>(),
        (_, _, F32, F32) if flags == integral(Mode::Zero) => op::<Map1<cv::TruncF32>>(),
        (_, _, F32, F32) if flags == integral(Mode::Down) => op::<Map1<cv::FloorF32>>(),
        (_, _, F32, F32) if flags == integral(Mode::Up) => op::<Map1<cv::CeilF32>>(),
        (_, _, F64, F64) if flags == integral(Mode::Nearest) => op::<Map1<cv::RintF64>>(),
        (_, _, F64, F64) if flags == integral(Mode::Zero) => op::<Map1<cv::TruncF64>>(),
        (_, _, F64, F64) if flags == integral(Mode::Down) => op::<Map1<cv::FloorF64>>(),
        (_, _, F64, F64) if flags == integral(Mode::Up) => op::<Map1<cv::CeilF64>>(),
        _ => return None,
    })
}

fn mov<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let t = m.ty()?;
    Func::count(ops, 2)?;
    if t == Type::Pred {
        return move_predicate(f, ops);
    }
    match (&ops[0], &ops[1]) {
        (Operand::Vector(to), from) => return unpack(f, t, to, from),
        (to, Operand::Vector(from)) => return pack(f, t, to, from),
        _ => {}
    }
    let wide = t.size() == 8;
    if let Operand::Name(n) | Operand::Offset(n, _) = &ops[1] {
        if let Some(Special::Clock(c)) = special::find(n) {
            let d = f.dst(&ops[0], wide)?;
            let e = if wide { 64 } else { 32 };
            let run = op_plain::<ReadClock>();
            f.emit(Inst {
                run,
                d,
                e,
                imm: c as u64,
                ..f.blank()
            });
            return Ok(());
        }
        if address(f, &ops[0], n, &ops[1], wide)? {
            return Ok(());
        }
        if f.is_register(n) {
            return move_register(f, t, &ops[0], &ops[1]);
        }
    }
    // The bits of a literal are unchanged: `mov.b32 %r, 0f3F800000`.
    let want = match (t, wide) {
        (Type::F32, _) => Want::F32,
        (Type::F64, _) => Want::F64,
        (_, true) => Want::I64,
        (_, false) => Want::I32,
    };
    // `%gridid` has 64 bits. Older code reads only the low 32 bits.
    if !wide && matches!(&ops[1], Operand::Name(n) if n == "%gridid") {
        let d = f.dst(&ops[0], wide)?;
        let a = f.src(&ops[1], Want::I64)?;
        f.emit_unary(op::<Map1<cv::U32From64>>(), d, a);
        return Ok(());
    }
    if wide && f.width(&ops[1]) == 32 {
        let d = f.dst(&ops[0], wide)?;
        let a = f.src(&ops[1], Want::I32)?;
        f.emit_unary(op::<Map1<cv::U64FromU32>>(), d, a);
        return Ok(());
    }
    let a = f.src(&ops[1], want)?;
    if f.is_same(&ops[0], &ops[1], a, wide) {
        return Ok(());
    }
    let d = f.dst(&ops[0], wide)?;
    f.emit_unary(copy(wide), d, a);
    Ok(())
}

/// `mov.pred`.
fn move_predicate(f: &mut Func<'_, '_>, ops: &[Operand]) -> R<()> {
    let constant = match &ops[1] {
        Operand::Int(n) => Some(*n != 0),
        // Without clusters, no launch has an explicit cluster.
        Operand::Name(n) if n == "%is_explicit_cluster" => Some(false),
        _ => None,
    };
    let d = f.dst_pred(&ops[0])?;
    let (a, table) = match constant {
        Some(true) => (d, 0xff),
        Some(false) => (d, 0),
        None => (f.pred(&ops[1])?, 0xf0),
    };
    f.emit(Inst {
        run: op_plain::<PredLogic>(),
        d,
        a,
        b: a,
        imm: table,
        ..f.blank()
    });
    Ok(())
}

fn move_register<'m>(f: &mut Func<'_, 'm>, t: Type, to: &'m Operand, from: &Operand) -> R<()> {
    let wide = t.size() == 8;
    let a = f.src(from, if wide { Want::I64 } else { Want::I32 })?;
    if f.is_same(to, from, a, wide) {
        return Ok(());
    }
    let d = f.dst(to, wide)?;
    f.emit_unary(copy(wide), d, a);
    Ok(())
}

/// `mov` of the address of a variable in the frame or the parameter block.
fn address(f: &mut Func<'_, '_>, to: &Operand, name: &str, from: &Operand, wide: bool) -> R<bool> {
    let add = if let Operand::Offset(_, n) = from {
        *n as u64
    } else {
        0
    };
    let (a, imm) = if let Some(slot) = f.slots.get(name) {
        if slot.outgoing && f.ast.kernel {
            // The generic address would be taken for that of a kernel parameter.
            return Err(Why::unsupported(format!(
                "the address of {name}, an argument of a call in a kernel,"
            )));
        }
        (
            bank::SPECIAL | special::FRAME_LOCAL,
            slot.offset.wrapping_add(add),
        )
    } else if let Some(&off) = f.kernel_params.get(name) {
        (bank::SPECIAL | special::ZERO64, off.wrapping_add(add))
    } else if f.m.lookup(Some(f.index), name) == Some(Sym::Dynamic) && add != 0 {
        (bank::SPECIAL | special::DYNAMIC_BASE64, add)
    } else {
        return Ok(false);
    };
    let d = f.dst(to, wide)?;
    let run = if wide { op::<Lea>() } else { op::<Lea32>() };
    f.emit(Inst {
        run,
        d,
        a,
        imm,
        ..f.blank()
    });
    Ok(true)
}

fn unpack(f: &mut Func<'_, '_>, t: Type, to: &[Operand], from: &Operand) -> R<()> {
    match (t.size(), to.len()) {
        (size @ (4 | 8), 2) => {
            let (want, halves) = match size {
                8 => (Want::I64, [op::<Map1<cv::Lo32>>(), op::<Map1<cv::Hi32>>()]),
                _ => (Want::I32, [op::<Map1<cv::Lo16>>(), op::<Map1<cv::Hi16>>()]),
            };
            // Source and destinations differ in width, so writing a destination never changes the
            // source.
            let a = f.src(from, want)?;
            for (part, run) in to.iter().zip(halves) {
                if *part != Operand::Sink {
                    let d = f.dst(part, false)?;
                    f.emit_unary(run, d, a);
                }
            }
        }
        (size @ (2 | 4 | 8), n @ (2 | 4 | 8)) if size / n > 0 => {
            // Shifts each element to the low bits, beginning with the least significant element.
            let bits = (size / n * 8) as u64;
            let wide = size == 8;
            let a = f.src(from, if wide { Want::I64 } else { Want::I32 })?;
            for (k, op_) in to.iter().enumerate() {
                if *op_ == Operand::Sink {
                    continue;
                }
                let d = f.dst(op_, false)?;
                let b = f.m.const32((k as u64 * bits) as u32)?;
                let c = f.m.const32(bits as u32)?;
                if wide {
                    let t = f.temporary64()?;
                    let run = op::<Map3<int::BfeU64>>();
                    f.emit(Inst {
                        run,
                        d: t,
                        a,
                        b,
                        c,
                        ..f.blank()
                    });
                    f.emit_unary(op::<Map1<cv::Lo32>>(), d, t);
                } else {
                    let run = op::<Map3<int::BfeU32>>();
                    f.emit(Inst {
                        run,
                        d,
                        a,
                        b,
                        c,
                        ..f.blank()
                    });
                }
            }
        }
        _ => return Err(Why::unsupported("mov of these parts")),
    }
    Ok(())
}

fn pack(f: &mut Func<'_, '_>, t: Type, to: &Operand, from: &[Operand]) -> R<()> {
    let mut parts = Vec::new();
    for p in from {
        parts.push(f.src(p, Want::I32)?);
    }
    let size = t.size();
    let (run, a, b) = match (size, parts.as_slice()) {
        (8, &[a, b]) => (op::<Map2<cv::Join32>>(), a, b),
        (4, &[a, b]) => (op::<Map2<cv::Join16>>(), a, b),
        (2, &[a, b]) => (op::<Map2<cv::Join8>>(), a, b),
        (4 | 8, &[a, b, c, e]) => {
            let (join, run) = match size {
                8 => (op::<Map2<cv::Join16>>(), op::<Map2<cv::Join32>>()),
                _ => (op::<Map2<cv::Join8>>(), op::<Map2<cv::Join16>>()),
            };
            let (lo, hi) = (f.fresh32()?, f.fresh32()?);
            f.emit_binary(join, lo, a, b);
            f.emit_binary(join, hi, c, e);
            (run, lo, hi)
        }
        _ => return Err(Why::unsupported("mov of these parts")),
    };
    let d = f.dst(to, size == 8)?;
    f.emit_binary(run, d, a, b);
    Ok(())
}

/// Takes a state space and returns the start of its window in generic addresses; 0 if the space has
/// no window.
fn window(m: &mut Mods<'_>) -> Option<u64> {
    m.one(&[
        ("global", 0),
        ("const", 0),
        ("shared", SHARED_WINDOW),
        ("shared::cta", SHARED_WINDOW),
        ("shared::cluster", SHARED_WINDOW),
        ("local", LOCAL_WINDOW),
        ("param", PARAM_WINDOW),
        ("param::entry", PARAM_WINDOW),
    ])
}

fn cvta<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let to = m.has("to");
    let base = window(m).ok_or_else(|| Why::invalid("cvta of no state space"))?;
    if m.ty()? != Type::U64 {
        return Err(Why::unsupported("32-bit addresses"));
    }
    Func::count(ops, 2)?;
    let delta = if to { base.wrapping_neg() } else { base };
    // `cvta.local.u64 %rd, var;` takes the address of the variable and converts it.
    if let Operand::Name(n) | Operand::Offset(n, _) = &ops[1]
        && address(f, &ops[0], n, &ops[1], true)?
    {
        let d = f.dst(&ops[0], true)?;
        f.emit(Inst {
            run: op_plain::<Lea>(),
            d,
            a: d,
            imm: delta,
            ..f.blank()
        });
        return Ok(());
    }
    let a = f.src(&ops[1], Want::I64)?;
    if delta == 0 && f.is_same(&ops[0], &ops[1], a, true) {
        return Ok(());
    }
    let d = f.dst(&ops[0], true)?;
    let run = if delta == 0 { copy(true) } else { op::<Lea>() };
    f.emit(Inst {
        run,
        d,
        a,
        imm: delta,
        ..f.blank()
    });
    Ok(())
}

fn isspacep<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let constant = m.has("const");
    let base = if constant {
        1
    } else {
        window(m).ok_or_else(|| Why::invalid("no state space"))?
    };
    f.plan(op_plain::<IsSpace>(), "p=l", ops, base)
}
