//! Waits for values in memory, and writes of values, in stream order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::mem_op::{
    ATOMIC_REDUCTION, BARRIER, FLUSH_REMOTE_WRITES as FLUSH, WAIT_VALUE_32 as WAIT_32,
    WAIT_VALUE_64 as WAIT_64, WRITE_VALUE_32 as WRITE_32, WRITE_VALUE_64 as WRITE_64,
};
use vgpu_cuda_abi::numbers::wait_value::{AND, EQ, FLUSH as WAIT_FLUSH, GEQ, NOR};
use vgpu_cuda_abi::numbers::write_value::NO_MEMORY_BARRIER;
use vgpu_cuda_abi::structs::MemOp;

use super::copy::Planned;
use super::digest::{self, Ticket};
use super::error::Result;
use super::fault;
use super::graph::node::Action;
use super::graph::{block, capture};
use super::stream::{Running, Stream};
use super::{Driver, healthy};

/// Time for which a waiting stream sleeps between two checks of the value.
const PAUSE: Duration = Duration::from_micros(20);

/// Builds the operation for a wait for, or a write of, a value of `bits` bits.
pub fn op(wait: bool, bits: u32, addr: u64, value: u64, flags: u32) -> MemOp {
    let operation = match (wait, bits) {
        (true, 32) => WAIT_32,
        (false, 32) => WRITE_32,
        (true, _) => WAIT_64,
        (false, _) => WRITE_64,
    };
    MemOp {
        operation,
        barrier_flags: 0,
        address: addr,
        value,
        flags,
        reserved: 0,
        alias: 0,
        rest: 0,
    }
}

fn bytes(op: &MemOp) -> u64 {
    match op.operation {
        WAIT_32 | WRITE_32 => 4,
        WAIT_64 | WRITE_64 => 8,
        _ => 0,
    }
}

/// Methods of a stream memory operation.
pub trait Operation {
    /// Checks the operation.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: unknown or misaligned. CUDA_ERROR_NOT_SUPPORTED: reductions, and
    /// flushes of remote writes, which the device attribute reports as absent.
    fn check(&self, of: Planned) -> Result;

    /// Whether the memory of the operation is still live.
    fn live(&self, driver: &Driver) -> bool;

    /// Writes the operation to the digest.
    fn tell(&self, driver: &Driver, ticket: Option<&Ticket>);

    /// Runs the operation. A wait returns when the memory holds the value, or when the process is
    /// poisoned.
    fn run(&self);
}

impl Operation for MemOp {
    fn check(&self, of: Planned) -> Result {
        let driver = healthy()?;
        match self.operation {
            WAIT_32 | WAIT_64 if self.flags & WAIT_FLUSH != 0 => Err(CuResult::NOT_SUPPORTED),
            WAIT_32 | WAIT_64 if self.flags > NOR => Err(CuResult::INVALID_VALUE),
            WRITE_32 | WRITE_64 if self.flags > NO_MEMORY_BARRIER => Err(CuResult::INVALID_VALUE),
            WAIT_32 | WAIT_64 | WRITE_32 | WRITE_64 => {
                let n = bytes(self);
                if !self.address.is_multiple_of(n) || self.address == 0 {
                    return Err(CuResult::INVALID_VALUE);
                }
                if of == Planned::Later && block::device_of(self.address, n).is_some() {
                    return Ok(());
                }
                // The device address of registered memory is its host address.
                if driver.memory.mapped(self.address, n) {
                    return Ok(());
                }
                driver.memory.device_range(self.address, n).map(|_| ())
            }
            BARRIER if self.barrier_flags <= 1 => Ok(()),
            BARRIER => Err(CuResult::INVALID_VALUE),
            FLUSH | ATOMIC_REDUCTION => Err(CuResult::NOT_SUPPORTED),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    fn live(&self, driver: &Driver) -> bool {
        let (n, memory) = (bytes(self), &driver.memory);
        let ours = || block::device_of(self.address, n).is_some();
        n == 0 || memory.mapped(self.address, n) || memory.covers(self.address, n) || ours()
    }

    fn tell(&self, driver: &Driver, ticket: Option<&Ticket>) {
        let what = match self.operation {
            WRITE_32 => "write32",
            WRITE_64 => "write64",
            WAIT_32 => "wait32",
            WAIT_64 => "wait64",
            _ => return,
        };
        if let Some(ticket) = ticket {
            ticket.word(driver, what, self.address, self.value, self.flags);
        }
    }

    fn run(&self) {
        match self.operation {
            WRITE_32 => cell32(self.address).store(self.value as u32, Ordering::SeqCst),
            WRITE_64 => cell64(self.address).store(self.value, Ordering::SeqCst),
            WAIT_32 | WAIT_64 => {
                while !satisfied(self) && fault::sticky().is_none() {
                    std::thread::sleep(PAUSE);
                }
            }
            _ => {}
        }
    }
}

fn satisfied(op: &MemOp) -> bool {
    let (now, wanted, ahead, nor) = if op.operation == WAIT_32 {
        let (now, wanted) = (cell32(op.address).load(Ordering::SeqCst), op.value as u32);
        let ahead = now.wrapping_sub(wanted) as i32 >= 0;
        (now.into(), wanted.into(), ahead, u64::from(!(now | wanted)))
    } else {
        let (now, wanted) = (cell64(op.address).load(Ordering::SeqCst), op.value);
        (
            now,
            wanted,
            now.wrapping_sub(wanted) as i64 >= 0,
            !(now | wanted),
        )
    };
    match op.flags {
        GEQ => ahead,
        EQ => now == wanted,
        AND => now & wanted != 0,
        _ => nor != 0,
    }
}

fn cell32(addr: u64) -> &'static AtomicU32 {
    // SAFETY: the address is checked and aligned. It lies in the arena, whose pages stay accessible
    // until the process ends, or in memory that the program keeps registered while work uses the
    // memory. Kernels and copies access the memory too; the program is responsible for races.
    unsafe { &*(addr as *const AtomicU32) }
}

fn cell64(addr: u64) -> &'static AtomicU64 {
    // SAFETY: as for `cell32`.
    unsafe { &*(addr as *const AtomicU64) }
}

/// cuStreamBatchMemOp: queues the operations in order, or adds a node to the graph of a capture.
///
/// # Errors
/// As [`Operation::check`], before the first operation is queued.
pub fn submit(stream: &Stream, ops: Vec<MemOp>) -> Result {
    let recording = capture::recording(stream)?;
    let of = if recording {
        Planned::Later
    } else {
        Planned::Now
    };
    ops.iter().try_for_each(|op| op.check(of))?;
    if recording {
        let context = stream.owner()?.handle;
        return capture::add(stream, || Ok(Action::MemOps(Arc::from(ops), context)));
    }
    let (driver, ticket) = (healthy()?, digest::ticket(stream));
    ops.iter().for_each(|op| op.tell(driver, ticket.as_ref()));
    let work = move |_: &Running<'_>| ops.iter().for_each(MemOp::run);
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}
