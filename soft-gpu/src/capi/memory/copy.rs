//! Copies.

use vgpu_cuda_abi::args::{DefaultStream, In, StreamArg};
use vgpu_cuda_abi::structs::{Copy2D, Copy3D};

use crate::capi::StreamOf as _;
use crate::driver::context;
use crate::driver::copy::{Mode, Side, copy};
use crate::driver::error::Result;
use crate::driver::transfer;

fn flat(
    dst: (Side, u64),
    src: (Side, u64),
    bytes: usize,
    mode: Mode,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    let stream = stream.get(default)?;
    copy(&transfer::flat(dst, src, bytes), mode, &stream)
}

const NULL: StreamArg = StreamArg::DEFAULT;

fn unified(dst: u64, src: u64, bytes: usize, default: DefaultStream) -> Result {
    flat(
        (Side::Unified, dst),
        (Side::Unified, src),
        bytes,
        Mode::Sync,
        NULL,
        default,
    )
}

fn unified_async(
    dst: u64,
    src: u64,
    bytes: usize,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    flat(
        (Side::Unified, dst),
        (Side::Unified, src),
        bytes,
        Mode::Async,
        stream,
        default,
    )
}

fn htod(dst: u64, src: u64, bytes: usize, default: DefaultStream) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Host, src),
        bytes,
        Mode::Sync,
        NULL,
        default,
    )
}

fn htod_async(
    dst: u64,
    src: u64,
    bytes: usize,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Host, src),
        bytes,
        Mode::Async,
        stream,
        default,
    )
}

fn dtoh(dst: u64, src: u64, bytes: usize, default: DefaultStream) -> Result {
    flat(
        (Side::Host, dst),
        (Side::Device, src),
        bytes,
        Mode::Sync,
        NULL,
        default,
    )
}

fn dtoh_async(
    dst: u64,
    src: u64,
    bytes: usize,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    flat(
        (Side::Host, dst),
        (Side::Device, src),
        bytes,
        Mode::Async,
        stream,
        default,
    )
}

fn dtod(dst: u64, src: u64, bytes: usize, default: DefaultStream) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Device, src),
        bytes,
        Mode::Sync,
        NULL,
        default,
    )
}

fn dtod_async(
    dst: u64,
    src: u64,
    bytes: usize,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Device, src),
        bytes,
        Mode::Async,
        stream,
        default,
    )
}

fn peer(dst: u64, to: u64, src: u64, from: u64, bytes: usize, default: DefaultStream) -> Result {
    context::get(to)?;
    context::get(from)?;
    dtod(dst, src, bytes, default)
}

fn peer_async(
    dst: u64,
    to: u64,
    src: u64,
    from: u64,
    bytes: usize,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    context::get(to)?;
    context::get(from)?;
    dtod_async(dst, src, bytes, stream, default)
}

fn copy3(c: &Copy3D, mode: Mode, stream: StreamArg, default: DefaultStream) -> Result {
    copy(c, mode, &stream.get(default)?)
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

fn three_peer(c: In<Copy3D>, default: DefaultStream) -> Result {
    peers(c)?.map_or(Ok(()), |c| copy3(&c, Mode::Sync, NULL, default))
}

fn three_peer_async(c: In<Copy3D>, stream: StreamArg, default: DefaultStream) -> Result {
    peers(c)?.map_or(Ok(()), |c| copy3(&c, Mode::Async, stream, default))
}

fn two(c: In<Copy2D>, default: DefaultStream) -> Result {
    copy3(&c.get()?.into(), Mode::Sync, NULL, default)
}

fn two_async(c: In<Copy2D>, stream: StreamArg, default: DefaultStream) -> Result {
    copy3(&c.get()?.into(), Mode::Async, stream, default)
}

fn three(c: In<Copy3D>, default: DefaultStream) -> Result {
    copy3(&c.get()?, Mode::Sync, NULL, default)
}

fn three_async(c: In<Copy3D>, stream: StreamArg, default: DefaultStream) -> Result {
    copy3(&c.get()?, Mode::Async, stream, default)
}

exports! {
    fn cuMemcpy / cuMemcpy_ptds [default] (dst: u64, src: u64, bytes: usize) {
        unified(dst, src, bytes, default)
    }

    fn cuMemcpyAsync / cuMemcpyAsync_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        unified_async(dst, src, bytes, stream, default)
    }

    fn cuMemcpyHtoD_v2 / cuMemcpyHtoD_v2_ptds [default] (dst: u64, src: u64, bytes: usize) {
        htod(dst, src, bytes, default)
    }

    fn cuMemcpyHtoDAsync_v2 / cuMemcpyHtoDAsync_v2_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        htod_async(dst, src, bytes, stream, default)
    }

    fn cuMemcpyDtoH_v2 / cuMemcpyDtoH_v2_ptds [default] (dst: u64, src: u64, bytes: usize) {
        dtoh(dst, src, bytes, default)
    }

    fn cuMemcpyDtoHAsync_v2 / cuMemcpyDtoHAsync_v2_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        dtoh_async(dst, src, bytes, stream, default)
    }

    fn cuMemcpyDtoD_v2 / cuMemcpyDtoD_v2_ptds [default] (dst: u64, src: u64, bytes: usize) {
        dtod(dst, src, bytes, default)
    }

    fn cuMemcpyDtoDAsync_v2 / cuMemcpyDtoDAsync_v2_ptsz [default] (dst: u64, src: u64, bytes: usize, stream: StreamArg) {
        dtod_async(dst, src, bytes, stream, default)
    }

    fn cuMemcpyPeer / cuMemcpyPeer_ptds [default] (dst: u64, to: u64, src: u64, from: u64, bytes: usize) {
        peer(dst, to, src, from, bytes, default)
    }

    fn cuMemcpyPeerAsync / cuMemcpyPeerAsync_ptsz [default] (dst: u64, to: u64, src: u64, from: u64, bytes: usize, stream: StreamArg) {
        peer_async(dst, to, src, from, bytes, stream, default)
    }

    fn cuMemcpy2D_v2 / cuMemcpy2D_v2_ptds [default] (copy: In<Copy2D>) {
        two(copy, default)
    }

    fn cuMemcpy2DUnaligned_v2 / cuMemcpy2DUnaligned_v2_ptds [default] (copy: In<Copy2D>) {
        two(copy, default)
    }

    fn cuMemcpy2DAsync_v2 / cuMemcpy2DAsync_v2_ptsz [default] (copy: In<Copy2D>, stream: StreamArg) {
        two_async(copy, stream, default)
    }

    fn cuMemcpy3D_v2 / cuMemcpy3D_v2_ptds [default] (copy: In<Copy3D>) {
        three(copy, default)
    }

    fn cuMemcpy3DAsync_v2 / cuMemcpy3DAsync_v2_ptsz [default] (copy: In<Copy3D>, stream: StreamArg) {
        three_async(copy, stream, default)
    }

    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds [default] (copy: In<Copy3D>) {
        three_peer(copy, default)
    }

    fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz [default] (copy: In<Copy3D>, stream: StreamArg) {
        three_peer_async(copy, stream, default)
    }
}
