//! Comparisons of registers that hold two 16-bit values.

use std::marker::PhantomData;

use super::family::{Cmp, combine, lane_bits};
use crate::exec::col::{Raw, Val, put};
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// Compares the low halves and the high halves, and combines the results with predicate `c`.
/// Returns one bit per lane for the low halves, then for the high halves.
#[inline(always)]
fn compare<F: Cmp>(w: &Warp, i: &Inst) -> [u32; 2]
where
    F::A: Val<R = u32>,
{
    let a = u32::src(w, i.a);
    let b = u32::src(w, i.b);
    [0, 16].map(|k| {
        let bits = lane_bits(|l| F::f(F::A::of(a[l] >> k), F::A::of(b[l] >> k)));
        match i.imm & 3 {
            combine::AND => bits & w.pred(i.c),
            combine::OR => bits | w.pred(i.c),
            combine::XOR => bits ^ w.pred(i.c),
            _ => bits,
        }
    })
}

/// `setp`: sets predicates `d` (low halves) and `e` (high halves).
pub(crate) struct SetpPair<F>(PhantomData<F>);
impl<F: Cmp> Op for SetpPair<F>
where
    F::A: Val<R = u32>,
{
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let [low, high] = compare::<F>(w, i);
        w.put_pred(i.d, low, mask);
        w.put_pred(i.e, high, mask);
        Flow::Next
    }
}

/// `set`: each half of the result has the bits in the high half of `imm` if the comparison of that
/// half holds, otherwise 0.
pub(crate) struct SetPair<F>(PhantomData<F>);
impl<F: Cmp> Op for SetPair<F>
where
    F::A: Val<R = u32>,
{
    #[inline(always)]
    fn run(w: &mut Warp, _: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let [low, high] = compare::<F>(w, i);
        let yes = (i.imm >> 32) as u32;
        let mut t = [0u32; LANES];
        for (l, t) in t.iter_mut().enumerate() {
            *t = ((low >> l & 1) * yes) | (((high >> l & 1) * yes) << 16);
        }
        put(w, i.d, &t, mask);
        Flow::Next
    }
}
