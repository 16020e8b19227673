//! Comparisons and selections.

use super::super::eval::pairs;
use super::float::{edges32, edges64, flush};
use super::integer::{read, reg, shape, singles, values};
use super::{Case, Rows, Want, code, forms, lane, rows};

/// The order of two values; `None` if one is NaN.
type Relation = Option<std::cmp::Ordering>;

/// Whether a comparison holds, by the tables of operators in the PTX manual.
fn holds(op: &str, r: Relation) -> bool {
    use std::cmp::Ordering::{Equal, Greater, Less};
    let ordered = match op.trim_end_matches('u') {
        _ if op == "num" => return r.is_some(),
        _ if op == "nan" => return r.is_none(),
        "eq" => r == Some(Equal),
        "ne" => matches!(r, Some(Less | Greater)),
        "lt" | "lo" => r == Some(Less),
        "le" | "ls" => matches!(r, Some(Less | Equal)),
        "gt" | "hi" => r == Some(Greater),
        "ge" | "hs" => matches!(r, Some(Greater | Equal)),
        other => panic!("{other}"),
    };
    ordered || (op.ends_with('u') && r.is_none())
}

fn relation(ty: &str, ftz: bool, a: u64, b: u64) -> Relation {
    match ty {
        "f32" => {
            let f = |v: u64| {
                let x = f32::from_bits(v as u32);
                if ftz { flush(x) } else { x }
            };
            f(a).partial_cmp(&f(b))
        }
        "f64" => f64::from_bits(a).partial_cmp(&f64::from_bits(b)),
        _ => {
            let (bits, signed) = shape(ty);
            Some(read(a, bits, signed).cmp(&read(b, bits, signed)))
        }
    }
}

/// Pairs of edge values of a type, each with both values of a predicate.
fn inputs(ty: &str) -> Rows {
    let values: Vec<u64> = match ty {
        "f32" => edges32()[..12].to_vec(),
        "f64" => edges64()[..10].to_vec(),
        _ => values(shape(ty).0).to_vec(),
    };
    rows(
        pairs(&values, &values)
            .into_iter()
            .flat_map(|r| [0, 1].map(|c| vec![r[0], r[1], c]))
            .collect(),
    )
}

fn register(ty: &str) -> &'static str {
    match ty {
        "f32" => "f32",
        "f64" => "f64",
        _ => reg(shape(ty).0),
    }
}

fn combined(how: Option<&str>, v: bool, c: bool) -> bool {
    match how {
        Some("and") => v && c,
        Some("or") => v || c,
        Some("xor") => v != c,
        _ => v,
    }
}

const INTEGERS: &str = "u16,s16,u32,s32,u64,s64";
const FLOATS: &str = "eq,ne,lt,le,gt,ge,equ,neu,ltu,leu,gtu,geu,num,nan";
const HOW: &str = "{,.and,.or,.xor}";

/// Patterns of `setp` (with an empty `d`) or `set`, for each kind of source type.
fn patterns(op: &str, d: &str) -> Vec<String> {
    vec![
        format!("{op}.{{eq,ne,lt,le,gt,ge}}{HOW}{d}.{{{INTEGERS}}}"),
        format!("{op}.{{lo,ls,hi,hs}}{HOW}{d}.{{u16,u32,u64}}"),
        format!("{op}.{{eq,ne}}{HOW}{d}.{{b16,b32,b64}}"),
        format!("{op}.{{{FLOATS}}}{HOW}{{,.ftz}}{d}.f32"),
        format!("{op}.{{{FLOATS}}}{HOW}{d}.f64"),
    ]
}

/// Splits a form into operator, combination, `.ftz` and source type.
fn parse(p: &[String]) -> (String, Option<&'static str>, bool, String) {
    let how = ["and", "or", "xor"].into_iter().find(|h| p[2] == *h);
    let ftz = p.iter().any(|m| m == "ftz");
    (p[1].clone(), how, ftz, p.last().unwrap().clone())
}

fn setp() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in patterns("setp", "").iter().flat_map(|p| forms(p)) {
        let (op, how, ftz, ty) = parse(&p);
        let r = register(&ty);
        let third = if how.is_some() { ", !%c" } else { "" };
        // The second destination gets the opposite comparison, with the same combination.
        for (destinations, opposite) in [("%d", false), ("_|%d", true)] {
            let text = format!("{form} {destinations}, %a, %b{third};");
            let (op, ty) = (op.clone(), ty.clone());
            out.push(code(
                &form,
                &text,
                "pred",
                &[r, r, "pred"],
                &inputs(&ty.clone()),
                move |r| {
                    let v = holds(&op, relation(&ty, ftz, r[0], r[1])) != opposite;
                    Want::Bits(u64::from(combined(how, v, r[2] == 0)))
                },
            ));
        }
    }
    out
}

fn set() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in patterns("set", ".{u32,s32,f32}")
        .iter()
        .flat_map(|p| forms(p))
    {
        let (op, how, ftz, ty) = parse(&p);
        let r = register(&ty);
        let d = if p[p.len() - 2] == "f32" {
            "f32"
        } else {
            "b32"
        };
        let yes = if d == "f32" { 0x3f80_0000 } else { 0xffff_ffff };
        let third = if how.is_some() { ", %c" } else { "" };
        let text = format!("{form} %d, %a, %b{third};");
        out.push(code(
            &form,
            &text,
            d,
            &[r, r, "pred"],
            &inputs(&ty.clone()),
            move |r| {
                let v = holds(&op, relation(&ty, ftz, r[0], r[1]));
                Want::Bits(if combined(how, v, r[2] != 0) { yes } else { 0 })
            },
        ));
    }
    out
}

fn selections() -> Vec<Case> {
    let mut out = Vec::new();
    let types = "{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}";
    let sides = |ty: &str, last: &[u64]| {
        let bits = shape(ty).0;
        let (a, b) = (values(bits)[3], values(bits)[4]);
        rows(last.iter().map(|c| vec![a, b, *c]).collect())
    };
    for (form, p) in forms(&format!("selp.{types}")) {
        let r = register(&p[1]);
        out.push(lane(
            &form,
            r,
            &[r, r, "pred"],
            &sides(&p[1], &[0, 1]),
            |r| Want::Bits(if r[2] != 0 { r[0] } else { r[1] }),
        ));
    }
    for (form, p) in forms(&format!("slct.{types}.s32")) {
        let r = register(&p[1]);
        let inputs = sides(&p[1], values(32));
        out.push(lane(&form, r, &[r, r, "b32"], &inputs, |r| {
            Want::Bits(if (r[2] as u32 as i32) >= 0 {
                r[0]
            } else {
                r[1]
            })
        }));
    }
    for (form, p) in forms(&format!("slct{{,.ftz}}.{types}.f32")) {
        let ftz = p[1] == "ftz";
        let ty = &p[p.len() - 2];
        let r = register(ty);
        let inputs = sides(ty, &edges32());
        out.push(lane(&form, r, &[r, r, "f32"], &inputs, move |r| {
            let x = f32::from_bits(r[2] as u32);
            // -0 counts as positive, and NaN selects the second operand.
            let x = if ftz { flush(x) } else { x };
            Want::Bits(if x >= 0.0 { r[0] } else { r[1] })
        }));
    }
    out
}

fn classes() -> Vec<Case> {
    let mut out = Vec::new();
    let pattern = "testp.{finite,infinite,number,notanumber,normal,subnormal}.{f32,f64}";
    for (form, p) in forms(pattern) {
        let single = p[2] == "f32";
        let (r, inputs) = if single {
            ("f32", edges32())
        } else {
            ("f64", edges64())
        };
        let class = p[1].clone();
        out.push(lane(&form, "pred", &[r], &singles(&inputs), move |r| {
            let (width, bias_field) = if single { (23, 0xff) } else { (52, 0x7ff) };
            let (exponent, fraction) = (r[0] >> width & bias_field, r[0] & ((1 << width) - 1));
            let top = exponent == bias_field;
            Want::Bits(u64::from(match class.as_str() {
                "finite" => !top,
                "infinite" => top && fraction == 0,
                "number" => !(top && fraction != 0),
                "notanumber" => top && fraction != 0,
                // Zero counts as a normal number.
                "normal" => !top && (exponent != 0 || fraction == 0),
                _ => exponent == 0 && fraction != 0,
            }))
        }));
    }
    out
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = setp();
    out.extend(set());
    out.extend(selections());
    out.extend(classes());
    out
}
