//! `cp.async`: copies from global to shared memory. A copy is complete when the instruction ends,
//! so waits for copies return at once. An invalid copy faults at the instruction, on hardware
//! later.

use super::element::{B32In32, Mem, U8In32};
use super::memory::{illegal, misaligned};
use crate::exec::col::Raw;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::Warp;

/// Copies `imm` bytes to the shared address `c` from the global address `a` (both 64-bit columns).
/// Only the first `b` bytes are read (all if `b` is [`NONE`]; none if predicate `e` holds); the
/// others are filled with zeros.
pub(crate) struct CopyAsync;
impl Op for CopyAsync {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let size = i.imm & 0xff;
        if mask == u32::MAX && i.e == NONE && whole(w, env, i, size) {
            return Flow::Next;
        }
        let ignored = if i.e == NONE { 0 } else { w.pred(i.e) };
        let mut rest = mask;
        while rest != 0 {
            let l = rest.trailing_zeros() as usize;
            rest &= rest - 1;
            let take = match i.b {
                _ if ignored >> l & 1 != 0 => 0,
                NONE => size,
                b => u64::from(u32::src(w, b)[l]).min(size),
            };
            let (dst, src) = (u64::src(w, i.c)[l], u64::src(w, i.a)[l]);
            if !copy(w, env, dst, src, size, take) {
                return Flow::Fault;
            }
        }
        Flow::Next
    }
}

/// Copies for all lanes if their sources are near each other, with two checks for all lanes.
/// Returns false and copies nothing if the sources are far apart, or if a lane might fault.
#[inline(always)]
fn whole(w: &Warp, env: &Env<'_>, i: &Inst, size: u64) -> bool {
    /// Largest distance of sources in bytes: enough for lanes that copy 16 bytes each from several
    /// rows of a matrix.
    const NEAR: u64 = 64 << 10;
    let (dst, src) = (u64::src(w, i.c), u64::src(w, i.a));
    if i.b != NONE && u32::src(w, i.b).iter().any(|take| u64::from(*take) < size) {
        return false;
    }
    let (mut bits, mut end, mut lo, mut hi) = (0, 0, u64::MAX, 0);
    for (d, s) in dst.iter().zip(src) {
        bits |= d | s;
        end = end.max(*d);
        lo = lo.min(*s);
        hi = hi.max(*s);
    }
    let fits = end.saturating_add(size) <= env.shared_len && hi - lo <= NEAR;
    if bits & (size - 1) != 0 || !fits || !env.arena.live(lo, hi - lo + size) {
        return false;
    }
    for (d, s) in dst.iter().zip(src) {
        let (from, to) = (*s as *const u8, env.shared.wrapping_add(*d as usize));
        // SAFETY: source and destination of all lanes were checked. Global memory and the shared
        // memory of a block do not overlap.
        unsafe {
            match size {
                16 => std::ptr::copy_nonoverlapping(from, to, 16),
                8 => std::ptr::copy_nonoverlapping(from, to, 8),
                _ => std::ptr::copy_nonoverlapping(from, to, size as usize),
            }
        }
    }
    true
}

/// Copies for one lane. Returns false if the copy faults. If no byte is read, the source may be any
/// address.
fn copy(w: &mut Warp, env: &Env<'_>, dst: u64, src: u64, size: u64, take: u64) -> bool {
    let used = if take == 0 { dst } else { dst | src };
    if used & (size - 1) != 0 {
        let a = if dst & (size - 1) != 0 { dst } else { src };
        return misaligned(w, env, &[a; LANES], size);
    }
    if dst.saturating_add(size) > env.shared_len {
        return illegal(w, env, dst, size);
    }
    if take > 0 && !env.arena.live(src, take) {
        return illegal(w, env, src, take);
    }
    let from = src as *mut u8;
    let to = env.shared.wrapping_add(dst as usize);
    let (words, bytes) = (take as usize & !3, take as usize);
    // SAFETY: `size` bytes at `to` and `take` bytes at `from` were checked. Both are aligned to 4
    // bytes at least.
    unsafe {
        for at in (0..words).step_by(4) {
            B32In32::store(to.add(at), B32In32::load(from.add(at)));
        }
        for at in words..bytes {
            U8In32::store(to.add(at), U8In32::load(from.add(at)));
        }
        for at in bytes..size as usize {
            U8In32::store(to.add(at), 0);
        }
    }
    true
}
