//! The executable form: one [`Inst`] per PTX instruction, and how its function is chosen.

use std::cell::Cell;

use super::env::Env;
use super::warp::Warp;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// "No register" in an operand field.
pub(crate) const NONE: u32 = u32::MAX;

/// Bank bits of an operand: where its column lives.
pub(crate) mod bank {
    // 0: the function's own registers.
    /// The program's constant pool (broadcast columns).
    pub(crate) const CONST: u32 = 1 << 30;
    /// Special registers of the warp.
    pub(crate) const SPECIAL: u32 = 2 << 30;
    /// Parameters of the launch (broadcast columns).
    pub(crate) const PARAM: u32 = 3 << 30;
    /// Mask of the column index.
    pub(crate) const INDEX: u32 = (1 << 30) - 1;
}

/// Negation flag of a predicate operand or guard.
pub(crate) const NEGATED: u32 = 1 << 31;

/// What the executing loop does after an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flow {
    /// Go on with the following instruction.
    Next,
    /// `warp.pc` holds the next instruction; the set of lanes is unchanged.
    Jump,
    /// The groups of the warp changed: choose again.
    Choose,
    /// Let other warps run first, then go on with the following instruction.
    Yield,
    /// A fault is in `warp.fault`.
    Fault,
}

/// The function of an instruction.
///
/// # Safety
/// The instruction's operands must be valid for the frame that is current in the warp, and the CPU
/// must have the features the function was compiled for ([`op`] sees to it).
pub(crate) type OpFn = unsafe fn(&mut Warp, &Env<'_>, &Inst, u32) -> Flow;

/// An instruction with its operands resolved to columns.
#[derive(Clone, Copy)]
pub(crate) struct Inst {
    /// What it does.
    pub(crate) run: OpFn,
    /// Guard predicate ([`NEGATED`] in the top bit) or [`NONE`].
    pub(crate) guard: u32,
    /// Destination.
    pub(crate) d: u32,
    /// First source.
    pub(crate) a: u32,
    /// Second source.
    pub(crate) b: u32,
    /// Third source.
    pub(crate) c: u32,
    /// Second destination, address, or fourth source.
    pub(crate) e: u32,
    /// Immediate: mode bits, offset, target; each operation says which.
    pub(crate) imm: u64,
}

/// An operation on a warp.
pub(crate) trait Op {
    /// Runs the instruction for the lanes in `mask` (never 0).
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow;
}

/// Runs `O` with the baseline instruction set.
///
/// # Safety
/// See [`OpFn`].
unsafe fn plain<O: Op>(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
    O::run(w, env, i, mask)
}

/// Runs `O` compiled for AVX2 and FMA: `O::run` is inlined here, so its loops over the lanes use
/// the wide registers.
///
/// # Safety
/// See [`OpFn`]; the CPU must have AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,popcnt,lzcnt,bmi1,bmi2,f16c")]
unsafe fn wide<O: Op>(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
    O::run(w, env, i, mask)
}

thread_local! {
    /// Operations that are chosen on this thread are the baseline's.
    static BASELINE: Cell<bool> = const { Cell::new(false) };
}

/// While it lives, [`op`] gives operations of the baseline instruction set on this thread.
pub(crate) struct Baseline(());

impl Baseline {
    /// For a load that wants it.
    pub(crate) fn new() -> Baseline {
        BASELINE.set(true);
        Baseline(())
    }
}

impl Drop for Baseline {
    fn drop(&mut self) {
        BASELINE.set(false);
    }
}

/// True if this CPU runs the wide operations, and they are wanted.
#[cfg(target_arch = "x86_64")]
pub(crate) fn has_wide() -> bool {
    !BASELINE.get()
        && std::is_x86_feature_detected!("avx2")
        && std::is_x86_feature_detected!("fma")
        && std::is_x86_feature_detected!("popcnt")
        && std::is_x86_feature_detected!("lzcnt")
        && std::is_x86_feature_detected!("bmi1")
        && std::is_x86_feature_detected!("bmi2")
        && std::is_x86_feature_detected!("f16c")
}

/// The function of `O` that is best on this CPU; for operations whose lanes vectorise.
#[cfg(target_arch = "x86_64")]
pub(crate) fn op<O: Op>() -> OpFn {
    if has_wide() { wide::<O> } else { plain::<O> }
}

/// The function of `O` that is best on this CPU; for operations whose lanes vectorise.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn op<O: Op>() -> OpFn {
    plain::<O>
}

/// The function of `O` where vectors do not help (control flow, one lane at a time).
pub(crate) fn op_plain<O: Op>() -> OpFn {
    plain::<O>
}
