//! The lowering of one function: columns for its registers, a frame for its memory, labels,
//! instructions.

use std::collections::HashMap;

use super::economy::Economy;
use super::{
    Module, R, Why, arith, control, convert, float, grammar, half, matrix, mbarrier, memory,
    transfer, warp,
};
use crate::exec::contract::LoadError;
use crate::exec::inst::{Inst, NEGATED, NONE, OpFn, op_plain};
use crate::exec::ops::control::{Exit, Nop, Ret};
use crate::exec::warp::{MAX_LOCAL, Place};
use crate::ptx::ast::{Function, Instruction, Param, Space, Statement, Type};

use super::mods::Mods;

/// Most register columns of one function.
const MAX_COLUMNS: u32 = 1 << 16;

/// The column of a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Reg {
    /// Up to 32 bits.
    W32(u32),
    /// 64 bits.
    W64(u32),
    /// A predicate.
    Pred(u32),
}

/// A variable in a frame's local memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// Offset in the frame, in bytes.
    pub(crate) offset: u64,
    /// Size in bytes.
    pub(crate) size: u64,
    /// Whether this is a `.param` variable of the body, which holds an argument or result of a
    /// call.
    pub(crate) outgoing: bool,
}

/// The state of a function's lowering.
pub(crate) struct Func<'a, 'm> {
    pub(crate) m: &'a mut Module<'m>,
    pub(crate) ast: &'m Function,
    /// Index in the module's functions.
    pub(crate) index: usize,
    types: HashMap<&'m str, Type>,
    columns: HashMap<&'m str, Reg>,
    /// `.local` and `.param` variables and the parameters of device functions.
    pub(crate) slots: HashMap<&'m str, Slot>,
    /// Offsets of the kernel's parameters in the parameter block.
    pub(crate) kernel_params: HashMap<&'m str, u64>,
    labels: HashMap<&'m str, u32>,
    fixes: Vec<(usize, &'m str)>,
    table_fixes: Vec<(usize, &'m [String])>,
    n32: u32,
    n64: u32,
    np: u32,
    junk32: u32,
    junk64: u32,
    junkp: u32,
    local: u64,
    guard: u32,
    line: u32,
    /// Index of the statement that is being lowered.
    pub(super) statement: usize,
    /// Index of the instruction of the last `wmma.load`.
    pub(super) matrix_load: Option<usize>,
    pub(super) economy: Economy<'m>,
}

/// Offsets and sizes of a kernel's parameters in the parameter block, in bytes.
pub(crate) fn param_offsets(params: &[Param]) -> Vec<(usize, usize)> {
    let mut at = 0usize;
    params
        .iter()
        .map(|p| {
            let align = (p.var.align.max(1) as usize)
                .next_power_of_two()
                .max(p.var.ty.size());
            at = at.next_multiple_of(align);
            let size = p
                .var
                .count
                .saturating_mul(p.var.ty.size() as u64)
                .min(1 << 16) as usize;
            let here = (at, size);
            at += size;
            here
        })
        .collect()
}

/// The places of parameters in registers and in the frame, and the bytes of the frame that
/// parameters take.
fn places(params: &[&Param]) -> R<(Vec<Place>, u64)> {
    let mut out = Vec::new();
    let mut at = 0u64;
    let (mut n32, mut n64, mut np) = (0, 0, 0);
    for p in params {
        if p.in_register {
            let slot = match p.var.ty {
                Type::Pred => (&mut np, Place::Pred as fn(u32) -> Place),
                Type::B128 => return Err(Why::unsupported("128-bit parameter")),
                t if t.size() == 8 => (&mut n64, Place::Reg64 as fn(u32) -> Place),
                _ => (&mut n32, Place::Reg32 as fn(u32) -> Place),
            };
            out.push(slot.1(*slot.0));
            *slot.0 += 1;
        } else {
            let align = u64::from(p.var.align.max(1)).max(p.var.ty.size() as u64);
            at = at.next_multiple_of(align.next_power_of_two());
            let size = p.var.count.saturating_mul(p.var.ty.size() as u64);
            if size > MAX_LOCAL {
                return Err(Why::unsupported("parameter too large"));
            }
            out.push(Place::Local(at, size));
            at += size;
        }
    }
    Ok((out, at))
}

/// Sets the places of a function's parameters and results. Calls of the function can then be
/// lowered before its body.
pub(crate) fn signature(m: &mut Module<'_>, id: u32, f: &Function) -> Result<(), LoadError> {
    let all: Vec<&Param> = f.returns.iter().chain(&f.params).collect();
    let (mut places, _) =
        places(&all).map_err(|w| w.at(&format!("function {} (line {})", f.name, f.line)))?;
    let info = &mut m.funcs[id as usize];
    if f.kernel {
        let total = param_offsets(&f.params).last().map_or(0, |(o, s)| o + s);
        if total > 32764 {
            return Err(LoadError::Syntax(format!(
                "{}: parameters exceed 32764 bytes",
                f.name
            )));
        }
        return Ok(());
    }
    info.params = places.split_off(f.returns.len());
    info.returns = places;
    info.callable = true;
    Ok(())
}

/// Lowers a body.
pub(crate) fn lower(m: &mut Module<'_>, id: u32, index: usize) -> Result<(), LoadError> {
    let ast = &m.ast.functions[index];
    let entry = m.code.len() as u32;
    let mut f = Func {
        m,
        ast,
        index,
        types: HashMap::new(),
        columns: HashMap::new(),
        slots: HashMap::new(),
        kernel_params: HashMap::new(),
        labels: HashMap::new(),
        fixes: Vec::new(),
        table_fixes: Vec::new(),
        n32: 0,
        n64: 0,
        np: 0,
        junk32: NONE,
        junk64: NONE,
        junkp: NONE,
        local: 0,
        guard: NONE,
        line: ast.line,
        statement: 0,
        matrix_load: None,
        economy: Economy::of(ast),
    };
    f.declare()
        .map_err(|w| w.at(&format!("function {} (line {})", ast.name, ast.line)))?;
    f.body()?;
    let (n32, n64, np, local) = (f.n32, f.n64, f.np, f.local.next_multiple_of(16));
    let (params32, params64) = (f.economy.params32, f.economy.params64);
    let info = &mut m.funcs[id as usize];
    info.entry = entry;
    (info.n32, info.n64, info.np, info.local) = (n32, n64, np, local);
    (info.params32, info.params64) = (params32, params64);
    info.waits = ast.body.iter().any(may_wait);
    Ok(())
}

/// Whether a loop with this statement may wait for another block.
fn may_wait(s: &Statement) -> bool {
    let Statement::Inst(i) = s else { return false };
    let mut words = i.opcode.split('.');
    match words.next() {
        Some("atom" | "red" | "call" | "fence" | "membar" | "nanosleep") => true,
        Some("ld") => {
            words.any(|w| matches!(w, "volatile" | "relaxed" | "acquire" | "mmio" | "cg" | "cv"))
        }
        _ => false,
    }
}

impl<'m> Func<'_, 'm> {
    fn declare(&mut self) -> R<()> {
        self.types = self
            .ast
            .registers
            .iter()
            .map(|(n, t)| (n.as_str(), *t))
            .collect();
        if self.ast.kernel {
            let offsets = param_offsets(&self.ast.params);
            for (p, (at, _)) in self.ast.params.iter().zip(offsets) {
                self.kernel_params.insert(&p.var.name, at as u64);
            }
        } else {
            let all: Vec<&'m Param> = self.ast.returns.iter().chain(&self.ast.params).collect();
            let (places, bytes) = places(&all)?;
            for (p, place) in all.iter().zip(places) {
                let name = p.var.name.as_str();
                match place {
                    Place::Local(offset, size) => {
                        let slot = Slot {
                            offset,
                            size,
                            outgoing: false,
                        };
                        self.slots.insert(name, slot);
                    }
                    Place::Reg32(c) => {
                        self.columns.insert(name, Reg::W32(c));
                        self.n32 = self.n32.max(c + 1);
                    }
                    Place::Reg64(c) => {
                        self.columns.insert(name, Reg::W64(c));
                        self.n64 = self.n64.max(c + 1);
                    }
                    Place::Pred(c) => {
                        self.columns.insert(name, Reg::Pred(c));
                        self.np = self.np.max(c + 1);
                    }
                }
            }
            self.local = bytes;
        }
        for v in &self.ast.variables {
            if matches!(v.space, Space::Local | Space::Param) {
                let align = u64::from(v.align.max(1))
                    .max(v.ty.size() as u64)
                    .next_power_of_two();
                if align > 256 {
                    return Err(Why::unsupported(format!("alignment {align} of {}", v.name)));
                }
                let offset = self.local.next_multiple_of(align);
                let size = v.count.saturating_mul(v.ty.size() as u64);
                if offset.saturating_add(size) > MAX_LOCAL {
                    return Err(Why::unsupported(format!(
                        "more than {MAX_LOCAL} bytes of local memory"
                    )));
                }
                let slot = Slot {
                    offset,
                    size,
                    outgoing: v.space == Space::Param,
                };
                self.slots.insert(&v.name, slot);
                self.local = offset + size;
            }
        }
        Ok(())
    }

    fn body(&mut self) -> Result<(), LoadError> {
        let ast = self.ast;
        let mut at = Vec::with_capacity(ast.body.len() + 1);
        for (n, s) in ast.body.iter().enumerate() {
            at.push(self.m.code.len());
            self.statement = n;
            match s {
                Statement::Label(name) => {
                    self.economy.label();
                    self.labels.insert(name, self.m.code.len() as u32);
                }
                Statement::Inst(i) => {
                    self.line = i.line;
                    self.instruction(i).map_err(|w| {
                        w.at(&format!(
                            "function {}, line {}: {}",
                            ast.name, i.line, i.opcode
                        ))
                    })?;
                    self.economy.lent.release(n);
                }
            }
        }
        at.push(self.m.code.len());
        self.fuse(&at);
        // The body may end without a return: control must not continue into the next function.
        self.guard = NONE;
        let end = if ast.kernel {
            op_plain::<Exit>()
        } else {
            op_plain::<Ret>()
        };
        self.emit(Inst {
            run: end,
            ..self.blank()
        });
        let place = format!("function {}", ast.name);
        for (at, label) in std::mem::take(&mut self.fixes) {
            let target = self.label(label).map_err(|w| w.at(&place))?;
            self.m.code[at].imm = u64::from(target);
        }
        for (table, labels) in std::mem::take(&mut self.table_fixes) {
            let targets: R<Vec<u32>> = labels.iter().map(|l| self.label(l)).collect();
            self.m.tables[table] = targets.map_err(|w| w.at(&place))?;
        }
        Ok(())
    }

    fn label(&self, name: &str) -> R<u32> {
        self.labels
            .get(name)
            .copied()
            .ok_or_else(|| Why::invalid(format!("no label {name}")))
    }

    fn instruction(&mut self, i: &'m Instruction) -> R<()> {
        self.guard = match &i.guard {
            None => NONE,
            Some((name, negated)) => match self.register(name)? {
                Reg::Pred(c) if *negated => c | NEGATED,
                Reg::Pred(c) => c,
                _ => return Err(Why::invalid(format!("guard {name} is not a predicate"))),
            },
        };
        self.economy.instruction(i);
        if self.m.known.insert(&i.opcode) {
            grammar::check(&i.opcode)?;
        }
        let mut m = Mods::new(&i.opcode);
        let ops = i.operands.as_slice();
        let served = half::lower(self, &mut m, ops)?
            || arith::lower(self, &mut m, ops)?
            || float::lower(self, &mut m, ops)?
            || convert::lower(self, &mut m, ops)?
            || memory::lower(self, &mut m, ops)?
            || control::lower(self, &mut m, ops)?
            || warp::lower(self, &mut m, ops)?
            || matrix::lower(self, &mut m, ops)?
            || mbarrier::lower(self, &mut m, ops)?
            || transfer::lower(self, &mut m, ops)?;
        if !served {
            return Err(Why::unsupported("this instruction is not served"));
        }
        m.finish()
    }

    /// The guard of the instruction that is being lowered.
    pub(super) fn guard(&self) -> u32 {
        self.guard
    }

    /// Size of the kernel's parameters in bytes.
    pub(super) fn param_bytes(&self) -> u64 {
        let offsets = param_offsets(&self.ast.params);
        offsets.last().map_or(0, |(o, s)| (o + s) as u64)
    }

    /// Width of a register, 32 or 64 bits; 0 for a predicate and for an unsupported type. Does not
    /// allocate a column.
    pub(super) fn register_width(&self, name: &str) -> u32 {
        match (self.columns.get(name), self.types.get(name)) {
            (Some(Reg::W32(_)), _) => 32,
            (Some(Reg::W64(_)), _) => 64,
            (Some(Reg::Pred(_)), _) | (None, None | Some(Type::Pred | Type::B128)) => 0,
            (None, Some(t)) if t.size() == 8 => 64,
            (None, Some(_)) => 32,
        }
    }

    /// Whether `name` is a declared register of this width that has no column yet.
    pub(super) fn unused(&self, name: &str, wide: bool) -> bool {
        !self.columns.contains_key(name) && self.register_width(name) == if wide { 64 } else { 32 }
    }

    /// Sets the column of a register.
    pub(super) fn set_column(&mut self, name: &'m str, reg: Reg) {
        self.columns.insert(name, reg);
    }

    /// An instruction without operands, under the current guard.
    pub(crate) fn blank(&self) -> Inst {
        Inst {
            run: op_plain::<Nop>(),
            guard: self.guard,
            d: NONE,
            a: NONE,
            b: NONE,
            c: NONE,
            e: NONE,
            imm: 0,
        }
    }

    /// Appends an instruction.
    pub(crate) fn emit(&mut self, i: Inst) {
        self.m.code.push(i);
        self.m.lines.push(self.line);
    }

    /// Appends an instruction with one source.
    pub(crate) fn emit_unary(&mut self, run: OpFn, d: u32, a: u32) {
        self.emit(Inst {
            run,
            d,
            a,
            ..self.blank()
        });
    }

    /// Appends an instruction with two sources.
    pub(crate) fn emit_binary(&mut self, run: OpFn, d: u32, a: u32, b: u32) {
        self.emit(Inst {
            run,
            d,
            a,
            b,
            ..self.blank()
        });
    }

    /// Appends an instruction whose immediate will be the address of a label.
    pub(crate) fn emit_to(&mut self, run: OpFn, label: &'m str) {
        self.fixes.push((self.m.code.len(), label));
        self.emit(Inst {
            run,
            ..self.blank()
        });
    }

    /// Allocates a branch table. `labels` are resolved at the end of the body.
    pub(crate) fn table(&mut self, labels: &'m [String]) -> u64 {
        let at = self.m.tables.len();
        self.m.tables.push(Vec::new());
        self.table_fixes.push((at, labels));
        at as u64
    }

    /// The column of a declared register. The first use allocates the column.
    pub(crate) fn register(&mut self, name: &str) -> R<Reg> {
        if let Some(r) = self.columns.get(name) {
            return Ok(*r);
        }
        let Some((&name, &ty)) = self.types.get_key_value(name) else {
            return Err(Why::invalid(format!("{name} is not declared")));
        };
        let r = match ty {
            Type::Pred => Reg::Pred(self.fresh_pred()?),
            Type::B128 => return Err(Why::unsupported("128-bit registers are not served")),
            t if t.size() == 8 => Reg::W64(self.fresh64()?),
            _ => Reg::W32(self.fresh32()?),
        };
        self.columns.insert(name, r);
        Ok(r)
    }

    /// The column of a declared register that an instruction writes. If the register holds no value
    /// before this statement and after its last use, its column is free again after the last use.
    pub(super) fn result(&mut self, name: &str) -> R<Reg> {
        let last = self.economy.lasts(name, self.statement);
        let (Some(last), None, Some((&name, &ty))) =
            (last, self.columns.get(name), self.types.get_key_value(name))
        else {
            return self.register(name);
        };
        if matches!(ty, Type::Pred | Type::B128) {
            return self.register(name);
        }
        let column = self.lend(ty.size() == 8, last)?;
        self.columns.insert(name, column);
        Ok(column)
    }

    /// Allocates a column that is free again after the statement `last`.
    fn lend(&mut self, wide: bool, last: usize) -> R<Reg> {
        let column = match self.economy.lent.take(wide) {
            Some(column) => column,
            None if wide => Reg::W64(self.fresh64()?),
            None => Reg::W32(self.fresh32()?),
        };
        self.economy.lent.until(column, last);
        Ok(column)
    }

    /// A 64-bit column that is free again after the statement that is being lowered.
    pub(super) fn temporary64(&mut self) -> R<u32> {
        match self.lend(true, self.statement)? {
            Reg::W32(c) | Reg::W64(c) | Reg::Pred(c) => Ok(c),
        }
    }

    /// Whether the name is a register of this function.
    pub(crate) fn is_register(&self, name: &str) -> bool {
        self.columns.contains_key(name) || self.types.contains_key(name)
    }

    fn fresh(n: &mut u32) -> R<u32> {
        if *n >= MAX_COLUMNS {
            return Err(Why::unsupported("too many registers"));
        }
        *n += 1;
        Ok(*n - 1)
    }

    /// A new 32-bit column.
    pub(crate) fn fresh32(&mut self) -> R<u32> {
        Self::fresh(&mut self.n32)
    }

    /// A new 64-bit column.
    pub(crate) fn fresh64(&mut self) -> R<u32> {
        Self::fresh(&mut self.n64)
    }

    /// A new predicate.
    pub(crate) fn fresh_pred(&mut self) -> R<u32> {
        Self::fresh(&mut self.np)
    }

    /// The column for 32-bit results that no instruction reads.
    pub(crate) fn junk32(&mut self) -> R<u32> {
        if self.junk32 == NONE {
            self.junk32 = self.fresh32()?;
        }
        Ok(self.junk32)
    }

    /// The column for 64-bit results that no instruction reads.
    pub(crate) fn junk64(&mut self) -> R<u32> {
        if self.junk64 == NONE {
            self.junk64 = self.fresh64()?;
        }
        Ok(self.junk64)
    }

    /// The predicate for results that no instruction reads.
    pub(crate) fn junk_pred(&mut self) -> R<u32> {
        if self.junkp == NONE {
            self.junkp = self.fresh_pred()?;
        }
        Ok(self.junkp)
    }
}
