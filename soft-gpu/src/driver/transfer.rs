//! What a copy is told: CUDA_MEMCPY3D and its kin, and where the rows that it names lie.

use super::array;
use super::copy::{Extent, Layout, Side};
use super::error::{CuError, Result};

/// CU_MEMORYTYPE_HOST, _DEVICE, _ARRAY, _UNIFIED.
const HOST: u32 = 1;
const DEVICE: u32 = 2;
const ARRAY: u32 = 3;
const UNIFIED: u32 = 4;

/// One side of CUDA_MEMCPY3D.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Side3 {
    /// Bytes into a row.
    pub x: usize,
    /// Rows into a slice.
    pub y: usize,
    /// Slices.
    pub z: usize,
    /// Level of detail, of arrays only.
    pub lod: usize,
    /// CUmemorytype.
    pub kind: u32,
    /// Address of host memory.
    pub host: u64,
    /// Address of device or unified memory.
    pub device: u64,
    /// CUarray.
    pub array: u64,
    /// In CUDA_MEMCPY3D_PEER: the context of this side.
    pub context: u64,
    /// From a row to the next; 0 for contiguous rows.
    pub pitch: usize,
    /// From a slice to the next, in rows; 0 for contiguous slices.
    pub height: usize,
}

/// CUDA_MEMCPY3D.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Copy3 {
    /// Where from.
    pub src: Side3,
    /// Where to.
    pub dst: Side3,
    /// Bytes a row.
    pub width: usize,
    /// Rows a slice.
    pub height: usize,
    /// Slices.
    pub depth: usize,
}

/// CUmemorytype → which address, and what it is said to be.
fn address(s: &Side3) -> Result<(Side, u64)> {
    match s.kind {
        HOST => Ok((Side::Host, s.host)),
        DEVICE => Ok((Side::Device, s.device)),
        UNIFIED => Ok((Side::Unified, s.device)),
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
    /// Contiguous bytes at `addr`.
    pub fn flat((side, addr): (Side, u64)) -> Side3 {
        let (kind, host, device) = match side {
            Side::Host => (HOST, addr, 0),
            Side::Device => (DEVICE, 0, addr),
            Side::Unified => (UNIFIED, 0, addr),
        };
        Side3 {
            x: 0,
            y: 0,
            z: 0,
            lod: 0,
            kind,
            host,
            device,
            array: 0,
            context: 0,
            pitch: 0,
            height: 0,
        }
    }

    /// Where the rows of a copy of `width` bytes, `rows` rows and `slices` slices lie.
    ///
    /// # Errors
    /// Rows that overlap or leave the address space or the array.
    pub fn resolve(&self, width: usize, rows: usize, slices: usize) -> Result<(Side, Layout)> {
        if self.kind == ARRAY {
            return self.resolve_array([width, rows, slices]);
        }
        let (side, base) = address(self)?;
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

impl Side3 {
    fn resolve_array(&self, size: [usize; 3]) -> Result<(Side, Layout)> {
        let array = array::get(self.array)?;
        if !array.contains([self.x, self.y, self.z], size) {
            return Err(CuError::INVALID_VALUE);
        }
        let slice = array.pitch * array.rows() as u64;
        let at = offset(array.pitch, slice, (self.x, self.y, self.z));
        Ok((
            Side::Device,
            Layout {
                addr: array.addr + at.ok_or(CuError::INVALID_VALUE)?,
                pitch: array.pitch,
                slice,
            },
        ))
    }
}

impl Copy3 {
    /// A copy of `bytes` contiguous bytes.
    pub fn flat(dst: (Side, u64), src: (Side, u64), bytes: usize) -> Copy3 {
        Copy3 {
            src: Side3::flat(src),
            dst: Side3::flat(dst),
            width: bytes,
            height: 1,
            depth: 1,
        }
    }

    /// The size of what is copied.
    pub fn extent(&self) -> Extent {
        Extent {
            width: self.width as u64,
            height: self.height as u64,
            depth: self.depth as u64,
        }
    }
}
