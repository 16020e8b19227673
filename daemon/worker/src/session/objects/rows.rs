//! Checks of requests for fills, copies of rows, and words that streams write or wait for.

use vgpu_cuda_abi::numbers::{wait_value::NOR, write_value::NO_MEMORY_BARRIER};
use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::limits::COPY_PIECE;

use super::Objects;
use super::region::{FetchWork, Region, Shape};
use super::staging::Bulk;
use super::work::{FillWork, Work};
use crate::driver::{Result, Rows, Word};

impl Objects {
    /// Checks that a range lies in memory that the guest may use. An empty range always passes.
    pub(crate) fn check_range(&self, address: u64, len: u64) -> Result<()> {
        if len == 0 || self.memory.contains(address, len) {
            Ok(())
        } else {
            Err(CuResult::INVALID_VALUE)
        }
    }

    /// Checks a copy of consecutive bytes to the device.
    pub(crate) fn check_htod(&self, r: &req::MemcpyHtoD, data: Bulk) -> Result<Work> {
        let len = data.bytes().len();
        self.check_range(r.dst.0, len as u64)?;
        if len > COPY_PIECE {
            return Err(CuResult::INVALID_VALUE);
        }
        let to = Region::Line(r.dst.0);
        Ok(Work::HtoD { to, data })
    }

    /// Checks a copy of consecutive bytes to the guest. `None`: there is nothing to copy.
    pub(crate) fn check_dtoh(&self, r: &req::MemcpyDtoH) -> Result<Option<Work>> {
        self.check_range(r.src.0, r.len)?;
        Ok((r.len > 0).then(|| {
            Work::DtoH(FetchWork {
                from: Region::Line(r.src.0),
                len: r.len,
                done: 0,
            })
        }))
    }

    /// Checks a copy of consecutive bytes on the device.
    pub(crate) fn check_dtod(&self, r: &req::MemcpyDtoD) -> Result<Work> {
        let (dst, src, len) = (r.dst.0, r.src.0, r.len);
        self.check_range(dst, len)?;
        self.check_range(src, len)?;
        Ok(Work::DtoD { dst, src, len })
    }

    /// Checks a fill of consecutive elements.
    pub(crate) fn check_fill(&self, r: &req::Memset) -> Result<Work> {
        let len = fill_len(r.width, r.count)?;
        aligned(r.dst.0, r.width)?;
        self.check_range(r.dst.0, len)?;
        Ok(Work::Fill(FillWork {
            dst: r.dst.0,
            value: r.value,
            width: r.width,
            columns: r.count,
            rows: None,
        }))
    }

    /// Checks a fill of rows.
    pub(crate) fn check_fill_2d(&self, r: &req::Memset2D) -> Result<Work> {
        let row = fill_len(r.width, r.columns)?;
        aligned(r.dst.0, r.width)?;
        aligned(r.pitch, r.width)?;
        if r.rows > 1 && r.pitch < row {
            return Err(CuResult::INVALID_VALUE);
        }
        let len = match r.rows {
            0 => Some(0),
            _ if row == 0 => Some(0),
            rows => r
                .pitch
                .checked_mul(rows - 1)
                .and_then(|before| before.checked_add(row)),
        };
        self.check_range(r.dst.0, len.ok_or(CuResult::INVALID_VALUE)?)?;
        Ok(Work::Fill(FillWork {
            dst: r.dst.0,
            value: r.value,
            width: r.width,
            columns: r.columns,
            rows: Some((r.rows, r.pitch)),
        }))
    }

    /// Checks a copy of rows from the guest, which are consecutive in `data`.
    pub(crate) fn check_rows_htod(&self, r: &req::Memcpy2DHtoD, data: Bulk) -> Result<Work> {
        let len = data.bytes().len() as u64;
        let shape = shape(r.width, r.pitch)?;
        if len == 0 || len > COPY_PIECE as u64 || !len.is_multiple_of(shape.width) {
            return Err(CuResult::INVALID_VALUE);
        }
        self.check_area(r.dst.0, shape, len / shape.width)?;
        Ok(Work::HtoD {
            to: Region::Rows(r.dst.0, shape),
            data,
        })
    }

    /// Checks a copy of rows to the guest. `None`: there are no rows.
    pub(crate) fn check_rows_dtoh(&self, r: &req::Memcpy2DDtoH) -> Result<Option<Work>> {
        let shape = shape(r.width, r.pitch)?;
        if r.rows == 0 {
            return Ok(None);
        }
        self.check_area(r.src.0, shape, r.rows)?;
        let len = shape.width.checked_mul(r.rows);
        Ok(Some(Work::DtoH(FetchWork {
            from: Region::Rows(r.src.0, shape),
            len: len.ok_or(CuResult::INVALID_VALUE)?,
            done: 0,
        })))
    }

    /// Checks a copy of rows within the device.
    pub(crate) fn check_rows_dtod(&self, r: &req::Memcpy2DDtoD) -> Result<Work> {
        let area = |pitch| Shape {
            width: r.width,
            pitch,
        };
        if r.width == 0 || r.rows == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        self.check_area(r.dst.0, area(r.dst_pitch), r.rows)?;
        self.check_area(r.src.0, area(r.src_pitch), r.rows)?;
        // The pitch of a single row has no meaning here, but the driver checks it.
        let pitch = |pitch: u64| if r.rows == 1 { r.width } else { pitch };
        Ok(Work::Rows {
            dst: Rows {
                at: r.dst.0,
                pitch: pitch(r.dst_pitch),
            },
            src: Rows {
                at: r.src.0,
                pitch: pitch(r.src_pitch),
            },
            size: (r.width, r.rows),
        })
    }

    /// Checks that all bytes from the first byte of the first row to the last byte of the last row
    /// lie in one allocation.
    fn check_area(&self, at: u64, shape: Shape, rows: u64) -> Result<()> {
        if rows > 1 && shape.pitch < shape.width {
            return Err(CuResult::INVALID_VALUE);
        }
        let before = shape.pitch.checked_mul(rows.saturating_sub(1));
        let len = before.and_then(|before| before.checked_add(shape.width));
        self.check_range(at, len.ok_or(CuResult::INVALID_VALUE)?)
    }

    pub(crate) fn check_write(&self, r: &req::StreamWriteValue) -> Result<Work> {
        let word = Word {
            at: r.ptr.0,
            value: r.value,
            wide: r.wide,
            flags: r.flags,
        };
        self.check_word(word, NO_MEMORY_BARRIER)
            .map(Work::WriteWord)
    }

    pub(crate) fn check_wait(&self, r: &req::StreamWaitValue) -> Result<Work> {
        let word = Word {
            at: r.ptr.0,
            value: r.value,
            wide: r.wide,
            flags: r.flags,
        };
        // The last comparison. (`FLUSH` concerns writes of other devices.)
        self.check_word(word, NOR).map(Work::WaitWord)
    }

    fn check_word(&self, word: Word, flags: u32) -> Result<Word> {
        let len = if word.wide { 8 } else { 4 };
        if word.flags > flags || !word.at.is_multiple_of(len) {
            return Err(CuResult::INVALID_VALUE);
        }
        self.check_range(word.at, len).map(|()| word)
    }
}

fn shape(width: u32, pitch: u64) -> Result<Shape> {
    if width == 0 || width as usize > COPY_PIECE {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(Shape {
        width: width.into(),
        pitch,
    })
}

fn fill_len(width: u8, count: u64) -> Result<u64> {
    if !matches!(width, 1 | 2 | 4) {
        return Err(CuResult::INVALID_VALUE);
    }
    count
        .checked_mul(u64::from(width))
        .ok_or(CuResult::INVALID_VALUE)
}

fn aligned(n: u64, width: u8) -> Result<()> {
    if n.is_multiple_of(u64::from(width)) {
        Ok(())
    } else {
        Err(CuResult::INVALID_VALUE)
    }
}
