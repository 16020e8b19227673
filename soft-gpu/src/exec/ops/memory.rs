//! Loads, stores and address conversion.
//!
//! [`regular`] performs accesses of whole warps whose addresses follow a simple rule. For any other
//! access, [`resolve`] first turns the address of every active lane into a checked host address; an
//! inactive lane gets the address of an active lane. Then the data is moved lane by lane with
//! relaxed atomics, so that kernels that race or spin see each other's writes.

use std::marker::PhantomData;

use super::element::{Mem, layout, space};
use super::family::each_lane;
use super::regular;
use crate::exec::col::{Raw, put};
use crate::exec::contract::Fault;
use crate::exec::env::{Env, FUNC_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW, WINDOW_SHIFT};
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::Warp;

/// The address of each lane, in the space of the instruction. Inactive lanes get the address of an
/// active lane.
#[inline(always)]
pub(crate) fn addresses(w: &Warp, i: &Inst, mask: u32) -> [u64; LANES] {
    let off = i64::from(i.imm as u32 as i32) as u64;
    if i.e == NONE {
        return [off; LANES];
    }
    let mut t: [u64; LANES] = if i.imm & layout::NARROW != 0 {
        let a = u32::src(w, i.e);
        std::array::from_fn(|l| u64::from(a[l].wrapping_add(off as u32)))
    } else {
        let a = u64::src(w, i.e);
        std::array::from_fn(|l| a[l].wrapping_add(off))
    };
    if mask != u32::MAX {
        let first = t[mask.trailing_zeros() as usize];
        t = std::array::from_fn(|l| if (mask >> l) & 1 != 0 { t[l] } else { first });
    }
    t
}

/// Turns addresses into host addresses, and checks each for an access of `size` bytes (a power of
/// two up to 16). Returns false after a fault.
#[inline(always)]
pub(crate) fn resolve<const SPACE: u8>(
    w: &mut Warp,
    env: &Env<'_>,
    ad: &mut [u64; LANES],
    size: u64,
    write: bool,
) -> bool {
    let mut bits = 0u64;
    for a in ad.iter() {
        bits |= a;
    }
    if bits & (size - 1) != 0 {
        return misaligned(w, env, ad, size);
    }
    match SPACE {
        space::GLOBAL => global(w, env, ad, size),
        space::SHARED => shared(w, env, ad, size, bits),
        space::LOCAL => local(w, env, ad, size, bits),
        _ if bits >> WINDOW_SHIFT < SHARED_WINDOW >> WINDOW_SHIFT => global(w, env, ad, size),
        _ => windows(w, env, ad, size, write),
    }
}

#[inline(always)]
fn global(w: &mut Warp, env: &Env<'_>, ad: &[u64; LANES], size: u64) -> bool {
    let (mut lo, mut hi) = (u64::MAX, 0);
    for &a in ad {
        lo = lo.min(a);
        hi = hi.max(a);
    }
    if hi - lo <= 8192 && env.arena.live(lo, hi - lo + size) {
        return true;
    }
    // The addresses are far apart, or there is a gap between them. Each lane is checked, but not if
    // its granule is that of the lane before.
    let mut last = u64::MAX;
    for &a in ad {
        let g = a / super::super::contract::GRANULE;
        if g != last {
            if !env.arena.live(a, size) {
                return illegal(w, env, a, size);
            }
            last = g;
        }
    }
    true
}

#[inline(always)]
fn shared(w: &mut Warp, env: &Env<'_>, ad: &mut [u64; LANES], size: u64, bits: u64) -> bool {
    // `bits` is an upper bound of all addresses. Only near the end of shared memory must each
    // address be checked.
    if bits.saturating_add(size) > env.shared_len {
        for &a in ad.iter() {
            if a.saturating_add(size) > env.shared_len {
                return illegal(w, env, a, size);
            }
        }
    }
    let base = env.shared as u64;
    for a in ad.iter_mut() {
        *a += base;
    }
    true
}

#[inline(always)]
fn local(w: &mut Warp, env: &Env<'_>, ad: &mut [u64; LANES], size: u64, bits: u64) -> bool {
    if bits.saturating_add(size) > w.stride {
        for &a in ad.iter() {
            if a.saturating_add(size) > w.stride {
                return illegal(w, env, a, size);
            }
        }
    }
    let base = w.local_base() as u64;
    for (l, a) in ad.iter_mut().enumerate() {
        *a += base + l as u64 * w.stride;
    }
    true
}

#[inline(never)]
fn windows(w: &mut Warp, env: &Env<'_>, ad: &mut [u64; LANES], size: u64, write: bool) -> bool {
    for (l, slot) in ad.iter_mut().enumerate() {
        let a = *slot;
        match host_address(w, env, l, a, size, write) {
            Some(p) => *slot = p as u64,
            None => return illegal(w, env, a, size),
        }
    }
    true
}

/// The host address for one lane's generic address; `None` unless `len` bytes are accessible there.
pub(crate) fn host_address(
    w: &Warp,
    env: &Env<'_>,
    lane: usize,
    a: u64,
    len: u64,
    write: bool,
) -> Option<*mut u8> {
    let off = a & ((1 << WINDOW_SHIFT) - 1);
    match a & !((1 << WINDOW_SHIFT) - 1) {
        SHARED_WINDOW if off + len <= env.shared_len => Some(env.shared.wrapping_add(off as usize)),
        LOCAL_WINDOW if off + len <= w.stride => Some(
            w.local_base()
                .wrapping_add((lane as u64 * w.stride + off) as usize),
        ),
        PARAM_WINDOW if !write && off + len <= env.params.len() as u64 => {
            Some(env.params.as_ptr().cast_mut().wrapping_add(off as usize))
        }
        base if base < SHARED_WINDOW && env.arena.live(a, len) => Some(a as *mut u8),
        _ => None,
    }
}

#[cold]
#[inline(never)]
pub(crate) fn illegal(w: &mut Warp, env: &Env<'_>, addr: u64, size: u64) -> bool {
    let text = format!(
        "address {addr:#x}, {size} bytes: not mapped; {}",
        place(w, env)
    );
    w.fault = Some(Fault::IllegalAddress(text));
    false
}

#[cold]
#[inline(never)]
pub(crate) fn misaligned(w: &mut Warp, env: &Env<'_>, ad: &[u64; LANES], size: u64) -> bool {
    let a = ad
        .iter()
        .find(|a| *a & (size - 1) != 0)
        .copied()
        .unwrap_or(0);
    let text = format!(
        "address {a:#x} is not a multiple of {size}; {}",
        place(w, env)
    );
    w.fault = Some(Fault::Misaligned(text));
    false
}

/// The position of the warp in the program, for a message.
#[cold]
pub(crate) fn place(w: &Warp, env: &Env<'_>) -> String {
    let line = env.program.lines.get(w.pc as usize).copied().unwrap_or(0);
    let func = env
        .program
        .funcs
        .get(w.func() as usize)
        .map_or("?", |f| f.name.as_str());
    let [x, y, z] = env.block;
    format!(
        "in {func} at PTX line {line}, block ({x},{y},{z}), warp {}",
        w.index
    )
}

#[inline(always)]
fn vector(i: &Inst) -> [u32; 4] {
    [i.d, i.a, i.b, i.c]
}

/// `ld`: loads to registers `d, a, b, c` from address `e`.
pub(crate) struct Ld<M, const SPACE: u8>(PhantomData<M>);
impl<M: Mem, const SPACE: u8> Op for Ld<M, SPACE> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let count = (i.imm >> layout::COUNT_SHIFT & 0xff) as usize;
        let (size, regs) = ((M::SIZE * count) as u64, vector(i));
        if mask == u32::MAX
            && let Some(halves) = regular::halves::<SPACE>(w, env, i, size)
        {
            regular::load::<M>(w, &halves, &regs, count);
            return Flow::Next;
        }
        let mut ad = addresses(w, i, mask);
        if !resolve::<SPACE>(w, env, &mut ad, size, false) {
            return Flow::Fault;
        }
        for (k, &reg) in regs.iter().enumerate().take(count) {
            if reg == NONE {
                continue;
            }
            let mut t = [M::R::default(); LANES];
            for l in 0..LANES {
                // SAFETY: `resolve` checked the addresses of all lanes. Inactive lanes have the
                // address of an active lane.
                t[l] = unsafe { M::load((ad[l] as usize + k * M::SIZE) as *mut u8) };
            }
            put(w, reg, &t, mask);
        }
        Flow::Next
    }
}

/// `st`: stores registers `d, a, b, c` to address `e`.
pub(crate) struct St<M, const SPACE: u8>(PhantomData<M>);
impl<M: Mem, const SPACE: u8> Op for St<M, SPACE> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let count = (i.imm >> layout::COUNT_SHIFT & 0xff) as usize;
        let (size, regs) = ((M::SIZE * count) as u64, vector(i));
        if mask == u32::MAX
            && let Some(halves) = regular::halves::<SPACE>(w, env, i, size)
        {
            regular::store::<M>(w, &halves, &regs, count);
            return Flow::Next;
        }
        let mut ad = addresses(w, i, mask);
        if !resolve::<SPACE>(w, env, &mut ad, size, true) {
            return Flow::Fault;
        }
        for (k, &reg) in regs.iter().enumerate().take(count) {
            let v = M::R::src(w, reg);
            each_lane(mask, |l| {
                // SAFETY: `resolve` checked the address of each active lane.
                unsafe { M::store((ad[l] as usize + k * M::SIZE) as *mut u8, v[l]) };
            });
        }
        Flow::Next
    }
}

/// `ld.param` of a kernel parameter at a fixed offset. All lanes get the same value.
pub(crate) struct LdKernelParam<M>(PhantomData<M>);
impl<M: Mem> Op for LdKernelParam<M> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let count = (i.imm >> layout::COUNT_SHIFT & 0xff) as usize;
        let off = i.imm as u32 as usize;
        for (k, &reg) in vector(i).iter().enumerate().take(count) {
            let at = off + k * M::SIZE;
            let Some(bytes) = env.params.get(at..at + M::SIZE) else {
                illegal(w, env, PARAM_WINDOW + at as u64, M::SIZE as u64);
                return Flow::Fault;
            };
            if reg == NONE {
                continue;
            }
            let mut word = [0u64; 1];
            // SAFETY: at most 8 bytes are copied into a word of 8 bytes, which is aligned for any
            // element.
            let v = unsafe {
                let p = word.as_mut_ptr().cast::<u8>();
                std::ptr::copy_nonoverlapping(bytes.as_ptr(), p, M::SIZE);
                M::load(p)
            };
            put(w, reg, &[v; LANES], mask);
        }
        Flow::Next
    }
}

/// `d = a + imm` for addresses: the address of a variable in the frame, and `cvta`.
pub(crate) struct Lea;
impl Op for Lea {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = u64::src(w, i.a);
        let mut t = [0u64; LANES];
        for l in 0..LANES {
            t[l] = a[l].wrapping_add(i.imm);
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}

/// As [`Lea`], with a 32-bit result.
pub(crate) struct Lea32;
impl Op for Lea32 {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = u64::src(w, i.a);
        let mut t = [0u32; LANES];
        for l in 0..LANES {
            t[l] = a[l].wrapping_add(i.imm) as u32;
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}

/// `isspacep`: sets predicate `d` if the generic address `a` is in the space. `imm` is the start of
/// the space's window; 0 for global and 1 for const.
pub(crate) struct IsSpace;
impl Op for IsSpace {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let mut bits = 0u32;
        for (l, &a) in u64::src(w, i.a).iter().enumerate() {
            let constant = || {
                env.program
                    .const_ranges
                    .iter()
                    .any(|&(s, e)| a >= s && a < e)
            };
            let yes = match i.imm {
                0 => a < SHARED_WINDOW && !constant(),
                1 => constant(),
                base => a >> WINDOW_SHIFT == base >> WINDOW_SHIFT && a < FUNC_WINDOW,
            };
            bits |= u32::from(yes) << l;
        }
        w.put_pred(i.d, bits, mask);
        Flow::Next
    }
}
