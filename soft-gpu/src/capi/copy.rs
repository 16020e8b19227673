//! Copies.

use super::types::{ASYNC, Default, In, SYNC, StreamArg};
use crate::driver::context;
use crate::driver::copy::{Mode, Side, copy};
use crate::driver::error::Result;
pub use crate::driver::transfer::{Copy3, Side3};

fn flat(
    dst: (Side, u64),
    src: (Side, u64),
    bytes: usize,
    mode: Mode,
    stream: StreamArg,
    default: Default,
) -> Result {
    let stream = stream.get(default)?;
    copy(&Copy3::flat(dst, src, bytes), mode, &stream)
}

const NULL: StreamArg = StreamArg(0);

fn unified(dst: u64, src: u64, bytes: usize, default: Default) -> Result {
    flat(
        (Side::Unified, dst),
        (Side::Unified, src),
        bytes,
        SYNC,
        NULL,
        default,
    )
}

fn unified_async(dst: u64, src: u64, bytes: usize, stream: StreamArg, default: Default) -> Result {
    flat(
        (Side::Unified, dst),
        (Side::Unified, src),
        bytes,
        ASYNC,
        stream,
        default,
    )
}

fn htod(dst: u64, src: u64, bytes: usize, default: Default) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Host, src),
        bytes,
        SYNC,
        NULL,
        default,
    )
}

fn htod_async(dst: u64, src: u64, bytes: usize, stream: StreamArg, default: Default) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Host, src),
        bytes,
        ASYNC,
        stream,
        default,
    )
}

fn dtoh(dst: u64, src: u64, bytes: usize, default: Default) -> Result {
    flat(
        (Side::Host, dst),
        (Side::Device, src),
        bytes,
        SYNC,
        NULL,
        default,
    )
}

fn dtoh_async(dst: u64, src: u64, bytes: usize, stream: StreamArg, default: Default) -> Result {
    flat(
        (Side::Host, dst),
        (Side::Device, src),
        bytes,
        ASYNC,
        stream,
        default,
    )
}

fn dtod(dst: u64, src: u64, bytes: usize, default: Default) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Device, src),
        bytes,
        SYNC,
        NULL,
        default,
    )
}

fn dtod_async(dst: u64, src: u64, bytes: usize, stream: StreamArg, default: Default) -> Result {
    flat(
        (Side::Device, dst),
        (Side::Device, src),
        bytes,
        ASYNC,
        stream,
        default,
    )
}

fn peer(dst: u64, to: u64, src: u64, from: u64, bytes: usize, default: Default) -> Result {
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
    default: Default,
) -> Result {
    context::get(to)?;
    context::get(from)?;
    dtod_async(dst, src, bytes, stream, default)
}

/// One side of CUDA_MEMCPY2D.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Side2 {
    x: usize,
    y: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    pitch: usize,
}

/// CUDA_MEMCPY2D.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy2 {
    src: Side2,
    dst: Side2,
    width: usize,
    height: usize,
}

impl From<Side2> for Side3 {
    fn from(s: Side2) -> Side3 {
        Side3 {
            x: s.x,
            y: s.y,
            z: 0,
            lod: 0,
            kind: s.kind,
            host: s.host,
            device: s.device,
            array: s.array,
            context: 0,
            pitch: s.pitch,
            height: 0,
        }
    }
}

fn copy3(c: &Copy3, mode: Mode, stream: StreamArg, default: Default) -> Result {
    copy(c, mode, &stream.get(default)?)
}

/// The two sides of CUDA_MEMCPY3D_PEER name their contexts where CUDA_MEMCPY3D has reserved words; `None` where
/// there is nothing to copy.
fn peers(c: In<Copy3>) -> Result<Option<Copy3>> {
    let c = c.get()?;
    if c.width == 0 || c.height == 0 || c.depth == 0 {
        return Ok(None);
    }
    context::get(c.src.context)?;
    context::get(c.dst.context)?;
    Ok(Some(c))
}

fn three_peer(c: In<Copy3>, default: Default) -> Result {
    peers(c)?.map_or(Ok(()), |c| copy3(&c, SYNC, NULL, default))
}

fn three_peer_async(c: In<Copy3>, stream: StreamArg, default: Default) -> Result {
    peers(c)?.map_or(Ok(()), |c| copy3(&c, ASYNC, stream, default))
}

fn widen(c: &Copy2) -> Copy3 {
    Copy3 {
        src: c.src.into(),
        dst: c.dst.into(),
        width: c.width,
        height: c.height,
        depth: 1,
    }
}

fn two(c: In<Copy2>, default: Default) -> Result {
    copy3(&widen(&c.get()?), SYNC, NULL, default)
}

fn two_async(c: In<Copy2>, stream: StreamArg, default: Default) -> Result {
    copy3(&widen(&c.get()?), ASYNC, stream, default)
}

fn three(c: In<Copy3>, default: Default) -> Result {
    copy3(&c.get()?, SYNC, NULL, default)
}

fn three_async(c: In<Copy3>, stream: StreamArg, default: Default) -> Result {
    copy3(&c.get()?, ASYNC, stream, default)
}

stream_exports! {
    fn cuMemcpy | cuMemcpy_ptds(dst: u64, src: u64, bytes: usize) => unified;
    fn cuMemcpyAsync | cuMemcpyAsync_ptsz(dst: u64, src: u64, bytes: usize, stream: StreamArg) => unified_async;
    fn cuMemcpyHtoD_v2 | cuMemcpyHtoD_v2_ptds(dst: u64, src: u64, bytes: usize) => htod;
    fn cuMemcpyHtoDAsync_v2 | cuMemcpyHtoDAsync_v2_ptsz(dst: u64, src: u64, bytes: usize, stream: StreamArg) => htod_async;
    fn cuMemcpyDtoH_v2 | cuMemcpyDtoH_v2_ptds(dst: u64, src: u64, bytes: usize) => dtoh;
    fn cuMemcpyDtoHAsync_v2 | cuMemcpyDtoHAsync_v2_ptsz(dst: u64, src: u64, bytes: usize, stream: StreamArg) => dtoh_async;
    fn cuMemcpyDtoD_v2 | cuMemcpyDtoD_v2_ptds(dst: u64, src: u64, bytes: usize) => dtod;
    fn cuMemcpyDtoDAsync_v2 | cuMemcpyDtoDAsync_v2_ptsz(dst: u64, src: u64, bytes: usize, stream: StreamArg) => dtod_async;
    fn cuMemcpyPeer | cuMemcpyPeer_ptds(dst: u64, to: u64, src: u64, from: u64, bytes: usize) => peer;
    fn cuMemcpyPeerAsync | cuMemcpyPeerAsync_ptsz(dst: u64, to: u64, src: u64, from: u64, bytes: usize, stream: StreamArg) => peer_async;
    fn cuMemcpy2D_v2 | cuMemcpy2D_v2_ptds(copy: In<Copy2>) => two;
    fn cuMemcpy2DUnaligned_v2 | cuMemcpy2DUnaligned_v2_ptds(copy: In<Copy2>) => two;
    fn cuMemcpy2DAsync_v2 | cuMemcpy2DAsync_v2_ptsz(copy: In<Copy2>, stream: StreamArg) => two_async;
    fn cuMemcpy3D_v2 | cuMemcpy3D_v2_ptds(copy: In<Copy3>) => three;
    fn cuMemcpy3DAsync_v2 | cuMemcpy3DAsync_v2_ptsz(copy: In<Copy3>, stream: StreamArg) => three_async;
    fn cuMemcpy3DPeer | cuMemcpy3DPeer_ptds(copy: In<Copy3>) => three_peer;
    fn cuMemcpy3DPeerAsync | cuMemcpy3DPeerAsync_ptsz(copy: In<Copy3>, stream: StreamArg) => three_peer_async;
}
