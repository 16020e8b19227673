//! Copies of boxes with an array on at least one side. The guest gathers and scatters rows in the
//! program's memory; the host does everything else.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::memory_type::ARRAY;
use vgpu_cuda_abi::structs::{Copy3D, Side3D};
use vgpu_proto::call::ops::BoxSide;
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;
use vgpu_proto::limits::COPY_PIECE;

use crate::Cu;
use crate::mirror::Reach;
use crate::ops::area::{Area, SCATTER, size};
use crate::ops::copy::{Form, sent};
use crate::state::Shim;
use crate::state::arrays::ArrayInfo;
use crate::state::streams::Target;
use crate::sys::UserMemory;

/// One side of a copy, after the checks.
enum End {
    Linear(Area),
    Array(Arc<ArrayInfo>, [u64; 3]),
}

impl End {
    fn of(shim: &Shim, side: &Side3D, size: [u64; 3]) -> Cu<End> {
        if side.kind != ARRAY {
            return Area::of(shim, side, size.into()).map(End::Linear);
        }
        let array = shim.arrays.get(side.array)?;
        let at = [side.x as u64, side.y as u64, side.z as u64];
        if side.lod != 0 || !array.shape.contains(at, size) {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(End::Array(array, at))
    }

    /// The side in the form of the wire.
    fn side(&self, [_, height, _]: [u64; 3]) -> BoxSide {
        match self {
            End::Array(array, at) => BoxSide::Array {
                array: array.handle,
                at: *at,
            },
            End::Linear(area) => BoxSide::Memory {
                at: DevPtr(area.at),
                pitch: area.pitch,
                rows: match area.slice {
                    0 => height,
                    slice => slice / area.pitch,
                },
            },
        }
    }
}

/// Whether one side is an array.
pub(crate) fn has_array(copy: &Copy3D) -> bool {
    copy.dst.kind == ARRAY || copy.src.kind == ARRAY
}

/// Checks a copy. The caller makes sure that the size is not 0 in any direction.
pub(crate) fn check(shim: &Shim, copy: &Copy3D) -> Cu {
    End::of(shim, &copy.dst, size(copy))?;
    End::of(shim, &copy.src, size(copy)).map(|_| ())
}

/// Runs a copy in a stream that is not captured.
pub(crate) fn run(shim: &Shim, target: &Target, copy: &Copy3D, form: Form) -> Cu {
    let size = size(copy);
    let dst = End::of(shim, &copy.dst, size)?;
    let src = match copy.src.kind {
        ARRAY => End::of(shim, &copy.src, size)?,
        _ => End::Linear(Area::source(shim, target, &copy.src, size.into(), form)?),
    };
    let _work = target.order(shim, Reach::Any)?;
    match (&dst, &src) {
        (End::Array(array, at), End::Linear(area)) if !area.on_device => {
            gather(shim, target, (array, *at), *area, size)?;
            sent(shim, target, form == Form::Synchronous)
        }
        (End::Linear(area), End::Array(array, at)) if !area.on_device => {
            scatter(shim, target, *area, (array, *at), size)
        }
        _ => shim.session.post(&req::MemcpyBox {
            ctx: target.ctx(),
            stream: target.stream,
            dst: dst.side(size),
            src: src.side(size),
            size,
        }),
    }
}

/// Splits rows into parts of at most one piece of a copy: (first byte, number of bytes).
fn columns(width: u64) -> impl Iterator<Item = (u64, u64)> {
    let most = COPY_PIECE as u64;
    (0..width.div_ceil(most)).map(move |n| (n * most, most.min(width - n * most)))
}

fn gather(
    shim: &Shim,
    target: &Target,
    (array, at): (&ArrayInfo, [u64; 3]),
    from: Area,
    [width, height, depth]: [u64; 3],
) -> Cu {
    for (z, (x, width)) in (0..depth).flat_map(|z| columns(width).map(move |c| (z, c))) {
        let most = COPY_PIECE as u64 / width;
        let slice = from.slice(z);
        let mut y = 0;
        while y < height {
            let rows = most.min(height - y);
            let call = req::MemcpyHtoA {
                ctx: target.ctx(),
                stream: target.stream,
                dst: array.handle,
                at: [at[0] + x, at[1] + y, at[2] + z],
                width: width as u32,
            };
            let len = (rows * width) as usize;
            shim.session.post_with(&call, len, |bytes| {
                for (row, place) in (y..).zip(bytes.chunks_exact_mut(width as usize)) {
                    let from = (slice.row(row) + x) as *const u8;
                    // SAFETY: a row of the program's memory; the program guarantees its size.
                    unsafe { place.as_mut_ptr().copy_from(from, place.len()) };
                }
            })?;
            y += rows;
        }
    }
    Ok(())
}

fn scatter(
    shim: &Shim,
    target: &Target,
    to: Area,
    (array, at): (&ArrayInfo, [u64; 3]),
    [width, height, depth]: [u64; 3],
) -> Cu {
    for (z, (x, width)) in (0..depth).flat_map(|z| columns(width).map(move |c| (z, c))) {
        let most = (SCATTER / width).max(1).min(height);
        let slice = to.slice(z);
        let mut bytes = vec![0_u8; (most * width) as usize];
        let mut y = 0;
        while y < height {
            let rows = most.min(height - y);
            let call = req::MemcpyAtoH {
                ctx: target.ctx(),
                stream: target.stream,
                src: array.handle,
                at: [at[0] + x, at[1] + y, at[2] + z],
                width: width as u32,
                rows,
            };
            let into = UserMemory {
                at: bytes.as_mut_ptr(),
                len: (rows * width) as usize,
            };
            shim.session.fetch(&call, into)?;
            for (row, from) in (y..y + rows).zip(bytes.chunks_exact(width as usize)) {
                let to = (slice.row(row) + x) as *mut u8;
                // SAFETY: a row of the program's memory; the program guarantees its size.
                unsafe { to.copy_from(from.as_ptr(), from.len()) };
            }
            y += rows;
        }
    }
    Ok(())
}
