//! Batches of copies, copies with attributes, and boxes between devices.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out};
use vgpu_cuda_abi::numbers::copy_operand::{ARRAY, POINTER as MEMORY};
use vgpu_cuda_abi::numbers::copy_order::{ANY, DURING_API_CALL, STREAM};
use vgpu_cuda_abi::structs::{Copy3D, CopyAttributes, CopyOperand, CopyOperation, Side3D};

use crate::Cu;
use crate::ffi::exports;
use crate::ops::area::{anywhere, in_array, start, whole};
use crate::ops::copy::any;
use crate::state::Shim;
use crate::state::current::live;
use crate::state::streams::{Target, resolve};

const ORDERS: std::ops::RangeInclusive<u32> = STREAM..=ANY;

/// The lists of a batch of copies, each with its length.
#[derive(Clone, Copy)]
struct Lists {
    dst: In<u64>,
    src: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    /// Index of the first copy to which each attribute applies.
    from: In<usize>,
    kinds: usize,
}

exports! {
    /// Copies bytes, in any order. On failure, also returns the index of the failed copy.
    fn cuMemcpyBatchAsync / cuMemcpyBatchAsync_ptsz [mode] (
        dst: In<u64>,
        src: In<u64>,
        sizes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        from: In<usize>,
        kinds: usize,
        failed: Out<usize>,
        stream: u64
    ) {
        let lists = Lists { dst, src, sizes, count, attributes, from, kinds };
        lists.copy(failed, stream, mode)
    }

    /// Copies bytes, in any order.
    fn cuMemcpyBatchAsync_v2 / cuMemcpyBatchAsync_v2_ptsz [mode] (
        dst: In<u64>,
        src: In<u64>,
        sizes: In<usize>,
        count: usize,
        attributes: In<CopyAttributes>,
        from: In<usize>,
        kinds: usize,
        stream: u64
    ) {
        let lists = Lists { dst, src, sizes, count, attributes, from, kinds };
        lists.copy(Out::NULL, stream, mode)
    }

    /// Copies bytes with attributes.
    fn cuMemcpyWithAttributesAsync / cuMemcpyWithAttributesAsync_ptsz [mode] (
        dst: u64,
        src: u64,
        size: usize,
        attributes: In<CopyAttributes>,
        stream: u64
    ) {
        let shim = live()?;
        let attributes = attributes.get()?;
        let target = not_legacy(shim, stream, mode)?;
        check(attributes.order, attributes.flags)?;
        if dst == 0 || src == 0 || size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        any(shim, &target, dst, src, size, false)?;
        ordered(shim, attributes.order)
    }

    /// Copies boxes. On failure, also returns the index of the failed copy.
    fn cuMemcpy3DBatchAsync / cuMemcpy3DBatchAsync_ptsz [mode] (
        count: usize,
        list: In<CopyOperation>,
        failed: Out<usize>,
        flags: u64,
        stream: u64
    ) {
        boxes((list, count), failed, flags, (stream, mode))
    }

    /// Copies boxes.
    fn cuMemcpy3DBatchAsync_v2 / cuMemcpy3DBatchAsync_v2_ptsz [mode] (
        count: usize,
        list: In<CopyOperation>,
        flags: u64,
        stream: u64
    ) {
        boxes((list, count), Out::NULL, flags, (stream, mode))
    }

    /// Copies a box with attributes.
    fn cuMemcpy3DWithAttributesAsync / cuMemcpy3DWithAttributesAsync_ptsz [mode] (
        operation: In<CopyOperation>,
        flags: u64,
        stream: u64
    ) {
        boxes((operation, 1), Out::NULL, flags, (stream, mode))
    }

    /// Copies a box between contexts. The structure names the contexts in fields that other
    /// functions treat as reserved.
    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds [mode] (copy: In<Copy3D>) {
        peer(copy, (0, mode), true)
    }

    /// Copies a box between contexts, in a stream.
    fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz [mode] (copy: In<Copy3D>, stream: u64) {
        peer(copy, (stream, mode), false)
    }
}

/// For sources that must be read during the call: waits until they were read.
fn ordered(shim: &Shim, order: u32) -> Cu {
    match order {
        DURING_API_CALL => shim.session.take_back(),
        _ => Ok(()),
    }
}

/// The stream of a batch. The legacy NULL stream is an error.
pub(crate) fn not_legacy(shim: &Shim, stream: u64, mode: DefaultStream) -> Cu<Target> {
    /// `CU_STREAM_LEGACY`.
    const LEGACY: u64 = 1;
    if stream == LEGACY || (stream == 0 && mode == DefaultStream::Legacy) {
        return Err(CuResult::INVALID_VALUE);
    }
    resolve(shim, stream, mode)
}

fn check(order: u32, flags: u32) -> Cu {
    match ORDERS.contains(&order) && flags <= 1 {
        true => Ok(()),
        false => Err(CuResult::INVALID_VALUE),
    }
}

impl Lists {
    fn copy(&self, failed: Out<usize>, stream: u64, mode: DefaultStream) -> Cu {
        let shim = live()?;
        failed.set_if_wanted(usize::MAX);
        if self.count == 0 || self.kinds == 0 || self.kinds > self.count {
            return Err(CuResult::INVALID_VALUE);
        }
        self.dst.check()?;
        self.src.check()?;
        self.sizes.check()?;
        self.attributes.check()?;
        self.from.check()?;
        if self.from.get()? != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let target = not_legacy(shim, stream, mode)?;
        for kind in 0..self.kinds {
            let a = self.attributes.at(kind)?;
            check(a.order, a.flags)?;
        }
        let mut kind = 0;
        for i in 0..self.count {
            if kind + 1 < self.kinds && self.from.at(kind + 1)? == i {
                kind += 1;
            }
            if let Err(code) = self.one(shim, &target, i, kind) {
                failed.set_if_wanted(i);
                return Err(code);
            }
        }
        Ok(())
    }

    fn one(&self, shim: &Shim, target: &Target, i: usize, kind: usize) -> Cu {
        let (dst, src, size) = (self.dst.at(i)?, self.src.at(i)?, self.sizes.at(i)?);
        let order = self.attributes.at(kind)?.order;
        if dst == 0 || src == 0 || size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        any(shim, target, dst, src, size, false)?;
        ordered(shim, order)
    }
}

fn boxes(
    (list, count): (In<CopyOperation>, usize),
    failed: Out<usize>,
    flags: u64,
    (stream, mode): (u64, DefaultStream),
) -> Cu {
    let shim = live()?;
    failed.set_if_wanted(usize::MAX);
    list.check()?;
    if count == 0 || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let target = not_legacy(shim, stream, mode)?;
    for i in 0..count {
        let operation = list.at(i)?;
        if let Err(code) = copy(shim, &target, &operation) {
            failed.set_if_wanted(i);
            return Err(code);
        }
    }
    Ok(())
}

/// Size of an element in bytes, if the side is an array.
fn element(shim: &Shim, side: &CopyOperand) -> Cu<Option<usize>> {
    match side.kind {
        MEMORY => Ok(None),
        ARRAY => Ok(Some(shim.arrays.get(side.what)?.shape.element()? as usize)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// One side of a copy. `width` and `height` are the pitch and the number of rows of memory without
/// gaps.
fn side(of: &CopyOperand, element: usize, (width, height): (usize, usize)) -> Cu<Side3D> {
    let [x, y, z] = of.numbers;
    if of.kind == MEMORY {
        let or = |n: usize, otherwise| if n == 0 { otherwise } else { n };
        return Ok(anywhere(of.what, or(x, width), or(y, height)));
    }
    let x = x.checked_mul(element).ok_or(CuResult::INVALID_VALUE)?;
    Ok(Side3D {
        y,
        z,
        ..in_array(of.what, x)
    })
}

/// Runs one copy of a batch.
fn copy(shim: &Shim, target: &Target, operation: &CopyOperation) -> Cu {
    check(operation.order, operation.flags)?;
    if operation.extent.contains(&0) {
        return Err(CuResult::INVALID_VALUE);
    }
    let (dst, src) = (
        element(shim, &operation.dst)?,
        element(shim, &operation.src)?,
    );
    // If one side is an array, the width is a number of elements.
    let element = dst.or(src).unwrap_or(1);
    let [width, height, depth] = operation.extent;
    let width = width.checked_mul(element).ok_or(CuResult::INVALID_VALUE)?;
    let copy = Copy3D {
        src: side(&operation.src, element, (width, height))?,
        dst: side(&operation.dst, element, (width, height))?,
        width,
        height,
        depth,
    };
    start(shim, target, &copy, false)?;
    ordered(shim, operation.order)
}

fn peer(copy: In<Copy3D>, (stream, mode): (u64, DefaultStream), sync: bool) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    copy.check()?;
    let mut copy = copy.get()?;
    // The functions that do the copy treat these fields as reserved.
    let to = std::mem::take(&mut copy.dst.context);
    let from = std::mem::take(&mut copy.src.context);
    let (to, from) = (shim.contexts.named(to)?, shim.contexts.named(from)?);
    if to.device == from.device && to.device == target.ctx.device {
        return start(shim, &target, &copy, sync);
    }
    whole(shim, &target, (&to, &from), &copy)
}
