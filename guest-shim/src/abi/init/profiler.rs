//! Switches of a profiler that is not there.

use std::ffi::c_uint;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Text;

use crate::ffi::exports;
use crate::process::live;

exports! {
    /// As of CUDA 12, also before cuInit: profilers attach by themselves.
    fn cuProfilerInitialize(_config: Text, _output: Text, _mode: c_uint) {
        Err(CuResult::NOT_SUPPORTED)
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
