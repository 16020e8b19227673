//! Tier 1: proofs of all forms.
//!
//! `forms.txt` lists the forms. A [`Case`] proves a form: the form runs on edge values, and the
//! results are compared with an independent computation. This is arithmetic with wider integers,
//! the floating-point unit of the host in each rounding mode, or the bit-by-bit definition of the
//! PTX manual. Each case runs with the best and with the baseline operations, which must agree in
//! every bit.

mod atomic;
mod carry;
mod compare;
mod control;
mod convert;
mod float;
mod integer;
mod memory;
mod refusals;
mod special;
mod warp;

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use super::eval::{self, eval, kernel};
use super::inputs::expand;
use super::{Bench, HEADER};
use crate::exec::contract::Launch;

/// The proof of one form, or of several forms that are useful only together.
pub(super) struct Case {
    /// The forms, as in `forms.txt`.
    forms: Vec<String>,
    /// The module that contains the forms; empty if the case has several modules.
    text: String,
    /// Runs the forms and compares the results.
    prove: Box<dyn Fn()>,
}

/// Inputs of a form, one row per thread.
type Rows = Rc<Vec<Vec<u64>>>;

/// A result that a case accepts.
#[derive(Debug, Clone, Copy)]
enum Want {
    /// Exactly these bits.
    Bits(u64),
    /// This single; for a NaN, the canonical NaN.
    Single(f32),
    /// This double; for a NaN, any NaN.
    Double(f64),
    /// A single, with a relative error of at most this many units of 2^-24.
    Near(f64, f64),
    /// A double, with at most this relative error.
    NearDouble(f64, f64),
}

impl Want {
    fn holds(self, got: u64) -> bool {
        match self {
            Want::Bits(b) => got == b,
            Want::Single(x) if x.is_nan() => got == 0x7fff_ffff,
            Want::Single(x) => got == u64::from(x.to_bits()),
            Want::Double(x) if x.is_nan() => f64::from_bits(got).is_nan(),
            Want::Double(x) => got == x.to_bits(),
            Want::Near(x, _) if x.is_nan() => got == 0x7fff_ffff,
            Want::Near(x, ulps) => near(
                f64::from(f32::from_bits(got as u32)),
                x,
                ulps / 16_777_216.0,
                1.5e-45,
            ),
            Want::NearDouble(x, _) if x.is_nan() => f64::from_bits(got).is_nan(),
            Want::NearDouble(x, relative) => near(f64::from_bits(got), x, relative, 5e-324),
        }
    }
}

fn near(got: f64, want: f64, relative: f64, least: f64) -> bool {
    if want == 0.0 || !want.is_finite() {
        return got.to_bits() == want.to_bits();
    }
    (got - want).abs() <= want.abs() * relative + least
}

/// A case of a lane-wise form on rows of inputs, with a destination of type `d` and sources of
/// types `srcs`.
fn lane(
    form: &str,
    d: &'static str,
    srcs: &[&'static str],
    rows: &Rows,
    want: impl Fn(&[u64]) -> Want + 'static,
) -> Case {
    let names = ["%a", "%b", "%c", "%e"];
    let operands = names[..srcs.len()].join(", ");
    code(
        form,
        &format!("{form} %d, {operands};"),
        d,
        srcs,
        rows,
        want,
    )
}

/// As [`lane`], with explicit code.
fn code(
    form: &str,
    code: &str,
    d: &'static str,
    srcs: &[&'static str],
    rows: &Rows,
    want: impl Fn(&[u64]) -> Want + 'static,
) -> Case {
    mentions(code, form);
    let module = kernel(code, d, srcs);
    let (text, srcs, rows) = (code.to_owned(), srcs.to_vec(), Rc::clone(rows));
    let prove = move || {
        for (row, got) in rows.iter().zip(eval(&text, d, &srcs, &rows)) {
            let want = want(row);
            assert!(
                want.holds(got),
                "{text} of {row:x?}: {got:#x}, not {want:x?} ({} {})",
                f32::from_bits(got as u32),
                f64::from_bits(got)
            );
        }
    };
    Case {
        forms: vec![form.to_owned()],
        text: module,
        prove: Box::new(prove),
    }
}

/// A case in which one block runs `body`. `%t` is the thread, `%l` the lane, and `buf` has 4 KiB of
/// shared memory. The result is `%r0`.
fn block(forms: &[&str], body: &str, threads: u32, want: impl Fn(u32) -> u32 + 'static) -> Case {
    for form in forms {
        mentions(body, form);
    }
    whole(forms, wrapped("", "", body), threads, want)
}

/// As [`block`], with the text of a whole module.
fn whole(forms: &[&str], text: String, threads: u32, want: impl Fn(u32) -> u32 + 'static) -> Case {
    let module = text.clone();
    let prove = move || {
        for (t, got) in run(&text, threads).into_iter().enumerate() {
            assert_eq!(got, want(t as u32), "thread {t} of\n{text}");
        }
    };
    Case {
        forms: forms.iter().map(|f| (*f).to_owned()).collect(),
        text: module,
        prove: Box::new(prove),
    }
}

/// A module with `declarations` and a kernel that runs `body`. `params` are the parameters after
/// `out`.
fn wrapped(declarations: &str, params: &str, body: &str) -> String {
    format!(
        "{HEADER}{declarations}\n.visible .entry k(.param .u64 out{params}) {{\n\
         .reg .b32 %t, %l, %r<16>; .reg .b64 %o, %d<8>; .reg .f32 %f<8>; .reg .pred %p<8>;\n\
         .shared .align 16 .b8 buf[4096];\n\
         ld.param.u64 %o, [out]; mov.u32 %t, %tid.x; mov.u32 %l, %laneid;\n\
         mad.wide.u32 %o, %t, 4, %o;\n{body}\nst.global.u32 [%o], %r0;\nret;\n}}\n"
    )
}

/// The contents of a kernel's second parameter, repeated.
const DATA: [u64; 2] = [0xf1e2_d3c4_b5a6_9788, 0x0123_4567_89ab_cdef];

/// The result words of the threads of one block.
fn run(text: &str, threads: u32) -> Vec<u32> {
    run_grid(text, [1, 1, 1], [threads, 1, 1], false)
}

/// The result words of the threads of a grid. Both instruction sets must give the same results.
fn run_grid(text: &str, grid: [u32; 3], block: [u32; 3], cooperative: bool) -> Vec<u32> {
    let best = run_grid_as(text, grid, block, cooperative, false);
    let baseline = run_grid_as(text, grid, block, cooperative, true);
    assert_eq!(best, baseline, "the instruction sets differ in\n{text}");
    best
}

fn run_grid_as(
    text: &str,
    grid: [u32; 3],
    block: [u32; 3],
    cooperative: bool,
    baseline: bool,
) -> Vec<u32> {
    let bench = Bench::new();
    let (p, _) = bench.load_as(text, baseline);
    let n = grid.iter().chain(&block).product::<u32>() as usize;
    let out = bench.words(&vec![0xeeee_eeee; n]);
    let kernel = p.kernel("k").expect("kernel k");
    let size = p.kernel_info(kernel).param_bytes;
    let mut params = out.to_le_bytes().to_vec();
    params.resize(16, 0);
    params.extend(
        DATA.iter()
            .cycle()
            .take(size / 8)
            .flat_map(|w| w.to_le_bytes()),
    );
    params.truncate(size);
    let launch = Launch {
        kernel,
        grid,
        block,
        dynamic_shared: 64,
        params,
        cooperative,
        threads: 2,
    };
    if let Err(fault) = crate::exec::run(&p, &launch, &bench) {
        panic!("{fault:?} of\n{text}");
    }
    bench.read_words(out, n)
}

/// Checks that the text of a case contains the form as a whole word.
fn mentions(text: &str, form: &str) {
    let whole = |at: usize| {
        let after = text
            .as_bytes()
            .get(at + form.len())
            .copied()
            .unwrap_or(b' ');
        !(after.is_ascii_alphanumeric() || matches!(after, b'.' | b':' | b'_'))
    };
    assert!(
        text.match_indices(form).any(|(at, _)| whole(at)),
        "{form} is not in\n{text}"
    );
}

fn rows(rows: Vec<Vec<u64>>) -> Rows {
    Rc::new(rows)
}

/// The forms of a pattern, each with its words.
fn forms(pattern: &str) -> Vec<(String, Vec<String>)> {
    expand(pattern)
        .into_iter()
        .map(|f| {
            let parts = f.split('.').map(str::to_owned).collect();
            (f, parts)
        })
        .collect()
}

type Family = (&'static str, fn() -> Vec<Case>);

const FAMILIES: [Family; 10] = [
    ("integer", integer::cases),
    ("carry", carry::cases),
    ("compare", compare::cases),
    ("float", float::cases),
    ("convert", convert::cases),
    ("memory", memory::cases),
    ("atomic", atomic::cases),
    ("warp", warp::cases),
    ("control", control::cases),
    ("special", special::cases),
];

fn prove(family: &str) {
    let (_, cases) = FAMILIES.iter().find(|(n, _)| *n == family).unwrap();
    let mut failed = Vec::new();
    for case in cases() {
        // All cases run, even if some fail, so that one wrong form does not hide others.
        if std::panic::catch_unwind(std::panic::AssertUnwindSafe(&case.prove)).is_err() {
            failed.extend(case.forms);
        }
    }
    assert!(failed.is_empty(), "wrong: {failed:?}");
}

macro_rules! families {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            prove(stringify!($name));
        }
    )*};
}

/// One test per family, so that the families run in parallel.
mod proofs {
    use super::prove;
    families! { integer carry compare float convert memory atomic warp control special }
}

/// The forms that `forms.txt` lists.
pub(super) fn listed() -> BTreeSet<String> {
    eval::listed(include_str!("forms.txt"))
}

/// Records the modules of all cases for [`super::inventory`].
pub(super) fn load_all() {
    for case in FAMILIES.iter().flat_map(|(_, cases)| cases()) {
        super::inventory::note(&case.text);
    }
}

#[test]
fn every_form_is_proven() {
    let listed = listed();
    let mut proven: BTreeMap<String, u32> = BTreeMap::new();
    for (_, cases) in FAMILIES {
        for form in cases().into_iter().flat_map(|c| c.forms) {
            *proven.entry(form).or_default() += 1;
        }
    }
    let missing: Vec<_> = listed.iter().filter(|f| !proven.contains_key(*f)).collect();
    let unlisted: Vec<_> = proven.keys().filter(|f| !listed.contains(*f)).collect();
    println!("{} forms", listed.len());
    assert!(
        missing.is_empty() && unlisted.is_empty(),
        "forms without a proof: {missing:#?}\nproven forms that are not listed: {unlisted:#?}"
    );
}

#[test]
fn patterns_expand() {
    assert_eq!(expand("a{,.b}.{c,d}"), ["a.c", "a.d", "a.b.c", "a.b.d"]);
}
