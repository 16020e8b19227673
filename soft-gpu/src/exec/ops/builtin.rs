//! Functions that the device provides: `vprintf`, `__assertfail`, `malloc` and `free`.

use super::family::each_lane;
use super::memory::{illegal, place};
use crate::exec::contract::Fault;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, Op};
use crate::exec::lane_memory::LaneMemory;
use crate::exec::printf;
use crate::exec::runtime::call::{BYTES_AN_INSTRUCTION, COST};
use crate::exec::special;
use crate::exec::warp::Warp;

/// A built-in function. The immediate of the instruction holds the discriminant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Builtin {
    /// `int vprintf(const char *format, void *args)`.
    Printf,
    /// `void __assertfail(message, file, line, function, char size)`.
    AssertFail,
    /// `void *malloc(size_t)`.
    Malloc,
    /// `void free(void *)`.
    Free,
}

impl Builtin {
    /// Finds a built-in by its name in PTX.
    pub(crate) fn find(name: &str) -> Option<Builtin> {
        Some(match name {
            "vprintf" => Builtin::Printf,
            "__assertfail" => Builtin::AssertFail,
            "malloc" => Builtin::Malloc,
            "free" => Builtin::Free,
            _ => return None,
        })
    }

    /// Number of arguments and results.
    pub(crate) fn arity(self) -> (usize, usize) {
        match self {
            Builtin::Printf => (2, 1),
            Builtin::AssertFail => (5, 0),
            Builtin::Malloc => (1, 1),
            Builtin::Free => (1, 0),
        }
    }
}

/// Calls built-in `a` at call site `imm`.
pub(crate) struct CallBuiltin;
impl Op for CallBuiltin {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let allocates = i.a == Builtin::Malloc as u32 || i.a == Builtin::Free as u32;
        let done = match i.a {
            x if x == Builtin::Printf as u32 => print(w, env, i, mask),
            x if x == Builtin::AssertFail as u32 => assert_fail(w, env, i, mask),
            x if x == Builtin::Malloc as u32 => {
                let site = &env.program.calls[i.imm as usize];
                each_lane(mask, |l| {
                    let bytes = w.get(&site.args[0], l);
                    let p = env.device.malloc(bytes);
                    if p != 0 {
                        w.charge += bytes / BYTES_AN_INSTRUCTION;
                    }
                    w.set(&site.rets[0], l, p);
                });
                Ok(())
            }
            _ => free(w, env, i, mask),
        };
        match done {
            Ok(()) if w.fault.is_none() && allocates => {
                w.charge += COST * u64::from(mask.count_ones());
                Flow::Yield
            }
            Ok(()) if w.fault.is_none() => Flow::Next,
            Ok(()) => Flow::Fault,
            Err(addr) if i.a == Builtin::Free as u32 => {
                let text = format!(
                    "free of {addr:#x}, which device-side malloc did not return or which is freed already; {}",
                    place(w, env)
                );
                w.fault = Some(Fault::IllegalAddress(text));
                Flow::Fault
            }
            Err(addr) => {
                illegal(w, env, addr, 1);
                Flow::Fault
            }
        }
    }
}

fn free(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Result<(), u64> {
    let site = &env.program.calls[i.imm as usize];
    let mut bad = None;
    each_lane(mask, |l| {
        let p = w.get(&site.args[0], l);
        if p != 0 && bad.is_none() && !env.device.free(p) {
            bad = Some(p);
        }
    });
    bad.map_or(Ok(()), Err)
}

fn print(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Result<(), u64> {
    let site = &env.program.calls[i.imm as usize];
    let mut out = Vec::new();
    let mut failed = None;
    let mut counts = [0u64; 32];
    each_lane(mask, |l| {
        if failed.is_some() {
            return;
        }
        let (format, args) = (w.get(&site.args[0], l), w.get(&site.args[1], l));
        let mem = LaneMemory::new(w, env, l);
        let done = mem
            .text(format)
            .and_then(|f| printf::format(&f, args, &mem, &mut out));
        match done {
            Ok(n) => counts[l] = u64::from(n),
            Err(addr) => failed = Some(addr),
        }
    });
    if !out.is_empty() {
        env.device.print(&out);
    }
    if let Some(ret) = site.rets.first() {
        each_lane(mask, |l| w.set(ret, l, counts[l]));
    }
    failed.map_or(Ok(()), Err)
}

fn assert_fail(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Result<(), u64> {
    let site = &env.program.calls[i.imm as usize];
    let [bx, by, bz] = env.block;
    let mut all = String::new();
    let mut failed = None;
    each_lane(mask, |l| {
        let mem = LaneMemory::new(w, env, l);
        let text = |k: usize| {
            mem.text(w.get(&site.args[k], l))
                .map(|t| String::from_utf8_lossy(&t).into_owned())
        };
        let tid = |d: u32| w.spec32[(special::TID + d) as usize].0[l];
        let line = w.get(&site.args[2], l) as u32;
        match (text(0), text(1), text(3)) {
            (Ok(expr), Ok(file), Ok(func)) => all.push_str(&format!(
                "{file}:{line}: {func}: block: [{bx},{by},{bz}], thread: [{},{},{}] Assertion `{expr}` failed.\n",
                tid(0), tid(1), tid(2)
            )),
            (Err(a), ..) | (_, Err(a), _) | (.., Err(a)) => failed = Some(a),
        }
    });
    if let Some(addr) = failed {
        return Err(addr);
    }
    env.device.print(all.as_bytes());
    w.fault = Some(Fault::Assert(all.trim_end().to_string()));
    Ok(())
}
