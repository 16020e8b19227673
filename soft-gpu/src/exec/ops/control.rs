//! Branches, calls, barriers and the end of threads.

use super::family::each_lane;
use super::memory::place;
use super::shuffle::teams;
use crate::exec::col::Raw;
use crate::exec::contract::Fault;
use crate::exec::env::{Env, FUNC_STRIDE, FUNC_WINDOW};
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::{Arrival, Wait, Warp};

/// `bra`: branches to instruction `imm`.
pub(crate) struct Bra;
impl Op for Bra {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        w.branch(mask, i.imm as u32)
    }
}

/// `brx.idx`: branches to entry `a` of branch table `imm`.
pub(crate) struct BrxIdx;
impl Op for BrxIdx {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let table = &env.program.tables[i.imm as usize];
        let index = *u32::src(w, i.a);
        let mut bad = false;
        let mut left = mask;
        let uniform = index[mask.trailing_zeros() as usize];
        each_lane(mask, |l| {
            bad |= index[l] as usize >= table.len();
            if index[l] != uniform {
                left &= !(1 << l);
            }
        });
        if bad {
            let text = format!("brx.idx beyond its table; {}", place(w, env));
            w.fault = Some(Fault::IllegalInstruction(text));
            return Flow::Fault;
        }
        if left == w.active {
            w.pc = table[uniform as usize];
            return Flow::Jump;
        }
        each_lane(mask, |l| {
            w.park(table[index[l] as usize], 1 << l, Wait::Ready);
        });
        let rest = w.active & !mask;
        if rest != 0 {
            w.park(w.pc + 1, rest, Wait::Ready);
        }
        w.drop_current();
        Flow::Choose
    }
}

fn enter(w: &mut Warp, env: &Env<'_>, mask: u32, func: u32, site: u32) -> Flow {
    match w.call(env, mask, func, site) {
        Ok(flow) => flow,
        Err(fault) => {
            w.fault = Some(fault);
            Flow::Fault
        }
    }
}

/// `call`: calls function `a`, with call site `imm`.
pub(crate) struct Call;
impl Op for Call {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        enter(w, env, mask, i.a, i.imm as u32)
    }
}

/// `call` through register `a`. The lanes that have the same target as the first lane call; the
/// other lanes execute this instruction again.
pub(crate) struct CallIndirect;
impl Op for CallIndirect {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let target = *u64::src(w, i.a);
        let to = target[mask.trailing_zeros() as usize];
        let mut same = 0u32;
        each_lane(mask, |l| same |= u32::from(target[l] == to) << l);
        let index = to.wrapping_sub(FUNC_WINDOW) / FUNC_STRIDE;
        let site = &env.program.calls[i.imm as usize];
        let fits = to >= FUNC_WINDOW
            && to % FUNC_STRIDE == 0
            && env.program.funcs.get(index as usize).is_some_and(|f| {
                f.callable
                    && f.params.len() == site.args.len()
                    && f.returns.len() == site.rets.len()
            });
        if !fits {
            let text = format!(
                "call of {to:#x}, which is no such function; {}",
                place(w, env)
            );
            w.fault = Some(Fault::IllegalInstruction(text));
            return Flow::Fault;
        }
        let again = mask & !same;
        if again != 0 {
            // These lanes execute the instruction again. Lanes that the guard excludes continue
            // with the following instruction.
            let rest = w.active & !mask;
            w.park(w.pc, again, Wait::Ready);
            if rest != 0 {
                w.park(w.pc + 1, rest, Wait::Ready);
            }
            w.active = same;
        }
        enter(w, env, same, index as u32, i.imm as u32)
    }
}

/// `ret`.
pub(crate) struct Ret;
impl Op for Ret {
    fn run(w: &mut Warp, env: &Env<'_>, _: &Inst, mask: u32) -> Flow {
        w.ret(env, mask)
    }
}

/// `exit`.
pub(crate) struct Exit;
impl Op for Exit {
    fn run(w: &mut Warp, _: &Env<'_>, _: &Inst, mask: u32) -> Flow {
        w.exit(mask)
    }
}

/// `trap` and `brkpt`.
pub(crate) struct Trap;
impl Op for Trap {
    fn run(w: &mut Warp, _: &Env<'_>, _: &Inst, _: u32) -> Flow {
        w.fault = Some(Fault::Trap);
        Flow::Fault
    }
}

/// `tex` always faults, because no texture can be created.
pub(crate) struct Fetch;
impl Op for Fetch {
    fn run(w: &mut Warp, _: &Env<'_>, _: &Inst, _: u32) -> Flow {
        w.fault = Some(Fault::IllegalInstruction(
            "tex: textures are not served".into(),
        ));
        Flow::Fault
    }
}

/// Kinds of `bar`, in the immediate.
pub(crate) mod bar {
    /// Waits until all threads have arrived.
    pub(crate) const SYNC: u64 = 0;
    /// Arrives without waiting.
    pub(crate) const ARRIVE: u64 = 1;
    /// Waits, then writes the number of true predicates to `d`.
    pub(crate) const POPC: u64 = 2;
    /// Waits, then sets predicate `d` if all are true.
    pub(crate) const AND: u64 = 3;
    /// Waits, then sets predicate `d` if any is true.
    pub(crate) const OR: u64 = 4;
}

/// `bar`/`barrier`: id `a`, thread count `b` (or [`NONE`]), predicate `c`, result `d`.
pub(crate) struct Bar;
impl Op for Bar {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let lane = mask.trailing_zeros() as usize;
        let id = u32::src(w, i.a)[lane];
        let count = if i.b == NONE {
            0
        } else {
            u32::src(w, i.b)[lane]
        };
        if id > 15 || (i.b != NONE && (count == 0 || !(count as usize).is_multiple_of(LANES))) {
            let text = format!("barrier {id} for {count} threads; {}", place(w, env));
            w.fault = Some(Fault::IllegalInstruction(text));
            return Flow::Fault;
        }
        let votes = if i.c == NONE { 0 } else { w.pred(i.c) & mask };
        w.arrivals.push(Arrival {
            id: id as u8,
            mask,
            count,
            votes,
        });
        if i.imm == bar::ARRIVE {
            return Flow::Next;
        }
        w.wait_barrier(mask, id as u8)
    }
}

/// `bar.warp.sync`. `a` is the mask of members.
pub(crate) struct BarWarp;
impl Op for BarWarp {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        teams(w, i.a, mask, |_, _, _| {})
    }
}

/// A fence. A block runs on one thread, so a fence orders accesses for other blocks only.
pub(crate) struct Fence;
impl Op for Fence {
    fn run(_: &mut Warp, _: &Env<'_>, _: &Inst, _: u32) -> Flow {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        Flow::Next
    }
}

/// Longest sleep in ns, as the PTX manual defines it.
const LONGEST_SLEEP: u32 = 1_000_000;
/// A sleep of less than this time, in ns, ends as soon as the other warps have run once.
const SHORTEST_SLEEP: u32 = 1_000;

/// `nanosleep` of `a` ns: runs other warps, and continues when the time is over.
pub(crate) struct Sleep;
impl Op for Sleep {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let ns = u32::src(w, i.a);
        let mut longest = 0;
        each_lane(mask, |l| longest = longest.max(ns[l]));
        if longest >= SHORTEST_SLEEP {
            w.wake = env.device.now_ns() + u64::from(longest.min(LONGEST_SLEEP));
        }
        Flow::Yield
    }
}

/// Instructions without effect here (prefetches, hints).
pub(crate) struct Nop;
impl Op for Nop {
    fn run(_: &mut Warp, _: &Env<'_>, _: &Inst, _: u32) -> Flow {
        Flow::Next
    }
}
