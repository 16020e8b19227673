//! Batches of copies, and copies with attributes.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Named, Out, StreamArg};
use vgpu_cuda_abi::numbers::copy_operand::{ARRAY, POINTER};
use vgpu_cuda_abi::numbers::copy_order::{ANY, DURING_API_CALL, STREAM};
use vgpu_cuda_abi::numbers::memory_type;
use vgpu_cuda_abi::structs::{Copy3D, CopyAttributes, CopyOperand, CopyOperation, Side3D};

use crate::capi::StreamOf as _;
use crate::driver::array;
use crate::driver::copy::{Mode, Side, copy};
use crate::driver::error::Result;
use crate::driver::stream::Stream;
use crate::driver::transfer;

fn check(order: u32, flags: u32) -> Result {
    if !(STREAM..=ANY).contains(&order) || flags > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    Ok(())
}

/// Queues one copy. For the order [`DURING_API_CALL`], the source must be read before the call
/// returns, so the call waits for the stream.
fn queue(c: &Copy3D, order: u32, stream: &Arc<Stream>) -> Result {
    copy(c, Mode::Async, stream)?;
    if order == DURING_API_CALL {
        stream.synchronize()?;
    }
    Ok(())
}

fn flat(dst: u64, src: u64, bytes: usize) -> Copy3D {
    transfer::flat((Side::Unified, dst), (Side::Unified, src), bytes)
}

/// The stream of a batch. The legacy NULL stream is refused with CUDA_ERROR_INVALID_VALUE.
pub(super) fn not_legacy(stream: StreamArg, default: DefaultStream) -> Result<Arc<Stream>> {
    match stream.named(default) {
        Named::Null => Err(CuResult::INVALID_VALUE),
        _ => stream.get(default),
    }
}

/// Queues a batch of copies. `failed` gets the index of the invalid copy, or usize::MAX.
#[allow(clippy::too_many_arguments)]
fn batch(
    dst: In<u64>,
    src: In<u64>,
    sizes: In<usize>,
    count: usize,
    attributes: In<CopyAttributes>,
    from: In<usize>,
    kinds: usize,
    failed: Out<usize>,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    failed.set_if_wanted(usize::MAX);
    if count == 0 || kinds == 0 || kinds > count || from.get()? != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let stream = not_legacy(stream, default)?;
    (0..kinds).try_for_each(|k| attributes.at(k).and_then(|a| check(a.order, a.flags)))?;
    for i in 0..count {
        if sizes.at(i)? == 0 {
            failed.set_if_wanted(i);
            return Err(CuResult::INVALID_VALUE);
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
    attributes: In<CopyAttributes>,
    from: In<usize>,
    kinds: usize,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    let failed = Out::NULL;
    batch(
        dst, src, sizes, count, attributes, from, kinds, failed, stream, default,
    )
}

fn with_attributes(
    dst: u64,
    src: u64,
    bytes: usize,
    attributes: In<CopyAttributes>,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    let a = attributes.get()?;
    check(a.order, a.flags)?;
    if bytes == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    queue(
        &flat(dst, src, bytes),
        a.order,
        &not_legacy(stream, default)?,
    )
}

/// Bytes per element of an array operand; `None` for a pointer, which has no element size.
fn element(of: &CopyOperand) -> Result<Option<usize>> {
    match of.kind {
        POINTER => Ok(None),
        ARRAY => Ok(Some(array::get(of.what)?.shape.element()? as usize)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn side(of: &CopyOperand, element: usize) -> Result<Side3D> {
    let [x, y, z] = of.numbers;
    let bytes = |n: usize| n.checked_mul(element).ok_or(CuResult::INVALID_VALUE);
    match of.kind {
        POINTER => Ok(Side3D {
            pitch: bytes(x)?,
            height: y,
            ..transfer::side((Side::Unified, of.what))
        }),
        ARRAY => Ok(Side3D {
            kind: memory_type::ARRAY,
            array: of.what,
            x: bytes(x)?,
            y,
            z,
            ..Side3D::NOWHERE
        }),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Converts one operation to a three-dimensional copy.
fn three(op: &CopyOperation) -> Result<Copy3D> {
    check(op.order, op.flags)?;
    if op.extent.contains(&0) {
        return Err(CuResult::INVALID_VALUE);
    }
    // Between two pointers, the extent counts bytes.
    let (from, to) = (element(&op.src)?, element(&op.dst)?);
    let element = from.or(to).unwrap_or(1);
    let width = op.extent[0].checked_mul(element);
    Ok(Copy3D {
        src: side(&op.src, element)?,
        dst: side(&op.dst, element)?,
        width: width.ok_or(CuResult::INVALID_VALUE)?,
        height: op.extent[1],
        depth: op.extent[2],
    })
}

/// As [`batch`], for copies between pointers and arrays.
fn batch3(
    count: usize,
    ops: In<CopyOperation>,
    failed: Out<usize>,
    flags: u64,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    failed.set_if_wanted(usize::MAX);
    if count == 0 || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
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
    ops: In<CopyOperation>,
    flags: u64,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    batch3(count, ops, Out::NULL, flags, stream, default)
}

fn with_attributes3(
    op: In<CopyOperation>,
    flags: u64,
    stream: StreamArg,
    default: DefaultStream,
) -> Result {
    batch3_v2(1, op, flags, stream, default)
}

exports! {
    fn cuMemcpyBatchAsync / cuMemcpyBatchAsync_ptsz [default] (dst: In<u64>, src: In<u64>, sizes: In<usize>, count: usize, attributes: In<CopyAttributes>, from: In<usize>, kinds: usize, failed: Out<usize>, stream: StreamArg) {
        batch(dst, src, sizes, count, attributes, from, kinds, failed, stream, default)
    }

    fn cuMemcpyBatchAsync_v2 / cuMemcpyBatchAsync_v2_ptsz [default] (dst: In<u64>, src: In<u64>, sizes: In<usize>, count: usize, attributes: In<CopyAttributes>, from: In<usize>, kinds: usize, stream: StreamArg) {
        batch_v2(dst, src, sizes, count, attributes, from, kinds, stream, default)
    }

    fn cuMemcpyWithAttributesAsync / cuMemcpyWithAttributesAsync_ptsz [default] (dst: u64, src: u64, bytes: usize, attributes: In<CopyAttributes>, stream: StreamArg) {
        with_attributes(dst, src, bytes, attributes, stream, default)
    }

    fn cuMemcpy3DBatchAsync / cuMemcpy3DBatchAsync_ptsz [default] (count: usize, ops: In<CopyOperation>, failed: Out<usize>, flags: u64, stream: StreamArg) {
        batch3(count, ops, failed, flags, stream, default)
    }

    fn cuMemcpy3DBatchAsync_v2 / cuMemcpy3DBatchAsync_v2_ptsz [default] (count: usize, ops: In<CopyOperation>, flags: u64, stream: StreamArg) {
        batch3_v2(count, ops, flags, stream, default)
    }

    fn cuMemcpy3DWithAttributesAsync / cuMemcpy3DWithAttributesAsync_ptsz [default] (op: In<CopyOperation>, flags: u64, stream: StreamArg) {
        with_attributes3(op, flags, stream, default)
    }
}
