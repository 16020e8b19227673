//! Handlers of `fork`. As with NVIDIA's library, a child keeps the initialisation and the handles
//! of its parent. The child never waits for a thread of the parent.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;

use crate::state::{self, State};

thread_local! {
    /// The guard of the state's lock. The forking thread holds the lock during the fork: if another
    /// thread held it, the lock would stay locked in the child, where only the forking thread
    /// exists. `ManuallyDrop`, so that the variable has no destructor and a thread may fork even
    /// while it ends.
    static HELD: Cell<Option<ManuallyDrop<MutexGuard<'static, State>>>> = const { Cell::new(None) };
}

extern "C" fn before_fork() {
    HELD.set(Some(ManuallyDrop::new(state::lock())));
}

extern "C" fn after_fork_in_parent() {
    HELD.take().map(ManuallyDrop::into_inner);
}

extern "C" fn after_fork_in_child() {
    if let Some(mut state) = HELD.take().map(ManuallyDrop::into_inner) {
        state.forked();
    }
}

extern "C" fn on_load() {
    // SAFETY: the handlers are functions of this library, which is never unmapped (-z nodelete).
    unsafe {
        libc::pthread_atfork(
            Some(before_fork),
            Some(after_fork_in_parent),
            Some(after_fork_in_child),
        );
    }
}

// SAFETY: the loader calls the functions in this array with C's calling convention when it maps the
// library.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;
