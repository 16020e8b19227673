//! Generic operations that apply a function of one lane's values to a warp. `Map*` compute all 32
//! lanes and keep the old values of inactive lanes. `Each*` compute active lanes only, for
//! expensive functions.

use std::marker::PhantomData;

use crate::exec::col::{Raw, Val, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, NONE, Op};
use crate::exec::warp::Warp;

/// A function of one value; `m` is the instruction's immediate.
pub(crate) trait F1 {
    /// Source.
    type A: Val;
    /// Result.
    type D: Val;
    /// The function.
    fn f(a: Self::A, m: u64) -> Self::D;
}

/// A function of two values.
pub(crate) trait F2 {
    /// First source.
    type A: Val;
    /// Second source.
    type B: Val;
    /// Result.
    type D: Val;
    /// The function.
    fn f(a: Self::A, b: Self::B, m: u64) -> Self::D;
}

/// A function of three values.
pub(crate) trait F3 {
    /// First source.
    type A: Val;
    /// Second source.
    type B: Val;
    /// Third source.
    type C: Val;
    /// Result.
    type D: Val;
    /// The function.
    fn f(a: Self::A, b: Self::B, c: Self::C, m: u64) -> Self::D;
}

/// A comparison.
pub(crate) trait Cmp {
    /// Both sources.
    type A: Val;
    /// The comparison.
    fn f(a: Self::A, b: Self::A) -> bool;
}

/// Declares functions of one value: `Name: (a: A) -> D = expression;`.
macro_rules! f1 {
    ($($(#[$m:meta])* $n:ident: ($a:ident: $ta:ty) -> $td:ty = $e:expr;)*) => {$(
        $(#[$m])*
        pub(crate) struct $n;
        impl $crate::exec::ops::family::F1 for $n {
            type A = $ta;
            type D = $td;
            #[inline(always)]
            fn f($a: $ta, _m: u64) -> $td { $e }
        }
    )*};
}

/// Declares functions of two values.
macro_rules! f2 {
    ($($(#[$m:meta])* $n:ident: ($a:ident: $ta:ty, $b:ident: $tb:ty) -> $td:ty = $e:expr;)*) => {$(
        $(#[$m])*
        pub(crate) struct $n;
        impl $crate::exec::ops::family::F2 for $n {
            type A = $ta;
            type B = $tb;
            type D = $td;
            #[inline(always)]
            fn f($a: $ta, $b: $tb, _m: u64) -> $td { $e }
        }
    )*};
}

/// Declares functions of three values.
macro_rules! f3 {
    ($($(#[$m:meta])* $n:ident: ($a:ident: $ta:ty, $b:ident: $tb:ty, $c:ident: $tc:ty) -> $td:ty = $e:expr;)*) => {$(
        $(#[$m])*
        pub(crate) struct $n;
        impl $crate::exec::ops::family::F3 for $n {
            type A = $ta;
            type B = $tb;
            type C = $tc;
            type D = $td;
            #[inline(always)]
            fn f($a: $ta, $b: $tb, $c: $tc, _m: u64) -> $td { $e }
        }
    )*};
}
pub(crate) use {f1, f2, f3};

type RawOf<T> = <T as Val>::R;

/// Number of lanes that are computed before they are written: one or two vectors. A buffer for a
/// whole column would move every value twice.
const STEP: usize = 8;

/// Writes `f(lane)` to the lanes in `mask` of a result.
///
/// # Safety
/// `f` may read columns of the warp ([`lane`]), even the column of the result, but only the lane
/// that it is called for. That lane is written after the call.
#[inline(always)]
unsafe fn fill<R: Raw>(w: &Warp, d: u32, mask: u32, f: impl Fn(usize) -> R) {
    let column = R::column(w, d).cast::<[R; STEP]>();
    for k in 0..LANES / STEP {
        let mut t = [R::default(); STEP];
        for (l, t) in t.iter_mut().enumerate() {
            *t = f(k * STEP + l);
        }
        // SAFETY: a destination is a column of the warp, and no reference to it exists.
        unsafe {
            let part = column.add(k);
            if mask != u32::MAX {
                let old = part.read();
                let bits = mask >> (k * STEP);
                for (l, t) in t.iter_mut().enumerate() {
                    *t = if bits >> l & 1 != 0 { *t } else { old[l] };
                }
            }
            part.write(t);
        }
    }
}

/// A lane of a source column.
///
/// # Safety
/// `column` must be a column of the warp without a live mutable reference.
#[inline(always)]
unsafe fn lane<T: Val>(column: *const [RawOf<T>; LANES], l: usize) -> T {
    // SAFETY: the caller's contract; `l` is a lane.
    T::of(unsafe { column.cast::<RawOf<T>>().add(l).read() })
}

/// `d = f(a)` on all lanes.
pub(crate) struct Map1<F>(PhantomData<F>);
impl<F: F1> Op for Map1<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = RawOf::<F::A>::column(w, i.a);
        // SAFETY: `a` is a column of the warp.
        unsafe { fill(w, i.d, mask, |l| F::f(lane(a, l), i.imm).raw()) };
        Flow::Next
    }
}

/// `d = f(a, b)` on all lanes.
pub(crate) struct Map2<F>(PhantomData<F>);
impl<F: F2> Op for Map2<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = RawOf::<F::A>::column(w, i.a);
        let b = RawOf::<F::B>::column(w, i.b);
        // SAFETY: `a` and `b` are columns of the warp.
        unsafe { fill(w, i.d, mask, |l| F::f(lane(a, l), lane(b, l), i.imm).raw()) };
        Flow::Next
    }
}

/// `d = f(a, b, c)` on all lanes.
pub(crate) struct Map3<F>(PhantomData<F>);
impl<F: F3> Op for Map3<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = RawOf::<F::A>::column(w, i.a);
        let b = RawOf::<F::B>::column(w, i.b);
        let c = RawOf::<F::C>::column(w, i.c);
        // SAFETY: `a`, `b` and `c` are columns of the warp.
        unsafe {
            fill(w, i.d, mask, |l| {
                F::f(lane(a, l), lane(b, l), lane(c, l), i.imm).raw()
            });
        }
        Flow::Next
    }
}

/// Calls `f` for each lane of a mask.
#[inline(always)]
pub(crate) fn each_lane(mask: u32, mut f: impl FnMut(usize)) {
    let mut m = mask;
    while m != 0 {
        f(m.trailing_zeros() as usize);
        m &= m - 1;
    }
}

/// `d = f(a)` on active lanes.
pub(crate) struct Each1<F>(PhantomData<F>);
impl<F: F1> Op for Each1<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        each_lane(mask, |l| {
            let v = F::f(F::A::of(RawOf::<F::A>::src(w, i.a)[l]), i.imm);
            RawOf::<F::D>::dst(w, i.d)[l] = v.raw();
        });
        Flow::Next
    }
}

/// `d = f(a, b)` on active lanes.
pub(crate) struct Each2<F>(PhantomData<F>);
impl<F: F2> Op for Each2<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        each_lane(mask, |l| {
            let a = F::A::of(RawOf::<F::A>::src(w, i.a)[l]);
            let b = F::B::of(RawOf::<F::B>::src(w, i.b)[l]);
            RawOf::<F::D>::dst(w, i.d)[l] = F::f(a, b, i.imm).raw();
        });
        Flow::Next
    }
}

/// `d = f(a, b, c)` on active lanes.
pub(crate) struct Each3<F>(PhantomData<F>);
impl<F: F3> Op for Each3<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        each_lane(mask, |l| {
            let a = F::A::of(RawOf::<F::A>::src(w, i.a)[l]);
            let b = F::B::of(RawOf::<F::B>::src(w, i.b)[l]);
            let c = F::C::of(RawOf::<F::C>::src(w, i.c)[l]);
            RawOf::<F::D>::dst(w, i.d)[l] = F::f(a, b, c, i.imm).raw();
        });
        Flow::Next
    }
}

/// The way in which `setp` and `set` combine the comparison with predicate `c`, in the low bits of
/// `imm`.
pub(crate) mod combine {
    /// No predicate.
    pub(crate) const NONE: u64 = 0;
    /// `.and`.
    pub(crate) const AND: u64 = 1;
    /// `.or`.
    pub(crate) const OR: u64 = 2;
    /// `.xor`.
    pub(crate) const XOR: u64 = 3;
}

/// Returns one bit per lane. Each word is all ones or all zeros.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn pick_bits(words: &[u32; LANES]) -> u32 {
    use std::arch::x86_64::{_mm_loadu_ps, _mm_movemask_ps};
    let mut bits = 0;
    for (k, four) in words.chunks_exact(4).enumerate() {
        // SAFETY: SSE is part of x86-64, and `four` is 16 readable bytes.
        let m = unsafe { _mm_movemask_ps(_mm_loadu_ps(four.as_ptr().cast())) };
        bits |= (m as u32) << (4 * k);
    }
    bits
}

/// Returns one bit per lane. Each word is all ones or all zeros.
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn pick_bits(words: &[u32; LANES]) -> u32 {
    words
        .iter()
        .enumerate()
        .fold(0, |bits, (l, w)| bits | (w & 1) << l)
}

/// Returns one bit per lane. The results are stored as words first: a loop that shifts each lane's
/// bit into place would read the lanes with another alignment than they were written, and stall.
#[inline(always)]
pub(crate) fn lane_bits(f: impl Fn(usize) -> bool) -> u32 {
    let mut words = [0u32; LANES];
    for (l, w) in words.iter_mut().enumerate() {
        *w = if f(l) { u32::MAX } else { 0 };
    }
    pick_bits(&words)
}

#[inline(always)]
fn compare<F: Cmp>(w: &Warp, i: &Inst) -> u32 {
    let a = RawOf::<F::A>::src(w, i.a);
    let b = RawOf::<F::A>::src(w, i.b);
    lane_bits(|l| F::f(F::A::of(a[l]), F::A::of(b[l])))
}

#[inline(always)]
fn combined(w: &Warp, i: &Inst, bits: u32) -> u32 {
    match i.imm & 3 {
        combine::AND => bits & w.pred(i.c),
        combine::OR => bits | w.pred(i.c),
        combine::XOR => bits ^ w.pred(i.c),
        _ => bits,
    }
}

/// `setp`: sets predicate `d` to the result of a comparison, and predicate `e` to the opposite.
pub(crate) struct Setp<F>(PhantomData<F>);
impl<F: Cmp> Op for Setp<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let bits = compare::<F>(w, i);
        let p = combined(w, i, bits);
        if i.e != NONE {
            let q = combined(w, i, !bits);
            w.put_pred(i.e, q, mask);
        }
        if i.d != NONE {
            w.put_pred(i.d, p, mask);
        }
        Flow::Next
    }
}

/// `set`: all ones or 1.0f if the comparison holds, otherwise 0. The high half of `imm` has these
/// bits.
pub(crate) struct Set<F>(PhantomData<F>);
impl<F: Cmp> Op for Set<F> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let bits = compare::<F>(w, i);
        let p = combined(w, i, bits);
        let yes = (i.imm >> 32) as u32;
        let mut t = [0u32; LANES];
        for (l, t) in t.iter_mut().enumerate() {
            *t = if (p >> l) & 1 != 0 { yes } else { 0 };
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}

/// `selp`: `c ? a : b`.
pub(crate) struct Selp<R>(PhantomData<R>);
impl<R: Raw> Op for Selp<R> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let p = w.pred(i.c);
        let a = R::src(w, i.a);
        let b = R::src(w, i.b);
        let mut t = [R::default(); LANES];
        for l in 0..LANES {
            t[l] = if (p >> l) & 1 != 0 { a[l] } else { b[l] };
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}

/// `mov` of a whole column.
pub(crate) struct Mov<R>(PhantomData<R>);
impl<R: Raw> Op for Mov<R> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a: *const [R; LANES] = R::src(w, i.a);
        let d = R::dst(w, i.d);
        // SAFETY: both are whole columns, equal or disjoint, which `copy` allows. The code uses
        // pointers, because the compiler moves an array by value word by word.
        unsafe {
            if mask == u32::MAX {
                std::ptr::copy(a, d, 1);
            } else {
                for (l, d) in d.iter_mut().enumerate() {
                    *d = if (mask >> l) & 1 != 0 { (*a)[l] } else { *d };
                }
            }
        }
        Flow::Next
    }
}

/// Logic on predicates. `imm` is a truth table over (a, b, c), as for `lop3`.
pub(crate) struct PredLogic;
impl Op for PredLogic {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let a = w.pred(i.a);
        let b = w.pred(i.b);
        let v = super::int::lut3(a, b, 0, i.imm);
        w.put_pred(i.d, v, mask);
        Flow::Next
    }
}
