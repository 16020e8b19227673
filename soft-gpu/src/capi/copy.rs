//! Copies.

use super::types::{ASYNC, Default, In, SYNC, StreamArg};
use crate::driver::copy::{Extent, Layout, Mode, Side, copy};
use crate::driver::error::{CuError, Result};

fn flat(
    dst: (Side, u64),
    src: (Side, u64),
    bytes: usize,
    mode: Mode,
    stream: StreamArg,
    default: Default,
) -> Result {
    let stream = stream.get(default)?;
    let (dst, src) = ((dst.0, Layout::flat(dst.1)), (src.0, Layout::flat(src.1)));
    copy(dst, src, Extent::row(bytes as u64), mode, &stream)
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
    crate::driver::context::get(to)?;
    crate::driver::context::get(from)?;
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
    crate::driver::context::get(to)?;
    crate::driver::context::get(from)?;
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

/// One side of CUDA_MEMCPY3D.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Side3 {
    x: usize,
    y: usize,
    z: usize,
    lod: usize,
    kind: u32,
    host: u64,
    device: u64,
    array: u64,
    reserved: u64,
    pitch: usize,
    height: usize,
}

/// CUDA_MEMCPY3D.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Copy3 {
    src: Side3,
    dst: Side3,
    width: usize,
    height: usize,
    depth: usize,
}

/// CUmemorytype → which address, and what it is said to be. Arrays are not served.
fn address(kind: u32, host: u64, device: u64) -> Result<(Side, u64)> {
    match kind {
        1 => Ok((Side::Host, host)),
        2 => Ok((Side::Device, device)),
        3 => Err(CuError::NOT_SUPPORTED),
        4 => Ok((Side::Unified, device)),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn offset(pitch: u64, slice: u64, (x, y, z): (usize, usize, usize)) -> Option<u64> {
    let rows = pitch.checked_mul(y as u64)?;
    slice
        .checked_mul(z as u64)?
        .checked_add(rows)?
        .checked_add(x as u64)
}

impl Side3 {
    fn resolve(&self, width: usize, rows: usize) -> Result<(Side, Layout)> {
        let (side, base) = address(self.kind, self.host, self.device)?;
        let bad = || CuError::INVALID_VALUE;
        let pitch = if self.pitch == 0 {
            width.checked_add(self.x).ok_or_else(bad)?
        } else {
            self.pitch
        };
        let height = if self.height == 0 { rows } else { self.height };
        if width.checked_add(self.x).is_none_or(|end| end > pitch) && (rows > 1 || height > 1) {
            return Err(bad());
        }
        let (pitch, height) = (pitch as u64, height as u64);
        let slice = pitch.checked_mul(height).ok_or_else(bad)?;
        let at = offset(pitch, slice, (self.x, self.y, self.z)).ok_or_else(bad)?;
        Ok((
            side,
            Layout {
                addr: base.checked_add(at).ok_or_else(bad)?,
                pitch,
                slice,
            },
        ))
    }
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
            reserved: 0,
            pitch: s.pitch,
            height: 0,
        }
    }
}

fn copy3(c: &Copy3, mode: Mode, stream: StreamArg, default: Default) -> Result {
    let stream = stream.get(default)?;
    let dst = c.dst.resolve(c.width, c.height)?;
    let src = c.src.resolve(c.width, c.height)?;
    let e = Extent {
        width: c.width as u64,
        height: c.height as u64,
        depth: c.depth as u64,
    };
    copy(dst, src, e, mode, &stream)
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
}
