//! Copies and fills, all asynchronous in a stream.
//!
//! The caller must have checked that every device range lies within live allocations of the session
//! (`session::objects::memory`). The driver would also accept host addresses of this process.

use std::ptr;

use cudarc::driver::sys;
use vgpu_proto::cuda::CuResult;

use super::{Block, Result, Stream, raw};

/// Copies the bytes of the staging block to `dst` on the device. The staging block must stay alive
/// and unchanged until the stream has passed this copy.
///
/// # Errors
/// The error of the driver.
pub fn copy_htod(stream: &Stream, dst: u64, block: &Block) -> Result<()> {
    let raw = stream.bound()?;
    // SAFETY: the staging block has `len` bytes; the caller has checked `dst`.
    unsafe { raw::cuMemcpyHtoDAsync_v2(dst, block.pointer().cast(), block.len(), raw) }
}

/// Copies `block.len()` bytes from `src` on the device into the staging block. The staging block
/// may be read once the stream has passed this copy.
///
/// # Errors
/// The error of the driver.
pub fn copy_dtoh(stream: &Stream, block: &Block, src: u64) -> Result<()> {
    let raw = stream.bound()?;
    // SAFETY: the staging block has `len` bytes and is not read before completion; the caller has
    // checked `src`.
    unsafe { raw::cuMemcpyDtoHAsync_v2(block.pointer().cast(), src, block.len(), raw) }
}

/// Copies within device memory.
///
/// # Errors
/// The error of the driver.
pub fn copy_dtod(stream: &Stream, dst: u64, src: u64, len: u64) -> Result<()> {
    let raw = stream.bound()?;
    // SAFETY: both ranges were checked by the caller.
    unsafe { raw::cuMemcpyDtoDAsync_v2(dst, src, len as usize, raw) }
}

/// Writes `count` elements of `width` bytes (1, 2 or 4).
///
/// # Errors
/// INVALID_VALUE for another width; the error of the driver.
pub fn fill(stream: &Stream, dst: u64, value: u32, width: u8, count: u64) -> Result<()> {
    let raw = stream.bound()?;
    let n = count as usize;
    // SAFETY: the range was checked by the caller.
    unsafe {
        match width {
            1 => raw::cuMemsetD8Async(dst, value as u8, n, raw),
            2 => raw::cuMemsetD16Async(dst, value as u16, n, raw),
            4 => raw::cuMemsetD32Async(dst, value, n, raw),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// Writes `rows` rows of `columns` elements, `pitch` bytes from row to row.
///
/// # Errors
/// INVALID_VALUE for another width; the error of the driver.
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
    unsafe {
        match width {
            1 => raw::cuMemsetD2D8Async(dst, pitch, value as u8, columns, rows, raw),
            2 => raw::cuMemsetD2D16Async(dst, pitch, value as u16, columns, rows, raw),
            4 => raw::cuMemsetD2D32Async(dst, pitch, value, columns, rows, raw),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// Rows in device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rows {
    /// Address of the first byte.
    pub at: u64,
    /// Bytes from the start of a row to the start of the next.
    pub pitch: u64,
}

/// Parameters of a copy of rows, all zero.
fn no_copy() -> sys::CUDA_MEMCPY2D {
    sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        srcHost: ptr::null(),
        srcDevice: 0,
        srcArray: ptr::null_mut(),
        srcPitch: 0,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_DEVICE,
        dstHost: ptr::null_mut(),
        dstDevice: 0,
        dstArray: ptr::null_mut(),
        dstPitch: 0,
        WidthInBytes: 0,
        Height: 0,
    }
}

/// Copies the staging block, which holds consecutive rows of `width` bytes, to rows on the device.
/// Otherwise as [`copy_htod`].
///
/// # Errors
/// The error of the driver.
pub fn copy_rows_htod(stream: &Stream, dst: Rows, block: &Block, width: usize) -> Result<()> {
    let copy = sys::CUDA_MEMCPY2D {
        srcMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        srcHost: block.pointer().cast(),
        srcPitch: width,
        dstDevice: dst.at,
        dstPitch: dst.pitch as usize,
        WidthInBytes: width,
        Height: block.len() / width.max(1),
        ..no_copy()
    };
    let raw = stream.bound()?;
    // SAFETY: the staging block has as many rows as its length allows; the caller has checked the
    // rows on the device.
    unsafe { raw::cuMemcpy2DAsync_v2(&copy, raw) }
}

/// Copies rows on the device into the staging block, consecutively. Otherwise as [`copy_dtoh`].
///
/// # Errors
/// The error of the driver.
pub fn copy_rows_dtoh(stream: &Stream, block: &Block, src: Rows, width: usize) -> Result<()> {
    let copy = sys::CUDA_MEMCPY2D {
        srcDevice: src.at,
        srcPitch: src.pitch as usize,
        dstMemoryType: sys::CUmemorytype::CU_MEMORYTYPE_HOST,
        dstHost: block.pointer().cast(),
        dstPitch: width,
        WidthInBytes: width,
        Height: block.len() / width.max(1),
        ..no_copy()
    };
    let raw = stream.bound()?;
    // SAFETY: the staging block has room for as many rows as its length allows and is not read
    // before completion; the caller has checked the rows on the device.
    unsafe { raw::cuMemcpy2DAsync_v2(&copy, raw) }
}

/// Copies `rows` rows of `width` bytes within device memory.
///
/// # Errors
/// The error of the driver.
pub fn copy_rows_dtod(
    stream: &Stream,
    dst: Rows,
    src: Rows,
    (width, rows): (u64, u64),
) -> Result<()> {
    let copy = sys::CUDA_MEMCPY2D {
        srcDevice: src.at,
        srcPitch: src.pitch as usize,
        dstDevice: dst.at,
        dstPitch: dst.pitch as usize,
        WidthInBytes: width as usize,
        Height: rows as usize,
        ..no_copy()
    };
    let raw = stream.bound()?;
    // SAFETY: both areas were checked by the caller.
    unsafe { raw::cuMemcpy2DAsync_v2(&copy, raw) }
}

/// A word of device memory that a stream writes or waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Word {
    /// Address of the word.
    pub at: u64,
    /// Value to write or to wait for.
    pub value: u64,
    /// Whether the word has 64 bits instead of 32.
    pub wide: bool,
    /// `CUstreamWriteValue_flags` or `CUstreamWaitValue_flags`.
    pub flags: u32,
}

/// `cuStreamWriteValue32/64`.
///
/// # Errors
/// The error of the driver; CUDA_ERROR_NOT_SUPPORTED if the driver lacks these functions.
pub fn write_word(stream: &Stream, word: Word) -> Result<()> {
    let to = stream.bound()?;
    // SAFETY: the stream lives; the word was checked by the caller.
    unsafe {
        match word.wide {
            true => raw::cuStreamWriteValue64_v2(to, word.at, word.value, word.flags),
            false => raw::cuStreamWriteValue32_v2(to, word.at, word.value as u32, word.flags),
        }
    }
}

/// `cuStreamWaitValue32/64`.
///
/// # Errors
/// As [`write_word`].
pub fn wait_word(stream: &Stream, word: Word) -> Result<()> {
    let on = stream.bound()?;
    // SAFETY: the stream lives; the word was checked by the caller.
    unsafe {
        match word.wide {
            true => raw::cuStreamWaitValue64_v2(on, word.at, word.value, word.flags),
            false => raw::cuStreamWaitValue32_v2(on, word.at, word.value as u32, word.flags),
        }
    }
}
