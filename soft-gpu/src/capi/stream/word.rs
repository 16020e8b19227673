//! Waits for values in memory, and writes of values.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, StreamArg};
use vgpu_cuda_abi::numbers::MOST_MEM_OPS;
use vgpu_cuda_abi::structs::MemOp;

use crate::capi::StreamOf as _;
use crate::driver::error::Result;
use crate::driver::memop::{op, submit};

fn one(stream: StreamArg, op: MemOp, default: DefaultStream) -> Result {
    submit(&*stream.get(default)?, vec![op])
}

fn wait32(stream: StreamArg, addr: u64, value: u32, flags: u32, default: DefaultStream) -> Result {
    one(stream, op(true, 32, addr, value.into(), flags), default)
}

fn wait64(stream: StreamArg, addr: u64, value: u64, flags: u32, default: DefaultStream) -> Result {
    one(stream, op(true, 64, addr, value, flags), default)
}

fn write32(stream: StreamArg, addr: u64, value: u32, flags: u32, default: DefaultStream) -> Result {
    one(stream, op(false, 32, addr, value.into(), flags), default)
}

fn write64(stream: StreamArg, addr: u64, value: u64, flags: u32, default: DefaultStream) -> Result {
    one(stream, op(false, 64, addr, value, flags), default)
}

/// The operations of a batch.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: no operations, too many, or unknown flags.
pub fn operations(count: u32, ops: In<MemOp>, flags: u32) -> Result<Vec<MemOp>> {
    if count == 0 || count > MOST_MEM_OPS || flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    (0..count as usize).map(|i| ops.at(i)).collect()
}

fn batch(
    stream: StreamArg,
    count: u32,
    ops: In<MemOp>,
    flags: u32,
    default: DefaultStream,
) -> Result {
    let stream = stream.get(default)?;
    submit(&stream, operations(count, ops, flags)?)
}

exports! {
    fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz [default] (stream: StreamArg, addr: u64, value: u32, flags: u32) {
        wait32(stream, addr, value, flags, default)
    }

    fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz [default] (stream: StreamArg, addr: u64, value: u32, flags: u32) {
        wait32(stream, addr, value, flags, default)
    }

    fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz [default] (stream: StreamArg, addr: u64, value: u64, flags: u32) {
        wait64(stream, addr, value, flags, default)
    }

    fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz [default] (stream: StreamArg, addr: u64, value: u64, flags: u32) {
        wait64(stream, addr, value, flags, default)
    }

    fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz [default] (stream: StreamArg, addr: u64, value: u32, flags: u32) {
        write32(stream, addr, value, flags, default)
    }

    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz [default] (stream: StreamArg, addr: u64, value: u32, flags: u32) {
        write32(stream, addr, value, flags, default)
    }

    fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz [default] (stream: StreamArg, addr: u64, value: u64, flags: u32) {
        write64(stream, addr, value, flags, default)
    }

    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz [default] (stream: StreamArg, addr: u64, value: u64, flags: u32) {
        write64(stream, addr, value, flags, default)
    }

    fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz [default] (stream: StreamArg, count: u32, ops: In<MemOp>, flags: u32) {
        batch(stream, count, ops, flags, default)
    }

    fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz [default] (stream: StreamArg, count: u32, ops: In<MemOp>, flags: u32) {
        batch(stream, count, ops, flags, default)
    }
}
