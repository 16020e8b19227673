//! A device for tests: an arena in ordinary memory, a bump allocator, captured output.

use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Instant;

use crate::exec::contract::{ArenaView, Device, Fault, GRANULE, Launch, LoadOptions, RunStats};
use crate::exec::program::Program;
use crate::exec::run;

const SIZE: usize = 64 << 20;

/// A device for one test.
pub(crate) struct Bench {
    memory: Vec<u128>,
    granules: Vec<AtomicU8>,
    next: Mutex<u64>,
    heap: Mutex<HashMap<u64, u64>>,
    /// Output of device code.
    pub(crate) output: Mutex<Vec<u8>>,
    /// Number of further turns until the kernel must stop.
    pub(crate) turns: AtomicU64,
    started: Instant,
}

impl Bench {
    pub(crate) fn new() -> Bench {
        let memory = vec![0u128; SIZE / 16];
        let granules = (0..SIZE / GRANULE as usize)
            .map(|_| AtomicU8::new(0))
            .collect();
        Bench {
            memory,
            granules,
            next: Mutex::new(0),
            heap: Mutex::new(HashMap::new()),
            output: Mutex::new(Vec::new()),
            turns: AtomicU64::new(u64::MAX),
            started: Instant::now(),
        }
    }

    fn base(&self) -> u64 {
        // Granules are counted from this base. Accesses must be aligned as addresses.
        (self.memory.as_ptr() as u64).next_multiple_of(GRANULE)
    }

    /// Allocates zeroed device memory. A granule that kernels cannot access follows each
    /// allocation.
    pub(crate) fn alloc(&self, bytes: u64) -> u64 {
        let mut next = self.next.lock().unwrap();
        let at = *next;
        let len = bytes.max(1).next_multiple_of(GRANULE);
        assert!(
            at + len + GRANULE < SIZE as u64 - GRANULE,
            "test arena is full"
        );
        for g in at / GRANULE..(at + len) / GRANULE {
            self.granules[g as usize].store(1, Ordering::Relaxed);
        }
        *next = at + len + GRANULE;
        self.base() + at
    }

    pub(crate) fn write(&self, addr: u64, bytes: &[u8]) {
        assert!(bytes.is_empty() || self.arena().live(addr, bytes.len() as u64));
        // SAFETY: the range lies within the arena, and no kernel runs.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    }

    pub(crate) fn read(&self, addr: u64, len: usize) -> Vec<u8> {
        assert!(self.arena().live(addr, len as u64));
        // SAFETY: the range lies within the arena, and no kernel runs.
        unsafe { std::slice::from_raw_parts(addr as *const u8, len) }.to_vec()
    }

    /// Allocates a buffer that holds these words.
    pub(crate) fn words(&self, words: &[u32]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let at = self.alloc(bytes.len() as u64);
        self.write(at, &bytes);
        at
    }

    /// Allocates a buffer that holds these 64-bit words.
    pub(crate) fn longs(&self, words: &[u64]) -> u64 {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        let at = self.alloc(bytes.len() as u64);
        self.write(at, &bytes);
        at
    }

    pub(crate) fn read_words(&self, addr: u64, n: usize) -> Vec<u32> {
        self.read(addr, n * 4)
            .chunks_exact(4)
            .map(|b| u32::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    pub(crate) fn read_longs(&self, addr: u64, n: usize) -> Vec<u64> {
        self.read(addr, n * 8)
            .chunks_exact(8)
            .map(|b| u64::from_le_bytes(b.try_into().unwrap()))
            .collect()
    }

    /// Loads and links a module. Returns the program, and the addresses of the globals by name.
    pub(crate) fn load(&self, ptx: &str) -> (Program, HashMap<String, u64>) {
        self.load_as(ptx, false)
    }

    /// As [`Self::load`]. If `baseline`, operations use the baseline instruction set, otherwise the
    /// best one.
    pub(crate) fn load_as(&self, ptx: &str, baseline: bool) -> (Program, HashMap<String, u64>) {
        super::inventory::note(ptx);
        let opts = LoadOptions {
            baseline,
            ..LoadOptions::of((8, 0))
        };
        let mut p = match Program::load(ptx.as_bytes(), &opts) {
            Ok(p) => p,
            Err(e) => panic!("{e:?}"),
        };
        let at: Vec<u64> = p.globals().iter().map(|g| self.alloc(g.size)).collect();
        for (addr, bytes) in p.link(&at) {
            self.write(addr, &bytes);
        }
        let names = p.globals().iter().map(|g| g.name.clone()).zip(at).collect();
        (p, names)
    }

    /// Runs a kernel.
    pub(crate) fn launch(
        &self,
        p: &Program,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u64],
    ) -> Result<RunStats, Fault> {
        self.launch_with(p, kernel, grid, block, params, 0, false)
    }

    #[expect(clippy::too_many_arguments, reason = "the launch's own arguments")]
    pub(crate) fn launch_with(
        &self,
        p: &Program,
        kernel: &str,
        grid: [u32; 3],
        block: [u32; 3],
        params: &[u64],
        dynamic_shared: u32,
        cooperative: bool,
    ) -> Result<RunStats, Fault> {
        let id = p
            .kernel(kernel)
            .unwrap_or_else(|| panic!("no kernel {kernel}"));
        let info = p.kernel_info(id);
        assert_eq!(params.len(), info.params.len(), "parameters of {kernel}");
        let mut bytes = vec![0u8; info.param_bytes];
        for (&(at, len), v) in info.params.iter().zip(params) {
            bytes[at..at + len].copy_from_slice(&v.to_le_bytes()[..len]);
        }
        let launch = Launch {
            kernel: id,
            grid,
            block,
            dynamic_shared,
            params: bytes,
            cooperative,
            threads: 2,
        };
        run(p, &launch, self)
    }

    pub(crate) fn printed(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().unwrap()).into_owned()
    }
}

impl Device for Bench {
    fn arena(&self) -> ArenaView {
        let base = self.base();
        ArenaView {
            base,
            len: SIZE as u64 - GRANULE,
            granules: self.granules.as_ptr(),
            outside: None,
        }
    }

    fn turn(&self) -> Result<u64, Fault> {
        let left = self.turns.load(Ordering::Relaxed);
        if left == 0 {
            return Err(Fault::Stopped);
        }
        if left != u64::MAX {
            self.turns.store(left - 1, Ordering::Relaxed);
        }
        Ok(0)
    }

    fn print(&self, text: &[u8]) {
        self.output.lock().unwrap().extend_from_slice(text);
    }

    fn malloc(&self, bytes: u64) -> u64 {
        if bytes > 1 << 20 {
            return 0;
        }
        let at = self.alloc(bytes);
        self.heap.lock().unwrap().insert(at, bytes);
        at
    }

    fn free(&self, addr: u64) -> bool {
        self.heap.lock().unwrap().remove(&addr).is_some()
    }

    fn now_ns(&self) -> u64 {
        self.started.elapsed().as_nanos() as u64
    }
}
