//! Maps operands to columns.

use super::func::{Func, Reg};
use super::{R, Sym, Why, layout};
use crate::exec::env::{FUNC_STRIDE, FUNC_WINDOW};
use crate::exec::inst::{Inst, NEGATED, NONE, OpFn, bank, op_plain};
use crate::exec::ops::family::PredLogic;
use crate::exec::special::{self, Special};
use crate::ptx::ast::{Operand, Type};

/// The way to read an operand: its width, and the conversion of a literal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Want {
    /// Integer or bits in a 32-bit column; also for 8 and 16 bits.
    I32,
    /// Integer or bits in a 64-bit column.
    I64,
    /// Single precision.
    F32,
    /// Double precision.
    F64,
}

impl Want {
    /// The way to read an operand of this type.
    pub(crate) fn of(t: Type) -> R<Want> {
        Ok(match t {
            Type::F32 => Want::F32,
            Type::F64 => Want::F64,
            Type::B64 | Type::U64 | Type::S64 => Want::I64,
            Type::B128 | Type::Pred => return Err(Why::invalid("unexpected operand type")),
            _ => Want::I32,
        })
    }

    fn wide(self) -> bool {
        matches!(self, Want::I64 | Want::F64)
    }
}

impl<'m> Func<'_, 'm> {
    /// The bits of a literal.
    fn literal(op: &Operand, want: Want) -> Option<u64> {
        Some(match (op, want) {
            (Operand::Int(n), Want::I32 | Want::I64) => *n as u64,
            (Operand::Int(n), Want::F32) => u64::from((*n as f32).to_bits()),
            (Operand::Int(n), Want::F64) => (*n as f64).to_bits(),
            (
                Operand::Float {
                    single_bits: Some(b),
                    ..
                },
                Want::I32 | Want::F32,
            ) => u64::from(*b),
            (Operand::Float { value, .. }, Want::F32) => u64::from((*value as f32).to_bits()),
            (
                Operand::Float {
                    double_bits: Some(b),
                    ..
                },
                Want::F64 | Want::I64,
            ) => *b,
            (Operand::Float { value, .. }, Want::F64 | Want::I64) => value.to_bits(),
            (Operand::Float { value, .. }, Want::I32) => u64::from((*value as f32).to_bits()),
            (Operand::Negated(inner), Want::F32) => Self::literal(inner, want)? ^ 1 << 31,
            (Operand::Negated(inner), Want::F64) => Self::literal(inner, want)? ^ 1 << 63,
            (Operand::Negated(inner), _) => Self::literal(inner, want)?.wrapping_neg(),
            _ => return None,
        })
    }

    /// The column of a source operand.
    pub(crate) fn src(&mut self, op: &Operand, want: Want) -> R<u32> {
        if let Some(bits) = Self::literal(op, want) {
            return if want.wide() {
                self.m.const64(bits)
            } else {
                self.m.const32(bits as u32)
            };
        }
        match op {
            Operand::Name(n) if self.is_register(n) => match (self.register(n)?, want.wide()) {
                (Reg::W32(c), false) | (Reg::W64(c), true) => Ok(c),
                _ => Err(Why::invalid(format!("{n} has the wrong width"))),
            },
            Operand::Name(n) if n.starts_with(layout::RESERVED) && !want.wide() => {
                let Some(Sym::Shared(at)) = self.m.lookup(None, layout::RESERVED) else {
                    return Err(Why::unsupported(format!("{n} in this place")));
                };
                let value = layout::reserved(n, at);
                let value = value.ok_or_else(|| Why::invalid(format!("{n} is not declared")))?;
                self.m.const32(value as u32)
            }
            Operand::Name(n) if n.starts_with('%') => match special::find(n) {
                Some(Special::Col32(c)) if !want.wide() => Ok(bank::SPECIAL | c),
                Some(Special::Col64(c)) if want.wide() => Ok(bank::SPECIAL | c),
                Some(_) => Err(Why::unsupported(format!("{n} in this place"))),
                None => Err(Why::invalid(format!("{n} is not declared"))),
            },
            Operand::Name(n) => self.symbol(n, 0, want),
            Operand::Offset(n, add) => self.symbol(n, *add, want),
            _ => Err(Why::invalid("unexpected kind of operand")),
        }
    }

    /// The column with the address of a module symbol in the symbol's own space.
    fn symbol(&mut self, name: &str, add: i64, want: Want) -> R<u32> {
        let sym = self.m.lookup(Some(self.index), name);
        match (sym, want.wide()) {
            (Some(Sym::Global(g)), true) => self.m.address64(g, add),
            (Some(Sym::Shared(o)), true) => self.m.const64(o.wrapping_add(add as u64)),
            (Some(Sym::Shared(o)), false) => self.m.const32(o.wrapping_add(add as u64) as u32),
            (Some(Sym::Dynamic), true) if add == 0 => Ok(bank::SPECIAL | special::DYNAMIC_BASE64),
            (Some(Sym::Dynamic), false) if add == 0 => Ok(bank::SPECIAL | special::DYNAMIC_BASE),
            (Some(Sym::Func(f)), true) if add == 0 => {
                self.m.const64(FUNC_WINDOW + u64::from(f) * FUNC_STRIDE)
            }
            (Some(_), _) => Err(Why::unsupported(format!("{name} in this place"))),
            (None, _) => Err(Why::invalid(format!(
                "{name} is not declared (or is external)"
            ))),
        }
    }

    /// The column of a destination. For `_`, a column that no instruction reads.
    pub(crate) fn dst(&mut self, op: &Operand, wide: bool) -> R<u32> {
        match op {
            Operand::Sink if wide => self.junk64(),
            Operand::Sink => self.junk32(),
            Operand::Name(n) => match (self.result(n)?, wide) {
                (Reg::W32(c), false) | (Reg::W64(c), true) => Ok(c),
                _ => Err(Why::invalid(format!("{n} has the wrong width"))),
            },
            _ => Err(Why::invalid("the destination is not a register")),
        }
    }

    /// The column of a predicate source. A `!` sets [`NEGATED`].
    pub(crate) fn pred(&mut self, op: &Operand) -> R<u32> {
        match op {
            Operand::Name(n) => match self.register(n)? {
                Reg::Pred(c) => Ok(c),
                _ => Err(Why::invalid(format!("{n} is not a predicate"))),
            },
            Operand::Negated(inner) => Ok(self.pred(inner)? ^ NEGATED),
            Operand::Int(value) => self.const_pred(*value != 0),
            _ => Err(Why::invalid("expected a predicate")),
        }
    }

    /// A predicate with this value, which an instruction before the current one sets.
    fn const_pred(&mut self, value: bool) -> R<u32> {
        let d = self.fresh_pred()?;
        self.emit(Inst {
            run: op_plain::<PredLogic>(),
            d,
            a: d,
            b: d,
            // The truth table.
            imm: if value { 0xff } else { 0 },
            ..self.blank()
        });
        Ok(d)
    }

    /// The column of a predicate destination.
    pub(crate) fn dst_pred(&mut self, op: &Operand) -> R<u32> {
        match op {
            Operand::Sink => self.junk_pred(),
            Operand::Name(_) => self.pred(op),
            _ => Err(Why::invalid("expected a predicate destination")),
        }
    }

    /// Appends an instruction whose operands match a signature: letters for the destinations, `=`,
    /// letters for the sources. `i` is an integer of 32 bits or less, `l` a 64-bit integer, `f` a
    /// single, `d` a double, `p` a predicate.
    pub(crate) fn plan(&mut self, run: OpFn, sig: &str, ops: &[Operand], imm: u64) -> R<()> {
        let (to, from) = sig.split_once('=').unwrap_or(("", sig));
        if ops.len() != to.len() + from.len() {
            return Err(Why::invalid(format!(
                "{} operands, expected {}",
                ops.len(),
                to.len() + from.len()
            )));
        }
        let mut inst = Inst {
            run,
            imm,
            ..self.blank()
        };
        if let (Some(k), Some(op)) = (to.chars().next(), ops.first()) {
            inst.d = match k {
                'p' => self.dst_pred(op)?,
                k => self.dst(op, matches!(k, 'l' | 'd'))?,
            };
        }
        for (n, (k, op)) in from.chars().zip(&ops[to.len()..]).enumerate() {
            let v = match k {
                'p' => self.pred(op)?,
                'l' => self.src(op, Want::I64)?,
                'f' => self.src(op, Want::F32)?,
                'd' => self.src(op, Want::F64)?,
                _ => self.src(op, Want::I32)?,
            };
            match n {
                0 => inst.a = v,
                1 => inst.b = v,
                2 => inst.c = v,
                _ => inst.e = v,
            }
        }
        self.emit(inst);
        Ok(())
    }

    /// Width of a register operand: 32 or 64 bits; 0 for anything else.
    pub(crate) fn width(&mut self, op: &Operand) -> u32 {
        match op {
            Operand::Name(n) if self.is_register(n) => self.register_width(n),
            Operand::Name(n) => match special::find(n) {
                Some(Special::Col32(_)) => 32,
                Some(Special::Col64(_)) => 64,
                _ => 0,
            },
            _ => 0,
        }
    }

    /// The value of an integer literal.
    pub(crate) fn constant(op: Option<&Operand>) -> R<u64> {
        op.and_then(|o| Self::literal(o, Want::I64))
            .ok_or_else(|| Why::invalid("expected an integer literal"))
    }

    /// Checks the number of operands.
    pub(crate) fn count(ops: &[Operand], n: usize) -> R<()> {
        if ops.len() == n {
            return Ok(());
        }
        Err(Why::invalid(format!(
            "{} operands, expected {n}",
            ops.len()
        )))
    }

    /// Splits `d|p` into `d` and the column of the predicate `p`, which is [`NONE`] without a
    /// predicate.
    pub(crate) fn split_pair<'o>(&mut self, op: &'o Operand) -> R<(&'o Operand, u32)> {
        match op {
            Operand::Pair(d, p) => {
                let p = if **p == Operand::Sink {
                    NONE
                } else {
                    self.dst_pred(p)?
                };
                Ok((d, p))
            }
            other => Ok((other, NONE)),
        }
    }
}
