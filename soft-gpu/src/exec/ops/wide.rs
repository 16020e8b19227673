//! Matrix products with the vector instructions of AVX2, FMA and F16C, for the most frequent types.
//! The sums are the same as in [`super::mma`], tile by tile. Products of other types use
//! [`super::mma`].

// Closures are avoided here: the compiler would not use these vector instructions for them.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::fragment::Product;
use super::mma::{Factor, Mma, Multiply};
use super::tile::{apart, listed, part, registers};
use crate::exec::col::{Raw, soon};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, Op};
use crate::exec::round::Mode;
use crate::exec::warp::Warp;

/// Conversions between registers and tiles of a product. Lines of B and of sums have their even
/// columns first, because a register of C holds either even or odd columns.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C. A tile has room for 16 rows of A or 16 lines of B. `left` and
/// `lines` write all rows and lines that the registers hold.
pub(crate) trait Elements {
    /// The implementation without vector instructions.
    type Plain: Multiply;
    /// The type of a lane in a register of C or D.
    type Word: Raw;
    /// Reads a tile of A.
    unsafe fn left(w: &Warp, regs: &[u32], tall: bool, to: *mut [f64; 16]);
    /// Reads a tile of B, one line for each k.
    unsafe fn lines(w: &Warp, regs: &[u32], to: *mut [f64; 8]);
    /// Reads four lanes of C.
    unsafe fn sums(from: *const Self::Word) -> __m256d;
    /// Writes eight lanes of D.
    unsafe fn put(to: *mut Self::Word, sums: [__m256d; 2]);
}

/// A product whose C and D are singles or doubles, with vector instructions.
pub(crate) struct MmaWide<E>(PhantomData<E>);
impl<E: Elements> Op for MmaWide<E> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let p = Product::at(i.imm);
        if mask == u32::MAX && p.in_place && Mode::of(p.mode) == Mode::Nearest {
            // SAFETY: the lowering chooses this operation only if the CPU has the instructions.
            unsafe { product::<E>(w, env, i, &p) };
        } else {
            Mma::<E::Plain>::product(w, env, i, mask);
        }
        Flow::Next
    }
}

/// # Safety
/// As for [`Elements`].
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn product<E: Elements>(w: &mut Warp, env: &Env<'_>, i: &Inst, p: &Product) {
    let [d, a, b, c] = registers(env, i, listed(i));
    let (high, across) = (p.shape.high() as usize, p.shape.across() as usize);
    let all = high * across;
    // C is prefetched while the factors are read.
    for &reg in c {
        soon::<E::Word>(w, reg);
    }
    let (tall, k) = (p.shape.m > 8, p.shape.k.min(16) as usize);
    let mut left = MaybeUninit::<[[f64; 16]; 16]>::uninit();
    let mut lines = MaybeUninit::<[[f64; 8]; 16]>::uninit();
    let (left, lines) = (
        left.as_mut_ptr().cast::<[f64; 16]>(),
        lines.as_mut_ptr().cast::<[f64; 8]>(),
    );
    for row in 0..high {
        // SAFETY: the tiles have enough room. `add` reads 8 rows for each pair of C's registers and
        // `k` lines, which `left` and `lines` have written.
        unsafe {
            E::left(w, part(a, high, row), tall, left);
            for col in 0..across {
                let t = row * across + col;
                E::lines(w, part(b, across, col), lines);
                let (c, d) = (part(c, all, t).as_chunks().0, part(d, all, t).as_chunks().0);
                for (up, (c, d)) in c.iter().zip(d).enumerate() {
                    let from = c.map(|reg| E::Word::column(w, reg).cast_const().cast());
                    let to = d.map(|reg| E::Word::column(w, reg).cast());
                    add::<E>(left.add(8 * up), (lines, k), from, to);
                }
            }
        }
    }
}

/// Adds the products to eight rows of C, four rows at a time: their sums fill the vector registers
/// of a CPU. Not inlined, so that the sums have all registers.
///
/// # Safety
/// As for [`Elements`]. `left` has eight rows of A, `lines` has `k` lines of B. `from` and `to`
/// each point to the 32 lanes of two registers. The registers of D are those of C, or do not
/// overlap them.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn add<E: Elements>(
    left: *const [f64; 16],
    (lines, k): (*const [f64; 8], usize),
    from: [*const E::Word; 2],
    to: [*mut E::Word; 2],
) {
    for row in [0, 4] {
        // SAFETY: the contract of this function.
        unsafe {
            let left = left.add(row).cast::<f64>();
            let mut s = [_mm256_setzero_pd(); 8];
            for r in 0..4 {
                s[2 * r] = E::sums(from[0].add(4 * (row + r)));
                s[2 * r + 1] = E::sums(from[1].add(4 * (row + r)));
            }
            for k in 0..k {
                let line = lines.add(k).cast::<f64>();
                let y = [_mm256_loadu_pd(line), _mm256_loadu_pd(line.add(4))];
                for r in 0..4 {
                    let x = _mm256_broadcast_sd(&*left.add(16 * r + k));
                    s[2 * r] = _mm256_fmadd_pd(x, y[0], s[2 * r]);
                    s[2 * r + 1] = _mm256_fmadd_pd(x, y[1], s[2 * r + 1]);
                }
            }
            for r in [0, 2] {
                E::put(to[0].add(4 * (row + r)), [s[2 * r], s[2 * r + 2]]);
                E::put(to[1].add(4 * (row + r)), [s[2 * r + 1], s[2 * r + 3]]);
            }
        }
    }
}

/// A type of narrow factors, with `P` elements per register.
///
/// # Safety
/// As for [`Elements`].
pub(crate) trait Narrow<const P: usize>: Factor {
    /// Converts all elements of four words, in their order, four per vector.
    unsafe fn all(words: __m128i) -> [__m256d; P];
    /// Converts element `j` of eight words.
    unsafe fn each(words: __m256i, j: usize) -> [__m256d; 2];
}

/// Converts eight singles to doubles.
///
/// # Safety
/// As for [`Elements`].
#[inline(always)]
unsafe fn doubles(x: __m256) -> [__m256d; 2] {
    // SAFETY: the contract of this function.
    unsafe {
        [
            _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x)),
        ]
    }
}

/// Returns half `j` of each of eight words, packed.
///
/// # Safety
/// As for [`Elements`].
#[inline(always)]
unsafe fn halves(words: __m256i, j: usize) -> __m128i {
    // SAFETY: the contract of this function.
    unsafe {
        let words = match j {
            0 => _mm256_and_si256(words, _mm256_set1_epi32(0xffff)),
            _ => _mm256_srli_epi32::<16>(words),
        };
        _mm_packus_epi32(
            _mm256_castsi256_si128(words),
            _mm256_extracti128_si256::<1>(words),
        )
    }
}

impl Narrow<2> for super::half::Half {
    #[inline(always)]
    unsafe fn all(words: __m128i) -> [__m256d; 2] {
        // SAFETY: the trait's contract.
        unsafe { doubles(_mm256_cvtph_ps(words)) }
    }
    #[inline(always)]
    unsafe fn each(words: __m256i, j: usize) -> [__m256d; 2] {
        // SAFETY: the trait's contract.
        unsafe { Self::all(halves(words, j)) }
    }
}

impl Narrow<2> for super::half::Brain {
    #[inline(always)]
    unsafe fn all(words: __m128i) -> [__m256d; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words));
            doubles(_mm256_castsi256_ps(wide))
        }
    }
    #[inline(always)]
    unsafe fn each(words: __m256i, j: usize) -> [__m256d; 2] {
        // SAFETY: the trait's contract.
        unsafe { Self::all(halves(words, j)) }
    }
}

impl Narrow<1> for super::mma::Tf32 {
    #[inline(always)]
    unsafe fn all(words: __m128i) -> [__m256d; 1] {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm_castsi128_ps(words);
            let short = _mm_and_ps(x, _mm_castsi128_ps(_mm_set1_epi32(!0x1fff)));
            // Without its low bits, a NaN might become an infinity. All bits of a NaN are therefore
            // set.
            [_mm256_cvtps_pd(_mm_or_ps(short, _mm_cmpunord_ps(x, x)))]
        }
    }
    #[inline(always)]
    unsafe fn each(words: __m256i, _: usize) -> [__m256d; 2] {
        // SAFETY: the trait's contract.
        unsafe {
            let [low] = Self::all(_mm256_castsi256_si128(words));
            let [high] = Self::all(_mm256_extracti128_si256::<1>(words));
            [low, high]
        }
    }
}

/// Pointer to the lanes of a register.
#[inline(always)]
fn lanes<R: Raw>(w: &Warp, reg: u32) -> *const R {
    R::src(w, reg).as_ptr()
}

/// The words of a block of B. In a register, each four lanes hold a column. Returns, for each `t`,
/// word `t` of all eight columns, the even columns first.
///
/// # Safety
/// As for [`Elements`]. `lanes` points to 32 words.
#[inline(always)]
unsafe fn across(lanes: *const u32) -> [__m256i; 4] {
    // SAFETY: the contract of this function.
    unsafe {
        let mut rows = [_mm256_setzero_ps(); 4];
        for (g, row) in rows.iter_mut().enumerate() {
            let even = lanes.add(8 * g);
            let low = _mm256_castps128_ps256(_mm_loadu_ps(even.cast()));
            let high = _mm_loadu_ps(even.add(4).cast());
            *row = _mm256_insertf128_ps::<1>(low, high);
        }
        let [a, b, c, d] = rows;
        let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
        let (ef, gh) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
        [
            _mm256_castps_si256(_mm256_shuffle_ps::<0x44>(ab, cd)),
            _mm256_castps_si256(_mm256_shuffle_ps::<0xee>(ab, cd)),
            _mm256_castps_si256(_mm256_shuffle_ps::<0x44>(ef, gh)),
            _mm256_castps_si256(_mm256_shuffle_ps::<0xee>(ef, gh)),
        ]
    }
}

/// Factors of type `T`, with sums of singles.
pub(crate) struct Singles<T, const P: usize>(PhantomData<T>);
impl<T: Narrow<P>, const P: usize> Elements for Singles<T, P> {
    type Plain = super::mma::Floats<T, P, true>;
    type Word = u32;

    #[inline(always)]
    unsafe fn left(w: &Warp, regs: &[u32], tall: bool, to: *mut [f64; 16]) {
        for (q, &reg) in regs.iter().enumerate() {
            let (up, block) = if tall { (q & 1, q >> 1) } else { (0, q) };
            let from = lanes::<u32>(w, reg);
            for g in 0..8 {
                // SAFETY: the trait's contract.
                unsafe {
                    let to = to.add(g + 8 * up).cast::<f64>().add(4 * P * block);
                    let all = T::all(_mm_loadu_si128(from.add(4 * g).cast()));
                    for (n, x) in all.into_iter().enumerate() {
                        _mm256_storeu_pd(to.add(4 * n), x);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn lines(w: &Warp, regs: &[u32], to: *mut [f64; 8]) {
        for (q, &reg) in regs.iter().enumerate() {
            // SAFETY: the trait's contract.
            unsafe {
                let words = across(lanes(w, reg));
                for (t, words) in words.into_iter().enumerate() {
                    for j in 0..P {
                        let to = to.add((4 * q + t) * P + j).cast::<f64>();
                        let [low, high] = T::each(words, j);
                        _mm256_storeu_pd(to, low);
                        _mm256_storeu_pd(to.add(4), high);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sums(from: *const u32) -> __m256d {
        // SAFETY: the trait's contract.
        unsafe { _mm256_cvtps_pd(_mm_loadu_ps(from.cast())) }
    }

    #[inline(always)]
    unsafe fn put(to: *mut u32, sums: [__m256d; 2]) {
        // SAFETY: the trait's contract.
        unsafe {
            let x = _mm256_set_m128(_mm256_cvtpd_ps(sums[1]), _mm256_cvtpd_ps(sums[0]));
            // Every NaN becomes the canonical NaN.
            let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
            let x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            _mm256_storeu_ps(to.cast(), x);
        }
    }
}

/// Factors and sums of doubles.
pub(crate) struct DoublesWide;
impl Elements for DoublesWide {
    type Plain = super::mma::Doubles;
    type Word = u64;

    #[inline(always)]
    unsafe fn left(w: &Warp, regs: &[u32], tall: bool, to: *mut [f64; 16]) {
        for (q, &reg) in regs.iter().enumerate() {
            let (up, block) = if tall { (q & 1, q >> 1) } else { (0, q) };
            let from = lanes::<u64>(w, reg);
            for g in 0..8 {
                // SAFETY: the trait's contract.
                unsafe {
                    let to = to.add(g + 8 * up).cast::<f64>().add(4 * block);
                    _mm256_storeu_pd(to, _mm256_loadu_pd(from.add(4 * g).cast()));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn lines(w: &Warp, regs: &[u32], to: *mut [f64; 8]) {
        for (q, &reg) in regs.iter().enumerate() {
            let from = lanes::<u64>(w, reg).cast::<f64>();
            for odd in 0..2 {
                // SAFETY: the trait's contract.
                unsafe {
                    let from = from.add(4 * odd);
                    let (a, b) = (_mm256_loadu_pd(from), _mm256_loadu_pd(from.add(8)));
                    let (c, d) = (_mm256_loadu_pd(from.add(16)), _mm256_loadu_pd(from.add(24)));
                    let (e, f) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
                    let (g, h) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
                    let all = [
                        _mm256_permute2f128_pd::<0x20>(e, g),
                        _mm256_permute2f128_pd::<0x20>(f, h),
                        _mm256_permute2f128_pd::<0x31>(e, g),
                        _mm256_permute2f128_pd::<0x31>(f, h),
                    ];
                    for (t, x) in all.into_iter().enumerate() {
                        _mm256_storeu_pd(to.add(4 * q + t).cast::<f64>().add(4 * odd), x);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sums(from: *const u64) -> __m256d {
        // SAFETY: the trait's contract.
        unsafe { _mm256_loadu_pd(from.cast()) }
    }

    #[inline(always)]
    unsafe fn put(to: *mut u64, sums: [__m256d; 2]) {
        // SAFETY: the trait's contract.
        unsafe {
            _mm256_storeu_pd(to.cast(), sums[0]);
            _mm256_storeu_pd(to.add(4).cast(), sums[1]);
        }
    }
}
