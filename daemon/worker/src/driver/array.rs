//! Arrays, and copies of 3D boxes to, from and between arrays.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Arc, Weak};

use cudarc::driver::sys;
use vgpu_proto::cuda::{ArrayShape, CuResult};

use super::{Block, Context, Result, Stream, raw};

/// A mipmapped array. Destroyed when the last of its levels is dropped.
#[derive(Debug)]
struct Mipmap {
    raw: sys::CUmipmappedArray,
    context: Arc<Context>,
}

// SAFETY: a handle may be used from any thread; the driver locks.
unsafe impl Send for Mipmap {}
// SAFETY: as above.
unsafe impl Sync for Mipmap {}

impl Drop for Mipmap {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: the handle is ours, and this was the last owner: all copies are complete.
            let _ = unsafe { raw::cuMipmappedArrayDestroy(self.raw) };
        }
    }
}

/// An array. Destroyed when dropped, which waits for the context's work.
#[derive(Debug)]
pub struct Array {
    raw: sys::CUarray,
    context: Arc<Context>,
    /// The mipmapped array of which this array is a level; the mipmapped array owns the handle.
    whole: Option<Arc<Mipmap>>,
}

// SAFETY: as above.
unsafe impl Send for Array {}
// SAFETY: as above.
unsafe impl Sync for Array {}

impl Array {
    /// `cuArray3DCreate_v2`.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create(context: &Arc<Context>, shape: &ArrayShape) -> Result<Array> {
        context.bind()?;
        let mut raw: sys::CUarray = ptr::null_mut();
        // SAFETY: writes one handle; the shape has the descriptor's layout; the context is current.
        unsafe { raw::cuArray3DCreate_v2(&mut raw, shape) }?;
        Ok(Array {
            raw,
            context: Arc::clone(context),
            whole: None,
        })
    }

    /// `cuMipmappedArrayCreate`. Returns the levels, as many as requested.
    ///
    /// # Errors
    /// The error of the driver.
    pub fn create_levels(
        context: &Arc<Context>,
        shape: &ArrayShape,
        levels: u32,
    ) -> Result<Vec<Array>> {
        context.bind()?;
        let mut raw: sys::CUmipmappedArray = ptr::null_mut();
        // SAFETY: as for `create`.
        unsafe { raw::cuMipmappedArrayCreate(&mut raw, shape, levels) }?;
        let whole = Arc::new(Mipmap {
            raw,
            context: Arc::clone(context),
        });
        let level = |n| {
            let mut raw: sys::CUarray = ptr::null_mut();
            // SAFETY: writes one handle; the mipmapped array lives.
            unsafe { raw::cuMipmappedArrayGetLevel(&mut raw, whole.raw, n) }?;
            Ok(Array {
                raw,
                context: Arc::clone(context),
                whole: Some(Arc::clone(&whole)),
            })
        };
        (0..levels).map(level).collect()
    }
}

impl Drop for Array {
    fn drop(&mut self) {
        if self.whole.is_none() && self.context.bind().is_ok() {
            // SAFETY: the array is ours and was not destroyed before; all copies are complete.
            let _ = unsafe { raw::cuArrayDestroy(self.raw) };
        }
    }
}

/// One side of a copy of a box. The caller has checked offsets and sizes.
#[derive(Debug)]
pub enum Side {
    /// Rows in device memory.
    Memory {
        /// Address of the first byte.
        at: u64,
        /// Bytes from the start of a row to the start of the next.
        pitch: u64,
        /// Rows from the start of a slice to the start of the next.
        rows: u64,
    },
    /// A part of an array.
    Array {
        /// The array, if it still exists.
        array: Weak<Array>,
        /// Position: byte in the row, row, slice.
        at: [u64; 3],
    },
}

/// The fields of `CUDA_MEMCPY3D` for one side.
#[derive(Clone, Copy)]
struct Said {
    kind: sys::CUmemorytype,
    host: *mut c_void,
    device: u64,
    array: sys::CUarray,
    at: [usize; 3],
    pitch: usize,
    rows: usize,
}

const NOTHING: Said = Said {
    kind: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
    host: ptr::null_mut(),
    device: 0,
    array: ptr::null_mut(),
    at: [0; 3],
    pitch: 0,
    rows: 0,
};

impl Side {
    /// The range of device memory from the first byte of a box to the last: (address, length in
    /// bytes). `None` for an array.
    pub fn range(&self, [width, height, depth]: [u64; 3]) -> Option<(u64, u64)> {
        let Side::Memory { at, pitch, rows } = self else {
            return None;
        };
        let slices = pitch.saturating_mul(*rows);
        let slices = slices.saturating_mul(depth.saturating_sub(1));
        let before = pitch.saturating_mul(height.saturating_sub(1));
        let len = slices.saturating_add(before).saturating_add(width);
        Some((*at, len))
    }

    /// The fields, and the array, which the caller keeps alive during the call.
    fn said(&self) -> Result<(Said, Option<Arc<Array>>)> {
        match self {
            Side::Memory { at, pitch, rows } => Ok((
                Said {
                    device: *at,
                    pitch: *pitch as usize,
                    rows: *rows as usize,
                    ..NOTHING
                },
                None,
            )),
            Side::Array { array, at } => {
                let array = array.upgrade().ok_or(CuResult::INVALID_HANDLE)?;
                Ok((in_array(&array, *at), Some(array)))
            }
        }
    }
}

fn in_array(array: &Array, at: [u64; 3]) -> Said {
    Said {
        kind: sys::CUmemorytype::CU_MEMORYTYPE_ARRAY,
        array: array.raw,
        at: at.map(|n| n as usize),
        ..NOTHING
    }
}

fn in_block(block: &Block, width: usize) -> Said {
    Said {
        kind: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        host: block.pointer().cast(),
        pitch: width,
        rows: block.len() / width.max(1),
        ..NOTHING
    }
}

fn copy(stream: &Stream, dst: Said, src: Said, size: [u64; 3]) -> Result<()> {
    let copy = sys::CUDA_MEMCPY3D {
        srcXInBytes: src.at[0],
        srcY: src.at[1],
        srcZ: src.at[2],
        srcLOD: 0,
        srcMemoryType: src.kind,
        srcHost: src.host.cast_const(),
        srcDevice: src.device,
        srcArray: src.array,
        reserved0: ptr::null_mut(),
        srcPitch: src.pitch,
        srcHeight: src.rows,
        dstXInBytes: dst.at[0],
        dstY: dst.at[1],
        dstZ: dst.at[2],
        dstLOD: 0,
        dstMemoryType: dst.kind,
        dstHost: dst.host,
        dstDevice: dst.device,
        dstArray: dst.array,
        reserved1: ptr::null_mut(),
        dstPitch: dst.pitch,
        dstHeight: dst.rows,
        WidthInBytes: size[0] as usize,
        Height: size[1] as usize,
        Depth: size[2] as usize,
    };
    let raw = stream.bound()?;
    // SAFETY: the callers' promises about both sides; the description lives through the call.
    unsafe { raw::cuMemcpy3DAsync_v2(&copy, raw) }
}

/// Copies a box within the device. The caller has checked both sides.
///
/// # Errors
/// CUDA_ERROR_INVALID_HANDLE if an array no longer exists; the error of the driver.
pub fn copy_box(stream: &Stream, dst: &Side, src: &Side, size: [u64; 3]) -> Result<()> {
    let ((dst, _kept), (src, _kept_too)) = (dst.said()?, src.said()?);
    copy(stream, dst, src, size)
}

/// Copies the staging block, which holds consecutive rows of `width` bytes, into a slice of an
/// array. The staging block must stay alive and unchanged until the stream has passed this copy.
///
/// # Errors
/// The error of the driver.
pub fn copy_htoa(
    stream: &Stream,
    array: &Array,
    at: [u64; 3],
    block: &Block,
    width: usize,
) -> Result<()> {
    let rows = rows_of(block, width)?;
    let (dst, src) = (in_array(array, at), in_block(block, width));
    copy(stream, dst, src, [width as u64, rows, 1])
}

/// Copies rows of a slice of an array into the staging block, consecutively. The staging block may
/// be read once the stream has passed this copy.
///
/// # Errors
/// The error of the driver.
pub fn copy_atoh(
    stream: &Stream,
    block: &Block,
    array: &Array,
    at: [u64; 3],
    width: usize,
) -> Result<()> {
    let rows = rows_of(block, width)?;
    let (dst, src) = (in_block(block, width), in_array(array, at));
    copy(stream, dst, src, [width as u64, rows, 1])
}

fn rows_of(block: &Block, width: usize) -> Result<u64> {
    match block.len().checked_div(width) {
        Some(rows) if rows > 0 => Ok(rows as u64),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
