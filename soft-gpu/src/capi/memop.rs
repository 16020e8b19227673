//! Waits for and writes of values in memory.

use super::types::{Default, In, StreamArg};
use crate::driver::error::{CuError, Result};
use crate::driver::memop::{MemOp, submit};

/// Most operations of one batch.
const MOST: u32 = 256;

fn one(stream: StreamArg, op: MemOp, default: Default) -> Result {
    submit(&*stream.get(default)?, vec![op])
}

fn wait32(stream: StreamArg, addr: u64, value: u32, flags: u32, default: Default) -> Result {
    one(
        stream,
        MemOp::new(true, 32, addr, value.into(), flags),
        default,
    )
}

fn wait64(stream: StreamArg, addr: u64, value: u64, flags: u32, default: Default) -> Result {
    one(stream, MemOp::new(true, 64, addr, value, flags), default)
}

fn write32(stream: StreamArg, addr: u64, value: u32, flags: u32, default: Default) -> Result {
    one(
        stream,
        MemOp::new(false, 32, addr, value.into(), flags),
        default,
    )
}

fn write64(stream: StreamArg, addr: u64, value: u64, flags: u32, default: Default) -> Result {
    one(stream, MemOp::new(false, 64, addr, value, flags), default)
}

/// The operations of a batch.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: none, too many, or unknown flags.
pub fn operations(count: u32, ops: In<MemOp>, flags: u32) -> Result<Vec<MemOp>> {
    if count == 0 || count > MOST || flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    (0..count as usize).map(|i| ops.at(i)).collect()
}

fn batch(stream: StreamArg, count: u32, ops: In<MemOp>, flags: u32, default: Default) -> Result {
    let stream = stream.get(default)?;
    submit(&stream, operations(count, ops, flags)?)
}

stream_exports! {
    fn cuStreamWaitValue32 | cuStreamWaitValue32_ptsz(stream: StreamArg, addr: u64, value: u32, flags: u32) => wait32;
    fn cuStreamWaitValue32_v2 | cuStreamWaitValue32_v2_ptsz(stream: StreamArg, addr: u64, value: u32, flags: u32) => wait32;
    fn cuStreamWaitValue64 | cuStreamWaitValue64_ptsz(stream: StreamArg, addr: u64, value: u64, flags: u32) => wait64;
    fn cuStreamWaitValue64_v2 | cuStreamWaitValue64_v2_ptsz(stream: StreamArg, addr: u64, value: u64, flags: u32) => wait64;
    fn cuStreamWriteValue32 | cuStreamWriteValue32_ptsz(stream: StreamArg, addr: u64, value: u32, flags: u32) => write32;
    fn cuStreamWriteValue32_v2 | cuStreamWriteValue32_v2_ptsz(stream: StreamArg, addr: u64, value: u32, flags: u32) => write32;
    fn cuStreamWriteValue64 | cuStreamWriteValue64_ptsz(stream: StreamArg, addr: u64, value: u64, flags: u32) => write64;
    fn cuStreamWriteValue64_v2 | cuStreamWriteValue64_v2_ptsz(stream: StreamArg, addr: u64, value: u64, flags: u32) => write64;
    fn cuStreamBatchMemOp | cuStreamBatchMemOp_ptsz(stream: StreamArg, count: u32, ops: In<MemOp>, flags: u32) => batch;
    fn cuStreamBatchMemOp_v2 | cuStreamBatchMemOp_v2_ptsz(stream: StreamArg, count: u32, ops: In<MemOp>, flags: u32) => batch;
}
