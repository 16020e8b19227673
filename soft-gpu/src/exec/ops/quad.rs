//! `mma.m8n8k4` of halves: four products at once, each by eight lanes (PTX ISA, "Matrix fragments
//! for mma.m8n8k4 with .f16 floating point type").
//!
//! Lanes `4q..4q+4` and `16+4q..16+4q+4` hold product `q`. With `t = lane % 4`, and `h = 4` in the
//! upper half of the warp, `h = 0` in the lower half, a lane holds:
//!
//! - of A by rows, row `t + h`; of A by columns, rows `h..h+4` of column `t`;
//! - of B by rows, columns `h..h+4` of row `t`; of B by columns, column `t + h`;
//! - of C and D in halves, row `t + h`; in singles, elements of two rows ([`single_place`]).

use super::fragment::{Elem, Product};
use super::half::{Half, Small};
use super::mma::{half_at, single, single_of};
use super::tile::{apart, registers};
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// Row and column of element `i` of the eight singles of C that a lane holds.
fn single_place(i: usize, t: usize, h: usize) -> (usize, usize) {
    ((t & 1) + (i & 2) + h, (i & 4) + (t & 2) + (i & 1))
}

/// Returns, for a lane, the number `q` of its product, and `t` and `h` as defined above.
fn split(lane: usize) -> (usize, usize, usize) {
    ((lane & 15) >> 2, lane & 3, lane >> 4 << 2)
}

#[derive(Clone, Copy, Default)]
struct Quad {
    a: [[f64; 4]; 8],
    b: [[f64; 8]; 4],
    c: [[f64; 8]; 8],
}

fn read(w: &Warp, p: &Product, regs: [&[u32]; 3]) -> [Quad; 4] {
    let mut quads = [Quad::default(); 4];
    let [ra, rb, rc] = regs;
    for lane in 0..LANES {
        let (q, t, h) = split(lane);
        let quad = &mut quads[q];
        let half = |regs: &[u32], i: usize| {
            Half::wide((u32::src(w, regs[i / 2])[lane] >> (16 * (i & 1))) as u16)
        };
        for i in 0..4 {
            let (row, col) = if p.by_column[0] {
                (i + h, t)
            } else {
                (t + h, i)
            };
            quad.a[row][col] = half(ra, i);
            let (row, col) = if p.by_column[1] {
                (i, t + h)
            } else {
                (t, i + h)
            };
            quad.b[row][col] = half(rb, i);
        }
        for i in 0..8 {
            if p.elems[2] == Elem::F16 {
                quad.c[t + h][i] = half(rc, i);
            } else {
                let (row, col) = single_place(i, t, h);
                quad.c[row][col] = single(u32::src(w, rc[i])[lane], 0);
            }
        }
    }
    quads
}

/// `mma.m8n8k4` of halves. `e` is the operand list, `imm` the description ([`Product`]).
pub(crate) struct MmaQuad;
impl Op for MmaQuad {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let p = Product::at(i.imm);
        let [_, _, c, d] = p.elems;
        let sums = |e: Elem| if e == Elem::F16 { 4 } else { 8 };
        let [rd, ra, rb, rc] = registers(env, i, [sums(d), 2, 2, sums(c)]);
        let mut quads = read(w, &p, [ra, rb, rc]);
        for quad in &mut quads {
            for (row, line) in quad.a.iter().zip(&mut quad.c) {
                for (x, y) in row.iter().zip(&quad.b) {
                    for n in 0..8 {
                        line[n] += x * y[n];
                    }
                }
            }
        }
        for (r, &reg) in rd.iter().enumerate() {
            let t: [u32; LANES] = std::array::from_fn(|lane| {
                let (q, t, h) = split(lane);
                let c = &quads[q].c;
                if d == Elem::F16 {
                    half_at(c[t + h][2 * r], 0) | half_at(c[t + h][2 * r + 1], 1)
                } else {
                    let (row, col) = single_place(r, t, h);
                    single_of(c[row][col], 0)
                }
            });
            put(w, reg, &t, mask);
        }
        Flow::Next
    }
}
