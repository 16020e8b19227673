//! Loads, stores, atomics and similar instructions.

use super::func::{Func, Reg};
use super::mods::Mods;
use super::operand::Want;
use super::{R, Sym, Why};
use crate::exec::env::LOCAL_WINDOW;
use crate::exec::inst::{Inst, NONE, OpFn, bank, op, op_plain};
use crate::exec::ops::atomic::{self as at, Atom, Rmw};
use crate::exec::ops::control::Nop;
use crate::exec::ops::element::{
    B32In32, B64In64, Mem, S8In32, S8In64, S16In32, S16In64, S32In64, U8In32, U8In64, U16In32,
    U16In64, U32In64, layout, space,
};
use crate::exec::ops::family::Map1;
use crate::exec::ops::memory::{Ld, LdKernelParam, St};
use crate::exec::special;
use crate::ptx::ast::{Operand, Type};

/// Lowers memory instructions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    match m.base {
        "ld" | "ldu" => load(f, m, ops)?,
        "st" => store(f, m, ops)?,
        "atom" | "red" => atom(f, m, ops)?,
        "createpolicy" => policy(f, m, ops)?,
        "prefetch" | "prefetchu" | "applypriority" | "discard" => {
            m.clear();
            f.emit(Inst {
                run: op_plain::<Nop>(),
                ..f.blank()
            });
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// The state space that an instruction names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Named {
    Global,
    Shared,
    Local,
    Param,
    Generic,
}

pub(super) fn named(m: &mut Mods<'_>) -> Named {
    m.one(&[
        ("global", Named::Global),
        ("const", Named::Global),
        ("shared", Named::Shared),
        ("shared::cta", Named::Shared),
        ("shared::cluster", Named::Shared),
        ("local", Named::Local),
        ("param", Named::Param),
        ("param::entry", Named::Param),
        ("param::func", Named::Param),
    ])
    .unwrap_or(Named::Generic)
}

/// Takes orderings, scopes and cache hints. They have no effect here: every access is an atomic
/// access of the host, and x86 orders accesses at least as strongly. [`super::grammar`] checks the
/// modifiers that an instruction may have.
fn ignore_hints(m: &mut Mods<'_>) {
    m.ignore(&[
        "weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "sc", "mmio", "cta",
        "cluster", "gpu", "sys", "ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "unified",
    ]);
    m.ignore_prefix("L1::");
    m.ignore_prefix("L2::");
}

/// An address: state space, address register and offset in bytes. `narrow`: the register has 32
/// bits.
pub(super) struct Address {
    pub(super) space: u8,
    /// Whether the address is a fixed offset in the kernel's parameter block.
    pub(super) kernel_param: bool,
    pub(super) reg: u32,
    pub(super) offset: i64,
    pub(super) narrow: bool,
}

pub(super) fn address(f: &mut Func<'_, '_>, op_: &Operand, named: Named) -> R<Address> {
    let Operand::Memory { base, offset } = op_ else {
        return Err(Why::invalid("expected an address in brackets"));
    };
    let mut a = Address {
        space: match named {
            Named::Global => space::GLOBAL,
            Named::Shared => space::SHARED,
            Named::Local => space::LOCAL,
            Named::Param | Named::Generic => space::GENERIC,
        },
        kernel_param: false,
        reg: NONE,
        offset: *offset,
        narrow: false,
    };
    match base {
        None if named == Named::Param && f.ast.kernel => a.kernel_param = true,
        None => {}
        Some(n) if f.is_register(n) => match f.register(n)? {
            Reg::W64(c) if named == Named::Param => return param_register(f, c, *offset),
            Reg::W32(c) if named == Named::Param => {
                let t = f.temporary64()?;
                let run = op::<Map1<crate::exec::ops::convert::U64FromU32>>();
                f.emit(Inst {
                    run,
                    d: t,
                    a: c,
                    guard: NONE,
                    ..f.blank()
                });
                return param_register(f, t, *offset);
            }
            Reg::W64(c) => a.reg = c,
            Reg::W32(c) => {
                a.reg = c;
                a.narrow = true;
            }
            Reg::Pred(_) => return Err(Why::invalid(format!("{n} is a predicate"))),
        },
        Some(n) => symbol(f, n, &mut a)?,
    }
    if i32::try_from(a.offset).is_err() {
        return Err(Why::unsupported("an offset beyond 31 bits"));
    }
    Ok(a)
}

/// The address of an access in `.param` space through a register. The register holds an offset in
/// the parameter block (in kernels) or in the frame; the result is a generic address.
fn param_register(f: &mut Func<'_, '_>, c: u32, offset: i64) -> R<Address> {
    let window = if f.ast.kernel {
        crate::exec::env::PARAM_WINDOW
    } else {
        LOCAL_WINDOW
    };
    let t = f.temporary64()?;
    let run = op_plain::<crate::exec::ops::memory::Lea>();
    let inst = Inst {
        run,
        d: t,
        a: c,
        imm: window,
        guard: NONE,
        ..f.blank()
    };
    f.emit(inst);
    Ok(Address {
        space: space::GENERIC,
        kernel_param: false,
        reg: t,
        offset,
        narrow: false,
    })
}

fn symbol(f: &mut Func<'_, '_>, n: &str, a: &mut Address) -> R<()> {
    // An access without a named space uses the symbol's own space. `.global`, `.shared` and
    // `.local` must be the symbol's own space; other spaces are not checked.
    let within =
        |own: u8, named: u8| match [space::GLOBAL, space::SHARED, space::LOCAL].contains(&named) {
            true if named != own => Err(Why::invalid(format!("{n} is in another state space"))),
            _ => Ok(()),
        };
    if let Some(slot) = f.slots.get(n).copied() {
        within(space::LOCAL, a.space)?;
        a.space = space::LOCAL;
        a.reg = bank::SPECIAL | special::FRAME_LOCAL;
        a.offset = a.offset.wrapping_add(slot.offset as i64);
        return Ok(());
    }
    if let Some(&off) = f.kernel_params.get(n) {
        a.kernel_param = true;
        a.offset = a.offset.wrapping_add(off as i64);
        return Ok(());
    }
    match f.m.lookup(Some(f.index), n) {
        Some(Sym::Global(g)) => {
            within(space::GLOBAL, a.space)?;
            a.reg = f.m.address64(g, a.offset)?;
            a.offset = 0;
        }
        Some(Sym::Shared(o)) => {
            within(space::SHARED, a.space)?;
            a.space = space::SHARED;
            a.offset = a.offset.wrapping_add(o as i64);
        }
        Some(Sym::Dynamic) => {
            within(space::SHARED, a.space)?;
            a.space = space::SHARED;
            a.reg = bank::SPECIAL | special::DYNAMIC_BASE64;
        }
        Some(Sym::Func(_)) => return Err(Why::invalid(format!("{n} is a function"))),
        None => {
            return Err(Why::invalid(format!(
                "{n} is not declared (or is external)"
            )));
        }
    }
    Ok(())
}

pub(super) fn imm_of(a: &Address, count: usize) -> u64 {
    u64::from(a.offset as i32 as u32)
        | (count as u64) << layout::COUNT_SHIFT
        | if a.narrow { layout::NARROW } else { 0 }
}

fn ld_fn<M: Mem>(a: &Address) -> OpFn {
    match a.space {
        _ if a.kernel_param => op::<LdKernelParam<M>>(),
        space::GLOBAL => op::<Ld<M, { space::GLOBAL }>>(),
        space::SHARED => op::<Ld<M, { space::SHARED }>>(),
        space::LOCAL => op::<Ld<M, { space::LOCAL }>>(),
        _ => op::<Ld<M, { space::GENERIC }>>(),
    }
}

fn st_fn<M: Mem>(a: &Address) -> OpFn {
    match a.space {
        space::GLOBAL => op::<St<M, { space::GLOBAL }>>(),
        space::SHARED => op::<St<M, { space::SHARED }>>(),
        space::LOCAL => op::<St<M, { space::LOCAL }>>(),
        _ => op::<St<M, { space::GENERIC }>>(),
    }
}

fn load_form(t: Type, wide: bool, a: &Address) -> R<OpFn> {
    use Type::*;
    Ok(match (t, wide) {
        (B8 | U8, false) => ld_fn::<U8In32>(a),
        (S8, false) => ld_fn::<S8In32>(a),
        (B16 | U16 | F16 | BF16, false) => ld_fn::<U16In32>(a),
        (S16, false) => ld_fn::<S16In32>(a),
        (B32 | U32 | S32 | F32 | F16x2 | BF16x2, false) => ld_fn::<B32In32>(a),
        (B8 | U8, true) => ld_fn::<U8In64>(a),
        (S8, true) => ld_fn::<S8In64>(a),
        (B16 | U16, true) => ld_fn::<U16In64>(a),
        (S16, true) => ld_fn::<S16In64>(a),
        (B32 | U32, true) => ld_fn::<U32In64>(a),
        (S32, true) => ld_fn::<S32In64>(a),
        (B64 | U64 | S64 | F64, true) => ld_fn::<B64In64>(a),
        _ => return Err(Why::unsupported("a load of this type into this register")),
    })
}

fn store_form(t: Type, wide: bool, a: &Address) -> R<OpFn> {
    Ok(match (t.size(), wide) {
        (1, false) => st_fn::<U8In32>(a),
        (2, false) => st_fn::<U16In32>(a),
        (4, false) => st_fn::<B32In32>(a),
        (1, true) => st_fn::<U8In64>(a),
        (2, true) => st_fn::<U16In64>(a),
        (4, true) => st_fn::<U32In64>(a),
        (8, true) => st_fn::<B64In64>(a),
        _ => return Err(Why::unsupported("a store of this type from this register")),
    })
}

/// The elements of a vector operand, or the operand itself.
pub(super) fn elements(op_: &Operand) -> &[Operand] {
    match op_ {
        Operand::Vector(v) => v,
        other => std::slice::from_ref(other),
    }
}

fn vector_count(m: &mut Mods<'_>) -> usize {
    m.one(&[("v2", 2), ("v4", 4), ("v8", 8)]).unwrap_or(1)
}

/// Most bytes that one executable instruction moves.
const PART: usize = 16;

/// Number of vector elements that one executable instruction moves. An access of 32 bytes, which
/// only global memory allows, becomes two instructions.
fn part(count: usize, t: Type, registers: usize, global: bool) -> R<usize> {
    let bytes = count * t.size();
    let served = match bytes {
        ..=PART => count <= 4,
        _ => global && bytes == 2 * PART,
    };
    if registers != count || !served {
        return Err(Why::invalid("vector width and registers differ"));
    }
    Ok(count.min(PART / t.size()))
}

/// Copies the address register, so that the first of two loads cannot overwrite the address of the
/// second.
fn kept(f: &mut Func<'_, '_>, mut a: Address) -> R<Address> {
    if a.narrow {
        return Err(Why::unsupported("32 bytes at an address of 32 bits"));
    }
    if a.reg != NONE {
        let d = f.temporary64()?;
        f.emit(Inst {
            run: op_plain::<crate::exec::ops::memory::Lea>(),
            d,
            a: a.reg,
            guard: NONE,
            ..f.blank()
        });
        a.reg = d;
    }
    Ok(a)
}

fn load<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let global = m.base == "ld" && m.left().contains(&"global");
    let named = named(m);
    let hint = m.has("L2::cache_hint");
    ignore_hints(m);
    let count = vector_count(m);
    let t = m.ty()?;
    Func::count(ops, if hint { 3 } else { 2 })?;
    let regs = elements(&ops[0]);
    let part = part(count, t, regs.len(), global)?;
    let wide = match regs.iter().find(|r| **r != Operand::Sink) {
        Some(r) => f.width(r) == 64,
        None => t.size() == 8,
    };
    let a = address(f, &ops[1], named)?;
    if a.kernel_param && count == 1 && t.size() == if wide { 8 } else { 4 } {
        // The parameter is a column, so the load needs no instruction. An invalid destination is
        // reported where the register is used.
        if f.is_param(&regs[0], a.offset, wide) {
            return Ok(());
        }
    }
    let run = load_form(t, wide, &a)?;
    let (memo, mut a) = match part < count {
        true => (0, kept(f, a)?),
        false => (f.memo(&ops[1]), a),
    };
    for regs in regs.chunks(part) {
        let mut dst = [NONE; 4];
        for (slot, r) in dst.iter_mut().zip(regs) {
            // In a vector, the element `_` is not loaded. A load to a single `_` still runs, and
            // may fault.
            if count == 1 || *r != Operand::Sink {
                *slot = f.dst(r, wide)?;
            }
        }
        let [d, ra, b, c] = dst;
        f.emit(Inst {
            run,
            d,
            a: ra,
            b,
            c,
            e: a.reg,
            imm: imm_of(&a, part) | memo,
            ..f.blank()
        });
        a.offset += PART as i64;
    }
    Ok(())
}

fn store<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let global = m.left().contains(&"global");
    let named = named(m);
    let hint = m.has("L2::cache_hint");
    ignore_hints(m);
    let count = vector_count(m);
    let t = m.ty()?;
    Func::count(ops, if hint { 3 } else { 2 })?;
    let values = elements(&ops[1]);
    let part = part(count, t, values.len(), global)?;
    let wide = match values.iter().map(|v| f.width(v)).find(|w| *w != 0) {
        Some(w) => w == 64,
        None => t.size() == 8,
    };
    let a = address(f, &ops[0], named)?;
    if a.kernel_param {
        return Err(Why::invalid("a store to a kernel parameter"));
    }
    let run = store_form(t, wide, &a)?;
    let memo = match part < count {
        true => 0,
        false => f.memo(&ops[0]),
    };
    let want = match (t, wide) {
        (Type::F32, false) => Want::F32,
        (Type::F64, true) => Want::F64,
        (_, true) => Want::I64,
        (_, false) => Want::I32,
    };
    let mut a = a;
    for values in values.chunks(part) {
        let mut src = [NONE; 4];
        for (slot, v) in src.iter_mut().zip(values) {
            *slot = f.src(v, want)?;
        }
        let [d, ra, b, c] = src;
        f.emit(Inst {
            run,
            d,
            a: ra,
            b,
            c,
            e: a.reg,
            imm: imm_of(&a, part) | memo,
            ..f.blank()
        });
        a.offset += PART as i64;
    }
    Ok(())
}

fn rmw_fn<F: Rmw>(a: &Address) -> OpFn {
    match a.space {
        space::GLOBAL => op_plain::<Atom<F, { space::GLOBAL }>>(),
        space::SHARED => op_plain::<Atom<F, { space::SHARED }>>(),
        space::LOCAL => op_plain::<Atom<F, { space::LOCAL }>>(),
        _ => op_plain::<Atom<F, { space::GENERIC }>>(),
    }
}

const ATOMS: [(&str, &str); 10] = [
    ("add", "add"),
    ("min", "min"),
    ("max", "max"),
    ("and", "and"),
    ("or", "or"),
    ("xor", "xor"),
    ("exch", "exch"),
    ("cas", "cas"),
    ("inc", "inc"),
    ("dec", "dec"),
];

fn atom_form(name: &str, t: Type, a: &Address) -> Option<OpFn> {
    use Type::*;
    Some(match (name, t) {
        ("add", U32 | S32) => rmw_fn::<at::Add32>(a),
        ("add", U64 | S64) => rmw_fn::<at::Add64>(a),
        ("add", F32) => rmw_fn::<at::AddF32>(a),
        ("add", F64) => rmw_fn::<at::AddF64>(a),
        ("add", F16) => rmw_fn::<at::AddHalf>(a),
        ("add", BF16) => rmw_fn::<at::AddBrain>(a),
        ("add", F16x2) => rmw_fn::<at::AddHalves>(a),
        ("add", BF16x2) => rmw_fn::<at::AddBrains>(a),
        ("min", U32) => rmw_fn::<at::MinU32>(a),
        ("min", S32) => rmw_fn::<at::MinS32>(a),
        ("min", U64) => rmw_fn::<at::MinU64>(a),
        ("min", S64) => rmw_fn::<at::MinS64>(a),
        ("max", U32) => rmw_fn::<at::MaxU32>(a),
        ("max", S32) => rmw_fn::<at::MaxS32>(a),
        ("max", U64) => rmw_fn::<at::MaxU64>(a),
        ("max", S64) => rmw_fn::<at::MaxS64>(a),
        ("and", B32 | U32 | S32) => rmw_fn::<at::And32>(a),
        ("and", B64 | U64 | S64) => rmw_fn::<at::And64>(a),
        ("or", B32 | U32 | S32) => rmw_fn::<at::Or32>(a),
        ("or", B64 | U64 | S64) => rmw_fn::<at::Or64>(a),
        ("xor", B32 | U32 | S32) => rmw_fn::<at::Xor32>(a),
        ("xor", B64 | U64 | S64) => rmw_fn::<at::Xor64>(a),
        ("exch", B32 | U32 | S32 | F32) => rmw_fn::<at::Exch32>(a),
        ("exch", B64 | U64 | S64 | F64) => rmw_fn::<at::Exch64>(a),
        ("cas", B16 | U16 | S16) => rmw_fn::<at::Cas16>(a),
        ("cas", B32 | U32 | S32 | F32) => rmw_fn::<at::Cas32>(a),
        ("cas", B64 | U64 | S64 | F64) => rmw_fn::<at::Cas64>(a),
        ("inc", U32) => rmw_fn::<at::Inc32>(a),
        ("dec", U32) => rmw_fn::<at::Dec32>(a),
        _ => return None,
    })
}

fn atom<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let named = named(m);
    let hint = m.has("L2::cache_hint");
    ignore_hints(m);
    m.ignore(&["noftz"]);
    let name = m
        .one(&ATOMS)
        .ok_or_else(|| Why::unsupported("this atomic operation"))?;
    let t = m.ty()?;
    let ops = if hint {
        &ops[..ops.len().saturating_sub(1)]
    } else {
        ops
    };
    let result = usize::from(m.base == "atom");
    let values = if name == "cas" { 2 } else { 1 };
    Func::count(ops, result + 1 + values)?;
    let a = address(f, &ops[result], named)?;
    if a.kernel_param {
        return Err(Why::invalid("an atomic on a kernel parameter"));
    }
    let run = atom_form(name, t, &a).ok_or_else(|| Why::unsupported("this atomic form"))?;
    let want = Want::of(t)?;
    let mut inst = Inst {
        run,
        e: a.reg,
        imm: imm_of(&a, 1),
        ..f.blank()
    };
    if result == 1 && ops[0] != Operand::Sink {
        inst.d = f.dst(&ops[0], t.size() == 8)?;
    }
    inst.b = f.src(&ops[result + 1], want)?;
    if values == 2 {
        inst.c = f.src(&ops[result + 2], want)?;
    }
    f.emit(inst);
    Ok(())
}

/// `createpolicy` makes a cache policy, an opaque word that accesses take as their last operand.
/// Policies have no effect here, so all of them are equal.
fn policy<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    const POLICY: u64 = 0x10f0_0000_0000_0000;
    let kind = m.one(&[("fractional", (1, 2)), ("range", (4, 4)), ("cvt", (2, 2))]);
    let (least, most) = kind.ok_or_else(|| Why::invalid("createpolicy of no kind"))?;
    m.ignore(&["global", "L2"]);
    m.ignore_prefix("L2::");
    if m.ty()? != Type::B64 || !(least..=most).contains(&ops.len()) {
        return Err(Why::invalid("createpolicy of this shape"));
    }
    let d = f.dst(&ops[0], true)?;
    let a = f.m.const64(POLICY)?;
    f.emit(Inst {
        run: super::arith::copy(true),
        d,
        a,
        ..f.blank()
    });
    Ok(())
}
