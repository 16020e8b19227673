//! What a running block sees: program, launch, device, shared memory, parameters.

use std::sync::atomic::AtomicBool;

use super::contract::{ArenaView, Device, Launch};
use super::inst::Inst;
use super::program::Program;

/// Base of the generic-address window of shared memory. All windows lie above the 47 bits of a
/// user address, so no host mapping (hence no device memory) is ever inside one.
pub(crate) const SHARED_WINDOW: u64 = 1 << 48;
/// Base of the window of local memory (each lane has its own behind the same addresses).
pub(crate) const LOCAL_WINDOW: u64 = (1 << 48) + (1 << 40);
/// Base of the window of kernel parameters.
pub(crate) const PARAM_WINDOW: u64 = (1 << 48) + (2 << 40);
/// Base of function addresses, [`FUNC_STRIDE`] apart.
pub(crate) const FUNC_WINDOW: u64 = (1 << 48) + (3 << 40);
/// Distance of two function addresses.
pub(crate) const FUNC_STRIDE: u64 = 16;
/// Bits above which addresses belong to a window.
pub(crate) const WINDOW_SHIFT: u32 = 40;

/// The surroundings of a block. One OS thread runs a block, so shared memory has one accessor.
pub(crate) struct Env<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// Its code.
    pub(crate) code: &'a [Inst],
    /// The launch.
    pub(crate) launch: &'a Launch,
    /// The driver.
    pub(crate) device: &'a dyn Device,
    /// Device memory.
    pub(crate) arena: ArenaView,
    /// Shared memory of the block (16-byte aligned).
    pub(crate) shared: *mut u8,
    /// Its bytes.
    pub(crate) shared_len: u64,
    /// The parameter block.
    pub(crate) params: &'a [u8],
    /// This block's index.
    pub(crate) block: [u32; 3],
    /// The kernel has read a clock: it may depend on the wall's time, so that is what it takes.
    pub(crate) clocked: &'a AtomicBool,
}
