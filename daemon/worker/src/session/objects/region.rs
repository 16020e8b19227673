//! Where data that travels lies on the device: in one piece, in rows, in an array.

use std::sync::{Arc, Weak};

use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::COPY_PIECE;

use crate::driver::{
    Array, Block, Result, Rows, Stream, copy_atoh, copy_dtoh, copy_htoa, copy_htod, copy_rows_dtoh,
    copy_rows_htod,
};

/// Rows of `width` bytes in device memory, `pitch` apart, where data is not in one piece.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Bytes of a row, never 0 and at most [`COPY_PIECE`].
    pub width: u64,
    /// Bytes between the beginnings of two.
    pub pitch: u64,
}

/// A place in an array.
#[derive(Debug, Clone)]
pub(crate) struct InArray {
    /// Which, if it is still there.
    pub array: Weak<Array>,
    /// Byte of a row, row, slice.
    pub at: [u64; 3],
}

impl InArray {
    /// The array.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE if it is gone.
    pub(crate) fn array(&self) -> Result<Arc<Array>> {
        self.array.upgrade().ok_or(CuResult::INVALID_HANDLE)
    }
}

/// Where data that travels lies on the device.
#[derive(Debug, Clone)]
pub(crate) enum Region {
    /// In one piece, from here on.
    Line(u64),
    /// In rows, the first of them here.
    Rows(u64, Shape),
    /// In rows of so many bytes, never 0 and at most [`COPY_PIECE`], of one slice of an array.
    Array(InArray, u64),
}

impl Region {
    /// Copies the block there, in a stream.
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

    /// Copies as much as the block holds from there, in a stream.
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

    /// Bytes of a piece: whole rows where there are some.
    fn piece(&self) -> u64 {
        let most = COPY_PIECE as u64;
        match self {
            Region::Line(_) => most,
            Region::Rows(_, Shape { width, .. }) | Region::Array(_, width) => most / width * width,
        }
    }

    /// The device memory from its first byte to the last of `len`: (address, bytes).
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

    /// What is left of it after `done` bytes.
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

/// From the first byte of so many rows of so many bytes to the last: (address, bytes).
pub(crate) fn area(rows: &Rows, (width, n): (u64, u64)) -> Option<(u64, u64)> {
    let before = rows.pitch.saturating_mul(n.saturating_sub(1));
    Some((rows.at, before.saturating_add(width)))
}

/// Data that is fetched from the device.
#[derive(Debug, Clone)]
pub(crate) struct FetchWork {
    /// From where.
    pub from: Region,
    /// How much; whole rows where there are some.
    pub len: u64,
    /// How much of it has been submitted.
    pub done: u64,
}

impl FetchWork {
    /// Bytes of the next piece.
    pub(crate) fn piece(&self) -> u64 {
        (self.len - self.done).min(self.from.piece())
    }

    /// Where the next piece begins.
    pub(crate) fn next(&self) -> Region {
        self.from.after(self.done)
    }
}
