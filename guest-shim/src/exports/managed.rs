//! Managed memory: refused.
//!
//! It is one address range that host and device both reach, kept coherent page by page by a driver that
//! sits on both. Between two machines there is none. The functions are found, so that a program learns
//! why it cannot go on instead of crashing on a function that it did not check for.

use std::ffi::{c_int, c_void};
use std::sync::atomic::AtomicBool;

use vgpu_proto::cuda::CuResult;

use super::refused::say_once;
use crate::Cu;
use crate::ffi::exports;
use crate::process::live;

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

    /// Refused. (A place in its structure travels as one word.)
    fn cuMemAdvise_v2(_address: u64, _count: usize, _advice: u32, _place: u64) {
        refuse()
    }

    /// Refused.
    fn cuMemPrefetchAsync_v2 / cuMemPrefetchAsync_v2_ptsz [_mode] (
        _address: u64,
        _count: usize,
        _place: u64,
        _flags: u32,
        _stream: u64
    ) {
        refuse()
    }

    /// Refused.
    fn cuMemPrefetchBatchAsync / cuMemPrefetchBatchAsync_ptsz [_mode] (
        _addresses: *const u64,
        _sizes: *const usize,
        _count: usize,
        _places: *const c_void,
        _from: *const usize,
        _kinds: usize,
        _flags: u64,
        _stream: u64
    ) {
        refuse()
    }

    /// Refused.
    fn cuMemDiscardBatchAsync / cuMemDiscardBatchAsync_ptsz [_mode] (
        _addresses: *const u64,
        _sizes: *const usize,
        _count: usize,
        _flags: u64,
        _stream: u64
    ) {
        refuse()
    }

    /// Refused.
    fn cuMemDiscardAndPrefetchBatchAsync / cuMemDiscardAndPrefetchBatchAsync_ptsz [_mode] (
        _addresses: *const u64,
        _sizes: *const usize,
        _count: usize,
        _places: *const c_void,
        _from: *const usize,
        _kinds: usize,
        _flags: u64,
        _stream: u64
    ) {
        refuse()
    }

    /// Refused.
    fn cuMemRangeGetAttributes(
        _data: *mut *mut c_void,
        _sizes: *const usize,
        _attributes: *const u32,
        _number: usize,
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
