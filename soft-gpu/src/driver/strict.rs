//! Strict mode (`SOFT_GPU_STRICT=1`): an invalid call that vgpu-worker should have refused aborts
//! the process with a report, so that no bug hides behind an error code.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

use super::stderr::say;

static STRICT: AtomicBool = AtomicBool::new(false);

thread_local! {
    static CALL: Cell<&'static str> = const { Cell::new("no call") };
}

/// Switches strict mode on or off.
pub fn set(on: bool) {
    STRICT.store(on, Ordering::Relaxed);
}

/// Records the entry point that this thread runs now, for the report.
#[inline]
pub fn enter(name: &'static str) {
    CALL.set(name);
}

/// In strict mode: writes a report to stderr and aborts. Otherwise returns.
#[cold]
pub fn violation(what: std::fmt::Arguments<'_>) {
    if STRICT.load(Ordering::Relaxed) {
        let call = CALL.get();
        say!("strict mode: {what} in {call}");
        say!("the caller should have stopped this; aborting (SOFT_GPU_STRICT=1)");
        std::process::abort();
    }
}
