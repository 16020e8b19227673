//! Arrays as containers, and copies of bytes to and from them.

use super::copy::{Copy3, Side3};
use super::types::{ASYNC, Default, In, Out, SYNC, StreamArg};
use crate::driver::array::{self, Shape};
use crate::driver::copy::{Mode, Side, copy};
use crate::driver::error::{CuError, Result};
use crate::driver::gpu;

/// CUDA_ARRAY_DESCRIPTOR.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Plain {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// CUDA_ARRAY_MEMORY_REQUIREMENTS.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Requirements {
    size: usize,
    alignment: usize,
    reserved: [u32; 4],
}

const NULL: StreamArg = StreamArg(0);

/// `bytes` at an offset into an array's only row.
fn inside(array: u64, offset: usize) -> Side3 {
    Side3 {
        kind: 3,
        array,
        x: offset,
        ..Side3::flat((Side::Host, 0))
    }
}

fn move_bytes(
    dst: Side3,
    src: Side3,
    bytes: usize,
    mode: Mode,
    (stream, default): (StreamArg, Default),
) -> Result {
    let c = Copy3 {
        src,
        dst,
        width: bytes,
        height: 1,
        depth: 1,
    };
    copy(&c, mode, &stream.get(default)?)
}

fn htoa(array: u64, at: usize, src: u64, bytes: usize, default: Default) -> Result {
    let src = Side3::flat((Side::Host, src));
    move_bytes(inside(array, at), src, bytes, SYNC, (NULL, default))
}

fn htoa_async(
    array: u64,
    at: usize,
    src: u64,
    bytes: usize,
    stream: StreamArg,
    default: Default,
) -> Result {
    let src = Side3::flat((Side::Host, src));
    move_bytes(inside(array, at), src, bytes, ASYNC, (stream, default))
}

fn atoh(dst: u64, array: u64, at: usize, bytes: usize, default: Default) -> Result {
    let dst = Side3::flat((Side::Host, dst));
    move_bytes(dst, inside(array, at), bytes, SYNC, (NULL, default))
}

fn atoh_async(
    dst: u64,
    array: u64,
    at: usize,
    bytes: usize,
    stream: StreamArg,
    default: Default,
) -> Result {
    let dst = Side3::flat((Side::Host, dst));
    move_bytes(dst, inside(array, at), bytes, ASYNC, (stream, default))
}

fn dtoa(array: u64, at: usize, src: u64, bytes: usize, default: Default) -> Result {
    let src = Side3::flat((Side::Device, src));
    move_bytes(inside(array, at), src, bytes, SYNC, (NULL, default))
}

fn atod(dst: u64, array: u64, at: usize, bytes: usize, default: Default) -> Result {
    let dst = Side3::flat((Side::Device, dst));
    move_bytes(dst, inside(array, at), bytes, SYNC, (NULL, default))
}

fn atoa(dst: u64, to: usize, src: u64, from: usize, bytes: usize, default: Default) -> Result {
    let (dst, src) = (inside(dst, to), inside(src, from));
    move_bytes(dst, src, bytes, SYNC, (NULL, default))
}

stream_exports! {
    fn cuMemcpyHtoA_v2 | cuMemcpyHtoA_v2_ptds(array: u64, at: usize, src: u64, bytes: usize) => htoa;
    fn cuMemcpyHtoAAsync_v2 | cuMemcpyHtoAAsync_v2_ptsz(array: u64, at: usize, src: u64, bytes: usize, stream: StreamArg) => htoa_async;
    fn cuMemcpyAtoH_v2 | cuMemcpyAtoH_v2_ptds(dst: u64, array: u64, at: usize, bytes: usize) => atoh;
    fn cuMemcpyAtoHAsync_v2 | cuMemcpyAtoHAsync_v2_ptsz(dst: u64, array: u64, at: usize, bytes: usize, stream: StreamArg) => atoh_async;
    fn cuMemcpyDtoA_v2 | cuMemcpyDtoA_v2_ptds(array: u64, at: usize, src: u64, bytes: usize) => dtoa;
    fn cuMemcpyAtoD_v2 | cuMemcpyAtoD_v2_ptds(dst: u64, array: u64, at: usize, bytes: usize) => atod;
    fn cuMemcpyAtoA_v2 | cuMemcpyAtoA_v2_ptds(dst: u64, to: usize, src: u64, from: usize, bytes: usize) => atoa;
}

exports! {
    fn cuArrayCreate_v2(out: Out<u64>, shape: In<Plain>) {
        out.check()?;
        let Plain { width, height, format, channels } = shape.get()?;
        out.set(array::create(Shape { width, height, depth: 0, format, channels, flags: 0 })?)
    }

    fn cuArray3DCreate_v2(out: Out<u64>, shape: In<Shape>) {
        out.check()?;
        out.set(array::create(shape.get()?)?)
    }

    fn cuArrayGetDescriptor_v2(out: Out<Plain>, array: u64) {
        out.check()?;
        let Shape { width, height, format, channels, .. } = array::get(array)?.shape;
        out.set(Plain { width, height, format, channels })
    }

    fn cuArray3DGetDescriptor_v2(out: Out<Shape>, array: u64) {
        out.check()?;
        out.set(array::get(array)?.shape)
    }

    fn cuArrayDestroy(array: u64) {
        array::destroy(array)
    }

    fn cuArrayGetMemoryRequirements(out: Out<Requirements>, array: u64, device: i32) {
        out.check()?;
        gpu(device)?;
        array::get(array)?;
        // Only of arrays with deferred mapping, which are not made.
        Err(CuError::INVALID_VALUE)
    }

    fn cuArrayGetSparseProperties(out: Out<u8>, array: u64) {
        out.check()?;
        array::get(array)?;
        // Only of sparse arrays, which are not made.
        Err(CuError::INVALID_VALUE)
    }

    fn cuMipmappedArrayGetMemoryRequirements(out: Out<Requirements>, mipmap: u64, device: i32) {
        out.check()?;
        gpu(device)?;
        array::find_mipmap(mipmap)?;
        Err(CuError::INVALID_VALUE)
    }

    fn cuMipmappedArrayGetSparseProperties(out: Out<u8>, mipmap: u64) {
        out.check()?;
        array::find_mipmap(mipmap)?;
        Err(CuError::INVALID_VALUE)
    }

    fn cuArrayGetPlane(out: Out<u64>, array: u64, _plane: u32) {
        out.check()?;
        array::get(array)?;
        // Only of planar formats, which are not served.
        Err(CuError::INVALID_VALUE)
    }

    fn cuMipmappedArrayCreate(out: Out<u64>, shape: In<Shape>, levels: u32) {
        out.check()?;
        out.set(array::create_mipmap(shape.get()?, levels)?)
    }

    fn cuMipmappedArrayGetLevel(out: Out<u64>, mipmap: u64, level: u32) {
        out.check()?;
        out.set(array::level(mipmap, level)?)
    }

    fn cuMipmappedArrayDestroy(mipmap: u64) {
        array::destroy_mipmap(mipmap)
    }
}
