//! Finds chains of loads and multiply-adds in a function body, so that one call runs a whole chain
//! ([`crate::exec::ops::chain`]).
//!
//! The instructions of a chain stay in place. The function of the first instruction is replaced by
//! a function that runs the whole chain if possible, and otherwise only the first instruction.

use super::func::Func;
use crate::exec::inst::op;
use crate::exec::ops::chain::{Chain, MOST, TERM};
use crate::exec::ops::element::layout;
use crate::ptx::ast::{Instruction, Operand, Statement};

/// A term of a chain: two loads, and the multiply-add of the loaded values.
#[derive(Clone, Copy)]
struct Term<'m> {
    /// Operand to which the product is added.
    addend: &'m Operand,
    /// Register that gets the sum.
    sum: &'m str,
    /// Whether the multiply-add has `.ftz`.
    ftz: bool,
    /// Whether each load is from global memory.
    global: [bool; 2],
}

/// If `i` loads a single from shared or global memory: the register of the load, and whether the
/// memory is global.
fn load(i: &Instruction) -> Option<(&str, bool)> {
    let global = match i.opcode.as_str() {
        "ld.shared.f32" | "ld.shared.b32" | "ld.shared.u32" => false,
        "ld.global.f32" | "ld.global.b32" | "ld.global.u32" | "ld.global.nc.f32"
        | "ld.global.nc.b32" => true,
        _ => return None,
    };
    match (&i.operands[..], &i.guard) {
        ([Operand::Name(to), Operand::Memory { .. }], None) => Some((to, global)),
        _ => None,
    }
}

impl<'m> Func<'_, 'm> {
    /// Finds the chains of the body and replaces the function of their first instructions. `at` has
    /// the index of each statement's first instruction, and the end.
    pub(super) fn fuse(&mut self, at: &[usize]) {
        let mut next = 0;
        while next < self.ast.body.len() {
            let (terms, ftz) = self.chain(next, at);
            if terms.is_empty() {
                next += 1;
                continue;
            }
            let first = at[next];
            for (k, term) in terms.iter().enumerate() {
                for (load, global) in term.global.into_iter().enumerate() {
                    if global {
                        self.m.code[first + k * TERM + load].imm |= layout::GLOBAL;
                    }
                }
            }
            let inst = &mut self.m.code[first];
            inst.run = if ftz {
                op::<Chain<true>>()
            } else {
                op::<Chain<false>>()
            };
            inst.imm |= (terms.len() as u64) << layout::CHAIN_SHIFT;
            next += terms.len() * TERM;
        }
    }

    /// The terms of the chain that starts at a statement.
    fn chain(&self, first: usize, at: &[usize]) -> (Vec<Term<'m>>, bool) {
        let mut terms: Vec<Term<'m>> = Vec::new();
        while terms.len() < MOST
            && let Some(term) = self.term(first + terms.len() * TERM, at)
        {
            let goes_on = match terms.last() {
                None => true,
                Some(last) => {
                    let reads = matches!(term.addend, Operand::Name(n) if n == last.sum);
                    reads && term.ftz == last.ftz && self.economy.passed_on(last.sum)
                }
            };
            if !goes_on {
                break;
            }
            terms.push(term);
        }
        let ftz = terms.first().is_some_and(|t| t.ftz);
        (terms, ftz)
    }

    /// The term that starts at a statement.
    fn term(&self, first: usize, at: &[usize]) -> Option<Term<'m>> {
        let ast = self.ast;
        let statements = ast.body.get(first..first + TERM)?;
        let [
            Statement::Inst(one),
            Statement::Inst(two),
            Statement::Inst(fma),
        ] = statements
        else {
            return None;
        };
        let alone = |k: usize| at[first + k + 1] == at[first + k] + 1;
        let ((x, global_x), (y, global_y)) = (load(one)?, load(two)?);
        let ftz = match fma.opcode.as_str() {
            "fma.rn.f32" => false,
            "fma.rn.ftz.f32" => true,
            _ => return None,
        };
        let [
            Operand::Name(sum),
            Operand::Name(a),
            Operand::Name(b),
            addend,
        ] = &fma.operands[..]
        else {
            return None;
        };
        let factors = (a == x && b == y) || (a == y && b == x);
        let known = factors && x != y && [x, y].iter().all(|n| self.economy.passed_on(n));
        let fits = known && fma.guard.is_none() && (0..TERM).all(alone);
        fits.then_some(Term {
            addend,
            sum,
            ftz,
            global: [global_x, global_y],
        })
    }
}
