//! `mma`: every shape, with the fragment layouts of the PTX manual as the reference.

use super::exact::{BRAIN, HALF, Rule};
use super::layouts::*;
use super::{Bench, HEADER, Random};

/// A matrix, as the bits of its elements.
pub(super) type Bits = Vec<Vec<u64>>;

pub(super) fn matrix(rows: usize, cols: usize, mut f: impl FnMut(usize, usize) -> u64) -> Bits {
    (0..rows)
        .map(|r| (0..cols).map(|c| f(r, c)).collect())
        .collect()
}

/// The registers of each lane that hold a matrix, as 64-bit words.
fn scatter(x: &Bits, bits: usize, place: Place) -> Vec<Vec<u64>> {
    let per = (32 / bits).max(1);
    let regs = x.len() * x[0].len() / 32 / per;
    (0..32)
        .map(|lane| {
            (0..regs)
                .map(|r| {
                    (0..per).fold(0, |w, j| {
                        let (row, col) = place(lane / 4, lane % 4, r * per + j);
                        w | x[row][col] << (j * bits)
                    })
                })
                .collect()
        })
        .collect()
}

/// Reads a matrix from the registers of the lanes.
fn gather(regs: &[Vec<u64>], rows: usize, bits: usize, place: Place) -> Bits {
    let per = (32 / bits).max(1);
    let mut out = vec![vec![0; 8]; rows];
    for (lane, regs) in regs.iter().enumerate() {
        for (r, w) in regs.iter().enumerate() {
            for j in 0..per {
                let (row, col) = place(lane / 4, lane % 4, r * per + j);
                out[row][col] = w >> (j * bits) & (u64::MAX >> (64 - bits));
            }
        }
    }
    out
}

/// Runs `opcode` on registers of every lane. If `wide`, A, B, C and D have 64-bit elements.
fn launch(opcode: &str, inputs: [&[Vec<u64>]; 3], d: usize, wide: bool) -> Vec<Vec<u64>> {
    let (ty, bytes) = if wide { ("f64", 8) } else { ("b32", 4) };
    let counts = inputs.map(|x| x[0].len());
    let mut text = format!(
        "{HEADER}.visible .entry k(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d) {{
         .reg .b64 %p; .reg .b32 %t; .reg .{ty} %a<16>, %b<16>, %c<16>, %d<16>; mov.u32 %t, %tid.x;\n"
    );
    let list = |n: &str, k: usize| {
        let names: Vec<String> = (0..k).map(|i| format!("%{n}{i}")).collect();
        format!("{{{}}}", names.join(", "))
    };
    for (name, k) in ["a", "b", "c"].iter().zip(counts) {
        text += &format!(
            "ld.param.u64 %p, [{name}]; mad.wide.u32 %p, %t, {}, %p;\n",
            k * bytes
        );
        for i in 0..k {
            text += &format!("ld.global.{ty} %{name}{i}, [%p+{}];\n", i * bytes);
        }
    }
    text += &format!(
        "{opcode} {}, {}, {}, {};\n",
        list("d", d),
        list("a", counts[0]),
        list("b", counts[1]),
        list("c", counts[2])
    );
    text += &format!(
        "ld.param.u64 %p, [d]; mad.wide.u32 %p, %t, {}, %p;\n",
        d * bytes
    );
    for i in 0..d {
        text += &format!("st.global.{ty} [%p+{}], %d{i};\n", i * bytes);
    }
    text += "ret; }";
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let upload = |x: &[Vec<u64>]| {
        let flat: Vec<u64> = x.iter().flatten().copied().collect();
        if wide {
            bench.longs(&flat)
        } else {
            bench.words(&flat.iter().map(|w| *w as u32).collect::<Vec<u32>>())
        }
    };
    let out = bench.longs(&vec![0; 32 * d]);
    let params = [upload(inputs[0]), upload(inputs[1]), upload(inputs[2]), out];
    bench
        .launch(&p, "k", [1, 1, 1], [32, 1, 1], &params)
        .unwrap();
    let flat: Vec<u64> = if wide {
        bench.read_longs(out, 32 * d)
    } else {
        bench
            .read_words(out, 32 * d)
            .iter()
            .map(|w| u64::from(*w))
            .collect()
    };
    flat.chunks(d).map(<[u64]>::to_vec).collect()
}

/// The bits of D for the matrices A, B and C, given as bits. `out` is the width of an element of C
/// and D.
fn multiply(f: &Form, opcode: &str, m: [&Bits; 3], out: usize) -> Bits {
    let (rows, ..) = f.size;
    let per = (32 / out).max(1);
    let wide = f.bits == 64;
    let c = scatter(m[2], out, accumulator);
    let a = scatter(m[0], f.bits, f.a);
    let b = scatter(m[1], f.bits, f.b);
    let d = launch(opcode, [&a, &b, &c], rows * 8 / 32 / per, wide);
    gather(&d, rows, out, accumulator)
}

/// An element type: its name, and functions that encode a small integer and return the value of
/// bits.
pub(super) struct Kind {
    pub(super) name: &'static str,
    pub(super) of: fn(i64) -> u64,
    pub(super) value: fn(u64) -> f64,
}

pub(super) const F16: Kind = Kind {
    name: "f16",
    of: |n| u64::from(HALF.of(n as f64, Rule::Nearest)),
    value: |b| HALF.value(b as u16),
};
pub(super) const BF16: Kind = Kind {
    name: "bf16",
    of: |n| u64::from(BRAIN.of(n as f64, Rule::Nearest)),
    value: |b| BRAIN.value(b as u16),
};
pub(super) const TF32: Kind = Kind {
    name: "tf32",
    of: |n| u64::from((n as f32).to_bits()),
    value: |b| f64::from(f32::from_bits(b as u32 & 0xffff_e000)),
};
pub(super) const F32: Kind = Kind {
    name: "f32",
    of: |n| u64::from((n as f32).to_bits()),
    value: |b| f64::from(f32::from_bits(b as u32)),
};
pub(super) const F64: Kind = Kind {
    name: "f64",
    of: |n| (n as f64).to_bits(),
    value: f64::from_bits,
};

/// Forms with floating-point elements: shape, type of A and B, type of C and D.
fn float_forms() -> Vec<(&'static Form, Kind, Kind)> {
    vec![
        (&M16N8K16_16, F16, F32),
        (&M16N8K16_16, F16, F16),
        (&M16N8K8_16, F16, F32),
        (&M16N8K8_16, F16, F16),
        (&M16N8K16_16, BF16, F32),
        (&M16N8K8_16, BF16, F32),
        (&M16N8K8_32, TF32, F32),
        (&M16N8K4_32, TF32, F32),
        (&M8N8K4_64, F64, F64),
        (&M16N8K4_64, F64, F64),
        (&M16N8K8_64, F64, F64),
        (&M16N8K16_64, F64, F64),
    ]
}

fn opcode(f: &Form, d: &str, a: &str, b: &str, c: &str) -> String {
    let (m, n, k) = f.size;
    format!("mma.sync.aligned.m{m}n{n}k{k}.row.col.{d}.{a}.{b}.{c}")
}

fn out_bits(k: &Kind) -> usize {
    match k.name {
        "f16" => 16,
        "f64" => 64,
        _ => 32,
    }
}

#[test]
pub(super) fn small_integers_are_exact_in_every_type() {
    let mut random = Random(5);
    for (f, ab, cd) in float_forms() {
        let (m, n, k) = f.size;
        let mut small = |_: usize, _: usize| (ab.of)((random.next() % 17) as i64 - 8);
        let (a, b) = (matrix(m, k, &mut small), matrix(k, n, &mut small));
        let c = matrix(m, n, |r, c| (cd.of)((r * 8 + c) as i64 - 60));
        let op = opcode(f, cd.name, ab.name, ab.name, cd.name);
        let d = multiply(f, &op, [&a, &b, &c], out_bits(&cd));
        for r in 0..m {
            for col in 0..n {
                let sum: f64 = (0..k)
                    .map(|q| (ab.value)(a[r][q]) * (ab.value)(b[q][col]))
                    .sum();
                let want = (cd.of)((sum + (cd.value)(c[r][col])) as i64);
                assert_eq!(d[r][col], want, "{op} ({r}, {col})");
            }
        }
    }
}

/// With random numbers, the result must be the exact sum rounded once, within one rounding.
#[test]
pub(super) fn sums_are_rounded_once() {
    let mut random = Random(6);
    for (f, ab, cd) in float_forms() {
        if ab.name == "f64" {
            continue;
        }
        let (m, n, k) = f.size;
        let mut any = |_: usize, _: usize| {
            let x = (random.next() % 4_000_001) as f64 / 1e6 - 2.0;
            match ab.name {
                "f16" => u64::from(HALF.of(x, Rule::Nearest)),
                "bf16" => u64::from(BRAIN.of(x, Rule::Nearest)),
                _ => u64::from((x as f32).to_bits()),
            }
        };
        let (a, b) = (matrix(m, k, &mut any), matrix(k, n, &mut any));
        let c = matrix(m, n, |r, c| (cd.of)((r * 8 + c) as i64 - 60));
        let op = opcode(f, cd.name, ab.name, ab.name, cd.name);
        let d = multiply(f, &op, [&a, &b, &c], out_bits(&cd));
        for r in 0..m {
            for col in 0..n {
                let products = (0..k).map(|q| (ab.value)(a[r][q]) * (ab.value)(b[q][col]));
                let want: f64 = products.sum::<f64>() + (cd.value)(c[r][col]);
                let got = (cd.value)(d[r][col]);
                let half_step = if cd.name == "f16" {
                    2f64.powi(-11)
                } else {
                    2f64.powi(-24)
                };
                let bound = half_step * want.abs() * 1.0001 + 1e-12;
                assert!(
                    (got - want).abs() <= bound,
                    "{op} ({r}, {col}): {got} {want}"
                );
            }
        }
    }
}

/// Doubles, compared with the floating-point unit of the host in each rounding mode.
#[cfg(target_arch = "x86_64")]
#[test]
pub(super) fn doubles_are_a_chain_of_fused_steps() {
    let mut random = Random(8);
    let modes = [("", 0), (".rn", 0), (".rm", 1), (".rp", 2), (".rz", 3)];
    for f in [&M8N8K4_64, &M16N8K4_64, &M16N8K8_64, &M16N8K16_64] {
        let (m, n, k) = f.size;
        let mut any = |_: usize, _: usize| {
            let sign = random.next() & 1 << 63;
            random.next() >> 12 | 0x3ff << 52 | sign
        };
        let (a, b, c) = (
            matrix(m, k, &mut any),
            matrix(k, n, &mut any),
            matrix(m, n, &mut any),
        );
        let plain = opcode(f, "f64", "f64", "f64", "f64");
        let mut results = Vec::new();
        for (mode, rc) in modes {
            let op = plain.replace(".row.col", &format!(".row.col{mode}"));
            let d = multiply(f, &op, [&a, &b, &c], 64);
            for r in 0..m {
                for col in 0..n {
                    let v = f64::from_bits;
                    let want = (0..k).fold(v(c[r][col]), |s, q| {
                        crate::exec::tests::rounding::fma64(v(a[r][q]), v(b[q][col]), s, rc)
                    });
                    assert_eq!(v(d[r][col]), want, "{op} ({r}, {col})");
                }
            }
            results.push(d);
        }
        assert_ne!(results[2], results[3], "the directions differ");
    }
}

#[test]
pub(super) fn special_values() {
    let f = &M16N8K16_16;
    let zero = |r, c| matrix(r, c, |_, _| 0);
    for (ab, cd) in [(F16, F32), (F16, F16), (BF16, F32)] {
        let op = opcode(f, cd.name, ab.name, ab.name, cd.name);
        let bits = out_bits(&cd);
        let (mut a, mut b, mut c) = (zero(16, 16), zero(16, 8), zero(16, 8));
        let infinity = if ab.name == "f16" { 0x7c00 } else { 0x7f80 };
        // Row 0 computes inf·0, row 1 inf·1, row 2 has a NaN, row 3 the largest value twice, row 4
        // the smallest value.
        (a[0][3], a[1][5], a[2][7]) = (infinity, infinity, infinity + 1);
        (a[3][0], a[3][1]) = (infinity - 1, infinity - 1);
        a[4][2] = 1;
        for row in [0, 1, 2, 5] {
            b[row].fill((ab.of)(1));
        }
        c[5][0] = if bits == 16 { 0x8000 } else { 0x8000_0000 };
        let d = multiply(f, &op, [&a, &b, &c], bits);
        let nan = if bits == 16 { 0x7fff } else { 0x7fff_ffff };
        assert_eq!(d[0][0], nan, "{op}: inf · 0");
        assert_eq!((cd.value)(d[1][0]), f64::INFINITY, "{op}");
        assert_eq!(d[2][0], nan, "{op}: NaN");
        assert_eq!(d[5][0], 0, "{op}: -0 plus zeros");
        if bits == 16 {
            assert_eq!(d[3][0], 0x7c00, "{op}: overflow");
        } else {
            let twice = 2.0 * (ab.value)(infinity - 1);
            assert_eq!((cd.value)(d[3][0]), f64::from(twice as f32), "{op}");
        }
        assert_eq!((cd.value)(d[4][0]), (ab.value)(1), "{op}: subnormal");
    }
    // The low bits of tf32 are ignored.
    let f = &M16N8K8_32;
    let op = opcode(f, "f32", "tf32", "tf32", "f32");
    let a = matrix(16, 8, |_, _| 0x3f80_1fff);
    let b = matrix(8, 8, |_, _| 0x3f80_0fff);
    let d = multiply(f, &op, [&a, &b, &zero(16, 8)], 32);
    assert!(d.iter().flatten().all(|x| f32::from_bits(*x as u32) == 8.0));
}

/// 8-bit floats in every combination. The inputs are such that their sums are exact in a double.
#[test]
pub(super) fn eights() {
    let mut random = Random(12);
    for f in [&M16N8K16_8, &M16N8K32_8] {
        let (m, n, k) = f.size;
        for (a_is, b_is) in [(true, true), (true, false), (false, true), (false, false)] {
            let mut any = |e4m3: bool| {
                let bits = random.next();
                match e4m3 {
                    true if bits & 0x7f == 0x7f => 0,
                    true => bits & 0xff,
                    // Exponents in the middle of the range.
                    false => bits & 0x83 | (5 + (bits >> 8) % 21) << 2,
                }
            };
            let mut a = matrix(m, k, |_, _| any(a_is));
            let b = matrix(k, n, |_, _| any(b_is));
            // A NaN, and an infinity if the format has one.
            (a[3][1], a[4][2]) = (0x7f, if a_is { 0x7e } else { 0x7c });
            for cd in [F32, F16] {
                let c = matrix(m, n, |r, c| (cd.of)((r * 8 + c) as i64 - 60));
                let name = |e4m3| if e4m3 { "e4m3" } else { "e5m2" };
                let op = opcode(f, cd.name, name(a_is), name(b_is), cd.name);
                let d = multiply(f, &op, [&a, &b, &c], out_bits(&cd));
                for r in 0..m {
                    for col in 0..n {
                        let value = |bits: u64, e4m3| super::narrow::tiny(bits as u8, e4m3);
                        let products =
                            (0..k).map(|q| value(a[r][q], a_is) * value(b[q][col], b_is));
                        let sum = products.sum::<f64>() + (cd.value)(c[r][col]);
                        let want = match cd.name {
                            "f16" => u64::from(HALF.of(sum, Rule::Nearest)),
                            _ if sum.is_nan() => 0x7fff_ffff,
                            _ => u64::from((sum as f32).to_bits()),
                        };
                        assert_eq!(d[r][col], want, "{op} ({r}, {col})");
                    }
                }
            }
        }
    }
}

/// The integer that an element's bits encode.
fn integer(bits: u64, width: usize, signed: bool) -> i64 {
    let k = 64 - width;
    if signed {
        (bits << k) as i64 >> k
    } else {
        bits as i64
    }
}

#[test]
pub(super) fn integers() {
    let mut random = Random(9);
    for f in [
        &M8N8K16_8,
        &M16N8K16_8,
        &M16N8K32_8,
        &M8N8K32_4,
        &M16N8K32_4,
        &M16N8K64_4,
    ] {
        let (m, n, k) = f.size;
        for (sa, sb) in [(true, true), (true, false), (false, true), (false, false)] {
            let name = |s: bool| format!("{}{}", if s { "s" } else { "u" }, f.bits);
            let mut any = |_: usize, _: usize| random.next() & ((1 << f.bits) - 1);
            let (a, b) = (matrix(m, k, &mut any), matrix(k, n, &mut any));
            // Some addends make the sum exceed 32 bits.
            let c = matrix(m, n, |r, c| match (r + c) % 4 {
                0 => 0x7fff_ff00,
                1 => 0x8000_0010,
                _ => random.next() & 0xffff_ffff,
            });
            let op = opcode(f, "s32", &name(sa), &name(sb), "s32");
            let clamped = op.replace(".s32.", ".satfinite.s32.");
            for (op, clamp) in [(op.as_str(), false), (clamped.as_str(), true)] {
                let d = multiply(f, op, [&a, &b, &c], 32);
                for r in 0..m {
                    for col in 0..n {
                        let products = (0..k)
                            .map(|q| integer(a[r][q], f.bits, sa) * integer(b[q][col], f.bits, sb));
                        let sum = products.sum::<i64>() + integer(c[r][col], 32, true);
                        let want = if clamp {
                            sum.clamp(-(1 << 31), (1 << 31) - 1)
                        } else {
                            sum
                        };
                        assert_eq!(d[r][col], want as u64 & 0xffff_ffff, "{op} ({r}, {col})");
                    }
                }
            }
        }
    }
}

#[test]
pub(super) fn bits() {
    let mut random = Random(10);
    for f in [&M8N8K128_1, &M16N8K128_1, &M16N8K256_1] {
        let (m, n, k) = f.size;
        let mut any = |_: usize, _: usize| random.next() & 1;
        let (a, b) = (matrix(m, k, &mut any), matrix(k, n, &mut any));
        let c = matrix(m, n, |r, c| (r * 100 + c) as u64);
        for (name, and) in [("xor", false), ("and", true)] {
            let op = format!("{}.{name}.popc", opcode(f, "s32", "b1", "b1", "s32"));
            let d = multiply(f, &op, [&a, &b, &c], 32);
            for r in 0..m {
                for col in 0..n {
                    let one = |q: usize| {
                        if and {
                            a[r][q] & b[q][col]
                        } else {
                            a[r][q] ^ b[q][col]
                        }
                    };
                    let want = c[r][col] + (0..k).map(one).sum::<u64>();
                    assert_eq!(d[r][col], want, "{op} ({r}, {col})");
                }
            }
        }
    }
}

/// `m8n8k4` of halves: four products, with lanes and elements as in the PTX manual.
#[test]
pub(super) fn four_products_of_quads() {
    let mut random = Random(12);
    let lane_of = |q: usize, k: usize| if k < 4 { 4 * q + k } else { 16 + 4 * q + k - 4 };
    for (la, by_col_a) in [("row", false), ("col", true)] {
        for (lb, by_col_b) in [("row", false), ("col", true)] {
            for (d_name, c_name) in [
                ("f32", "f32"),
                ("f16", "f16"),
                ("f32", "f16"),
                ("f16", "f32"),
            ] {
                let mut small = |_: usize, _: usize| (F16.of)((random.next() % 9) as i64 - 4);
                let a: Vec<Bits> = (0..4).map(|_| matrix(8, 4, &mut small)).collect();
                let b: Vec<Bits> = (0..4).map(|_| matrix(4, 8, &mut small)).collect();
                let c: Vec<Bits> = (0..4).map(|_| matrix(8, 8, &mut small)).collect();
                let mut regs = [vec![vec![]; 32], vec![vec![]; 32], vec![vec![]; 32]];
                // (row, column) of element i of C, for one of the eight lanes of a product.
                let place = |name: &str, lane: usize, i: usize| {
                    let high = if lane < 16 { 0 } else { 4 };
                    if name == "f16" {
                        (lane % 4 + high, i)
                    } else {
                        ((lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1))
                    }
                };
                let pack =
                    |v: Vec<u64>| v.chunks(2).map(|p| p[1] << 16 | p[0]).collect::<Vec<u64>>();
                for q in 0..4 {
                    for lane in (0..8).map(|k| lane_of(q, k)) {
                        let high = if lane < 16 { 0 } else { 4 };
                        let t = lane % 4;
                        let ea = |i: usize| {
                            if by_col_a {
                                a[q][i + high][t]
                            } else {
                                a[q][t + high][i]
                            }
                        };
                        let eb = |i: usize| {
                            if by_col_b {
                                b[q][i][t + high]
                            } else {
                                b[q][t][i + high]
                            }
                        };
                        regs[0][lane] = pack((0..4).map(ea).collect());
                        regs[1][lane] = pack((0..4).map(eb).collect());
                        let ec = |i: usize| {
                            let (r, col) = place(c_name, lane, i);
                            c[q][r][col]
                        };
                        regs[2][lane] = if c_name == "f16" {
                            pack((0..8).map(ec).collect())
                        } else {
                            (0..8)
                                .map(|i| (F32.of)((F16.value)(ec(i)) as i64))
                                .collect()
                        };
                    }
                }
                let op = format!("mma.sync.aligned.m8n8k4.{la}.{lb}.{d_name}.f16.f16.{c_name}");
                let count = if d_name == "f16" { 4 } else { 8 };
                let got = launch(&op, [&regs[0], &regs[1], &regs[2]], count, false);
                for q in 0..4 {
                    for lane in (0..8).map(|k| lane_of(q, k)) {
                        for i in 0..8 {
                            let (r, col) = place(d_name, lane, i);
                            let products =
                                (0..4).map(|k| (F16.value)(a[q][r][k]) * (F16.value)(b[q][k][col]));
                            let want = products.sum::<f64>() + (F16.value)(c[q][r][col]);
                            let value = if d_name == "f16" {
                                (F16.value)(got[lane][i / 2] >> (16 * (i & 1)) & 0xffff)
                            } else {
                                (F32.value)(got[lane][i])
                            };
                            assert_eq!(value, want, "{op} product {q} ({r}, {col})");
                        }
                    }
                }
            }
        }
    }
}

#[test]
pub(super) fn forms_that_do_not_exist_are_refused() {
    let refused = |op: &str, regs: [usize; 4]| {
        let list = |n: &str, k: usize| {
            let names: Vec<String> = (0..k).map(|i| format!("%{n}{i}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        let [d, a, b, c] = regs;
        let text = format!(
            "{HEADER}.visible .entry k() {{ .reg .b32 %d<9>, %a<9>, %b<9>, %c<9>; {op} {}, {}, {}, {}; }}",
            list("d", d),
            list("a", a),
            list("b", b),
            list("c", c)
        );
        let opts = crate::exec::contract::LoadOptions::of((8, 0));
        crate::exec::program::Program::load(text.as_bytes(), &opts).is_err()
    };
    let good = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32";
    assert!(!refused(good, [4, 4, 2, 4]));
    for (op, regs) in [
        (good, [4, 4, 2, 2]),
        (good, [4, 8, 2, 4]),
        (
            "mma.sync.aligned.m16n8k16.col.col.f32.f16.f16.f32",
            [4, 4, 2, 4],
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32",
            [4, 8, 4, 4],
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.bf16.f32",
            [4, 4, 2, 4],
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f32",
            [2, 4, 2, 4],
        ),
        (
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f16",
            [4, 4, 2, 2],
        ),
        (
            "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.f16.f32",
            [4, 4, 2, 4],
        ),
        (
            "mma.sp.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
            [4, 2, 2, 4],
        ),
        ("mma.sync.m16n8k16.row.col.f32.f16.f16.f32", [4, 4, 2, 4]),
    ] {
        assert!(refused(op, regs), "{op} {regs:?}");
    }
}
