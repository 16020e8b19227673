//! Instructions that need not run, and columns that several registers share.
//!
//! - A register uses an existing column if one instruction writes the register, and its value
//!   always equals the value of that column. The column is a parameter, a special register, a
//!   constant, or a register that is written once before. The instruction is omitted.
//! - A register shares a column ([`Lent`]) if all of its uses lie between two labels, and the first
//!   use writes the register. Outside these uses, the column serves other registers. Unrolled loops
//!   name thousands of registers; with one column each, they would not fit into the CPU's caches.
//! - An access uses the rule that an earlier access found for the lanes
//!   ([`crate::exec::ops::regular`]), if the address register has not changed in between, in
//!   straight-line code.

use std::collections::HashMap;

use super::func::{Func, Reg};
use super::lent::Lent;
use crate::exec::inst::{NONE, bank};
use crate::exec::ops::element::layout;
use crate::exec::warp::MEMOS;
use crate::ptx::ast::{Function, Instruction, Operand, Statement};

/// Most parameters that are columns, for each width.
const MAX_PARAMS: usize = 64;

/// Facts about a function's registers.
#[derive(Default)]
pub(super) struct Economy<'m> {
    /// For each register, the number of instructions that may write the register.
    writes: HashMap<&'m str, u32>,
    /// The statements that use each register.
    mentions: HashMap<&'m str, Mentions>,
    /// Whether a label was passed. Code after a label may run more than once.
    labelled: bool,
    /// Address registers whose rule is stored, each with the number of its memo.
    memos: Vec<(&'m str, usize)>,
    next: usize,
    /// Offsets of the parameters that are columns, for both widths.
    pub(super) params32: Vec<u32>,
    pub(super) params64: Vec<u32>,
    /// Columns that become free after the last statement that uses their register.
    pub(super) lent: Lent,
}

/// The uses of a register in a body.
struct Mentions {
    count: u32,
    /// The first and the last statement that use the register.
    first: usize,
    last: usize,
    /// Whether the first statement uses the register once and has no guard, and no label stands
    /// between the first and the last statement.
    local: bool,
}

impl<'m> Economy<'m> {
    /// Counts the writes of a body. The results of an instruction are the names in its first
    /// operand, also in vectors, pairs and lists. If the first operand is a source, its names are
    /// counted as well; then fewer instructions are omitted than could be.
    pub(super) fn of(f: &'m Function) -> Economy<'m> {
        let mut writes = HashMap::new();
        let arguments = f.params.iter().chain(&f.returns);
        for p in arguments.filter(|p| p.in_register) {
            *writes.entry(p.var.name.as_str()).or_default() += 1;
        }
        for s in &f.body {
            if let Statement::Inst(i) = s
                && let Some(first) = i.operands.first()
            {
                names(first, &mut |n| *writes.entry(n).or_default() += 1);
            }
        }
        Economy {
            writes,
            mentions: mentions(f),
            ..Economy::default()
        }
    }

    fn written_once(&self, name: &str) -> bool {
        self.writes.get(name) == Some(&1)
    }

    /// Whether one instruction writes the register, one instruction reads it, and no other uses it.
    pub(super) fn passed_on(&self, name: &str) -> bool {
        self.written_once(name) && self.mentions.get(name).is_some_and(|m| m.count == 2)
    }

    /// The last statement that uses a register, if `statement` is the first, and the register holds
    /// no value before `statement` and after the last statement.
    pub(super) fn lasts(&self, name: &str, statement: usize) -> Option<usize> {
        let m = self.mentions.get(name)?;
        (m.local && m.first == statement).then_some(m.last)
    }

    /// Handles a label, to which other code may jump.
    pub(super) fn label(&mut self) {
        self.labelled = true;
        self.memos.clear();
    }

    /// Removes the memos of registers that the instruction may change: those that it uses other
    /// than as an address.
    pub(super) fn instruction(&mut self, i: &Instruction) {
        if i.opcode.starts_with("call") {
            self.memos.clear();
        }
        for op in &i.operands {
            names(op, &mut |n| self.memos.retain(|(m, _)| *m != n));
        }
    }

    fn memo(&mut self, name: &'m str) -> u64 {
        if let Some((_, slot)) = self.memos.iter().find(|(n, _)| *n == name) {
            return layout::KEEP | layout::REUSE | (*slot as u64) << layout::MEMO_SHIFT;
        }
        let slot = self.next;
        self.next = (slot + 1) % MEMOS;
        self.memos.retain(|(_, s)| *s != slot);
        self.memos.push((name, slot));
        layout::KEEP | (slot as u64) << layout::MEMO_SHIFT
    }
}

/// The uses of each name in a body's operands and guards.
fn mentions(f: &Function) -> HashMap<&str, Mentions> {
    let mut out: HashMap<&str, Mentions> = HashMap::new();
    for p in f.params.iter().chain(&f.returns) {
        let argument = Mentions {
            count: 1,
            first: 0,
            last: 0,
            local: false,
        };
        out.insert(p.var.name.as_str(), argument);
    }
    let mut label = 0;
    for (at, s) in f.body.iter().enumerate() {
        let Statement::Inst(i) = s else {
            label = at;
            continue;
        };
        let mut each = |n| {
            let m = out.entry(n).or_insert(Mentions {
                count: 0,
                first: at,
                last: at,
                local: i.guard.is_none(),
            });
            m.local &= m.first >= label && (m.count == 0 || m.first < at);
            m.count += 1;
            m.last = at;
        };
        if let Some((guard, _)) = &i.guard {
            each(guard.as_str());
        }
        for op in &i.operands {
            op.names(&mut each);
        }
    }
    out
}

/// Calls `each` with the names in an operand, except those within an address.
fn names<'a>(op: &'a Operand, each: &mut impl FnMut(&'a str)) {
    let mut open = vec![op];
    while let Some(op) = open.pop() {
        match op {
            Operand::Name(n) | Operand::Offset(n, _) => each(n),
            Operand::Negated(inner) => open.push(inner),
            Operand::Vector(all) | Operand::List(all) => open.extend(all),
            Operand::Pair(a, b) => open.extend([&**a, &**b]),
            _ => {}
        }
    }
}

impl<'m> Func<'_, 'm> {
    /// Makes `from` the column of the register `to`, if their values can never differ. Returns
    /// false if the instruction that moves the value is needed.
    pub(super) fn is_column(&mut self, to: &'m Operand, from: u32, wide: bool) -> bool {
        let Operand::Name(name) = to else {
            return false;
        };
        if self.guard() != NONE || !self.economy.written_once(name) || !self.unused(name, wide) {
            return false;
        }
        let reg = if wide { Reg::W64(from) } else { Reg::W32(from) };
        // If `from` is a register of this function, its value must not change either: both
        // registers are written at most once, `from` first.
        let own = from >> 30 == 0;
        let once = !self.economy.labelled;
        let fits = match self.economy.lasts(name, self.statement) {
            Some(last) if self.economy.lent.prolong(reg, last) => true,
            _ if own && once => {
                self.economy.lent.keep(reg);
                true
            }
            _ => !own,
        };
        if fits {
            self.set_column(name, reg);
        }
        fits
    }

    /// As [`Self::is_column`]. `column` is the column of the operand `from`, a register or
    /// constant.
    pub(super) fn is_same(
        &mut self,
        to: &'m Operand,
        from: &Operand,
        column: u32,
        wide: bool,
    ) -> bool {
        let final_ = match from {
            Operand::Name(n) if self.is_register(n) => self.economy.written_once(n),
            _ => true,
        };
        final_ && self.is_column(to, column, wide)
    }

    /// Makes the parameter of the kernel at `offset` the column of a register. Returns false if the
    /// parameter must be loaded by an instruction.
    pub(super) fn is_param(&mut self, to: &'m Operand, offset: i64, wide: bool) -> bool {
        let size = if wide { 8 } else { 4 };
        let Ok(at) = u32::try_from(offset) else {
            return false;
        };
        if u64::from(at) + size > self.param_bytes() {
            return false;
        }
        let known = if wide {
            &self.economy.params64
        } else {
            &self.economy.params32
        };
        let found = known.iter().position(|o| *o == at);
        let index = found.unwrap_or(known.len());
        if index >= MAX_PARAMS || !self.is_column(to, bank::PARAM | index as u32, wide) {
            return false;
        }
        if found.is_none() {
            let all = if wide {
                &mut self.economy.params64
            } else {
                &mut self.economy.params32
            };
            all.push(at);
        }
        true
    }

    /// The bits for the immediate of an access through the address register in `op`: the memo of
    /// the register, and whether the memo is stored or used.
    pub(super) fn memo(&mut self, op: &'m Operand) -> u64 {
        match op {
            Operand::Memory { base: Some(n), .. }
                if self.guard() == NONE && self.is_register(n) =>
            {
                self.economy.memo(n)
            }
            _ => 0,
        }
    }
}
