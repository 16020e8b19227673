//! Runs one instruction on a table of inputs, in a generated kernel with one thread per row.

use std::collections::BTreeSet;

use super::inputs::expand;
use super::{Bench, HEADER};

fn load(ty: &str, reg: &str) -> String {
    match ty {
        "b16" => format!("cvt.u16.u64 {reg}, %t;"),
        "b32" | "f32" => format!("cvt.u32.u64 %w, %t; mov.b32 {reg}, %w;"),
        "b64" | "f64" => format!("mov.b64 {reg}, %t;"),
        "pred" => format!("setp.ne.u64 {reg}, %t, 0;"),
        _ => panic!("{ty}"),
    }
}

fn store(ty: &str) -> &'static str {
    match ty {
        "b16" => "cvt.u64.u16 %t, %d;",
        "b32" | "f32" => "mov.b32 %w, %d; cvt.u64.u32 %t, %w;",
        "b64" | "f64" => "mov.b64 %t, %d;",
        "pred" => "selp.u64 %t, 1, 0, %d;",
        _ => panic!("{ty}"),
    }
}

/// A kernel that runs `code` with registers `%d` (of type `d`) and `%a`, `%b`, `%c`… (of the types
/// `srcs`).
pub(crate) fn kernel(code: &str, d: &str, srcs: &[&str]) -> String {
    let names = ["%a", "%b", "%c", "%e"];
    let mut text = format!(
        "{HEADER}.visible .entry k(.param .u64 in, .param .u64 out, .param .u32 n) {{\n\
         .reg .pred %end; .reg .b32 %i, %w, %n, %x<4>; .reg .b64 %t, %p, %q, %y<4>; .reg .{d} %d;\n"
    );
    for (n, ty) in names.iter().zip(srcs) {
        text.push_str(&format!(".reg .{ty} {n};\n"));
    }
    text.push_str(
        "ld.param.u64 %p, [in]; ld.param.u64 %q, [out]; ld.param.u32 %n, [n];\n\
         mov.u32 %i, %ctaid.x; mov.u32 %w, %tid.x; mad.lo.u32 %i, %i, 64, %w;\n\
         setp.ge.u32 %end, %i, %n; @%end exit;\n",
    );
    text.push_str(&format!(
        "mad.wide.u32 %p, %i, {}, %p; mad.wide.u32 %q, %i, 8, %q;\n",
        srcs.len() * 8
    ));
    for (k, (n, ty)) in names.iter().zip(srcs).enumerate() {
        text.push_str(&format!(
            "ld.global.u64 %t, [%p+{}]; {}\n",
            k * 8,
            load(ty, n)
        ));
    }
    text.push_str(&format!(
        "{code}\n{}\nst.global.u64 [%q], %t;\nret;\n}}\n",
        store(d)
    ));
    text
}

/// The results of `code` for each row of inputs. Both instruction sets must give the same bits.
pub(crate) fn eval(code: &str, d: &str, srcs: &[&str], rows: &[Vec<u64>]) -> Vec<u64> {
    let best = eval_as(code, d, srcs, rows, false);
    let baseline = eval_as(code, d, srcs, rows, true);
    for (row, (best, baseline)) in rows.iter().zip(best.iter().zip(&baseline)) {
        assert!(
            best == baseline || (d == "f64" && either_nan(row, *best, *baseline)),
            "{code} of {row:x?}: {best:#x} with the best instruction set, {baseline:#x} with the baseline"
        );
    }
    best
}

/// Whether a result may differ between the instruction sets. If two operands of an operation in
/// double precision are NaN, PTX does not define which NaN the result is, and compilers exchange
/// the operands of sums and products.
fn either_nan(row: &[u64], a: u64, b: u64) -> bool {
    let nan = |v: &u64| f64::from_bits(*v).is_nan();
    nan(&a) && nan(&b) && row.iter().filter(|v| nan(v)).count() > 1
}

fn eval_as(code: &str, d: &str, srcs: &[&str], rows: &[Vec<u64>], baseline: bool) -> Vec<u64> {
    let bench = Bench::new();
    let (p, _) = bench.load_as(&kernel(code, d, srcs), baseline);
    let flat: Vec<u64> = rows.iter().flat_map(|r| r.iter().copied()).collect();
    let (input, out) = (bench.longs(&flat), bench.longs(&vec![0; rows.len()]));
    let n = rows.len() as u64;
    bench
        .launch(
            &p,
            "k",
            [n.div_ceil(64) as u32, 1, 1],
            [64, 1, 1],
            &[input, out, n],
        )
        .unwrap();
    bench.read_longs(out, rows.len())
}

/// All pairs of two lists.
pub(crate) fn pairs(a: &[u64], b: &[u64]) -> Vec<Vec<u64>> {
    a.iter()
        .flat_map(|x| b.iter().map(move |y| vec![*x, *y]))
        .collect()
}

/// All triples of three lists.
pub(crate) fn triples(a: &[u64], b: &[u64], c: &[u64]) -> Vec<Vec<u64>> {
    let mut out = Vec::new();
    for x in a {
        for y in b {
            out.extend(c.iter().map(|z| vec![*x, *y, *z]));
        }
    }
    out
}

/// The forms in a list of patterns, with one pattern per line. A line that starts with `#` is a
/// comment.
pub(crate) fn listed(text: &str) -> BTreeSet<String> {
    text.lines()
        .filter(|l| !l.starts_with('#') && !l.trim().is_empty())
        .flat_map(expand)
        .collect()
}
