//! Fills of device memory. All fills are asynchronous, as in CUDA, except fills without a stream
//! argument of memory that the program can read directly.

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;

use crate::Cu;
use crate::mirror::Reach;
use crate::state::graphs::{FillNode, Kind};
use crate::state::streams::Target;
use crate::state::{Shim, capture};

pub(crate) fn line_now(
    shim: &Shim,
    target: &Target,
    dst: u64,
    value: u32,
    width: u8,
    count: usize,
) -> Cu {
    shim.settles(target, &[dst])?;
    line(shim, target, dst, value, width, count)?;
    shim.settle(target, &[dst])
}

pub(crate) fn line(
    shim: &Shim,
    target: &Target,
    dst: u64,
    value: u32,
    width: u8,
    count: usize,
) -> Cu {
    if count == 0 {
        return Ok(());
    }
    let bytes = (count as u64)
        .checked_mul(width.into())
        .ok_or(CuResult::INVALID_VALUE)?;
    if !dst.is_multiple_of(width.into()) {
        return Err(CuResult::INVALID_VALUE);
    }
    shim.reach(dst, bytes)?;
    if shim.captures.any() {
        let node = FillNode {
            dst,
            pitch: 0,
            value,
            width,
            columns: count as u64,
            rows: 1,
        };
        if capture::take(shim, target, || Ok(Kind::Fill(node)))? {
            return Ok(());
        }
    }
    let _work = target.order(shim, Reach::Named(&[dst]))?;
    shim.session.post(&req::Memset {
        ctx: target.ctx(),
        stream: target.stream,
        dst: DevPtr(dst),
        value,
        width,
        count: count as u64,
    })
}

/// Runs the fill of a graph node in a stream or a recording.
pub(crate) fn again(shim: &Shim, target: &Target, fill: &FillNode) -> Cu {
    if fill.columns == 0 || fill.rows == 0 {
        return Ok(());
    }
    let (ctx, stream, dst) = (target.ctx(), target.stream, DevPtr(fill.dst));
    if fill.rows == 1 {
        return shim.session.post(&req::Memset {
            ctx,
            stream,
            dst,
            value: fill.value,
            width: fill.width,
            count: fill.columns,
        });
    }
    shim.session.post(&req::Memset2D {
        ctx,
        stream,
        dst,
        pitch: fill.pitch,
        value: fill.value,
        width: fill.width,
        columns: fill.columns,
        rows: fill.rows,
    })
}

/// Rows of elements to fill; the rows are `pitch` bytes apart.
pub(crate) struct Area {
    pub(crate) dst: u64,
    pub(crate) pitch: usize,
    pub(crate) columns: usize,
    pub(crate) rows: usize,
}

impl Area {
    pub(crate) fn fill_now(&self, shim: &Shim, target: &Target, value: u32, width: u8) -> Cu {
        shim.settles(target, &[self.dst])?;
        self.fill(shim, target, value, width)?;
        shim.settle(target, &[self.dst])
    }

    pub(crate) fn fill(&self, shim: &Shim, target: &Target, value: u32, width: u8) -> Cu {
        if self.columns == 0 || self.rows == 0 {
            return Ok(());
        }
        self.check(shim, width).ok_or(CuResult::INVALID_VALUE)?;
        if shim.captures.any() {
            let node = FillNode {
                dst: self.dst,
                pitch: self.pitch as u64,
                value,
                width,
                columns: self.columns as u64,
                rows: self.rows as u64,
            };
            if capture::take(shim, target, || Ok(Kind::Fill(node)))? {
                return Ok(());
            }
        }
        let _work = target.order(shim, Reach::Named(&[self.dst]))?;
        shim.session.post(&req::Memset2D {
            ctx: target.ctx(),
            stream: target.stream,
            dst: DevPtr(self.dst),
            pitch: self.pitch as u64,
            value,
            width,
            columns: self.columns as u64,
            rows: self.rows as u64,
        })
    }

    pub(crate) fn check(&self, shim: &Shim, width: u8) -> Option<()> {
        let (pitch, width) = (self.pitch as u64, u64::from(width));
        let row = (self.columns as u64).checked_mul(width)?;
        // The pitch of a single row is ignored.
        let fits = self.rows == 1 || (pitch >= row && pitch.is_multiple_of(width));
        if !fits || !self.dst.is_multiple_of(width) {
            return None;
        }
        let whole = (self.rows as u64 - 1)
            .checked_mul(pitch)?
            .checked_add(row)?;
        shim.reach(self.dst, whole).ok()
    }
}
