//! Copies.

use vgpu_cuda_abi::args::{DefaultStream, In, StreamArg};
use vgpu_cuda_abi::structs::{Copy2D, Copy3D};

use crate::capi::StreamOf as _;
use crate::driver::context;
use crate::driver::copy::{Mode, Side, copy};
use crate::driver::error::Result;
use crate::driver::transfer::flat;

/// Copies in the NULL stream, and waits.
pub(super) fn now(c: &Copy3D, default: DefaultStream) -> Result {
    copy(c, Mode::Sync, &StreamArg::DEFAULT.get(default)?)
}

/// Appends a copy to a stream.
pub(super) fn later(c: &Copy3D, stream: StreamArg, default: DefaultStream) -> Result {
    copy(c, Mode::Async, &stream.get(default)?)
}

/// The copy that a CUDA_MEMCPY3D_PEER describes; `None` for an empty copy. The structure has its
/// two contexts in words that CUDA_MEMCPY3D reserves.
fn peers(c: In<Copy3D>) -> Result<Option<Copy3D>> {
    let c = c.get()?;
    if c.width == 0 || c.height == 0 || c.depth == 0 {
        return Ok(None);
    }
    context::get(c.src.context)?;
    context::get(c.dst.context)?;
    Ok(Some(c))
}

exports! {
    fn cuMemcpy / cuMemcpy_ptds [default] (dst: u64, src: u64, bytes: usize) {
        now(&flat((Side::Unified, dst), (Side::Unified, src), bytes), default)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        later(&flat((Side::Unified, dst), (Side::Unified, src), bytes), stream, default)
    }

    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds [default] (dst: u64, src: u64, bytes: usize) {
        now(&flat((Side::Device, dst), (Side::Host, src), bytes), default)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        later(&flat((Side::Device, dst), (Side::Host, src), bytes), stream, default)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds [default] (dst: u64, src: u64, bytes: usize) {
        now(&flat((Side::Host, dst), (Side::Device, src), bytes), default)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        later(&flat((Side::Host, dst), (Side::Device, src), bytes), stream, default)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds [default] (dst: u64, src: u64, bytes: usize) {
        now(&flat((Side::Device, dst), (Side::Device, src), bytes), default)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        later(&flat((Side::Device, dst), (Side::Device, src), bytes), stream, default)
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds [default] (dst: u64, to: u64, src: u64, from: u64, bytes: usize) {
        context::get(to)?;
        context::get(from)?;
        now(&flat((Side::Device, dst), (Side::Device, src), bytes), default)
    }

    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz [default] (dst: u64, to: u64, src: u64, from: u64, bytes: usize, stream: StreamArg) {
        context::get(to)?;
        context::get(from)?;
        later(&flat((Side::Device, dst), (Side::Device, src), bytes), stream, default)
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds [default] (copy: In<Copy2D>) {
        now(&copy.get()?.into(), default)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds [default] (copy: In<Copy2D>) {
        now(&copy.get()?.into(), default)
    }

    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz [default] (copy: In<Copy2D>, stream: StreamArg) {
        later(&copy.get()?.into(), stream, default)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds [default] (copy: In<Copy3D>) {
        now(&copy.get()?, default)
    }

    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz [default] (copy: In<Copy3D>, stream: StreamArg) {
        later(&copy.get()?, stream, default)
    }

    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds [default] (copy: In<Copy3D>) {
        peers(copy)?.map_or(Ok(()), |c| now(&c, default))
    }

    fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz [default] (copy: In<Copy3D>, stream: StreamArg) {
        peers(copy)?.map_or(Ok(()), |c| later(&c, stream, default))
    }
}
