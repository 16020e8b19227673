//! Tiles of matrices in a warp's registers: what `mma` and `wmma.mma` read and write. The layout is
//! that of [`super::fragment`].

use super::fragment::Product;
use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES};
use crate::exec::warp::Warp;

/// At an `.aligned` instruction: `None` when all lanes of the warp that have not exited are there, else
/// these wait and the instruction is left. (Not a wrapper of a closure: the operations are to be
/// compiled for the CPU's wide registers, and a closure might not be.)
#[inline(always)]
pub(crate) fn apart(w: &mut Warp, mask: u32) -> Option<Flow> {
    if w.together(u32::MAX, mask) || w.take_force() {
        return None;
    }
    w.wait_for(u32::MAX, mask);
    Some(w.leave_behind(mask))
}

/// Most tiles of one product (32 by 8, or 8 by 32).
pub(crate) const MOST_TILES: usize = 4;

/// The registers of a product: D, A, B, C.
#[inline(always)]
pub(crate) fn registers<'p>(env: &Env<'p>, i: &Inst, counts: [usize; 4]) -> [&'p [u32]; 4] {
    let mut rest = env.program.operands.get(i.e as usize..).unwrap_or(&[]);
    counts.map(|n| {
        let (these, others) = rest.split_at(n.min(rest.len()));
        rest = others;
        these
    })
}

/// Values of a tile: up to 16 rows, `K` elements along.
pub(crate) type Rows<E, const K: usize> = [[E; K]; 16];
/// Values of a tile of B: up to `K` rows of 8.
pub(crate) type Lines<E, const K: usize> = [[E; 8]; K];

/// A tile of A from its registers; `get(word, j)` is element `j` of a word.
#[inline(always)]
pub(crate) fn rows<W: Raw, E: Copy + Default, const K: usize>(
    w: &Warp,
    regs: &[u32],
    tall: bool,
    packed: usize,
    get: impl Fn(W, usize) -> E,
) -> Rows<E, K> {
    let mut out = [[E::default(); K]; 16];
    for (q, &reg) in regs.iter().enumerate() {
        let v = W::src(w, reg);
        let (up, block) = if tall { (q & 1, q >> 1) } else { (0, q) };
        for g in 0..8 {
            let row = &mut out[g + 8 * up];
            for t in 0..4 {
                for j in 0..packed {
                    row[((block * 4 + t) * packed + j) & (K - 1)] = get(v[4 * g + t], j);
                }
            }
        }
    }
    out
}

/// A tile of B from its registers.
#[inline(always)]
pub(crate) fn lines<W: Raw, E: Copy + Default, const K: usize>(
    w: &Warp,
    regs: &[u32],
    packed: usize,
    get: impl Fn(W, usize) -> E,
) -> Lines<E, K> {
    let mut out = [[E::default(); 8]; K];
    for (q, &reg) in regs.iter().enumerate() {
        let v = W::src(w, reg);
        for t in 0..4 {
            for j in 0..packed {
                let line = &mut out[((q * 4 + t) * packed + j) & (K - 1)];
                for (g, x) in line.iter_mut().enumerate() {
                    *x = get(v[4 * g + t], j);
                }
            }
        }
    }
    out
}

/// A tile of C from its registers.
#[inline(always)]
pub(crate) fn sums<W: Raw, E: Copy + Default>(
    w: &Warp,
    regs: &[u32],
    packed: usize,
    get: impl Fn(W, usize) -> E,
) -> Lines<E, 16> {
    let mut out = [[E::default(); 8]; 16];
    for (r, &reg) in regs.iter().enumerate() {
        let v = W::src(w, reg);
        for j in 0..packed {
            let q = r * packed + j;
            for (l, &word) in v.iter().enumerate() {
                out[(l >> 2) + 8 * (q >> 1 & 1)][(l & 3) * 2 + (q & 1)] = get(word, j);
            }
        }
    }
    out
}

/// Writes a tile of D; `set(value, j)` is the value at element `j` of a word.
#[inline(always)]
pub(crate) fn write<W: Raw + std::ops::BitOr<Output = W>, E: Copy>(
    w: &mut Warp,
    regs: &[u32],
    packed: usize,
    mask: u32,
    tile: &Lines<E, 16>,
    set: impl Fn(E, usize) -> W,
) {
    for (r, &reg) in regs.iter().enumerate() {
        let mut t = [W::default(); LANES];
        for j in 0..packed {
            let q = r * packed + j;
            for (l, t) in t.iter_mut().enumerate() {
                let x = tile[(l >> 2) + 8 * (q >> 1 & 1)][(l & 3) * 2 + (q & 1)];
                *t = *t | set(x, j);
            }
        }
        put(w, reg, &t, mask);
    }
}

/// The registers (D, A, B, C) of each tile of a product, at most four: rows of tiles first.
#[inline(always)]
pub(crate) fn tiles<'r>(
    p: &Product,
    regs: [&'r [u32]; 4],
) -> impl Iterator<Item = [&'r [u32]; 4]> + use<'r> {
    let (high, across) = (p.shape.high() as usize, p.shape.across() as usize);
    (0..(high * across).min(MOST_TILES)).map(move |t| {
        let [d, a, b, c] = regs;
        let part = |v: &'r [u32], n: usize, k: usize| {
            let size = v.len() / n;
            &v[k * size..(k + 1) * size]
        };
        [
            part(d, high * across, t),
            part(a, high, t / across),
            part(b, across, t % across),
            part(c, high * across, t),
        ]
    })
}
