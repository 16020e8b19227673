//! Switches of a profiler that is not there.

use std::ffi::{c_char, c_uint};

use crate::ffi::exports;
use crate::process::live;

exports! {
    /// Nothing to set up.
    fn cuProfilerInitialize(_config: *const c_char, _output: *const c_char, _mode: c_uint) {
        live().map(|_| ())
    }

    /// Nothing to start.
    fn cuProfilerStart() {
        live()?.contexts.current().map(|_| ())
    }

    /// Nothing to stop.
    fn cuProfilerStop() {
        live()?.contexts.current().map(|_| ())
    }
}
