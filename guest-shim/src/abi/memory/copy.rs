//! Copies of bytes.

use std::ffi::c_void;

use crate::ffi::exports;
use crate::ops::copy::{any, peer, to_device, to_host, within, within_settled};
use crate::state::current::live;
use crate::state::streams::resolve;

exports! {
    /// Copies between any memories; the addresses determine the direction.
    fn cuMemcpy / cuMemcpy_ptds [mode] (dst: u64, src: u64, len: usize) {
        let shim = live()?;
        any(shim, &resolve(shim, 0, mode)?, dst, src, len, true)
    }

    /// Copies between any memories, in a stream; the addresses determine the direction.
    fn cuMemcpyAsync / cuMemcpyAsync_ptsz [mode] (dst: u64, src: u64, len: usize, stream: u64) {
        let shim = live()?;
        any(shim, &resolve(shim, stream, mode)?, dst, src, len, false)
    }

    /// Copies from host to device.
    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds [mode] (dst: u64, src: *const c_void, len: usize) {
        let shim = live()?;
        to_device(shim, &resolve(shim, 0, mode)?, dst, src as u64, len, true)
    }

    /// Copies from host to device, in a stream.
    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz [mode] (
        dst: u64,
        src: *const c_void,
        len: usize,
        stream: u64
    ) {
        let shim = live()?;
        to_device(shim, &resolve(shim, stream, mode)?, dst, src as u64, len, false)
    }

    /// Copies from device to host.
    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds [mode] (dst: *mut c_void, src: u64, len: usize) {
        let shim = live()?;
        to_host(shim, &resolve(shim, 0, mode)?, dst as u64, src, len, true)
    }

    /// Copies from device to host, in a stream.
    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz [mode] (
        dst: *mut c_void,
        src: u64,
        len: usize,
        stream: u64
    ) {
        let shim = live()?;
        to_host(shim, &resolve(shim, stream, mode)?, dst as u64, src, len, false)
    }

    /// Copies within the device. Asynchronous despite the name, as in CUDA, except of memory with
    /// SYNC_MEMOPS and of memory that the program also reaches.
    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds [mode] (dst: u64, src: u64, len: usize) {
        let shim = live()?;
        within_settled(shim, &resolve(shim, 0, mode)?, dst, src, len)
    }

    /// Copies between contexts. Between two devices, the bytes go through the program's memory.
    fn cuMemcpyPeer / cuMemcpyPeer_ptds [mode] (dst: u64, to: u64, src: u64, from: u64, len: usize) {
        let shim = live()?;
        peer(shim, &resolve(shim, 0, mode)?, (dst, to), (src, from), len)
    }

    /// Copies between contexts, in a stream.
    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz [mode] (
        dst: u64,
        to: u64,
        src: u64,
        from: u64,
        len: usize,
        stream: u64
    ) {
        let shim = live()?;
        peer(shim, &resolve(shim, stream, mode)?, (dst, to), (src, from), len)
    }

    /// Copies within the device, in a stream.
    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz [mode] (
        dst: u64,
        src: u64,
        len: usize,
        stream: u64
    ) {
        let shim = live()?;
        within(shim, &resolve(shim, stream, mode)?, dst, src, len)
    }
}
