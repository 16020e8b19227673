//! Extended-precision arithmetic. The carry flag has one bit per lane.
//!
//! Additions and subtractions use the flag as a GPU's adder does, which takes `a + !b + 1` for a
//! difference. A subtraction without borrow sets the flag, and `subc` subtracts one more if the
//! flag is 0. NVIDIA's manual defines `subc` as `a - (b + CC.CF)`, with the opposite meaning of the
//! flag. The difference matters only to programs that mix both families, as nvcc's division of 128
//! bits, where `addc` reads the flag that `subc.cc` set.

use crate::exec::col::{Raw, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// Flags in the immediate.
pub(crate) mod flag {
    /// Adds the carry flag, or, in a subtraction, subtracts one more if the flag is 0.
    pub(crate) const USE: u64 = 1;
    /// Writes the carry flag.
    pub(crate) const SET: u64 = 2;
    /// Subtracts instead of adding.
    pub(crate) const SUB: u64 = 4;
    /// Uses the high half of the product instead of the low half.
    pub(crate) const HI: u64 = 8;
    /// The product is signed.
    pub(crate) const SIGNED: u64 = 16;
}

#[inline(always)]
fn add_sub<R: Raw>(x: u64, y: u64, flags: u64, carry: bool) -> (u64, bool) {
    let mask = if R::BYTES == 4 {
        u128::from(u32::MAX)
    } else {
        u128::from(u64::MAX)
    };
    let subtracts = flags & flag::SUB != 0;
    let c = if flags & flag::USE != 0 {
        carry
    } else {
        subtracts
    };
    let y = if subtracts {
        !u128::from(y) & mask
    } else {
        u128::from(y)
    };
    let wide = u128::from(x) + y + u128::from(c);
    ((wide & mask) as u64, wide & !mask != 0)
}

fn finish<R: Raw>(
    w: &mut Warp,
    i: &Inst,
    mask: u32,
    f: impl Fn(&Warp, usize) -> (u64, u64),
) -> Flow {
    let mut t = [R::default(); LANES];
    let mut out = 0u32;
    for (l, t) in t.iter_mut().enumerate() {
        let (x, y) = f(w, l);
        let (v, c) = add_sub::<R>(x, y, i.imm, w.carry >> l & 1 != 0);
        *t = R::from_u64(v);
        out |= u32::from(c) << l;
    }
    if i.imm & flag::SET != 0 {
        w.carry = (w.carry & !mask) | (out & mask);
    }
    put(w, i.d, &t, mask);
    Flow::Next
}

/// `add.cc`, `addc`, `sub.cc`, `subc`.
pub(crate) struct AddSub<R>(std::marker::PhantomData<R>);
impl<R: Raw> Op for AddSub<R> {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        finish::<R>(w, i, mask, |w, l| {
            (R::src(w, i.a)[l].to_u64(), R::src(w, i.b)[l].to_u64())
        })
    }
}

/// `mad.cc`, `madc`.
pub(crate) struct Mad<R>(std::marker::PhantomData<R>);
impl<R: Raw> Op for Mad<R> {
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        finish::<R>(w, i, mask, |w, l| {
            let (a, b) = (R::src(w, i.a)[l].to_u64(), R::src(w, i.b)[l].to_u64());
            let bits = R::BYTES as u32 * 8;
            let p = if i.imm & flag::SIGNED != 0 {
                let sx = |v: u64| i128::from((v << (64 - bits)) as i64 >> (64 - bits));
                (sx(a) * sx(b)) as u128
            } else {
                u128::from(a) * u128::from(b)
            };
            let half = if i.imm & flag::HI != 0 { p >> bits } else { p };
            (
                R::from_u64(half as u64).to_u64(),
                R::src(w, i.c)[l].to_u64(),
            )
        })
    }
}
