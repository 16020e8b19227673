//! Call frames: a function's registers and local memory, calls and returns.

use super::{Wait, Warp};
use crate::exec::col::{Col32, Col64};
use crate::exec::contract::Fault;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, LANES, NONE, bank};
use crate::exec::ops::family::each_lane;
use crate::exec::program::FuncInfo;
use crate::exec::special;

/// Most bytes of local memory per thread, as on hardware.
pub(crate) const MAX_LOCAL: u64 = 512 * 1024;
/// Deepest call nesting.
const MAX_DEPTH: u32 = 4096;
/// Most register columns of a warp, of each width, in called functions. The load limits the columns
/// of a kernel.
const MAX_COLUMNS: usize = 1 << 15;

/// Bytes that a warp takes for each lane of a kernel or call that needs `bytes` of local memory.
pub(crate) fn local_stride(bytes: u64) -> u64 {
    match bytes {
        0 => 0,
        _ => bytes.next_power_of_two().max(256),
    }
}

/// Zeroed memory. A thread may request 512 KiB, so the memory is allocated such that the system
/// provides pages only when lanes access them. `None` if out of memory.
fn zeroed(words: usize) -> Option<Vec<u128>> {
    let layout = std::alloc::Layout::array::<u128>(words).ok()?;
    if layout.size() == 0 {
        return Some(Vec::new());
    }
    // SAFETY: the size of the layout is not zero.
    let p = unsafe { std::alloc::alloc_zeroed(layout) }.cast::<u128>();
    if p.is_null() {
        return None;
    }
    // SAFETY: the global allocator returned `p` for `words` words, all of which are zero.
    Some(unsafe { Vec::from_raw_parts(p, words, words) })
}

/// One call of a function.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame {
    pub(super) func: u32,
    pub(super) parent: u32,
    /// Number of groups in this frame, plus the number of frames that it called.
    pub(super) refs: u32,
    pub(super) depth: u32,
    pub(super) ret_pc: u32,
    pub(super) call: u32,
    pub(super) base32: u32,
    pub(super) base64: u32,
    pub(super) basep: u32,
    pub(super) local: u64,
}

/// The place of an argument or a result, relative to its frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A 32-bit operand.
    Reg32(u32),
    /// A 64-bit operand.
    Reg64(u32),
    /// A predicate.
    Pred(u32),
    /// Offset and size in the local memory of the frame, in bytes.
    Local(u64, u64),
}

impl Warp {
    pub(super) fn push_frame(&mut self, f: Frame) -> u32 {
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

    /// Grows the register files and local memory so that `frame`, of the function `info`, fits.
    pub(super) fn reserve(&mut self, info: &FuncInfo, frame: u32) -> Result<(), Fault> {
        let f = self.frames[frame as usize];
        let n32 = f.base32 as usize + info.n32 as usize;
        let n64 = f.base64 as usize + info.n64 as usize;
        let np = f.basep as usize + info.np as usize;
        let deep = f.depth > 0 && n32.max(n64).max(np) > MAX_COLUMNS;
        if deep || f.depth > MAX_DEPTH {
            return Err(Fault::StackOverflow);
        }
        // For calls, the files grow by doubling. A kernel gets only its own columns, because it may
        // never call a function.
        let room = |n: usize| {
            if f.depth > 0 {
                n.next_power_of_two()
            } else {
                n
            }
        };
        if self.file32.len() < n32 {
            self.file32.resize(room(n32), Col32::default());
        }
        if self.file64.len() < n64 {
            self.file64.resize(room(n64), Col64::default());
        }
        if self.filep.len() < np {
            self.filep.resize(room(np), 0);
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
        let stride = local_stride(bytes);
        let words = (stride / 16) as usize;
        let mut new = zeroed(words * LANES).ok_or(Fault::StackOverflow)?;
        let old = (self.stride / 16) as usize;
        for l in 0..LANES {
            new[l * words..l * words + old].copy_from_slice(&self.local[l * old..(l + 1) * old]);
        }
        self.local = new;
        self.stride = stride;
        Ok(())
    }

    /// Address of lane 0's local memory.
    #[inline(always)]
    pub(crate) fn local_base(&self) -> *mut u8 {
        self.local.as_ptr().cast::<u8>().cast_mut()
    }

    /// Makes `frame` the current frame.
    pub(super) fn set_frame(&mut self, frame: u32) {
        let f = self.frames[frame as usize];
        self.frame = frame;
        // SAFETY: when the frame was entered, `reserve` grew the files beyond these bases. The
        // files never shrink while the warp runs.
        unsafe {
            self.bank32[0] = self.file32.as_mut_ptr().add(f.base32 as usize).cast_const();
            self.bank64[0] = self.file64.as_mut_ptr().add(f.base64 as usize).cast_const();
            self.preds = self.filep.as_mut_ptr().add(f.basep as usize);
        }
        let local = &mut self.spec64[special::FRAME_LOCAL as usize].0;
        if local[0] != f.local {
            *local = [f.local; LANES];
        }
        self.bank64[2] = self.spec64.as_ptr();
    }

    pub(super) fn release(&mut self, frame: u32) {
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

    /// Enters `func` with the lanes in `mask`. `call` is the call site, whose arguments are copied
    /// to the new frame.
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
        // The new frame takes the reference that the running group held on the parent.
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

    /// Returns the lanes in `mask` from the current frame. Lanes of a kernel exit.
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
                    // SAFETY: the place lies in the frame, whose local memory `reserve` allocated.
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

    /// One lane of a 32-bit operand: a register of the frame at `base`, or an entry of a bank of
    /// constants.
    fn read32(&self, base: u32, op: u32, l: usize) -> [u8; 4] {
        let v = match op >> 30 {
            0 => self.file32[(base + op) as usize].0[l],
            // SAFETY: the lowering keeps indices of constants and special registers within their
            // banks.
            b => unsafe { (*self.bank32[b as usize].add((op & bank::INDEX) as usize)).0[l] },
        };
        v.to_le_bytes()
    }

    fn read64(&self, base: u32, op: u32, l: usize) -> [u8; 8] {
        let v = match op >> 30 {
            0 => self.file64[(base + op) as usize].0[l],
            // SAFETY: as in `read32`.
            b => unsafe { (*self.bank64[b as usize].add((op & bank::INDEX) as usize)).0[l] },
        };
        v.to_le_bytes()
    }

    /// One lane of an argument or result of the current frame, at most 8 bytes.
    pub(crate) fn get(&self, place: &Place, l: usize) -> u64 {
        let f = self.frames[self.frame as usize];
        match *place {
            Place::Reg32(c) => u64::from(u32::from_le_bytes(self.read32(f.base32, c, l))),
            Place::Reg64(c) => u64::from_le_bytes(self.read64(f.base64, c, l)),
            Place::Pred(c) => u64::from(self.filep[(f.basep + c) as usize] >> l & 1),
            Place::Local(off, len) => {
                let mut word = [0u8; 8];
                // SAFETY: the place lies in the frame, whose local memory `reserve` allocated.
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

    /// The 8 bytes at an offset of a structure argument of the current frame; zeros past the end.
    pub(crate) fn get_at(&self, place: &Place, l: usize, at: u64) -> u64 {
        match *place {
            Place::Local(off, len) => {
                self.get(&Place::Local(off + at.min(len), len.saturating_sub(at)), l)
            }
            _ if at == 0 => self.get(place, l),
            _ => 0,
        }
    }

    /// Sets one lane of an argument or result of the current frame.
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

    /// Index of the running function, for messages.
    pub(crate) fn func(&self) -> u32 {
        self.frames.get(self.frame as usize).map_or(0, |f| f.func)
    }

    /// Makes another frame current, so that registers of a parked group can be written. Returns the
    /// previous frame, which the caller must make current again.
    pub(crate) fn borrow_frame(&mut self, frame: u32) -> u32 {
        let before = self.frame;
        self.set_frame(frame);
        before
    }
}
