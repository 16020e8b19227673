//! The interface between the interpreter and the driver.
//!
//! The driver (`crate::driver`) owns memory, streams and time. The interpreter (`crate::exec`) owns
//! everything about PTX. The interpreter calls the driver only through [`Device`], and the driver
//! uses [`super::program::Program`] only through its public functions:
//!
//! ```text
//! Program::load(ptx: &[u8], opts: &LoadOptions) -> Result<Program, LoadError>   touches no memory
//! program.globals() -> &[GlobalVar]                  variables that the driver must allocate
//! program.link(&mut self, &[u64] addresses) -> Vec<(u64 addr, Vec<u8> bytes)>   initial contents
//!                                                    to write; other bytes must be zero
//! program.kernel(name) -> Option<KernelId>; program.kernels() -> iterator of (&str, KernelId)
//! program.kernel_info(KernelId) -> &KernelInfo
//! run(&Program, &Launch, &dyn Device) -> Result<RunStats, Fault>    blocks until the grid ends,
//!                                                    and all that its kernels launched
//! ```

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// A range of device memory that kernels can access. Every access is checked.
///
/// Device addresses *are* host addresses inside one reserved arena. The granule map has one byte
/// per granule of [`GRANULE`] bytes, which is nonzero if the granule is mapped and live.
#[derive(Debug, Clone, Copy)]
pub struct ArenaView {
    /// First address of the arena. Device address and host address are equal.
    pub base: u64,
    /// Length of the arena in bytes.
    pub len: u64,
    /// Granule map: `len / GRANULE` bytes, read with relaxed atomics.
    pub granules: *const std::sync::atomic::AtomicU8,
    /// Memory outside the arena that kernels can access.
    pub outside: Option<&'static Outside>,
}

/// Number of multiprocessors of a device. It limits cooperative launches and determines the
/// occupancy.
pub const MULTIPROCESSORS: u32 = 16;

/// Bytes per granule. Allocations are multiples of a granule, so an access past the end is detected
/// when it reaches a dead granule.
pub const GRANULE: u64 = 512;

// SAFETY: the arena and its map exist until the process ends. They are read only through atomics,
// or at addresses that the map marks as live.
unsafe impl Send for ArenaView {}
// SAFETY: as above.
unsafe impl Sync for ArenaView {}

impl ArenaView {
    /// Whether `[addr, addr+len)` lies in live granules only. `len` is 1..=16 on the hot path.
    #[inline(always)]
    pub fn live(&self, addr: u64, len: u64) -> bool {
        let off = addr.wrapping_sub(self.base);
        if off >= self.len || len > self.len - off {
            return self.live_outside(addr, len);
        }
        let first = off / GRANULE;
        let last = (off + len - 1) / GRANULE;
        for g in first..=last {
            // SAFETY: g < self.len / GRANULE by the bounds check above; the map has one byte per
            // granule.
            let cell = unsafe { &*self.granules.add(g as usize) };
            if cell.load(std::sync::atomic::Ordering::Relaxed) == 0 {
                return false;
            }
        }
        true
    }
}

impl ArenaView {
    #[cold]
    #[inline(never)]
    fn live_outside(&self, addr: u64, len: u64) -> bool {
        self.outside.is_some_and(|o| o.holds(addr, len))
    }
}

/// Registered memory: ranges of host memory outside the arena that kernels can access, at the same
/// addresses.
#[derive(Debug, Default)]
pub struct Outside(RwLock<BTreeMap<u64, u64>>);

impl Outside {
    /// An empty set of ranges.
    pub const fn new() -> Outside {
        Outside(RwLock::new(BTreeMap::new()))
    }

    /// Allows kernels to access `[addr, addr+len)`. The caller guarantees that the range stays
    /// readable and writable until [`remove`](Self::remove), and overlaps no other range.
    pub fn add(&self, addr: u64, len: u64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(addr, len);
    }

    /// Removes the range at `addr`, if there is one.
    pub fn remove(&self, addr: u64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&addr);
    }

    /// Whether `[addr, addr+len)` lies in one range.
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let before = all.range(..=addr).next_back();
        before.is_some_and(|(&start, &size)| addr - start < size && len <= size - (addr - start))
    }
}

/// The functions of the driver that the interpreter calls while a kernel runs, from several
/// threads.
pub trait Device: Sync {
    /// The memory that kernels can access.
    fn arena(&self) -> ArenaView;

    /// Each executing thread calls this about every [`TURN_INSTRUCTIONS`] warp instructions and at
    /// every block start. Blocks while another process has the device, and returns the blocked time
    /// in ns.
    ///
    /// # Errors
    /// The kernel must stop (context destroyed, injected fault).
    fn turn(&self) -> Result<u64, Fault>;

    /// Takes output of device `printf`, already formatted.
    fn print(&self, text: &[u8]);

    /// Device-side `malloc` of `bytes` bytes; 0 if the heap is exhausted.
    fn malloc(&self, bytes: u64) -> u64;

    /// Device-side `free`; false for an address that `malloc` did not return.
    fn free(&self, addr: u64) -> bool;

    /// Time in ns for `%globaltimer`; `%clock64` derives from it.
    fn now_ns(&self) -> u64;

    /// The driver's part of the device runtime. `None`: kernels launch no kernels.
    fn runtime(&self) -> Option<&dyn Runtime> {
        None
    }
}

/// The functions of the driver behind the device runtime, with which kernels launch kernels. Errors
/// are numbers of `cudaError_t` ([`super::runtime::error`]).
pub trait Runtime: Sync {
    /// Device memory of `bytes` bytes for the parameters of a launch; 0 if there is no room.
    fn parameters(&self, bytes: u64) -> u64;

    /// Takes memory for parameters back.
    fn release(&self, addr: u64);

    /// Checks a launch against the device and the kernel.
    ///
    /// # Errors
    /// cudaErrorInvalidConfiguration; cudaErrorInvalidValue for too much shared memory.
    fn check(&self, child: &Child) -> Result<(), u32>;

    /// Counts one more piece of work that has not begun; false at the limit of the context.
    fn pend(&self) -> bool;

    /// Counts one piece of work less that has not begun.
    fn begun(&self);

    /// The ordinal of this device, and the number of devices.
    fn devices(&self) -> (u32, u32);

    /// An attribute of a device.
    ///
    /// # Errors
    /// cudaErrorInvalidDevice, cudaErrorInvalidValue.
    fn attribute(&self, attribute: i32, device: i32) -> Result<i32, u32>;

    /// A limit of the context.
    ///
    /// # Errors
    /// cudaErrorUnsupportedLimit.
    fn limit(&self, limit: u32) -> Result<u64, u32>;

    /// `cudaFuncAttributes` of a kernel.
    ///
    /// # Errors
    /// cudaErrorInvalidDeviceFunction.
    fn function_attributes(&self, kernel: KernelId) -> Result<Vec<u8>, u32>;

    /// Blocks of `threads` threads and `dynamic` bytes of dynamic shared memory that one
    /// multiprocessor holds at once.
    ///
    /// # Errors
    /// cudaErrorInvalidDeviceFunction.
    fn occupancy(&self, kernel: KernelId, threads: u32, dynamic: u64) -> Result<u32, u32>;
}

/// A launch by a kernel, not yet checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Child {
    /// Kernel of the launch, of the same program.
    pub kernel: KernelId,
    /// Blocks per dimension.
    pub grid: [u32; 3],
    /// Threads per block, per dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub shared: u32,
}

/// Warp instructions between two calls of [`Device::turn`] on one executing thread.
pub const TURN_INSTRUCTIONS: u64 = 20_000;

/// Options of a load.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// Compute capability of the device, such as (8, 0). A newer `.target` is refused.
    pub compute_capability: (u32, u32),
    /// Whether to use the baseline instruction set although this CPU has AVX2. Tests compare both.
    pub baseline: bool,
}

impl LoadOptions {
    /// Options for a device of this compute capability. Operations use the best instruction set of
    /// this CPU.
    pub fn of(compute_capability: (u32, u32)) -> LoadOptions {
        LoadOptions {
            compute_capability,
            baseline: false,
        }
    }
}

/// Reason for the refusal of a module. The driver maps the reason to a CUresult, and writes the
/// text to the JIT log and to stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// Not PTX: an ELF, a fatbin without PTX, empty.
    NoBinary(String),
    /// Invalid PTX, with the line. CUDA_ERROR_INVALID_PTX.
    Syntax(String),
    /// Valid PTX with an unsupported feature, with opcode and line.
    /// CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
    Unsupported(String),
}

/// Static properties of a kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelInfo {
    /// Name.
    pub name: String,
    /// Parameters: (offset, size) in the parameter block, in order.
    pub params: Vec<(usize, usize)>,
    /// Size of the parameter block in bytes.
    pub param_bytes: usize,
    /// Static shared memory in bytes.
    pub shared_bytes: usize,
    /// Bytes of local memory per thread, for the kernel's own frame.
    pub local_bytes: usize,
    /// Constant memory of the module in bytes.
    pub const_bytes: usize,
    /// Estimated number of registers: the highest number that is in use at once, limited so that
    /// one block of `max_threads` threads fits.
    pub registers: u32,
    /// Most threads per block: the product of `.maxntid` or `.reqntid`, else 1024.
    pub max_threads: u32,
    /// `.reqntid`.
    pub required_block: Option<[u32; 3]>,
    /// CU_FUNC_ATTRIBUTE_PTX_VERSION: the virtual architecture, as major*10+minor.
    pub virtual_arch: u32,
}

/// Index of a kernel in its program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct KernelId(pub u32);

/// A module-scope variable that the driver places in its arena.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GlobalVar {
    /// Name.
    pub name: String,
    /// Size in bytes. The driver allocates at least 1 byte.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u32,
    /// Whether the variable is in `.const` space. The driver allocates it like a global.
    pub constant: bool,
    /// Whether the variable can be found by name.
    pub visible: bool,
    /// `.attribute(.managed)`: the host can access the variable.
    pub managed: bool,
}

/// A launch. The driver has validated the dimensions, the shared size and the parameter size.
#[derive(Debug, Clone)]
pub struct Launch {
    /// Kernel of the launch.
    pub kernel: KernelId,
    /// Blocks per dimension.
    pub grid: [u32; 3],
    /// Threads per block, per dimension.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// The parameter block, `KernelInfo::param_bytes` long.
    pub params: Vec<u8>,
    /// Cooperative launch: all blocks are resident at once.
    pub cooperative: bool,
    /// Most CPU threads for the blocks, at least 1.
    pub threads: usize,
}

/// Statistics of a finished grid.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// Device time in ns: the wall time until the CPU clock is first read, plus the device time of
    /// the CPU threads since then. The latter is the mean over the threads of the launch: time for
    /// which a thread computed, slept or waited for another process on the device. `None`: the wall
    /// clock counts, because the launch was short or cooperative, or read a clock.
    pub device_ns: Option<u64>,
}

/// A device fault, as hardware reports it. The driver makes it a sticky error.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// An access out of bounds or to unmapped memory: CUDA_ERROR_ILLEGAL_ADDRESS (700). With a text
    /// for the log.
    IllegalAddress(String),
    /// An address that is not a multiple of the access size: CUDA_ERROR_MISALIGNED_ADDRESS (716).
    Misaligned(String),
    /// `trap`: CUDA_ERROR_LAUNCH_FAILED (719).
    Trap,
    /// `__assertfail`: CUDA_ERROR_ASSERT (710); the text was printed.
    Assert(String),
    /// An instruction that is found to be invalid at run time, such as a branch through an index
    /// out of range: CUDA_ERROR_ILLEGAL_INSTRUCTION (715).
    IllegalInstruction(String),
    /// Call depth or stack exhausted: CUDA_ERROR_LAUNCH_FAILED (719).
    StackOverflow,
    /// The driver stopped the kernel ([`Device::turn`]).
    Stopped,
}
