//! `cp.async`, and the instructions that wait for its copies.

use super::func::Func;
use super::memory::{Address, Named, address};
use super::mods::Mods;
use super::operand::Want;
use super::{R, Why};
use crate::exec::inst::{Inst, NONE, op, op_plain};
use crate::exec::ops::control::Nop;
use crate::exec::ops::convert::U64FromU32;
use crate::exec::ops::family::Map1;
use crate::exec::ops::memory::Lea;
use crate::exec::ops::transfer::CopyAsync;
use crate::ptx::ast::Operand;

/// Lowers asynchronous copies. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    if m.base != "cp" {
        return Ok(false);
    }
    if !m.has("async") || m.left().contains(&"bulk") {
        return Err(Why::unsupported("this copy is not served"));
    }
    let none = m.has("commit_group") || m.has("wait_all");
    let group = m.has("wait_group");
    if none || group {
        Func::count(ops, usize::from(group))?;
        if group {
            Func::constant(ops.first())?;
        }
        f.emit(Inst {
            run: op_plain::<Nop>(),
            ..f.blank()
        });
        return Ok(true);
    }
    copy(f, m, ops)?;
    Ok(true)
}

/// `cp.async.{ca,cg}.shared.global [dst], [src], size{, src-size | ignore-src}{, policy}`.
fn copy<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let whole_lines = m.has("cg");
    if !whole_lines && !m.has("ca") {
        return Err(Why::invalid("cp.async is .ca or .cg"));
    }
    if !(m.has("shared") || m.has("shared::cta")) || !m.has("global") {
        return Err(Why::unsupported("a copy between these state spaces"));
    }
    let policy = usize::from(m.has("L2::cache_hint"));
    m.ignore(&["L2::64B", "L2::128B", "L2::256B"]);
    let ops = &ops[..ops.len().saturating_sub(policy)];
    if !(3..=4).contains(&ops.len()) {
        return Err(Why::invalid("wrong number of operands"));
    }
    let size = Func::constant(ops.get(2))?;
    if !matches!((size, whole_lines), (4 | 8, false) | (16, _)) {
        return Err(Why::invalid("copies are of 4, 8 or 16 bytes, .cg of 16"));
    }
    let mut inst = Inst {
        run: op::<CopyAsync>(),
        imm: size,
        ..f.blank()
    };
    match ops.get(3) {
        None => {}
        Some(o @ Operand::Negated(_)) => inst.e = f.pred(o)?,
        Some(o @ Operand::Name(n)) if f.is_register(n) && f.width(o) == 0 => inst.e = f.pred(o)?,
        Some(n) => inst.b = f.src(n, Want::I32)?,
    }
    let dst = address(f, &ops[0], Named::Shared)?;
    let src = address(f, &ops[1], Named::Global)?;
    (inst.c, inst.a) = (column(f, &dst)?, column(f, &src)?);
    f.emit(inst);
    Ok(())
}

/// Computes an address into one 64-bit column.
fn column(f: &mut Func<'_, '_>, a: &Address) -> R<u32> {
    if a.reg == NONE {
        return f.m.const64(a.offset as u64);
    }
    let t = f.temporary64()?;
    let mut base = a.reg;
    if a.narrow {
        f.emit(Inst {
            run: op::<Map1<U64FromU32>>(),
            d: t,
            a: base,
            ..f.blank()
        });
        base = t;
    }
    f.emit(Inst {
        run: op::<Lea>(),
        d: t,
        a: base,
        imm: a.offset as u64,
        ..f.blank()
    });
    Ok(t)
}
