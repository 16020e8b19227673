//! Accesses of a whole warp whose addresses follow one rule: in each half of the warp, the lanes
//! access consecutive elements, or all lanes access the same element. Most accesses of real kernels
//! do so. The rule is for halves, because many blocks are 16 threads wide. Such an access checks
//! only the ends of its ranges and moves its data in bulk. Any other access uses the general code
//! in [`super::memory`], which also reports faults.

use super::element::{Mem, layout, space};
use crate::exec::col::Raw;
use crate::exec::env::{Env, SHARED_WINDOW, WINDOW_SHIFT};
use crate::exec::inst::{Inst, LANES, NONE};
use crate::exec::warp::{MEMOS, Memo, Warp};

/// Lanes of a half of the warp.
const HALF: usize = LANES / 2;

/// A regular access, with host addresses that were checked for all lanes.
pub(crate) struct Halves {
    /// Address of the first lane of each half.
    pub(crate) at: [*mut u8; 2],
    /// Bytes from one lane to the next: the size of the access, or 0 if all lanes access one
    /// element.
    pub(crate) step: usize,
}

macro_rules! ramps {
    ($name:ident, $t:ty, $doc:literal) => {
        #[doc = $doc]
        static $name: [[$t; HALF]; 6] = {
            let mut all = [[0; HALF]; 6];
            let mut row = 1;
            while row < all.len() {
                let mut lane = 0;
                while lane < HALF {
                    all[row][lane] = (lane as $t) << (row - 1);
                    lane += 1;
                }
                row += 1;
            }
            all
        };
    };
}
ramps!(
    RAMPS32,
    u32,
    "Lane offsets for steps 0, 1, 2, 4, 8 and 16. Tables, so that the comparison is of whole vectors as \
     they were written: reading lanes misaligned with that stalls."
);
ramps!(RAMPS64, u64, "As [`RAMPS32`], for 64-bit addresses.");

/// If the addresses of all 32 lanes are regular for accesses of `size` bytes: the first address of
/// each half, and the step in bytes.
macro_rules! rule {
    ($name:ident, $t:ty, $ramps:ident) => {
        #[inline(always)]
        fn $name(a: &[$t; LANES], size: u64) -> Option<([$t; 2], u64)> {
            let step = u64::from(a[1].wrapping_sub(a[0]));
            let row = match step {
                0 => 0,
                s if s == size => size.trailing_zeros() as usize + 1,
                _ => return None,
            };
            let (low, high) = (a[0], a[HALF]);
            let ramp = &$ramps[row];
            // Differences are collected in as many words as a vector has. Reducing them to one word
            // inside the loop would cost more than the rest of the function.
            let mut odd = [0; 32 / size_of::<$t>()];
            for (first, lanes) in [low, high].iter().zip(a.as_chunks::<HALF>().0) {
                for (l, lane) in lanes.iter().enumerate() {
                    odd[l % odd.len()] |= lane ^ first.wrapping_add(ramp[l]);
                }
            }
            let odd = odd.iter().fold(0, |all, o| all | o);
            (odd == 0).then_some(([low, high], step))
        }
    };
}
rule!(rule32, u32, RAMPS32);
rule!(rule64, u64, RAMPS64);

/// The access of instruction `i` by all lanes, with `size` bytes each (a power of two up to 16).
/// `None` if the access is irregular, or some of its bytes are not accessible.
#[inline(always)]
pub(crate) fn halves<const SPACE: u8>(
    w: &mut Warp,
    env: &Env<'_>,
    i: &Inst,
    size: u64,
) -> Option<Halves> {
    let off = i64::from(i.imm as u32 as i32) as u64;
    let (first, step) = if i.e == NONE {
        ([off; 2], 0)
    } else if i.imm & layout::NARROW != 0 {
        let Memo { first, step } = base(w, i, size)?;
        let first = first.map(|a| a as u32);
        let first = first.map(|a| a.wrapping_add(off as u32));
        // Near 2³², addresses of lanes could wrap around.
        if first[0].max(first[1]) > u32::MAX - 256 {
            return None;
        }
        (first.map(u64::from), step)
    } else {
        let Memo { first, step } = base(w, i, size)?;
        (first.map(|a| a.wrapping_add(off)), step)
    };
    if (first[0] | first[1]) & (size - 1) != 0 {
        return None;
    }
    let span = step * (HALF as u64 - 1) + size;
    let at = match SPACE {
        space::GLOBAL => global(env, first, step, span)?,
        space::SHARED => shared(env, first, span)?,
        space::GENERIC => match (first[0] >> WINDOW_SHIFT, first[1] >> WINDOW_SHIFT) {
            (SHARED, SHARED) => shared(env, first.map(|a| a - SHARED_WINDOW), span)?,
            (a, b) if a < SHARED && b < SHARED => global(env, first, step, span)?,
            _ => return None,
        },
        _ => return None,
    };
    Some(Halves {
        at,
        step: step as usize,
    })
}

/// The rule for the lanes of the address register, from the memo if that is valid, otherwise from
/// the register.
#[inline(always)]
fn base(w: &mut Warp, i: &Inst, size: u64) -> Option<Memo> {
    let slot = (i.imm >> layout::MEMO_SHIFT) as usize % MEMOS;
    if i.imm & layout::REUSE != 0 && w.remembered >> slot & 1 != 0 {
        let known = w.memos[slot];
        return (known.step == 0 || known.step == size).then_some(known);
    }
    let found = if i.imm & layout::NARROW != 0 {
        rule32(u32::src(w, i.e), size).map(|(f, step)| (f.map(u64::from), step))
    } else {
        rule64(u64::src(w, i.e), size)
    };
    let found = found.map(|(first, step)| Memo { first, step });
    if i.imm & layout::KEEP != 0 {
        match found {
            Some(memo) => {
                w.memos[slot] = memo;
                w.remembered |= 1 << slot;
            }
            None => w.remembered &= !(1 << slot),
        }
    }
    found
}

/// Number of the window of shared memory in generic addresses.
const SHARED: u64 = SHARED_WINDOW >> WINDOW_SHIFT;

#[inline(always)]
fn global(env: &Env<'_>, first: [u64; 2], step: u64, span: u64) -> Option<[*mut u8; 2]> {
    let whole = first[1] == first[0].wrapping_add(step * HALF as u64);
    let live = if whole {
        env.arena.live(first[0], step * HALF as u64 + span)
    } else {
        env.arena.live(first[0], span) && env.arena.live(first[1], span)
    };
    live.then(|| first.map(|a| a as *mut u8))
}

#[inline(always)]
fn shared(env: &Env<'_>, first: [u64; 2], span: u64) -> Option<[*mut u8; 2]> {
    let last = env.shared_len.checked_sub(span)?;
    (first[0].max(first[1]) <= last).then(|| first.map(|a| env.shared.wrapping_add(a as usize)))
}

/// Loads `count` elements per lane into `regs`.
#[inline(always)]
pub(crate) fn load<M: Mem>(w: &mut Warp, h: &Halves, regs: &[u32; 4], count: usize) {
    if M::WHOLE && count == 1 && h.step != 0 {
        let d = M::R::dst(w, regs[0]).as_mut_ptr();
        // SAFETY: 16 adjacent elements from each address were checked. Kernels cannot access
        // registers, so source and destination do not overlap.
        unsafe {
            std::ptr::copy_nonoverlapping(h.at[0].cast(), d, HALF);
            std::ptr::copy_nonoverlapping(h.at[1].cast(), d.add(HALF), HALF);
        }
        return;
    }
    for (k, &reg) in regs.iter().enumerate().take(count) {
        if reg == NONE {
            continue;
        }
        let d = M::R::dst(w, reg);
        for (half, d) in d.as_chunks_mut::<HALF>().0.iter_mut().enumerate() {
            let from = h.at[half].wrapping_add(k * M::SIZE);
            if h.step == 0 {
                // SAFETY: the whole access was checked, and is aligned.
                d.fill(unsafe { M::load(from) });
            } else {
                for (l, d) in d.iter_mut().enumerate() {
                    // SAFETY: as above, for each lane. Kernels cannot access registers.
                    *d = unsafe { M::load(from.wrapping_add(l * h.step)) };
                }
            }
        }
    }
}

/// Stores `count` elements per lane from `regs`. Where lanes overlap, the highest lane wins.
#[inline(always)]
pub(crate) fn store<M: Mem>(w: &Warp, h: &Halves, regs: &[u32; 4], count: usize) {
    if M::WHOLE && count == 1 && h.step != 0 {
        let v = M::R::src(w, regs[0]).as_ptr();
        // SAFETY: as for a load. The halves may overlap; the upper half is written last.
        unsafe {
            std::ptr::copy_nonoverlapping(v, h.at[0].cast(), HALF);
            std::ptr::copy_nonoverlapping(v.add(HALF), h.at[1].cast(), HALF);
        }
        return;
    }
    for (k, &reg) in regs.iter().enumerate().take(count) {
        let v = M::R::src(w, reg);
        for (l, &v) in v.iter().enumerate() {
            let to = h.at[l / HALF].wrapping_add(l % HALF * h.step + k * M::SIZE);
            // SAFETY: as for a load.
            unsafe { M::store(to, v) };
        }
    }
}
