//! `mbarrier`, and the arrival of asynchronous copies at a barrier.

use super::func::Func;
use super::memory::{Named, address, imm_of, named};
use super::mods::Mods;
use super::operand::Want;
use super::{R, Why};
use crate::exec::inst::{Inst, NONE, OpFn, op_plain};
use crate::exec::ops::control::Nop;
use crate::exec::ops::element::space;
use crate::exec::ops::mbarrier::{MBarrier, PendingCount, kind};
use crate::ptx::ast::Operand;

/// Lowers barriers in memory. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    match m.base {
        "mbarrier" => barrier(f, m, ops)?,
        "cp" if m.left().starts_with(&["async", "mbarrier"]) => copies_arrive(f, m, ops)?,
        _ => return Ok(false),
    }
    Ok(true)
}

fn function<const KIND: u8>(of: u8) -> OpFn {
    if of == space::SHARED {
        op_plain::<MBarrier<KIND, { space::SHARED }>>()
    } else {
        op_plain::<MBarrier<KIND, { space::GENERIC }>>()
    }
}

fn operation(kind_: u8, space: u8) -> OpFn {
    match kind_ {
        kind::INIT => function::<{ kind::INIT }>(space),
        kind::INVAL => function::<{ kind::INVAL }>(space),
        kind::ARRIVE => function::<{ kind::ARRIVE }>(space),
        kind::DROP => function::<{ kind::DROP }>(space),
        kind::WAIT => function::<{ kind::WAIT }>(space),
        kind::PARITY => function::<{ kind::PARITY }>(space),
        kind::EXPECT => function::<{ kind::EXPECT }>(space),
        kind::COMPLETE => function::<{ kind::COMPLETE }>(space),
        _ => function::<{ kind::ARRIVE_EXPECT }>(space),
    }
}

/// Emits an instruction on the barrier at `at`, with operand `a` and result `d`.
fn emit(f: &mut Func<'_, '_>, kind_: u8, (at, space): (&Operand, Named), a: u32, d: u32) -> R<()> {
    let at = address(f, at, space)?;
    if !matches!(at.space, space::SHARED | space::GENERIC) || at.kernel_param {
        return Err(Why::invalid("an mbarrier is in shared memory"));
    }
    f.emit(Inst {
        run: operation(kind_, at.space),
        d,
        a,
        e: at.reg,
        imm: imm_of(&at, 1),
        ..f.blank()
    });
    Ok(())
}

fn barrier<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    if m.has("pending_count") {
        m.ignore(&["b64"]);
        return f.plan(op_plain::<PendingCount>(), "i=l", ops, 0);
    }
    let kinds = [
        ("init", kind::INIT),
        ("inval", kind::INVAL),
        ("arrive", kind::ARRIVE),
        ("arrive_drop", kind::DROP),
        ("test_wait", kind::WAIT),
        ("try_wait", kind::WAIT),
        ("expect_tx", kind::EXPECT),
        ("complete_tx", kind::COMPLETE),
    ];
    let found = m.one(&kinds);
    let mut kind_ = found.ok_or_else(|| Why::unsupported("this mbarrier instruction"))?;
    if kind_ == kind::ARRIVE && m.has("expect_tx") {
        kind_ = kind::ARRIVE_EXPECT;
    }
    if kind_ == kind::WAIT && m.has("parity") {
        kind_ = kind::PARITY;
    }
    m.ignore(&["noComplete", "release", "acquire", "relaxed", "cta", "b64"]);
    if m.left().iter().any(|w| w.contains("cluster")) {
        return Err(Why::unsupported("clusters are not served"));
    }
    let space = named(m);
    match (kind_, ops) {
        (kind::INVAL, [at]) => emit(f, kind_, (at, space), NONE, NONE),
        (kind::INIT | kind::EXPECT | kind::COMPLETE, [at, n]) => {
            let n = f.src(n, Want::I32)?;
            emit(f, kind_, (at, space), n, NONE)
        }
        (kind::ARRIVE | kind::DROP | kind::ARRIVE_EXPECT, [state, at, n @ ..]) if n.len() < 2 => {
            let n = match n.first() {
                Some(n) => f.src(n, Want::I32)?,
                None => f.m.const32(1)?,
            };
            let d = match state {
                Operand::Sink => NONE,
                register => f.dst(register, true)?,
            };
            emit(f, kind_, (at, space), n, d)
        }
        // The optional last operand of `try_wait` is the time to wait, a hint that is ignored.
        (kind::WAIT | kind::PARITY, [p, at, v, hint @ ..]) if hint.len() < 2 => {
            let wide = kind_ == kind::WAIT;
            let v = f.src(v, if wide { Want::I64 } else { Want::I32 })?;
            let d = f.dst_pred(p)?;
            emit(f, kind_, (at, space), v, d)
        }
        _ => Err(Why::invalid("wrong number of operands")),
    }
}

/// `cp.async.mbarrier.arrive`: copies are complete at once, so the arrival happens at once. Without
/// `.noinc`, the instruction first adds a pending arrival, so its total effect is none.
fn copies_arrive<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    m.ignore(&["async", "mbarrier", "arrive", "b64"]);
    let counted = m.has("noinc");
    let space = named(m);
    let [at] = ops else {
        return Err(Why::invalid("wrong number of operands"));
    };
    if counted {
        let one = f.m.const32(1)?;
        return emit(f, kind::ARRIVE, (at, space), one, NONE);
    }
    address(f, at, space)?;
    f.emit(Inst {
        run: op_plain::<Nop>(),
        ..f.blank()
    });
    Ok(())
}
