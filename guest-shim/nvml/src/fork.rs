//! Forks: a child goes on with what nvmlInit gave its parent and with its handles, as with NVIDIA's library. It waits for
//! no thread of the parent's.

use std::cell::Cell;
use std::mem::ManuallyDrop;
use std::sync::MutexGuard;

use crate::state::{self, State};

thread_local! {
    /// The state's lock, held across a fork so that no other thread has it then: only the thread that forks is in the
    /// child. Without a destructor, so that a thread that ends may fork as well.
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

// SAFETY: the loader calls the functions in this array with C's calling convention when it maps the library.
#[used]
#[unsafe(link_section = ".init_array")]
static ON_LOAD: extern "C" fn() = on_load;
