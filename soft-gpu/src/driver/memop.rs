//! Waits for and writes of values in memory, in stream order.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::copy::Planned;
use super::digest::{self, Ticket};
use super::error::{CuError, Result};
use super::fault;
use super::graph::node::Action;
use super::graph::{block, capture};
use super::stream::{Running, Stream};
use super::{Driver, healthy};

/// CUstreamBatchMemOpParams.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemOp {
    /// CUstreamBatchMemOpType.
    pub operation: u32,
    /// Flags of operations without an address.
    pub barrier_flags: u32,
    /// Where.
    pub addr: u64,
    /// What (32 bits for the 32-bit operations).
    pub value: u64,
    /// How.
    pub flags: u32,
    /// Padding.
    pub pad: u32,
    /// Reserved.
    pub alias: u64,
    /// Padding.
    pub rest: u64,
}

const WAIT_32: u32 = 1;
const WRITE_32: u32 = 2;
const FLUSH: u32 = 3;
const WAIT_64: u32 = 4;
const WRITE_64: u32 = 5;
const BARRIER: u32 = 6;

/// CU_STREAM_WAIT_VALUE_FLUSH.
const WAIT_FLUSH: u32 = 1 << 30;

/// How long a waiting stream sleeps between two looks.
const PAUSE: Duration = Duration::from_micros(20);

impl MemOp {
    /// A wait or write of `bits` bits.
    pub fn new(wait: bool, bits: u32, addr: u64, value: u64, flags: u32) -> MemOp {
        let operation = match (wait, bits) {
            (true, 32) => WAIT_32,
            (false, 32) => WRITE_32,
            (true, _) => WAIT_64,
            (false, _) => WRITE_64,
        };
        MemOp {
            operation,
            barrier_flags: 0,
            addr,
            value,
            flags,
            pad: 0,
            alias: 0,
            rest: 0,
        }
    }

    fn bytes(&self) -> u64 {
        match self.operation {
            WAIT_32 | WRITE_32 => 4,
            WAIT_64 | WRITE_64 => 8,
            _ => 0,
        }
    }

    /// Checks the operation.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: unknown or misaligned; CUDA_ERROR_NOT_SUPPORTED: reductions, and
    /// flushes of remote writes, which this device has no use for (its attribute says so).
    pub fn check(&self, of: Planned) -> Result {
        let driver = healthy()?;
        match self.operation {
            WAIT_32 | WAIT_64 if self.flags & WAIT_FLUSH != 0 => Err(CuError::NOT_SUPPORTED),
            WAIT_32 | WAIT_64 if self.flags > 3 => Err(CuError::INVALID_VALUE),
            WRITE_32 | WRITE_64 if self.flags > 1 => Err(CuError::INVALID_VALUE),
            WAIT_32 | WAIT_64 | WRITE_32 | WRITE_64 => {
                let n = self.bytes();
                if !self.addr.is_multiple_of(n) || self.addr == 0 {
                    return Err(CuError::INVALID_VALUE);
                }
                if of == Planned::Later && block::device_of(self.addr, n).is_some() {
                    return Ok(());
                }
                // Registered memory that kernels reach has the host's addresses.
                if driver.memory.mapped(self.addr, n) {
                    return Ok(());
                }
                driver.memory.device_range(self.addr, n).map(|_| ())
            }
            BARRIER if self.barrier_flags <= 1 => Ok(()),
            BARRIER => Err(CuError::INVALID_VALUE),
            FLUSH | 8 => Err(CuError::NOT_SUPPORTED),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    /// Is what it names still there?
    pub fn live(&self, driver: &Driver) -> bool {
        let (n, memory) = (self.bytes(), &driver.memory);
        let ours = || block::device_of(self.addr, n).is_some();
        n == 0 || memory.mapped(self.addr, n) || memory.covers(self.addr, n) || ours()
    }

    /// Says so in the digest.
    pub fn tell(&self, driver: &Driver, ticket: Option<&Ticket>) {
        let what = match self.operation {
            WRITE_32 => "write32",
            WRITE_64 => "write64",
            WAIT_32 => "wait32",
            WAIT_64 => "wait64",
            _ => return,
        };
        if let Some(ticket) = ticket {
            ticket.word(driver, what, self.addr, self.value, self.flags);
        }
    }

    /// Does it now: returns when the value is there, or when the process is poisoned.
    pub fn run(&self) {
        match self.operation {
            WRITE_32 => cell32(self.addr).store(self.value as u32, Ordering::SeqCst),
            WRITE_64 => cell64(self.addr).store(self.value, Ordering::SeqCst),
            WAIT_32 | WAIT_64 => {
                while !self.satisfied() && fault::sticky().is_none() {
                    std::thread::sleep(PAUSE);
                }
            }
            _ => {}
        }
    }

    fn satisfied(&self) -> bool {
        let (now, wanted, ahead, nor) = if self.operation == WAIT_32 {
            let (now, wanted) = (cell32(self.addr).load(Ordering::SeqCst), self.value as u32);
            let ahead = now.wrapping_sub(wanted) as i32 >= 0;
            (now.into(), wanted.into(), ahead, u64::from(!(now | wanted)))
        } else {
            let (now, wanted) = (cell64(self.addr).load(Ordering::SeqCst), self.value);
            (
                now,
                wanted,
                now.wrapping_sub(wanted) as i64 >= 0,
                !(now | wanted),
            )
        };
        match self.flags {
            0 => ahead,
            1 => now == wanted,
            2 => now & wanted != 0,
            _ => nor != 0,
        }
    }
}

fn cell32(addr: u64) -> &'static AtomicU32 {
    // SAFETY: a checked, aligned address of the arena, whose pages stay accessible for the process's
    // life, or of memory that the program keeps registered while work uses it; kernels and copies touch it
    // as device memory, where races are the program's.
    unsafe { &*(addr as *const AtomicU32) }
}

fn cell64(addr: u64) -> &'static AtomicU64 {
    // SAFETY: as of `cell32`.
    unsafe { &*(addr as *const AtomicU64) }
}

/// cuStreamBatchMemOp: all of them, in order.
///
/// # Errors
/// As [`MemOp::check`], before any is queued.
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
