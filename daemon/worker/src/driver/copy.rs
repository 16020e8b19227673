//! Copies and fills, all asynchronous in a stream.
//!
//! Every device range given here must have been found to lie within live allocations of the session
//! (`session::memory`); the driver would take a host address of this process as well.

use cudarc::driver::sys;
use vgpu_proto::cuda::CuResult;

use super::{Block, Result, Stream, check};

/// Copies the block's bytes to `dst`. The block must be kept and left alone until the stream is past
/// this copy.
///
/// # Errors
/// The driver's.
pub fn copy_htod(stream: &Stream, dst: u64, block: &Block) -> Result<()> {
    let raw = stream.bound()?;
    // SAFETY: the block has `len` bytes; `dst` was checked by the caller.
    check(unsafe { sys::cuMemcpyHtoDAsync_v2(dst, block.pointer().cast(), block.len(), raw) })
}

/// Copies `block.len()` bytes from `src` into the block, to be read when the stream is past it.
///
/// # Errors
/// The driver's.
pub fn copy_dtoh(stream: &Stream, block: &Block, src: u64) -> Result<()> {
    let raw = stream.bound()?;
    // SAFETY: the block has `len` bytes and is not read before completion; `src` was checked.
    check(unsafe { sys::cuMemcpyDtoHAsync_v2(block.pointer().cast(), src, block.len(), raw) })
}

/// Copies within device memory.
///
/// # Errors
/// The driver's.
pub fn copy_dtod(stream: &Stream, dst: u64, src: u64, len: u64) -> Result<()> {
    let raw = stream.bound()?;
    // SAFETY: both ranges were checked by the caller.
    check(unsafe { sys::cuMemcpyDtoDAsync_v2(dst, src, len as usize, raw) })
}

/// Writes `count` elements of `width` bytes (1, 2 or 4).
///
/// # Errors
/// Another width, or the driver's.
pub fn fill(stream: &Stream, dst: u64, value: u32, width: u8, count: u64) -> Result<()> {
    let raw = stream.bound()?;
    let n = count as usize;
    // SAFETY: the range was checked by the caller.
    check(unsafe {
        match width {
            1 => sys::cuMemsetD8Async(dst, value as u8, n, raw),
            2 => sys::cuMemsetD16Async(dst, value as u16, n, raw),
            4 => sys::cuMemsetD32Async(dst, value, n, raw),
            _ => return Err(CuResult::INVALID_VALUE),
        }
    })
}

/// Writes `rows` rows of `columns` elements, rows `pitch` bytes apart.
///
/// # Errors
/// Another width, or the driver's.
pub fn fill_2d(
    stream: &Stream,
    (dst, pitch): (u64, u64),
    value: u32,
    width: u8,
    (columns, rows): (u64, u64),
) -> Result<()> {
    let raw = stream.bound()?;
    let (pitch, columns, rows) = (pitch as usize, columns as usize, rows as usize);
    // SAFETY: the range was checked by the caller.
    check(unsafe {
        match width {
            1 => sys::cuMemsetD2D8Async(dst, pitch, value as u8, columns, rows, raw),
            2 => sys::cuMemsetD2D16Async(dst, pitch, value as u16, columns, rows, raw),
            4 => sys::cuMemsetD2D32Async(dst, pitch, value, columns, rows, raw),
            _ => return Err(CuResult::INVALID_VALUE),
        }
    })
}
