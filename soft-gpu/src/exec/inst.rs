//! The executable form: one [`Inst`] for most PTX instructions, and the choice of its function.

use std::cell::Cell;

use super::env::Env;
use super::warp::Warp;

/// Lanes of a warp.
pub(crate) const LANES: usize = 32;

/// Value of an operand field that names no register.
pub(crate) const NONE: u32 = u32::MAX;

/// Upper two bits of an operand: the bank of the operand's column.
pub(crate) mod bank {
    // Bank 0: registers of the function.
    /// Constant pool of the program (broadcast columns).
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

/// The next step of the executing loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Flow {
    /// Continue with the following instruction.
    Next,
    /// Continue at `warp.pc`; the set of lanes is unchanged.
    Jump,
    /// The groups of the warp changed: choose a group.
    Choose,
    /// Runs other warps, then continues with the following instruction.
    Yield,
    /// `warp.fault` holds a fault.
    Fault,
}

/// The function that runs an instruction.
///
/// # Safety
/// The operands of the instruction must be valid for the current frame of the warp. The CPU must
/// have the features for which the function was compiled; [`op`] guarantees that.
pub(crate) type OpFn = unsafe fn(&mut Warp, &Env<'_>, &Inst, u32) -> Flow;

/// An instruction with its operands resolved to columns.
#[derive(Clone, Copy)]
pub(crate) struct Inst {
    /// Function of the instruction.
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
    /// Immediate: mode bits, offset or target, as the operation defines.
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

/// Runs `O` compiled for AVX2 and FMA. `O::run` is inlined here, so that the compiler uses vector
/// instructions for its loops over the lanes.
///
/// # Safety
/// See [`OpFn`]; the CPU must have AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,popcnt,lzcnt,bmi1,bmi2,f16c")]
unsafe fn wide<O: Op>(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
    O::run(w, env, i, mask)
}

thread_local! {
    /// Whether operations that this thread chooses use the baseline instruction set.
    static BASELINE: Cell<bool> = const { Cell::new(false) };
}

/// While a value of this type exists, [`op`] returns operations of the baseline instruction set on
/// this thread.
pub(crate) struct Baseline(());

impl Baseline {
    /// Starts the use of the baseline instruction set.
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

/// Whether this CPU can run the AVX2 operations, and the load does not ask for the baseline.
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

/// The best function of `O` on this CPU, for operations whose loops over lanes vectorise.
#[cfg(target_arch = "x86_64")]
pub(crate) fn op<O: Op>() -> OpFn {
    if has_wide() { wide::<O> } else { plain::<O> }
}

/// The best function of `O` on this CPU, for operations whose loops over lanes vectorise.
#[cfg(not(target_arch = "x86_64"))]
pub(crate) fn op<O: Op>() -> OpFn {
    plain::<O>
}

/// The function of `O`, for operations that do not vectorise: control flow, or lane after lane.
pub(crate) fn op_plain<O: Op>() -> OpFn {
    plain::<O>
}
