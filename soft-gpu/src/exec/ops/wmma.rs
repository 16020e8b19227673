//! `wmma.load` and `wmma.store`: matrices between memory and a warp's registers.
//!
//! Every lane moves the elements of its fragment ([`super::fragment`]), in any state space.

use super::family::each_lane;
use super::fragment::{Elem, Matrix};
use super::memory::{B32In32, B64In64, Mem, U8In32, U16In32, addresses, resolve, space};
use super::tile::apart;
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// Elements that are moved as one: 4-bit integers and bits go by words along k.
#[derive(Clone, Copy)]
struct Layout {
    matrix: Matrix,
    /// Elements a register.
    packed: u32,
    /// Bytes of one.
    bytes: u32,
    /// Bits of which the stride counts.
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

    /// Offset in bytes of element `j` of register `r` in a lane.
    fn offset(&self, r: u32, j: u32, lane: usize, stride: u32) -> u64 {
        let m = &self.matrix;
        let (row, col) = m.shape.place(m.role, self.packed, r, j, lane as u32);
        let (line, along) = if m.by_column { (col, row) } else { (row, col) };
        let lines = u64::from(line) * u64::from(stride) * u64::from(self.bits) / 8;
        lines + u64::from(along) * u64::from(self.bytes)
    }
}

/// Checked host addresses of element `j` of register `r` in every lane.
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

/// The operand list of an instruction: its length first.
fn list<'p>(env: &Env<'p>, i: &Inst) -> &'p [u32] {
    let at = i.b as usize;
    let rest = env.program.operands.get(at..).unwrap_or(&[]);
    let n = rest.first().map_or(0, |n| *n as usize);
    rest.get(1..=n).unwrap_or(&[])
}

/// `wmma.load`: registers in the list `b`, stride `a`, description `c`, address `e`.
pub(crate) struct WmmaLoad;
impl Op for WmmaLoad {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let layout = Layout::of(Matrix::at(i.c));
        let regs = list(env, i);
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
                    // SAFETY: `hosts` checked every lane's address, size and alignment.
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

/// `wmma.store`: as [`WmmaLoad`].
pub(crate) struct WmmaStore;
impl Op for WmmaStore {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let layout = Layout::of(Matrix::at(i.c));
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
                    // SAFETY: `hosts` checked every lane's address, size and alignment.
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
