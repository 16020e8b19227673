//! The sticky error: after a device fault, every later call of the process returns it, as on
//! hardware.

use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_cuda_abi::CuResult;
use vgpu_cudart::logs;

use super::error::Result;

static STICKY: AtomicU32 = AtomicU32::new(0);

/// Poisons the process with `code`; writes `why` to stderr and to the log of `cuLogs…`. Only the
/// first fault counts.
pub fn poison(code: CuResult, why: &str) {
    if STICKY
        .compare_exchange(0, code.0, Ordering::SeqCst, Ordering::SeqCst)
        .is_ok()
    {
        eprintln!("soft-gpu: device fault: {code}: {why}");
        logs::say(why, |call| call());
    }
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
