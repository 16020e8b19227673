//! Batches of copies, copies with attributes, and boxes between devices.

use vgpu_proto::cuda::CuResult;

use super::area::{Copy3D, Side3D, start, whole};
use super::copy::any;
use super::pool::Location;
use crate::Cu;
use crate::ffi::{DefaultStream, exports, put_optional, required};
use crate::process::live;
use crate::state::Shim;
use crate::state::streams::{Target, resolve};

/// `CU_MEMCPY_SRC_ACCESS_ORDER_STREAM`, `DURING_API_CALL`, `ANY`.
const DURING_CALL: u32 = 2;
const ORDERS: std::ops::RangeInclusive<u32> = 1..=3;

/// `CUmemcpyAttributes`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Attributes {
    order: u32,
    hints: [Location; 2],
    flags: u32,
}

/// `CUmemcpy3DOperand`: of memory its address, bytes of a row and rows of a slice, and a hint; of an array
/// the array, and where in it, in elements.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Operand {
    kind: u32,
    at: u64,
    places: [usize; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Operation {
    src: Operand,
    dst: Operand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Operation>() == 112 && size_of::<Attributes>() == 24);

/// The lists of a batch of copies, each as long as its number says.
#[derive(Clone, Copy)]
struct Lists {
    dst: *const u64,
    src: *const u64,
    sizes: *const usize,
    count: usize,
    attributes: *const Attributes,
    /// The first copy that each attribute is of.
    from: *const usize,
    kinds: usize,
}

exports! {
    /// Copies of bytes, which need not be in any order; tells which one failed.
    fn cuMemcpyBatchAsync / cuMemcpyBatchAsync_ptsz [mode] (
        dst: *const u64,
        src: *const u64,
        sizes: *const usize,
        count: usize,
        attributes: *const Attributes,
        from: *const usize,
        kinds: usize,
        failed: *mut usize,
        stream: u64
    ) {
        let lists = Lists { dst, src, sizes, count, attributes, from, kinds };
        // SAFETY: by the contract of the function.
        unsafe { lists.copy(failed, stream, mode) }
    }

    /// Copies of bytes, which need not be in any order.
    fn cuMemcpyBatchAsync_v2 / cuMemcpyBatchAsync_v2_ptsz [mode] (
        dst: *const u64,
        src: *const u64,
        sizes: *const usize,
        count: usize,
        attributes: *const Attributes,
        from: *const usize,
        kinds: usize,
        stream: u64
    ) {
        let lists = Lists { dst, src, sizes, count, attributes, from, kinds };
        // SAFETY: by the contract of the function.
        unsafe { lists.copy(std::ptr::null_mut(), stream, mode) }
    }

    /// One of them.
    fn cuMemcpyWithAttributesAsync / cuMemcpyWithAttributesAsync_ptsz [mode] (
        dst: u64,
        src: u64,
        size: usize,
        attributes: *const Attributes,
        stream: u64
    ) {
        let lists = Lists {
            dst: &raw const dst,
            src: &raw const src,
            sizes: &raw const size,
            count: 1,
            attributes,
            from: &raw const NONE_BEFORE,
            kinds: 1,
        };
        // SAFETY: by the contract of the function.
        unsafe { lists.copy(std::ptr::null_mut(), stream, mode) }
    }

    /// Copies of boxes; tells which one failed.
    fn cuMemcpy3DBatchAsync / cuMemcpy3DBatchAsync_ptsz [mode] (
        count: usize,
        list: *const Operation,
        failed: *mut usize,
        flags: u64,
        stream: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { boxes((list, count), failed, flags, (stream, mode)) }
    }

    /// Copies of boxes.
    fn cuMemcpy3DBatchAsync_v2 / cuMemcpy3DBatchAsync_v2_ptsz [mode] (
        count: usize,
        list: *const Operation,
        flags: u64,
        stream: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { boxes((list, count), std::ptr::null_mut(), flags, (stream, mode)) }
    }

    /// One of them.
    fn cuMemcpy3DWithAttributesAsync / cuMemcpy3DWithAttributesAsync_ptsz [mode] (
        operation: *const Operation,
        flags: u64,
        stream: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { boxes((operation, 1), std::ptr::null_mut(), flags, (stream, mode)) }
    }

    /// A box between contexts: their structures name them where others have nothing.
    fn cuMemcpy3DPeer / cuMemcpy3DPeer_ptds [mode] (copy: *const Copy3D) {
        // SAFETY: by the contract of the function.
        unsafe { peer(copy, (0, mode), true) }
    }

    /// A box between contexts, in a stream.
    fn cuMemcpy3DPeerAsync / cuMemcpy3DPeerAsync_ptsz [mode] (copy: *const Copy3D, stream: u64) {
        // SAFETY: by the contract of the function.
        unsafe { peer(copy, (stream, mode), false) }
    }
}

static NONE_BEFORE: usize = 0;

/// A source that must be read during the call has been, when this returns.
fn ordered(shim: &Shim, order: u32) -> Cu {
    match order {
        DURING_CALL => shim.session.take_back(),
        _ => Ok(()),
    }
}

/// The stream of a batch, which may not be the legacy NULL stream.
pub(super) fn not_legacy(shim: &Shim, stream: u64, mode: DefaultStream) -> Cu<Target> {
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
    /// # Safety
    /// The lists are as long as they say; memory of the program is what the sizes say.
    unsafe fn copy(&self, failed: *mut usize, stream: u64, mode: DefaultStream) -> Cu {
        let shim = live()?;
        // SAFETY: by this function's contract.
        unsafe { put_optional(failed, usize::MAX) };
        if self.count == 0 || self.kinds == 0 || self.kinds > self.count {
            return Err(CuResult::INVALID_VALUE);
        }
        required(self.dst)?;
        required(self.src)?;
        required(self.sizes)?;
        required(self.attributes)?;
        required(self.from)?;
        // SAFETY: by this function's contract.
        if unsafe { *self.from } != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let target = not_legacy(shim, stream, mode)?;
        for kind in 0..self.kinds {
            // SAFETY: by this function's contract.
            let a = unsafe { self.attributes.add(kind).read_unaligned() };
            check(a.order, a.flags)?;
        }
        let mut kind = 0;
        for i in 0..self.count {
            // SAFETY: by this function's contract.
            let result = unsafe {
                if kind + 1 < self.kinds && *self.from.add(kind + 1) == i {
                    kind += 1;
                }
                self.one(shim, &target, i, kind)
            };
            if let Err(code) = result {
                // SAFETY: by this function's contract.
                unsafe { put_optional(failed, i) };
                return Err(code);
            }
        }
        Ok(())
    }

    /// # Safety
    /// As [`Lists::copy`]; both numbers are within the lists.
    unsafe fn one(&self, shim: &Shim, target: &Target, i: usize, kind: usize) -> Cu {
        // SAFETY: by this function's contract.
        let (dst, src, size, a) = unsafe {
            let a = self.attributes.add(kind).read_unaligned();
            (*self.dst.add(i), *self.src.add(i), *self.sizes.add(i), a)
        };
        if dst == 0 || src == 0 || size == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        any(shim, target, dst, src, size, false)?;
        ordered(shim, a.order)
    }
}

/// # Safety
/// The list is as long as its number says, and memory of the program is what it says.
unsafe fn boxes(
    (list, count): (*const Operation, usize),
    failed: *mut usize,
    flags: u64,
    (stream, mode): (u64, DefaultStream),
) -> Cu {
    let shim = live()?;
    // SAFETY: by this function's contract.
    unsafe { put_optional(failed, usize::MAX) };
    required(list)?;
    if count == 0 || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let target = not_legacy(shim, stream, mode)?;
    for i in 0..count {
        // SAFETY: by this function's contract.
        let operation = unsafe { list.add(i).read_unaligned() };
        if let Err(code) = operation.copy(shim, &target) {
            // SAFETY: by this function's contract.
            unsafe { put_optional(failed, i) };
            return Err(code);
        }
    }
    Ok(())
}

impl Operand {
    const MEMORY: u32 = 1;
    const ARRAY: u32 = 2;

    /// Bytes of an element, where it is an array.
    fn element(&self, shim: &Shim) -> Cu<Option<usize>> {
        match self.kind {
            Operand::MEMORY => Ok(None),
            Operand::ARRAY => Ok(Some(shim.arrays.get(self.at)?.shape.element()? as usize)),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// `width` and `height` are what memory without gaps has.
    fn side(&self, element: usize, (width, height): (usize, usize)) -> Cu<Side3D> {
        if self.kind == Operand::MEMORY {
            let [row, slice, _] = self.places;
            let or = |n: usize, otherwise| if n == 0 { otherwise } else { n };
            return Ok(Side3D::anywhere(self.at, or(row, width), or(slice, height)));
        }
        let [x, y, z] = self.places;
        let x = x.checked_mul(element).ok_or(CuResult::INVALID_VALUE)?;
        let mut side = Side3D::array(self.at, x);
        (side.y, side.z) = (y, z);
        Ok(side)
    }
}

impl Operation {
    fn copy(&self, shim: &Shim, target: &Target) -> Cu {
        check(self.order, self.flags)?;
        if self.extent.contains(&0) {
            return Err(CuResult::INVALID_VALUE);
        }
        let (dst, src) = (self.dst.element(shim)?, self.src.element(shim)?);
        // The width is in elements where an array takes part.
        let element = dst.or(src).unwrap_or(1);
        let [width, height, depth] = self.extent;
        let width = width.checked_mul(element).ok_or(CuResult::INVALID_VALUE)?;
        let copy = Copy3D {
            src: self.src.side(element, (width, height))?,
            dst: self.dst.side(element, (width, height))?,
            width,
            height,
            depth,
        };
        start(shim, target, &copy, false)?;
        ordered(shim, self.order)
    }
}

/// # Safety
/// `copy` is null or readable, and memory of the program is what it says.
unsafe fn peer(copy: *const Copy3D, (stream, mode): (u64, DefaultStream), sync: bool) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    required(copy)?;
    // SAFETY: by this function's contract.
    let mut copy = unsafe { copy.read_unaligned() };
    let (to, from) = (copy.dst.take_context(), copy.src.take_context());
    let (to, from) = (shim.contexts.named(to)?, shim.contexts.named(from)?);
    if to.device == from.device && to.device == target.ctx.device {
        return start(shim, &target, &copy, sync);
    }
    whole(shim, &target, (&to, &from), &copy)
}
