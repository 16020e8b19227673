//! The sticky error: after a device fault, every later call of the process returns it, as on
//! hardware.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use vgpu_cuda_abi::CuResult;
use vgpu_cudart::logs;

use super::error::Result;
use super::stderr::say;

static STICKY: AtomicU32 = AtomicU32::new(0);

/// Whether a fault has happened: the first thread to set this describes its fault.
static FAULTED: AtomicBool = AtomicBool::new(false);

/// Poisons the process with `code`; writes `why` to stderr and to the log of `cuLogs…`. Only the
/// first fault counts.
pub fn poison(code: CuResult, why: &str) {
    if FAULTED.swap(true, Ordering::SeqCst) {
        return;
    }
    say!("device fault: {code}: {why}");
    logs::say(why, |call| call());
    // Last, so that the log has the description as soon as a call returns the error.
    STICKY.store(code.0, Ordering::SeqCst);
}

/// The sticky error, if any.
pub fn sticky() -> Option<CuResult> {
    match STICKY.load(Ordering::Acquire) {
        0 => None,
        code => Some(CuResult(code)),
    }
}

/// Fails if the process is poisoned.
///
/// # Errors
/// The sticky error.
pub fn check() -> Result {
    sticky().map_or(Ok(()), Err)
}
