//! CUDA arrays, which only copies read and write, and byte copies to and from arrays.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, StreamArg};
use vgpu_cuda_abi::numbers::memory_type;
use vgpu_cuda_abi::structs::{
    ArrayDescriptor, ArrayMemoryRequirements, ArrayShape, Copy3D, Side3D,
};

use crate::capi::memory::copy::{later, now};
use crate::driver::array;
use crate::driver::copy::Side;
use crate::driver::gpu;
use crate::driver::transfer::side;

/// The side of a copy that starts at byte `offset` of an array of one row.
fn inside(array: u64, offset: usize) -> Side3D {
    Side3D {
        kind: memory_type::ARRAY,
        array,
        x: offset,
        ..Side3D::NOWHERE
    }
}

/// A copy of `bytes` bytes in one row.
fn row(dst: Side3D, src: Side3D, bytes: usize) -> Copy3D {
    Copy3D {
        src,
        dst,
        width: bytes,
        height: 1,
        depth: 1,
    }
}

exports! {
    fn cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds [default] (array: u64, at: usize, src: u64, bytes: usize) {
        now(&row(inside(array, at), side((Side::Host, src)), bytes), default)
    }

    fn cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz [default] (array: u64, at: usize, src: u64, bytes: usize, stream: StreamArg) {
        later(&row(inside(array, at), side((Side::Host, src)), bytes), stream, default)
    }

    fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds [default] (dst: u64, array: u64, at: usize, bytes: usize) {
        now(&row(side((Side::Host, dst)), inside(array, at), bytes), default)
    }

    fn cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz [default] (dst: u64, array: u64, at: usize, bytes: usize, stream: StreamArg) {
        later(&row(side((Side::Host, dst)), inside(array, at), bytes), stream, default)
    }

    fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds [default] (array: u64, at: usize, src: u64, bytes: usize) {
        now(&row(inside(array, at), side((Side::Device, src)), bytes), default)
    }

    fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds [default] (dst: u64, array: u64, at: usize, bytes: usize) {
        now(&row(side((Side::Device, dst)), inside(array, at), bytes), default)
    }

    fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds [default] (dst: u64, to: usize, src: u64, from: usize, bytes: usize) {
        now(&row(inside(dst, to), inside(src, from), bytes), default)
    }
}

exports! {
    fn cuArrayCreate_v2(out: Out<u64>, shape: In<ArrayDescriptor>) {
        out.check()?;
        out.set(array::create(shape.get()?.into())?)
    }

    fn cuArray3DCreate_v2(out: Out<u64>, shape: In<ArrayShape>) {
        out.check()?;
        out.set(array::create(shape.get()?)?)
    }

    fn cuArrayGetDescriptor_v2(out: Out<ArrayDescriptor>, array: u64) {
        out.check()?;
        out.set(array::get(array)?.shape.into())
    }

    fn cuArray3DGetDescriptor_v2(out: Out<ArrayShape>, array: u64) {
        out.check()?;
        out.set(array::get(array)?.shape)
    }

    fn cuArrayDestroy(array: u64) {
        array::destroy(array)
    }

    fn cuArrayGetMemoryRequirements(out: Out<ArrayMemoryRequirements>, array: u64, device: i32) {
        out.check()?;
        gpu(device)?;
        array::get(array)?;
        // The function is valid for arrays with deferred mapping only, which are not served.
        Err(CuResult::INVALID_VALUE)
    }

    fn cuArrayGetSparseProperties(out: Out<u8>, array: u64) {
        out.check()?;
        array::get(array)?;
        // The function is valid for sparse arrays only, which are not served.
        Err(CuResult::INVALID_VALUE)
    }

    fn cuMipmappedArrayGetMemoryRequirements(out: Out<ArrayMemoryRequirements>, mipmap: u64, device: i32) {
        out.check()?;
        gpu(device)?;
        array::find_mipmap(mipmap)?;
        Err(CuResult::INVALID_VALUE)
    }

    fn cuMipmappedArrayGetSparseProperties(out: Out<u8>, mipmap: u64) {
        out.check()?;
        array::find_mipmap(mipmap)?;
        Err(CuResult::INVALID_VALUE)
    }

    fn cuArrayGetPlane(out: Out<u64>, array: u64, _plane: u32) {
        out.check()?;
        array::get(array)?;
        // The function is valid for planar formats only, which are not served.
        Err(CuResult::INVALID_VALUE)
    }

    fn cuMipmappedArrayCreate(out: Out<u64>, shape: In<ArrayShape>, levels: u32) {
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
