//! Words of memory that a stream writes or waits for.

use vgpu_cuda_abi::numbers::mem_op;
use vgpu_cuda_abi::structs::MemOp;

/// A write of a word by a stream, or a wait of a stream for a word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word {
    /// Whether the stream writes the word; otherwise, the stream waits for the word.
    pub(crate) write: bool,
    /// Whether the word has 64 bits; otherwise 32 bits.
    pub(crate) wide: bool,
    pub(crate) at: u64,
    pub(crate) value: u64,
    pub(crate) flags: u32,
}

impl Word {
    /// The operation as the structure that programs see.
    pub(crate) fn operation(&self) -> MemOp {
        MemOp {
            operation: match (self.write, self.wide) {
                (false, false) => mem_op::WAIT_VALUE_32,
                (true, false) => mem_op::WRITE_VALUE_32,
                (false, true) => mem_op::WAIT_VALUE_64,
                (true, true) => mem_op::WRITE_VALUE_64,
            },
            barrier_flags: 0,
            address: self.at,
            value: self.value,
            flags: self.flags,
            reserved: 0,
            alias: 0,
            rest: 0,
        }
    }
}
