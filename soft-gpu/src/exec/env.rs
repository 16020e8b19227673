//! The environment of a running block: program, launch, device, shared memory and parameters.

use std::sync::atomic::AtomicBool;

use super::contract::{ArenaView, Device, Launch};
use super::inst::Inst;
use super::program::Program;
use super::runtime::nest::Nest;

/// Start of shared memory in generic addresses. All windows lie above the 47 bits of user
/// addresses, so no host mapping, and no device memory, is inside a window.
pub(crate) const SHARED_WINDOW: u64 = 1 << 48;
/// Start of local memory in generic addresses. The same address names different memory in each
/// lane.
pub(crate) const LOCAL_WINDOW: u64 = (1 << 48) + (1 << 40);
/// Start of the kernel parameters in generic addresses.
pub(crate) const PARAM_WINDOW: u64 = (1 << 48) + (2 << 40);
/// Start of function addresses, which are [`FUNC_STRIDE`] apart.
pub(crate) const FUNC_WINDOW: u64 = (1 << 48) + (3 << 40);
/// Distance between two function addresses, in bytes.
pub(crate) const FUNC_STRIDE: u64 = 16;
/// Right shift from a generic address to the number of its window.
pub(crate) const WINDOW_SHIFT: u32 = 40;

/// Environment of a block. A block runs on one OS thread, so only that thread accesses its shared
/// memory.
pub(crate) struct Env<'a> {
    /// The program.
    pub(crate) program: &'a Program,
    /// Code of the program.
    pub(crate) code: &'a [Inst],
    /// The launch.
    pub(crate) launch: &'a Launch,
    /// The driver.
    pub(crate) device: &'a dyn Device,
    /// Device memory.
    pub(crate) arena: ArenaView,
    /// Shared memory of the block, 16-byte aligned.
    pub(crate) shared: *mut u8,
    /// Bytes of shared memory.
    pub(crate) shared_len: u64,
    /// The parameter block.
    pub(crate) params: &'a [u8],
    /// Index of the block.
    pub(crate) block: [u32; 3],
    /// Set when the kernel reads a clock. Such a kernel may wait for the wall clock, so its device
    /// time is the wall time.
    pub(crate) clocked: &'a AtomicBool,
    /// The state of device-side launches, shared by all grids of this launch.
    pub(crate) nest: &'a Nest,
}
