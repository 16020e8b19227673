//! Managed memory: refused.
//!
//! It is one address range that host and device both reach, kept coherent page by page by a driver that
//! sits on both. Between two machines there is none. The functions are found, so that a program learns
//! why it cannot go on instead of crashing on a function that it did not check for.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use vgpu_proto::cuda::CuResult;

use crate::ffi::exports;
use crate::process::live;
use crate::{Cu, log};

exports! {
    /// Refused.
    fn cuMemAllocManaged(_out: *mut u64, _size: usize, _flags: u32) {
        refuse()
    }

    /// Refused.
    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz [_mode] (
        _stream: u64,
        _address: u64,
        _length: usize,
        _flags: u32
    ) {
        refuse()
    }

    /// Refused.
    fn cuMemPrefetchAsync / cuMemPrefetchAsync_ptsz [_mode] (
        _address: u64,
        _count: usize,
        _device: c_int,
        _stream: u64
    ) {
        refuse()
    }

    /// Refused.
    fn cuMemAdvise(_address: u64, _count: usize, _advice: u32, _device: c_int) {
        refuse()
    }

    /// Refused.
    fn cuMemRangeGetAttribute(
        _data: *mut c_void,
        _size: usize,
        _attribute: u32,
        _address: u64,
        _count: usize
    ) {
        refuse()
    }

    /// Page-locked memory of a guest has no device address.
    fn cuMemHostGetDevicePointer_v2(_out: *mut u64, _host: *mut c_void, _flags: u32) {
        live()?;
        say_once(
            &MAPPED,
            "kernels cannot reach page-locked memory of this program \
             (cuMemHostGetDevicePointer: CUDA_ERROR_NOT_SUPPORTED); copy to device memory",
        );
        Err(CuResult::NOT_SUPPORTED)
    }
}

static MANAGED: AtomicBool = AtomicBool::new(false);
static MAPPED: AtomicBool = AtomicBool::new(false);

fn refuse() -> Cu {
    live()?;
    say_once(
        &MANAGED,
        "managed memory is not served (CUDA_ERROR_NOT_SUPPORTED); \
         use cuMemAlloc or cuMemAllocAsync, and copies",
    );
    Err(CuResult::NOT_SUPPORTED)
}

fn say_once(said: &AtomicBool, text: &str) {
    if !said.swap(true, Ordering::Relaxed) {
        log::line(log::Level::Error, text);
    }
}
