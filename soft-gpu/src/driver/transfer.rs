//! The description of a copy (CUDA_MEMCPY3D and similar), and the addresses of its rows.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::memory_type::{ARRAY, DEVICE, HOST, UNIFIED};
use vgpu_cuda_abi::structs::{Copy3D, Side3D};

use super::array;
use super::copy::{Extent, Layout, Side};
use super::error::Result;

/// The declared kind of memory and the address of one side of a copy, from its CUmemorytype.
fn address(s: &Side3D) -> Result<(Side, u64)> {
    match s.kind {
        HOST => Ok((Side::Host, s.host)),
        DEVICE => Ok((Side::Device, s.device)),
        UNIFIED => Ok((Side::Unified, s.device)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn offset(pitch: u64, slice: u64, (x, y, z): (usize, usize, usize)) -> Option<u64> {
    let rows = pitch.checked_mul(y as u64)?;
    slice
        .checked_mul(z as u64)?
        .checked_add(rows)?
        .checked_add(x as u64)
}

/// The side of a copy that consists of contiguous bytes.
pub fn side((side, addr): (Side, u64)) -> Side3D {
    let (kind, host, device) = match side {
        Side::Host => (HOST, addr, 0),
        Side::Device => (DEVICE, 0, addr),
        Side::Unified => (UNIFIED, 0, addr),
    };
    Side3D {
        kind,
        host,
        device,
        ..Side3D::NOWHERE
    }
}

/// The addresses of the rows of a copy of `slices` slices with `rows` rows of `width` bytes.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: rows overlap, or leave the address space or the array.
pub fn resolve(of: &Side3D, width: usize, rows: usize, slices: usize) -> Result<(Side, Layout)> {
    if of.kind == ARRAY {
        return resolve_array(of, [width, rows, slices]);
    }
    let (side, base) = address(of)?;
    let bad = || CuResult::INVALID_VALUE;
    let pitch = if of.pitch == 0 {
        width.checked_add(of.x).ok_or_else(bad)?
    } else {
        of.pitch
    };
    let height = if of.height == 0 { rows } else { of.height };
    if width.checked_add(of.x).is_none_or(|end| end > pitch) && (rows > 1 || height > 1) {
        return Err(bad());
    }
    let (pitch, height) = (pitch as u64, height as u64);
    let slice = pitch.checked_mul(height).ok_or_else(bad)?;
    let at = offset(pitch, slice, (of.x, of.y, of.z)).ok_or_else(bad)?;
    Ok((
        side,
        Layout {
            addr: base.checked_add(at).ok_or_else(bad)?,
            pitch,
            slice,
        },
    ))
}

fn resolve_array(of: &Side3D, size: [usize; 3]) -> Result<(Side, Layout)> {
    let array = array::get(of.array)?;
    let at = [of.x, of.y, of.z].map(|n| n as u64);
    if !array.shape.contains(at, size.map(|n| n as u64)) {
        return Err(CuResult::INVALID_VALUE);
    }
    let slice = array.pitch * array.rows();
    let at = offset(array.pitch, slice, (of.x, of.y, of.z));
    Ok((
        Side::Device,
        Layout {
            addr: array.addr + at.ok_or(CuResult::INVALID_VALUE)?,
            pitch: array.pitch,
            slice,
        },
    ))
}

/// A copy of `bytes` contiguous bytes.
pub fn flat(dst: (Side, u64), src: (Side, u64), bytes: usize) -> Copy3D {
    Copy3D {
        src: side(src),
        dst: side(dst),
        width: bytes,
        height: 1,
        depth: 1,
    }
}

/// The size of a copy.
pub fn extent(copy: &Copy3D) -> Extent {
    Extent {
        width: copy.width as u64,
        height: copy.height as u64,
        depth: copy.depth as u64,
    }
}
