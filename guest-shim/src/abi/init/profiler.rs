//! Control of a profiler, which does not exist here.

use std::ffi::c_uint;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Text;

use crate::ffi::exports;
use crate::state::current::live;

exports! {
    /// Always an error, as since CUDA 12, also before cuInit: profilers attach by themselves.
    fn cuProfilerInitialize(_config: Text, _output: Text, _mode: c_uint) {
        Err(CuResult::NOT_SUPPORTED)
    }

    /// Has no effect.
    fn cuProfilerStart() {
        live()?.contexts.current().map(|_| ())
    }

    /// Has no effect.
    fn cuProfilerStop() {
        live()?.contexts.current().map(|_| ())
    }
}
