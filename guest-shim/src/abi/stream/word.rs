//! Words of device memory that a stream writes or waits for.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In};
use vgpu_cuda_abi::numbers::{MOST_MEM_OPS, mem_op};
use vgpu_cuda_abi::structs::MemOp;

use crate::Cu;
use crate::ffi::exports;
use crate::state::current::live;
use crate::state::words::Word;

/// Declares functions that write a word or wait for a word. They differ only in width and
/// direction.
macro_rules! words {
    ($($(#[$doc:meta])* fn $name:ident / $per_thread:ident ($value:ty, write $write:literal);)*) => {
        exports! {$(
            $(#[$doc])*
            fn $name / $per_thread [mode] (stream: u64, at: u64, value: $value, flags: u32) {
                let wide = size_of::<$value>() == 8;
                let word = Word { write: $write, wide, at, value: value.into(), flags };
                word.put(stream, mode)
            }
        )*}
    };
}

words! {
    /// Writes a 32-bit word.
    fn cuStreamWriteValue32 / cuStreamWriteValue32_ptsz (u32, write true);
    /// Writes a 32-bit word.
    fn cuStreamWriteValue32_v2 / cuStreamWriteValue32_v2_ptsz (u32, write true);
    /// Writes a 64-bit word.
    fn cuStreamWriteValue64 / cuStreamWriteValue64_ptsz (u64, write true);
    /// Writes a 64-bit word.
    fn cuStreamWriteValue64_v2 / cuStreamWriteValue64_v2_ptsz (u64, write true);
    /// Waits until a 32-bit word satisfies the condition in `flags`.
    fn cuStreamWaitValue32 / cuStreamWaitValue32_ptsz (u32, write false);
    /// Waits until a 32-bit word satisfies the condition in `flags`.
    fn cuStreamWaitValue32_v2 / cuStreamWaitValue32_v2_ptsz (u32, write false);
    /// Waits until a 64-bit word satisfies the condition in `flags`.
    fn cuStreamWaitValue64 / cuStreamWaitValue64_ptsz (u64, write false);
    /// Waits until a 64-bit word satisfies the condition in `flags`.
    fn cuStreamWaitValue64_v2 / cuStreamWaitValue64_v2_ptsz (u64, write false);
}

exports! {
    /// Writes several words or waits for them.
    fn cuStreamBatchMemOp / cuStreamBatchMemOp_ptsz [mode] (
        stream: u64,
        count: u32,
        list: In<MemOp>,
        flags: u32
    ) {
        batch(stream, mode, (list, count), flags)
    }

    /// Writes several words or waits for them.
    fn cuStreamBatchMemOp_v2 / cuStreamBatchMemOp_v2_ptsz [mode] (
        stream: u64,
        count: u32,
        list: In<MemOp>,
        flags: u32
    ) {
        batch(stream, mode, (list, count), flags)
    }
}

fn batch(stream: u64, mode: DefaultStream, (list, count): (In<MemOp>, u32), flags: u32) -> Cu {
    live()?;
    let words = words(list, count, flags)?;
    words
        .into_iter()
        .try_for_each(|word| word.put(stream, mode))
}

/// Parses the operations of a batch.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for flags, for too many operations and for unknown operations.
pub(crate) fn words(list: In<MemOp>, count: u32, flags: u32) -> Cu<Vec<Word>> {
    if flags != 0 || count > MOST_MEM_OPS {
        return Err(CuResult::INVALID_VALUE);
    }
    let mut words = Vec::with_capacity(count as usize);
    for i in 0..count as usize {
        let op = list.at(i)?;
        let (write, wide) = match op.operation {
            mem_op::WAIT_VALUE_32 => (false, false),
            mem_op::WRITE_VALUE_32 => (true, false),
            mem_op::WAIT_VALUE_64 => (false, true),
            mem_op::WRITE_VALUE_64 => (true, true),
            // Flushes and barriers have no effect: every operation of a stream already sees the
            // earlier operations.
            mem_op::FLUSH_REMOTE_WRITES | mem_op::BARRIER => continue,
            _ => return Err(CuResult::INVALID_VALUE),
        };
        words.push(Word {
            write,
            wide,
            at: op.address,
            value: op.value,
            flags: op.flags,
        });
    }
    Ok(words)
}
