//! Instructions that need not be executed, or not in full.
//!
//! - A register that one instruction writes, and that only ever holds what another column holds
//!   already (a parameter, a special register, a constant, a register written once before), *is*
//!   that column.
//! - A register that is named between two labels only, and written there first, holds nothing else
//!   where: its column is another's before and after ([`Lent`]). Unrolled loops name thousands of
//!   registers; a column for each would not stay in the processor's caches.
//! - An access whose address register did not change since an earlier one in straight-line code
//!   uses what that one found about the lanes ([`crate::exec::ops::regular`]).

use std::collections::HashMap;

use super::func::{Func, Reg};
use super::lent::Lent;
use crate::exec::inst::{NONE, bank};
use crate::exec::ops::memory::layout;
use crate::exec::warp::MEMOS;
use crate::ptx::ast::{Function, Instruction, Operand, Statement};

/// Most parameters that are columns, of each width.
const MAX_PARAMS: usize = 64;

/// What is known of a function's registers.
#[derive(Default)]
pub(super) struct Economy<'m> {
    /// Instructions that may write a register.
    writes: HashMap<&'m str, u32>,
    /// Where each register is named.
    mentions: HashMap<&'m str, Mentions>,
    /// A label was met: code may run more than once.
    labelled: bool,
    /// Address registers that are remembered, with the memo's number.
    memos: Vec<(&'m str, usize)>,
    next: usize,
    /// Offsets of parameters that are columns.
    pub(super) params32: Vec<u32>,
    pub(super) params64: Vec<u32>,
    /// Columns that are free again after a register's last statement.
    pub(super) lent: Lent,
}

/// Where a body names a register.
struct Mentions {
    count: u32,
    /// The first statement and the last.
    first: usize,
    last: usize,
    /// The first statement names it once and has no guard, and no label stands between the first
    /// and the last.
    local: bool,
}

impl<'m> Economy<'m> {
    /// Counts the writes of a body. An instruction's results are in its first operand, in vectors,
    /// pairs and lists; where that is a source it counts all the same, which only costs the
    /// economy.
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

    /// One instruction writes the register and another reads it, and none does else.
    pub(super) fn passed_on(&self, name: &str) -> bool {
        self.written_once(name) && self.mentions.get(name).is_some_and(|m| m.count == 2)
    }

    /// The last statement that names a register, if it holds nothing before `statement`, which
    /// writes it, and nothing after the last.
    pub(super) fn lasts(&self, name: &str, statement: usize) -> Option<usize> {
        let m = self.mentions.get(name)?;
        (m.local && m.first == statement).then_some(m.last)
    }

    /// A label: other code may come here.
    pub(super) fn label(&mut self) {
        self.labelled = true;
        self.memos.clear();
    }

    /// Forgets the address registers that an instruction mentions otherwise, and may change.
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

/// Where each name stands in a body's operands and guards.
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

/// The names in an operand that are not within an address.
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
    /// Makes the register `to` the column `from`, if it can never differ from it; false if the
    /// instruction that moves it is needed.
    pub(super) fn is_column(&mut self, to: &'m Operand, from: u32, wide: bool) -> bool {
        let Operand::Name(name) = to else {
            return false;
        };
        if self.guard() != NONE || !self.economy.written_once(name) || !self.unused(name, wide) {
            return false;
        }
        let reg = if wide { Reg::W64(from) } else { Reg::W32(from) };
        // A register of the function's own must be final, too: both are written at most once, in
        // this order.
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

    /// As [`Self::is_column`], where the column is that of the operand `from`, a register or
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

    /// Makes a register the kernel's parameter at `offset`; false if it must be loaded.
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

    /// What the immediate of an access through the register in `op` says of its memo.
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
