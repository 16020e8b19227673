//! Batches of copies, and copies with attributes.

use std::sync::Arc;

use super::copy::{Copy3, Side3};
use super::types::{ASYNC, Default, In, Out, StreamArg};
use super::vmm::Location;
use crate::driver::array;
use crate::driver::copy::{Side, copy};
use crate::driver::error::{CuError, Result};
use crate::driver::stream::Stream;

/// CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL and _ANY.
const DURING_CALL: u32 = 2;
const ANY: u32 = 3;

/// CU_STREAM_LEGACY.
const LEGACY: u64 = 1;

/// CU_MEMCPY_OPERAND_TYPE_POINTER and _ARRAY.
const POINTER: u32 = 1;
const ARRAY: u32 = 2;

/// CUmemcpyAttributes.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Attributes {
    order: u32,
    hints: [Location; 2],
    flags: u32,
}

fn check(order: u32, flags: u32) -> Result {
    if !(1..=ANY).contains(&order) || flags > 1 {
        return Err(CuError::INVALID_VALUE);
    }
    Ok(())
}

/// Queues one copy. A source that must be read during the call is: the stream's work ends first.
fn queue(c: &Copy3, order: u32, stream: &Arc<Stream>) -> Result {
    copy(c, ASYNC, stream)?;
    if order == DURING_CALL {
        stream.synchronize()?;
    }
    Ok(())
}

fn flat(dst: u64, src: u64, bytes: usize) -> Copy3 {
    Copy3::flat((Side::Unified, dst), (Side::Unified, src), bytes)
}

/// The stream of a batch, which may not be the legacy NULL stream.
pub(super) fn not_legacy(stream: StreamArg, default: Default) -> Result<Arc<Stream>> {
    match (stream.0, default) {
        (0, Default::Legacy) | (LEGACY, _) => Err(CuError::INVALID_VALUE),
        _ => stream.get(default),
    }
}

/// `failed` is told which copy is at fault, or usize::MAX for none of them.
#[allow(clippy::too_many_arguments)]
fn batch(
    dst: In<u64>,
    src: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: In<Attributes>,
    from: In<usize>,
    kinds: usize,
    failed: Out<usize>,
    stream: StreamArg,
    default: Default,
) -> Result {
    failed.set_if_wanted(usize::MAX);
    if count == 0 || kinds == 0 || kinds > count || from.get()? != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let stream = not_legacy(stream, default)?;
    (0..kinds).try_for_each(|k| attributes.at(k).and_then(|a| check(a.order, a.flags)))?;
    for i in 0..count {
        if sizes.at(i)? == 0 {
            failed.set_if_wanted(i);
            return Err(CuError::INVALID_VALUE);
        }
    }
    let mut kind = 0;
    for i in 0..count {
        if kind + 1 < kinds && from.at(kind + 1)? == i {
            kind += 1;
        }
        let a = attributes.at(kind)?;
        queue(
            &flat(dst.at(i)?, src.at(i)?, sizes.at(i)?),
            a.order,
            &stream,
        )
        .inspect_err(|_| failed.set_if_wanted(i))?;
    }
    Ok(())
}

#[allow(clippy::too_many_arguments)]
fn batch_v2(
    dst: In<u64>,
    src: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: In<Attributes>,
    from: In<usize>,
    kinds: usize,
    stream: StreamArg,
    default: Default,
) -> Result {
    let failed = Out(std::ptr::null_mut());
    batch(
        dst, src, sizes, count, attributes, from, kinds, failed, stream, default,
    )
}

fn with_attributes(
    dst: u64,
    src: u64,
    bytes: usize,
    attributes: In<Attributes>,
    stream: StreamArg,
    default: Default,
) -> Result {
    let a = attributes.get()?;
    check(a.order, a.flags)?;
    if bytes == 0 {
        return Err(CuError::INVALID_VALUE);
    }
    queue(
        &flat(dst, src, bytes),
        a.order,
        &not_legacy(stream, default)?,
    )
}

/// CUmemcpy3DOperand.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Operand {
    kind: u32,
    /// An address, or an array.
    what: u64,
    /// Elements a row and rows a layer; of an array, where in it: element, row and layer.
    numbers: [usize; 3],
}

/// CUDA_MEMCPY3D_BATCH_OP.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Operation {
    src: Operand,
    dst: Operand,
    extent: [usize; 3],
    order: u32,
    flags: u32,
}

const _: () = assert!(size_of::<Operation>() == 112 && size_of::<Attributes>() == 24);

impl Operand {
    /// Bytes an element, where this operand says so.
    fn element(self) -> Result<Option<usize>> {
        match self.kind {
            POINTER => Ok(None),
            ARRAY => array::get(self.what)?.shape.element().map(Some),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    fn side(self, element: usize) -> Result<Side3> {
        let [x, y, z] = self.numbers;
        let bytes = |n: usize| n.checked_mul(element).ok_or(CuError::INVALID_VALUE);
        match self.kind {
            POINTER => Ok(Side3 {
                pitch: bytes(x)?,
                height: y,
                ..Side3::flat((Side::Unified, self.what))
            }),
            ARRAY => Ok(Side3 {
                kind: 3,
                array: self.what,
                x: bytes(x)?,
                y,
                z,
                ..Side3::flat((Side::Host, 0))
            }),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// The copy of one operation.
fn three(op: &Operation) -> Result<Copy3> {
    check(op.order, op.flags)?;
    if op.extent.contains(&0) {
        return Err(CuError::INVALID_VALUE);
    }
    // Between pointers an element is a byte.
    let (from, to) = (op.src.element()?, op.dst.element()?);
    let element = from.or(to).unwrap_or(1);
    let width = op.extent[0].checked_mul(element);
    Ok(Copy3 {
        src: op.src.side(element)?,
        dst: op.dst.side(element)?,
        width: width.ok_or(CuError::INVALID_VALUE)?,
        height: op.extent[1],
        depth: op.extent[2],
    })
}

/// `failed` as of [`batch`].
fn batch3(
    count: usize,
    ops: In<Operation>,
    failed: Out<usize>,
    flags: u64,
    stream: StreamArg,
    default: Default,
) -> Result {
    failed.set_if_wanted(usize::MAX);
    if count == 0 || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let stream = not_legacy(stream, default)?;
    let mut copies = Vec::new();
    for i in 0..count {
        let op = ops.at(i)?;
        let c = three(&op).inspect_err(|_| failed.set_if_wanted(i))?;
        copies.push((c, op.order));
    }
    copies.iter().enumerate().try_for_each(|(i, (c, order))| {
        queue(c, *order, &stream).inspect_err(|_| failed.set_if_wanted(i))
    })
}

fn batch3_v2(
    count: usize,
    ops: In<Operation>,
    flags: u64,
    stream: StreamArg,
    default: Default,
) -> Result {
    batch3(
        count,
        ops,
        Out(std::ptr::null_mut()),
        flags,
        stream,
        default,
    )
}

fn with_attributes3(op: In<Operation>, flags: u64, stream: StreamArg, default: Default) -> Result {
    batch3_v2(1, op, flags, stream, default)
}

stream_exports! {
    fn cuMemcpyBatchAsync | cuMemcpyBatchAsync_ptsz(dst: In<u64>, src: In<u64>, sizes: In<usize>, count: usize, attributes: In<Attributes>, from: In<usize>, kinds: usize, failed: Out<usize>, stream: StreamArg) => batch;
    fn cuMemcpyBatchAsync_v2 | cuMemcpyBatchAsync_v2_ptsz(dst: In<u64>, src: In<u64>, sizes: In<usize>, count: usize, attributes: In<Attributes>, from: In<usize>, kinds: usize, stream: StreamArg) => batch_v2;
    fn cuMemcpyWithAttributesAsync | cuMemcpyWithAttributesAsync_ptsz(dst: u64, src: u64, bytes: usize, attributes: In<Attributes>, stream: StreamArg) => with_attributes;
    fn cuMemcpy3DBatchAsync | cuMemcpy3DBatchAsync_ptsz(count: usize, ops: In<Operation>, failed: Out<usize>, flags: u64, stream: StreamArg) => batch3;
    fn cuMemcpy3DBatchAsync_v2 | cuMemcpy3DBatchAsync_v2_ptsz(count: usize, ops: In<Operation>, flags: u64, stream: StreamArg) => batch3_v2;
    fn cuMemcpy3DWithAttributesAsync | cuMemcpy3DWithAttributesAsync_ptsz(op: In<Operation>, flags: u64, stream: StreamArg) => with_attributes3;
}
