//! Integer instructions against arithmetic on wide integers.

use super::eval::{eval, pairs, triples};

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

fn values(bits: u32) -> &'static [u64] {
    match bits {
        16 => &W16,
        32 => &W32,
        _ => &W64,
    }
}

/// A register's value as the type reads it.
fn read(v: u64, bits: u32, signed: bool) -> i128 {
    let k = 64 - bits;
    if signed {
        i128::from((v << k) as i64 >> k)
    } else {
        i128::from(v << k >> k)
    }
}

fn cut(v: i128, bits: u32) -> u64 {
    (v as u64) << (64 - bits) >> (64 - bits)
}

const TYPES: [(&str, u32, bool); 6] = [
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

fn reg(bits: u32) -> String {
    format!("b{bits}")
}

type Binary = fn(i128, i128) -> i128;

#[test]
fn two_operand_arithmetic() {
    let ops: [(&str, Binary); 6] = [
        ("add", |a, b| a.wrapping_add(b)),
        ("sub", |a, b| a - b),
        ("mul.lo", |a, b| a.wrapping_mul(b)),
        ("min", |a, b| a.min(b)),
        ("max", |a, b| a.max(b)),
        ("div", |a, b| if b == 0 { -1 } else { a / b }),
    ];
    for (ty, bits, signed) in TYPES {
        for (op, f) in ops {
            let r = reg(bits);
            let rows = pairs(values(bits), values(bits));
            let got = eval(&format!("{op}.{ty} %d, %a, %b;"), &r, &[&r, &r], &rows);
            for (row, got) in rows.iter().zip(got) {
                let want = f(read(row[0], bits, signed), read(row[1], bits, signed));
                assert_eq!(got, cut(want, bits), "{op}.{ty} {row:x?}");
            }
        }
        let r = reg(bits);
        let rows = pairs(values(bits), values(bits));
        let got = eval(&format!("rem.{ty} %d, %a, %b;"), &r, &[&r, &r], &rows);
        for (row, got) in rows.iter().zip(got) {
            let (a, b) = (read(row[0], bits, signed), read(row[1], bits, signed));
            assert_eq!(
                got,
                cut(if b == 0 { a } else { a % b }, bits),
                "rem.{ty} {row:x?}"
            );
        }
    }
}

#[test]
fn high_and_wide_products() {
    for (ty, bits, signed) in TYPES {
        let r = reg(bits);
        let rows = pairs(values(bits), values(bits));
        let product =
            |row: &[u64]| read(row[0], bits, signed).wrapping_mul(read(row[1], bits, signed));
        let got = eval(&format!("mul.hi.{ty} %d, %a, %b;"), &r, &[&r, &r], &rows);
        for (row, got) in rows.iter().zip(got) {
            assert_eq!(got, cut(product(row) >> bits, bits), "mul.hi.{ty} {row:x?}");
        }
        let rows = triples(values(bits), values(bits), &values(bits)[3..6]);
        let got = eval(
            &format!("mad.hi.{ty} %d, %a, %b, %c;"),
            &r,
            &[&r, &r, &r],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            let want = (product(row) >> bits).wrapping_add(i128::from(row[2]));
            assert_eq!(got, cut(want, bits), "mad.hi.{ty} {row:x?}");
        }
        if bits == 64 {
            continue;
        }
        let w = reg(bits * 2);
        let rows = triples(values(bits), values(bits), &[0, 5, u64::MAX]);
        let got = eval(
            &format!("mad.wide.{ty} %d, %a, %b, %c;"),
            &w,
            &[&r, &r, &w],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            let want = product(row).wrapping_add(i128::from(row[2] as i64));
            assert_eq!(got, cut(want, bits * 2), "mad.wide.{ty} {row:x?}");
        }
    }
}

#[test]
fn saturating_forms() {
    let rows = pairs(&W32, &W32);
    let clamp = |v: i128| cut(v.clamp(i128::from(i32::MIN), i128::from(i32::MAX)), 32);
    for (op, f) in [("add", (|a, b| a + b) as Binary), ("sub", |a, b| a - b)] {
        let got = eval(
            &format!("{op}.sat.s32 %d, %a, %b;"),
            "b32",
            &["b32", "b32"],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            let want = clamp(f(read(row[0], 32, true), read(row[1], 32, true)));
            assert_eq!(got, want, "{op}.sat {row:x?}");
        }
    }
}

#[test]
fn sad_and_24_bit() {
    for (ty, bits, signed) in TYPES {
        let r = reg(bits);
        let rows = triples(values(bits), values(bits), &[0, 7, u64::MAX]);
        let got = eval(
            &format!("sad.{ty} %d, %a, %b, %c;"),
            &r,
            &[&r, &r, &r],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            let d = (read(row[0], bits, signed) - read(row[1], bits, signed)).abs();
            assert_eq!(got, cut(d + i128::from(row[2]), bits), "sad.{ty} {row:x?}");
        }
    }
    let rows = pairs(&W32, &W32);
    for (ty, signed) in [("u32", false), ("s32", true)] {
        for (half, shift) in [("lo", 0), ("hi", 16)] {
            let code = format!("mul24.{half}.{ty} %d, %a, %b;");
            for (row, got) in rows.iter().zip(eval(&code, "b32", &["b32", "b32"], &rows)) {
                let p = read(row[0], 24, signed) * read(row[1], 24, signed);
                assert_eq!(got, cut(p >> shift, 32), "{code} {row:x?}");
            }
        }
    }
}

#[test]
fn shifts_clamp_their_amount() {
    let amounts = [0u64, 1, 15, 16, 31, 32, 33, 63, 64, 65, 0xffff_ffff];
    for (ty, bits, signed) in TYPES {
        let r = reg(bits);
        let rows = pairs(values(bits), &amounts);
        let right = eval(&format!("shr.{ty} %d, %a, %b;"), &r, &[&r, "b32"], &rows);
        let left = eval(&format!("shl.b{bits} %d, %a, %b;"), &r, &[&r, "b32"], &rows);
        for (k, row) in rows.iter().enumerate() {
            let n = row[1].min(u64::from(bits)) as u32;
            assert_eq!(
                right[k],
                cut(read(row[0], bits, signed) >> n, bits),
                "shr.{ty} {row:x?}"
            );
            assert_eq!(
                left[k],
                cut(i128::from(row[0]) << n, bits),
                "shl.b{bits} {row:x?}"
            );
        }
    }
    let rows = triples(&W32, &W32, &amounts);
    for (dir, mode) in [("l", "clamp"), ("l", "wrap"), ("r", "clamp"), ("r", "wrap")] {
        let code = format!("shf.{dir}.{mode}.b32 %d, %a, %b, %c;");
        for (row, got) in rows.iter().zip(eval(&code, "b32", &["b32"; 3], &rows)) {
            let n = if mode == "clamp" {
                row[2].min(32)
            } else {
                row[2] & 31
            };
            let both = u128::from(row[1] << 32 | row[0]);
            let want = if dir == "l" {
                both << n >> 32
            } else {
                both >> n
            };
            assert_eq!(got, want as u64 & 0xffff_ffff, "{code} {row:x?}");
        }
    }
}

#[test]
fn bit_fields() {
    let fields = [0u64, 1, 4, 8, 31, 32, 40, 63, 64, 255];
    for (bits, signed) in [(32u32, false), (32, true), (64, false), (64, true)] {
        let ty = format!("{}{bits}", if signed { "s" } else { "u" });
        let r = reg(bits);
        let rows = triples(values(bits), &fields, &fields);
        let got = eval(
            &format!("bfe.{ty} %d, %a, %b, %c;"),
            &r,
            &[&r, "b32", "b32"],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            // The PTX manual's own program for bfe, bit by bit.
            let (pos, len) = (row[1] & 0xff, row[2] & 0xff);
            let msb = u64::from(bits) - 1;
            let bit = |n: u64| row[0] >> n & 1;
            let sbit = if !signed || len == 0 {
                0
            } else {
                bit((pos + len - 1).min(msb))
            };
            let mut want = 0;
            for i in 0..=msb {
                let b = if i < len && pos + i <= msb {
                    bit(pos + i)
                } else {
                    sbit
                };
                want |= b << i;
            }
            assert_eq!(got, want, "bfe.{ty} {row:x?}");
        }
    }
    let mut rows = Vec::new();
    for row in triples(&W32, &fields, &fields) {
        rows.push(vec![row[0], 0xa5a5_a5a5, row[1], row[2]]);
    }
    let got = eval("bfi.b32 %d, %a, %b, %c, %e;", "b32", &["b32"; 4], &rows);
    for (row, got) in rows.iter().zip(got) {
        let (pos, len) = (row[2] & 0xff, row[3] & 0xff);
        let mut want = row[1];
        for i in 0..len {
            if pos + i > 31 {
                break;
            }
            let bit = if i < 64 { row[0] >> i & 1 } else { 0 };
            want = want & !(1 << (pos + i)) | bit << (pos + i);
        }
        assert_eq!(got, want, "bfi {row:x?}");
    }
}

#[test]
fn counting_and_finding_bits() {
    for bits in [32u32, 64] {
        let r = reg(bits);
        let rows: Vec<Vec<u64>> = values(bits).iter().map(|v| vec![*v]).collect();
        let run = |code: &str, d: &str| eval(code, d, &[&r], &rows);
        let popc = run(&format!("popc.b{bits} %d, %a;"), "b32");
        let clz = run(&format!("clz.b{bits} %d, %a;"), "b32");
        let brev = run(&format!("brev.b{bits} %d, %a;"), &r);
        let find_u = run(&format!("bfind.u{bits} %d, %a;"), "b32");
        let find_s = run(&format!("bfind.s{bits} %d, %a;"), "b32");
        let shift = run(&format!("bfind.shiftamt.u{bits} %d, %a;"), "b32");
        let none = 0xffff_ffff;
        for (k, row) in rows.iter().enumerate() {
            let v = row[0];
            let top = |v: u64| (0..bits).rev().find(|n| v >> n & 1 != 0).map(u64::from);
            let s = if v >> (bits - 1) & 1 != 0 {
                cut(!i128::from(v), bits)
            } else {
                v
            };
            assert_eq!(popc[k], (0..bits).map(|n| v >> n & 1).sum::<u64>());
            assert_eq!(
                clz[k],
                top(v).map_or(u64::from(bits), |t| u64::from(bits) - 1 - t)
            );
            let rev = (0..bits).fold(0, |a, n| a | (v >> n & 1) << (bits - 1 - n));
            assert_eq!(brev[k], rev);
            assert_eq!(find_u[k], top(v).unwrap_or(none), "{v:x}");
            assert_eq!(find_s[k], top(s).unwrap_or(none), "{v:x}");
            assert_eq!(
                shift[k],
                top(v).map_or(none, |t| u64::from(bits) - 1 - t),
                "{v:x}"
            );
        }
    }
}

#[test]
fn byte_permutation() {
    let rows = triples(
        &[0x8091_a2b3],
        &[0x4455_6677],
        &[0x3210, 0x7654, 0xf0e1, 0x0, 1, 2, 3, 0xba98],
    );
    let bytes = [0xb3u64, 0xa2, 0x91, 0x80, 0x77, 0x66, 0x55, 0x44];
    let code = "prmt.b32 %d, %a, %b, %c;";
    for (row, got) in rows.iter().zip(eval(code, "b32", &["b32"; 3], &rows)) {
        let want = (0..4).fold(0, |acc, k| {
            let sel = row[2] >> (4 * k) & 15;
            let b = bytes[(sel & 7) as usize];
            acc | (if sel & 8 == 0 { b } else { (b >> 7) * 0xff }) << (8 * k)
        });
        assert_eq!(got, want, "{row:x?}");
    }
    // The manual's table: bytes from most to least significant, for selectors 0 to 3.
    let modes: [(&str, [[usize; 4]; 4]); 6] = [
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
    for (mode, table) in modes {
        let rows = triples(&[0x8091_a2b3], &[0x4455_6677], &[0, 1, 2, 3]);
        let code = format!("prmt.b32.{mode} %d, %a, %b, %c;");
        for (k, got) in eval(&code, "b32", &["b32"; 3], &rows)
            .into_iter()
            .enumerate()
        {
            let want = table[k].iter().fold(0, |acc, b| acc << 8 | bytes[*b]);
            assert_eq!(got, want, "{mode} {k}");
        }
    }
}

#[test]
fn logic() {
    let rows = triples(&W32, &W32, &W32);
    for table in [0x00u64, 0x80, 0x96, 0xe8, 0xca, 0xff, 0x1b] {
        let code = format!("lop3.b32 %d, %a, %b, %c, {table};");
        for (row, got) in rows.iter().zip(eval(&code, "b32", &["b32"; 3], &rows)) {
            let want = (0..32).fold(0u64, |acc, n| {
                let i = (row[0] >> n & 1) << 2 | (row[1] >> n & 1) << 1 | (row[2] >> n & 1);
                acc | (table >> i & 1) << n
            });
            assert_eq!(got, want, "lop3 {table:x} {row:x?}");
        }
    }
    let rows = pairs(&W64, &W64);
    type Logic = fn(u64, u64) -> u64;
    let ops: [(&str, Logic); 3] = [
        ("and", |a, b| a & b),
        ("or", |a, b| a | b),
        ("xor", |a, b| a ^ b),
    ];
    for (op, f) in ops {
        for (row, got) in rows.iter().zip(eval(
            &format!("{op}.b64 %d, %a, %b;"),
            "b64",
            &["b64"; 2],
            &rows,
        )) {
            assert_eq!(got, f(row[0], row[1]), "{op} {row:x?}");
        }
        let bools = pairs(&[0, 1], &[0, 1]);
        for (row, got) in bools.iter().zip(eval(
            &format!("{op}.pred %d, %a, %b;"),
            "pred",
            &["pred"; 2],
            &bools,
        )) {
            assert_eq!(got, f(row[0], row[1]), "{op}.pred {row:x?}");
        }
    }
    let got = eval("not.pred %d, %a;", "pred", &["pred"], &[vec![0], vec![1]]);
    assert_eq!(got, [1, 0]);
}

#[test]
fn carry_chains() {
    // 128-bit addition and subtraction through halves, and the product of two 64-bit words through
    // four 32-bit ones.
    let rows = triples(&W64, &W64, &[0, 1, u64::MAX]);
    let add = "add.cc.u64 %y0, %a, %b; addc.u64 %d, %c, %a;";
    for (row, got) in rows.iter().zip(eval(add, "b64", &["b64"; 3], &rows)) {
        let carry = u64::from(row[0].checked_add(row[1]).is_none());
        assert_eq!(
            got,
            row[2].wrapping_add(row[0]).wrapping_add(carry),
            "{row:x?}"
        );
    }
    let sub = "sub.cc.u64 %y0, %a, %b; subc.u64 %d, %c, %a;";
    for (row, got) in rows.iter().zip(eval(sub, "b64", &["b64"; 3], &rows)) {
        let borrow = u64::from(row[0] < row[1]);
        assert_eq!(
            got,
            row[2].wrapping_sub(row[0]).wrapping_sub(borrow),
            "{row:x?}"
        );
    }
    let mul = "mov.b64 {%x0, %x1}, %a; mov.b64 {%x2, %x3}, %b;\n\
        mul.lo.u32 %w, %x0, %x2; mul.hi.u32 %i, %x0, %x2;\n\
        mad.lo.cc.u32 %i, %x0, %x3, %i; madc.hi.u32 %n, %x0, %x3, 0;\n\
        mad.lo.cc.u32 %i, %x1, %x2, %i; madc.hi.cc.u32 %n, %x1, %x2, %n; addc.u32 %x0, 0, 0;\n\
        mad.lo.cc.u32 %n, %x1, %x3, %n; madc.hi.u32 %x0, %x1, %x3, %x0;\n\
        mov.b64 %d, {%n, %x0};";
    let rows = pairs(&W64, &W64);
    for (row, got) in rows.iter().zip(eval(mul, "b64", &["b64"; 2], &rows)) {
        assert_eq!(
            got,
            ((u128::from(row[0]) * u128::from(row[1])) >> 64) as u64,
            "{row:x?}"
        );
    }
}

#[test]
fn dot_products() {
    let rows = triples(&W32, &W32, &[0, 5, 0xffff_ffff]);
    let types = [("u32", false), ("s32", true)];
    for (ta, sa) in types {
        for (tb, sb) in types {
            let code = format!("dp4a.{ta}.{tb} %d, %a, %b, %c;");
            for (row, got) in rows.iter().zip(eval(&code, "b32", &["b32"; 3], &rows)) {
                let dot: i128 = (0..4)
                    .map(|k| read(row[0] >> (8 * k), 8, sa) * read(row[1] >> (8 * k), 8, sb))
                    .sum();
                assert_eq!(got, cut(dot + i128::from(row[2]), 32), "{code} {row:x?}");
            }
            let code = format!("dp2a.hi.{ta}.{tb} %d, %a, %b, %c;");
            for (row, got) in rows.iter().zip(eval(&code, "b32", &["b32"; 3], &rows)) {
                let dot: i128 = (0..2)
                    .map(|k| read(row[0] >> (16 * k), 16, sa) * read(row[1] >> (16 + 8 * k), 8, sb))
                    .sum();
                assert_eq!(got, cut(dot + i128::from(row[2]), 32), "{code} {row:x?}");
            }
        }
    }
}

#[test]
fn comparisons() {
    for (ty, bits, signed) in TYPES {
        let r = reg(bits);
        let rows = pairs(values(bits), values(bits));
        type Test = fn(&i128, &i128) -> bool;
        let tests: [(&str, Test); 6] = [
            ("eq", i128::eq),
            ("ne", i128::ne),
            ("lt", i128::lt),
            ("le", i128::le),
            ("gt", i128::gt),
            ("ge", i128::ge),
        ];
        for (name, f) in tests {
            let got = eval(
                &format!("setp.{name}.{ty} %d, %a, %b;"),
                "pred",
                &[&r, &r],
                &rows,
            );
            for (row, got) in rows.iter().zip(got) {
                let want = f(&read(row[0], bits, signed), &read(row[1], bits, signed));
                assert_eq!(got, u64::from(want), "setp.{name}.{ty} {row:x?}");
            }
        }
    }
    // Combined with a predicate, and the complementary destination.
    let rows = triples(&[1, 2], &[1, 2], &[0, 1]);
    let code = ".reg .pred %o; setp.eq.xor.u32 %d|%o, %a, %b, !%c; @%o bra L; selp.u32 %w, 1, 0, %d; bra M;\n\
        L: add.u32 %w, 0, 2; @%d add.u32 %w, %w, 1; M: mov.b32 %x0, %w; setp.ne.u32 %d, %x0, 0;";
    for (row, got) in rows
        .iter()
        .zip(eval(code, "pred", &["b32", "b32", "pred"], &rows))
    {
        // p = eq ^ !c and q = !eq ^ !c are always complements here: one of the two paths runs.
        assert_eq!(got, 1, "{row:?}");
    }
    let got = eval(
        "set.lt.f32.s32 %d, %a, %b;",
        "f32",
        &["b32", "b32"],
        &[vec![0xffff_ffff, 0], vec![1, 0]],
    );
    assert_eq!(got, [u64::from(1f32.to_bits()), 0]);
    let got = eval(
        "set.lt.u32.u32 %d, %a, %b;",
        "b32",
        &["b32", "b32"],
        &[vec![0, 1], vec![1, 0]],
    );
    assert_eq!(got, [0xffff_ffff, 0]);
    let got = eval(
        "slct.u32.s32 %d, %a, %b, %c;",
        "b32",
        &["b32"; 3],
        &[vec![5, 6, 0], vec![5, 6, 0xffff_ffff]],
    );
    assert_eq!(got, [5, 6]);
}
