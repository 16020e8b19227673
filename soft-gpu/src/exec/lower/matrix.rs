//! Warp-level matrix instructions: `mma`, `wmma`, `ldmatrix`, `stmatrix`, `movmatrix`.

use super::float::rounding;
use super::func::Func;
use super::memory::{Named, address, elements, imm_of, named};
use super::mods::Mods;
use super::operand::Want;
use super::{R, Why};
#[cfg(target_arch = "x86_64")]
use crate::exec::inst::has_wide;
use crate::exec::inst::{Inst, NONE, OpFn, op, op_plain};
use crate::exec::ops::element::layout::NARROW;
use crate::exec::ops::element::space;
use crate::exec::ops::fragment::{Elem, Matrix, Product, Role, Shape};
use crate::exec::ops::half::{Brain, Half};
#[cfg(not(target_arch = "x86_64"))]
use crate::exec::ops::mma::Factor;
use crate::exec::ops::mma::{Doubles, Eights, Floats, Integers, Mma, SingleBits, Tf32};
use crate::exec::ops::quad::MmaQuad;
use crate::exec::ops::rows::{LdMatrix, MovMatrix, StMatrix, TRANSPOSED};
#[cfg(target_arch = "x86_64")]
use crate::exec::ops::wide::{DoublesWide, MmaWide, Narrow, Singles};
use crate::exec::ops::wmma::{WmmaLoad, WmmaStore};
use crate::exec::round::Mode;
use crate::ptx::ast::Operand;

/// Lowers matrix instructions. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    if !matches!(
        m.base,
        "mma" | "wmma" | "ldmatrix" | "stmatrix" | "movmatrix"
    ) {
        return Ok(false);
    }
    if m.left().contains(&"sp") || m.left().contains(&"sp::ordered_metadata") {
        return Err(Why::unsupported("sparse matrices are not served"));
    }
    if !m.has("sync") || !m.has("aligned") {
        // In PTX before 6.3, `wmma` had neither `.sync` nor `.aligned`.
        if m.base != "wmma" {
            return Err(Why::invalid(".sync.aligned is missing"));
        }
    }
    let product = m.has("mma");
    match m.base {
        "mma" => mma(f, m, ops)?,
        "wmma" if product => wmma(f, m, ops)?,
        "wmma" => transfer(f, m, ops)?,
        "movmatrix" => {
            if !(m.has("m8n8") && m.has("trans") && m.has("b16")) {
                return Err(Why::invalid("movmatrix is .m8n8.trans.b16"));
            }
            f.plan(op_plain::<MovMatrix>(), "i=i", ops, 0)?;
        }
        _ => rows(f, m, ops)?,
    }
    Ok(true)
}

/// Takes the sizes (`m16n8k16`).
fn shape(m: &mut Mods<'_>) -> R<Shape> {
    let found = m
        .left()
        .iter()
        .find_map(|n| Shape::named(n).map(|s| (n.to_string(), s)));
    let (name, shape) = found.ok_or_else(|| Why::unsupported("these sizes are not served"))?;
    m.has(&name);
    Ok(shape)
}

/// Takes a layout. Returns true for the layout by columns.
fn layout(m: &mut Mods<'_>) -> R<bool> {
    m.one(&[("row", false), ("col", true)])
        .ok_or_else(|| Why::invalid("a layout is missing"))
}

/// Takes all remaining modifiers, which must be types.
fn types(m: &mut Mods<'_>) -> R<Vec<Elem>> {
    let mut out = Vec::new();
    for name in m.left() {
        let e = Elem::named(name);
        out.push(e.ok_or_else(|| Why::unsupported(format!("modifier .{name} is not served")))?);
    }
    m.clear();
    Ok(out)
}

/// Takes the modifiers of a product. The caller sets the types.
fn product(m: &mut Mods<'_>) -> R<Product> {
    let shape = shape(m)?;
    let by_column = [layout(m)?, layout(m)?];
    let clamp = m.has("satfinite");
    let mode = rounding(m).unwrap_or(Mode::Nearest) as u64;
    let and = m.has("and");
    let bits = m.has("xor") || and;
    if bits != m.has("popc") {
        return Err(Why::invalid(
            "an operation on bits is .xor.popc or .and.popc",
        ));
    }
    Ok(Product {
        shape,
        elems: [Elem::F16; 4],
        clamp,
        and,
        by_column,
        mode,
        in_place: false,
    })
}

/// Sizes (m, k) of `mma` for a type of A and B.
fn mma_sizes(e: Elem) -> &'static [(u32, u32)] {
    match e {
        Elem::F16 | Elem::BF16 => &[(16, 8), (16, 16)],
        Elem::TF32 => &[(16, 4), (16, 8)],
        Elem::F64 => &[(8, 4), (16, 4), (16, 8), (16, 16)],
        Elem::E4M3 | Elem::E5M2 => &[(16, 16), (16, 32)],
        Elem::S8 | Elem::U8 => &[(8, 16), (16, 16), (16, 32)],
        Elem::S4 | Elem::U4 => &[(8, 32), (16, 32), (16, 64)],
        Elem::B1 => &[(8, 128), (16, 128), (16, 256)],
        Elem::F32 | Elem::S32 => &[],
    }
}

/// `mma.sync.aligned.shape.alayout.blayout.dtype.atype.btype.ctype d, a, b, c`.
fn mma<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let mut p = product(m)?;
    let [d, a, b, c] = types(m)?[..] else {
        return Err(Why::invalid("mma names four types"));
    };
    p.elems = [a, b, c, d];
    let Shape { m: rows, n, k } = p.shape;
    if (rows, n, k) == (8, 8, 4) && a == Elem::F16 {
        return quad(f, p, ops);
    }
    if n != 8 || !mma_sizes(a).contains(&(rows, k)) {
        return Err(Why::unsupported("these sizes are not served"));
    }
    if p.by_column != [false, true] {
        return Err(Why::invalid("the layouts are .row.col"));
    }
    if c != d {
        return Err(Why::invalid("C and D have one type"));
    }
    multiply(f, p, ops, None)
}

/// `wmma.mma.sync.aligned.alayout.blayout.shape…`. For halves, the opcode names only the types of D
/// and C.
fn wmma<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let mut p = product(m)?;
    p.elems = match types(m)?[..] {
        [d, c] => [Elem::F16, Elem::F16, c, d],
        [d, a, b, c] => [a, b, c, d],
        _ => return Err(Why::invalid("wmma.mma names two types or four")),
    };
    wmma_sizes(p.shape, p.elems[0])?;
    if p.elems[0] == Elem::F16 && p.clamp {
        return Err(Why::unsupported(".satfinite of halves"));
    }
    let halves = p.elems[0] == Elem::F16;
    multiply(f, p, ops, halves.then_some(8))
}

/// Checks that `wmma` has this size for the type of A and B.
fn wmma_sizes(s: Shape, e: Elem) -> R<()> {
    let size = (s.m, s.n, s.k);
    let served = match e {
        Elem::F16 | Elem::BF16 | Elem::S8 | Elem::U8 => {
            matches!(size, (16, 16, 16) | (8, 32, 16) | (32, 8, 16))
        }
        Elem::TF32 => size == (16, 16, 8),
        Elem::F64 => size == (8, 8, 4),
        Elem::S4 | Elem::U4 => size == (8, 8, 32),
        Elem::B1 => size == (8, 8, 128),
        Elem::F32 | Elem::S32 | Elem::E4M3 | Elem::E5M2 => false,
    };
    if served {
        return Ok(());
    }
    Err(Why::unsupported("these sizes are not served"))
}

/// The operation for narrow floats with sums of these types. Uses vector instructions if the CPU
/// has them.
#[cfg(target_arch = "x86_64")]
fn floats<T: Narrow<PACKED>, const PACKED: usize>(sums: [Elem; 2]) -> OpFn {
    match (has_wide(), sums) {
        (true, [Elem::F32, Elem::F32]) => op::<MmaWide<Singles<T, PACKED>>>(),
        (true, _) => op::<Mma<Floats<T, PACKED, true>>>(),
        _ => op::<Mma<Floats<T, PACKED, false>>>(),
    }
}

/// The operation for narrow floats.
#[cfg(not(target_arch = "x86_64"))]
fn floats<T: Factor, const PACKED: usize>(_: [Elem; 2]) -> OpFn {
    op::<Mma<Floats<T, PACKED, false>>>()
}

/// The operation for doubles. Uses vector instructions if the CPU has them.
fn doubles() -> OpFn {
    #[cfg(target_arch = "x86_64")]
    if has_wide() {
        return op::<MmaWide<DoublesWide>>();
    }
    op::<Mma<Doubles>>()
}

/// The operation for a product of these types.
fn operation(p: &Product) -> R<OpFn> {
    use Elem::*;
    let integer = |e: Elem| matches!(e, S8 | U8 | S4 | U4);
    let [a, b, c, d] = p.elems;
    let run = match (a, b, c, d) {
        _ if p.clamp && !integer(a) => None,
        (F16, F16, F16 | F32, F16 | F32) => Some(floats::<Half, 2>([c, d])),
        (BF16, BF16, F32, F32) => Some(floats::<Brain, 2>([c, d])),
        (TF32, TF32, F32, F32) => Some(floats::<Tf32, 1>([c, d])),
        (E4M3 | E5M2, E4M3 | E5M2, F16 | F32, F16 | F32) => Some(op::<Mma<Eights>>()),
        (F64, F64, F64, F64) => Some(doubles()),
        (B1, B1, S32, S32) => Some(op::<Mma<SingleBits>>()),
        (a, b, S32, S32) if integer(a) && integer(b) && a.bits() == b.bits() => match a.bits() {
            8 => Some(op::<Mma<Integers<4, 32>>>()),
            _ => Some(op::<Mma<Integers<8, 64>>>()),
        },
        _ => None,
    };
    run.ok_or_else(|| Why::unsupported("a product of these types is not served"))
}

/// Emits a product. If `given` is set, A and B are given in that many registers; those after the
/// first [`Product::counts`] registers repeat earlier ones and are ignored.
fn multiply<'m>(
    f: &mut Func<'_, 'm>,
    p: Product,
    ops: &'m [Operand],
    given: Option<usize>,
) -> R<()> {
    let run = operation(&p)?;
    let [a, b, c, d] = p.elems;
    let used = p.counts();
    let written = [
        used[0],
        given.unwrap_or(used[1]),
        given.unwrap_or(used[2]),
        used[3],
    ];
    emit_product(f, run, p, ops, [d, a, b, c], [written, used])
}

/// `mma.m8n8k4` of halves.
fn quad<'m>(f: &mut Func<'_, 'm>, p: Product, ops: &'m [Operand]) -> R<()> {
    let [a, b, c, d] = p.elems;
    let sums = |e| match e {
        Elem::F16 => Ok(4),
        Elem::F32 => Ok(8),
        _ => Err(Why::invalid("halves add up to .f16 or .f32")),
    };
    if b != Elem::F16 || p.clamp {
        return Err(Why::invalid("a product of these types"));
    }
    let counts = [sums(d)?, 2, 2, sums(c)?];
    emit_product(f, op_plain::<MmaQuad>(), p, ops, [d, a, b, c], [counts; 2])
}

/// The columns of the registers of a fragment.
fn registers(f: &mut Func<'_, '_>, op_: &Operand, e: Elem, to: bool) -> R<Vec<u32>> {
    let want = match e {
        Elem::F64 => Want::F64,
        Elem::F32 => Want::F32,
        _ => Want::I32,
    };
    let each = |o: &Operand| {
        if to {
            f.dst(o, e.wide())
        } else {
            f.src(o, want)
        }
    };
    elements(op_).iter().map(each).collect()
}

/// Emits a product. `elems` are the types of D, A, B and C. `counts` has, for each of them, the
/// number of registers that PTX lists and the number that the product uses.
fn emit_product<'m>(
    f: &mut Func<'_, 'm>,
    run: OpFn,
    p: Product,
    ops: &'m [Operand],
    elems: [Elem; 4],
    counts: [[usize; 4]; 2],
) -> R<()> {
    Func::count(ops, 4)?;
    let [written, used] = counts;
    let mut list = Vec::new();
    for (n, (o, e)) in ops.iter().zip(elems).enumerate() {
        let regs = registers(f, o, e, n == 0)?;
        if regs.len() != written[n] {
            return Err(Why::invalid(format!(
                "a fragment of {} registers, expected {}",
                regs.len(),
                written[n]
            )));
        }
        list.extend_from_slice(&regs[..used[n]]);
    }
    let e = f.m.operand_list(&list)?;
    let p = Product {
        in_place: in_place(&p, &list, used),
        ..p
    };
    let [d, a, b, c] = used.map(|n| n as u32);
    f.emit(Inst {
        run,
        d,
        a,
        b,
        c,
        e,
        imm: p.code(),
        ..f.blank()
    });
    Ok(())
}

/// Whether D can be written while the operands are still being read. The operation writes D in
/// pairs of registers, each after it has read the same pair of C. So no register of D may be a
/// register of A or B, or of a later pair of C.
fn in_place(p: &Product, list: &[u32], [d, a, b, _]: [usize; 4]) -> bool {
    let [_, _, of_c, of_d] = p.elems;
    let (d, rest) = list.split_at(d);
    let (factors, c) = rest.split_at(a + b);
    let of_later = |n: usize, reg| c.iter().skip((n / 2 + 1) * 2).any(|c| *c == reg);
    let mut results = d.iter().enumerate();
    of_c == of_d && results.all(|(n, reg)| !factors.contains(reg) && !of_later(n, *reg))
}

/// `wmma.load.{a,b,c}` and `wmma.store.d`, with `.sync.aligned.layout.shape{.ss}.type`. The
/// operands are registers, `[p]` and a stride.
fn transfer<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let store = m.has("store");
    if !store && !m.has("load") {
        return Err(Why::invalid("wmma is .load, .store or .mma"));
    }
    let part = m.one(&[
        ("a", Role::A),
        ("b", Role::B),
        ("c", Role::C),
        ("d", Role::C),
    ]);
    let role = part.ok_or_else(|| Why::invalid("the matrix is .a, .b, .c or .d"))?;
    let shape = shape(m)?;
    let by_column = layout(m)?;
    let named = named(m);
    let [elem] = types(m)?[..] else {
        return Err(Why::invalid("one type"));
    };
    let matrix = Matrix {
        shape,
        elem,
        role,
        by_column,
        space: match named {
            Named::Global => space::GLOBAL,
            Named::Shared => space::SHARED,
            Named::Generic => space::GENERIC,
            _ => return Err(Why::invalid("matrices are in global or shared memory")),
        },
    };
    check(&matrix, store)?;
    if !(2..=3).contains(&ops.len()) {
        return Err(Why::invalid("wrong number of operands"));
    }
    let (regs, at) = if store {
        (&ops[1], &ops[0])
    } else {
        (&ops[0], &ops[1])
    };
    let (rows, cols) = matrix.size();
    let a = match ops.get(2) {
        Some(stride) => f.src(stride, Want::I32)?,
        None => f.m.const32(if by_column { rows } else { cols })?,
    };
    let columns = registers(f, regs, elem, !store)?;
    let halves = elem == Elem::F16 && role != Role::C;
    let count = shape.registers(role, elem.packed()) as usize;
    if columns.len() != if halves { 8 } else { count } {
        return Err(Why::invalid(format!(
            "a fragment of {} registers",
            columns.len()
        )));
    }
    let mut list = vec![columns.len() as u32];
    list.extend(columns);
    let b = f.m.operand_list(&list)?;
    let mut address = address(f, at, named)?;
    if address.space == space::LOCAL || address.kernel_param {
        return Err(Why::invalid("matrices are in global or shared memory"));
    }
    let run = if store {
        op::<WmmaStore>()
    } else {
        op::<WmmaLoad>()
    };
    let inst = Inst {
        run,
        a,
        b,
        c: Matrix {
            space: std::mem::replace(&mut address.space, space::GENERIC),
            ..matrix
        }
        .code(),
        e: address.reg,
        imm: imm_of(&address, 1),
        ..f.blank()
    };
    if !store {
        announce(f, &inst);
    }
    f.emit(inst);
    Ok(())
}

/// Sets the address register of this load in the load before it, which prefetches the register. The
/// result does not depend on the prefetch, so the register may be any.
fn announce(f: &mut Func<'_, '_>, inst: &Inst) {
    let at = f.m.code.len();
    let before = f.matrix_load.replace(at);
    if let Some(before) = before.and_then(|at| f.m.code.get_mut(at))
        && inst.e != NONE
        && (before.imm ^ inst.imm) & NARROW == 0
    {
        before.d = inst.e;
    }
}

/// Checks that type, part and sizes of a matrix fit together.
fn check(x: &Matrix, store: bool) -> R<()> {
    use Elem::*;
    let s = x.shape;
    let sizes = |e| wmma_sizes(s, e);
    let by_nibbles = x.elem.bits() < 8;
    match (x.role, x.elem) {
        (Role::C, F16) => sizes(F16),
        (Role::C, F32) => sizes(F16).or_else(|_| sizes(TF32)),
        (Role::C, S32) => sizes(S8).or_else(|_| sizes(S4)).or_else(|_| sizes(B1)),
        (Role::C, F64) => sizes(F64),
        (Role::C, _) | (_, F32 | S32 | E4M3 | E5M2) => Err(Why::invalid("a matrix of this type")),
        _ if store => Err(Why::invalid("only D is stored")),
        (role, _) if by_nibbles && x.by_column != (role == Role::B) => {
            Err(Why::invalid("A is by rows and B by columns"))
        }
        (_, e) => sizes(e),
    }
}

/// `ldmatrix.sync.aligned.m8n8.num{.trans}{.ss}.b16 r, [p]`, and `stmatrix` with the operands
/// exchanged.
fn rows<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<()> {
    let store = m.base == "stmatrix";
    if !m.has("m8n8") || !m.has("b16") {
        return Err(Why::unsupported("only .m8n8 with .b16 is served"));
    }
    let count = m.one(&[("x1", 1), ("x2", 2), ("x4", 4)]);
    let count: usize = count.ok_or_else(|| Why::invalid("a number of matrices is missing"))?;
    let transposed = m.has("trans");
    let named = named(m);
    Func::count(ops, 2)?;
    let (regs, at) = if store {
        (&ops[1], &ops[0])
    } else {
        (&ops[0], &ops[1])
    };
    let columns = registers(f, regs, Elem::F16, !store)?;
    if columns.len() != count {
        return Err(Why::invalid("the number of registers differs"));
    }
    let a = address(f, at, named)?;
    let run = match (a.space, store) {
        (space::SHARED, false) => op::<LdMatrix<{ space::SHARED }>>(),
        (space::GENERIC, false) => op::<LdMatrix<{ space::GENERIC }>>(),
        (space::SHARED, true) => op_plain::<StMatrix<{ space::SHARED }>>(),
        (space::GENERIC, true) => op_plain::<StMatrix<{ space::GENERIC }>>(),
        _ => return Err(Why::invalid("the rows are in shared memory")),
    };
    let at = |k: usize| columns.get(k).copied().unwrap_or(columns[0]);
    f.emit(Inst {
        run,
        d: columns[0],
        a: at(1),
        b: at(2),
        c: at(3),
        e: a.reg,
        imm: imm_of(&a, count) | if transposed { TRANSPOSED } else { 0 },
        ..f.blank()
    });
    Ok(())
}
