//! Warp-wide instructions.

use super::func::Func;
use super::mods::Mods;
use super::operand::Want;
use super::{R, Why};
use crate::exec::inst::{Inst, NONE, op, op_plain};
use crate::exec::ops::shuffle::{ActiveMask, Elect, Match, Redux, Shfl, Vote, redux, shfl, vote};
use crate::ptx::ast::{Operand, Type};

/// Lowers warp-wide instructions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    match m.base {
        "shfl" => shuffle(f, m, ops)?,
        "vote" => votes(f, m, ops)?,
        "match" => matches(f, m, ops)?,
        "redux" => reduce(f, m, ops)?,
        "activemask" => {
            m.ignore(&["b32"]);
            f.plan(op_plain::<ActiveMask>(), "i=", ops, 0)?;
        }
        "elect" => {
            m.ignore(&["sync"]);
            Func::count(ops, 2)?;
            let (d, c) = f.split_pair(&ops[0])?;
            let d = if *d == Operand::Sink {
                NONE
            } else {
                f.dst(d, false)?
            };
            let e = f.src(&ops[1], Want::I32)?;
            f.emit(Inst {
                run: op_plain::<Elect>(),
                d,
                c,
                e,
                ..f.blank()
            });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn members(f: &mut Func<'_, '_>, sync: bool, op_: Option<&Operand>) -> R<u32> {
    match (sync, op_) {
        (true, Some(o)) => f.src(o, Want::I32),
        (false, None) => Ok(NONE),
        _ => Err(Why::invalid("wrong number of operands")),
    }
}

fn shuffle<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let sync = m.has("sync");
    let modes = [
        ("up", shfl::UP),
        ("down", shfl::DOWN),
        ("bfly", shfl::BFLY),
        ("idx", shfl::IDX),
    ];
    let mode = m
        .one(&modes)
        .ok_or_else(|| Why::invalid("shfl of no mode"))?;
    m.ignore(&["b32"]);
    if ops.len() < 4 {
        return Err(Why::invalid("wrong number of operands"));
    }
    let (d, p) = f.split_pair(&ops[0])?;
    let mut inst = Inst {
        run: op::<Shfl>(),
        imm: mode,
        ..f.blank()
    };
    if p != NONE {
        inst.imm |= shfl::HAS_PRED | u64::from(p) << shfl::PRED_SHIFT;
    }
    inst.d = if *d == Operand::Sink {
        NONE
    } else {
        f.dst(d, false)?
    };
    inst.a = f.src(&ops[1], Want::I32)?;
    inst.b = f.src(&ops[2], Want::I32)?;
    inst.c = f.src(&ops[3], Want::I32)?;
    inst.e = members(f, sync, ops.get(4))?;
    f.emit(inst);
    Ok(())
}

fn votes<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let sync = m.has("sync");
    let modes = [
        ("all", vote::ALL),
        ("any", vote::ANY),
        ("uni", vote::UNI),
        ("ballot", vote::BALLOT),
    ];
    let mode = m
        .one(&modes)
        .ok_or_else(|| Why::invalid("vote of no mode"))?;
    m.ignore(&["pred", "b32"]);
    if ops.len() < 2 {
        return Err(Why::invalid("wrong number of operands"));
    }
    let mut inst = Inst {
        run: op_plain::<Vote>(),
        imm: mode,
        ..f.blank()
    };
    inst.d = if mode == vote::BALLOT {
        f.dst(&ops[0], false)?
    } else {
        f.dst_pred(&ops[0])?
    };
    inst.a = f.pred(&ops[1])?;
    inst.e = members(f, sync, ops.get(2))?;
    f.emit(inst);
    Ok(())
}

fn matches<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    m.ignore(&["sync"]);
    let all = m.has("all");
    m.ignore(&["any"]);
    let wide = m.ty()? == Type::B64;
    Func::count(ops, 3)?;
    let (d, c) = f.split_pair(&ops[0])?;
    let run = match (wide, all) {
        (false, false) => op_plain::<Match<u32, false>>(),
        (false, true) => op_plain::<Match<u32, true>>(),
        (true, false) => op_plain::<Match<u64, false>>(),
        (true, true) => op_plain::<Match<u64, true>>(),
    };
    let d = if *d == Operand::Sink {
        NONE
    } else {
        f.dst(d, false)?
    };
    let a = f.src(&ops[1], if wide { Want::I64 } else { Want::I32 })?;
    let e = f.src(&ops[2], Want::I32)?;
    f.emit(Inst {
        run,
        d,
        a,
        c,
        e,
        ..f.blank()
    });
    Ok(())
}

fn reduce<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    m.ignore(&["sync"]);
    let t = m.ty()?;
    let signed = t == Type::S32;
    if !matches!(t, Type::U32 | Type::S32 | Type::B32) {
        return Err(Why::unsupported("redux of this type"));
    }
    let modes = [
        ("add", redux::ADD),
        ("min", if signed { redux::MIN_S } else { redux::MIN_U }),
        ("max", if signed { redux::MAX_S } else { redux::MAX_U }),
        ("and", redux::AND),
        ("or", redux::OR),
        ("xor", redux::XOR),
    ];
    let mode = m
        .one(&modes)
        .ok_or_else(|| Why::invalid("redux of no operation"))?;
    Func::count(ops, 3)?;
    let d = f.dst(&ops[0], false)?;
    let a = f.src(&ops[1], Want::I32)?;
    let e = f.src(&ops[2], Want::I32)?;
    f.emit(Inst {
        run: op_plain::<Redux>(),
        d,
        a,
        e,
        imm: mode,
        ..f.blank()
    });
    Ok(())
}
