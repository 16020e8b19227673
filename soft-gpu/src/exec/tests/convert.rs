//! Conversions: every pair of types against the rules of the PTX manual.

use super::eval::eval;

const INTS: [(&str, u32, bool); 8] = [
    ("u8", 8, false),
    ("s8", 8, true),
    ("u16", 16, false),
    ("s16", 16, true),
    ("u32", 32, false),
    ("s32", 32, true),
    ("u64", 64, false),
    ("s64", 64, true),
];

fn reg(bits: u32) -> String {
    format!("b{}", bits.max(16))
}

fn read(v: u64, bits: u32, signed: bool) -> i128 {
    let k = 64 - bits;
    if signed {
        i128::from((v << k) as i64 >> k)
    } else {
        i128::from(v << k >> k)
    }
}

/// What a register of at least 16 bits holds after a conversion to this type.
fn held(v: i128, bits: u32, signed: bool) -> u64 {
    let wide = read(v as u64, bits, signed) as u64;
    match bits {
        64 => wide,
        32 => wide & 0xffff_ffff,
        _ => wide & 0xffff,
    }
}

fn range(bits: u32, signed: bool) -> (i128, i128) {
    if signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

#[test]
fn between_integers() {
    let inputs = [
        0u64,
        1,
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        0x1_0000_0000,
        i64::MAX as u64,
        1 << 63,
        u64::MAX,
        0x0123_4567_89ab_cdef,
    ];
    let rows: Vec<Vec<u64>> = inputs.iter().map(|v| vec![*v]).collect();
    for (s, sbits, ssigned) in INTS {
        for (d, dbits, dsigned) in INTS {
            for sat in ["", ".sat"] {
                let code = format!("cvt{sat}.{d}.{s} %d, %a;");
                let got = eval(&code, &reg(dbits), &[&reg(sbits)], &rows);
                for (row, got) in rows.iter().zip(got) {
                    let mut v = read(row[0], sbits, ssigned);
                    if !sat.is_empty() {
                        let (lo, hi) = range(dbits, dsigned);
                        v = v.clamp(lo, hi);
                    }
                    assert_eq!(got, held(v, dbits, dsigned), "{code} {:x}", row[0]);
                }
            }
        }
    }
}

#[test]
fn floats_to_integers() {
    let inputs = [
        0.0f64,
        -0.0,
        0.5,
        -0.5,
        1.5,
        2.5,
        -1.5,
        126.6,
        127.5,
        255.5,
        -128.5,
        32767.5,
        65535.4,
        2147483647.0,
        2147483648.0,
        -2147483649.0,
        4294967295.0,
        1e19,
        -1e19,
        1e30,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
        1e-40,
    ];
    type Round = fn(f64) -> f64;
    let modes: [(&str, Round); 4] = [
        ("rni", f64::round_ties_even),
        ("rzi", f64::trunc),
        ("rmi", f64::floor),
        ("rpi", f64::ceil),
    ];
    for (mode, round) in modes {
        for (d, bits, signed) in INTS {
            for single in [true, false] {
                let (s, rows): (_, Vec<Vec<u64>>) = if single {
                    (
                        "f32",
                        inputs
                            .iter()
                            .map(|x| vec![u64::from((*x as f32).to_bits())])
                            .collect(),
                    )
                } else {
                    ("f64", inputs.iter().map(|x| vec![x.to_bits()]).collect())
                };
                let code = format!("cvt.{mode}.{d}.{s} %d, %a;");
                let got = eval(&code, &reg(bits), &[s], &rows);
                for (x, got) in inputs.iter().zip(got) {
                    let x = if single { f64::from(*x as f32) } else { *x };
                    let (lo, hi) = range(bits, signed);
                    let want = if !x.is_nan() {
                        (round(x) as i128).clamp(lo, hi)
                    } else if single && bits < 64 {
                        0
                    } else {
                        1i128 << (bits - 1)
                    };
                    assert_eq!(got, held(want, bits, signed), "{code} {x:e}");
                }
            }
        }
    }
}

#[test]
fn integers_to_floats() {
    let inputs = [
        0u64,
        1,
        0xff,
        0x80,
        0xffff,
        0x8000,
        16_777_217,
        0xffff_ffff,
        0x8000_0001,
        u64::MAX,
        1 << 63,
        0x7fff_ffff_ffff_ffff,
        9_007_199_254_740_993,
    ];
    let rows: Vec<Vec<u64>> = inputs.iter().map(|v| vec![*v]).collect();
    for (s, bits, signed) in INTS {
        let single = eval(
            &format!("cvt.rn.f32.{s} %d, %a;"),
            "f32",
            &[&reg(bits)],
            &rows,
        );
        let double = eval(
            &format!("cvt.rn.f64.{s} %d, %a;"),
            "f64",
            &[&reg(bits)],
            &rows,
        );
        for (k, row) in rows.iter().enumerate() {
            let v = read(row[0], bits, signed);
            assert_eq!(single[k], u64::from((v as f32).to_bits()), "f32.{s} {v}");
            assert_eq!(double[k], (v as f64).to_bits(), "f64.{s} {v}");
        }
    }
}

/// Half precision by its definition.
fn half_value(h: u64) -> f64 {
    let (e, m) = (h >> 10 & 31, (h & 0x3ff) as f64);
    let v = match e {
        0 => m / 1024.0 * 2f64.powi(-14),
        31 => return if m == 0.0 { f64::INFINITY } else { f64::NAN },
        _ => (1.0 + m / 1024.0) * 2f64.powi(e as i32 - 15),
    };
    if h & 0x8000 != 0 { -v } else { v }
}

#[test]
fn halves() {
    let rows: Vec<Vec<u64>> = (0..0x7c00u64)
        .step_by(7)
        .chain([0x7c00, 0x7bff, 0x8001])
        .map(|h| vec![h])
        .collect();
    let wide = eval("cvt.f32.f16 %d, %a;", "f32", &["b16"], &rows);
    for (row, got) in rows.iter().zip(&wide) {
        assert_eq!(
            f64::from(f32::from_bits(*got as u32)).abs(),
            half_value(row[0]).abs(),
            "{:x}",
            row[0]
        );
    }
    // Back is the identity, and a value between two halves goes to the nearer, ties to even.
    let back: Vec<Vec<u64>> = wide.iter().map(|w| vec![*w]).collect();
    let again = eval("cvt.rn.f16.f32 %d, %a;", "b16", &["f32"], &back);
    for (row, got) in rows.iter().zip(again) {
        assert_eq!(got, row[0]);
    }
    let mids: Vec<Vec<u64>> = (0..0x7bffu64)
        .step_by(11)
        .map(|h| {
            vec![u64::from(
                (((half_value(h) + half_value(h + 1)) / 2.0) as f32).to_bits(),
            )]
        })
        .collect();
    let near = eval("cvt.rn.f16.f32 %d, %a;", "b16", &["f32"], &mids);
    let down = eval("cvt.rz.f16.f32 %d, %a;", "b16", &["f32"], &mids);
    for (k, h) in (0..0x7bffu64).step_by(11).enumerate() {
        assert_eq!(near[k], h + (h & 1), "tie above {h:x}");
        assert_eq!(down[k], h, "toward zero {h:x}");
    }
    let one = |x: f32| vec![u64::from(x.to_bits())];
    let edge = eval(
        "cvt.rn.f16.f32 %d, %a;",
        "b16",
        &["f32"],
        &[one(65520.0), one(65519.0), one(f32::NAN), one(-1e-9)],
    );
    assert_eq!(edge, [0x7c00, 0x7bff, 0x7fff, 0x8000]);
    let pair = |a: f32, b: f32| vec![u64::from(a.to_bits()), u64::from(b.to_bits())];
    let packed = eval(
        "cvt.rn.f16x2.f32 %d, %a, %b;",
        "b32",
        &["f32", "f32"],
        &[pair(1.0, -2.0)],
    );
    assert_eq!(packed, [0x3c00_c000]);
    let packed = eval(
        "cvt.rn.bf16x2.f32 %d, %a, %b;",
        "b32",
        &["f32", "f32"],
        &[pair(1.0, 1.003_906_3)],
    );
    assert_eq!(packed, [0x3f80_3f80], "a tie to even");
}

#[test]
fn between_floats() {
    let inputs = [0.1f64, -0.1, 1e39, -1e39, 1e-46, 3.5, -2.5, 1e-39];
    let rows: Vec<Vec<u64>> = inputs.iter().map(|x| vec![x.to_bits()]).collect();
    let one = |code: &str| -> Vec<f32> {
        eval(code, "f32", &["f64"], &rows)
            .iter()
            .map(|b| f32::from_bits(*b as u32))
            .collect()
    };
    assert_eq!(one("cvt.rn.f32.f64 %d, %a;"), inputs.map(|x| x as f32));
    let up = one("cvt.rp.f32.f64 %d, %a;");
    let down = one("cvt.rm.f32.f64 %d, %a;");
    for (k, x) in inputs.iter().enumerate() {
        assert!(f64::from(down[k]) <= *x && *x <= f64::from(up[k]), "{x:e}");
        let exact = f64::from(*x as f32) == *x;
        assert!(
            if exact {
                up[k] == down[k]
            } else {
                down[k].next_up() == up[k]
            },
            "{x:e}"
        );
    }
    assert_eq!(one("cvt.rn.ftz.f32.f64 %d, %a;")[7], 0.0);
    assert_eq!(
        one("cvt.rn.sat.f32.f64 %d, %a;"),
        [0.1, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 1e-39]
    );
    let got = eval("cvt.rmi.f64.f64 %d, %a;", "f64", &["f64"], &rows);
    assert_eq!(got, inputs.map(|x| x.floor().to_bits()));
}

#[test]
fn packing_moves() {
    let wide = vec![vec![0x0123_4567_89ab_cdef]];
    let code =
        ".reg .b16 %h<4>; mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b64 %d, {%h3, %h2, %h1, %h0};";
    assert_eq!(eval(code, "b64", &["b64"], &wide), [0xcdef_89ab_4567_0123]);
    let code = "mov.b64 {%x0, _}, %a; mov.b64 {_, %x1}, %a; mov.b64 %d, {%x1, %x0};";
    assert_eq!(eval(code, "b64", &["b64"], &wide), [0x89ab_cdef_0123_4567]);
    let code = ".reg .b16 %h<2>; mov.b32 {%h0, %h1}, %a; mov.b32 %d, {%h1, %h0};";
    assert_eq!(
        eval(code, "b32", &["b32"], &[vec![0x1234_5678]]),
        [0x5678_1234]
    );
    assert_eq!(
        eval("mov.b32 %d, 0f3F800000;", "b32", &["b32"], &[vec![0]]),
        [0x3f80_0000]
    );
    assert_eq!(
        eval(
            "mov.f64 %d, 0dBFF8000000000000;",
            "f64",
            &["b32"],
            &[vec![0]]
        ),
        [(-1.5f64).to_bits()]
    );
}
