//! Sets of events. There are none to wait for; tools make a set and are content with an empty one.

use std::ffi::{c_uint, c_void};
use std::time::Duration;

use crate::ffi::{Code, exports, put};
use crate::state;

/// What every handle of a set points to.
static SET: u8 = 0;

exports! {
    /// An empty set.
    fn nvmlEventSetCreate(set: *mut *const c_void) {
        state::looked()?;
        // SAFETY: by the contract of the function.
        unsafe { put(set, (&raw const SET).cast()) }
    }

    /// Nothing is to be freed.
    fn nvmlEventSetFree(_set: *const c_void) {
        state::looked().map(|_| ())
    }

    /// Nothing happens in the caller's time.
    fn nvmlEventSetWait / nvmlEventSetWait_v2 (_set: *const c_void, _data: *mut c_void, timeout_ms: c_uint) {
        state::looked()?;
        std::thread::sleep(Duration::from_millis(timeout_ms.into()));
        Err(Code::TIMEOUT)
    }
}
