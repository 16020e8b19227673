//! `atom` and `red`: one read-modify-write per lane, in lane order, with atomics of the host.

use std::marker::PhantomData;
use std::sync::atomic::{AtomicU16, AtomicU32, AtomicU64, Ordering};

use super::element::space;
use super::family::{F2, each_lane};
use super::float::{canon, ftz};
use super::half::{Add, Brain, Half, Lane, Small, Two};
use super::memory::{addresses, resolve};
use crate::exec::col::Raw;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, NONE, Op};
use crate::exec::warp::Warp;

/// A type of word that atomic instructions access.
pub(crate) trait Word: Copy {
    /// Element of the register.
    type R: Raw;
    /// Bytes.
    const SIZE: u64;
    /// Converts from a register.
    fn of(r: Self::R) -> Self;
    /// Converts to a register.
    fn raw(self) -> Self::R;
    /// Replaces the word by `f` of the old value, atomically. Returns the old value.
    ///
    /// # Safety
    /// `p` must be valid and aligned.
    unsafe fn update(p: *mut u8, f: impl Fn(Self) -> Self) -> Self;
}

macro_rules! words {
    ($($t:ty, $r:ty, $a:ident;)*) => {$(
        impl Word for $t {
            type R = $r;
            const SIZE: u64 = std::mem::size_of::<$t>() as u64;
            #[inline(always)]
            fn of(r: $r) -> $t { r as $t }
            #[inline(always)]
            fn raw(self) -> $r { self as $r }
            #[inline(always)]
            unsafe fn update(p: *mut u8, f: impl Fn($t) -> $t) -> $t {
                // SAFETY: valid and aligned, by the caller's contract.
                let cell = unsafe { $a::from_ptr(p.cast()) };
                let mut old = cell.load(Ordering::Relaxed);
                loop {
                    match cell.compare_exchange_weak(old, f(old), Ordering::SeqCst, Ordering::Relaxed) {
                        Ok(v) => return v,
                        Err(v) => old = v,
                    }
                }
            }
        }
    )*};
}
words! { u16, u32, AtomicU16; u32, u32, AtomicU32; u64, u64, AtomicU64; }

/// Computes the new value of a word from the old value and the operands.
pub(crate) trait Rmw {
    /// The word.
    type T: Word;
    /// The function.
    fn f(old: Self::T, b: Self::T, c: Self::T) -> Self::T;
    /// The function for global memory, if it differs from `f`.
    #[inline(always)]
    fn global(old: Self::T, b: Self::T, c: Self::T) -> Self::T {
        Self::f(old, b, c)
    }
}

/// `atom.add.f32`. By the PTX manual, subnormals are flushed in global memory and kept in shared
/// memory.
pub(crate) struct AddF32;
impl Rmw for AddF32 {
    type T = u32;
    #[inline(always)]
    fn f(o: u32, b: u32, _: u32) -> u32 {
        canon(f32::from_bits(o) + f32::from_bits(b)).to_bits()
    }
    #[inline(always)]
    fn global(o: u32, b: u32, c: u32) -> u32 {
        AddFtzF32::f(o, b, c)
    }
}

macro_rules! rmw {
    ($($n:ident $t:ty = |$o:ident, $b:ident, $c:ident| $e:expr;)*) => {$(
        /// Read-modify-write.
        pub(crate) struct $n;
        impl Rmw for $n {
            type T = $t;
            #[inline(always)]
            fn f($o: $t, $b: $t, $c: $t) -> $t { let _ = ($o, $c); $e }
        }
    )*};
}

fn sum16<T: Small>(a: u16, b: u16) -> u16 {
    <Add<T, false> as Lane>::f(a, b, 0, 0)
}

fn sum16x2<T: Small>(a: u32, b: u32) -> u32 {
    <Two<Add<T, false>> as F2>::f(a, b, 0)
}

rmw! {
    Add32 u32 = |o, b, c| o.wrapping_add(b);
    Add64 u64 = |o, b, c| o.wrapping_add(b);
    AddFtzF32 u32 = |o, b, c| ftz(canon(ftz(f32::from_bits(o)) + ftz(f32::from_bits(b)))).to_bits();
    AddHalf u16 = |o, b, c| sum16::<Half>(o, b);
    AddBrain u16 = |o, b, c| sum16::<Brain>(o, b);
    AddHalves u32 = |o, b, c| sum16x2::<Half>(o, b);
    AddBrains u32 = |o, b, c| sum16x2::<Brain>(o, b);
    AddF64 u64 = |o, b, c| (f64::from_bits(o) + f64::from_bits(b)).to_bits();
    MinU32 u32 = |o, b, c| o.min(b);
    MinS32 u32 = |o, b, c| (o as i32).min(b as i32) as u32;
    MinU64 u64 = |o, b, c| o.min(b);
    MinS64 u64 = |o, b, c| (o as i64).min(b as i64) as u64;
    MaxU32 u32 = |o, b, c| o.max(b);
    MaxS32 u32 = |o, b, c| (o as i32).max(b as i32) as u32;
    MaxU64 u64 = |o, b, c| o.max(b);
    MaxS64 u64 = |o, b, c| (o as i64).max(b as i64) as u64;
    And32 u32 = |o, b, c| o & b;
    And64 u64 = |o, b, c| o & b;
    Or32 u32 = |o, b, c| o | b;
    Or64 u64 = |o, b, c| o | b;
    Xor32 u32 = |o, b, c| o ^ b;
    Xor64 u64 = |o, b, c| o ^ b;
    Exch32 u32 = |o, b, c| b;
    Exch64 u64 = |o, b, c| b;
    Inc32 u32 = |o, b, c| if o >= b { 0 } else { o + 1 };
    Dec32 u32 = |o, b, c| if o == 0 || o > b { b } else { o - 1 };
    Cas16 u16 = |o, b, c| if o == b { c } else { o };
    Cas32 u32 = |o, b, c| if o == b { c } else { o };
    Cas64 u64 = |o, b, c| if o == b { c } else { o };
}

/// `atom` (result in `d`) and `red` (`d` is [`NONE`]): address `e`, operands `b` and `c`.
pub(crate) struct Atom<F, const SPACE: u8>(PhantomData<F>);
impl<F: Rmw, const SPACE: u8> Op for Atom<F, SPACE> {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let mut ad = addresses(w, i, mask);
        if !resolve::<SPACE>(w, env, &mut ad, F::T::SIZE, true) {
            return Flow::Fault;
        }
        w.busy = true;
        each_lane(mask, |l| {
            let b = F::T::of(<F::T as Word>::R::src(w, i.b)[l]);
            let c = if i.c == NONE {
                b
            } else {
                F::T::of(<F::T as Word>::R::src(w, i.c)[l])
            };
            let global = match SPACE {
                space::GLOBAL => true,
                space::GENERIC => ad[l].wrapping_sub(env.arena.base) < env.arena.len,
                _ => false,
            };
            let new = |o| {
                if global {
                    F::global(o, b, c)
                } else {
                    F::f(o, b, c)
                }
            };
            // SAFETY: `resolve` checked every active lane's address, size and alignment.
            let old = unsafe { F::T::update(ad[l] as *mut u8, new) };
            if i.d != NONE {
                <F::T as Word>::R::dst(w, i.d)[l] = old.raw();
            }
        });
        Flow::Next
    }
}
