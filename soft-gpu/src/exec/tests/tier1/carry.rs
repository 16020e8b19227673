//! Extended-precision arithmetic: result and carry against 256 bits' worth of care in 128.

use super::super::eval::triples;
use super::integer::{cut, read, reg, shape, values};
use super::{Case, Rows, Want, code, forms, rows};

/// Operands and an incoming carry.
fn inputs(bits: u32) -> Rows {
    let v = values(bits);
    rows(
        triples(v, v, &v[..6])
            .into_iter()
            .flat_map(|r| [0, 1].map(|c| vec![r[0], r[1], r[2], c]))
            .collect(),
    )
}

/// Runs a form with the carry flag set to the fourth input; looks once at the result and once at
/// the carry that it leaves.
fn both(
    form: &str,
    bits: u32,
    operands: &str,
    want: impl Fn(&[u64]) -> (u64, bool) + Clone + 'static,
) -> [Case; 2] {
    let r = reg(bits);
    let srcs = [r, r, r, "b32"];
    // 2^32 - 1 plus the input carries exactly if the input is one.
    let set = "add.cc.u32 %x0, %e, 0xffffffff;";
    let value = format!("{set} {form} %d, {operands};");
    let sink = if bits == 64 { "%y0" } else { "%x1" };
    let carry = format!("{set} {form} {sink}, {operands}; addc.u32 %d, 0, 0;");
    let (first, second) = (want.clone(), want);
    [
        code(form, &value, r, &srcs, &inputs(bits), move |r| {
            Want::Bits(first(r).0)
        }),
        code(form, &carry, "b32", &srcs, &inputs(bits), move |r| {
            Want::Bits(u64::from(second(r).1))
        }),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("{add,sub,addc,subc}{,.cc}.{u32,s32,u64,s64}") {
        let sets = p.len() == 3;
        let uses = p[0].ends_with('c');
        if !sets && !uses {
            continue;
        }
        let bits = shape(p.last().unwrap()).0;
        let minus = p[0].starts_with("sub");
        out.extend(both(&form, bits, "%a, %b", move |r| {
            let c = i128::from(if uses { r[3] } else { 0 });
            let (a, b) = (i128::from(r[0]), i128::from(r[1]));
            let v = if minus { a - b - c } else { a + b + c };
            let carried = v < 0 || v >> bits != 0;
            (cut(v, bits), if sets { carried } else { r[3] != 0 })
        }));
    }
    for (form, p) in forms("{mad,madc}.{lo,hi}{,.cc}.{u32,s32,u64,s64}") {
        let sets = p.len() == 4;
        let uses = p[0] == "madc";
        if !sets && !uses {
            continue;
        }
        let (bits, signed) = shape(p.last().unwrap());
        let high = p[1] == "hi";
        out.extend(both(&form, bits, "%a, %b, %c", move |r| {
            let product = read(r[0], bits, signed).wrapping_mul(read(r[1], bits, signed));
            // An unsigned 64-bit product fills all 128 bits.
            let half = if high {
                (product as u128 >> bits) as i128
            } else {
                product
            };
            let c = if uses { r[3] } else { 0 };
            let v = i128::from(cut(half, bits)) + i128::from(r[2]) + i128::from(c);
            (cut(v, bits), if sets { v >> bits != 0 } else { r[3] != 0 })
        }));
    }
    out
}
