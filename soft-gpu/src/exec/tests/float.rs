//! Floating-point forms: flush, saturation, minima, approximations, classes.

use super::eval::{eval, pairs};

const EDGES: [u32; 16] = [
    0x0000_0000, // +0
    0x8000_0000, // -0
    0x0000_0001, // least subnormal
    0x807f_ffff, // largest negative subnormal
    0x0080_0000, // least normal
    0x3f80_0000, // 1
    0xbf80_0000, // -1
    0x3f00_0000, // 0.5
    0x4049_0fdb, // pi
    0xc2c8_0000, // -100
    0x7f7f_ffff, // largest
    0xff7f_ffff,
    0x7f80_0000, // inf
    0xff80_0000,
    0x7fc0_0000, // NaN
    0xffc0_1234, // NaN with sign and payload
];

fn edges() -> Vec<u64> {
    EDGES.iter().map(|b| u64::from(*b)).collect()
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

fn check(got: u64, want: f32, what: &str) {
    // Single-precision results that are not a number are the canonical NaN.
    let want = if want.is_nan() {
        0x7fff_ffff
    } else {
        want.to_bits()
    };
    assert_eq!(
        got,
        u64::from(want),
        "{what}: {} not {}",
        f(got),
        f32::from_bits(want)
    );
}

type Host = fn(f32, f32) -> f32;

fn host_min(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a.total_cmp(&b).is_lt() => a,
        _ => b,
    }
}

fn host_max(a: f32, b: f32) -> f32 {
    match (a.is_nan(), b.is_nan()) {
        (true, _) => b,
        (_, true) => a,
        _ if a.total_cmp(&b).is_gt() => a,
        _ => b,
    }
}

#[test]
fn arithmetic_with_flush_and_saturation() {
    let rows = pairs(&edges(), &edges());
    let ops: [(&str, Host, bool); 6] = [
        ("add", |a, b| a + b, true),
        ("sub", |a, b| a - b, true),
        ("mul", |a, b| a * b, true),
        ("div.rn", |a, b| a / b, false),
        ("min", host_min, false),
        ("max", host_max, false),
    ];
    for (op, host, has_sat) in ops {
        for (ftz, sat) in [(false, false), (true, false), (false, true), (true, true)] {
            if sat && !has_sat {
                continue;
            }
            let mods = format!(
                "{}{}",
                if ftz { ".ftz" } else { "" },
                if sat { ".sat" } else { "" }
            );
            let code = format!("{op}{mods}.f32 %d, %a, %b;");
            for (row, got) in rows.iter().zip(eval(&code, "f32", &["f32", "f32"], &rows)) {
                let (mut a, mut b) = (f(row[0]), f(row[1]));
                if ftz {
                    (a, b) = (flush(a), flush(b));
                }
                let mut want = host(a, b);
                if ftz {
                    want = flush(want);
                }
                if sat {
                    want = if want > 0.0 { want.min(1.0) } else { 0.0 };
                }
                check(got, want, &format!("{code} {a:e} {b:e}"));
            }
        }
    }
}

#[test]
fn directed_rounding_with_flush_and_saturation() {
    let row = |a: f32, b: f32| vec![u64::from(a.to_bits()), u64::from(b.to_bits())];
    let tiny = f32::from_bits(0x0080_0001);
    let rows = vec![
        row(1.0, f32::MIN_POSITIVE),
        row(tiny, -f32::MIN_POSITIVE),
        row(0.75, 0.5),
    ];
    let got = eval("add.rp.ftz.f32 %d, %a, %b;", "f32", &["f32", "f32"], &rows);
    check(got[0], 1f32.next_up(), "rounded up");
    check(got[1], 0.0, "a subnormal result is flushed");
    let got = eval("add.rz.sat.f32 %d, %a, %b;", "f32", &["f32", "f32"], &rows);
    check(got[2], 1.0, "saturated");
}

#[test]
fn minima_that_keep_nan() {
    let rows = pairs(&edges(), &edges());
    let got = eval("min.NaN.f32 %d, %a, %b;", "f32", &["f32", "f32"], &rows);
    for (row, got) in rows.iter().zip(got) {
        let (a, b) = (f(row[0]), f(row[1]));
        let want = if a.is_nan() || b.is_nan() {
            f32::NAN
        } else {
            host_min(a, b)
        };
        check(got, want, &format!("min.NaN {a:e} {b:e}"));
    }
}

#[test]
fn unordered_comparisons() {
    let rows = pairs(&edges(), &edges());
    type Test = fn(f32, f32) -> bool;
    let tests: [(&str, Test); 14] = [
        ("eq", |a, b| a == b),
        ("ne", |a, b| !(a.is_nan() || b.is_nan()) && a != b),
        ("lt", |a, b| a < b),
        ("le", |a, b| a <= b),
        ("gt", |a, b| a > b),
        ("ge", |a, b| a >= b),
        ("equ", |a, b| a.is_nan() || b.is_nan() || a == b),
        ("neu", |a, b| a.is_nan() || b.is_nan() || a != b),
        ("ltu", |a, b| a.is_nan() || b.is_nan() || a < b),
        ("leu", |a, b| a.is_nan() || b.is_nan() || a <= b),
        ("gtu", |a, b| a.is_nan() || b.is_nan() || a > b),
        ("geu", |a, b| a.is_nan() || b.is_nan() || a >= b),
        ("num", |a, b| !a.is_nan() && !b.is_nan()),
        ("nan", |a, b| a.is_nan() || b.is_nan()),
    ];
    let wide: Vec<Vec<u64>> = rows
        .iter()
        .map(|r| r.iter().map(|v| f64::from(f(*v)).to_bits()).collect())
        .collect();
    for (name, host) in tests {
        let plain = eval(
            &format!("setp.{name}.f32 %d, %a, %b;"),
            "pred",
            &["f32", "f32"],
            &rows,
        );
        let ftz = eval(
            &format!("setp.{name}.ftz.f32 %d, %a, %b;"),
            "pred",
            &["f32", "f32"],
            &rows,
        );
        let double = eval(
            &format!("setp.{name}.f64 %d, %a, %b;"),
            "pred",
            &["f64", "f64"],
            &wide,
        );
        for (k, row) in rows.iter().enumerate() {
            let (a, b) = (f(row[0]), f(row[1]));
            assert_eq!(plain[k], u64::from(host(a, b)), "setp.{name} {a:e} {b:e}");
            assert_eq!(
                ftz[k],
                u64::from(host(flush(a), flush(b))),
                "setp.{name}.ftz {a:e} {b:e}"
            );
            assert_eq!(
                double[k],
                u64::from(host(a, b)),
                "setp.{name}.f64 {a:e} {b:e}"
            );
        }
    }
}

#[test]
fn approximations_are_close() {
    let inputs: Vec<f32> = (-400..400).map(|i| i as f32 * 0.037 + 0.011).collect();
    let rows: Vec<Vec<u64>> = inputs
        .iter()
        .map(|x| vec![u64::from(x.to_bits())])
        .collect();
    type Double = fn(f64) -> f64;
    let ops: [(&str, Double); 8] = [
        ("sin.approx", f64::sin),
        ("cos.approx", f64::cos),
        ("ex2.approx", f64::exp2),
        ("lg2.approx", f64::log2),
        ("tanh.approx", f64::tanh),
        ("rsqrt.approx", |x| 1.0 / x.sqrt()),
        ("rcp.approx", |x| 1.0 / x),
        ("sqrt.approx", f64::sqrt),
    ];
    for (op, host) in ops {
        let got = eval(&format!("{op}.f32 %d, %a;"), "f32", &["f32"], &rows);
        for (x, got) in inputs.iter().zip(got) {
            let (want, got) = (host(f64::from(*x)), f64::from(f(got)));
            if want.is_nan() {
                assert!(got.is_nan(), "{op} {x}");
            } else {
                assert!(
                    (got - want).abs() <= want.abs() * 2.5e-7 + 1e-40,
                    "{op} {x}: {got} not {want}"
                );
            }
        }
    }
    // Far angles, and inputs that are powers of two.
    let far: Vec<Vec<u64>> = [1e5f32, 123_456.7, 3e10, -2e6, 99_999.0]
        .iter()
        .map(|x| vec![u64::from(x.to_bits())])
        .collect();
    for (op, host) in [("sin.approx", f64::sin as Double), ("cos.approx", f64::cos)] {
        for (row, got) in far
            .iter()
            .zip(eval(&format!("{op}.f32 %d, %a;"), "f32", &["f32"], &far))
        {
            let want = host(f64::from(f(row[0])));
            assert!(
                (f64::from(f(got)) - want).abs() < 1e-7,
                "{op} {}",
                f(row[0])
            );
        }
    }
    let whole: Vec<Vec<u64>> = (-149..128)
        .map(|n| vec![u64::from((n as f32).to_bits())])
        .collect();
    let powers = eval("ex2.approx.f32 %d, %a;", "f32", &["f32"], &whole);
    for (n, got) in (-149..128).zip(&powers) {
        assert_eq!(f64::from(f(*got)), 2f64.powi(n), "2^{n}");
    }
    let back: Vec<Vec<u64>> = powers.iter().map(|p| vec![*p]).collect();
    assert_eq!(
        eval("lg2.approx.f32 %d, %a;", "f32", &["f32"], &back),
        whole.concat()
    );
    let special = |op: &str, x: f32| {
        f(eval(
            &format!("{op}.f32 %d, %a;"),
            "f32",
            &["f32"],
            &[vec![u64::from(x.to_bits())]],
        )[0])
    };
    assert_eq!(special("ex2.approx", f32::NEG_INFINITY), 0.0);
    assert_eq!(special("ex2.approx.ftz", -140.0), 0.0);
    assert_eq!(special("lg2.approx", 0.0), f32::NEG_INFINITY);
    assert_eq!(special("rsqrt.approx", 0.0), f32::INFINITY);
    assert_eq!(special("rcp.approx.ftz", f32::from_bits(1)), f32::INFINITY);
    assert!(special("sin.approx", f32::INFINITY).is_nan());
    let rows: Vec<Vec<u64>> = [3f64, -0.1, 1e300]
        .iter()
        .map(|x| vec![x.to_bits()])
        .collect();
    for (row, got) in rows
        .iter()
        .zip(eval("rcp.approx.ftz.f64 %d, %a;", "f64", &["f64"], &rows))
    {
        let (x, r) = (f64::from_bits(row[0]), f64::from_bits(got));
        assert_eq!(got as u32, 0, "the low word is zero");
        assert!((r * x - 1.0).abs() < 1e-5, "rcp {x}: {r}");
    }
}

#[test]
fn signs_and_classes() {
    let rows = pairs(&edges(), &edges());
    let got = eval("copysign.f32 %d, %a, %b;", "f32", &["f32", "f32"], &rows);
    for (row, got) in rows.iter().zip(got) {
        assert_eq!(got, row[0] & 0x8000_0000 | row[1] & 0x7fff_ffff, "{row:x?}");
    }
    let rows: Vec<Vec<u64>> = edges().iter().map(|v| vec![*v]).collect();
    let neg = eval("neg.f32 %d, %a;", "f32", &["f32"], &rows);
    let abs = eval("abs.ftz.f32 %d, %a;", "f32", &["f32"], &rows);
    for (k, row) in rows.iter().enumerate() {
        assert_eq!(neg[k], row[0] ^ 0x8000_0000);
        assert_eq!(abs[k], u64::from(flush(f(row[0])).to_bits()) & 0x7fff_ffff);
    }
    type Class = fn(f32) -> bool;
    let classes: [(&str, Class); 6] = [
        ("finite", f32::is_finite),
        ("infinite", f32::is_infinite),
        ("number", |x| !x.is_nan()),
        ("notanumber", f32::is_nan),
        ("normal", |x| x.is_normal() || x == 0.0),
        ("subnormal", f32::is_subnormal),
    ];
    for (name, host) in classes {
        let got = eval(
            &format!("testp.{name}.f32 %d, %a;"),
            "pred",
            &["f32"],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            assert_eq!(
                got,
                u64::from(host(f(row[0]))),
                "testp.{name} {:e}",
                f(row[0])
            );
        }
    }
}

#[test]
fn doubles() {
    let v: Vec<u64> = [
        0.0,
        -0.0,
        1.5,
        -2.25,
        1e308,
        -1e-308,
        f64::INFINITY,
        f64::NAN,
        5e-324,
    ]
    .iter()
    .map(|x| x.to_bits())
    .collect();
    let rows = pairs(&v, &v);
    type Op = fn(f64, f64) -> f64;
    let ops: [(&str, Op); 5] = [
        ("add", |a, b| a + b),
        ("sub.rn", |a, b| a - b),
        ("mul.rn", |a, b| a * b),
        ("div.rn", |a, b| a / b),
        ("fma.rn", |a, b| a.mul_add(b, a)),
    ];
    for (op, host) in ops {
        let third = if op.starts_with("fma") { ", %a" } else { "" };
        let code = format!("{op}.f64 %d, %a, %b{third};");
        for (row, got) in rows.iter().zip(eval(&code, "f64", &["f64", "f64"], &rows)) {
            let want = host(f64::from_bits(row[0]), f64::from_bits(row[1]));
            let got = f64::from_bits(got);
            assert!(
                got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                "{code} {row:x?}"
            );
        }
    }
}
