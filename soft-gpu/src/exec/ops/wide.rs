//! Matrix products with the vector instructions of AVX2, FMA and F16C: the same sums as in
//! [`super::mma`], tile by tile, for the types of which programs multiply most. What is else goes
//! the general way.

// No closures here: they would not be compiled for these instructions.

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

/// How the elements of a product come from registers and go back. Lines of B and of sums have their
/// even columns first, since a register of C holds either the even or the odd ones.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C. Tiles have room for 16 rows of A and 16 lines of B; all of them
/// that the registers have are written.
pub(crate) trait Elements {
    /// The general way.
    type Plain: Multiply;
    /// A lane of a register of C or D.
    type Word: Raw;
    /// A tile of A.
    unsafe fn left(w: &Warp, regs: &[u32], tall: bool, to: *mut [f64; 16]);
    /// A tile of B, a line for each k.
    unsafe fn lines(w: &Warp, regs: &[u32], to: *mut [f64; 8]);
    /// Four lanes of C.
    unsafe fn sums(from: *const Self::Word) -> __m256d;
    /// Eight lanes of D.
    unsafe fn put(to: *mut Self::Word, sums: [__m256d; 2]);
}

/// A product whose C and D are singles or doubles.
pub(crate) struct MmaWide<E>(PhantomData<E>);
impl<E: Elements> Op for MmaWide<E> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        if let Some(flow) = apart(w, mask) {
            return flow;
        }
        let p = Product::at(i.imm);
        if mask == u32::MAX && p.in_place && Mode::of(p.mode) == Mode::Nearest {
            // SAFETY: chosen where the CPU has the instructions.
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
    // Until the factors are there, C is.
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
        // SAFETY: the tiles have the room, and what `add` reads of them was written: 8 rows
        // for each pair of C's registers, k lines.
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

/// Adds the products to eight rows of C, four at a time: as many sums as a CPU adds at once. Not
/// inlined, so that they have the registers for themselves.
///
/// # Safety
/// As for [`Elements`]; eight rows of A, `k` lines of B, and the 32 lanes of two registers of C and
/// of D. D's are C's, or others.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn add<E: Elements>(
    left: *const [f64; 16],
    (lines, k): (*const [f64; 8], usize),
    from: [*const E::Word; 2],
    to: [*mut E::Word; 2],
) {
    for row in [0, 4] {
        // SAFETY: by this function's contract.
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

/// A type of narrow factors, `P` to a register.
///
/// # Safety
/// As for [`Elements`].
pub(crate) trait Narrow<const P: usize>: Factor {
    /// All elements of four registers' words, in their order, four to a vector.
    unsafe fn all(words: __m128i) -> [__m256d; P];
    /// Element `j` of eight words.
    unsafe fn each(words: __m256i, j: usize) -> [__m256d; 2];
}

/// Eight singles as doubles.
///
/// # Safety
/// As for [`Elements`].
#[inline(always)]
unsafe fn doubles(x: __m256) -> [__m256d; 2] {
    // SAFETY: by this function's contract.
    unsafe {
        [
            _mm256_cvtps_pd(_mm256_castps256_ps128(x)),
            _mm256_cvtps_pd(_mm256_extractf128_ps::<1>(x)),
        ]
    }
}

/// Half `j` of eight words, beside each other.
///
/// # Safety
/// As for [`Elements`].
#[inline(always)]
unsafe fn halves(words: __m256i, j: usize) -> __m128i {
    // SAFETY: by this function's contract.
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
        // SAFETY: by the trait's contract.
        unsafe { doubles(_mm256_cvtph_ps(words)) }
    }
    #[inline(always)]
    unsafe fn each(words: __m256i, j: usize) -> [__m256d; 2] {
        // SAFETY: by the trait's contract.
        unsafe { Self::all(halves(words, j)) }
    }
}

impl Narrow<2> for super::half::Brain {
    #[inline(always)]
    unsafe fn all(words: __m128i) -> [__m256d; 2] {
        // SAFETY: by the trait's contract.
        unsafe {
            let wide = _mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(words));
            doubles(_mm256_castsi256_ps(wide))
        }
    }
    #[inline(always)]
    unsafe fn each(words: __m256i, j: usize) -> [__m256d; 2] {
        // SAFETY: by the trait's contract.
        unsafe { Self::all(halves(words, j)) }
    }
}

impl Narrow<1> for super::mma::Tf32 {
    #[inline(always)]
    unsafe fn all(words: __m128i) -> [__m256d; 1] {
        // SAFETY: by the trait's contract.
        unsafe {
            let x = _mm_castsi128_ps(words);
            let short = _mm_and_ps(x, _mm_castsi128_ps(_mm_set1_epi32(!0x1fff)));
            // Without its low bits a NaN might be an infinity; with all bits it is a NaN.
            [_mm256_cvtps_pd(_mm_or_ps(short, _mm_cmpunord_ps(x, x)))]
        }
    }
    #[inline(always)]
    unsafe fn each(words: __m256i, _: usize) -> [__m256d; 2] {
        // SAFETY: by the trait's contract.
        unsafe {
            let [low] = Self::all(_mm256_castsi256_si128(words));
            let [high] = Self::all(_mm256_extracti128_si256::<1>(words));
            [low, high]
        }
    }
}

/// A register's lanes.
#[inline(always)]
fn lanes<R: Raw>(w: &Warp, reg: u32) -> *const R {
    R::src(w, reg).as_ptr()
}

/// The words of a block of B, whose lanes have columns by fours: word t of each column, the even
/// ones first.
///
/// # Safety
/// As for [`Elements`]; `lanes` are 32.
#[inline(always)]
unsafe fn across(lanes: *const u32) -> [__m256i; 4] {
    // SAFETY: by this function's contract.
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

/// Factors of one type, sums of singles.
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
                // SAFETY: by the trait's contract.
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
            // SAFETY: by the trait's contract.
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
        // SAFETY: by the trait's contract.
        unsafe { _mm256_cvtps_pd(_mm_loadu_ps(from.cast())) }
    }

    #[inline(always)]
    unsafe fn put(to: *mut u32, sums: [__m256d; 2]) {
        // SAFETY: by the trait's contract.
        unsafe {
            let x = _mm256_set_m128(_mm256_cvtpd_ps(sums[1]), _mm256_cvtpd_ps(sums[0]));
            // What is not a number is the canonical NaN.
            let nan = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fff_ffff));
            let x = _mm256_blendv_ps(x, nan, _mm256_cmp_ps::<_CMP_UNORD_Q>(x, x));
            _mm256_storeu_ps(to.cast(), x);
        }
    }
}

/// Doubles.
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
                // SAFETY: by the trait's contract.
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
                // SAFETY: by the trait's contract.
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
        // SAFETY: by the trait's contract.
        unsafe { _mm256_loadu_pd(from.cast()) }
    }

    #[inline(always)]
    unsafe fn put(to: *mut u64, sums: [__m256d; 2]) {
        // SAFETY: by the trait's contract.
        unsafe {
            _mm256_storeu_pd(to.cast(), sums[0]);
            _mm256_storeu_pd(to.add(4).cast(), sums[1]);
        }
    }
}
