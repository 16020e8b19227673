//! Conversions between singles, doubles, integers and the narrow formats.

use super::exact::{BRAIN, HALF, Rule, Small};
use super::{Random, eval};

/// Singles around every boundary of both 16-bit formats, and random singles.
fn singles() -> Vec<u32> {
    let mut out = vec![0, 1, 0x7f_ffff, 0x80_0000, 0x7f7f_ffff, 0x7f80_0000];
    out.extend([0x7f80_0001, 0x7fc0_0000, 0x7fff_ffff]);
    for f in [HALF, BRAIN] {
        for h in f.edges() {
            let x = f.value(h) as f32;
            let middle = (f64::from(x) + f.value(h.wrapping_add(1))) / 2.0;
            for y in [x, middle as f32] {
                let b = y.to_bits();
                out.extend([b, b.wrapping_add(1), b.wrapping_sub(1)]);
            }
        }
    }
    // Values halfway between two numbers of tf32.
    for b in [
        0x3f80_1000u32,
        0x3f80_0fff,
        0x3f80_1001,
        0x3f80_3000,
        0x7f7f_f000,
        0x1000,
        0x0fff,
    ] {
        out.push(b);
    }
    let negative: Vec<u32> = out.iter().map(|b| b | 0x8000_0000).collect();
    out.extend(negative);
    let mut random = Random(3);
    out.extend((0..3000).map(|_| random.next() as u32));
    // Random values in the range of a half.
    out.extend((0..3000).map(|_| random.next() as u32 % 0x1200_0000 + 0x3280_0000));
    out
}

fn narrowed(f: Small, bits: u32, rule: Rule, modifiers: &str) -> u16 {
    let x = f64::from(f32::from_bits(bits));
    let x = if modifiers.contains(".relu") && x.is_sign_negative() && !x.is_nan() {
        0.0
    } else {
        x
    };
    let r = f.of(x, rule);
    if modifiers.contains(".satfinite") && r & 0x7fff == f.infinity() {
        return r - 1;
    }
    r
}

#[test]
pub(super) fn from_singles() {
    let inputs = singles();
    let rows: Vec<Vec<u64>> = inputs.iter().map(|b| vec![u64::from(*b)]).collect();
    for f in [HALF, BRAIN] {
        for (mode, rule) in [
            ("rn", Rule::Nearest),
            ("rz", Rule::Zero),
            ("rm", Rule::Down),
            ("rp", Rule::Up),
        ] {
            for m in ["", ".relu", ".satfinite", ".relu.satfinite"] {
                if matches!(mode, "rm" | "rp") && !m.is_empty() {
                    continue;
                }
                let code = format!("cvt.{mode}{m}.{}.f32 %d, %a;", f.name);
                let got = eval(&code, "b16", &["f32"], &rows);
                for (bits, got) in inputs.iter().zip(got) {
                    let want = narrowed(f, *bits, rule, m);
                    assert_eq!(got as u16, want, "{code} {bits:08x}");
                }
                if matches!(mode, "rm" | "rp") {
                    continue;
                }
                let code = format!("cvt.{mode}{m}.{}x2.f32 %d, %a, %b;", f.name);
                let both: Vec<Vec<u64>> = inputs
                    .iter()
                    .zip(inputs.iter().rev())
                    .map(|(a, b)| vec![u64::from(*a), u64::from(*b)])
                    .collect();
                let got = eval(&code, "b32", &["f32", "f32"], &both);
                for (row, got) in both.iter().zip(got) {
                    let part = |k: usize| u64::from(narrowed(f, row[k] as u32, rule, m));
                    assert_eq!(got, part(0) << 16 | part(1), "{code} {row:08x?}");
                }
            }
        }
    }
}

/// Converts to `tf32`: the nearer of the two neighbours, by their distances as doubles.
fn tf32(bits: u32, mode: &str, modifiers: &str) -> u32 {
    let x = f32::from_bits(bits);
    if x.is_nan() {
        return 0x7fff_ffff;
    }
    if modifiers.contains(".relu") && bits >> 31 != 0 {
        return 0;
    }
    let largest = (bits & 0x8000_0000) | 0x7f7f_e000;
    let clamp = modifiers.contains(".satfinite");
    if x.is_infinite() {
        return if clamp { largest } else { bits };
    }
    let low = bits & 0xffff_e000;
    let value = |b: u32| {
        // Beyond the largest number, the next power of two counts as the neighbour.
        if b & 0x7fff_ffff == 0x7f80_0000 {
            return 2f64.powi(128).copysign(f64::from(x));
        }
        f64::from(f32::from_bits(b))
    };
    let high = low + 0x2000;
    let (below, above) = (
        (f64::from(x) - value(low)).abs(),
        (value(high) - f64::from(x)).abs(),
    );
    let r = match mode {
        "rz" => low,
        "rna" if above <= below => high,
        "rn" if above < below || above == below && low & 0x2000 != 0 => high,
        _ => low,
    };
    if clamp && r & 0x7fff_ffff == 0x7f80_0000 {
        return largest;
    }
    r
}

#[test]
pub(super) fn to_tf32() {
    let inputs = singles();
    let rows: Vec<Vec<u64>> = inputs.iter().map(|b| vec![u64::from(*b)]).collect();
    for mode in ["rna", "rn", "rz"] {
        for m in ["", ".relu", ".satfinite", ".relu.satfinite"] {
            let code = format!("cvt.{mode}{m}.tf32.f32 %d, %a;");
            let got = eval(&code, "b32", &["f32"], &rows);
            for (bits, got) in inputs.iter().zip(got) {
                assert_eq!(got as u32, tf32(*bits, mode, m), "{code} {bits:08x}");
            }
        }
    }
}

#[test]
pub(super) fn every_value_widens_exactly() {
    let rows: Vec<Vec<u64>> = (0..=0xffff).map(|h| vec![h]).collect();
    for f in [HALF, BRAIN] {
        for (d, reg) in [("f32", "f32"), ("f64", "f64")] {
            let got = eval(&format!("cvt.{d}.{} %d, %a;", f.name), reg, &["b16"], &rows);
            for (row, got) in rows.iter().zip(got) {
                let want = f.value(row[0] as u16);
                let y = if d == "f32" {
                    f64::from(f32::from_bits(got as u32))
                } else {
                    f64::from_bits(got)
                };
                if want.is_nan() {
                    assert!(y.is_nan(), "cvt.{d}.{} {row:x?}", f.name);
                    assert!(d == "f64" || got == 0x7fff_ffff, "the canonical NaN");
                } else {
                    assert_eq!(y.to_bits(), want.to_bits(), "cvt.{d}.{} {row:x?}", f.name);
                }
            }
        }
    }
}

#[test]
pub(super) fn from_doubles_and_integers() {
    let mut random = Random(11);
    let mut inputs: Vec<f64> = vec![0.0, -0.0, 1.0, 65504.0, 65519.999, 65520.0, 1e300, 1e-300];
    // Rounding to a single first would give a wrong result here.
    inputs.extend([
        1.0 + 2f64.powi(-11) + 2f64.powi(-40),
        1.0 + 2f64.powi(-8) + 2f64.powi(-40),
    ]);
    inputs.extend([
        2f64.powi(-25) * 1.000_000_1,
        f64::INFINITY,
        f64::NEG_INFINITY,
        f64::NAN,
    ]);
    inputs.extend((0..2000).map(|_| {
        let x = f64::from_bits(random.next() >> 12 | 0x3ff << 52);
        x * 2f64.powi((random.next() % 50) as i32 - 30)
            * if random.next() & 1 == 0 { 1.0 } else { -1.0 }
    }));
    let rules = [
        ("rn", Rule::Nearest),
        ("rz", Rule::Zero),
        ("rm", Rule::Down),
        ("rp", Rule::Up),
    ];
    for f in [HALF, BRAIN] {
        for (mode, rule) in rules {
            let rows: Vec<Vec<u64>> = inputs.iter().map(|x| vec![x.to_bits()]).collect();
            let code = format!("cvt.{mode}.{}.f64 %d, %a;", f.name);
            for (x, got) in inputs.iter().zip(eval(&code, "b16", &["f64"], &rows)) {
                assert_eq!(got as u16, f.of(*x, rule), "{code} {x:e}");
            }
            let longs: Vec<u64> = (0..600)
                .map(|k| {
                    (random.next() >> (k % 64)).wrapping_mul(if k & 1 == 0 { 1 } else { u64::MAX })
                })
                .chain([0, 1, 2047, 2049, 65519, 65520, u64::MAX, 1 << 63])
                .collect();
            let rows: Vec<Vec<u64>> = longs.iter().map(|x| vec![*x]).collect();
            for (ty, signed) in [("s64", true), ("u64", false)] {
                let code = format!("cvt.{mode}.{}.{ty} %d, %a;", f.name);
                for (x, got) in longs.iter().zip(eval(&code, "b16", &["b64"], &rows)) {
                    let v = if signed {
                        i128::from(*x as i64)
                    } else {
                        i128::from(*x)
                    };
                    let want = f.round(super::exact::Exact::new(v, 0), rule, 0);
                    assert_eq!(got as u16, want, "{code} {v}");
                }
            }
        }
    }
}

#[test]
pub(super) fn to_integers_and_integral_values() {
    let rows: Vec<Vec<u64>> = (0..=0xffff).step_by(5).map(|h| vec![h]).collect();
    type Round = fn(f64) -> f64;
    let modes: [(&str, Round); 4] = [
        ("rni", f64::round_ties_even),
        ("rzi", f64::trunc),
        ("rmi", f64::floor),
        ("rpi", f64::ceil),
    ];
    for f in [HALF, BRAIN] {
        for (mode, round) in modes {
            let code = format!("cvt.{mode}.{0}.{0} %d, %a;", f.name);
            for (row, got) in rows.iter().zip(eval(&code, "b16", &["b16"], &rows)) {
                let want = f.of(round(f.value(row[0] as u16)), Rule::Nearest);
                assert_eq!(got as u16, want, "{code} {row:x?}");
            }
            for (ty, reg, low, high) in [
                ("s16", "b16", -32768.0, 32767.0),
                ("u16", "b16", 0.0, 65535.0),
                ("s32", "b32", -2147483648.0, 2147483647.0),
                ("u32", "b32", 0.0, 4294967295.0),
            ] {
                let code = format!("cvt.{mode}.{ty}.{} %d, %a;", f.name);
                for (row, got) in rows.iter().zip(eval(&code, reg, &["b16"], &rows)) {
                    let x = round(f.value(row[0] as u16));
                    let want = if x.is_nan() {
                        0
                    } else {
                        x.clamp(low, high) as i64
                    };
                    let mask = if reg == "b16" { 0xffff } else { 0xffff_ffff };
                    assert_eq!(got, want as u64 & mask, "{code} {row:x?}");
                }
            }
        }
    }
}

/// The value of 8 bits, by the definition of the formats: sign, 4 or 5 bits of exponent, fraction.
pub(super) fn tiny(bits: u8, e4m3: bool) -> f64 {
    let magnitude = i32::from(bits & 0x7f);
    let (fraction, bias) = if e4m3 { (3, 7) } else { (2, 15) };
    let one = 1 << fraction;
    let value = match (magnitude >> fraction, magnitude & (one - 1)) {
        (15, 7) if e4m3 => f64::NAN,
        (31, 0) => f64::INFINITY,
        (31, _) => f64::NAN,
        (0, f) => f64::from(f) * 2f64.powi(1 - bias - fraction),
        (e, f) => f64::from(one + f) * 2f64.powi(e - bias - fraction),
    };
    if bits & 0x80 != 0 { -value } else { value }
}

/// The nearest finite value, by distance. Of two equally near values, the even one.
pub(super) fn to_tiny(x: f64, e4m3: bool, modifiers: &str) -> u8 {
    let largest = if e4m3 { 0x7e } else { 0x7b };
    let size = x.abs().min(tiny(largest, e4m3));
    let distance = |bits: u8| (tiny(bits, e4m3) - size).abs();
    let nearer = |a: &u8, b: &u8| {
        let by_distance = distance(*a).total_cmp(&distance(*b));
        by_distance.then((a & 1).cmp(&(b & 1)))
    };
    match () {
        () if x.is_nan() => 0x7f,
        () if modifiers.contains(".relu") && x.is_sign_negative() => 0,
        () => (0..=largest).min_by(nearer).unwrap() | u8::from(x.is_sign_negative()) << 7,
    }
}

#[test]
pub(super) fn eights() {
    // Every value, every midpoint, and their neighbours.
    let mut singles = singles();
    singles.truncate(400);
    let halves: Vec<u64> = (0..=0xffff).step_by(5).collect();
    let pairs: Vec<Vec<u64>> = halves.iter().map(|h| vec![h << 16 | h ^ 0x1234]).collect();
    let all: Vec<Vec<u64>> = (0..=0xff).map(|v| vec![v << 8 | v ^ 0x93]).collect();
    for (name, e4m3) in [("e4m3x2", true), ("e5m2x2", false)] {
        let mut inputs = singles.clone();
        for bits in 0..=0x7e {
            let (x, next) = (tiny(bits, e4m3), tiny(bits + 1, e4m3));
            for y in [x, (x + next) / 2.0] {
                let b = (y as f32).to_bits();
                inputs.extend([b, b + 1, b.wrapping_sub(1), b | 1 << 31]);
            }
        }
        let rows: Vec<Vec<u64>> = inputs
            .iter()
            .zip(inputs.iter().rev())
            .map(|(a, b)| vec![u64::from(*a), u64::from(*b)])
            .collect();
        for m in ["", ".relu"] {
            let code = format!("cvt.rn.satfinite{m}.{name}.f32 %d, %a, %b;");
            for (row, got) in rows.iter().zip(eval(&code, "b16", &["f32", "f32"], &rows)) {
                let part = |k: usize| to_tiny(f32::from_bits(row[k] as u32).into(), e4m3, m);
                let want = u16::from_be_bytes([part(0), part(1)]);
                assert_eq!(got as u16, want, "{code} {row:08x?}");
            }
            let code = format!("cvt.rn.satfinite{m}.{name}.f16x2 %d, %a;");
            for (row, got) in pairs.iter().zip(eval(&code, "b16", &["b32"], &pairs)) {
                let part = |shift: u32| to_tiny(HALF.value((row[0] >> shift) as u16), e4m3, m);
                let want = u16::from_be_bytes([part(16), part(0)]);
                assert_eq!(got as u16, want, "{code} {row:08x?}");
            }
            let code = format!("cvt.rn{m}.f16x2.{name} %d, %a;");
            for (row, got) in all.iter().zip(eval(&code, "b32", &["b16"], &all)) {
                let part = |shift: u32| {
                    let x = tiny((row[0] >> shift) as u8, e4m3);
                    let relu = !m.is_empty() && x.is_sign_negative() && !x.is_nan();
                    u64::from(HALF.of(if relu { 0.0 } else { x }, Rule::Nearest))
                };
                assert_eq!(got, part(8) << 16 | part(0), "{code} {row:04x?}");
            }
        }
    }
}
