//! Arrays as containers, and copies of bytes to and from their first row.

use std::ffi::{c_int, c_void};

use vgpu_proto::cuda::{ArrayShape, CuResult};

use super::area::{Copy3D, Side3D, start};
use crate::Cu;
use crate::ffi::{DefaultStream, exports, put, required};
use crate::process::{live, shim};
use crate::state::streams::resolve;

/// `CUDA_ARRAY_DESCRIPTOR`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Flat {
    width: usize,
    height: usize,
    format: u32,
    channels: u32,
}

/// # Safety
/// `pointer` is null or readable.
unsafe fn read<T: Copy>(pointer: *const T) -> Cu<T> {
    required(pointer)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { pointer.read_unaligned() })
}

exports! {
    /// An array of at most two dimensions.
    fn cuArrayCreate_v2(out: *mut u64, shape: *const Flat) {
        let shim = live()?;
        required(out)?;
        let context = shim.contexts.current()?;
        // SAFETY: by the contract of the function.
        let Flat { width, height, format, channels } = unsafe { read(shape) }?;
        let shape = ArrayShape {
            width: width as u64,
            height: height as u64,
            depth: 0,
            format,
            channels,
            flags: 0,
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.create_array(&context, shape)?) }
    }

    /// An array of up to three dimensions, or layers.
    fn cuArray3DCreate_v2(out: *mut u64, shape: *const ArrayShape) {
        let shim = live()?;
        required(out)?;
        let context = shim.contexts.current()?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.create_array(&context, read(shape)?)?) }
    }

    /// Destroys, after the work that may use it.
    fn cuArrayDestroy(array: u64) {
        live()?.destroy_array(array)
    }

    /// As it was created.
    fn cuArrayGetDescriptor_v2(out: *mut Flat, array: u64) {
        let shape = shim()?.arrays.get(array)?.shape;
        let flat = Flat {
            width: shape.width as usize,
            height: shape.height as usize,
            format: shape.format,
            channels: shape.channels,
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, flat) }
    }

    /// As it was created.
    fn cuArray3DGetDescriptor_v2(out: *mut ArrayShape, array: u64) {
        let shape = shim()?.arrays.get(array)?.shape;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shape) }
    }

    /// Only arrays with deferred mapping have such, which are not made.
    fn cuArrayGetMemoryRequirements(_out: *mut c_void, array: u64, device: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.arrays.get(array)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Only sparse arrays have such, which are not made.
    fn cuArrayGetSparseProperties(_out: *mut c_void, array: u64) {
        shim()?.arrays.get(array)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Only planar formats have such, which are not made.
    fn cuArrayGetPlane(_out: *mut u64, array: u64, _plane: u32) {
        shim()?.arrays.get(array)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// An array with halves of it, and halves of these.
    fn cuMipmappedArrayCreate(out: *mut u64, shape: *const ArrayShape, levels: u32) {
        let shim = live()?;
        required(out)?;
        let context = shim.contexts.current()?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, shim.create_mipmap(&context, read(shape)?, levels)?) }
    }

    /// One of its arrays.
    fn cuMipmappedArrayGetLevel(out: *mut u64, mipmap: u64, level: u32) {
        let level = shim()?.mipmap_level(mipmap, level)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, level) }
    }

    /// Destroys it and all its arrays, after the work that may use them.
    fn cuMipmappedArrayDestroy(mipmap: u64) {
        live()?.destroy_mipmap(mipmap)
    }

    /// Only of arrays with deferred mapping, which are not made.
    fn cuMipmappedArrayGetMemoryRequirements(_out: *mut c_void, mipmap: u64, device: c_int) {
        let shim = shim()?;
        shim.devices.get(device)?;
        shim.mipmaps.get(mipmap)?;
        Err(CuResult::INVALID_VALUE)
    }

    /// Only of sparse arrays, which are not made.
    fn cuMipmappedArrayGetSparseProperties(_out: *mut c_void, mipmap: u64) {
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
        bytes(Side3D::array(array, at), Side3D::host(src as u64), len, (0, mode), true)
    }

    /// Host to array, in a stream.
    fn cuMemcpyHtoAAsync_v2 / cuMemcpyHtoAAsync_v2_ptsz [mode] (
        array: u64,
        at: usize,
        src: *const c_void,
        len: usize,
        stream: u64
    ) {
        bytes(Side3D::array(array, at), Side3D::host(src as u64), len, (stream, mode), false)
    }

    /// Array to host.
    fn cuMemcpyAtoH_v2 / cuMemcpyAtoH_v2_ptds [mode] (
        dst: *mut c_void,
        array: u64,
        at: usize,
        len: usize
    ) {
        bytes(Side3D::host(dst as u64), Side3D::array(array, at), len, (0, mode), true)
    }

    /// Array to host, in a stream.
    fn cuMemcpyAtoHAsync_v2 / cuMemcpyAtoHAsync_v2_ptsz [mode] (
        dst: *mut c_void,
        array: u64,
        at: usize,
        len: usize,
        stream: u64
    ) {
        bytes(Side3D::host(dst as u64), Side3D::array(array, at), len, (stream, mode), false)
    }

    /// Device to array.
    fn cuMemcpyDtoA_v2 / cuMemcpyDtoA_v2_ptds [mode] (array: u64, at: usize, src: u64, len: usize) {
        bytes(Side3D::array(array, at), Side3D::device(src), len, (0, mode), true)
    }

    /// Array to device.
    fn cuMemcpyAtoD_v2 / cuMemcpyAtoD_v2_ptds [mode] (dst: u64, array: u64, at: usize, len: usize) {
        bytes(Side3D::device(dst), Side3D::array(array, at), len, (0, mode), true)
    }

    /// Array to array.
    fn cuMemcpyAtoA_v2 / cuMemcpyAtoA_v2_ptds [mode] (
        dst: u64,
        to: usize,
        src: u64,
        from: usize,
        len: usize
    ) {
        bytes(Side3D::array(dst, to), Side3D::array(src, from), len, (0, mode), true)
    }
}

/// Bytes of one row.
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
