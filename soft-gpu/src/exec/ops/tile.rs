//! Tiles of matrices in the registers of a warp, for `mma` and `wmma.mma`. [`super::fragment`]
//! defines their layout.

use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES};
use crate::exec::warp::Warp;

/// Handles the arrival of lanes at an `.aligned` instruction. Returns `None` if all lanes that have
/// not exited are there. Otherwise the lanes wait, and the caller returns the `Flow`. This is not a
/// function that takes a closure, because the compiler might not use vector instructions for a
/// closure.
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

/// Numbers of registers of D, A, B and C in the operand list of a product. The instruction holds
/// them in the fields of its other operands.
#[inline(always)]
pub(crate) fn listed(i: &Inst) -> [usize; 4] {
    [i.d, i.a, i.b, i.c].map(|n| n as usize)
}

/// The registers of D, A, B and C.
#[inline(always)]
pub(crate) fn registers<'p>(env: &Env<'p>, i: &Inst, counts: [usize; 4]) -> [&'p [u32]; 4] {
    let mut rest = env.program.operands.get(i.e as usize..).unwrap_or(&[]);
    counts.map(|n| {
        let (these, others) = rest.split_at(n.min(rest.len()));
        rest = others;
        these
    })
}

/// Elements of a tile of A: up to 16 rows of `K` elements.
pub(crate) type Rows<E, const K: usize> = [[E; K]; 16];
/// Elements of a tile of B, C or D: up to `K` rows of 8 elements.
pub(crate) type Lines<E, const K: usize> = [[E; 8]; K];

/// The lanes of a register in groups of four. Each group holds a row of A, a column of B or a row
/// of C.
#[inline(always)]
fn fours<W: Raw>(w: &Warp, reg: u32) -> &[[W; 4]] {
    W::src(w, reg).as_chunks().0
}

/// Reads a tile of A from its registers, which have `P` elements each. `get(word, j)` returns
/// element `j` of a word.
#[inline(always)]
pub(crate) fn rows<W: Raw, E: Copy + Default, const K: usize, const P: usize>(
    w: &Warp,
    regs: &[u32],
    tall: bool,
    get: impl Fn(W, usize) -> E,
) -> Rows<E, K> {
    let mut out = [[E::default(); K]; 16];
    for (q, &reg) in regs.iter().enumerate() {
        let (up, block) = if tall { (q & 1, q >> 1) } else { (0, q) };
        for (row, four) in out[8 * up..].iter_mut().zip(fours::<W>(w, reg)) {
            let Some(part) = row.as_chunks_mut::<P>().0.get_mut(4 * block..4 * block + 4) else {
                continue;
            };
            for (part, word) in part.iter_mut().zip(four) {
                for (j, x) in part.iter_mut().enumerate() {
                    *x = get(*word, j);
                }
            }
        }
    }
    out
}

/// Reads a tile of B from its registers.
#[inline(always)]
pub(crate) fn lines<W: Raw, E: Copy + Default, const K: usize, const P: usize>(
    w: &Warp,
    regs: &[u32],
    get: impl Fn(W, usize) -> E,
) -> Lines<E, K> {
    let mut out = [[E::default(); 8]; K];
    for (&reg, lines) in regs.iter().zip(out.as_chunks_mut::<P>().0.chunks_mut(4)) {
        let mut across = [[W::default(); 8]; 4];
        for (g, four) in fours::<W>(w, reg).iter().enumerate() {
            for (words, word) in across.iter_mut().zip(four) {
                words[g & 7] = *word;
            }
        }
        for (lines, words) in lines.iter_mut().zip(&across) {
            for (j, line) in lines.iter_mut().enumerate() {
                *line = words.map(|word| get(word, j));
            }
        }
    }
    out
}

/// For each row of C: the registers and the elements in the register that hold the two columns of a
/// lane. These are two elements of one word, or one element of two registers.
#[inline(always)]
fn pairs(regs: &[u32], packed: usize) -> impl Iterator<Item = (usize, [u32; 2], [usize; 2])> {
    let step = 3 - packed;
    regs.chunks_exact(step).enumerate().map(move |(n, r)| {
        let second = if packed == 2 {
            (r[0], 1)
        } else {
            (r[1 % step], 0)
        };
        (8 * (n & 1), [r[0], second.0], [0, second.1])
    })
}

/// Reads a tile of C from its registers, which have one or two elements.
#[inline(always)]
pub(crate) fn sums<W: Raw, E: Copy + Default>(
    w: &Warp,
    regs: &[u32],
    packed: usize,
    get: impl Fn(W, usize) -> E,
) -> Lines<E, 16> {
    let mut out = [[E::default(); 8]; 16];
    for (row, [even, odd], [i, j]) in pairs(regs, packed) {
        let words = fours::<W>(w, even).iter().zip(fours::<W>(w, odd));
        for (line, (even, odd)) in out[row..].iter_mut().zip(words) {
            for (t, pair) in line.as_chunks_mut::<2>().0.iter_mut().enumerate() {
                *pair = [get(even[t], i), get(odd[t], j)];
            }
        }
    }
    out
}

/// Writes a tile of D. `set(value, j)` converts a value to element `j` of a word.
#[inline(always)]
pub(crate) fn write<W: Raw + std::ops::BitOr<Output = W>, E: Copy>(
    w: &mut Warp,
    regs: &[u32],
    packed: usize,
    mask: u32,
    tile: &Lines<E, 16>,
    set: impl Fn(E, usize) -> W,
) {
    for (row, [even, odd], [i, j]) in pairs(regs, packed) {
        let mut words = [[[W::default(); 4]; 8]; 2];
        let [low, high] = &mut words;
        for ((low, high), line) in low.iter_mut().zip(high).zip(&tile[row & 8..]) {
            let all = [line.map(|x| set(x, i)), line.map(|x| set(x, j))];
            *low = std::array::from_fn(|t| all[0][2 * t]);
            *high = std::array::from_fn(|t| all[1][2 * t + 1]);
        }
        let [low, high] = words.map(|fours| std::array::from_fn(|l| fours[l / 4][l % 4]));
        if packed == 2 {
            let both: [W; LANES] = std::array::from_fn(|l: usize| low[l] | high[l]);
            put(w, even, &both, mask);
        } else {
            put(w, even, &low, mask);
            put(w, odd, &high, mask);
        }
    }
}

/// Part `n` of `parts` equal parts. `parts` is a power of two.
#[inline(always)]
pub(crate) fn part(all: &[u32], parts: usize, n: usize) -> &[u32] {
    // A division would take as long as computing several rows of a tile.
    let size = all.len() >> parts.trailing_zeros();
    &all[n * size..(n + 1) * size]
}
