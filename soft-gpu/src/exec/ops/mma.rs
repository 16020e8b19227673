//! `mma` and `wmma.mma`: `D = A·B + C` for matrices in the registers of a whole warp.
//!
//! PTX does not define the order and precision of the additions. Here each element of D starts with
//! the element of C, and adds the products in ascending k:
//! - `f16`, `bf16`, `tf32`, `e4m3`, `e5m2`: the products are exact. The sum is kept in a double and
//!   rounded once to D's type, to nearest even, which is at least as precise as on hardware.
//!   Subnormals are not flushed. The low 13 bits of a `tf32` operand are ignored.
//! - `f64`: a chain of fused multiply-adds with the rounding of the instruction, as PTX defines it.
//! - integers: the exact sum, wrapped to 32 bits or clamped (`.satfinite`).

use std::marker::PhantomData;

use super::float::canon;
use super::fragment::{Elem, Product};
use super::half::{Brain, Half, Small};
use super::narrow::{E4m3, E5m2, Tiny};
use super::tile::{
    Lines, MOST_TILES, Rows, apart, lines, listed, part, registers, rows, sums, write,
};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, Op};
use crate::exec::round::{self, Mode};
use crate::exec::warp::Warp;

/// A type of factors in narrow floating point.
pub(crate) trait Factor {
    /// Element `j` of a register, as a double, exactly.
    fn get(word: u32, j: usize) -> f64;
}

impl Factor for Half {
    #[inline(always)]
    fn get(word: u32, j: usize) -> f64 {
        Half::wide((word >> (16 * j)) as u16)
    }
}

impl Factor for Brain {
    #[inline(always)]
    fn get(word: u32, j: usize) -> f64 {
        Brain::wide((word >> (16 * j)) as u16)
    }
}

/// `tf32`: a single without the low 13 bits.
pub(crate) struct Tf32;
impl Factor for Tf32 {
    #[inline(always)]
    fn get(word: u32, _: usize) -> f64 {
        let x = f32::from_bits(word);
        if x.is_nan() {
            return f64::NAN;
        }
        f64::from(f32::from_bits(word & !0x1fff))
    }
}

/// Adds the products of a tile to `sum`, in ascending k. With `FUSED`, the function uses fused
/// multiply-adds, which are faster if the CPU has them. The products are exact, so the result is
/// the same.
#[inline(always)]
fn accumulate<const FUSED: bool, const K: usize>(
    a: &Rows<f64, K>,
    (b, k): (&Lines<f64, K>, u32),
    sum: &mut Lines<f64, 16>,
) {
    for (row, line) in a.iter().zip(sum) {
        let mut s = *line;
        for (x, y) in row.iter().zip(b).take(k as usize) {
            for n in 0..8 {
                s[n] = if FUSED {
                    x.mul_add(y[n], s[n])
                } else {
                    s[n] + x * y[n]
                };
            }
        }
        *line = s;
    }
}

#[inline(always)]
pub(crate) fn single(word: u32, _: usize) -> f64 {
    f64::from(f32::from_bits(word))
}

/// Rounds a sum to a half, and returns it as element `j` of a register.
#[inline(always)]
pub(crate) fn half_at(x: f64, j: usize) -> u32 {
    u32::from(Half::round(x)) << (16 * j)
}

/// Rounds a sum to a single, and returns it as a register.
#[inline(always)]
pub(crate) fn single_of(x: f64, _: usize) -> u32 {
    canon(x as f32).to_bits()
}

/// The product of matrices whose elements are of one family, in tiles of at most 16 by 8 sums.
pub(crate) trait Multiply {
    /// A tile of A.
    type Left;
    /// A sum.
    type Sum: Copy;
    /// Reads a tile of A from its registers.
    fn left(w: &Warp, p: &Product, a: &[u32]) -> Self::Left;
    /// The sums of a tile, from a tile of A and the registers of B and C.
    fn tile(w: &Warp, p: &Product, a: &Self::Left, b: &[u32], c: &[u32]) -> Lines<Self::Sum, 16>;
    /// Writes a tile to the registers `d`.
    fn put(w: &mut Warp, p: &Product, d: &[u32], mask: u32, sums: &Lines<Self::Sum, 16>);
}

/// A product of matrices. `e` is the operand list, `imm` the description ([`Product`]).
pub(crate) struct Mma<M>(PhantomData<M>);
impl<M: Multiply> Op for Mma<M> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        Self::product(w, env, i, mask);
        Flow::Next
    }
}

impl<M: Multiply> Mma<M> {
    /// Computes the product, after all lanes have arrived.
    #[inline(always)]
    pub(crate) fn product(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) {
        let p = Product::at(i.imm);
        let [d, a, b, c] = registers(env, i, listed(i));
        let (high, across) = (p.shape.high() as usize, p.shape.across() as usize);
        let all = high * across;
        // D is written after all tiles are read, because D may use registers of A, B or C.
        let mut results = [const { None }; MOST_TILES];
        for (t, slot) in results.iter_mut().enumerate().take(all) {
            let left = M::left(w, &p, part(a, high, t / across));
            let (b, c) = (part(b, across, t % across), part(c, all, t));
            *slot = Some(M::tile(w, &p, &left, b, c));
        }
        for (t, sums) in results.iter().flatten().enumerate() {
            M::put(w, &p, part(d, all, t), mask, sums);
        }
    }
}

/// `f16`, `bf16` and `tf32` with sums of `f32` or `f16`. The products are exact. With `FUSED`, they
/// are added by fused multiply-adds.
pub(crate) struct Floats<T, const PACKED: usize, const FUSED: bool>(PhantomData<T>);
impl<T: Factor, const PACKED: usize, const FUSED: bool> Multiply for Floats<T, PACKED, FUSED> {
    type Left = Rows<f64, 16>;
    type Sum = f64;

    #[inline(always)]
    fn left(w: &Warp, p: &Product, a: &[u32]) -> Rows<f64, 16> {
        rows::<u32, f64, 16, PACKED>(w, a, p.shape.m > 8, T::get)
    }

    #[inline(always)]
    fn tile(w: &Warp, p: &Product, a: &Rows<f64, 16>, b: &[u32], c: &[u32]) -> Lines<f64, 16> {
        let b = lines::<u32, f64, 16, PACKED>(w, b, T::get);
        let mut s = float_sums(w, p, c);
        accumulate::<FUSED, 16>(a, (&b, p.shape.k), &mut s);
        s
    }

    #[inline(always)]
    fn put(w: &mut Warp, p: &Product, d: &[u32], mask: u32, sums: &Lines<f64, 16>) {
        match p.elems[3] {
            Elem::F16 => write(w, d, 2, mask, sums, half_at),
            _ => write(w, d, 1, mask, sums, single_of),
        }
    }
}

/// Reads C, the initial sums.
#[inline(always)]
fn float_sums(w: &Warp, p: &Product, c: &[u32]) -> Lines<f64, 16> {
    match p.elems[2] {
        Elem::F16 => sums(w, c, 2, <Half as Factor>::get),
        _ => sums(w, c, 1, single),
    }
}

/// `e4m3` and `e5m2`, in any combination, with sums of `f32` or `f16`.
pub(crate) struct Eights;
impl Multiply for Eights {
    type Left = Rows<f64, 32>;
    type Sum = f64;

    #[inline(always)]
    fn left(w: &Warp, p: &Product, a: &[u32]) -> Rows<f64, 32> {
        rows::<u32, f64, 32, 4>(w, a, true, |v, j| eight(v, j, p.elems[0]))
    }

    #[inline(always)]
    fn tile(w: &Warp, p: &Product, a: &Rows<f64, 32>, b: &[u32], c: &[u32]) -> Lines<f64, 16> {
        let b = lines::<u32, f64, 32, 4>(w, b, |v, j| eight(v, j, p.elems[1]));
        let mut s = float_sums(w, p, c);
        accumulate::<false, 32>(a, (&b, p.shape.k), &mut s);
        s
    }

    #[inline(always)]
    fn put(w: &mut Warp, p: &Product, d: &[u32], mask: u32, sums: &Lines<f64, 16>) {
        Floats::<Half, 2, false>::put(w, p, d, mask, sums);
    }
}

/// Element `j` of a register of 8-bit floats.
#[inline(always)]
fn eight(word: u32, j: usize, elem: Elem) -> f64 {
    let bits = (word >> (8 * j)) as u8;
    Half::wide(match elem {
        Elem::E4M3 => E4m3::half(bits),
        _ => E5m2::half(bits),
    })
}

/// `f64`.
pub(crate) struct Doubles;
impl Multiply for Doubles {
    type Left = Rows<f64, 16>;
    type Sum = f64;

    #[inline(always)]
    fn left(w: &Warp, p: &Product, a: &[u32]) -> Rows<f64, 16> {
        rows::<u64, f64, 16, 1>(w, a, p.shape.m > 8, |word, _| f64::from_bits(word))
    }

    #[inline(always)]
    fn tile(w: &Warp, p: &Product, a: &Rows<f64, 16>, b: &[u32], c: &[u32]) -> Lines<f64, 16> {
        let bits = |word: u64, _: usize| f64::from_bits(word);
        let b = lines::<u64, f64, 16, 1>(w, b, bits);
        let mut s = sums(w, c, 1, bits);
        let mode = Mode::of(p.mode);
        if mode == Mode::Nearest {
            accumulate::<true, 16>(a, (&b, p.shape.k), &mut s);
            return s;
        }
        for (row, line) in a.iter().zip(&mut s) {
            for (x, y) in row.iter().zip(&b).take(p.shape.k as usize) {
                *line = std::array::from_fn(|n| round::fma64(*x, y[n], line[n], mode));
            }
        }
        s
    }

    #[inline(always)]
    fn put(w: &mut Warp, _: &Product, d: &[u32], mask: u32, sums: &Lines<f64, 16>) {
        write(w, d, 1, mask, sums, |x: f64, _| x.to_bits());
    }
}

/// Element `j` of a register with `PACKED` signed integers.
#[inline(always)]
fn signed<const PACKED: usize>(word: u32, j: usize) -> i32 {
    let bits = 32 / PACKED;
    (word << (32 - bits * (j + 1))) as i32 >> (32 - bits)
}

/// Element `j` of a register with `PACKED` unsigned integers.
#[inline(always)]
fn unsigned<const PACKED: usize>(word: u32, j: usize) -> i32 {
    let bits = 32 / PACKED;
    (word << (32 - bits * (j + 1)) >> (32 - bits)) as i32
}

/// Converts an exact sum to 32 bits: clamped, or its low bits.
#[inline(always)]
fn fit(x: i64, clamp: bool) -> u32 {
    if clamp {
        x.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32
    } else {
        x as u32
    }
}

#[inline(always)]
fn whole(word: u32, _: usize) -> i64 {
    i64::from(word as i32)
}

/// Adds the products of a tile to `sum`. 32 bits are enough for the products: each has at most 17
/// bits, and there are at most 64.
#[inline(always)]
fn add_products<const K: usize>(
    a: &Rows<i32, K>,
    (b, k): (&Lines<i32, K>, u32),
    sum: &mut Lines<i64, 16>,
) {
    for (row, line) in a.iter().zip(sum) {
        let mut t = [0i32; 8];
        for (x, y) in row.iter().zip(b).take(k as usize) {
            for n in 0..8 {
                t[n] += x * y[n];
            }
        }
        for n in 0..8 {
            line[n] += i64::from(t[n]);
        }
    }
}

/// Integers, with `PACKED` elements per register and at most `K` elements along k: 8 bits with 32
/// elements, or 4 bits with 64.
pub(crate) struct Integers<const PACKED: usize, const K: usize>;
impl<const PACKED: usize, const K: usize> Multiply for Integers<PACKED, K> {
    type Left = Rows<i32, K>;
    type Sum = i64;

    #[inline(always)]
    fn left(w: &Warp, p: &Product, a: &[u32]) -> Rows<i32, K> {
        let (tall, elem) = (p.shape.m > 8, p.elems[0]);
        if matches!(elem, Elem::S8 | Elem::S4) {
            rows::<u32, i32, K, PACKED>(w, a, tall, signed::<PACKED>)
        } else {
            rows::<u32, i32, K, PACKED>(w, a, tall, unsigned::<PACKED>)
        }
    }

    #[inline(always)]
    fn tile(w: &Warp, p: &Product, a: &Rows<i32, K>, b: &[u32], c: &[u32]) -> Lines<i64, 16> {
        let b = if matches!(p.elems[1], Elem::S8 | Elem::S4) {
            lines::<u32, i32, K, PACKED>(w, b, signed::<PACKED>)
        } else {
            lines::<u32, i32, K, PACKED>(w, b, unsigned::<PACKED>)
        };
        let mut s = sums(w, c, 1, whole);
        add_products(a, (&b, p.shape.k), &mut s);
        s
    }

    #[inline(always)]
    fn put(w: &mut Warp, p: &Product, d: &[u32], mask: u32, sums: &Lines<i64, 16>) {
        write(w, d, 1, mask, sums, |x, _| fit(x, p.clamp));
    }
}

/// Single bits. A register of 32 bits counts as one element.
pub(crate) struct SingleBits;
impl Multiply for SingleBits {
    type Left = Rows<u32, 8>;
    type Sum = i64;

    #[inline(always)]
    fn left(w: &Warp, p: &Product, a: &[u32]) -> Rows<u32, 8> {
        rows::<u32, u32, 8, 1>(w, a, p.shape.m > 8, |word, _| word)
    }

    #[inline(always)]
    fn tile(w: &Warp, p: &Product, a: &Rows<u32, 8>, b: &[u32], c: &[u32]) -> Lines<i64, 16> {
        let b = lines::<u32, u32, 8, 1>(w, b, |word, _| word);
        let mut s = sums(w, c, 1, whole);
        for (row, line) in a.iter().zip(&mut s) {
            for (x, y) in row.iter().zip(&b).take(p.shape.k as usize / 32) {
                for n in 0..8 {
                    let both = if p.and { x & y[n] } else { x ^ y[n] };
                    line[n] += i64::from(both.count_ones());
                }
            }
        }
        s
    }

    #[inline(always)]
    fn put(w: &mut Warp, p: &Product, d: &[u32], mask: u32, sums: &Lines<i64, 16>) {
        write(w, d, 1, mask, sums, |x, _| fit(x, p.clamp));
    }
}
