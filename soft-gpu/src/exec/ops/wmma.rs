//! `wmma.load` and `wmma.store`: move matrices between memory and the registers of a warp.
//!
//! Every lane moves the elements of its fragment ([`super::fragment`]), in any state space. If all
//! lanes give the same address and stride, as the manual requires, each line of the matrix is
//! checked once and moved as a whole. Otherwise, or if a part of the matrix is not accessible, the
//! elements are moved lane by lane, which also finds the fault.

use std::ops::{BitOrAssign, BitXor};

use super::element::{B32In32, B64In64, Mem, U8In32, U16In32, layout, space};
use super::family::each_lane;
use super::fragment::{Elem, Matrix, Role};
use super::memory::{addresses, resolve};
use super::tile::apart;
use crate::exec::col::{Raw, put, soon};
use crate::exec::env::{Env, SHARED_WINDOW};
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::Warp;

/// Sizes of the elements that are moved. 4-bit integers and bits are moved as words along k.
#[derive(Clone, Copy)]
struct Layout {
    matrix: Matrix,
    /// Number of elements per register.
    packed: u32,
    /// Bytes per element.
    bytes: u32,
    /// Bits per unit of the stride.
    bits: u32,
}

impl Layout {
    fn of(mut matrix: Matrix) -> Layout {
        let bits = matrix.elem.bits();
        if bits >= 8 {
            let packed = matrix.elem.packed();
            return Layout {
                matrix,
                packed,
                bytes: bits / 8,
                bits,
            };
        }
        matrix.shape.k /= matrix.elem.packed();
        Layout {
            matrix,
            packed: 1,
            bytes: 4,
            bits,
        }
    }

    /// Offset in bytes of element `j` of register `r` of a lane, from the start of the matrix.
    #[inline(always)]
    fn offset(&self, r: u32, j: u32, lane: usize, stride: u32) -> u64 {
        let m = &self.matrix;
        let (row, col) = m.shape.place(m.role, self.packed, r, j, lane as u32);
        let (line, along) = if m.by_column { (col, row) } else { (row, col) };
        let lines = u64::from(line) * u64::from(stride) * u64::from(self.bits) / 8;
        lines + u64::from(along) * u64::from(self.bytes)
    }
}

/// A matrix for which all lanes give the same address and stride.
struct Whole {
    /// Host address of the first element.
    at: *mut u8,
    /// Elements from one line to the next.
    stride: u32,
    /// Bytes from an element of lane `(g, t)` to that of lane `(g + 1, t)`, and to that of lane
    /// `(g, t + 1)`.
    steps: [usize; 2],
}

/// The value of all lanes, if it is the same.
#[inline(always)]
fn same<T: Copy + Default + PartialEq + BitXor<Output = T> + BitOrAssign>(
    lanes: &[T; LANES],
) -> Option<T> {
    let mut odd = T::default();
    for lane in lanes {
        odd |= *lane ^ lanes[0];
    }
    (odd == T::default()).then_some(lanes[0])
}

/// The address that all lanes give, if it is the same.
#[inline(always)]
fn address(w: &Warp, i: &Inst) -> Option<u64> {
    let offset = i64::from(i.imm as u32 as i32) as u64;
    if i.e == NONE {
        Some(offset)
    } else if i.imm & layout::NARROW != 0 {
        let at = same(u32::src(w, i.e))?;
        Some(u64::from(at.wrapping_add(offset as u32)))
    } else {
        Some(same(u64::src(w, i.e))?.wrapping_add(offset))
    }
}

/// The matrix, if all lanes give the same address and stride, and all of it is accessible.
#[inline(always)]
fn whole(w: &Warp, env: &Env<'_>, i: &Inst, mask: u32, layout: &Layout) -> Option<Whole> {
    if mask != u32::MAX {
        return None;
    }
    let at = address(w, i)?;
    let stride = same(u32::src(w, i.a))?;
    let m = &layout.matrix;
    let (rows, cols) = m.size();
    let (lines, along) = if m.by_column {
        (cols, rows)
    } else {
        (rows, cols)
    };
    let bytes = u64::from(layout.bytes);
    let line = u64::from(stride) * u64::from(layout.bits) / 8;
    let (len, far) = (u64::from(along) * bytes, u64::from(lines - 1) * line);
    if (at | line) & (bytes - 1) != 0 || u64::from(stride) * u64::from(layout.bits) % 8 != 0 {
        return None;
    }
    let shared = |at: u64| {
        let end = at.checked_add(far + len)?;
        (end <= env.shared_len).then(|| env.shared.wrapping_add(at as usize))
    };
    let global = |at: u64| {
        let lines = (0..u64::from(lines)).map(|n| at.wrapping_add(n * line));
        let live = if line <= 512 {
            env.arena.live(at, far + len)
        } else {
            lines.into_iter().all(|at| env.arena.live(at, len))
        };
        live.then_some(at as *mut u8)
    };
    let host = match m.space {
        space::GLOBAL => global(at)?,
        space::SHARED => shared(at)?,
        _ if at < SHARED_WINDOW => global(at)?,
        _ => shared(at.checked_sub(SHARED_WINDOW)?)?,
    };
    // One of the numbers `g` and `t` of a lane selects a row or column. The other selects a
    // position along it, in steps of the elements that a register holds there.
    let by_rows = (m.role == Role::B) != m.by_column;
    let next = if m.role == Role::C {
        2
    } else {
        layout.packed as usize
    };
    let (line, bytes) = (line as usize, bytes as usize);
    Some(Whole {
        at: host,
        stride,
        steps: if m.role == Role::C {
            if m.by_column {
                [bytes, 2 * line]
            } else {
                [line, 2 * bytes]
            }
        } else if by_rows {
            [bytes, next * line]
        } else {
            [line, next * bytes]
        },
    })
}

/// Calls `move_one` with each lane and the host address of its element `j` of register `r`.
#[inline(always)]
fn each_of(x: &Whole, layout: &Layout, r: u32, j: u32, mut move_one: impl FnMut(usize, *mut u8)) {
    let first = x.at.wrapping_add(layout.offset(r, j, 0, x.stride) as usize);
    for g in 0..8 {
        for t in 0..4 {
            move_one(
                4 * g + t,
                first.wrapping_add(g * x.steps[0] + t * x.steps[1]),
            );
        }
    }
}

/// Loads the registers of a matrix for which all lanes give the same address.
#[inline(always)]
fn load_whole<M: Mem>(w: &mut Warp, x: &Whole, layout: &Layout, regs: &[u32]) {
    let distinct = layout
        .matrix
        .shape
        .registers(layout.matrix.role, layout.packed)
        .max(1) as usize;
    let adjacent = x.steps[1] == M::R::BYTES && layout.bytes * layout.packed == M::R::BYTES as u32;
    for (r, &reg) in regs.iter().enumerate() {
        if r >= distinct {
            let v = *M::R::src(w, regs[r % distinct]);
            *M::R::dst(w, reg) = v;
        } else if adjacent {
            let first =
                x.at.wrapping_add(layout.offset(r as u32, 0, 0, x.stride) as usize);
            for (g, four) in M::R::dst(w, reg)
                .as_chunks_mut::<4>()
                .0
                .iter_mut()
                .enumerate()
            {
                let from = first.wrapping_add(g * x.steps[0]);
                // SAFETY: `whole` checked every line. Kernels cannot access registers.
                unsafe {
                    std::ptr::copy_nonoverlapping(from, four.as_mut_ptr().cast(), 4 * M::R::BYTES);
                };
            }
        } else {
            let mut v = [M::R::default(); LANES];
            for j in 0..layout.packed {
                each_of(x, layout, r as u32, j, |l, p| {
                    // SAFETY: `whole` checked the address and alignment of every element.
                    let x = unsafe { M::load(p) }.to_u64();
                    v[l] = M::R::from_u64(v[l].to_u64() | x << (layout.bits * j));
                });
            }
            *M::R::dst(w, reg) = v;
        }
    }
}

/// Checked host addresses of element `j` of register `r` in every lane. `None` after a fault.
fn hosts(
    w: &mut Warp,
    env: &Env<'_>,
    i: &Inst,
    mask: u32,
    at: (&Layout, u32, u32, bool),
) -> Option<[u64; LANES]> {
    let (layout, r, j, write) = at;
    let stride = *u32::src(w, i.a);
    let mut ad = addresses(w, i, mask);
    for (l, a) in ad.iter_mut().enumerate() {
        *a = a.wrapping_add(layout.offset(r, j, l, stride[l]));
    }
    if mask != u32::MAX {
        let first = ad[mask.trailing_zeros() as usize];
        for (l, a) in ad.iter_mut().enumerate() {
            if mask >> l & 1 == 0 {
                *a = first;
            }
        }
    }
    let size = u64::from(layout.bytes);
    let ok = match layout.matrix.space {
        space::GLOBAL => resolve::<{ space::GLOBAL }>(w, env, &mut ad, size, write),
        space::SHARED => resolve::<{ space::SHARED }>(w, env, &mut ad, size, write),
        _ => resolve::<{ space::GENERIC }>(w, env, &mut ad, size, write),
    };
    ok.then_some(ad)
}

/// The operand list of an instruction. Its first word is its length.
fn list<'p>(env: &Env<'p>, i: &Inst) -> &'p [u32] {
    let at = i.b as usize;
    let rest = env.program.operands.get(at..).unwrap_or(&[]);
    let n = rest.first().map_or(0, |n| *n as usize);
    rest.get(1..=n).unwrap_or(&[])
}

/// `wmma.load`: `b` is the list of registers, `a` the stride, `c` the description ([`Matrix`]), `e`
/// the address. `d` is the address register of the next load, or [`NONE`].
pub(crate) struct WmmaLoad;
impl Op for WmmaLoad {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let layout = Layout::of(Matrix::at(i.c));
        let regs = list(env, i);
        if i.d != NONE {
            // An unrolled loop has an address register for each load, more than the first-level
            // cache holds.
            if i.imm & layout::NARROW != 0 {
                soon::<u32>(w, i.d);
            } else {
                soon::<u64>(w, i.d);
            }
        }
        if let Some(x) = whole(w, env, i, mask, &layout) {
            match layout.bytes {
                1 => load_whole::<U8In32>(w, &x, &layout, regs),
                2 => load_whole::<U16In32>(w, &x, &layout, regs),
                4 => load_whole::<B32In32>(w, &x, &layout, regs),
                _ => load_whole::<B64In64>(w, &x, &layout, regs),
            }
            return Flow::Next;
        }
        let distinct = layout
            .matrix
            .shape
            .registers(layout.matrix.role, layout.packed)
            .max(1);
        let mut values = [[0u64; LANES]; 8];
        for (r, v) in (0..distinct).zip(&mut values) {
            for j in 0..layout.packed {
                let Some(ad) = hosts(w, env, i, mask, (&layout, r, j, false)) else {
                    return Flow::Fault;
                };
                for (v, a) in v.iter_mut().zip(ad) {
                    let p = a as *mut u8;
                    // SAFETY: `hosts` checked the address, size and alignment for every lane.
                    let x = unsafe {
                        match layout.bytes {
                            1 => u64::from(U8In32::load(p)),
                            2 => u64::from(U16In32::load(p)),
                            4 => u64::from(B32In32::load(p)),
                            _ => B64In64::load(p),
                        }
                    };
                    *v |= x << (layout.bits * j);
                }
            }
        }
        for (r, &reg) in regs.iter().enumerate() {
            let v = &values[r % distinct.min(8) as usize];
            if layout.matrix.elem == Elem::F64 {
                put(w, reg, v, mask);
            } else {
                put(w, reg, &v.map(|x| x as u32), mask);
            }
        }
        Flow::Next
    }
}

/// `wmma.store`. The operands are those of [`WmmaLoad`].
pub(crate) struct WmmaStore;
impl Op for WmmaStore {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let layout = Layout::of(Matrix::at(i.c));
        if let Some(x) = whole(w, env, i, mask, &layout) {
            for (r, &reg) in list(env, i).iter().enumerate() {
                for j in 0..layout.packed {
                    each_of(&x, &layout, r as u32, j, |l, p| {
                        // SAFETY: `whole` checked the address and alignment of every element.
                        unsafe {
                            match layout.bytes {
                                2 => U16In32::store(p, u32::src(w, reg)[l] >> (layout.bits * j)),
                                4 => B32In32::store(p, u32::src(w, reg)[l]),
                                _ => B64In64::store(p, u64::src(w, reg)[l]),
                            }
                        }
                    });
                }
            }
            return Flow::Next;
        }
        for (r, &reg) in list(env, i).iter().enumerate() {
            let v: [u64; LANES] = if layout.matrix.elem == Elem::F64 {
                *u64::src(w, reg)
            } else {
                u32::src(w, reg).map(u64::from)
            };
            for j in 0..layout.packed {
                let Some(ad) = hosts(w, env, i, mask, (&layout, r as u32, j, true)) else {
                    return Flow::Fault;
                };
                each_lane(mask, |l| {
                    let (p, x) = (ad[l] as *mut u8, v[l] >> (layout.bits * j));
                    // SAFETY: `hosts` checked the address, size and alignment for every lane.
                    unsafe {
                        match layout.bytes {
                            2 => U16In32::store(p, x as u32),
                            4 => B32In32::store(p, x as u32),
                            _ => B64In64::store(p, x),
                        }
                    }
                });
            }
        }
        Flow::Next
    }
}
