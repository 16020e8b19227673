//! Comparisons, conversions and arithmetic: each form in `forms.txt` runs on edge values, and is
//! compared with a reference that defines each modifier once.

use super::exact::{BRAIN, Exact, HALF, Rule, Small};
use super::half::{self, holds};
use super::{Random, eval, listed, pairs};

/// The listed forms of these opcodes, split into words.
pub(super) fn forms_of(bases: &[&str]) -> Vec<(String, Vec<String>)> {
    listed()
        .into_iter()
        .map(|f| {
            let words: Vec<String> = f.split('.').map(str::to_owned).collect();
            (f, words)
        })
        .filter(|(_, w)| bases.contains(&w[0].as_str()))
        .collect()
}

fn has(words: &[String], word: &str) -> bool {
    words.iter().any(|w| w == word)
}

/// The format of a 16-bit floating-point type, or of a pair of that type.
pub(super) fn format(ty: &str) -> Option<Small> {
    match ty {
        "f16" | "f16x2" => Some(HALF),
        "bf16" | "bf16x2" => Some(BRAIN),
        _ => None,
    }
}

fn register(ty: &str) -> &'static str {
    match ty {
        "f32" => "f32",
        "f64" => "f64",
        "f16x2" | "bf16x2" | "tf32" => "b32",
        _ => match ty.trim_start_matches(|c: char| c.is_ascii_alphabetic()) {
            "8" | "16" => "b16",
            "32" => "b32",
            _ => "b64",
        },
    }
}

fn bits(ty: &str) -> u32 {
    match register(ty) {
        "b16" => 16,
        "f32" | "b32" => 32,
        _ => 64,
    }
}

/// An operand of a comparison, as a number.
#[derive(Clone, Copy)]
enum Number {
    Float(f64),
    Integer(i128),
}

fn number(v: u64, ty: &str, ftz: bool) -> Number {
    if let Some(f) = format(ty) {
        let h = v as u16;
        return Number::Float(f.value(if ftz { half::flush(f, h) } else { h }));
    }
    match ty {
        "f32" => Number::Float(f64::from(single(v, ftz))),
        "f64" => Number::Float(f64::from_bits(v)),
        _ => {
            let k = 128 - bits(ty);
            let wide = u128::from(v) << k;
            Number::Integer(if ty.starts_with('s') {
                wide as i128 >> k
            } else {
                (wide >> k) as i128
            })
        }
    }
}

/// The value of a single. With `ftz`, a subnormal counts as zero.
fn single(bits: u64, ftz: bool) -> f32 {
    let x = f32::from_bits(bits as u32);
    if ftz && x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

fn compare(c: &str, a: Number, b: Number) -> bool {
    match (a, b) {
        (Number::Float(a), Number::Float(b)) => holds(c, a, b),
        (Number::Integer(a), Number::Integer(b)) => match c {
            "eq" => a == b,
            "ne" => a != b,
            "lt" | "lo" => a < b,
            "le" | "ls" => a <= b,
            "gt" | "hi" => a > b,
            _ => a >= b,
        },
        _ => panic!("an integer compared with a float"),
    }
}

fn combine(words: &[String], truth: bool, with: bool) -> bool {
    match () {
        () if has(words, "and") => truth & with,
        () if has(words, "or") => truth | with,
        () if has(words, "xor") => truth ^ with,
        () => truth,
    }
}

/// Edge values of a type.
fn edges(ty: &str) -> Vec<u64> {
    if let Some(f) = format(ty) {
        return f.edges().iter().map(|h| u64::from(*h)).collect();
    }
    match ty {
        "f32" => [
            0u32,
            0x8000_0000,
            1,
            0x8000_0001,
            0x3f80_0000,
            0xbf80_0000,
            0x7f80_0000,
            0xff80_0000,
            0x7fc0_0000,
        ]
        .map(u64::from)
        .to_vec(),
        "f64" => [
            0.0,
            -0.0,
            1.0,
            -1.5,
            f64::INFINITY,
            f64::NEG_INFINITY,
            f64::NAN,
            5e-324,
        ]
        .map(f64::to_bits)
        .to_vec(),
        _ => {
            let all = [
                0u64,
                1,
                5,
                1 << (bits(ty) - 1),
                (1 << (bits(ty) - 1)) - 1,
                u64::MAX,
            ];
            all.map(|v| v & (u64::MAX >> (64 - bits(ty)))).to_vec()
        }
    }
}

#[test]
pub(super) fn comparisons_form_by_form() {
    for (form, words) in forms_of(&["set", "setp"]) {
        let source = words[words.len() - 1].as_str();
        let (c, ftz, two) = (
            words[1].as_str(),
            has(&words, "ftz"),
            source.ends_with("x2"),
        );
        let combined = ["and", "or", "xor"].iter().any(|w| has(&words, w));
        let e = edges(source);
        // The high halves of a pair have the low half of the other operand.
        let row = |a: u64, b: u64| {
            if two {
                (a << 16 | b, b << 16 | a)
            } else {
                (a, b)
            }
        };
        let rows: Vec<Vec<u64>> = pairs(&e, &e)
            .iter()
            .enumerate()
            .map(|(n, r)| {
                let (a, b) = row(r[0], r[1]);
                vec![a, b, n as u64 / 3 % 2]
            })
            .collect();
        let last = if combined { ", %c" } else { "" };
        let kinds = [register(source), register(source), "pred"];
        let truth = |r: &[u64], shift: u32| {
            let part = |v: u64| if two { v >> shift & 0xffff } else { v };
            let (a, b) = (
                number(part(r[0]), source, ftz),
                number(part(r[1]), source, ftz),
            );
            combine(&words, compare(c, a, b), r[2] != 0)
        };
        if words[0] == "setp" {
            let to = if two { "%u|%v" } else { "%u" };
            let second = if two {
                "selp.u32 %w, 2, 0, %v; or.b32 %d, %d, %w;"
            } else {
                ""
            };
            let code = format!(
                "{{.reg .pred %u, %v; {form} {to}, %a, %b{last}; selp.u32 %d, 1, 0, %u; {second}}}"
            );
            for (r, got) in rows.iter().zip(eval(&code, "b32", &kinds, &rows)) {
                let high = u64::from(two && truth(r, 16));
                assert_eq!(got, u64::from(truth(r, 0)) | high << 1, "{form} {r:x?}");
            }
            continue;
        }
        let d = words[words.len() - 2].as_str();
        let yes = match (d, format(d)) {
            (_, Some(f)) => u64::from(f.one()),
            ("f32", _) => 0x3f80_0000,
            _ if two => 0xffff,
            _ => u64::MAX >> (64 - bits(d)),
        };
        let code = format!("{form} %d, %a, %b{last};");
        for (r, got) in rows.iter().zip(eval(&code, register(d), &kinds, &rows)) {
            let part = |s: u32| if truth(r, s) { yes } else { 0 };
            let want = if two {
                part(16) << 16 | part(0)
            } else {
                part(0)
            };
            assert_eq!(got, want, "{form} {r:x?}");
        }
    }
}

/// Inputs of a conversion: edge values of the source, then random numbers.
fn inputs(ty: &str) -> Vec<u64> {
    let mut random = Random(21);
    let mask = u64::MAX >> (64 - bits(ty));
    let mut out = edges(ty);
    if ty == "f32" {
        // Values around the limits of the narrow formats, and midpoints between their numbers.
        let exponents = [
            0x3300u32, 0x3380, 0x3880, 0x477f, 0x4780, 0x7f7f, 0x0080, 0x0000, 0x3f80,
        ];
        for high in exponents {
            for low in [
                0u32, 1, 0x0fff, 0x1000, 0x1001, 0x7fff, 0x8000, 0x8001, 0xe000, 0xefff, 0xffff,
            ] {
                out.extend([high << 16 | low, 1 << 31 | high << 16 | low].map(u64::from));
            }
        }
    }
    if ty == "f64" {
        let near = [
            65504.0, 65519.9, 65520.0, 6e-8, 2.98e-8, 3.39e38, 3.3961e38, 9.2e-41, 4.6e-41,
        ];
        out.extend(
            near.iter()
                .flat_map(|x: &f64| [x.to_bits(), (-x).to_bits()]),
        );
        out.extend(
            [
                1.0 + 2f64.powi(-11) + 2f64.powi(-40),
                1.0 + 2f64.powi(-8) + 2f64.powi(-40),
            ]
            .map(f64::to_bits),
        );
    }
    if format(ty).is_some() {
        out.extend((0..=0xffffu64).step_by(97));
    } else {
        out.extend((0..400).map(|_| random.next() & mask));
        out.extend((0..60).map(|k| (random.next() >> (k + 1)) & mask));
    }
    out
}

fn rule(words: &[String]) -> Rule {
    match () {
        () if has(words, "rz") || has(words, "rzi") => Rule::Zero,
        () if has(words, "rm") || has(words, "rmi") => Rule::Down,
        () if has(words, "rp") || has(words, "rpi") => Rule::Up,
        () => Rule::Nearest,
    }
}

fn integral(x: f64, words: &[String]) -> f64 {
    match () {
        () if has(words, "rni") => x.round_ties_even(),
        () if has(words, "rzi") => x.trunc(),
        () if has(words, "rmi") => x.floor(),
        () if has(words, "rpi") => x.ceil(),
        () => x,
    }
}

/// `.sat`: clamps to [0, 1]; NaN becomes 0.
fn saturated(x: f64, words: &[String]) -> f64 {
    match has(words, "sat") {
        true if x > 0.0 => x.min(1.0),
        true => 0.0,
        false => x,
    }
}

/// Converts a number to 16 bits.
fn narrowed(f: Small, v: Number, words: &[String]) -> u16 {
    let x = match v {
        Number::Integer(n) => {
            let n = if has(words, "sat") { n.clamp(0, 1) } else { n };
            return f.round(Exact::new(n, 0), rule(words), 0);
        }
        Number::Float(x) => saturated(x, words),
    };
    let x = if has(words, "relu") && x.is_sign_negative() && !x.is_nan() {
        0.0
    } else {
        x
    };
    let r = f.of(x, rule(words));
    if has(words, "satfinite") && r & 0x7fff == f.infinity() {
        return r - 1;
    }
    r
}

/// The bits of the result of a conversion.
fn converted(v: u64, d: &str, s: &str, words: &[String]) -> u64 {
    let source = number(v, s, has(words, "ftz") && s == "f32");
    if let Some(f) = format(d) {
        if d == s && !words.iter().any(|w| w.ends_with('i')) && !has(words, "sat") {
            // Nothing is computed: the bits are copied.
            return v;
        }
        let value = match source {
            Number::Float(x) => Number::Float(integral(x, words)),
            n @ Number::Integer(_) => n,
        };
        return u64::from(narrowed(f, value, words));
    }
    let Number::Float(x) = source else {
        panic!("integers become 16 bits")
    };
    match d {
        "f32" => {
            let y = saturated(x, words) as f32;
            let y = if has(words, "ftz") && y.is_subnormal() {
                0f32.copysign(y)
            } else {
                y
            };
            if y.is_nan() {
                0x7fff_ffff
            } else {
                u64::from(y.to_bits())
            }
        }
        "f64" => saturated(x, words).to_bits(),
        _ => {
            let wide: u32 = d[1..].parse().unwrap_or(64);
            let (low, high) = if d.starts_with('s') {
                (-(1i128 << (wide - 1)), (1i128 << (wide - 1)) - 1)
            } else {
                (0, (1i128 << wide) - 1)
            };
            let n = match x.is_nan() {
                false => (integral(x, words) as i128).clamp(low, high),
                true if wide == 64 => 1 << 63,
                true => 0,
            };
            n as u64 & (u64::MAX >> (64 - bits(d)))
        }
    }
}

#[test]
pub(super) fn conversions_form_by_form() {
    let mut seen = 0;
    for (form, words) in forms_of(&["cvt"]) {
        let (d, s) = (
            words[words.len() - 2].as_str(),
            words[words.len() - 1].as_str(),
        );
        if d == "tf32" || d.ends_with("x2") {
            continue;
        }
        seen += 1;
        let inputs = inputs(s);
        let rows: Vec<Vec<u64>> = inputs.iter().map(|v| vec![*v]).collect();
        let got = eval(
            &format!("{form} %d, %a;"),
            register(d),
            &[register(s)],
            &rows,
        );
        for (v, got) in inputs.iter().zip(got) {
            // For 8-bit sources, only the low 8 of 16 bits count.
            let low = if s.ends_with('8') { v & 0xff } else { *v };
            let source = if s == "s8" {
                low as i8 as u64 & 0xffff
            } else {
                low
            };
            let want = converted(source, d, if s == "s8" { "s16" } else { s }, &words);
            let nan = d == "f64" && f64::from_bits(want).is_nan();
            assert!(
                got == want || nan && f64::from_bits(got).is_nan(),
                "{form} {v:x}: {got:x}, not {want:x}"
            );
        }
    }
    assert!(seen > 300, "{seen} conversions");
}
