//! Matrix products with the vector instructions of AVX2, FMA and F16C: the same sums as in [`super::mma`], tile by
//! tile, for the types of which programs multiply most. What is else goes the general way.

// No closures here: they would not be compiled for these instructions.

use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

use super::fragment::Product;
use super::mma::{Factor, Mma, Multiply};
use super::tile::{apart, part, registers};
use crate::exec::col::Raw;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::round::Mode;
use crate::exec::warp::Warp;

/// How the elements of a product come from registers and go back.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C. Tiles have room for 16 rows of A, 16 lines of B and 16 lines of sums; all of
/// them that the registers have are written.
pub(crate) trait Elements {
    /// The general way.
    type Plain: Multiply;
    /// A tile of A.
    unsafe fn left(w: &Warp, regs: &[u32], tall: bool, to: *mut [f64; 16]);
    /// A tile of B, a line for each k.
    unsafe fn lines(w: &Warp, regs: &[u32], to: *mut [f64; 8]);
    /// A tile of C.
    unsafe fn sums(w: &Warp, regs: &[u32], to: *mut [f64; 8]);
    /// A tile of D.
    unsafe fn put(w: &mut Warp, regs: &[u32], from: *const [f64; 8]);
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
    let [d, a, b, c] = registers(env, i, p.counts());
    let (high, across) = (p.shape.high() as usize, p.shape.across() as usize);
    let all = high * across;
    let (m, k) = (p.shape.m.min(16) as usize, p.shape.k.min(16) as usize);
    let mut left = MaybeUninit::<[[f64; 16]; 16]>::uninit();
    let mut lines = MaybeUninit::<[[f64; 8]; 16]>::uninit();
    let mut sums = MaybeUninit::<[[f64; 8]; 16]>::uninit();
    let (left, lines, sums) = (
        left.as_mut_ptr().cast::<[f64; 16]>(),
        lines.as_mut_ptr().cast::<[f64; 8]>(),
        sums.as_mut_ptr().cast::<[f64; 8]>(),
    );
    for row in 0..high {
        // SAFETY: the tiles have the room, and what `add` reads of them was written: m rows, k lines.
        unsafe {
            E::left(w, part(a, high, row), m > 8, left);
            for col in 0..across {
                let t = row * across + col;
                E::lines(w, part(b, across, col), lines);
                E::sums(w, part(c, all, t), sums);
                add(left, lines, sums, m, k);
                E::put(w, part(d, all, t), sums);
            }
        }
    }
}

/// Adds the products, four rows at a time: as many sums as a CPU adds at once. Not inlined, so that they have the
/// registers for themselves.
///
/// # Safety
/// As for [`Elements`]; `m` rows of A (a multiple of 4) and of sums, `k` lines of B.
#[inline(never)]
#[target_feature(enable = "avx2,fma")]
unsafe fn add(
    left: *const [f64; 16],
    lines: *const [f64; 8],
    sums: *mut [f64; 8],
    m: usize,
    k: usize,
) {
    for row in (0..m).step_by(4) {
        // SAFETY: by this function's contract.
        unsafe {
            let to = sums.add(row).cast::<f64>();
            let from = left.add(row).cast::<f64>();
            let mut s = [_mm256_setzero_pd(); 8];
            for (n, s) in s.iter_mut().enumerate() {
                *s = _mm256_loadu_pd(to.add(4 * n));
            }
            for k in 0..k {
                let line = lines.add(k).cast::<f64>();
                let y = [_mm256_loadu_pd(line), _mm256_loadu_pd(line.add(4))];
                for r in 0..4 {
                    let x = _mm256_broadcast_sd(&*from.add(16 * r + k));
                    s[2 * r] = _mm256_fmadd_pd(x, y[0], s[2 * r]);
                    s[2 * r + 1] = _mm256_fmadd_pd(x, y[1], s[2 * r + 1]);
                }
            }
            for (n, s) in s.into_iter().enumerate() {
                _mm256_storeu_pd(to.add(4 * n), s);
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
            // Without its low bits a NaN might be an infinity.
            [_mm256_cvtps_pd(_mm_blendv_ps(
                short,
                x,
                _mm_cmpunord_ps(x, x),
            ))]
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

/// The words of a block of B, whose lanes have columns by fours: word t of each column.
///
/// # Safety
/// As for [`Elements`]; `lanes` are 32.
#[inline(always)]
unsafe fn across(lanes: *const u32) -> [__m256i; 4] {
    // SAFETY: by this function's contract.
    unsafe {
        let mut rows = [_mm256_setzero_ps(); 4];
        for (g, row) in rows.iter_mut().enumerate() {
            let low = _mm256_castps128_ps256(_mm_loadu_ps(lanes.add(4 * g).cast()));
            let high = _mm_loadu_ps(lanes.add(4 * g + 16).cast());
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

/// Four doubles as singles; what is not a number is the canonical NaN.
///
/// # Safety
/// As for [`Elements`]; four doubles at `from`.
#[inline(always)]
unsafe fn single(from: *const f64) -> __m128 {
    // SAFETY: by this function's contract.
    unsafe {
        let x = _mm256_cvtpd_ps(_mm256_loadu_pd(from));
        let nan = _mm_castsi128_ps(_mm_set1_epi32(0x7fff_ffff));
        _mm_blendv_ps(x, nan, _mm_cmpunord_ps(x, x))
    }
}

/// Factors of one type, sums of singles.
pub(crate) struct Singles<T, const P: usize>(PhantomData<T>);
impl<T: Narrow<P>, const P: usize> Elements for Singles<T, P> {
    type Plain = super::mma::Floats<T, P, true>;

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
    unsafe fn sums(w: &Warp, regs: &[u32], to: *mut [f64; 8]) {
        for (n, pair) in regs.as_chunks::<2>().0.iter().enumerate() {
            let [even, odd] = pair.map(|reg| lanes::<u32>(w, reg));
            for g in 0..8 {
                // SAFETY: by the trait's contract.
                unsafe {
                    let to = to.add(g + 8 * (n & 1)).cast::<f64>();
                    let x = _mm_loadu_ps(even.add(4 * g).cast());
                    let y = _mm_loadu_ps(odd.add(4 * g).cast());
                    _mm256_storeu_pd(to, _mm256_cvtps_pd(_mm_unpacklo_ps(x, y)));
                    _mm256_storeu_pd(to.add(4), _mm256_cvtps_pd(_mm_unpackhi_ps(x, y)));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put(w: &mut Warp, regs: &[u32], from: *const [f64; 8]) {
        for (n, &[even, odd]) in regs.as_chunks::<2>().0.iter().enumerate() {
            let (mut evens, mut odds) = ([0u32; LANES], [0u32; LANES]);
            for g in 0..8 {
                // SAFETY: by the trait's contract.
                unsafe {
                    let from = from.add(g + 8 * (n & 1)).cast::<f64>();
                    let (a, b) = (single(from), single(from.add(4)));
                    _mm_storeu_ps(
                        evens.as_mut_ptr().add(4 * g).cast(),
                        _mm_shuffle_ps::<0x88>(a, b),
                    );
                    _mm_storeu_ps(
                        odds.as_mut_ptr().add(4 * g).cast(),
                        _mm_shuffle_ps::<0xdd>(a, b),
                    );
                }
            }
            *u32::dst(w, even) = evens;
            *u32::dst(w, odd) = odds;
        }
    }
}

/// Doubles.
pub(crate) struct DoublesWide;
impl Elements for DoublesWide {
    type Plain = super::mma::Doubles;

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
            for half in 0..2 {
                // SAFETY: by the trait's contract.
                unsafe {
                    let from = from.add(16 * half);
                    let (a, b) = (_mm256_loadu_pd(from), _mm256_loadu_pd(from.add(4)));
                    let (c, d) = (_mm256_loadu_pd(from.add(8)), _mm256_loadu_pd(from.add(12)));
                    let (e, f) = (_mm256_unpacklo_pd(a, b), _mm256_unpackhi_pd(a, b));
                    let (g, h) = (_mm256_unpacklo_pd(c, d), _mm256_unpackhi_pd(c, d));
                    let all = [
                        _mm256_permute2f128_pd::<0x20>(e, g),
                        _mm256_permute2f128_pd::<0x20>(f, h),
                        _mm256_permute2f128_pd::<0x31>(e, g),
                        _mm256_permute2f128_pd::<0x31>(f, h),
                    ];
                    for (t, x) in all.into_iter().enumerate() {
                        _mm256_storeu_pd(to.add(4 * q + t).cast::<f64>().add(4 * half), x);
                    }
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn sums(w: &Warp, regs: &[u32], to: *mut [f64; 8]) {
        for (n, pair) in regs.as_chunks::<2>().0.iter().enumerate() {
            let [even, odd] = pair.map(|reg| lanes::<u64>(w, reg).cast::<f64>());
            for g in 0..8 {
                // SAFETY: by the trait's contract.
                unsafe {
                    let to = to.add(g + 8 * (n & 1)).cast::<f64>();
                    let x = _mm256_loadu_pd(even.add(4 * g));
                    let y = _mm256_loadu_pd(odd.add(4 * g));
                    let (low, high) = (_mm256_unpacklo_pd(x, y), _mm256_unpackhi_pd(x, y));
                    _mm256_storeu_pd(to, _mm256_permute2f128_pd::<0x20>(low, high));
                    _mm256_storeu_pd(to.add(4), _mm256_permute2f128_pd::<0x31>(low, high));
                }
            }
        }
    }

    #[inline(always)]
    unsafe fn put(w: &mut Warp, regs: &[u32], from: *const [f64; 8]) {
        for (n, &[even, odd]) in regs.as_chunks::<2>().0.iter().enumerate() {
            let (mut evens, mut odds) = ([0u64; LANES], [0u64; LANES]);
            for g in 0..8 {
                // SAFETY: by the trait's contract.
                unsafe {
                    let from = from.add(g + 8 * (n & 1)).cast::<f64>();
                    let (x, y) = (_mm256_loadu_pd(from), _mm256_loadu_pd(from.add(4)));
                    let low = _mm256_permute2f128_pd::<0x20>(x, y);
                    let high = _mm256_permute2f128_pd::<0x31>(x, y);
                    let (e, o) = (_mm256_unpacklo_pd(low, high), _mm256_unpackhi_pd(low, high));
                    _mm256_storeu_pd(evens.as_mut_ptr().add(4 * g).cast(), e);
                    _mm256_storeu_pd(odds.as_mut_ptr().add(4 * g).cast(), o);
                }
            }
            *u64::dst(w, even) = evens;
            *u64::dst(w, odd) = odds;
        }
    }
}
