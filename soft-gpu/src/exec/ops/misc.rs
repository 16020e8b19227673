//! Operations outside the families: `bfi` with its five operands, `testp`, clocks.

use std::sync::atomic::Ordering;

use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::special::Clock;
use crate::exec::warp::Warp;

/// `bfi`: inserts the low `e` bits of `a` into `b` at position `c`.
pub(crate) struct Bfi<R>(std::marker::PhantomData<R>);
impl<R: Raw> Op for Bfi<R> {
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let mut t = [R::default(); LANES];
        for (l, t) in t.iter_mut().enumerate() {
            let (a, b) = (R::src(w, i.a)[l].to_u64(), R::src(w, i.b)[l].to_u64());
            let (pos, len) = (u32::src(w, i.c)[l], u32::src(w, i.e)[l]);
            *t = R::from_u64(super::int::bfi(a, b, pos, len, R::BYTES as u32 * 8));
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}

/// Classes of `testp` in the immediate.
pub(crate) mod class {
    pub(crate) const FINITE: u64 = 0;
    pub(crate) const INFINITE: u64 = 1;
    pub(crate) const NUMBER: u64 = 2;
    pub(crate) const NAN: u64 = 3;
    pub(crate) const NORMAL: u64 = 4;
    pub(crate) const SUBNORMAL: u64 = 5;
}

/// `testp`: sets predicate `d` if value `a` is in the class.
pub(crate) struct Testp<R>(std::marker::PhantomData<R>);
impl<R: Raw> Op for Testp<R> {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let mut bits = 0u32;
        for (l, &a) in R::src(w, i.a).iter().enumerate() {
            let kind = if R::BYTES == 4 {
                f32::from_bits(a.to_u64() as u32).classify()
            } else {
                f64::from_bits(a.to_u64()).classify()
            };
            use std::num::FpCategory as C;
            let yes = match i.imm {
                class::FINITE => !matches!(kind, C::Nan | C::Infinite),
                class::INFINITE => kind == C::Infinite,
                class::NUMBER => kind != C::Nan,
                class::NAN => kind == C::Nan,
                // PTX counts zero as a normal number.
                class::NORMAL => matches!(kind, C::Normal | C::Zero),
                _ => kind == C::Subnormal,
            };
            bits |= u32::from(yes) << l;
        }
        w.put_pred(i.d, bits, mask);
        Flow::Next
    }
}

/// Clock ticks per ns, as a fraction. The device reports a clock of 1.5 GHz.
const TICKS: (u64, u64) = (3, 2);

/// Reads the special register that `imm` selects, which changes while the kernel runs.
pub(crate) struct ReadClock;
impl Op for ReadClock {
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        env.clocked.store(true, Ordering::Relaxed);
        let ns = env.device.now_ns();
        let ticks = ns.wrapping_mul(TICKS.0) / TICKS.1;
        let v = match i.imm {
            x if x == Clock::Lo as u64 || x == Clock::Full as u64 => ticks,
            x if x == Clock::Hi as u64 => ticks >> 32,
            x if x == Clock::NanosHi as u64 => ns >> 32,
            _ => ns,
        };
        if i.e == 64 {
            put(w, i.d, &[v; LANES], mask);
        } else {
            put(w, i.d, &[v as u32; LANES], mask);
        }
        Flow::Next
    }
}
