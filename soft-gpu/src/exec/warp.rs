//! A warp: registers, groups of lanes, call frames, and the executing loop.
//!
//! Lanes that share a program counter and a call frame form a group. The deepest group runs first,
//! among equals the one with the lowest pc; groups that meet are merged. That reconverges
//! structured code without any analysis. Registers are columns, one stripe a lane, so groups at
//! overlapping frames never touch each other's lanes.

use super::col::{Col32, Col64};
use super::contract::Fault;
use super::env::Env;
use super::inst::{Flow, LANES, NEGATED, NONE};
use super::ops::family::each_lane;
use super::program::FuncInfo;
use super::special;

/// Most bytes of local memory a thread may have, as on hardware.
pub(crate) const MAX_LOCAL: u64 = 512 * 1024;
/// Deepest call nesting.
const MAX_DEPTH: u32 = 4096;
/// Most register columns of a warp (of each width) once functions have been called: a kernel's own
/// are bounded when it is loaded.
const MAX_COLUMNS: usize = 1 << 15;
/// Instructions that a starved group gets at the start of a slice.
const BURST: u64 = 512;

/// Why a group does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wait {
    /// It can run.
    Ready,
    /// At a block barrier; its pc is already past it.
    Barrier(u8),
    /// At a warp-level `.sync` instruction, for these lanes to come.
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

/// One activation of a function.
#[derive(Debug, Clone, Copy)]
struct Frame {
    func: u32,
    parent: u32,
    /// Groups here, plus frames above.
    refs: u32,
    depth: u32,
    ret_pc: u32,
    call: u32,
    base32: u32,
    base64: u32,
    basep: u32,
    local: u64,
}

/// An arrival at a block barrier, for the block to count.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    /// Barrier 0..16.
    pub(crate) id: u8,
    /// Lanes.
    pub(crate) mask: u32,
    /// Thread count given, or 0 for the whole block.
    pub(crate) count: u32,
    /// Lanes whose predicate holds (`bar.red`).
    pub(crate) votes: u32,
}

/// How a slice ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ran {
    /// The budget is used up; there is more to do.
    Budget,
    /// Every group waits at a barrier.
    Parked,
    /// All lanes have exited.
    Done,
    /// `warp.fault` is set.
    Fault,
}

enum Step {
    Choose,
    Budget,
    Yield,
    Fault,
}

/// A warp's state.
pub(crate) struct Warp {
    /// 32-bit banks: registers, constants, specials.
    pub(crate) bank32: [*const Col32; 4],
    /// 64-bit banks.
    pub(crate) bank64: [*const Col64; 4],
    preds: *mut u32,
    /// Lanes of the running group (0: none chosen).
    pub(crate) active: u32,
    /// The running instruction.
    pub(crate) pc: u32,
    /// Lanes that have not exited.
    pub(crate) live: u32,
    /// Carry flag of each lane.
    pub(crate) carry: u32,
    /// Do not wait for missing lanes at the next `.sync`: none will come.
    force: bool,
    stop: u32,
    frame: u32,
    slice: u64,
    rotate: bool,
    /// Set when [`Flow::Fault`] is returned.
    pub(crate) fault: Option<Fault>,
    /// Index in the block.
    pub(crate) index: u32,
    pub(crate) groups: Vec<Group>,
    frames: Vec<Frame>,
    free: Vec<u32>,
    file32: Vec<Col32>,
    file64: Vec<Col64>,
    filep: Vec<u32>,
    /// Special registers, see [`special`].
    pub(crate) spec32: Vec<Col32>,
    /// 64-bit special registers.
    pub(crate) spec64: Vec<Col64>,
    local: Vec<u128>,
    /// Local bytes a lane.
    pub(crate) stride: u64,
    /// Barrier arrivals since the block last looked.
    pub(crate) arrivals: Vec<Arrival>,
    /// Instructions executed.
    pub(crate) count: u64,
}

impl Warp {
    /// An idle warp.
    pub(crate) fn new() -> Warp {
        Warp {
            bank32: [std::ptr::null(); 4],
            bank64: [std::ptr::null(); 4],
            preds: std::ptr::null_mut(),
            active: 0,
            pc: 0,
            live: 0,
            carry: 0,
            force: false,
            stop: u32::MAX,
            frame: NONE,
            slice: 0,
            rotate: false,
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
        }
    }

    /// Small registers and local memory: at most some 100 KiB.
    pub(crate) fn is_small(&self) -> bool {
        self.file32.len() <= 256 && self.file64.len() <= 256 && self.stride <= 1024
    }

    /// Places the lanes in `mask` at the start of the kernel `func`.
    pub(crate) fn start(
        &mut self,
        env: &Env<'_>,
        index: u32,
        mask: u32,
        func: u32,
    ) -> Result<(), Fault> {
        self.groups.clear();
        self.frames.clear();
        self.free.clear();
        self.arrivals.clear();
        self.fault = None;
        self.index = index;
        self.live = mask;
        self.carry = 0;
        self.force = false;
        self.rotate = false;
        self.stop = u32::MAX;
        self.bank32[1] = env.program.pool32.as_ptr();
        self.bank64[1] = env.program.pool64.as_ptr();
        self.bank32[2] = self.spec32.as_ptr();
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
        self.reserve(info, frame)?;
        self.set_frame(frame);
        self.active = mask;
        self.pc = info.entry;
        Ok(())
    }

    /// The lanes of a predicate operand.
    #[inline(always)]
    pub(crate) fn pred(&self, op: u32) -> u32 {
        // SAFETY: predicate indices come from the lowering and are within the current frame.
        let v = unsafe { *self.preds.add((op & !NEGATED) as usize) };
        if op & NEGATED != 0 { !v } else { v }
    }

    /// Writes the lanes in `mask` of a predicate.
    #[inline(always)]
    pub(crate) fn put_pred(&mut self, op: u32, bits: u32, mask: u32) {
        // SAFETY: as in `pred`.
        let p = unsafe { &mut *self.preds.add(op as usize) };
        *p = (*p & !mask) | (bits & mask);
    }

    fn push_frame(&mut self, f: Frame) -> u32 {
        match self.free.pop() {
            Some(i) => {
                self.frames[i as usize] = f;
                i
            }
            None => {
                self.frames.push(f);
                self.frames.len() as u32 - 1
            }
        }
    }

    /// Makes the register files and local memory large enough for `frame` of `info`.
    fn reserve(&mut self, info: &FuncInfo, frame: u32) -> Result<(), Fault> {
        let f = self.frames[frame as usize];
        let n32 = f.base32 as usize + info.n32 as usize;
        let n64 = f.base64 as usize + info.n64 as usize;
        let np = f.basep as usize + info.np as usize;
        let deep = f.depth > 0 && n32.max(n64).max(np) > MAX_COLUMNS;
        if deep || f.depth > MAX_DEPTH {
            return Err(Fault::StackOverflow);
        }
        if self.file32.len() < n32 {
            self.file32
                .resize(n32.next_power_of_two(), Col32::default());
        }
        if self.file64.len() < n64 {
            self.file64
                .resize(n64.next_power_of_two(), Col64::default());
        }
        if self.filep.len() < np {
            self.filep.resize(np.next_power_of_two(), 0);
        }
        self.reserve_local(f.local + info.local)
    }

    fn reserve_local(&mut self, bytes: u64) -> Result<(), Fault> {
        if bytes <= self.stride {
            return Ok(());
        }
        if bytes > MAX_LOCAL {
            return Err(Fault::StackOverflow);
        }
        let stride = bytes.next_power_of_two().max(256);
        let words = (stride / 16) as usize;
        let mut new: Vec<u128> = Vec::new();
        if new.try_reserve_exact(words * LANES).is_err() {
            return Err(Fault::StackOverflow);
        }
        new.resize(words * LANES, 0);
        let old = (self.stride / 16) as usize;
        for l in 0..LANES {
            new[l * words..l * words + old].copy_from_slice(&self.local[l * old..(l + 1) * old]);
        }
        self.local = new;
        self.stride = stride;
        Ok(())
    }

    /// Start of a lane's local memory.
    #[inline(always)]
    pub(crate) fn local_base(&self) -> *mut u8 {
        self.local.as_ptr().cast::<u8>().cast_mut()
    }

    /// Makes `frame` current.
    fn set_frame(&mut self, frame: u32) {
        let f = self.frames[frame as usize];
        self.frame = frame;
        // SAFETY: `reserve` grew the files beyond these bases when the frame was entered, and they
        // never shrink while the warp runs.
        unsafe {
            self.bank32[0] = self.file32.as_mut_ptr().add(f.base32 as usize).cast_const();
            self.bank64[0] = self.file64.as_mut_ptr().add(f.base64 as usize).cast_const();
            self.preds = self.filep.as_mut_ptr().add(f.basep as usize);
        }
        self.spec64[special::FRAME_LOCAL as usize].0 = [f.local; LANES];
        self.bank64[2] = self.spec64.as_ptr();
    }

    /// Puts lanes of the current frame aside at `pc`; the running group keeps its own reference.
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

    /// Ends the running group (its lanes exited, returned or were parked).
    pub(crate) fn drop_current(&mut self) {
        self.active = 0;
        self.release(self.frame);
    }

    fn release(&mut self, frame: u32) {
        let mut at = frame;
        while at != NONE {
            let f = &mut self.frames[at as usize];
            f.refs -= 1;
            if f.refs > 0 {
                return;
            }
            let parent = f.parent;
            self.free.push(at);
            at = parent;
        }
    }

    /// The lanes in `taken` go to `target`, the others of the running group to the following
    /// instruction; the lower goes on.
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

    /// Waits at a warp-level `.sync` until all live lanes of `members` are here. True: go on.
    #[inline(always)]
    pub(crate) fn together(&mut self, members: u32, mask: u32) -> bool {
        if members & self.live & !mask == 0 || self.force {
            self.force = false;
            return true;
        }
        false
    }

    /// Parks the running group at a `.sync` instruction (see [`Self::together`]): the lanes in
    /// `mask` wait there, guarded-off lanes go on.
    pub(crate) fn wait_together(&mut self, members: u32, mask: u32) -> Flow {
        let rest = self.active & !mask;
        self.park(self.pc, mask, Wait::Sync(members));
        if rest != 0 {
            self.park(self.pc + 1, rest, Wait::Ready);
        }
        self.drop_current();
        Flow::Choose
    }

    /// Parks lanes at a block barrier.
    pub(crate) fn wait_barrier(&mut self, mask: u32, id: u8) -> Flow {
        let rest = self.active & !mask;
        self.park(self.pc + 1, mask, Wait::Barrier(id));
        if rest != 0 {
            self.park(self.pc + 1, rest, Wait::Ready);
        }
        self.drop_current();
        Flow::Choose
    }

    /// Enters `func` with the lanes in `mask`; `copy` moves the arguments (from the frame that is
    /// current to the one that will be).
    pub(crate) fn call(
        &mut self,
        env: &Env<'_>,
        mask: u32,
        func: u32,
        call: u32,
    ) -> Result<Flow, Fault> {
        let cur = self.frames[self.frame as usize];
        let from = &env.program.funcs[cur.func as usize];
        let info = &env.program.funcs[func as usize];
        let rest = self.active & !mask;
        if rest != 0 {
            self.park(self.pc + 1, rest, Wait::Ready);
        }
        let parent = self.frame;
        // The running group's reference to the parent becomes the new frame's.
        let frame = self.push_frame(Frame {
            func,
            parent,
            refs: 1,
            depth: cur.depth + 1,
            ret_pc: self.pc + 1,
            call,
            base32: cur.base32 + from.n32,
            base64: cur.base64 + from.n64,
            basep: cur.basep + from.np,
            local: cur.local + from.local,
        });
        self.reserve(info, frame)?;
        let site = &env.program.calls[call as usize];
        self.set_frame(frame);
        for (src, dst) in site.args.iter().zip(&info.params) {
            self.transfer(parent, src, frame, dst, mask);
        }
        self.active = mask;
        self.pc = info.entry;
        self.stop = u32::MAX;
        Ok(Flow::Jump)
    }

    /// Returns lanes from the current frame; from a kernel they exit.
    pub(crate) fn ret(&mut self, env: &Env<'_>, mask: u32) -> Flow {
        let frame = self.frame;
        let f = self.frames[frame as usize];
        if f.parent == NONE {
            return self.exit(mask);
        }
        let info = &env.program.funcs[f.func as usize];
        let site = &env.program.calls[f.call as usize];
        for (src, dst) in info.returns.iter().zip(&site.rets) {
            self.transfer(frame, src, f.parent, dst, mask);
        }
        let rest = self.active & !mask;
        if rest != 0 {
            self.park(self.pc + 1, rest, Wait::Ready);
        }
        self.frame = f.parent;
        self.park(f.ret_pc, mask, Wait::Ready);
        self.frame = frame;
        self.drop_current();
        Flow::Choose
    }

    /// Copies one argument or result between frames for the lanes in `mask`.
    fn transfer(&mut self, from: u32, src: &Place, to: u32, dst: &Place, mask: u32) {
        let (f, t) = (self.frames[from as usize], self.frames[to as usize]);
        let local = self.local_base();
        let stride = self.stride;
        each_lane(mask, |l| {
            let lane = l as u64 * stride;
            let mut word = [0u8; 8];
            match *src {
                Place::Reg32(c) => word[..4].copy_from_slice(&self.read32(f.base32, c, l)),
                Place::Reg64(c) => word = self.read64(f.base64, c, l),
                Place::Pred(c) => {
                    word[0] = (self.filep[(f.basep + c) as usize] >> l & 1) as u8;
                }
                Place::Local(off, len) => {
                    let n = len.min(8) as usize;
                    // SAFETY: the place lies in the frame, whose local memory `reserve` made.
                    unsafe {
                        let p = local.add((lane + f.local + off) as usize);
                        if let Place::Local(to_off, to_len) = *dst {
                            let n = len.min(to_len) as usize;
                            let q = local.add((lane + t.local + to_off) as usize);
                            std::ptr::copy(p, q, n);
                            return;
                        }
                        std::ptr::copy_nonoverlapping(p, word.as_mut_ptr(), n);
                    }
                }
            }
            match *dst {
                Place::Reg32(c) => {
                    let v = u32::from_le_bytes([word[0], word[1], word[2], word[3]]);
                    self.file32[(t.base32 + c) as usize].0[l] = v;
                }
                Place::Reg64(c) => {
                    self.file64[(t.base64 + c) as usize].0[l] = u64::from_le_bytes(word);
                }
                Place::Pred(c) => {
                    let p = &mut self.filep[(t.basep + c) as usize];
                    *p = (*p & !(1 << l)) | (u32::from(word[0] & 1) << l);
                }
                Place::Local(off, len) => {
                    let n = len.min(8) as usize;
                    // SAFETY: as above.
                    unsafe {
                        let q = local.add((lane + t.local + off) as usize);
                        std::ptr::copy_nonoverlapping(word.as_ptr(), q, n);
                    }
                }
            }
        });
    }

    /// A 32-bit operand's lane, from a register of the frame at `base` or a fixed bank.
    fn read32(&self, base: u32, op: u32, l: usize) -> [u8; 4] {
        let v = match op >> 30 {
            0 => self.file32[(base + op) as usize].0[l],
            // SAFETY: constant and special indices come from the lowering.
            b => unsafe {
                (*self.bank32[b as usize].add((op & super::inst::bank::INDEX) as usize)).0[l]
            },
        };
        v.to_le_bytes()
    }

    fn read64(&self, base: u32, op: u32, l: usize) -> [u8; 8] {
        let v = match op >> 30 {
            0 => self.file64[(base + op) as usize].0[l],
            // SAFETY: as in `read32`.
            b => unsafe {
                (*self.bank64[b as usize].add((op & super::inst::bank::INDEX) as usize)).0[l]
            },
        };
        v.to_le_bytes()
    }

    /// An argument or result of the current frame, one lane's (up to 8 bytes of it).
    pub(crate) fn get(&self, place: &Place, l: usize) -> u64 {
        let f = self.frames[self.frame as usize];
        match *place {
            Place::Reg32(c) => u64::from(u32::from_le_bytes(self.read32(f.base32, c, l))),
            Place::Reg64(c) => u64::from_le_bytes(self.read64(f.base64, c, l)),
            Place::Pred(c) => u64::from(self.filep[(f.basep + c) as usize] >> l & 1),
            Place::Local(off, len) => {
                let mut word = [0u8; 8];
                // SAFETY: the place lies in the frame, whose local memory `reserve` made.
                unsafe {
                    let p = self
                        .local_base()
                        .add((l as u64 * self.stride + f.local + off) as usize);
                    std::ptr::copy_nonoverlapping(p, word.as_mut_ptr(), len.min(8) as usize);
                }
                u64::from_le_bytes(word)
            }
        }
    }

    /// Sets an argument or result of the current frame, one lane's.
    pub(crate) fn set(&mut self, place: &Place, l: usize, v: u64) {
        let f = self.frames[self.frame as usize];
        match *place {
            Place::Reg32(c) => self.file32[(f.base32 + c) as usize].0[l] = v as u32,
            Place::Reg64(c) => self.file64[(f.base64 + c) as usize].0[l] = v,
            Place::Pred(c) => {
                let p = &mut self.filep[(f.basep + c) as usize];
                *p = (*p & !(1 << l)) | ((v as u32 & 1) << l);
            }
            Place::Local(off, len) => {
                // SAFETY: as in `get`.
                unsafe {
                    let p = self
                        .local_base()
                        .add((l as u64 * self.stride + f.local + off) as usize);
                    std::ptr::copy_nonoverlapping(v.to_le_bytes().as_ptr(), p, len.min(8) as usize);
                }
            }
        }
    }

    /// The name of the running function (for messages).
    pub(crate) fn func(&self) -> u32 {
        self.frames.get(self.frame as usize).map_or(0, |f| f.func)
    }

    /// Makes a parked group current so that registers can be written on its behalf.
    pub(crate) fn borrow_frame(&mut self, frame: u32) {
        self.set_frame(frame);
    }

    fn merge_groups(&mut self) {
        let mut i = 0;
        while i < self.groups.len() {
            let mut j = i + 1;
            while j < self.groups.len() {
                let (a, b) = (self.groups[i], self.groups[j]);
                let barrier = |w| matches!(w, Wait::Barrier(_));
                if a.pc == b.pc && a.frame == b.frame && !barrier(a.wait) && !barrier(b.wait) {
                    let g = &mut self.groups[i];
                    g.mask |= b.mask;
                    g.wait = Wait::Ready;
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

    /// Chooses the group to run; false if none can.
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
            Some(k) => self
                .groups
                .iter()
                .position(|g| g.wait == Wait::Ready && key(g) == k),
            None if self
                .groups
                .iter()
                .any(|g| matches!(g.wait, Wait::Barrier(_))) =>
            {
                None
            }
            None => {
                // Lanes wait for each other at different places: none will come, so the first
                // goes on alone (what hardware does here is not defined).
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
        if self.rotate && !self.groups.is_empty() {
            // Spin-waits among the lanes of a warp: whoever ran least recently gets a burst.
            self.rotate = false;
            if self.active != 0 {
                self.park(self.pc, self.active, Wait::Ready);
                self.drop_current();
            }
            if self.choose(true) {
                let mut burst = BURST.min(left);
                left -= burst;
                let step = self.execute(env, &mut burst);
                left += burst;
                match step {
                    Step::Fault => return self.ran(budget - left, Ran::Fault),
                    Step::Yield => return self.ran(budget - left, Ran::Budget),
                    Step::Choose => {}
                    Step::Budget => {
                        self.park(self.pc, self.active, Wait::Ready);
                        self.drop_current();
                    }
                }
            }
        }
        loop {
            if self.active == 0 && !self.choose(false) {
                let end = if self.live == 0 {
                    Ran::Done
                } else {
                    Ran::Parked
                };
                return self.ran(budget - left, end);
            }
            match self.execute(env, &mut left) {
                Step::Choose => {}
                Step::Budget => {
                    self.rotate = true;
                    return self.ran(budget - left, Ran::Budget);
                }
                Step::Yield => {
                    self.rotate = true;
                    return self.ran(budget - left, Ran::Budget);
                }
                Step::Fault => return self.ran(budget - left, Ran::Fault),
            }
        }
    }

    fn ran(&mut self, used: u64, end: Ran) -> Ran {
        self.count += used;
        end
    }

    /// Runs the current group until it meets another, ends, or uses up `left`.
    fn execute(&mut self, env: &Env<'_>, left: &mut u64) -> Step {
        let code = env.code.as_ptr();
        let mut pc = self.pc;
        let mut n = *left;
        let step = loop {
            if n == 0 {
                self.pc = pc;
                break Step::Budget;
            }
            n -= 1;
            // SAFETY: targets come from the lowering, and every function ends in a return.
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

/// Where an argument or a result lives, relative to its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A 32-bit operand.
    Reg32(u32),
    /// A 64-bit operand.
    Reg64(u32),
    /// A predicate.
    Pred(u32),
    /// Offset and bytes in the frame's local memory.
    Local(u64, u64),
}
