//! Strict mode (`SOFT_GPU_STRICT=1`): a caller's mistake that our own worker should have stopped
//! aborts the process with a report, so that no bug hides behind an error code.

use std::sync::atomic::{AtomicBool, Ordering};

static STRICT: AtomicBool = AtomicBool::new(false);

/// Switches strict mode.
pub fn set(on: bool) {
    STRICT.store(on, Ordering::Relaxed);
}

/// Aborts in strict mode with a report on stderr; returns otherwise.
#[cold]
pub fn violation(what: std::fmt::Arguments<'_>) {
    if STRICT.load(Ordering::Relaxed) {
        let call = crate::capi::current_call();
        eprintln!("soft-gpu: strict mode: {what} in {call}");
        eprintln!("soft-gpu: the caller should have stopped this; aborting (SOFT_GPU_STRICT=1)");
        std::process::abort();
    }
}
