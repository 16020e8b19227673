//! Arrays, and copies of bytes to and from their first row.

use std::ffi::{c_int, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out};
use vgpu_cuda_abi::structs::{ArrayDescriptor, ArrayShape, Copy3D, Side3D};

use crate::Cu;
use crate::ffi::exports;
use crate::ops::area::{in_array, on_device, on_host, start};
use crate::state::current::{live, shim};
use crate::state::streams::resolve;

exports! {
    /// Creates an array of at most two dimensions.
    fn cuArrayCreate_v2(out: Out<u64>, shape: In<ArrayDescriptor>) {
        let shim = live()?;
        out.check()?;
        let context = shim.contexts.current()?;
        out.set(shim.create_array(&context, shape.get()?.into())?)
    }

    /// Creates an array of up to three dimensions, or an array of layers.
    fn cuArray3DCreate_v2(out: Out<u64>, shape: In<ArrayShape>) {
        let shim = live()?;
        out.check()?;
        let context = shim.contexts.current()?;
        out.set(shim.create_array(&context, shape.get()?)?)
    }

    /// Destroys an array after the work that may use it.
    fn cuArrayDestroy(array: u64) {
        live()?.destroy_array(array)
    }

    /// The shape with which the array was created.
    fn cuArrayGetDescriptor_v2(out: Out<ArrayDescriptor>, array: u64) {
        out.set(shim()?.arrays.get(array)?.shape.into())
    }

    /// The shape with which the array was created.
    fn cuArray3DGetDescriptor_v2(out: Out<ArrayShape>, array: u64) {
        out.set(shim()?.arrays.get(array)?.shape)
    }

    /// Always an error: only arrays with deferred mapping have requirements, and such arrays are
    /// not served.
    fn cuArrayGetMemoryRequirements(_out: Out<c_void>, array: u64, device: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.arrays.get(array)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Always an error: only sparse arrays have such properties, and sparse arrays are not served.
    fn cuArrayGetSparseProperties(_out: Out<c_void>, array: u64) {
        shim()?.arrays.get(array)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Always an error: only planar formats have planes, and planar formats are not served.
    fn cuArrayGetPlane(_out: Out<u64>, array: u64, _plane: u32) {
        shim()?.arrays.get(array)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Creates an array with levels. Each level has half the size of the previous level.
    fn cuMipmappedArrayCreate(out: Out<u64>, shape: In<ArrayShape>, levels: u32) {
        let shim = live()?;
        out.check()?;
        let context = shim.contexts.current()?;
        out.set(shim.create_mipmap(&context, shape.get()?, levels)?)
    }

    /// A level of a mipmapped array.
    fn cuMipmappedArrayGetLevel(out: Out<u64>, mipmap: u64, level: u32) {
        let level = shim()?.mipmap_level(mipmap, level)?;
        out.set(level)
    }

    /// Destroys a mipmapped array and all levels, after the work that may use them.
    fn cuMipmappedArrayDestroy(mipmap: u64) {
        live()?.destroy_mipmap(mipmap)
    }

    /// Always an error: only arrays with deferred mapping have requirements, and such arrays are
    /// not served.
    fn cuMipmappedArrayGetMemoryRequirements(_out: Out<c_void>, mipmap: u64, device: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.mipmaps.get(mipmap)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Always an error: only sparse arrays have such properties, and sparse arrays are not served.
    fn cuMipmappedArrayGetSparseProperties(_out: Out<c_void>, mipmap: u64) {
        shim()?.mipmaps.get(mipmap)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Host to array.
    fn cuMemcpyHtoA_v2 / cuMemcpyHtoA_v2_ptds [mode] (
        array: u64,
        at: usize,
        src: *const c_void,
        len: usize
    ) {
        bytes(in_array(array, at), on_host(src as u64), len, (0, mode), true)
    }

    /// Host to array, in a stream.
    fn cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz [mode] (
        array: u64,
        at: usize,
        src: *const c_void,
        len: usize,
        stream: u64
    ) {
        bytes(in_array(array, at), on_host(src as u64), len, (stream, mode), false)
    }

    /// Array to host.
    fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds [mode] (
        dst: *mut c_void,
        array: u64,
        at: usize,
        len: usize
    ) {
        bytes(on_host(dst as u64), in_array(array, at), len, (0, mode), true)
    }

    /// Array to host, in a stream.
    fn cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz [mode] (
        dst: *mut c_void,
        array: u64,
        at: usize,
        len: usize,
        stream: u64
    ) {
        bytes(on_host(dst as u64), in_array(array, at), len, (stream, mode), false)
    }

    /// Device to array.
    fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds [mode] (array: u64, at: usize, src: u64, len: usize) {
        bytes(in_array(array, at), on_device(src), len, (0, mode), true)
    }

    /// Array to device.
    fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds [mode] (dst: u64, array: u64, at: usize, len: usize) {
        bytes(on_device(dst), in_array(array, at), len, (0, mode), true)
    }

    /// Array to array.
    fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds [mode] (
        dst: u64,
        to: usize,
        src: u64,
        from: usize,
        len: usize
    ) {
        bytes(in_array(dst, to), in_array(src, from), len, (0, mode), true)
    }
}

/// Copies bytes from or to the first row of an array.
fn bytes(
    dst: Side3D,
    src: Side3D,
    len: usize,
    (stream, mode): (u64, DefaultStream),
    sync: bool,
) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    let copy = Copy3D {
        src,
        dst,
        width: len,
        height: 1,
        depth: 1,
    };
    start(shim, &target, &copy, sync)
}
