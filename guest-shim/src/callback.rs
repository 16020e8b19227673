//! Callbacks of the program, in which CUDA calls are not allowed.

use std::cell::Cell;

thread_local!(static HERE: Cell<bool> = const { Cell::new(false) });

/// Identifies the calling thread by the address of a thread-local value. The flag says whether the
/// thread is in a callback, in which CUDA calls are not allowed.
pub(crate) fn this_thread() -> (usize, bool) {
    HERE.try_with(|here| (std::ptr::from_ref(here) as usize, here.get()))
        .unwrap_or_default()
}

/// Runs a callback of the program in which CUDA calls are not allowed.
pub(crate) fn without_calls(run: impl FnOnce()) {
    let forbid = |forbidden| {
        HERE.try_with(|here| here.replace(forbidden))
            .unwrap_or_default()
    };
    let before = forbid(true);
    run();
    forbid(before);
}
