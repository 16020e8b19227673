//! The state that calls use. There is none before cuInit, after a fork and when the process ends.
//!
//! A state that exists is never freed. The module `process` sets the pointer and the phase.

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU8, Ordering};

use vgpu_cuda_abi::CuResult;

use super::Shim;
use crate::{Cu, log};

/// cuInit was not called yet.
pub(crate) const BEFORE: u8 = 0;
/// cuInit has succeeded.
pub(crate) const READY: u8 = 1;
/// In the child of a fork.
pub(crate) const FORKED: u8 = 2;
/// The process ends.
pub(crate) const EXITING: u8 = 3;

/// The phase of the process.
pub(crate) static PHASE: AtomicU8 = AtomicU8::new(BEFORE);
/// Null outside a session. Otherwise, the pointer comes from a leaked box, which is never freed.
pub(crate) static SHIM: AtomicPtr<Shim> = AtomicPtr::new(std::ptr::null_mut());

/// The state of the library, if cuInit has succeeded and the session has not ended.
///
/// # Errors
/// CUDA_ERROR_NOT_INITIALIZED, CUDA_ERROR_DEINITIALIZED, or the reason for which the session ended.
#[inline]
pub(crate) fn shim() -> Cu<&'static Shim> {
    let shim = SHIM.load(Ordering::Acquire);
    if shim.is_null() {
        return Err(no_shim());
    }
    // SAFETY: the pointer comes from a leaked box and is never freed.
    let shim: &'static Shim = unsafe { &*shim };
    shim.session.not_ended()?;
    Ok(shim)
}

/// The result code of a call while there is no state.
#[cold]
pub(crate) fn no_shim() -> CuResult {
    static SAID: AtomicBool = AtomicBool::new(false);
    match PHASE.load(Ordering::Acquire) {
        EXITING => CuResult::DEINITIALIZED,
        FORKED => {
            let text = "this process was forked after cuInit, and CUDA serves only the parent: fork before the first CUDA \
                        call, or spawn the process (fork and exec) [CUDA_ERROR_NOT_INITIALIZED]";
            log::once_in_child(&SAID, text);
            CuResult::NOT_INITIALIZED
        }
        _ => CuResult::NOT_INITIALIZED,
    }
}

/// As [`shim`], but also fails if a device fault has poisoned the session.
///
/// # Errors
/// As [`shim`]; also the code of the device fault.
#[inline]
pub(crate) fn live() -> Cu<&'static Shim> {
    let shim = shim()?;
    shim.session.usable()?;
    Ok(shim)
}
