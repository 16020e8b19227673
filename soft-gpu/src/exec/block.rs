//! A block: its warps, which run one after another in slices, its shared memory and its barriers.

use super::col::{Col32, Col64};
use super::contract::Fault;
use super::env::Env;
use super::inst::LANES;
use super::ops::control::bar;
use super::special as sp;
use super::warp::{Params, Ran, Wait, Warp};

/// Number of instructions that a warp runs before the next warp of the block runs.
const SLICE: u64 = 20_000;

/// One of the 16 barriers of a block.
#[derive(Debug, Clone, Default)]
struct Barrier {
    /// Lanes that arrived: one mask per warp.
    arrived: Vec<u32>,
    /// Number of lanes that arrived.
    lanes: u32,
    /// Number of threads that the barrier expects; 0 for all threads of the block.
    count: u32,
    /// Number of true predicates of `bar.red`.
    votes: u32,
    /// Whether a lane arrived since the last reset.
    used: bool,
}

impl Barrier {
    /// Discards all arrivals. The barrier is then ready for a block of `warps` warps.
    fn reset(&mut self, warps: usize) {
        (self.lanes, self.count, self.votes) = (0, 0, 0);
        if self.used || self.arrived.len() != warps {
            self.arrived.clear();
            self.arrived.resize(warps, 0);
            self.used = false;
        }
    }
}

/// State of a block after [`Block::run`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Progress {
    /// At least one instruction ran.
    Some,
    /// Every warp waits at a barrier that cannot complete.
    Stuck,
    /// Every warp sleeps or waits. The first wake-up is at this time, in ns
    /// ([`crate::exec::contract::Device::now_ns`]).
    Asleep(u64),
    /// All threads have exited.
    Done,
}

/// A resident block. The launch uses the memory again for later blocks.
pub(crate) struct Block {
    warps: Vec<Warp>,
    used: usize,
    shared: Vec<u128>,
    params: Params,
    barriers: Vec<Barrier>,
    /// Bit n: a lane waits at barrier n.
    waiting: u32,
    /// Index of the block in the grid.
    pub(crate) index: [u32; 3],
    next: usize,
}

/// Properties that all blocks of a launch share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape {
    /// Function index of the kernel.
    pub(crate) func: u32,
    /// Bytes of shared memory, static and dynamic.
    pub(crate) shared: u32,
    /// Offset of dynamic shared memory, in bytes.
    pub(crate) dynamic: u32,
    /// Address of the grid workspace (`%envreg1`, `%envreg2`), or 0.
    pub(crate) workspace: u64,
    /// SM number that the block reports.
    pub(crate) sm: u32,
}

impl Block {
    /// Memory for a block, still empty.
    pub(crate) fn new() -> Block {
        Block {
            warps: Vec::new(),
            used: 0,
            shared: Vec::new(),
            params: Params::default(),
            barriers: vec![Barrier::default(); 16],
            waiting: 0,
            index: [0; 3],
            next: 0,
        }
    }

    /// Shared memory of `bytes` bytes, 16-byte aligned.
    pub(crate) fn shared(&mut self, bytes: u32) -> *mut u8 {
        let words = (bytes as usize).div_ceil(16).max(1);
        if self.shared.len() < words {
            self.shared.resize(words, 0);
        }
        self.shared.as_mut_ptr().cast()
    }

    /// Puts the threads of block `env.block` at the start of the kernel. `fresh`: this memory has
    /// not held another block of this launch.
    pub(crate) fn start(&mut self, env: &Env<'_>, shape: &Shape, fresh: bool) -> Result<(), Fault> {
        let dims = env.launch.block;
        let threads = dims[0] * dims[1] * dims[2];
        let count = (threads as usize).div_ceil(LANES);
        self.index = env.block;
        self.used = count;
        self.next = 0;
        self.waiting = 0;
        for b in &mut self.barriers {
            b.reset(count);
        }
        while self.warps.len() < count {
            self.warps.push(Warp::new());
        }
        if fresh {
            fill_params(&mut self.params, env, shape.func);
        }
        for (n, w) in self.warps.iter_mut().take(count).enumerate() {
            if fresh {
                fixed_specials(w, env, shape, n as u32, count as u32);
            }
            for (column, index) in w.spec32[sp::CTAID as usize..].iter_mut().zip(env.block) {
                if column.0[0] != index {
                    *column = Col32([index; LANES]);
                }
            }
            let left = threads - (n * LANES) as u32;
            let mask = if left >= 32 {
                u32::MAX
            } else {
                (1 << left) - 1
            };
            w.start(env, n as u32, mask, shape.func, &self.params, fresh)?;
        }
        Ok(())
    }

    /// Runs each warp for a slice, until `budget` (in instructions) is used up.
    pub(crate) fn run(&mut self, env: &Env<'_>, budget: &mut u64) -> Result<Progress, Fault> {
        let mut progress = false;
        let mut alive = false;
        let mut wake = u64::MAX;
        for _ in 0..self.used {
            let n = self.next;
            self.next = if n + 1 == self.used { 0 } else { n + 1 };
            let w = &mut self.warps[n];
            if w.live == 0 {
                continue;
            }
            alive = true;
            if w.wake != 0 {
                if env.device.now_ns() < w.wake {
                    wake = wake.min(w.wake);
                    continue;
                }
                w.wake = 0;
            }
            let before = w.count;
            let ran = w.run(env, SLICE.min(*budget).max(1));
            let used = w.count - before;
            *budget = budget.saturating_sub(used);
            progress |= used > 0;
            if ran == Ran::Fault {
                return Err(w.fault.take().unwrap_or(Fault::Trap));
            }
            self.arrivals(n);
            if self.waiting != 0 {
                self.release(env);
            }
            if *budget == 0 {
                return Ok(Progress::Some);
            }
        }
        Ok(match (alive, progress) {
            (false, _) => Progress::Done,
            (_, true) => Progress::Some,
            _ if wake != u64::MAX => Progress::Asleep(wake),
            _ => Progress::Stuck,
        })
    }

    /// Sets the counters of executed instructions to zero.
    pub(crate) fn forget_count(&mut self) {
        for w in &mut self.warps {
            w.count = 0;
        }
    }

    /// Whether the memory of the block is small enough to keep between launches.
    pub(crate) fn is_small(&self) -> bool {
        self.shared.len() <= 16 * 1024 && self.warps.iter().all(Warp::is_small)
    }

    /// Instructions that the warps executed since the counters were zero.
    pub(crate) fn instructions(&self) -> u64 {
        self.warps.iter().map(|w| w.count).sum()
    }

    fn arrivals(&mut self, n: usize) {
        let Block {
            warps,
            barriers,
            waiting,
            ..
        } = self;
        for a in warps[n].arrivals.drain(..) {
            let b = &mut barriers[usize::from(a.id)];
            let new = a.mask & !b.arrived[n];
            b.used = true;
            b.arrived[n] |= a.mask;
            b.lanes += new.count_ones();
            b.count = b.count.max(a.count);
            b.votes += a.votes.count_ones();
            *waiting |= 1 << a.id;
        }
    }

    /// Releases all complete barriers.
    fn release(&mut self, env: &Env<'_>) {
        for id in 0..16u8 {
            if self.waiting >> id & 1 == 0 || !self.complete(usize::from(id)) {
                continue;
            }
            let b = &mut self.barriers[usize::from(id)];
            let (lanes, votes) = (b.lanes, b.votes);
            b.arrived.fill(0);
            (b.lanes, b.count, b.votes) = (0, 0, 0);
            self.waiting &= !(1 << id);
            for w in self.warps.iter_mut().take(self.used) {
                free(w, env, id, lanes, votes);
            }
        }
    }

    fn complete(&self, id: usize) -> bool {
        let b = &self.barriers[id];
        let warps = self.warps.iter().take(self.used);
        if b.count == 0 {
            return b.lanes >= warps.map(|w| w.live.count_ones()).sum::<u32>();
        }
        // A thread count is a number of whole warps. When all live lanes of a warp have arrived,
        // its lanes that do not exist or have exited therefore count as arrived, too.
        let sum: u32 = warps
            .zip(&b.arrived)
            .map(|(w, &a)| match a {
                0 => 0,
                a if a | !w.live == u32::MAX => 32,
                a => a.count_ones(),
            })
            .sum();
        sum >= b.count
    }
}

/// Makes the groups of a warp that wait at a barrier ready to run, and sets the results of a
/// `bar.red`.
fn free(w: &mut Warp, env: &Env<'_>, id: u8, lanes: u32, votes: u32) {
    for i in 0..w.groups.len() {
        let g = w.groups[i];
        if g.wait != Wait::Barrier(id) {
            continue;
        }
        w.groups[i].wait = Wait::Ready;
        let inst = &env.code[g.pc as usize - 1];
        if inst.imm == bar::SYNC {
            continue;
        }
        let running = w.borrow_frame(g.frame);
        match inst.imm {
            bar::POPC => super::col::put(w, inst.d, &[votes; LANES], g.mask),
            bar::AND => w.put_pred(inst.d, if votes == lanes { u32::MAX } else { 0 }, g.mask),
            _ => w.put_pred(inst.d, if votes != 0 { u32::MAX } else { 0 }, g.mask),
        }
        w.borrow_frame(running);
    }
}

/// Sets the special registers whose values are equal for all blocks.
fn fixed_specials(w: &mut Warp, env: &Env<'_>, shape: &Shape, index: u32, warps: u32) {
    let (b, g) = (env.launch.block, env.launch.grid);
    for l in 0..LANES as u32 {
        let t = index * 32 + l;
        let i = l as usize;
        let tid = [t % b[0], t / b[0] % b[1], t / b[0] / b[1]];
        for (d, v) in tid.iter().enumerate() {
            w.spec32[sp::TID as usize + d].0[i] = *v;
        }
        let eq = 1u32 << l;
        for (at, v) in [
            (sp::LANEID, l),
            (sp::MASK_EQ, eq),
            (sp::MASK_LT, eq - 1),
            (sp::MASK_LE, eq | (eq - 1)),
            (sp::MASK_GE, !(eq - 1)),
            (sp::MASK_GT, !(eq | (eq - 1))),
        ] {
            w.spec32[at as usize].0[i] = v;
        }
    }
    let dynamic = env.launch.dynamic_shared;
    for (at, v) in [
        (sp::NTID, b[0]),
        (sp::NTID + 1, b[1]),
        (sp::NTID + 2, b[2]),
        (sp::NCTAID, g[0]),
        (sp::NCTAID + 1, g[1]),
        (sp::NCTAID + 2, g[2]),
        (sp::WARPID, index),
        (sp::NWARPID, warps),
        (sp::SMID, shape.sm),
        (sp::NSMID, env.launch.threads.max(1) as u32),
        (sp::DYNAMIC_SMEM, dynamic),
        (sp::TOTAL_SMEM, shape.shared),
        (sp::DYNAMIC_BASE, shape.dynamic),
        (sp::ZERO, 0),
        (sp::ONE, 1),
        (sp::ENV1, (shape.workspace >> 32) as u32),
        (sp::ENV2, shape.workspace as u32),
    ] {
        w.spec32[at as usize] = Col32([v; LANES]);
    }
    w.spec64[sp::DYNAMIC_BASE64 as usize].0 = [u64::from(shape.dynamic); LANES];
    w.spec64[sp::ZERO64 as usize].0 = [0; LANES];
}

/// Fills the columns of the parameters that the kernel reads as columns. The lowering has checked
/// that these parameters lie in the parameter block.
fn fill_params(params: &mut Params, env: &Env<'_>, func: u32) {
    let f = &env.program.funcs[func as usize];
    params.wide32.clear();
    params.wide64.clear();
    for &at in &f.params32 {
        let bytes = env.params.get(at as usize..).and_then(<[u8]>::first_chunk);
        let v = u32::from_le_bytes(bytes.copied().unwrap_or_default());
        params.wide32.push(Col32([v; LANES]));
    }
    for &at in &f.params64 {
        let bytes = env.params.get(at as usize..).and_then(<[u8]>::first_chunk);
        let v = u64::from_le_bytes(bytes.copied().unwrap_or_default());
        params.wide64.push(Col64([v; LANES]));
    }
}

/// Offset of dynamic shared memory: the size of static shared memory, rounded up.
pub(crate) fn dynamic_base(static_bytes: usize) -> u32 {
    (static_bytes as u32).next_multiple_of(16)
}
