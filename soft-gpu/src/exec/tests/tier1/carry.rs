//! Extended-precision arithmetic: result and carry, compared with 128-bit integers.

use super::super::eval::triples;
use super::integer::{cut, read, reg, shape, values};
use super::{Case, Rows, Want, code, forms, rows};

/// Rows of three operands and an incoming carry.
fn inputs(bits: u32) -> Rows {
    let v = values(bits);
    rows(
        triples(v, v, &v[..6])
            .into_iter()
            .flat_map(|r| [0, 1].map(|c| vec![r[0], r[1], r[2], c]))
            .collect(),
    )
}

/// Two ways to set the flag to `%e`: `e + (2^32 - 1)` carries if `e` is 1, and `e - 1` does not
/// borrow if `e` is 1.
const SET: [&str; 2] = ["add.cc.u32 %x0, %e, 0xffffffff;", "sub.cc.u32 %x0, %e, 1;"];

/// Two ways to read the flag: `0 + 0 + carry`, and `1 - 0 - borrow`.
const LOOK: [&str; 2] = ["addc.u32 %d, 0, 0;", "subc.u32 %d, 1, 0;"];

/// Runs a form with the carry flag set to the fourth input, and checks the result and the new flag.
/// Additions and subtractions share the flag, so the test uses both ways to set and both ways to
/// read it.
fn all(
    form: &str,
    bits: u32,
    operands: &str,
    want: impl Fn(&[u64]) -> (u64, bool) + Clone + 'static,
) -> Vec<Case> {
    let r = reg(bits);
    let srcs = [r, r, r, "b32"];
    let sink = if bits == 64 { "%y0" } else { "%x1" };
    let mut out = Vec::new();
    for set in SET {
        let value = format!("{set} {form} %d, {operands};");
        let want = want.clone();
        out.push(code(form, &value, r, &srcs, &inputs(bits), move |r| {
            Want::Bits(want(r).0)
        }));
    }
    for (set, look) in SET.into_iter().zip(LOOK.into_iter().rev()) {
        let flag = format!("{set} {form} {sink}, {operands}; {look}");
        let want = want.clone();
        out.push(code(form, &flag, "b32", &srcs, &inputs(bits), move |r| {
            Want::Bits(u64::from(want(r).1))
        }));
    }
    out
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
        out.extend(all(&form, bits, "%a, %b", move |r| {
            let (a, b, flag) = (i128::from(r[0]), i128::from(r[1]), i128::from(r[3]));
            // A subtraction subtracts one more if the flag is 0, and clears the flag if it borrows.
            let (v, carried) = if minus {
                let v = a - b - if uses { 1 - flag } else { 0 };
                (v, v >= 0)
            } else {
                let v = a + b + if uses { flag } else { 0 };
                (v, v >> bits != 0)
            };
            (cut(v, bits), if sets { carried } else { flag != 0 })
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
        out.extend(all(&form, bits, "%a, %b, %c", move |r| {
            let product = read(r[0], bits, signed).wrapping_mul(read(r[1], bits, signed));
            // An unsigned 64-bit product uses all 128 bits.
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
