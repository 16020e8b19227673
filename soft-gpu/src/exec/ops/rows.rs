//! `ldmatrix`, `stmatrix` and `movmatrix`: matrices of 8×8 16-bit elements. Each row of 16 bytes
//! has its own address: lanes `8i..8i+8` give the addresses of the rows of matrix `i`. Lane `4r +
//! t` holds elements `2t, 2t+1` of row `r`, or of column `r` with `.trans`.

use super::element::{B32In32, Mem, U16In32, layout};
use super::family::each_lane;
use super::memory::{addresses, resolve};
use super::tile::apart;
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// Flag `.trans` in the immediate, whose other bits are those of [`layout`].
pub(crate) const TRANSPOSED: u64 = 1 << 48;

/// Checked host addresses of the rows, and the number of matrices.
#[inline(always)]
fn row_addresses<const SPACE: u8>(
    w: &mut Warp,
    env: &Env<'_>,
    i: &Inst,
    mask: u32,
    write: bool,
) -> Option<([u64; LANES], usize)> {
    let count = (i.imm >> layout::COUNT_SHIFT & 7) as usize;
    let mut ad = addresses(w, i, mask);
    // The addresses of the other lanes are not used.
    for l in (8 * count).min(LANES)..LANES {
        ad[l] = ad[0];
    }
    resolve::<SPACE>(w, env, &mut ad, 16, write).then_some((ad, count))
}

/// The place of half `j` of lane `l` in matrix `m`: the lane that gives the address of the row, and
/// the byte in the row.
#[inline(always)]
fn place(m: usize, l: usize, j: usize, transposed: bool) -> (usize, usize) {
    let (r, c) = (l >> 2, 2 * (l & 3) + j);
    let (row, col) = if transposed { (c, r) } else { (r, c) };
    (8 * m + row, 2 * col)
}

/// `ldmatrix`: loads to registers `d, a, b, c`. `e` has the addresses of the rows.
pub(crate) struct LdMatrix<const SPACE: u8>;
impl<const SPACE: u8> Op for LdMatrix<SPACE> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let Some((ad, count)) = row_addresses::<SPACE>(w, env, i, mask, false) else {
            return Flow::Fault;
        };
        for (m, reg) in [i.d, i.a, i.b, i.c].into_iter().enumerate().take(count) {
            let t: [u32; LANES] = std::array::from_fn(|l| {
                if i.imm & TRANSPOSED == 0 {
                    let (row, at) = place(m, l, 0, false);
                    // SAFETY: `row_addresses` checked the 16 bytes of the row, and `at` is below
                    // 16.
                    return unsafe { B32In32::load((ad[row] as *mut u8).add(at)) };
                }
                let half = |j| {
                    let (row, at) = place(m, l, j, true);
                    // SAFETY: as above.
                    unsafe { U16In32::load((ad[row] as *mut u8).add(at)) }
                };
                half(1) << 16 | half(0)
            });
            put(w, reg, &t, mask);
        }
        Flow::Next
    }
}

/// `stmatrix`: stores registers `d, a, b, c`. `e` has the addresses of the rows.
pub(crate) struct StMatrix<const SPACE: u8>;
impl<const SPACE: u8> Op for StMatrix<SPACE> {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let Some((ad, count)) = row_addresses::<SPACE>(w, env, i, mask, true) else {
            return Flow::Fault;
        };
        for (m, reg) in [i.d, i.a, i.b, i.c].into_iter().enumerate().take(count) {
            let v = u32::src(w, reg);
            each_lane(mask, |l| {
                for j in 0..2 {
                    let (row, at) = place(m, l, j, i.imm & TRANSPOSED != 0);
                    // SAFETY: `row_addresses` checked the 16 bytes of the row, and `at` is below
                    // 16.
                    unsafe {
                        U16In32::store((ad[row] as *mut u8).add(at), v[l] >> (16 * j));
                    }
                }
            });
        }
        Flow::Next
    }
}

/// `movmatrix.trans`: `d` is the transpose of the matrix in `a`.
pub(crate) struct MovMatrix;
impl Op for MovMatrix {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let v = *u32::src(w, i.a);
        let t: [u32; LANES] = std::array::from_fn(|l| {
            let half = |j| {
                let (row, at) = place(0, l, j, true);
                v[4 * row + at / 4] >> (8 * (at & 2)) & 0xffff
            };
            half(1) << 16 | half(0)
        });
        put(w, i.d, &t, mask);
        Flow::Next
    }
}
