//! Callbacks of the program that may make no CUDA calls.

use std::cell::Cell;

thread_local!(static HERE: Cell<bool> = const { Cell::new(false) });

/// A number for the calling thread, which is the address of a thread-local value; and whether the
/// thread may not make calls.
pub(crate) fn this_thread() -> (usize, bool) {
    HERE.try_with(|here| (std::ptr::from_ref(here) as usize, here.get()))
        .unwrap_or_default()
}

/// Runs code of the program that may make no CUDA calls.
pub(crate) fn without_calls(run: impl FnOnce()) {
    let forbid = |forbidden| {
        HERE.try_with(|here| here.replace(forbidden))
            .unwrap_or_default()
    };
    let before = forbid(true);
    run();
    forbid(before);
}
