//! Atomics: the old and the new value of each operation, for each type and state space.

use super::super::eval::triples;
use super::float::{edges32, edges64, flush};
use super::integer::{cut, read, shape, values};
use super::{Case, Rows, Want, code, rows};

/// The result of an operation on `old` with operands `b` and `c`.
fn apply(op: &str, ty: &str, global: bool, old: u64, b: u64, c: u64) -> Want {
    let (bits, signed) = shape(ty);
    let (x, y) = (read(old, bits, signed), read(b, bits, signed));
    Want::Bits(match (op, ty) {
        ("add", "f32") => {
            // By the PTX manual, subnormals are flushed in global memory and kept in shared memory.
            let f = |v: u64| {
                let x = f32::from_bits(v as u32);
                if global { flush(x) } else { x }
            };
            let sum = f(old) + f(b);
            return Want::Single(if global { flush(sum) } else { sum });
        }
        ("add", "f64") => return Want::Double(f64::from_bits(old) + f64::from_bits(b)),
        ("add", _) => cut(x + y, bits),
        ("min", _) => cut(x.min(y), bits),
        ("max", _) => cut(x.max(y), bits),
        ("and", _) => old & b,
        ("or", _) => old | b,
        ("xor", _) => old ^ b,
        ("exch", _) => b,
        ("cas", _) if old == b => c,
        ("cas", _) => old,
        ("inc", _) if old >= b => 0,
        ("inc", _) => old + 1,
        ("dec", _) if old == 0 || old > b => b,
        ("dec", _) => old - 1,
        other => panic!("{other:?}"),
    })
}

fn inputs(ty: &str) -> Rows {
    let v = match ty {
        "f32" => edges32()[..14].to_vec(),
        "f64" => edges64()[..14].to_vec(),
        _ => values(shape(ty).0).to_vec(),
    };
    rows(triples(&v, &v, &[v[2], v[3]]))
}

/// Code that gives each thread a cell, and the address operand of the cell.
fn cell(space: &str) -> (&'static str, &'static str) {
    match space {
        "global" => (
            ".global .align 16 .b8 cells[65536]; mov.u64 %y0, cells; mad.wide.u32 %y0, %i, 16, %y0;",
            "%y0",
        ),
        "shared" => (
            ".shared .align 16 .b8 cells[1024]; mov.u32 %x1, %tid.x; shl.b32 %x1, %x1, 4;\n\
             mov.u32 %x2, cells; add.u32 %x1, %x1, %x2;",
            "%x1",
        ),
        // Cells in shared memory with generic addresses.
        _ => (
            ".shared .align 16 .b8 cells[1024]; mov.u32 %x1, %tid.x; mov.u64 %y0, cells;\n\
             mad.wide.u32 %y0, %x1, 16, %y0; cvta.shared.u64 %y0, %y0;",
            "%y0",
        ),
    }
}

/// Cases of one form on cells in `space`. The opcode contains the space unless the space is
/// generic.
fn proofs(form: &str, p: &[String], space: &str, out: &mut Vec<Case>) {
    let ops = [
        "add", "min", "max", "and", "or", "xor", "exch", "cas", "inc", "dec",
    ];
    let op = ops.into_iter().find(|o| p.iter().any(|m| m == o)).unwrap();
    let ty = p.last().unwrap().clone();
    let reg = match ty.as_str() {
        "f32" => "f32",
        "f64" => "f64",
        t => super::integer::reg(shape(t).0),
    };
    let bits = shape(&ty).0;
    let named = p.iter().any(|m| m.split("::").next() == Some(space));
    let (setup, at) = cell(space);
    let spell = if named {
        format!(".{space}")
    } else {
        String::new()
    };
    let spell = if space == "generic" { "" } else { &spell };
    let operands = if op == "cas" { "%b, %c" } else { "%b" };
    let hint = if p.iter().any(|m| m == "L2::cache_hint") {
        "createpolicy.fractional.L2::evict_last.b64 %y1, 1.0;"
    } else {
        ""
    };
    let last = if hint.is_empty() { "" } else { ", %y1" };
    let setup = format!("{setup} {hint} st{spell}.b{bits} [{at}], %a;");
    let global = space == "global";
    let result = if p[0] == "red" { "" } else { "_, " };
    let after =
        format!("{setup} {form} {result}[{at}], {operands}{last}; ld{spell}.b{bits} %d, [{at}];");
    let op = op.to_owned();
    let rows = inputs(&ty);
    let new = move |r: &[u64]| apply(&op, &ty, global, r[0], r[1], r[2]);
    out.push(code(form, &after, reg, &[reg; 3], &rows, new));
    if p[0] == "atom" {
        let before = format!("{setup} {form} %d, [{at}], {operands}{last};");
        out.push(code(form, &before, reg, &[reg; 3], &rows, |r| {
            Want::Bits(r[0])
        }));
    }
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for form in super::listed() {
        let p: Vec<String> = form.split('.').map(str::to_owned).collect();
        if !matches!(p[0].as_str(), "atom" | "red") {
            continue;
        }
        match ["global", "shared"]
            .into_iter()
            .find(|s| p.iter().any(|m| m.split("::").next() == Some(s)))
        {
            Some(space) => proofs(&form, &p, space, &mut out),
            None => {
                proofs(&form, &p, "global", &mut out);
                proofs(&form, &p, "generic", &mut out);
            }
        }
    }
    out
}
