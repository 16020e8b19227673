//! A launch: distributes blocks over CPU threads.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::Builder;
use std::time::Duration;

use super::block::{Block, Progress, Shape, dynamic_base};
use super::contract::{Device, Fault, Launch, MULTIPROCESSORS, RunStats, TURN_INSTRUCTIONS};
use super::env::Env;
use super::inst::LANES;
use super::meter::Meter;
use super::program::{FuncInfo, Program};
use super::runtime::nest::Nest;
use super::warp::local_stride;

/// Number of instructions below which the wall clock gives the device time of a launch.
const SHORT_LAUNCH: u64 = 1_000;

/// A sleep shorter than this time, in ns, only yields the CPU.
const SHORT_NAP: u64 = 50_000;

/// Bytes of the workspace of cooperative groups for a grid-wide barrier.
const WORKSPACE: u64 = 256;

/// Bytes of registers, local and shared memory for the blocks that run at once. Beyond this limit
/// some cores of the host stay unused, as on a GPU whose multiprocessors are full.
const MOST_RUNNING: u64 = 1 << 30;

/// After this many instructions, an unfinished block may wait for a block that has not begun:
/// programs assume concurrent blocks wherever a GPU has room for them. Further blocks then begin.
const LONG_BLOCK: u64 = 1_000_000;

/// Instructions without the end of a block, after which one more block begins.
const NEXT_BLOCK: u64 = 200_000;

/// Instructions that a block runs before the next block of the thread runs.
const SHORT_TURN: u64 = TURN_INSTRUCTIONS / 4;

/// Instructions of a turn in kernels that do not seem to wait for other blocks. A long turn keeps
/// the registers and shared memory of a block in the processor's caches.
const LONG_TURN: u64 = TURN_INSTRUCTIONS * 8;

/// Largest numbers of threads and of blocks that the multiprocessors of any compute capability
/// hold.
const MOST_THREADS: u64 = MULTIPROCESSORS as u64 * 2048;
const MOST_BLOCKS: u64 = MULTIPROCESSORS as u64 * 32;

/// Largest cooperative launch, in bytes of all blocks. A larger launch fails for lack of resources.
const MOST_RESIDENT: u64 = 8 << 30;

thread_local! {
    /// Block of the launching thread, kept between launches, so that many small launches allocate
    /// nothing.
    static KEPT: std::cell::Cell<Option<Block>> = const { std::cell::Cell::new(None) };
}

/// State that the threads of a launch share.
struct Grid<'a> {
    program: &'a Program,
    launch: &'a Launch,
    params: &'a [u8],
    device: &'a dyn Device,
    nest: &'a Nest,
    shape: Shape,
    blocks: u64,
    /// Largest number of long blocks that run in turn on one CPU thread.
    beside: usize,
    /// Turn of a long block, in instructions.
    turn: u64,
    next: AtomicU64,
    stop: AtomicBool,
    fault: Mutex<Option<Fault>>,
    instructions: AtomicU64,
    device_ns: AtomicU64,
    clocked: AtomicBool,
}

/// One CPU thread of a launch.
struct Worker {
    block: Block,
    /// Unfinished blocks that take long.
    long: Vec<Block>,
    shape: Shape,
    budget: u64,
    meter: Meter,
}

/// Runs a kernel to its end, on this thread and up to `launch.threads - 1` others. `nest` takes the
/// launches of the kernel.
///
/// # Errors
/// The first device fault, after which the other blocks stop.
pub(super) fn run(
    program: &Program,
    launch: &Launch,
    device: &dyn Device,
    nest: &Nest,
) -> Result<RunStats, Fault> {
    let params = Aligned::of(&launch.params);
    let workspace = match launch.cooperative {
        true => workspace(device)?,
        false => 0,
    };
    let ran = Grid::new((program, launch, device, nest), params.bytes(), workspace)
        .and_then(|(grid, workers)| grid.run(workers));
    if workspace != 0 {
        device.free(workspace);
    }
    ran
}

impl<'a> Grid<'a> {
    /// Returns the grid of a launch, and the number of threads that run the grid.
    fn new(
        (program, launch, device, nest): (&'a Program, &'a Launch, &'a dyn Device, &'a Nest),
        params: &'a [u8],
        workspace: u64,
    ) -> Result<(Grid<'a>, usize), Fault> {
        let (func, info) = program
            .kernels
            .get(launch.kernel.0 as usize)
            .ok_or_else(|| Fault::IllegalInstruction("no such kernel".into()))?;
        let product = |all: [u32; 3]| all.iter().fold(1u64, |a, d| a.saturating_mul((*d).into()));
        let (threads, blocks) = (product(launch.block), product(launch.grid));
        if threads == 0 || threads > 1024 || blocks == 0 {
            return Err(Fault::IllegalInstruction(
                "launch dimensions out of range".into(),
            ));
        }
        let dynamic = dynamic_base(info.shared_bytes);
        let shared = u64::from(dynamic) + u64::from(launch.dynamic_shared);
        let shared = u32::try_from(shared)
            .map_err(|_| Fault::IllegalInstruction("shared memory out of range".into()))?;
        let bytes = block_bytes(&program.funcs[*func as usize], threads, shared);
        if launch.cooperative && blocks.saturating_mul(bytes) > MOST_RESIDENT {
            return Err(Fault::StackOverflow);
        }
        let room = (MOST_RUNNING / bytes).max(1);
        let workers = (launch.threads.max(1) as u64).min(blocks).min(room) as usize;
        let grid = Grid {
            program,
            launch,
            params,
            device,
            nest,
            shape: Shape {
                func: *func,
                shared,
                dynamic,
                workspace,
                sm: 0,
            },
            blocks,
            beside: (MOST_THREADS / threads).min(MOST_BLOCKS).min(room) as usize / workers,
            turn: if launch.cooperative || program.funcs[*func as usize].waits {
                SHORT_TURN
            } else {
                LONG_TURN
            },
            next: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            fault: Mutex::new(None),
            instructions: AtomicU64::new(0),
            device_ns: AtomicU64::new(0),
            clocked: AtomicBool::new(false),
        };
        Ok((grid, workers))
    }

    fn run(self, workers: usize) -> Result<RunStats, Fault> {
        if self.launch.cooperative {
            std::thread::scope(|s| {
                // If the system starts no more threads, this thread runs their blocks too.
                let mut own = vec![0];
                for n in 1..workers {
                    let grid = &self;
                    let helper = Builder::new();
                    let helper = helper.spawn_scoped(s, move || grid.resident(&[n], workers));
                    if helper.is_err() {
                        own.push(n);
                    }
                }
                self.resident(&own, workers);
            });
        } else {
            self.spread(workers);
        }
        let fault = self.fault.into_inner();
        match fault.unwrap_or_else(std::sync::PoisonError::into_inner) {
            Some(fault) => Err(fault),
            None => Ok(RunStats {
                warp_instructions: self.instructions.into_inner(),
                device_ns: Some(self.device_ns.into_inner()).filter(|ns| *ns > 0),
            }),
        }
    }
}

/// A parameter block at an aligned address, which accesses through generic addresses need.
enum Aligned<'a> {
    Own(&'a [u8]),
    Copy(Vec<u128>, usize),
}

impl<'a> Aligned<'a> {
    fn of(params: &'a [u8]) -> Aligned<'a> {
        // Usual allocators align vectors to 16 bytes, but do not guarantee it.
        if params.as_ptr().align_offset(16) == 0 {
            return Aligned::Own(params);
        }
        let words = params.chunks(16).map(|c| {
            let mut word = [0u8; 16];
            word[..c.len()].copy_from_slice(c);
            u128::from_ne_bytes(word)
        });
        Aligned::Copy(words.collect(), params.len())
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Aligned::Own(params) => params,
            // SAFETY: the words have at least `len` bytes, and every byte value is valid.
            Aligned::Copy(words, len) => unsafe {
                std::slice::from_raw_parts(words.as_ptr().cast(), *len)
            },
        }
    }
}

/// Bytes of host memory that a block of `threads` threads may need for registers, local and shared
/// memory. Called functions may need more local memory.
fn block_bytes(f: &FuncInfo, threads: u64, shared: u32) -> u64 {
    let columns = u64::from(f.n32) * 128 + u64::from(f.n64) * 256 + u64::from(f.np) * 4;
    let local = local_stride(f.local) * LANES as u64;
    threads.div_ceil(32) * (columns + local + 4096) + u64::from(shared)
}

/// Allocates memory for grid synchronisation: the size, then the words of the barrier, which are
/// zero.
fn workspace(device: &dyn Device) -> Result<u64, Fault> {
    let addr = device.malloc(WORKSPACE);
    if addr == 0 || !device.arena().live(addr, WORKSPACE) {
        return Err(Fault::IllegalAddress(
            "no device memory for the workspace of a cooperative launch".into(),
        ));
    }
    let mut bytes = [0u8; WORKSPACE as usize];
    bytes[..4].copy_from_slice(&(WORKSPACE as u32).to_le_bytes());
    // SAFETY: the driver has just allocated this memory, and the arena marks it live.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), addr as *mut u8, bytes.len()) };
    Ok(addr)
}

impl Grid<'_> {
    fn fail(&self, fault: Fault) {
        let mut slot = self
            .fault
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        slot.get_or_insert(fault);
        self.stop.store(true, Ordering::Relaxed);
    }

    fn index(&self, n: u64) -> [u32; 3] {
        let [x, y, _] = self.launch.grid.map(u64::from);
        [(n % x) as u32, (n / x % y) as u32, (n / x / y) as u32]
    }

    fn env(&self, block: [u32; 3], shared: *mut u8) -> Env<'_> {
        Env {
            program: self.program,
            code: &self.program.code,
            launch: self.launch,
            device: self.device,
            arena: self.device.arena(),
            shared,
            shared_len: u64::from(self.shape.shared),
            params: self.params,
            block,
            clocked: &self.clocked,
            nest: self.nest,
        }
    }

    fn turn(&self, meter: &mut Meter) -> Result<(), Fault> {
        if self.stop.load(Ordering::Relaxed) {
            return Err(Fault::Stopped);
        }
        meter.waited(self.device.turn()?);
        Ok(())
    }

    /// Runs blocks on this thread. Starts helper threads if the launch takes long.
    fn spread(&self, workers: usize) {
        let mut first = Worker {
            block: KEPT.take().unwrap_or_else(Block::new),
            long: Vec::new(),
            shape: self.shape,
            budget: SHORT_LAUNCH,
            meter: Meter::start(),
        };
        first.block.forget_count();
        self.take_blocks(&mut first, workers > 1);
        let most = if self.next.load(Ordering::Relaxed) < self.blocks {
            workers - 1
        } else {
            0
        };
        let (helped, mut helpers) = (AtomicU64::new(0), 0);
        if most > 0 && !self.stop.load(Ordering::Relaxed) {
            std::thread::scope(|s| {
                for n in 1..=most as u32 {
                    let helped = &helped;
                    let help = move || helped.fetch_add(self.help(n), Ordering::Relaxed);
                    // If the system starts no more threads, the others run all blocks.
                    if Builder::new().spawn_scoped(s, help).is_err() {
                        break;
                    }
                    helpers += 1;
                }
                self.take_blocks(&mut first, false);
            });
        }
        self.add(&first.block);
        let clocked = self.clocked.load(Ordering::Relaxed);
        if let Some((before, since)) = first.meter.read().filter(|_| !clocked) {
            let together = (since + helped.into_inner()) / (helpers + 1);
            self.device_ns.store(before + together, Ordering::Relaxed);
        }
        if first.block.is_small() {
            KEPT.set(Some(first.block));
        }
    }

    /// Runs blocks on a helper thread. Returns the device time of the thread, in ns.
    fn help(&self, sm: u32) -> u64 {
        let mut worker = Worker {
            block: Block::new(),
            long: Vec::new(),
            shape: Shape { sm, ..self.shape },
            budget: 0,
            meter: Meter::helper(),
        };
        self.take_blocks(&mut worker, false);
        self.add(&worker.block);
        worker.meter.read().map_or(0, |(_, ns)| ns)
    }

    fn add(&self, block: &Block) {
        self.instructions
            .fetch_add(block.instructions(), Ordering::Relaxed);
    }

    /// Runs blocks until none is left; with `alone`, only until the launch counts as long.
    fn take_blocks(&self, worker: &mut Worker, alone: bool) {
        if let Err(fault) = self.try_blocks(worker, alone) {
            self.fail(fault);
        }
    }

    fn try_blocks(&self, worker: &mut Worker, alone: bool) -> Result<(), Fault> {
        let mut fresh = true;
        loop {
            if !worker.long.is_empty() {
                if alone {
                    return Ok(());
                }
                let long = std::mem::take(&mut worker.long);
                self.rotate(long, worker.shape, &mut worker.meter)?;
            }
            let Some(n) = self.claim() else {
                return Ok(());
            };
            let ended = self.one(worker, n, fresh)?;
            fresh = !ended;
            if !ended {
                worker
                    .long
                    .push(std::mem::replace(&mut worker.block, Block::new()));
            } else if worker.meter.lasts() && alone {
                return Ok(());
            }
        }
    }

    /// Takes the number of the next block; `None` if all blocks are taken.
    fn claim(&self) -> Option<u64> {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        (n < self.blocks).then_some(n)
    }

    /// Runs a block. Returns false if the block takes long and other blocks have not begun.
    fn one(&self, worker: &mut Worker, n: u64, fresh: bool) -> Result<bool, Fault> {
        let Worker {
            block,
            shape,
            budget,
            meter,
            ..
        } = worker;
        self.turn(meter)?;
        let shared = block.shared(shape.shared);
        let env = self.env(self.index(n), shared);
        block.start(&env, shape, fresh)?;
        let mut ran = 0;
        loop {
            let progress = block.run(&env, budget)?;
            if *budget == 0 {
                *budget = TURN_INSTRUCTIONS;
                ran += TURN_INSTRUCTIONS;
                meter.count();
                self.turn(meter)?;
            }
            match progress {
                Progress::Done => return Ok(true),
                Progress::Some => {}
                Progress::Asleep(until) => {
                    ran += TURN_INSTRUCTIONS;
                    self.nap(until, meter)?;
                }
                Progress::Stuck => self.hang(meter)?,
            }
            if ran >= LONG_BLOCK && self.next.load(Ordering::Relaxed) < self.blocks {
                return Ok(false);
            }
        }
    }

    /// Waits 1 ms: a barrier that cannot complete hangs a GPU, and hangs here until the driver
    /// stops the kernel.
    fn hang(&self, meter: &mut Meter) -> Result<(), Fault> {
        meter.asleep(|| std::thread::sleep(Duration::from_millis(1)));
        self.turn(meter)
    }

    /// Waits while all warps sleep (`nanosleep`), until the first warp wakes at `until`.
    fn nap(&self, until: u64, meter: &mut Meter) -> Result<(), Fault> {
        let left = until.saturating_sub(self.device.now_ns());
        meter.asleep(|| {
            if left > SHORT_NAP {
                std::thread::sleep(Duration::from_nanos(left));
            } else {
                std::thread::yield_now();
            }
        });
        self.turn(meter)
    }

    /// Runs this thread's blocks of a cooperative launch, in turn: the blocks whose number modulo
    /// `step` is one of `own`.
    fn resident(&self, own: &[usize], step: usize) {
        if let Err(fault) = self.resident_blocks(own, step) {
            self.fail(fault);
        }
    }

    fn resident_blocks(&self, own: &[usize], step: usize) -> Result<(), Fault> {
        let shape = Shape {
            sm: own[0] as u32,
            ..self.shape
        };
        // The wall clock gives the device time of blocks that wait for each other, so the time of
        // this meter is not used.
        let mut meter = Meter::start();
        self.turn(&mut meter)?;
        let own = own
            .iter()
            .flat_map(|n| (*n as u64..self.blocks).step_by(step));
        let all = own.map(|n| self.begun(n, &shape));
        self.rotate(all.collect::<Result<_, _>>()?, shape, &mut meter)
    }

    /// Returns block `n` at the start of the kernel.
    fn begun(&self, n: u64, shape: &Shape) -> Result<Block, Fault> {
        let mut block = Block::new();
        let shared = block.shared(shape.shared);
        block.start(&self.env(self.index(n), shared), shape, true)?;
        Ok(block)
    }

    /// Runs a block for one turn, or until the block cannot go on. Also returns the number of
    /// executed instructions. `since` counts the instructions since the last call of
    /// `Device::turn`.
    fn turn_of(
        &self,
        block: &mut Block,
        env: &Env<'_>,
        since: &mut u64,
        meter: &mut Meter,
    ) -> Result<(Progress, u64), Fault> {
        let most = self.turn.min(TURN_INSTRUCTIONS);
        let mut used = 0;
        loop {
            let mut budget = most;
            let ran = block.run(env, &mut budget)?;
            used += most - budget;
            *since += most - budget;
            if *since >= TURN_INSTRUCTIONS {
                *since = 0;
                self.turn(meter)?;
            }
            // If blocks wait for each other, a turn ends after one slice of each warp.
            if used >= self.turn || self.turn == SHORT_TURN || !matches!(ran, Progress::Some) {
                return Ok((ran, used));
            }
        }
    }

    /// Runs blocks in turn until all have ended. While no block ends, further blocks of a launch
    /// that is not cooperative begin.
    fn rotate(&self, mut all: Vec<Block>, shape: Shape, meter: &mut Meter) -> Result<(), Fault> {
        let (mut since, mut waited) = (0u64, 0u64);
        meter.count();
        while !all.is_empty() {
            let (before, mut progress, mut wake) = (all.len(), false, u64::MAX);
            let mut n = 0;
            while let Some(b) = all.get_mut(n) {
                let shared = b.shared(shape.shared);
                let env = self.env(b.index, shared);
                let (ran, used) = self.turn_of(b, &env, &mut since, meter)?;
                waited += used;
                progress |= used > 0;
                match ran {
                    Progress::Done => {
                        self.add(&all.remove(n));
                        continue;
                    }
                    Progress::Some => progress = true,
                    Progress::Asleep(until) => wake = wake.min(until),
                    Progress::Stuck => {}
                }
                n += 1;
            }
            if all.len() < before {
                waited = 0;
            } else if !progress && wake != u64::MAX {
                waited += TURN_INSTRUCTIONS;
                self.nap(wake, meter)?;
            } else if !progress {
                self.hang(meter)?;
            }
            let more = !self.launch.cooperative && all.len() < self.beside;
            if more
                && waited >= NEXT_BLOCK
                && let Some(n) = self.claim()
            {
                waited = 0;
                all.push(self.begun(n, &shape)?);
            }
        }
        Ok(())
    }
}
