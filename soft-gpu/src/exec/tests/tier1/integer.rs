//! Integer arithmetic, logic, shifts, bit fields and dot products, compared with 128-bit integers
//! and with the bit-by-bit definitions of the PTX manual.

use super::super::eval::{pairs, triples};
use super::{Case, Rows, Want, code, forms, lane, rows};

const W16: [u64; 8] = [0, 1, 2, 0x7fff, 0x8000, 0xffff, 0x1234, 0xff80];
const W32: [u64; 11] = [
    0,
    1,
    2,
    3,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0xffff_fffe,
    0x1234_5678,
    0xdead_beef,
    0xffff,
];
const W64: [u64; 9] = [
    0,
    1,
    3,
    0x7fff_ffff_ffff_ffff,
    0x8000_0000_0000_0000,
    u64::MAX,
    0xffff_ffff,
    0x1_0000_0000,
    0x0123_4567_89ab_cdef,
];
/// Shift amounts, positions and lengths.
const AMOUNTS: [u64; 14] = [0, 1, 4, 8, 15, 16, 31, 32, 33, 63, 64, 65, 255, 0xffff_ffff];

/// Edge values of a width.
pub(super) fn values(bits: u32) -> &'static [u64] {
    match bits {
        16 => &W16,
        32 => &W32,
        _ => &W64,
    }
}

/// Width and signedness of a PTX type: `s16` is (16, true).
pub(super) fn shape(ty: &str) -> (u32, bool) {
    (ty[1..].parse().unwrap(), ty.starts_with('s'))
}

/// The type of a register for `bits` bits. It has at least 16 bits.
pub(super) fn reg(bits: u32) -> &'static str {
    match bits {
        8 | 16 => "b16",
        32 => "b32",
        _ => "b64",
    }
}

/// The value of the low `bits` bits, with or without a sign.
pub(super) fn read(v: u64, bits: u32, signed: bool) -> i128 {
    let k = 64 - bits;
    if signed {
        i128::from((v << k) as i64 >> k)
    } else {
        i128::from(v << k >> k)
    }
}

/// The low `bits` bits of a value.
pub(super) fn cut(v: i128, bits: u32) -> u64 {
    (v as u64) << (64 - bits) >> (64 - bits)
}

pub(super) fn singles(values: &[u64]) -> Rows {
    rows(values.iter().map(|v| vec![*v]).collect())
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = two_operands();
    out.extend(products());
    out.extend(one_operand());
    out.extend(fields());
    out.extend(dots());
    out.extend(logic());
    out.extend(shifts());
    out.extend(bytes());
    out
}

type Binary = fn(i128, i128) -> i128;

/// A case with two operands of the same type.
fn binary(form: &str, ty: &str, f: impl Fn(i128, i128) -> i128 + 'static) -> Case {
    let (bits, signed) = shape(ty);
    let inputs = rows(pairs(values(bits), values(bits)));
    lane(form, reg(bits), &[reg(bits); 2], &inputs, move |r| {
        let v = f(read(r[0], bits, signed), read(r[1], bits, signed));
        Want::Bits(cut(v, bits))
    })
}

fn two_operands() -> Vec<Case> {
    // PTX does not define division by zero. Hardware returns all ones, and the dividend as
    // remainder.
    let ops: [(&str, Binary); 6] = [
        ("add", |a, b| a + b),
        ("sub", |a, b| a - b),
        ("min", |a, b| a.min(b)),
        ("max", |a, b| a.max(b)),
        ("div", |a, b| if b == 0 { -1 } else { a / b }),
        ("rem", |a, b| if b == 0 { a } else { a % b }),
    ];
    let mut out = Vec::new();
    for (op, f) in ops {
        for (form, p) in forms(&format!("{op}.{{u16,s16,u32,s32,u64,s64}}")) {
            out.push(binary(&form, &p[1], f));
        }
    }
    let clamp = |v: i128| v.clamp(i32::MIN.into(), i32::MAX.into());
    out.push(binary("add.sat.s32", "s32", move |a, b| clamp(a + b)));
    out.push(binary("sub.sat.s32", "s32", move |a, b| clamp(a - b)));
    for (form, p) in forms("sad.{u16,s16,u32,s32,u64,s64}") {
        let (bits, signed) = shape(&p[1]);
        let inputs = rows(triples(values(bits), values(bits), &[0, 7, u64::MAX]));
        out.push(lane(&form, reg(bits), &[reg(bits); 3], &inputs, move |r| {
            let d = (read(r[0], bits, signed) - read(r[1], bits, signed)).abs();
            Want::Bits(cut(d + i128::from(r[2]), bits))
        }));
    }
    out
}

/// `mul` and `mad`. `low` is the lowest bit of the product that the result takes; `None` for the
/// whole product, in twice the width.
fn product(form: &str, ty: &str, low: Option<u32>, narrow: u32, saturated: bool) -> Case {
    let (bits, signed) = shape(ty);
    let wide = if low.is_some() { bits } else { bits * 2 };
    let add = form.starts_with("mad");
    let (d, s) = (reg(wide), reg(bits));
    let third = [0, 5, u64::MAX, 1 << (wide - 1), (1 << (wide - 1)) - 1];
    let inputs = if add {
        rows(triples(values(bits), values(bits), &third))
    } else {
        rows(pairs(values(bits), values(bits)))
    };
    let srcs: &[&'static str] = if add { &[s, s, d] } else { &[s, s] };
    lane(form, d, srcs, &inputs, move |r| {
        let p = read(r[0], narrow, signed).wrapping_mul(read(r[1], narrow, signed));
        // An unsigned 64-bit product uses all 128 bits.
        let p = match low {
            Some(shift) if signed => p >> shift,
            Some(shift) => (p as u128 >> shift) as i128,
            None => p,
        };
        if !add {
            return Want::Bits(cut(p, wide));
        }
        if saturated {
            let sum = read(cut(p, 32), 32, true) + read(r[2], 32, true);
            return Want::Bits(cut(sum.clamp(i32::MIN.into(), i32::MAX.into()), 32));
        }
        Want::Bits(cut(p, wide).wrapping_add(r[2]) & cut(-1, wide))
    })
}

fn products() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("{mul,mad}.{lo,hi}.{u16,s16,u32,s32,u64,s64}") {
        let bits = shape(&p[2]).0;
        let low = if p[1] == "hi" { bits } else { 0 };
        out.push(product(&form, &p[2], Some(low), bits, false));
    }
    for (form, p) in forms("{mul,mad}.wide.{u16,s16,u32,s32}") {
        out.push(product(&form, &p[2], None, shape(&p[2]).0, false));
    }
    out.push(product("mad.hi.sat.s32", "s32", Some(32), 32, true));
    for (form, p) in forms("{mul24,mad24}.{lo,hi}.{u32,s32}") {
        let low = if p[1] == "hi" { 16 } else { 0 };
        out.push(product(&form, &p[2], Some(low), 24, false));
    }
    out.push(product("mad24.hi.sat.s32", "s32", Some(16), 24, true));
    out
}

/// Position of the highest set bit.
fn top(v: u64, bits: u32) -> Option<u64> {
    (0..bits).rev().find(|n| v >> n & 1 != 0).map(u64::from)
}

fn one_operand() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("{abs,neg}.{s16,s32,s64}") {
        let (bits, _) = shape(&p[1]);
        let abs = p[0] == "abs";
        let inputs = singles(values(bits));
        out.push(lane(&form, reg(bits), &[reg(bits)], &inputs, move |r| {
            let v = read(r[0], bits, true);
            Want::Bits(cut(if abs { v.abs() } else { -v }, bits))
        }));
    }
    for (form, p) in forms("{popc,clz,brev}.{b32,b64}") {
        let (bits, _) = shape(&p[1]);
        let op = p[0].clone();
        let d = if op == "brev" { reg(bits) } else { "b32" };
        out.push(lane(
            &form,
            d,
            &[reg(bits)],
            &singles(values(bits)),
            move |r| {
                let v = r[0];
                Want::Bits(match op.as_str() {
                    "popc" => (0..bits).map(|n| v >> n & 1).sum(),
                    "clz" => top(v, bits).map_or(u64::from(bits), |t| u64::from(bits) - 1 - t),
                    _ => (0..bits).fold(0, |a, n| a | (v >> n & 1) << (bits - 1 - n)),
                })
            },
        ));
    }
    for (form, p) in forms("bfind{,.shiftamt}.{u32,s32,u64,s64}") {
        let (bits, signed) = shape(p.last().unwrap());
        let shift = p.len() == 3;
        let inputs = singles(values(bits));
        out.push(lane(&form, "b32", &[reg(bits)], &inputs, move |r| {
            let negative = signed && r[0] >> (bits - 1) & 1 != 0;
            let v = if negative {
                cut(!i128::from(r[0]), bits)
            } else {
                r[0]
            };
            let found = top(v, bits).map(|t| if shift { u64::from(bits) - 1 - t } else { t });
            Want::Bits(found.unwrap_or(0xffff_ffff))
        }));
    }
    for (form, p) in forms("cnot.{b16,b32,b64}") {
        let (bits, _) = shape(&p[1]);
        out.push(lane(
            &form,
            reg(bits),
            &[reg(bits)],
            &singles(values(bits)),
            |r| Want::Bits(u64::from(r[0] == 0)),
        ));
    }
    out
}

/// `bfe`, computed like the program in the PTX manual.
fn bfe(v: u64, pos: u64, len: u64, bits: u32, signed: bool) -> u64 {
    let (pos, len, msb) = (pos & 0xff, len & 0xff, u64::from(bits) - 1);
    let bit = |n: u64| v >> n & 1;
    let sign = if !signed || len == 0 {
        0
    } else {
        bit((pos + len - 1).min(msb))
    };
    (0..=msb).fold(0, |out, i| {
        let b = if i < len && pos + i <= msb {
            bit(pos + i)
        } else {
            sign
        };
        out | b << i
    })
}

/// `fns`, computed like the program in the PTX manual.
fn fns(mask: u64, base: u64, offset: i32) -> u64 {
    let bit = |n: i64| (0..32).contains(&n) && mask >> n & 1 != 0;
    if base > 31 {
        return 0xffff_ffff;
    }
    let (mut at, mut count) = (base as i64, 0);
    if offset == 0 {
        return if bit(at) { base } else { 0xffff_ffff };
    }
    while (0..32).contains(&at) {
        if bit(at) {
            count += 1;
            if count == i64::from(offset).abs() {
                return at as u64;
            }
        }
        at += i64::from(offset.signum());
    }
    0xffff_ffff
}

fn fields() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("bfe.{u32,s32,u64,s64}") {
        let (bits, signed) = shape(&p[1]);
        let inputs = rows(triples(values(bits), &AMOUNTS, &AMOUNTS));
        let srcs = [reg(bits), "b32", "b32"];
        out.push(lane(&form, reg(bits), &srcs, &inputs, move |r| {
            Want::Bits(bfe(r[0], r[1], r[2], bits, signed))
        }));
    }
    for (form, p) in forms("bfi.{b32,b64}") {
        let (bits, _) = shape(&p[1]);
        let inputs = triples(values(bits), &AMOUNTS, &AMOUNTS)
            .into_iter()
            .map(|r| vec![r[0], cut(0x5aa5_0ff0_c33c_a55a, bits), r[1], r[2]])
            .collect();
        let srcs = [reg(bits), reg(bits), "b32", "b32"];
        out.push(lane(&form, reg(bits), &srcs, &rows(inputs), move |r| {
            let (pos, len) = (r[2] & 0xff, r[3] & 0xff);
            let mut v = r[1];
            for i in (0..len).take_while(|i| pos + i < u64::from(bits)) {
                v = v & !(1 << (pos + i)) | (r[0] >> i & 1) << (pos + i);
            }
            Want::Bits(v)
        }));
    }
    let inputs = rows(pairs(&AMOUNTS, &AMOUNTS));
    for (form, p) in forms("bmsk.{clamp,wrap}.b32") {
        let clamp = p[1] == "clamp";
        out.push(lane(&form, "b32", &["b32"; 2], &inputs, move |r| {
            let cap = |v: u64| if clamp { v.min(32) } else { v & 31 };
            let (pos, len) = (cap(r[0]), cap(r[1]));
            Want::Bits((pos..(pos + len).min(32)).fold(0, |m, n| m | 1 << n))
        }));
    }
    for (form, p) in forms("szext.{clamp,wrap}.{u32,s32}") {
        let (clamp, signed) = (p[1] == "clamp", p[2] == "s32");
        out.push(lane(
            &form,
            "b32",
            &["b32"; 2],
            &rows(pairs(&W32, &AMOUNTS)),
            move |r| {
                let n = if clamp { r[1].min(32) } else { r[1] & 31 } as u32;
                Want::Bits(if n == 0 {
                    0
                } else {
                    cut(read(r[0], n, signed), 32)
                })
            },
        ));
    }
    let offsets = [0, 1, 2, 9, 0xffff_ffff, 0xffff_fffe];
    let inputs = rows(triples(&W32, &AMOUNTS, &offsets));
    out.push(lane("fns.b32", "b32", &["b32"; 3], &inputs, |r| {
        Want::Bits(fns(r[0], r[1], r[2] as u32 as i32))
    }));
    out
}

fn dots() -> Vec<Case> {
    let mut out = Vec::new();
    let inputs = rows(triples(&W32, &W32, &[0, 5, 0xffff_ffff]));
    for (form, p) in forms("dp4a.{u32,s32}.{u32,s32}") {
        let (sa, sb) = (p[1] == "s32", p[2] == "s32");
        out.push(lane(&form, "b32", &["b32"; 3], &inputs, move |r| {
            let dot: i128 = (0..4)
                .map(|k| read(r[0] >> (8 * k), 8, sa) * read(r[1] >> (8 * k), 8, sb))
                .sum();
            Want::Bits(cut(dot + i128::from(r[2]), 32))
        }));
    }
    for (form, p) in forms("dp2a.{lo,hi}.{u32,s32}.{u32,s32}") {
        let (sa, sb) = (p[2] == "s32", p[3] == "s32");
        let from = if p[1] == "hi" { 16 } else { 0 };
        out.push(lane(&form, "b32", &["b32"; 3], &inputs, move |r| {
            let dot: i128 = (0..2)
                .map(|k| read(r[0] >> (16 * k), 16, sa) * read(r[1] >> (from + 8 * k), 8, sb))
                .sum();
            Want::Bits(cut(dot + i128::from(r[2]), 32))
        }));
    }
    out
}

fn lut(table: u64, r: &[u64]) -> u64 {
    (0..32).fold(0, |acc, n| {
        let i = (r[0] >> n & 1) << 2 | (r[1] >> n & 1) << 1 | (r[2] >> n & 1);
        acc | (table >> i & 1) << n
    })
}

fn logic() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("{and,or,xor}.{pred,b16,b32,b64}") {
        let f: fn(u64, u64) -> u64 = match p[0].as_str() {
            "and" => |a, b| a & b,
            "or" => |a, b| a | b,
            _ => |a, b| a ^ b,
        };
        let (ty, inputs) = if p[1] == "pred" {
            ("pred", pairs(&[0, 1], &[0, 1]))
        } else {
            let bits = shape(&p[1]).0;
            (reg(bits), pairs(values(bits), values(bits)))
        };
        out.push(lane(&form, ty, &[ty; 2], &rows(inputs), move |r| {
            Want::Bits(f(r[0], r[1]))
        }));
    }
    out.push(lane(
        "not.pred",
        "pred",
        &["pred"],
        &singles(&[0, 1]),
        |r| Want::Bits(1 - r[0]),
    ));
    for (form, p) in forms("not.{b16,b32,b64}") {
        let bits = shape(&p[1]).0;
        out.push(lane(
            &form,
            reg(bits),
            &[reg(bits)],
            &singles(values(bits)),
            move |r| Want::Bits(cut(!i128::from(r[0]), bits)),
        ));
    }
    let inputs = rows(triples(&W32, &W32, &W32));
    for table in [0x00u64, 0x80, 0x96, 0xe8, 0xca, 0xff, 0x1b] {
        let text = format!("lop3.b32 %d, %a, %b, %c, {table};");
        out.push(code(
            "lop3.b32",
            &text,
            "b32",
            &["b32"; 3],
            &inputs,
            move |r| Want::Bits(lut(table, r)),
        ));
    }
    let with_pred: Vec<Vec<u64>> = triples(&W32, &W32[..6], &[0, 3, 0xffff_ffff])
        .into_iter()
        .flat_map(|r| [0, 1].map(|q| vec![r[0], r[1], r[2], q]))
        .collect();
    let with_pred = rows(with_pred);
    for (form, p) in forms("lop3.{and,or}.b32") {
        let and = p[1] == "and";
        let srcs = ["b32", "b32", "b32", "pred"];
        let text = format!("{form} %x0|%d, %a, %b, %c, 0x96, %e;");
        out.push(code(&form, &text, "pred", &srcs, &with_pred, move |r| {
            let (v, q) = (lut(0x96, r) != 0, r[3] != 0);
            Want::Bits(u64::from(if and { v && q } else { v || q }))
        }));
        let text = format!("{form} %d|_, %a, %b, %c, 0x96, !%e;");
        out.push(code(&form, &text, "b32", &srcs, &with_pred, |r| {
            Want::Bits(lut(0x96, r))
        }));
    }
    out
}

fn shifts() -> Vec<Case> {
    let mut out = Vec::new();
    for pattern in [
        "shl.{b16,b32,b64}",
        "shr.{b16,b32,b64,u16,u32,u64,s16,s32,s64}",
    ] {
        for (form, p) in forms(pattern) {
            let (bits, signed) = shape(&p[1]);
            let left = p[0] == "shl";
            let inputs = rows(pairs(values(bits), &AMOUNTS));
            out.push(lane(
                &form,
                reg(bits),
                &[reg(bits), "b32"],
                &inputs,
                move |r| {
                    let n = r[1].min(u64::from(bits)) as u32;
                    Want::Bits(if left {
                        cut(i128::from(r[0]) << n, bits)
                    } else {
                        cut(read(r[0], bits, signed) >> n, bits)
                    })
                },
            ));
        }
    }
    for (form, p) in forms("vshr.{u32,s32}.{u32,s32}.u32{,.sat}.{clamp,wrap}{,.add,.min,.max}") {
        let has = |word: &str| p.iter().any(|w| w == word);
        let (sat, clamp) = (has("sat"), has("clamp"));
        let [to, from] = [&p[1], &p[2]].map(|ty| shape(ty).1);
        let with = p[p.len() - 1].clone();
        let (srcs, inputs) = match with.as_str() {
            "add" | "min" | "max" => (3, triples(&W32, &AMOUNTS, &W32)),
            _ => (2, pairs(&W32, &AMOUNTS)),
        };
        let srcs = &["b32"; 3][..srcs];
        out.push(lane(&form, "b32", srcs, &rows(inputs), move |r| {
            let n = if clamp { r[1].min(32) } else { r[1] & 31 };
            let v = read(r[0], 32, from) >> n;
            let v = match (sat, to) {
                (true, true) => v.clamp(i32::MIN.into(), i32::MAX.into()),
                (true, false) => v.clamp(0, u32::MAX.into()),
                _ => read(cut(v, 32), 32, to),
            };
            let c = || read(r[2], 32, to);
            let v = match with.as_str() {
                "add" => v + c(),
                "min" => v.min(c()),
                "max" => v.max(c()),
                _ => v,
            };
            Want::Bits(cut(v, 32))
        }));
    }
    let inputs = rows(triples(&W32, &W32, &AMOUNTS));
    for (form, p) in forms("shf.{l,r}.{clamp,wrap}.b32") {
        let (left, clamp) = (p[1] == "l", p[2] == "clamp");
        out.push(lane(&form, "b32", &["b32"; 3], &inputs, move |r| {
            let n = if clamp { r[2].min(32) } else { r[2] & 31 };
            let both = u128::from(r[1] << 32 | r[0]);
            let v = if left { both << n >> 32 } else { both >> n };
            Want::Bits(v as u64 & 0xffff_ffff)
        }));
    }
    out
}

/// The table of `prmt` in the PTX manual, for selectors 0 to 3. Bytes are listed from the most
/// significant.
const PRMT: [(&str, [[usize; 4]; 4]); 6] = [
    (
        "f4e",
        [[3, 2, 1, 0], [4, 3, 2, 1], [5, 4, 3, 2], [6, 5, 4, 3]],
    ),
    (
        "b4e",
        [[5, 6, 7, 0], [6, 7, 0, 1], [7, 0, 1, 2], [0, 1, 2, 3]],
    ),
    (
        "rc8",
        [[0, 0, 0, 0], [1, 1, 1, 1], [2, 2, 2, 2], [3, 3, 3, 3]],
    ),
    (
        "ecl",
        [[3, 2, 1, 0], [3, 2, 1, 1], [3, 2, 2, 2], [3, 3, 3, 3]],
    ),
    (
        "ecr",
        [[0, 0, 0, 0], [1, 1, 1, 0], [2, 2, 1, 0], [3, 2, 1, 0]],
    ),
    (
        "rc16",
        [[1, 0, 1, 0], [3, 2, 3, 2], [1, 0, 1, 0], [3, 2, 3, 2]],
    ),
];

fn bytes() -> Vec<Case> {
    fn source(r: &[u64], n: usize) -> u64 {
        (r[1] << 32 | r[0]) >> (8 * n) & 0xff
    }
    let selectors = [0x3210, 0x7654, 0xf0e1, 0, 1, 2, 3, 0xba98, 0xffff_5555];
    let inputs = rows(triples(
        &[0x8091_a2b3, 0x7fff_0080],
        &[0x4455_6677],
        &selectors,
    ));
    let mut out = vec![lane("prmt.b32", "b32", &["b32"; 3], &inputs, |r| {
        Want::Bits((0..4).fold(0, |acc, k| {
            let select = r[2] >> (4 * k) & 15;
            let b = source(r, (select & 7) as usize);
            acc | (if select & 8 == 0 { b } else { (b >> 7) * 0xff }) << (8 * k)
        }))
    })];
    for (mode, table) in PRMT {
        let form = format!("prmt.b32.{mode}");
        out.push(lane(&form, "b32", &["b32"; 3], &inputs, move |r| {
            let row = table[(r[2] & 3) as usize];
            Want::Bits(row.iter().fold(0, |acc, n| acc << 8 | source(r, *n)))
        }));
    }
    out
}
