//! The line between the interpreter and the driver.
//!
//! The driver (`crate::driver`) owns memory, streams and time; the interpreter (`crate::exec`) owns
//! everything about PTX. The interpreter asks the driver only through [`Device`], and the driver
//! uses [`super::program::Program`] only through its public functions:
//!
//! ```text
//! Program::load(ptx: &[u8], opts: &LoadOptions) -> Result<Program, LoadError>   pure, no memory touched
//! program.globals() -> &[GlobalVar]                  what the driver must place in its arena
//! program.link(&mut self, &[u64] addresses) -> Vec<(u64 addr, Vec<u8> bytes)>   initial contents to
//!                                                    write; what they do not cover must be zero
//! program.kernel(name) -> Option<KernelId>; program.kernels() -> iterator of (&str, KernelId)
//! program.kernel_info(KernelId) -> &KernelInfo
//! run(&Program, &Launch, &dyn Device) -> Result<RunStats, Fault>    blocks until the grid is done
//! ```

use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock};

/// A range of device memory that kernels can reach, checked on every access.
///
/// Device addresses *are* host addresses inside one reserved arena. The granule map has one byte a
/// granule ([`GRANULE`] bytes): nonzero where mapped and live.
#[derive(Debug, Clone, Copy)]
pub struct ArenaView {
    /// First address of the arena (device address == host address).
    pub base: u64,
    /// Length of the arena in bytes.
    pub len: u64,
    /// Granule map: `len / GRANULE` bytes, read with relaxed atomics.
    pub granules: *const std::sync::atomic::AtomicU8,
    /// Memory that kernels may reach elsewhere.
    pub outside: Option<&'static Outside>,
}

/// Multiprocessors of a device: cooperative launches are bounded by it, and occupancy counts with it.
pub const MULTIPROCESSORS: u32 = 16;

/// Bytes a granule; allocations are multiples of it, so a stray access past the end is seen when
/// it crosses into a dead granule.
pub const GRANULE: u64 = 512;

// SAFETY: the arena and its map live for the whole process and are only read through atomics or
// through addresses that the map says are live.
unsafe impl Send for ArenaView {}
// SAFETY: as above.
unsafe impl Sync for ArenaView {}

impl ArenaView {
    /// True if `[addr, addr+len)` lies wholly in live granules. `len` is 1..=16 on the hot path.
    #[inline(always)]
    pub fn live(&self, addr: u64, len: u64) -> bool {
        let off = addr.wrapping_sub(self.base);
        if off >= self.len || len > self.len - off {
            return self.live_outside(addr, len);
        }
        let first = off / GRANULE;
        let last = (off + len - 1) / GRANULE;
        for g in first..=last {
            // SAFETY: g < self.len / GRANULE by the bounds check above; the map has that many bytes.
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

/// Ranges of the host's memory, outside the arena, that kernels may reach at the same address: registered
/// memory.
#[derive(Debug, Default)]
pub struct Outside(RwLock<BTreeMap<u64, u64>>);

impl Outside {
    /// No memory.
    pub const fn new() -> Outside {
        Outside(RwLock::new(BTreeMap::new()))
    }

    /// Lets kernels reach `[addr, addr+len)`, which stays readable and writable until [`remove`](Self::remove)
    /// and overlaps no other range.
    pub fn add(&self, addr: u64, len: u64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.insert(addr, len);
    }

    /// Takes the range at `addr` away, if there is one.
    pub fn remove(&self, addr: u64) {
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        all.remove(&addr);
    }

    /// True if `[addr, addr+len)` lies in one range.
    pub fn holds(&self, addr: u64, len: u64) -> bool {
        let all = self.0.read().unwrap_or_else(PoisonError::into_inner);
        let before = all.range(..=addr).next_back();
        before.is_some_and(|(&start, &size)| addr - start < size && len <= size - (addr - start))
    }
}

/// What the interpreter asks of the driver while a kernel runs. Called from several threads.
pub trait Device: Sync {
    /// The memory that kernels may touch.
    fn arena(&self) -> ArenaView;

    /// Called by each executing thread about every [`TURN_INSTRUCTIONS`] warp instructions and at
    /// every block start. May block (another process has the device), and gives the nanoseconds that it
    /// did.
    ///
    /// # Errors
    /// When the kernel must stop (context destroyed, injected fault).
    fn turn(&self) -> Result<u64, Fault>;

    /// Output of device `printf`, already formatted.
    fn print(&self, text: &[u8]);

    /// Device-side `malloc`; 0 when the heap is exhausted.
    fn malloc(&self, bytes: u64) -> u64;

    /// Device-side `free`; false for an address that `malloc` did not give.
    fn free(&self, addr: u64) -> bool;

    /// Nanoseconds for `%globaltimer`; `%clock64` derives from it.
    fn now_ns(&self) -> u64;
}

/// Warp instructions between two calls of [`Device::turn`] on one executing thread.
pub const TURN_INSTRUCTIONS: u64 = 20_000;

/// Options of a load.
#[derive(Debug, Clone, Copy)]
pub struct LoadOptions {
    /// The device's compute capability, e.g. (8, 0): a newer `.target` is refused.
    pub compute_capability: (u32, u32),
    /// Operations of the baseline instruction set where this CPU has a better one: for comparing the two.
    pub baseline: bool,
}

impl LoadOptions {
    /// The best operations of this CPU, for a device of this compute capability.
    pub fn of(compute_capability: (u32, u32)) -> LoadOptions {
        LoadOptions {
            compute_capability,
            baseline: false,
        }
    }
}

/// Why a module was refused. The driver maps it to a CUresult and writes the text to the JIT log
/// and to stderr.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LoadError {
    /// Not PTX: an ELF, a fatbin without PTX, empty.
    NoBinary(String),
    /// Text that is not valid PTX, with line. CUDA_ERROR_INVALID_PTX.
    Syntax(String),
    /// Valid but not served: names opcode and line. CUDA_ERROR_UNSUPPORTED_PTX_VERSION.
    Unsupported(String),
}

/// A kernel's static facts.
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
    /// Local memory a thread in bytes (own frame).
    pub local_bytes: usize,
    /// Constant memory of the module in bytes.
    pub const_bytes: usize,
    /// A plausible register count: what lives at once in the text, at most what lets one block of
    /// `max_threads` fit.
    pub registers: u32,
    /// Largest block: `.maxntid`/`.reqntid` product, else 1024.
    pub max_threads: u32,
    /// `.reqntid`.
    pub required_block: Option<[u32; 3]>,
    /// CU_FUNC_ATTRIBUTE_PTX_VERSION: the virtual architecture as major*10+minor.
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
    /// Bytes (at least 1 is placed).
    pub size: u64,
    /// Alignment.
    pub align: u32,
    /// `.const` space (placed like a global, listed apart for cuModuleGetGlobal).
    pub constant: bool,
    /// May be found by name.
    pub visible: bool,
    /// `.attribute(.managed)`: the host reaches it by right.
    pub managed: bool,
}

/// One launch; already validated by the driver (dimensions, shared size, parameter size).
#[derive(Debug, Clone)]
pub struct Launch {
    /// Which kernel.
    pub kernel: KernelId,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads a block.
    pub block: [u32; 3],
    /// Dynamic shared memory in bytes.
    pub dynamic_shared: u32,
    /// The parameter block, `KernelInfo::param_bytes` long.
    pub params: Vec<u8>,
    /// All blocks resident at once (cooperative launch).
    pub cooperative: bool,
    /// Most CPU threads to spread blocks over (at least 1).
    pub threads: usize,
}

/// What a finished grid did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RunStats {
    /// Warp instructions executed.
    pub warp_instructions: u64,
    /// How long it took on the device: the processor time of its threads, over their number, with the
    /// time that they slept or waited for the device. `None`: what the wall clock says (it was short, or
    /// cooperative).
    pub device_ns: Option<u64>,
}

/// A device fault, as hardware reports it. The driver turns it into a sticky CUresult.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// Out of bounds or unmapped: CUDA_ERROR_ILLEGAL_ADDRESS (700). Text for the log.
    IllegalAddress(String),
    /// Address not a multiple of the access size: CUDA_ERROR_MISALIGNED_ADDRESS (716).
    Misaligned(String),
    /// `trap`: CUDA_ERROR_LAUNCH_FAILED (719).
    Trap,
    /// `__assertfail`: CUDA_ERROR_ASSERT (710); the text was printed.
    Assert(String),
    /// Illegal instruction met at run time (bad indirect branch…): CUDA_ERROR_ILLEGAL_INSTRUCTION (715).
    IllegalInstruction(String),
    /// `call` depth or stack exhausted: CUDA_ERROR_LAUNCH_FAILED (719).
    StackOverflow,
    /// The driver asked the kernel to stop ([`Device::turn`]).
    Stopped,
}
