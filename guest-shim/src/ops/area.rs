//! Copies of rows and of boxes. The guest gathers and scatters rows in the program's memory, so
//! that only the bytes of rows are sent, without the gaps between them.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::memory_type;
use vgpu_cuda_abi::structs::{Copy3D, Side3D};
use vgpu_proto::call::req;
use vgpu_proto::cuda::DevPtr;
use vgpu_proto::limits::COPY_PIECE;

use crate::Cu;
use crate::mirror::Reach;
use crate::ops::boxes;
use crate::ops::copy::{
    Form, read as to_device, read_in_order, sent, to_host_now as to_host, within_now as within,
};
use crate::state::contexts::Context;
use crate::state::graphs::Kind;
use crate::state::streams::Target;
use crate::state::{Shim, capture};
use crate::sys::UserMemory;

/// Number of bytes that are fetched at once for scattering.
pub(crate) const SCATTER: u64 = 4 * 1024 * 1024;

/// One side of a copy: bytes of the first row of an array, from byte `x` on.
pub(crate) fn in_array(array: u64, x: usize) -> Side3D {
    Side3D {
        x,
        kind: memory_type::ARRAY,
        array,
        ..Side3D::NOWHERE
    }
}

/// One side of a copy: bytes of the program's memory.
pub(crate) fn on_host(address: u64) -> Side3D {
    Side3D {
        kind: memory_type::HOST,
        host: address,
        ..Side3D::NOWHERE
    }
}

/// One side of a copy: bytes of device memory.
pub(crate) fn on_device(address: u64) -> Side3D {
    Side3D {
        kind: memory_type::DEVICE,
        device: address,
        ..Side3D::NOWHERE
    }
}

/// One side of a copy: rows in memory whose kind the address determines.
pub(crate) fn anywhere(address: u64, pitch: usize, height: usize) -> Side3D {
    Side3D {
        kind: memory_type::UNIFIED,
        device: address,
        pitch,
        height,
        ..Side3D::NOWHERE
    }
}

/// Size of a copy: bytes of a row, number of rows, number of slices.
pub(crate) fn size(copy: &Copy3D) -> [u64; 3] {
    [copy.width as u64, copy.height as u64, copy.depth as u64]
}

/// A copy of contiguous bytes as a box copy, which is the form that graphs need.
pub(crate) fn line_of(shim: &Shim, dst: u64, src: u64, len: usize) -> Copy3D {
    let side = |address: u64| Side3D {
        pitch: len,
        height: 1,
        ..match shim.is_device(address) {
            true => on_device(address),
            false => on_host(address),
        }
    };
    Copy3D {
        src: side(src),
        dst: side(dst),
        width: len,
        height: 1,
        depth: 1,
    }
}

/// Whether both sides are device memory.
pub(crate) fn is_on_device(shim: &Shim, copy: &Copy3D) -> bool {
    [&copy.dst, &copy.src].iter().all(|side| match side.kind {
        memory_type::DEVICE => true,
        memory_type::UNIFIED => shim.is_device(side.device),
        _ => false,
    })
}

/// Checks a copy; an empty copy passes.
pub(crate) fn check(shim: &Shim, copy: &Copy3D) -> Cu {
    let size = (copy.width as u64, copy.height as u64, copy.depth as u64);
    if size.0 == 0 || size.1 == 0 || size.2 == 0 {
        return Ok(());
    }
    if boxes::has_array(copy) {
        return boxes::check(shim, copy);
    }
    Area::of(shim, &copy.dst, size)?;
    Area::of(shim, &copy.src, size).map(|_| ())
}

/// Runs the copy of a graph node in a stream or a recording.
pub(crate) fn again(shim: &Shim, target: &Target, copy: &Copy3D) -> Cu {
    run(shim, target, copy, Form::Node)
}

/// Starts a copy in a stream. In a captured stream, the copy becomes a node of the graph.
pub(crate) fn start(shim: &Shim, target: &Target, copy: &Copy3D, sync: bool) -> Cu {
    if shim.captures.any() {
        if sync {
            capture::forbid(shim, target)?;
            capture::unsafe_call(shim)?;
        }
        check(shim, copy)?;
        if capture::take(shim, target, || Ok(Kind::Copy(*copy)))? {
            return Ok(());
        }
    }
    run(shim, target, copy, Form::of(sync))
}

/// Copies a box between devices. Devices have no direct path, so the copy goes through the guest:
/// the copy waits for the stream, then uses the NULL streams of both contexts.
pub(crate) fn whole(
    shim: &Shim,
    target: &Target,
    (to, from): (&Arc<Context>, &Arc<Context>),
    copy: &Copy3D,
) -> Cu {
    capture::forbid(shim, target)?;
    check(shim, copy)?;
    let [width, height, depth] = size(copy);
    let len = width.checked_mul(height).and_then(|n| n.checked_mul(depth));
    let mut bytes = vec![0_u8; len.ok_or(CuResult::INVALID_VALUE)? as usize];
    in_order(shim, target)?;
    let dense = Side3D {
        pitch: copy.width,
        height: copy.height,
        ..on_host(bytes.as_mut_ptr() as u64)
    };
    let null = |ctx: &Arc<Context>| Target {
        ctx: ctx.clone(),
        stream: vgpu_proto::cuda::Stream::NULL,
        info: None,
    };
    run(
        shim,
        &null(from),
        &Copy3D {
            dst: dense,
            ..*copy
        },
        Form::Synchronous,
    )?;
    run(
        shim,
        &null(to),
        &Copy3D {
            src: dense,
            ..*copy
        },
        Form::Synchronous,
    )
}

/// One side of a copy, as addresses and distances.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Area {
    pub(crate) on_device: bool,
    /// Address of the first byte that is copied.
    pub(crate) at: u64,
    /// Bytes between rows.
    pub(crate) pitch: u64,
    /// Bytes between slices.
    pub(crate) slice: u64,
}

impl Area {
    /// The source of a copy to the device. If it is memory of the program, the copy reads it after
    /// the earlier work of the stream.
    ///
    /// # Errors
    /// As [`Area::of`] and [`read_in_order`].
    pub(crate) fn source(
        shim: &Shim,
        target: &Target,
        side: &Side3D,
        size: (u64, u64, u64),
        form: Form,
    ) -> Cu<Area> {
        let area = Area::of(shim, side, size)?;
        if area.on_device {
            return Ok(area);
        }
        let (width, height, depth) = size;
        let len = (depth - 1) * area.slice + (height - 1) * area.pitch + width;
        read_in_order(shim, target, (area.at, len as usize), form)?;
        Area::of(shim, side, size)
    }

    pub(crate) fn of(
        shim: &Shim,
        side: &Side3D,
        (width, height, depth): (u64, u64, u64),
    ) -> Cu<Area> {
        let (base, on_device) = match side.kind {
            memory_type::HOST => (side.host, false),
            memory_type::DEVICE => (side.device, true),
            memory_type::UNIFIED => (side.device, shim.is_device(side.device)),
            _ => return Err(CuResult::INVALID_VALUE),
        };
        if base == 0 || side.lod != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let place = || -> Option<Area> {
            let (x, y, z) = (side.x as u64, side.y as u64, side.z as u64);
            // A single row in a single slice needs no pitch.
            let row_end = x.checked_add(width)?;
            let flat = side.pitch == 0 && height == 1 && depth == 1 && y == 0 && z == 0;
            let pitch = if flat { row_end } else { side.pitch as u64 };
            let rows = side.height as u64;
            let one = depth == 1 && z == 0;
            let slice = if one { 0 } else { pitch.checked_mul(rows)? };
            if pitch < row_end || (!one && rows < y.checked_add(height)?) {
                return None;
            }
            let offset = z
                .checked_mul(slice)?
                .checked_add(y.checked_mul(pitch)?)?
                .checked_add(x)?;
            Some(Area {
                on_device,
                at: base.checked_add(offset)?,
                pitch,
                slice,
            })
        };
        let mut area = place().ok_or(CuResult::INVALID_VALUE)?;
        let len = (depth - 1)
            .checked_mul(area.slice)
            .and_then(|slices| slices.checked_add((height - 1).checked_mul(area.pitch)?))
            .and_then(|rows| rows.checked_add(width))
            .ok_or(CuResult::INVALID_VALUE)?;
        match on_device {
            true => shim.reach(area.at, len)?,
            false if shim.memory.find(area.at).is_some() => return Err(CuResult::INVALID_VALUE),
            false => _ = area.at.checked_add(len).ok_or(CuResult::INVALID_VALUE)?,
        }
        // Memory of the program that kernels can reach counts as device memory, because the worker
        // has a copy of it.
        let view = || shim.view(area.at, usize::try_from(len).ok()?);
        if let Some(at) = view().filter(|_| !on_device) {
            (area.at, area.on_device) = (at, true);
        }
        Ok(area)
    }

    /// One slice of the area.
    pub(crate) fn slice(self, z: u64) -> Area {
        Area {
            at: self.at + z * self.slice,
            ..self
        }
    }

    /// Address of the first byte of a row.
    pub(crate) fn row(self, y: u64) -> u64 {
        self.at + y * self.pitch
    }
}

fn run(shim: &Shim, target: &Target, copy: &Copy3D, form: Form) -> Cu {
    let sync = form == Form::Synchronous;
    let size = (copy.width as u64, copy.height as u64, copy.depth as u64);
    if size.0 == 0 || size.1 == 0 || size.2 == 0 {
        return Ok(());
    }
    if boxes::has_array(copy) {
        return boxes::run(shim, target, copy, form);
    }
    let dst = Area::of(shim, &copy.dst, size)?;
    let src = match dst.on_device {
        true => Area::source(shim, target, &copy.src, size, form)?,
        false => Area::of(shim, &copy.src, size)?,
    };
    for z in 0..size.2 {
        let (dst, src) = (dst.slice(z), src.slice(z));
        let rows = Rows {
            dst,
            src,
            width: size.0,
            height: size.1,
        };
        rows.copy(shim, target, sync)?;
    }
    if (dst.on_device, src.on_device) == (true, false) {
        sent(shim, target, sync)?;
    }
    if sync {
        shim.settle(target, &[dst.at, src.at])?;
    }
    Ok(())
}

/// Rows to copy.
pub(crate) struct Rows {
    dst: Area,
    src: Area,
    width: u64,
    height: u64,
}

impl Rows {
    fn copy(&self, shim: &Shim, target: &Target, sync: bool) -> Cu {
        let (dst, src) = (self.dst, self.src);
        let dense = self.height == 1 || (dst.pitch == self.width && src.pitch == self.width);
        if dense {
            let len = (self.width * self.height) as usize;
            return line(shim, target, (dst, src), (dst.at, src.at), len, sync);
        }
        // A row that is larger than a piece of a copy is copied by itself.
        if self.width > COPY_PIECE as u64 && !(dst.on_device && src.on_device) {
            for y in 0..self.height {
                let places = (dst.row(y), src.row(y));
                line(shim, target, (dst, src), places, self.width as usize, sync)?;
            }
            return Ok(());
        }
        match (dst.on_device, src.on_device) {
            (true, true) => self.within(shim, target),
            (true, false) => self.gather(shim, target),
            (false, true) => self.scatter(shim, target),
            (false, false) => {
                in_order(shim, target)?;
                for y in 0..self.height {
                    // SAFETY: rows of the program on both sides; the program guarantees their size.
                    unsafe { move_host(dst.row(y), src.row(y), self.width as usize) };
                }
                Ok(())
            }
        }
    }

    fn within(&self, shim: &Shim, target: &Target) -> Cu {
        let _work = target.order(shim, Reach::Any)?;
        shim.session.post(&req::Memcpy2DDtoD {
            ctx: target.ctx(),
            stream: target.stream,
            dst: DevPtr(self.dst.at),
            dst_pitch: self.dst.pitch,
            src: DevPtr(self.src.at),
            src_pitch: self.src.pitch,
            width: self.width,
            rows: self.height,
        })
    }

    fn gather(&self, shim: &Shim, target: &Target) -> Cu {
        let _work = target.order(shim, Reach::Any)?;
        let width = self.width as usize;
        let most = COPY_PIECE as u64 / self.width;
        let mut y = 0;
        while y < self.height {
            let rows = most.min(self.height - y);
            let call = req::Memcpy2DHtoD {
                ctx: target.ctx(),
                stream: target.stream,
                dst: DevPtr(self.dst.row(y)),
                pitch: self.dst.pitch,
                width: width as u32,
            };
            let len = rows as usize * width;
            shim.session.post_with(&call, len, |bytes| {
                for (row, place) in (y..).zip(bytes.chunks_exact_mut(width)) {
                    let from = self.src.row(row) as *const u8;
                    // SAFETY: a row of the program's memory; the program guarantees its size.
                    unsafe { place.as_mut_ptr().copy_from(from, width) };
                }
            })?;
            y += rows;
        }
        Ok(())
    }

    fn scatter(&self, shim: &Shim, target: &Target) -> Cu {
        let _work = target.order(shim, Reach::Any)?;
        let width = self.width as usize;
        let most = (SCATTER / self.width).max(1);
        let mut bytes = vec![0_u8; most.min(self.height) as usize * width];
        let mut y = 0;
        while y < self.height {
            let rows = most.min(self.height - y);
            let call = req::Memcpy2DDtoH {
                ctx: target.ctx(),
                stream: target.stream,
                src: DevPtr(self.src.row(y)),
                pitch: self.src.pitch,
                width: width as u32,
                rows,
            };
            let into = UserMemory {
                at: bytes.as_mut_ptr(),
                len: rows as usize * width,
            };
            shim.session.fetch(&call, into)?;
            for (row, from) in (y..y + rows).zip(bytes.chunks_exact(width)) {
                let to = self.dst.row(row) as *mut u8;
                // SAFETY: a row of the program's memory; the program guarantees its size.
                unsafe { to.copy_from(from.as_ptr(), width) };
            }
            y += rows;
        }
        Ok(())
    }
}

/// Copies bytes without gaps.
fn line(
    shim: &Shim,
    target: &Target,
    (dst, src): (Area, Area),
    (to, from): (u64, u64),
    len: usize,
    sync: bool,
) -> Cu {
    match (dst.on_device, src.on_device) {
        (true, true) => within(shim, target, to, from, len),
        // The caller waits for the copy once, after the last row.
        (true, false) => to_device(shim, target, to, from, len, false),
        (false, true) => to_host(shim, target, to, from, len, sync),
        (false, false) => {
            in_order(shim, target)?;
            // SAFETY: the program's memory on both sides; the program guarantees its size.
            unsafe { move_host(to, from, len) };
            Ok(())
        }
    }
}

/// Waits for the stream. A copy within the program's memory keeps its place in the stream only
/// through a wait.
fn in_order(shim: &Shim, target: &Target) -> Cu {
    shim.session.synchronize(&req::StreamSynchronize {
        ctx: target.ctx(),
        stream: target.stream,
    })
}

/// Copies within the program's memory.
///
/// # Safety
/// `len` bytes at `from` are readable, at `to` writable.
pub(crate) unsafe fn move_host(to: u64, from: u64, len: usize) {
    // SAFETY: by this function's contract.
    unsafe { (to as *mut u8).copy_from(from as *const u8, len) };
}
