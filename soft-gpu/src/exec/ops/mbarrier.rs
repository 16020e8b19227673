//! `mbarrier`: barriers in words of shared memory.
//!
//! A phase of a barrier is complete when no arrival is pending and no bytes are outstanding. Then
//! the next phase starts, with all expected arrivals pending. Programs do not interpret the word.
//! From its low end, the word has 20 bits of pending arrivals, 20 bits of expected arrivals and 22
//! bits of outstanding bytes (signed). The top bit is the parity of the phase. A block runs on one
//! thread, so an update needs no lock.

use super::element::{B64In64, Mem};
use super::family::each_lane;
use super::memory::{addresses, resolve};
use crate::exec::col::Raw;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, NONE, Op};
use crate::exec::warp::Warp;

const COUNT: u64 = (1 << 20) - 1;
const PHASE: u64 = 1 << 63;

/// Kinds of instructions. They are const parameters.
pub(crate) mod kind {
    /// `init`: `a` arrivals are expected.
    pub(crate) const INIT: u8 = 0;
    /// `inval`.
    pub(crate) const INVAL: u8 = 1;
    /// `arrive` of `a` threads. Writes the state before the arrival to `d`.
    pub(crate) const ARRIVE: u8 = 2;
    /// `arrive_drop`: as `arrive`, and later phases expect `a` arrivals less.
    pub(crate) const DROP: u8 = 3;
    /// `test_wait`: sets predicate `d` if the phase of state `a` is complete.
    pub(crate) const WAIT: u8 = 4;
    /// `test_wait.parity`: sets predicate `d` if the phase with parity `a` is complete.
    pub(crate) const PARITY: u8 = 5;
    /// `expect_tx`: `a` more bytes are outstanding.
    pub(crate) const EXPECT: u8 = 6;
    /// `complete_tx`: `a` fewer bytes are outstanding.
    pub(crate) const COMPLETE: u8 = 7;
    /// `arrive.expect_tx`: `expect_tx` of `a` bytes, then the arrival of one thread.
    pub(crate) const ARRIVE_EXPECT: u8 = 8;
}

/// The parts of a barrier's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    pending: u64,
    expected: u64,
    bytes: i64,
    phase: u64,
}

impl State {
    fn of(word: u64) -> State {
        State {
            pending: word & COUNT,
            expected: word >> 20 & COUNT,
            bytes: (word << 2) as i64 >> 42,
            phase: word & PHASE,
        }
    }

    fn word(self) -> u64 {
        let bytes = (self.bytes as u64) << 42 >> 2;
        self.pending | self.expected << 20 | bytes | self.phase
    }

    fn arrive(&mut self, threads: u64) {
        self.pending = self.pending.saturating_sub(threads);
    }

    /// Returns the word. If the phase is complete, the word is that of the next phase.
    fn settled(mut self) -> u64 {
        if self.pending == 0 && self.bytes == 0 {
            self.phase ^= PHASE;
            self.pending = self.expected;
        }
        self.word()
    }
}

/// Returns the word after an instruction of this kind with operand `v`.
fn step(kind: u8, word: u64, v: u64) -> u64 {
    let mut s = State::of(word);
    let n = v & COUNT;
    match kind {
        kind::INIT => {
            let count = State {
                pending: n,
                expected: n,
                bytes: 0,
                phase: 0,
            };
            return count.word();
        }
        kind::INVAL => return 0,
        kind::WAIT | kind::PARITY => return word,
        kind::ARRIVE => s.arrive(n),
        kind::DROP => {
            s.expected = s.expected.saturating_sub(n);
            s.arrive(n);
        }
        kind::EXPECT => {
            s.bytes += n as i64;
            return s.word();
        }
        kind::ARRIVE_EXPECT => {
            s.bytes += n as i64;
            s.arrive(1);
        }
        _ => s.bytes -= n as i64,
    }
    s.settled()
}

/// An instruction on the barrier at address `e`. The operand `a` is a 32-bit column, or a 64-bit
/// column for `WAIT`.
pub(crate) struct MBarrier<const KIND: u8, const SPACE: u8>;
impl<const KIND: u8, const SPACE: u8> Op for MBarrier<KIND, SPACE> {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let mut ad = addresses(w, i, mask);
        if !resolve::<SPACE>(w, env, &mut ad, 8, true) {
            return Flow::Fault;
        }
        let mut passed = 0u32;
        each_lane(mask, |l| {
            let at = ad[l] as *mut u8;
            // SAFETY: `resolve` checked that the eight bytes are accessible and aligned.
            let before = unsafe { B64In64::load(at) };
            match KIND {
                kind::WAIT => {
                    let done = (u64::src(w, i.a)[l] ^ before) & PHASE != 0;
                    passed |= u32::from(done) << l;
                }
                kind::PARITY => {
                    let parity = u64::from(u32::src(w, i.a)[l]) & 1;
                    passed |= u32::from(before >> 63 != parity) << l;
                }
                _ => {
                    let v = if i.a == NONE { 0 } else { u32::src(w, i.a)[l] };
                    // SAFETY: as above.
                    unsafe { B64In64::store(at, step(KIND, before, u64::from(v))) };
                    if i.d != NONE {
                        u64::dst(w, i.d)[l] = before;
                    }
                }
            }
        });
        if !matches!(KIND, kind::WAIT | kind::PARITY) {
            return Flow::Next;
        }
        w.put_pred(i.d, passed, mask);
        // A thread that still waits runs the instruction again, so the other warps run first.
        if passed & mask == mask {
            Flow::Next
        } else {
            Flow::Yield
        }
    }
}

/// `mbarrier.pending_count`: the pending arrivals in the state `a`.
pub(crate) struct PendingCount;
impl Op for PendingCount {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        each_lane(mask, |l| {
            u32::dst(w, i.d)[l] = (u64::src(w, i.a)[l] & COUNT) as u32;
        });
        Flow::Next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phases_end_when_all_arrived_and_all_bytes_are_there() {
        let mut b = step(kind::INIT, u64::MAX, 3);
        for left in [2, 1] {
            b = step(kind::ARRIVE, b, 1);
            assert_eq!((State::of(b).pending, b & PHASE), (left, 0));
        }
        b = step(kind::ARRIVE_EXPECT, b, 100);
        assert_eq!((State::of(b).bytes, b & PHASE), (100, 0));
        b = step(kind::COMPLETE, b, 60);
        assert_eq!(b & PHASE, 0);
        b = step(kind::COMPLETE, b, 40);
        assert_eq!((b & PHASE, State::of(b).pending), (PHASE, 3));
        // Bytes may be completed before they are expected.
        b = step(kind::COMPLETE, b, 8);
        assert_eq!(State::of(b).bytes, -8);
        b = step(kind::EXPECT, b, 8);
        b = step(kind::DROP, b, 1);
        b = step(kind::ARRIVE, b, 2);
        assert_eq!((b & PHASE, State::of(b).pending), (0, 2), "one is gone");
        assert_eq!(step(kind::INVAL, b, 0), 0);
    }
}
