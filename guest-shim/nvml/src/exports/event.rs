//! Event sets. No event ever occurs; tools create a set and accept that the set stays empty.

use std::ffi::{c_uint, c_void};
use std::time::Duration;

use crate::ffi::{Code, exports, put};
use crate::state;

/// The object to which every handle of an event set points.
static SET: u8 = 0;

exports! {
    /// Creates an empty set.
    fn nvmlEventSetCreate(set: *mut *const c_void) {
        state::looked()?;
        // SAFETY: by the contract of the function.
        unsafe { put(set, (&raw const SET).cast()) }
    }

    /// Has no effect.
    fn nvmlEventSetFree(_set: *const c_void) {
        state::looked().map(|_| ())
    }

    /// Waits until the timeout, because no event ever occurs.
    fn nvmlEventSetWait / nvmlEventSetWait_v2 (_set: *const c_void, _data: *mut c_void, timeout_ms: c_uint) {
        state::looked()?;
        std::thread::sleep(Duration::from_millis(timeout_ms.into()));
        Err(Code::TIMEOUT)
    }
}
