//! Chains of multiply-adds of loaded values, `ld x; ld y; fma s, x, y, s; ld x; …`: the inner loop
//! of every matrix product and convolution. One operation runs the first terms of a chain, as long
//! as whole warps make regular accesses ([`super::regular`]). It reads the factors directly from
//! memory and keeps the sum in CPU registers. The rest of the chain runs instruction by
//! instruction.

use super::element::{B32In32, layout, space};
use super::float::{canon, ftz};
use super::memory::Ld;
use super::regular::{Halves, halves};
use crate::exec::col::Raw;
use crate::exec::env::Env;
use crate::exec::inst::{Flow, Inst, LANES, Op};
use crate::exec::warp::Warp;

/// Most multiply-adds of one chain.
pub(crate) const MOST: usize = 16;
/// Instructions per term: two loads and a multiply-add.
pub(crate) const TERM: usize = 3;

const HALF: usize = LANES / 2;

/// A factor: for each half of the warp, the address for its first lane, and whether each lane has
/// its own element.
#[derive(Clone, Copy)]
struct Factor {
    at: [*const f32; 2],
    each: bool,
}

const NOTHING: Factor = Factor {
    at: [std::ptr::null(); 2],
    each: false,
};

impl Factor {
    fn of(h: &Halves) -> Factor {
        Factor {
            at: h.at.map(|p| p.cast_const().cast()),
            each: h.step != 0,
        }
    }

    /// The elements of one half of the lanes.
    ///
    /// # Safety
    /// The memory of the access from which this factor was made must still be accessible.
    #[inline(always)]
    unsafe fn lanes<const FTZ: bool>(&self, half: usize) -> [f32; HALF] {
        let at = self.at[half];
        // SAFETY: `halves` checked the memory and the alignment of 16 elements (or of one) from
        // this address.
        let v = unsafe {
            if self.each {
                at.cast::<[f32; HALF]>().read()
            } else {
                [at.read(); HALF]
            }
        };
        if FTZ { v.map(ftz) } else { v }
    }
}

/// The factor that a load reads, if its access is regular.
#[inline(always)]
fn factor(w: &mut Warp, env: &Env<'_>, i: &Inst) -> Option<Factor> {
    let found = if i.imm & layout::GLOBAL != 0 {
        halves::<{ space::GLOBAL }>(w, env, i, 4)
    } else {
        halves::<{ space::SHARED }>(w, env, i, 4)
    };
    found.map(|h| Factor::of(&h))
}

/// The function of the first load of a chain. The immediate has the number of terms
/// ([`layout::CHAIN_SHIFT`]). Each term is two loads of `f32` and an `fma.rn.f32` (with `.ftz`, if
/// `FTZ`) that adds their product to the sum of the previous term. No other instruction reads the
/// loaded values or the intermediate sums.
pub(crate) struct Chain<const FTZ: bool>;
impl<const FTZ: bool> Op for Chain<FTZ> {
    #[inline(always)]
    fn run(w: &mut Warp, env: &Env<'_>, i: &Inst, mask: u32) -> Flow {
        let first = w.pc as usize;
        let terms = (i.imm >> layout::CHAIN_SHIFT) as usize % (MOST + 1);
        let mut factors = [[NOTHING; 2]; MOST];
        let mut n = 0;
        if mask == u32::MAX
            && let Some(code) = env.code.get(first..first + terms * TERM)
        {
            for (term, pair) in code.as_chunks::<TERM>().0.iter().zip(&mut factors) {
                let (Some(x), Some(y)) = (factor(w, env, &term[0]), factor(w, env, &term[1]))
                else {
                    break;
                };
                *pair = [x, y];
                n += 1;
            }
            if n > 0 {
                let (start, end) = (code[TERM - 1].c, code[n * TERM - 1].d);
                // SAFETY: the accesses of the first `n` terms were just checked.
                unsafe { sum::<FTZ>(w, &factors[..n], start, end) };
                w.pc = (first + n * TERM) as u32;
                w.count += (n * TERM - 1) as u64;
                return Flow::Jump;
            }
        }
        if i.imm & layout::GLOBAL != 0 {
            Ld::<B32In32, { space::GLOBAL }>::run(w, env, i, mask)
        } else {
            Ld::<B32In32, { space::SHARED }>::run(w, env, i, mask)
        }
    }
}

/// Adds the products to column `start`, and writes the sum to column `end`.
///
/// # Safety
/// The memory of the factors must be accessible.
#[inline(always)]
unsafe fn sum<const FTZ: bool>(w: &mut Warp, factors: &[[Factor; 2]], start: u32, end: u32) {
    for half in 0..2 {
        let column = u32::src(w, start).as_chunks::<HALF>().0[half];
        let mut sum = column.map(f32::from_bits);
        for [x, y] in factors {
            // SAFETY: the caller's contract.
            let (x, y) = unsafe { (x.lanes::<FTZ>(half), y.lanes::<FTZ>(half)) };
            for (s, (x, y)) in sum.iter_mut().zip(x.iter().zip(&y)) {
                *s = if FTZ {
                    ftz(x.mul_add(*y, ftz(*s)))
                } else {
                    x.mul_add(*y, *s)
                };
            }
        }
        // A NaN in an intermediate sum stays a NaN, so only the last sum needs the canonical NaN.
        u32::dst(w, end).as_chunks_mut::<HALF>().0[half] = sum.map(|s| canon(s).to_bits());
    }
}
