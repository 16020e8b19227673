//! Device regions for copies: contiguous, in rows, or in an array.

use std::sync::{Arc, Weak};

use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::COPY_PIECE;

use crate::driver::{
    Array, Block, Result, Rows, Stream, copy_atoh, copy_dtoh, copy_htoa, copy_htod, copy_rows_dtoh,
    copy_rows_htod,
};

/// The shape of rows in device memory that are not contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of bytes in a row, at least 1 and at most [`COPY_PIECE`].
    pub width: u64,
    /// Number of bytes from the start of a row to the start of the next.
    pub pitch: u64,
}

/// A position in an array.
#[derive(Debug, Clone)]
pub(crate) struct InArray {
    /// The array, if it still exists.
    pub array: Weak<Array>,
    /// Position: byte in the row, row, slice.
    pub at: [u64; 3],
}

impl InArray {
    /// The array.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if the array no longer exists.
    pub(crate) fn array(&self) -> Result<Arc<Array>> {
        self.array.upgrade().ok_or(CuResult::INVALID_HANDLE)
    }
}

/// A region of the device for a copy.
#[derive(Debug, Clone)]
pub(crate) enum Region {
    /// Contiguous memory from this address on.
    Line(u64),
    /// Rows; the address of the first row, and the shape.
    Rows(u64, Shape),
    /// Rows of one slice of an array. The number is the bytes per row, at least 1 and at most
    /// [`COPY_PIECE`].
    Array(InArray, u64),
}

impl Region {
    /// Copies the staging block to the region, in a stream.
    pub(crate) fn fill(&self, stream: &Stream, block: &Block) -> Result<()> {
        match self {
            Region::Line(at) => copy_htod(stream, *at, block),
            Region::Rows(at, Shape { width, pitch }) => {
                let rows = Rows {
                    at: *at,
                    pitch: *pitch,
                };
                copy_rows_htod(stream, rows, block, *width as usize)
            }
            Region::Array(there, width) => {
                copy_htoa(stream, &*there.array()?, there.at, block, *width as usize)
            }
        }
    }

    /// Copies from the region as many bytes as the staging block holds, in a stream.
    pub(crate) fn read(&self, stream: &Stream, block: &Block) -> Result<()> {
        match self {
            Region::Line(at) => copy_dtoh(stream, block, *at),
            Region::Rows(at, Shape { width, pitch }) => {
                let rows = Rows {
                    at: *at,
                    pitch: *pitch,
                };
                copy_rows_dtoh(stream, block, rows, *width as usize)
            }
            Region::Array(there, width) => {
                copy_atoh(stream, block, &*there.array()?, there.at, *width as usize)
            }
        }
    }

    /// Maximum number of bytes of one piece: whole rows, if there are rows.
    fn piece(&self) -> u64 {
        let most = COPY_PIECE as u64;
        match self {
            Region::Line(_) => most,
            Region::Rows(_, Shape { width, .. }) | Region::Array(_, width) => most / width * width,
        }
    }

    /// The device memory from the first byte of the region to the last of its `len` bytes:
    /// (address, length in bytes). `None` for an array.
    pub(crate) fn range(&self, len: u64) -> Option<(u64, u64)> {
        match self {
            Region::Line(at) => Some((*at, len)),
            Region::Rows(at, Shape { width, pitch }) => {
                let (at, pitch) = (*at, *pitch);
                area(&Rows { at, pitch }, (*width, len / width))
            }
            Region::Array(..) => None,
        }
    }

    /// The region without its first `done` bytes.
    pub(crate) fn after(&self, done: u64) -> Region {
        match self {
            Region::Line(at) => Region::Line(at + done),
            Region::Rows(at, shape) => Region::Rows(at + done / shape.width * shape.pitch, *shape),
            Region::Array(InArray { array, at }, width) => {
                let array = Weak::clone(array);
                let at = [at[0], at[1] + done / width, at[2]];
                Region::Array(InArray { array, at }, *width)
            }
        }
    }
}

/// The device memory from the first byte of `n` rows of `width` bytes to the last: (address, length
/// in bytes).
pub(crate) fn area(rows: &Rows, (width, n): (u64, u64)) -> Option<(u64, u64)> {
    let before = rows.pitch.saturating_mul(n.saturating_sub(1));
    Some((rows.at, before.saturating_add(width)))
}

/// A copy of data from the device to the guest, in pieces.
#[derive(Debug, Clone)]
pub(crate) struct FetchWork {
    /// The device memory or array from which the bytes are copied.
    pub from: Region,
    /// Number of bytes; whole rows, if there are rows.
    pub len: u64,
    /// Number of bytes whose copies are submitted.
    pub done: u64,
}

impl FetchWork {
    /// Number of bytes of the next piece.
    pub(crate) fn piece(&self) -> u64 {
        (self.len - self.done).min(self.from.piece())
    }

    /// Region of the next piece and all later pieces.
    pub(crate) fn next(&self) -> Region {
        self.from.after(self.done)
    }
}
