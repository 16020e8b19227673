//! A warp: registers, groups of lanes, call frames, and the interpreter loop.
//!
//! Lanes with the same program counter and call frame form a group. The group in the deepest frame
//! runs first; among equally deep groups, the group with the lowest pc. Groups that meet are
//! merged. In structured code, lanes therefore reconverge without an analysis of the program.
//! Registers are columns with one entry per lane, so groups in overlapping frames never access the
//! same entries.

mod frame;

use self::frame::Frame;
pub(crate) use self::frame::{MAX_LOCAL, Place, local_stride};
use super::col::{Col32, Col64};
use super::contract::Fault;
use super::env::Env;
use super::inst::{Flow, NEGATED, NONE, bank};
use super::special;

/// Number of instructions that a group may run after an atomic while other groups are ready.
const PATIENCE: u64 = 1024;
/// Most instructions that the group which ran least recently runs in a row.
const BURST: u64 = 512;

/// The state in which a group waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// The group can run.
    Ready,
    /// Waits at this barrier of the block. The pc is already past the barrier.
    Barrier(u8),
    /// Waits at a warp-level `.sync` instruction until these lanes arrive.
    Sync(u32),
}

/// Lanes with the same pc and frame.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Group {
    pub(crate) pc: u32,
    pub(crate) mask: u32,
    pub(crate) frame: u32,
    depth: u32,
    pub(crate) wait: Wait,
    last: u64,
}

/// An arrival at a barrier of the block. The block collects these.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Number of the barrier, 0..16.
    pub(crate) id: u8,
    /// Lanes that arrived.
    pub(crate) mask: u32,
    /// Expected threads, or 0 for the whole block.
    pub(crate) count: u32,
    /// Lanes whose predicate holds (`bar.red`).
    pub(crate) votes: u32,
}

/// Reason why a warp stopped running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ran {
    /// The budget is used up.
    Budget,
    /// Every group waits at a barrier of the block.
    Parked,
    /// All lanes have exited.
    Done,
    /// `warp.fault` is set.
    Fault,
}

/// Parameters of the launch that instructions read as columns ([`bank::PARAM`]).
#[derive(Default)]
pub(crate) struct Params {
    pub(crate) wide32: Vec<Col32>,
    pub(crate) wide64: Vec<Col64>,
}

/// Number of address registers whose rule a warp can store.
pub(crate) const MEMOS: usize = 8;

/// The rule of an address register ([`crate::exec::ops::regular`]): the first value of each half of
/// the warp, and the step from a lane to the next.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Memo {
    pub(crate) first: [u64; 2],
    pub(crate) step: u64,
}

enum Step {
    Choose,
    Budget,
    Yield,
    Fault,
}

/// State of a warp.
pub(crate) struct Warp {
    /// 32-bit banks: registers, constants, special registers, parameters.
    pub(crate) bank32: [*const Col32; 4],
    /// 64-bit banks.
    pub(crate) bank64: [*const Col64; 4],
    preds: *mut u32,
    /// Number of columns in the constant pools of the program, and in the parameters of the launch,
    /// for both widths.
    pools: (usize, usize),
    params: (usize, usize),
    /// Lanes of the running group; 0 while no group is chosen.
    pub(crate) active: u32,
    /// Index of the running instruction.
    pub(crate) pc: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    /// Carry flag of each lane.
    pub(crate) carry: u32,
    /// Whether an atomic ran. Lanes may then spin until other lanes of the warp change memory.
    pub(crate) busy: bool,
    /// Time at which a sleeping warp wakes (ns, `Device::now_ns`); 0 while the warp is awake.
    pub(crate) wake: u64,
    /// Whether the next `.sync` continues without missing lanes, because no other lane can arrive.
    force: bool,
    stop: u32,
    frame: u32,
    slice: u64,
    rotate: bool,
    /// Stored rules of address registers. The lowering decides when a rule is stored and used.
    pub(crate) memos: [Memo; MEMOS],
    /// Bit n: the running group stored memo n.
    pub(crate) remembered: u8,
    /// Set when [`Flow::Fault`] is returned.
    pub(crate) fault: Option<Fault>,
    /// Index of the warp in the block.
    pub(crate) index: u32,
    pub(crate) groups: Vec<Group>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    file32: Vec<Col32>,
    file64: Vec<Col64>,
    filep: Vec<u32>,
    /// Special registers, in the order of [`special`].
    pub(crate) spec32: Vec<Col32>,
    /// 64-bit special registers.
    pub(crate) spec64: Vec<Col64>,
    local: Vec<u128>,
    /// Size of a lane's local memory in bytes.
    pub(crate) stride: u64,
    /// Barrier arrivals that the block has not yet counted.
    pub(crate) arrivals: Vec<Arrival>,
    /// Number of executed instructions.
    pub(crate) count: u64,
    /// Instructions that calls of the driver count for, not yet in `count`.
    pub(crate) charge: u64,
    /// The last `cudaError_t` of each lane; empty if there was none.
    pub(crate) errors: Vec<u32>,
}

impl Warp {
    /// An idle warp.
    pub(crate) fn new() -> Warp {
        Warp {
            bank32: [std::ptr::null(); 4],
            bank64: [std::ptr::null(); 4],
            preds: std::ptr::null_mut(),
            pools: (0, 0),
            params: (0, 0),
            active: 0,
            pc: 0,
            live: 0,
            carry: 0,
            busy: false,
            wake: 0,
            force: false,
            stop: u32::MAX,
            frame: NONE,
            slice: 0,
            rotate: false,
            memos: [Memo::default(); MEMOS],
            remembered: 0,
            fault: None,
            index: 0,
            groups: Vec::new(),
            frames: Vec::new(),
            free: Vec::new(),
            file32: Vec::new(),
            file64: Vec::new(),
            filep: Vec::new(),
            spec32: vec![Col32::default(); special::COUNT32],
            spec64: vec![Col64::default(); special::COUNT64],
            local: Vec::new(),
            stride: 0,
            arrivals: Vec::new(),
            count: 0,
            charge: 0,
            errors: Vec::new(),
        }
    }

    /// Whether registers and local memory together take at most about 100 KiB.
    pub(crate) fn is_small(&self) -> bool {
        self.file32.len() <= 256 && self.file64.len() <= 256 && self.stride <= 1024
    }

    /// Puts the lanes in `mask` at the start of the kernel `func`. `params` must stay at the same
    /// address while the warp runs. `fresh`: the warp has not run this kernel before, so memory is
    /// allocated.
    pub(crate) fn start(
        &mut self,
        env: &Env<'_>,
        index: u32,
        mask: u32,
        func: u32,
        params: &Params,
        fresh: bool,
    ) -> Result<(), Fault> {
        self.groups.clear();
        self.frames.clear();
        self.free.clear();
        self.arrivals.clear();
        self.errors.clear();
        self.fault = None;
        self.index = index;
        self.live = mask;
        self.carry = 0;
        self.wake = 0;
        self.force = false;
        self.rotate = false;
        self.stop = u32::MAX;
        self.pools = (env.program.pool32.len(), env.program.pool64.len());
        self.bank32[1] = env.program.pool32.as_ptr();
        self.bank64[1] = env.program.pool64.as_ptr();
        self.bank32[2] = self.spec32.as_ptr();
        self.params = (params.wide32.len(), params.wide64.len());
        self.bank32[3] = params.wide32.as_ptr();
        self.bank64[3] = params.wide64.as_ptr();
        let info = &env.program.funcs[func as usize];
        let frame = self.push_frame(Frame {
            func,
            parent: NONE,
            refs: 1,
            depth: 0,
            ret_pc: 0,
            call: NONE,
            base32: 0,
            base64: 0,
            basep: 0,
            local: 0,
        });
        if fresh {
            self.reserve(info, frame)?;
        }
        self.set_frame(frame);
        self.active = mask;
        self.pc = info.entry;
        Ok(())
    }

    /// Whether a 32-bit operand is within its bank, as the lowering guarantees. Debug builds check
    /// this.
    pub(crate) fn holds32(&self, op: u32) -> bool {
        let i = (op & bank::INDEX) as usize;
        let base = (self.bank32[0] as usize).wrapping_sub(self.file32.as_ptr() as usize);
        match op >> 30 {
            0 => base / size_of::<Col32>() + i < self.file32.len(),
            1 => i < self.pools.0,
            2 => i < self.spec32.len(),
            3 => i < self.params.0,
            _ => false,
        }
    }

    /// As [`Self::holds32`], for a 64-bit operand.
    pub(crate) fn holds64(&self, op: u32) -> bool {
        let i = (op & bank::INDEX) as usize;
        let base = (self.bank64[0] as usize).wrapping_sub(self.file64.as_ptr() as usize);
        match op >> 30 {
            0 => base / size_of::<Col64>() + i < self.file64.len(),
            1 => i < self.pools.1,
            2 => i < self.spec64.len(),
            3 => i < self.params.1,
            _ => false,
        }
    }

    /// Whether a predicate operand is within the register file.
    fn holds_pred(&self, op: u32) -> bool {
        let base = (self.preds as usize).wrapping_sub(self.filep.as_ptr() as usize);
        base / size_of::<u32>() + ((op & !NEGATED) as usize) < self.filep.len()
    }

    /// The value of a predicate operand, one bit per lane.
    #[inline(always)]
    pub(crate) fn pred(&self, op: u32) -> u32 {
        debug_assert!(self.holds_pred(op), "predicate {op:#x}");
        // SAFETY: predicate indices come from the lowering and lie within the current frame.
        let v = unsafe { *self.preds.add((op & !NEGATED) as usize) };
        if op & NEGATED != 0 { !v } else { v }
    }

    /// Writes the lanes in `mask` of a predicate.
    #[inline(always)]
    pub(crate) fn put_pred(&mut self, op: u32, bits: u32, mask: u32) {
        debug_assert!(self.holds_pred(op), "predicate {op:#x}");
        // SAFETY: as in `pred`.
        let p = unsafe { &mut *self.preds.add(op as usize) };
        *p = (*p & !mask) | (bits & mask);
    }

    /// Moves lanes of the current frame to a group that waits, or is ready, at `pc`. The running
    /// group keeps its own reference to the frame.
    pub(crate) fn park(&mut self, pc: u32, mask: u32, wait: Wait) {
        let frame = self.frame;
        if wait == Wait::Ready {
            for g in &mut self.groups {
                if g.pc == pc && g.frame == frame && g.wait == Wait::Ready {
                    g.mask |= mask;
                    return;
                }
            }
        }
        let f = &mut self.frames[frame as usize];
        f.refs += 1;
        let depth = f.depth;
        self.groups.push(Group {
            pc,
            mask,
            frame,
            depth,
            wait,
            last: self.slice,
        });
    }

    /// Ends the running group, because its lanes exited, returned or were parked.
    pub(crate) fn drop_current(&mut self) {
        self.active = 0;
        self.release(self.frame);
    }

    /// Moves the lanes in `taken` to `target`, and the other lanes of the running group to the
    /// following instruction. The group with the lower pc continues to run.
    #[inline(always)]
    pub(crate) fn branch(&mut self, taken: u32, target: u32) -> Flow {
        if taken == self.active {
            self.pc = target;
            return Flow::Jump;
        }
        self.diverge(taken, target)
    }

    fn diverge(&mut self, taken: u32, target: u32) -> Flow {
        let next = self.pc + 1;
        let rest = self.active & !taken;
        if target == next {
            return Flow::Next;
        }
        if target < next {
            self.park(next, rest, Wait::Ready);
            self.active = taken;
            self.stop = self.stop.min(next);
            self.pc = target;
        } else {
            self.park(target, taken, Wait::Ready);
            self.active = rest;
            self.stop = self.stop.min(target);
            self.pc = next;
        }
        Flow::Jump
    }

    /// Exits lanes of the running group.
    pub(crate) fn exit(&mut self, mask: u32) -> Flow {
        self.live &= !mask;
        self.active &= !mask;
        if self.active == 0 {
            self.drop_current();
            return Flow::Choose;
        }
        Flow::Next
    }

    /// Whether all lanes of `members` that have not exited are in `mask`.
    #[inline(always)]
    pub(crate) fn together(&self, members: u32, mask: u32) -> bool {
        members & self.live & !mask == 0
    }

    /// Returns whether the running group must not wait at its `.sync`, because no other lane can
    /// arrive, and clears this flag.
    pub(crate) fn take_force(&mut self) -> bool {
        std::mem::take(&mut self.force)
    }

    /// Parks lanes at a `.sync` instruction, in one group with lanes that already wait there for
    /// the same members. The caller must then call [`Self::leave_behind`].
    pub(crate) fn wait_for(&mut self, members: u32, mask: u32) {
        let (pc, frame) = (self.pc, self.frame);
        let wait = Wait::Sync(members);
        let there = |g: &&mut Group| g.pc == pc && g.frame == frame && g.wait == wait;
        match self.groups.iter_mut().find(there) {
            Some(g) => g.mask |= mask,
            None => self.park(pc, mask, wait),
        }
    }

    /// Ends the running group, whose lanes in `mask` were parked. Its other lanes become a group at
    /// the following instruction.
    pub(crate) fn leave_behind(&mut self, mask: u32) -> Flow {
        let rest = self.active & !mask;
        if rest != 0 {
            self.park(self.pc + 1, rest, Wait::Ready);
        }
        self.drop_current();
        Flow::Choose
    }

    /// Parks lanes at a barrier of the block.
    pub(crate) fn wait_barrier(&mut self, mask: u32, id: u8) -> Flow {
        let rest = self.active & !mask;
        self.park(self.pc + 1, mask, Wait::Barrier(id));
        if rest != 0 {
            self.park(self.pc + 1, rest, Wait::Ready);
        }
        self.drop_current();
        Flow::Choose
    }

    fn merge_groups(&mut self) {
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let (a, b) = (self.groups[i], self.groups[j]);
                // Lanes that reach a `.sync` where others wait join the others when they execute
                // the `.sync`.
                if a.pc == b.pc
                    && a.frame == b.frame
                    && a.wait == Wait::Ready
                    && b.wait == Wait::Ready
                {
                    let g = &mut self.groups[i];
                    g.mask |= b.mask;
                    g.last = a.last.min(b.last);
                    self.groups.swap_remove(j);
                    self.release(b.frame);
                } else {
                    j += 1;
                }
            }
            i += 1;
        }
    }

    /// Chooses the group to run; false if none can run.
    fn choose(&mut self, rotate: bool) -> bool {
        if self.groups.len() > 1 {
            self.merge_groups();
        }
        let live = self.live;
        let can_run = |g: &Group| match g.wait {
            Wait::Ready => true,
            Wait::Sync(members) => members & live & !g.mask == 0,
            Wait::Barrier(_) => false,
        };
        let key = |g: &Group| {
            if rotate {
                (g.last, 0)
            } else {
                (u64::from(u32::MAX - g.depth), g.pc)
            }
        };
        let best = self.groups.iter().filter(|g| can_run(g)).map(key).min();
        let at = match best {
            Some(k) => self.groups.iter().position(|g| can_run(g) && key(g) == k),
            None if self
                .groups
                .iter()
                .any(|g| matches!(g.wait, Wait::Barrier(_))) =>
            {
                None
            }
            None => {
                // Lanes wait for each other at different places, so no lane can arrive. The group
                // with the lowest pc continues alone. Hardware does not define this case.
                self.force = !self.groups.is_empty();
                let low = self.groups.iter().map(|g| g.pc).min();
                self.groups.iter().position(|g| Some(g.pc) == low)
            }
        };
        let Some(at) = at else { return false };
        let g = self.groups.swap_remove(at);
        self.set_frame(g.frame);
        self.pc = g.pc;
        self.active = g.mask;
        self.stop = self
            .groups
            .iter()
            .filter(|o| o.frame == g.frame && o.pc > g.pc && !matches!(o.wait, Wait::Barrier(_)))
            .map(|o| o.pc)
            .min()
            .unwrap_or(u32::MAX);
        true
    }

    /// Runs up to `budget` instructions.
    pub(crate) fn run(&mut self, env: &Env<'_>, budget: u64) -> Ran {
        self.slice += 1;
        let mut left = budget;
        let end = self.slices(env, &mut left);
        self.count += budget - left + std::mem::take(&mut self.charge);
        end
    }

    fn slices(&mut self, env: &Env<'_>, left: &mut u64) -> Ran {
        while *left > 0 {
            if std::mem::take(&mut self.rotate) && !self.groups.is_empty() {
                // Lanes may spin until other lanes of the warp change memory, so the group that ran
                // least recently runs next.
                self.slice += 1;
                self.put_aside();
                if self.choose(true) {
                    match self.part(env, left, BURST) {
                        Step::Fault => return Ran::Fault,
                        Step::Yield => return Ran::Budget,
                        Step::Choose => {}
                        Step::Budget => self.put_aside(),
                    }
                }
            }
            if self.active == 0 && !self.choose(false) {
                return if self.live == 0 {
                    Ran::Done
                } else {
                    Ran::Parked
                };
            }
            let spinning = std::mem::take(&mut self.busy) && !self.groups.is_empty();
            match self.part(env, left, if spinning { PATIENCE } else { u64::MAX }) {
                Step::Choose => {}
                Step::Budget => self.rotate = true,
                Step::Yield => {
                    self.rotate = true;
                    return Ran::Budget;
                }
                Step::Fault => return Ran::Fault,
            }
        }
        Ran::Budget
    }

    /// Runs at most `most` instructions, and at most `left`.
    fn part(&mut self, env: &Env<'_>, left: &mut u64, most: u64) -> Step {
        let given = most.min(*left);
        let mut n = given;
        let step = self.execute(env, &mut n);
        *left -= given - n;
        step
    }

    /// Parks the running group at its present pc.
    fn put_aside(&mut self) {
        if self.active != 0 {
            self.park(self.pc, self.active, Wait::Ready);
            self.drop_current();
        }
    }

    /// Runs the current group until it meets another group or ends, or `left` is used up.
    fn execute(&mut self, env: &Env<'_>, left: &mut u64) -> Step {
        let code = env.code.as_ptr();
        let mut pc = self.pc;
        let mut n = *left;
        self.remembered = 0;
        let step = loop {
            if n == 0 {
                self.pc = pc;
                break Step::Budget;
            }
            n -= 1;
            // SAFETY: the lowering sets all branch targets, and every function ends in a return.
            let inst = unsafe { &*code.add(pc as usize) };
            let mut mask = self.active;
            if inst.guard != NONE {
                mask &= self.pred(inst.guard);
            }
            if mask == 0 {
                pc += 1;
            } else {
                self.pc = pc;
                // SAFETY: the instruction belongs to the function of the current frame.
                match unsafe { (inst.run)(self, env, inst, mask) } {
                    Flow::Next => pc += 1,
                    Flow::Jump => pc = self.pc,
                    Flow::Choose => break Step::Choose,
                    Flow::Yield => {
                        self.pc = pc + 1;
                        break Step::Yield;
                    }
                    Flow::Fault => break Step::Fault,
                }
            }
            if pc >= self.stop {
                self.park(pc, self.active, Wait::Ready);
                self.drop_current();
                break Step::Choose;
            }
        };
        *left = n;
        step
    }
}
