//! A minimal device for the interpreter: an arena, a granule map and a buffer for printed text.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::Instant;

use soft_gpu::exec::contract::{
    ArenaView, Device, Fault, GRANULE, KernelId, Launch, LoadOptions, RunStats,
};
use soft_gpu::exec::{program::Program, run};

pub(crate) use crate::inputs::Random;

/// Size in bytes of the arena: the memory of a test device.
const ARENA: u64 = 256 << 20;

/// Most bytes that the kernels of a test may allocate with `malloc`.
const HEAP: u64 = 16 << 20;

/// The used parts of a test device's memory: `next` is the first free address of the memory, and
/// `heap` has the allocations that kernels made with `malloc`.
#[derive(Default)]
struct Space {
    next: u64,
    heap: HashMap<u64, u64>,
    heap_bytes: u64,
}

/// A software device for one test. Dropping the device frees its memory.
pub(crate) struct Gpu {
    base: u64,
    granules: Vec<AtomicU8>,
    space: Mutex<Space>,
    printed: Mutex<Vec<u8>>,
    stop: AtomicBool,
    turns: AtomicU64,
    turn_limit: AtomicU64,
    start: Instant,
}

impl Gpu {
    pub(crate) fn new() -> Self {
        // SAFETY: an anonymous mapping at an address that the operating system chooses changes no
        // other memory.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                ARENA as usize,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE,
                -1,
                0,
            )
        };
        assert_ne!(
            base,
            libc::MAP_FAILED,
            "mmap: {}",
            std::io::Error::last_os_error()
        );
        Gpu {
            base: base as u64,
            granules: (0..ARENA / GRANULE).map(|_| AtomicU8::new(0)).collect(),
            space: Mutex::default(),
            printed: Mutex::default(),
            stop: AtomicBool::new(false),
            turns: AtomicU64::new(0),
            turn_limit: AtomicU64::new(u64::MAX),
            start: Instant::now(),
        }
    }

    /// Allocates zeroed memory. A granule that kernels cannot access follows each allocation.
    pub(crate) fn alloc(&self, bytes: u64) -> u64 {
        self.place(&mut self.space.lock().unwrap(), bytes)
    }

    fn place(&self, space: &mut Space, bytes: u64) -> u64 {
        let count = bytes.max(1).div_ceil(GRANULE);
        let first = space.next / GRANULE;
        space.next += (count + 1) * GRANULE;
        assert!(space.next <= ARENA, "the test's arena is full");
        self.mark(first, count, 1);
        self.base + first * GRANULE
    }

    fn mark(&self, first: u64, count: u64, value: u8) {
        for granule in first..first + count {
            self.granules[granule as usize].store(value, Ordering::Relaxed);
        }
    }

    /// Allocates a buffer with a copy of `data`.
    pub(crate) fn upload<T: Plain>(&self, data: &[T]) -> Buffer<T> {
        let buffer = self.zeroed(data.len());
        self.write(buffer.address, data);
        buffer
    }

    /// Allocates a buffer of `len` zeros.
    pub(crate) fn zeroed<T: Plain>(&self, len: usize) -> Buffer<T> {
        let address = self.alloc((len * size_of::<T>()) as u64);
        Buffer {
            address,
            len,
            element: std::marker::PhantomData,
        }
    }

    fn check(&self, address: u64, bytes: usize) {
        let offset = address
            .checked_sub(self.base)
            .expect("an address of the arena");
        assert!(offset + bytes as u64 <= ARENA, "outside the arena");
    }

    pub(crate) fn write<T: Plain>(&self, address: u64, data: &[T]) {
        self.check(address, size_of_val(data));
        // SAFETY: the range was checked to lie in the mapping, which exists as long as `self`. No
        // kernel runs while the test writes, and `Plain` types have no padding.
        unsafe {
            std::ptr::copy_nonoverlapping(
                data.as_ptr().cast::<u8>(),
                address as *mut u8,
                size_of_val(data),
            );
        }
    }

    pub(crate) fn read<T: Plain>(&self, buffer: Buffer<T>) -> Vec<T> {
        self.check(buffer.address, buffer.len * size_of::<T>());
        let mut out = vec![T::default(); buffer.len];
        // SAFETY: as in `write`; every bit pattern is a valid `Plain` value.
        unsafe {
            std::ptr::copy_nonoverlapping(
                buffer.address as *const u8,
                out.as_mut_ptr().cast::<u8>(),
                buffer.len * size_of::<T>(),
            );
        }
        out
    }

    /// A word of device memory that the test may change while a kernel runs.
    pub(crate) fn cell(&self, buffer: Buffer<u32>) -> &AtomicU32 {
        self.check(buffer.address, 4);
        // SAFETY: the word lies in the mapping, which exists as long as `self`, and is aligned to a
        // granule. Other accesses are atomic, or are made by the interpreter.
        unsafe { AtomicU32::from_ptr(buffer.address as *mut u32) }
    }

    /// Returns the text that kernels have printed, and clears the text.
    pub(crate) fn printed(&self) -> String {
        String::from_utf8(std::mem::take(&mut *self.printed.lock().unwrap())).unwrap()
    }

    /// Makes every running kernel stop with [`Fault::Stopped`].
    pub(crate) fn stop(&self) {
        self.stop.store(true, Ordering::SeqCst);
    }

    /// Stops kernels after `turns` more turns.
    pub(crate) fn limit_turns(&self, turns: u64) {
        self.turn_limit
            .store(self.turns() + turns, Ordering::SeqCst);
    }

    /// Number of times that kernels have called `turn`.
    pub(crate) fn turns(&self) -> u64 {
        self.turns.load(Ordering::SeqCst)
    }

    /// Number of allocations of the device heap that are not freed.
    pub(crate) fn heap_blocks(&self) -> usize {
        self.space.lock().unwrap().heap.len()
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to `self`, and buffers hold addresses only.
        unsafe { libc::munmap(self.base as *mut libc::c_void, ARENA as usize) };
    }
}

impl Device for Gpu {
    fn arena(&self) -> ArenaView {
        ArenaView {
            base: self.base,
            len: ARENA,
            granules: self.granules.as_ptr(),
            outside: None,
        }
    }

    fn turn(&self) -> Result<u64, Fault> {
        let turns = self.turns.fetch_add(1, Ordering::SeqCst);
        let late = turns >= self.turn_limit.load(Ordering::SeqCst);
        if late || self.stop.load(Ordering::SeqCst) {
            Err(Fault::Stopped)
        } else {
            Ok(0)
        }
    }

    fn print(&self, text: &[u8]) {
        self.printed.lock().unwrap().extend_from_slice(text);
    }

    fn malloc(&self, bytes: u64) -> u64 {
        let mut space = self.space.lock().unwrap();
        let taken = bytes.saturating_add(2 * GRANULE);
        if bytes == 0 || space.heap_bytes.saturating_add(taken) > HEAP {
            return 0;
        }
        space.heap_bytes += taken;
        let address = self.place(&mut space, bytes);
        space.heap.insert(address, bytes);
        address
    }

    fn free(&self, address: u64) -> bool {
        let mut space = self.space.lock().unwrap();
        let Some(bytes) = space.heap.remove(&address) else {
            return false;
        };
        space.heap_bytes -= bytes + 2 * GRANULE;
        self.mark((address - self.base) / GRANULE, bytes.div_ceil(GRANULE), 0);
        true
    }

    fn now_ns(&self) -> u64 {
        self.start.elapsed().as_nanos() as u64
    }
}

/// Number types without padding or invalid values.
pub(crate) trait Plain: Copy + Default {}
impl Plain for u8 {}
impl Plain for i16 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}
impl Plain for i64 {}
impl Plain for f32 {}
impl Plain for f64 {}

/// Device memory of `len` elements.
#[derive(Debug)]
pub(crate) struct Buffer<T> {
    pub(crate) address: u64,
    pub(crate) len: usize,
    element: std::marker::PhantomData<T>,
}

impl<T> Clone for Buffer<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Buffer<T> {}

/// The bytes of a kernel argument.
pub(crate) trait Arg {
    fn bytes(&self) -> Vec<u8>;
}

macro_rules! number_arg {
    ($($ty:ty)*) => { $(
        impl Arg for $ty {
            fn bytes(&self) -> Vec<u8> {
                self.to_le_bytes().to_vec()
            }
        }
    )* };
}
number_arg!(u8 i8 i16 u32 i32 u64 f32 f64);

impl<T> Arg for Buffer<T> {
    fn bytes(&self) -> Vec<u8> {
        self.address.to_le_bytes().to_vec()
    }
}

impl Arg for Vec<u8> {
    fn bytes(&self) -> Vec<u8> {
        self.clone()
    }
}

/// A loaded module on its own device.
pub(crate) struct Module {
    pub(crate) gpu: Gpu,
    pub(crate) program: Program,
    globals: HashMap<String, u64>,
}

/// Loads `fixtures/<name>.ptx`, allocates its globals and writes their initial contents.
pub(crate) fn load(name: &str) -> Module {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("fixtures")
        .join(format!("{name}.ptx"));
    let text = std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    load_text(&text).unwrap_or_else(|e| panic!("{name}: {e}"))
}

/// As [`load`], with the PTX text of a module.
pub(crate) fn load_text(text: &[u8]) -> Result<Module, String> {
    let options = LoadOptions::of((8, 0));
    let mut program = Program::load(text, &options).map_err(|e| format!("{e:?}"))?;
    let size: u64 = program
        .globals()
        .iter()
        .map(|g| g.size.saturating_add(GRANULE))
        .sum();
    if size > ARENA / 2 {
        return Err(format!(
            "{size} bytes of globals do not fit the test's arena"
        ));
    }
    let gpu = Gpu::new();
    let addresses: Vec<u64> = program
        .globals()
        .iter()
        .map(|g| gpu.alloc(g.size))
        .collect();
    for (address, bytes) in program.link(&addresses) {
        gpu.write(address, &bytes);
    }
    let globals = program
        .globals()
        .iter()
        .map(|g| g.name.clone())
        .zip(addresses)
        .collect();
    Ok(Module {
        gpu,
        program,
        globals,
    })
}

impl Module {
    /// The memory of a module variable.
    pub(crate) fn global<T>(&self, name: &str, len: usize) -> Buffer<T> {
        let address = self.globals[name];
        Buffer {
            address,
            len,
            element: std::marker::PhantomData,
        }
    }

    pub(crate) fn kernel(&self, name: &str) -> KernelId {
        self.program
            .kernel(name)
            .unwrap_or_else(|| panic!("no kernel {name}"))
    }

    /// A launch. The arguments are laid out as the program's parameters.
    pub(crate) fn launch(
        &self,
        name: &str,
        grid: [u32; 3],
        block: [u32; 3],
        args: &[&dyn Arg],
    ) -> Launch {
        let kernel = self.kernel(name);
        let info = self.program.kernel_info(kernel);
        assert_eq!(info.params.len(), args.len(), "{name}: number of arguments");
        let mut params = vec![0; info.param_bytes];
        for (&(offset, size), arg) in info.params.iter().zip(args) {
            let bytes = arg.bytes();
            assert_eq!(
                bytes.len(),
                size,
                "{name}: size of the argument at {offset}"
            );
            params[offset..offset + size].copy_from_slice(&bytes);
        }
        Launch {
            kernel,
            grid,
            block,
            dynamic_shared: 0,
            params,
            cooperative: false,
            threads: 2,
        }
    }

    pub(crate) fn try_launch(&self, launch: &Launch) -> Result<RunStats, Fault> {
        run(&self.program, launch, &self.gpu)
    }

    /// Runs a kernel until it ends. Returns its fault, if any.
    pub(crate) fn try_run(
        &self,
        name: &str,
        grid: u32,
        block: u32,
        args: &[&dyn Arg],
    ) -> Result<RunStats, Fault> {
        self.try_launch(&self.launch(name, [grid, 1, 1], [block, 1, 1], args))
    }

    /// Runs a kernel until it ends. A fault fails the test.
    pub(crate) fn run(&self, name: &str, grid: u32, block: u32, args: &[&dyn Arg]) {
        if let Err(fault) = self.try_run(name, grid, block, args) {
            panic!("{name}: {fault:?}");
        }
    }
}

impl Random {
    pub(crate) fn below(&mut self, bound: u32) -> u32 {
        (self.next() % u64::from(bound)) as u32
    }
}
