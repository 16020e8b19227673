//! Arithmetic, comparisons and atomics on `f16`, `bf16` and pairs of them.

use super::exact::{BRAIN, HALF, Rule, Small};
use super::listed::{format, forms_of};
use super::{Bench, HEADER, Random, eval, pairs, triples};

/// The sum of two numbers, rounded to a format. `parts` also has the signs, which decide the sign
/// of an exact zero.
fn sum(f: Small, parts: [(super::exact::Exact, u16); 2]) -> u16 {
    let [(p, sp), (q, sq)] = parts;
    let zero = if p.zero() && q.zero() { sp & sq } else { 0 };
    f.round(p.plus(q), Rule::Nearest, zero)
}

/// Computes one lane, independently of the interpreter.
fn arithmetic(f: Small, op: &str, a: u16, b: u16, c: u16) -> u16 {
    let sign = |h: u16| h & 0x8000;
    let used = match op {
        "fma" => vec![a, b, c],
        _ => vec![a, b],
    };
    if used.iter().any(|h| !f.finite(*h)) {
        let (x, y, z) = (f.value(a), f.value(b), f.value(c));
        let r = match op {
            "add" => x + y,
            "sub" => x - y,
            "mul" => x * y,
            // The product must not become infinite before the addition.
            _ if x.is_finite() && y.is_finite() => z,
            _ => x * y + z,
        };
        return f.of(r, Rule::Nearest);
    }
    match op {
        "add" => sum(f, [(f.exact(a), sign(a)), (f.exact(b), sign(b))]),
        "sub" => {
            let b = b ^ 0x8000;
            sum(f, [(f.exact(a), sign(a)), (f.exact(b), sign(b))])
        }
        "mul" => f.round(f.product(a, b), Rule::Nearest, sign(a ^ b)),
        _ => sum(f, [(f.product(a, b), sign(a ^ b)), (f.exact(c), sign(c))]),
    }
}

pub(super) fn flush(f: Small, h: u16) -> u16 {
    if h & f.infinity() == 0 { h & 0x8000 } else { h }
}

/// Applies `.ftz`, `.sat` or `.relu`.
fn modified(f: Small, op: &str, v: [u16; 3], modifiers: &str) -> u16 {
    let ftz = modifiers.contains(".ftz");
    let [a, b, c] = if ftz { v.map(|h| flush(f, h)) } else { v };
    let mut r = arithmetic(f, op, a, b, c);
    if ftz {
        r = flush(f, r);
    }
    if modifiers.contains(".sat") {
        r = match f.value(r) {
            x if x.is_nan() || x <= 0.0 => 0,
            x if x >= 1.0 => f.one(),
            _ => r,
        };
    }
    if modifiers.contains(".relu") && !f.is_nan(r) && r & 0x8000 != 0 {
        r = 0;
    }
    r
}

fn words_of(v: &[u16]) -> Vec<u64> {
    v.iter().map(|h| u64::from(*h)).collect()
}

/// Edge values in every combination, then random numbers, some of them with sums that almost
/// cancel.
fn rows(f: Small, n: usize) -> Vec<Vec<u64>> {
    let e = words_of(&f.edges());
    let mut out = if n == 2 {
        pairs(&e, &e)
    } else {
        triples(&e, &e, &e)
    };
    let mut random = Random(7);
    for _ in 0..4000 {
        let mut row: Vec<u64> = (0..n).map(|_| random.next() & 0xffff).collect();
        if random.next() & 1 != 0 && n == 3 {
            // An addend that is near the product, with the opposite sign.
            let p = f.value(row[0] as u16) * f.value(row[1] as u16);
            row[2] = u64::from(f.of(-p, Rule::Nearest)) ^ (random.next() & 3);
        }
        out.push(row);
    }
    out
}

/// Splits a form into its type, the number of sources and the modifiers.
fn parts(words: &[String]) -> (Small, usize, String) {
    let ty = words.last().map_or("", String::as_str);
    let n = if words[0] == "fma" { 3 } else { 2 };
    let modifiers = words[1..words.len() - 1].iter().map(|w| format!(".{w}"));
    (format(ty).expect("a narrow type"), n, modifiers.collect())
}

/// The listed forms for single values, or for pairs.
fn arithmetic_forms(two: bool) -> Vec<(String, Vec<String>)> {
    let mut forms = forms_of(&["add", "sub", "mul", "fma"]);
    forms.retain(|(f, _)| f.ends_with("f16x2") && two || f.ends_with("f16") && !two);
    forms
}

#[test]
pub(super) fn arithmetic_is_rounded_once() {
    for (form, words) in arithmetic_forms(false) {
        let (f, n, m) = parts(&words);
        let rows = rows(f, n);
        let names = ["%d", "%a", "%b", "%c"][..=n].join(", ");
        let got = eval(&format!("{form} {names};"), "b16", &["b16"; 3][..n], &rows);
        for (row, got) in rows.iter().zip(got) {
            let mut v = [0; 3];
            row.iter().zip(&mut v).for_each(|(x, v)| *v = *x as u16);
            let want = modified(f, &words[0], v, &m);
            assert_eq!(got as u16, want, "{form} {v:04x?}: {got:04x}");
        }
    }
}

#[test]
pub(super) fn pairs_are_two_values() {
    for (form, words) in arithmetic_forms(true) {
        let (f, n, m) = parts(&words);
        let low = rows(f, n);
        // The high halves of a row are the low halves of another row.
        let k = low.len() / 3;
        let both: Vec<Vec<u64>> = (0..low.len())
            .map(|i| {
                let high = &low[(i + k) % low.len()];
                low[i].iter().zip(high).map(|(l, h)| h << 16 | l).collect()
            })
            .collect();
        let names = ["%d", "%a", "%b", "%c"][..=n].join(", ");
        let got = eval(&format!("{form} {names};"), "b32", &["b32"; 3][..n], &both);
        for (row, got) in both.iter().zip(got) {
            let half = |shift: u32| {
                let mut v = [0; 3];
                row.iter()
                    .zip(&mut v)
                    .for_each(|(x, v)| *v = (x >> shift) as u16);
                modified(f, &words[0], v, &m)
            };
            let want = u64::from(half(16)) << 16 | u64::from(half(0));
            assert_eq!(got, want, "{form} {row:08x?}: {got:08x}");
        }
    }
}

#[test]
pub(super) fn signs() {
    for (form, words) in forms_of(&["neg", "abs"]) {
        let (f, _, m) = parts(&words);
        let want = |h: u64| {
            let h = h as u16;
            let h = if m.contains("ftz") { flush(f, h) } else { h };
            u64::from(if words[0] == "neg" {
                h ^ 0x8000
            } else {
                h & 0x7fff
            })
        };
        let code = format!("{form} %d, %a;");
        if form.ends_with("x2") {
            let rows: Vec<Vec<u64>> = (0..=0xffff)
                .step_by(7)
                .map(|h| vec![h << 16 | (h * 31 + 5) & 0xffff])
                .collect();
            for (row, got) in rows.iter().zip(eval(&code, "b32", &["b32"], &rows)) {
                let both = want(row[0] >> 16) << 16 | want(row[0] & 0xffff);
                assert_eq!(got, both, "{form} {row:x?}");
            }
        } else {
            let rows: Vec<Vec<u64>> = (0..=0xffff).step_by(7).map(|h| vec![h]).collect();
            for (row, got) in rows.iter().zip(eval(&code, "b16", &["b16"], &rows)) {
                assert_eq!(got, want(row[0]), "{form} {row:x?}");
            }
        }
    }
}

fn extreme(f: Small, max: bool, a: u16, b: u16, modifiers: &str) -> u16 {
    let mut v = [a, b];
    if modifiers.contains(".ftz") {
        v = v.map(|h| flush(f, h));
    }
    let mut sign = 0;
    if modifiers.contains(".xorsign.abs") {
        sign = (a ^ b) & 0x8000;
        v = v.map(|h| h & 0x7fff);
    }
    let nan = v.map(|h| f.is_nan(h));
    if nan == [true, true] || modifiers.contains(".NaN") && nan != [false, false] {
        return 0x7fff;
    }
    // The key orders numbers by value; -0 comes before +0.
    let order = |h: u16| (f.value(h), h & 0x8000 == 0);
    let [a, b] = v;
    let r = match nan {
        [true, _] => b,
        [_, true] => a,
        _ => {
            let less = order(a) < order(b);
            if less == max { b } else { a }
        }
    };
    r | sign
}

#[test]
pub(super) fn minima_and_maxima() {
    let mut forms = forms_of(&["min", "max"]);
    forms.retain(|(f, _)| f.ends_with("f16x2") || f.ends_with("f16"));
    for (form, words) in forms {
        let (f, _, m) = parts(&words);
        let e = words_of(&f.edges());
        let rows = pairs(&e, &e);
        let max = words[0] == "max";
        let code = format!("{form} %d, %a, %b;");
        if !form.ends_with("x2") {
            let got = eval(&code, "b16", &["b16", "b16"], &rows);
            for (row, got) in rows.iter().zip(got) {
                let want = extreme(f, max, row[0] as u16, row[1] as u16, &m);
                assert_eq!(got as u16, want, "{code} {row:x?}");
            }
            continue;
        }
        let both: Vec<Vec<u64>> = rows
            .iter()
            .map(|r| vec![r[0] << 16 | r[1], r[1] << 16 | r[0]])
            .collect();
        let got = eval(&code, "b32", &["b32", "b32"], &both);
        for (row, got) in rows.iter().zip(got) {
            let (a, b) = (row[0] as u16, row[1] as u16);
            let want =
                u32::from(extreme(f, max, a, b, &m)) << 16 | u32::from(extreme(f, max, b, a, &m));
            assert_eq!(got as u32, want, "{code} {row:x?}");
        }
    }
}

#[test]
pub(super) fn exponential_and_tangent_keep_their_bounds() {
    let all: Vec<Vec<u64>> = (0..=0xffff).step_by(3).map(|h| vec![h]).collect();
    // The bounds that PTX states, plus half a unit in the last place of a subnormal result.
    for (f, op, relative, absolute) in [
        (HALF, "ex2.approx", 2f64.powf(-9.9), 2f64.powi(-25)),
        (BRAIN, "ex2.approx.ftz", 2f64.powi(-7), 2f64.powi(-126)),
        (HALF, "tanh.approx", 0.0, 2f64.powf(-10.987)),
        (BRAIN, "tanh.approx", 2f64.powi(-8), 0.0),
    ] {
        let code = format!("{op}.{} %d, %a;", f.name);
        let got = eval(&code, "b16", &["b16"], &all);
        let double: Vec<Vec<u64>> = all.iter().map(|r| vec![r[0] << 16 | 0x3c00]).collect();
        let pair = eval(
            &format!("{op}.{}x2 %d, %a;", f.name),
            "b32",
            &["b32"],
            &double,
        );
        for ((row, got), pair) in all.iter().zip(&got).zip(pair) {
            assert_eq!(pair >> 16, *got, "{code} in pairs");
            let (x, y) = (f.value(row[0] as u16), f.value(*got as u16));
            if x.is_nan() {
                assert_eq!(*got, 0x7fff, "{code} {row:x?}");
                continue;
            }
            let want = if op.starts_with("ex2") {
                2f64.powf(x)
            } else {
                let t = (-2.0 * x.abs()).exp_m1();
                (-t / (2.0 + t)).copysign(x)
            };
            let limit = f.value(f.infinity() - 1);
            if want > limit * 1.01 {
                assert_eq!(*got as u16, f.infinity(), "{code} {x}");
            } else if want < limit {
                let error = (y - want).abs();
                assert!(error <= relative * want.abs() + absolute, "{code} {x}: {y}");
            }
        }
    }
}

/// Whether a comparison of two values holds.
pub(super) fn holds(c: &str, a: f64, b: f64) -> bool {
    let unordered = a.is_nan() || b.is_nan();
    match c {
        "num" => !unordered,
        "nan" => unordered,
        _ if unordered => c.len() == 3,
        _ => match &c[..2] {
            "eq" => a == b,
            "ne" => a != b,
            "lt" => a < b,
            "le" => a <= b,
            "gt" => a > b,
            _ => a >= b,
        },
    }
}

#[test]
pub(super) fn pairs_of_integers() {
    let e = [0u64, 1, 0x7fff, 0x8000, 0xffff, 0x1234, 0xfff0];
    let rows: Vec<Vec<u64>> = pairs(&e, &e)
        .iter()
        .map(|r| vec![r[0] << 16 | r[1], r[1] << 16 | r[0]])
        .collect();
    type Two = fn(u16, u16) -> u16;
    let cases: [(&str, Two); 8] = [
        ("add.u16x2", |a, b| a.wrapping_add(b)),
        ("add.s16x2", |a, b| a.wrapping_add(b)),
        ("min.u16x2", |a, b| a.min(b)),
        ("max.u16x2", |a, b| a.max(b)),
        ("min.s16x2", |a, b| (a as i16).min(b as i16) as u16),
        ("max.s16x2", |a, b| (a as i16).max(b as i16) as u16),
        ("min.relu.s16x2", |a, b| {
            (a as i16).min(b as i16).max(0) as u16
        }),
        ("max.relu.s16x2", |a, b| {
            (a as i16).max(b as i16).max(0) as u16
        }),
    ];
    for (op, f) in cases {
        let got = eval(&format!("{op} %d, %a, %b;"), "b32", &["b32", "b32"], &rows);
        for (row, got) in rows.iter().zip(got) {
            let part = |s: u32| u64::from(f((row[0] >> s) as u16, (row[1] >> s) as u16));
            assert_eq!(got, part(16) << 16 | part(0), "{op} {row:x?}");
        }
    }
}

/// Where the atomics access a word that all threads of a block share: the space of the access, and
/// code that sets `%s` to the address.
const PLACES: [(&str, &str); 4] = [
    ("", ""),
    (".global", ""),
    (".shared", "mov.u64 %s, word;"),
    (".shared::cta", "mov.u64 %s, word;"),
];

#[test]
pub(super) fn atomic_sums() {
    // Every thread adds its number. All intermediate sums are integers that the format represents
    // exactly.
    for (ty, reg, one, two) in [
        ("f16", "b16", 0x3c00u32, 0x4000u32),
        ("bf16", "b16", 0x3f80, 0x4000),
        ("f16x2", "b32", 0x3c00_4000, 0x4000_3c00),
        ("bf16x2", "b32", 0x3f80_4000, 0x4000_3f80),
    ] {
        for (space, place) in PLACES {
            adds(ty, reg, [one, two], space, place);
        }
    }
}

fn adds(ty: &str, reg: &str, [one, two]: [u32; 2], space: &str, place: &str) {
    let bench = Bench::new();
    // The initial and final sums are in global memory. The additions run in the given space.
    let text = format!(
        "{HEADER}.visible .entry k(.param .u64 sum, .param .u64 old) {{
         .reg .pred %odd; .reg .b64 %s, %o, %g; .reg .b32 %t, %w; .reg .{reg} %x, %y;
         .shared .align 8 .b8 word[16];
         ld.param.u64 %g, [sum]; ld.param.u64 %o, [old]; mov.u32 %t, %tid.x; mov.u64 %s, %g; {place}
         st{space}.u32 [%s], 0; st{space}.u32 [%s+4], 0; bar.sync 0;
         mad.wide.u32 %o, %t, 4, %o; and.b32 %w, %t, 1; setp.ne.u32 %odd, %w, 0;
         mov.{reg} %x, {one}; @%odd mov.{reg} %x, {two};
         atom{space}.add.noftz.{ty} %y, [%s], %x; st.global.{reg} [%o], %y;
         red{space}.add.noftz.{ty} [%s+4], %x; bar.sync 0;
         ld{space}.u32 %w, [%s]; st.global.u32 [%g], %w; ld{space}.u32 %w, [%s+4]; st.global.u32 [%g+4], %w;
         ret; }}"
    );
    let (p, _) = bench.load(&text);
    let (sum, old) = (bench.words(&[0, 0]), bench.words(&[0; 64]));
    bench
        .launch(&p, "k", [1, 1, 1], [64, 1, 1], &[sum, old])
        .unwrap();
    let f = if ty.starts_with('b') { BRAIN } else { HALF };
    let last = bench.read_words(sum, 2);
    let halves: &[u32] = if ty.ends_with("x2") { &[0, 16] } else { &[0] };
    for &s in halves {
        for w in &last {
            assert_eq!(f.value((w >> s) as u16), 96.0, "{ty}{space}");
        }
        let mut seen: Vec<f64> = bench
            .read_words(old, 64)
            .iter()
            .map(|w| f.value((w >> s) as u16))
            .collect();
        seen.push(96.0);
        seen.sort_by(f64::total_cmp);
        let steps: Vec<f64> = seen.windows(2).map(|p| p[1] - p[0]).collect();
        assert!(
            steps.iter().all(|d| *d == 1.0 || *d == 2.0),
            "{ty}{space}: {seen:?}"
        );
        assert_eq!(steps.iter().filter(|d| **d == 2.0).count(), 32, "{ty}");
    }
    let fault = bench.launch(&p, "k", [1, 1, 1], [1, 1, 1], &[sum + 1, old]);
    assert!(fault.is_err(), "{ty}{space}: a misaligned address");
}
