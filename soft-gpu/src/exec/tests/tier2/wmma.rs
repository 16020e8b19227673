//! `wmma`: loads, multiplies and stores, compared with the product of the matrices in memory.

use super::matrices::{BF16, F16, F32, F64, Kind, TF32};
use super::{Bench, HEADER, Random};
use crate::exec::contract::Fault;

/// A combination of types and sizes.
struct Case {
    size: (usize, usize, usize),
    /// Types of A and B, of C, and of D.
    types: (Kind, Kind, Kind),
    /// Number of registers of A, B, C and D.
    regs: [usize; 4],
    /// Modifiers of the product, for types that allow modifiers.
    extra: &'static str,
}

/// Bits per element.
fn bits(k: &Kind) -> usize {
    k.name
        .trim_matches(|c: char| c.is_ascii_alphabetic())
        .parse()
        .expect("a type with its bits")
}

const INT: Kind = Kind {
    name: "s32",
    of: |n| n as u64 & 0xffff_ffff,
    value: |b| f64::from(b as u32 as i32),
};

type Of = fn(i64) -> u64;
type Value = fn(u64) -> f64;

fn small(name: &'static str) -> Kind {
    let (of, value): (Of, Value) = match name {
        "s8" => (|n| n as u64 & 0xff, |b| f64::from(b as u8 as i8)),
        "u8" => (|n| n as u64 & 0xff, |b| f64::from(b as u8)),
        "s4" => (
            |n| n as u64 & 15,
            |b| f64::from(((b << 4) as u8) as i8 >> 4),
        ),
        "u4" => (|n| n as u64 & 15, |b| (b & 15) as f64),
        _ => (|n| n as u64 & 1, |b| (b & 1) as f64),
    };
    Kind { name, of, value }
}

fn cases() -> Vec<Case> {
    let mut out = Vec::new();
    let mut add = |size, types, regs, extra| {
        out.push(Case {
            size,
            types,
            regs,
            extra,
        });
    };
    for (size, brain, byte) in [
        ((16, 16, 16), (4, 4), (2, 2)),
        ((8, 32, 16), (2, 8), (1, 4)),
        ((32, 8, 16), (8, 2), (4, 1)),
    ] {
        add(size, (F16, F32, F32), [8, 8, 8, 8], "");
        add(size, (F16, F16, F16), [8, 8, 4, 4], "");
        add(size, (F16, F16, F32), [8, 8, 4, 8], "");
        add(size, (F16, F32, F16), [8, 8, 8, 4], "");
        add(size, (BF16, F32, F32), [brain.0, brain.1, 8, 8], "");
        for name in ["s8", "u8"] {
            for extra in ["", ".satfinite"] {
                add(size, (small(name), INT, INT), [byte.0, byte.1, 8, 8], extra);
            }
        }
    }
    add((16, 16, 8), (TF32, F32, F32), [4, 4, 8, 8], "");
    for extra in ["", ".rn", ".rz", ".rm", ".rp"] {
        add((8, 8, 4), (F64, F64, F64), [1, 1, 2, 2], extra);
    }
    for name in ["s4", "u4"] {
        for extra in ["", ".satfinite"] {
            add((8, 8, 32), (small(name), INT, INT), [1, 1, 2, 2], extra);
        }
    }
    for extra in [".xor.popc", ".and.popc"] {
        add((8, 8, 128), (small("b1"), INT, INT), [1, 1, 2, 2], extra);
    }
    out
}

fn list(name: &str, n: usize) -> String {
    let names: Vec<String> = (0..n).map(|i| format!("%{name}{i}")).collect();
    format!("{{{}}}", names.join(", "))
}

/// The bytes of a matrix in memory: `lines` lines of `stride` elements, which are packed.
fn layout(
    get: impl Fn(usize, usize) -> u64,
    lines: usize,
    along: usize,
    stride: usize,
    bits: usize,
) -> Vec<u8> {
    let mut out = vec![0u8; lines * stride * bits / 8];
    for line in 0..lines {
        for k in 0..along {
            let at = (line * stride + k) * bits;
            let v = get(line, k);
            if bits >= 8 {
                out[at / 8..at / 8 + bits / 8].copy_from_slice(&v.to_le_bytes()[..bits / 8]);
            } else {
                out[at / 8] |= (v << (at % 8)) as u8;
            }
        }
    }
    out
}

struct Layouts {
    a: &'static str,
    b: &'static str,
    c: &'static str,
    d: &'static str,
    /// State space of the addresses: `.global`, `.shared` or generic.
    space: &'static str,
    strides: bool,
}

fn kernel(case: &Case, l: &Layouts, strides: [usize; 4]) -> String {
    let (m, n, k) = case.size;
    let shape = format!("m{m}n{n}k{k}");
    let (ab, tc, td) = (case.types.0.name, case.types.1.name, case.types.2.name);
    let reg = |ty: &str| if ty == "f64" { "f64" } else { "b32" };
    let extra = case.extra;
    let types = match (ab, extra) {
        ("f16", _) => format!("{shape}.{td}.{tc}{extra}"),
        (_, ".xor.popc" | ".and.popc") => format!("{shape}.{td}.{ab}.{ab}.{tc}"),
        (_, ".satfinite") => format!("{shape}.{td}.{ab}.{ab}.{tc}.satfinite"),
        _ => format!("{shape}{extra}.{td}.{ab}.{ab}.{tc}"),
    };
    let product = if extra.ends_with(".popc") {
        format!("wmma.mma{extra}.sync.aligned.{}.{}.{types}", l.a, l.b)
    } else {
        format!("wmma.mma.sync.aligned.{}.{}.{types}", l.a, l.b)
    };
    let stride = |k: usize| {
        if l.strides {
            format!(", {}", strides[k])
        } else {
            String::new()
        }
    };
    let space = l.space;
    let [ra, rb, rc, rd] = case.regs;
    // All four matrices lie one after another in shared memory. The threads copy them.
    let (place, back) = match space {
        ".global" => (String::new(), String::new()),
        _ => (shared_copy(space), copy_back()),
    };
    format!(
        "{HEADER}.visible .entry k(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 pd) {{
         .shared .align 16 .b8 buffer[32768];
         .reg .b64 %pa, %pb, %pc, %pd, %ga, %gb, %gc, %gd, %s, %x; .reg .b32 %t, %n; .reg .pred %p;
         .reg .{} %a<8>, %b<8>; .reg .{} %c<8>, %d<8>; .reg .b8 %byte;
         ld.param.u64 %pa, [pa]; ld.param.u64 %pb, [pb]; ld.param.u64 %pc, [pc]; ld.param.u64 %pd, [pd];
         mov.u32 %t, %tid.x;
         {place}
         wmma.load.a.sync.aligned.{}.{shape}{space}.{ab} {}, [%pa]{};
         wmma.load.b.sync.aligned.{}.{shape}{space}.{ab} {}, [%pb]{};
         wmma.load.c.sync.aligned.{}.{shape}{space}.{tc} {}, [%pc]{};
         {product} {}, {}, {}, {};
         wmma.store.d.sync.aligned.{}.{shape}{space}.{td} [%pd], {}{};
         {back}
         ret; }}",
        reg(ab),
        reg(td),
        l.a,
        list("a", ra),
        stride(0),
        l.b,
        list("b", rb),
        stride(1),
        l.c,
        list("c", rc),
        stride(2),
        list("d", rd),
        list("a", ra),
        list("b", rb),
        list("c", rc),
        l.d,
        list("d", rd),
        stride(3),
    )
}

/// Copies 8 KiB of each matrix to shared memory. The addresses become shared or generic addresses.
fn shared_copy(space: &str) -> String {
    let mut text = String::from("mov.u64 %s, buffer;\n");
    if space.is_empty() {
        text += "cvta.shared.u64 %s, %s;\n";
    }
    let st = format!("st{space}");
    for (k, n) in ["a", "b", "c", "d"].iter().enumerate() {
        text += &format!(
            "mov.u64 %g{n}, %p{n}; add.u64 %p{n}, %s, {}; mov.u32 %n, 0;
             IN{n}: mad.wide.u32 %x, %n, 32, %g{n}; mad.wide.u32 %x, %t, 1, %x; ld.global.u8 %byte, [%x];
             mad.wide.u32 %x, %n, 32, %p{n}; mad.wide.u32 %x, %t, 1, %x; {st}.u8 [%x], %byte;
             add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 256; @%p bra IN{n};\n",
            k * 8192
        );
    }
    text + "bar.sync 0;"
}

/// Copies the 8 KiB of D back to global memory.
fn copy_back() -> String {
    "bar.sync 0; mov.u64 %s, buffer; mov.u32 %n, 0;
     OUT: mad.wide.u32 %x, %n, 32, %s; mad.wide.u32 %x, %t, 1, %x; ld.shared.u8 %byte, [%x+24576];
     mad.wide.u32 %x, %n, 32, %gd; mad.wide.u32 %x, %t, 1, %x; st.global.u8 [%x], %byte;
     add.u32 %n, %n, 1; setp.lt.u32 %p, %n, 256; @%p bra OUT;"
        .into()
}

/// Computes `x · y + s` in doubles, rounded in the direction of a modifier.
fn fused(x: f64, y: f64, s: f64, mode: &str) -> f64 {
    #[cfg(target_arch = "x86_64")]
    {
        let rc = match mode {
            ".rm" => 1,
            ".rp" => 2,
            ".rz" => 3,
            _ => 0,
        };
        crate::exec::tests::rounding::fma64(x, y, s, rc)
    }
    #[cfg(not(target_arch = "x86_64"))]
    {
        let exact = x.mul_add(y, s);
        if exact == 0.0 && mode == ".rm" {
            -0.0
        } else {
            exact
        }
    }
}

fn check(case: &Case, l: &Layouts, random: &mut Random) {
    let (m, n, k) = case.size;
    let (ab, tc, td) = (&case.types.0, &case.types.1, &case.types.2);
    let mut numbers = |count: usize| -> Vec<u64> {
        (0..count)
            .map(|_| {
                (ab.of)((random.next() % 9) as i64 - if ab.name.starts_with('u') { 0 } else { 4 })
            })
            .collect()
    };
    let (a, b) = (numbers(m * k), numbers(k * n));
    let c: Vec<u64> = (0..m * n).map(|i| (tc.of)(i as i64 % 100 - 50)).collect();
    // The distance between rows is longer than a row of the matrix, and a multiple of 16 bytes.
    let (wide, pad, pad_d) = (128 / bits(ab), 128 / bits(tc), 128 / bits(td));
    let lines = |rows: usize, cols: usize, how: &str, pad: usize| {
        let (lines, along) = if how == "row" {
            (rows, cols)
        } else {
            (cols, rows)
        };
        let stride = if l.strides {
            along.next_multiple_of(pad) + pad
        } else {
            along
        };
        (lines, along, stride)
    };
    let at = |v: &[u64], cols: usize, how: &str, line: usize, k: usize| {
        if how == "row" {
            v[line * cols + k]
        } else {
            v[k * cols + line]
        }
    };
    let (la, lb) = (lines(m, k, l.a, wide), lines(k, n, l.b, wide));
    let (lc, ld) = (lines(m, n, l.c, pad), lines(m, n, l.d, pad_d));
    let bench = Bench::new();
    let text = kernel(case, l, [la.2, lb.2, lc.2, ld.2]);
    let (p, _) = bench.load(&text);
    let upload = |bytes: Vec<u8>| {
        let at = bench.alloc(8192);
        assert!(bytes.len() <= 8192);
        bench.write(at, &bytes);
        at
    };
    let out = bench.alloc(8192);
    bench.write(out, &[0xee; 8192]);
    let params = [
        upload(layout(
            |r, c| at(&a, k, l.a, r, c),
            la.0,
            la.1,
            la.2,
            bits(ab),
        )),
        upload(layout(
            |r, c| at(&b, n, l.b, r, c),
            lb.0,
            lb.1,
            lb.2,
            bits(ab),
        )),
        upload(layout(
            |r, x| at(&c, n, l.c, r, x),
            lc.0,
            lc.1,
            lc.2,
            bits(tc),
        )),
        out,
    ];
    bench
        .launch(&p, "k", [1, 1, 1], [32, 1, 1], &params)
        .unwrap();
    let bytes = bench.read(out, 8192);
    let size = bits(td) / 8;
    let mut want = vec![0xee; 8192];
    for line in 0..ld.0 {
        for q in 0..ld.1 {
            let (row, col) = if l.d == "row" { (line, q) } else { (q, line) };
            let product = |i: usize| {
                let (x, y) = ((ab.value)(a[row * k + i]), (ab.value)(b[i * n + col]));
                if ab.name == "b1" {
                    let and = case.extra.contains("and");
                    f64::from(u8::from(if and { x * y != 0.0 } else { x != y }))
                } else {
                    x * y
                }
            };
            let addend = (tc.value)(c[row * n + col]);
            let sum = if ab.name == "f64" {
                // A chain of fused multiply-adds. If the terms cancel, the rounding mode decides
                // the sign of the zero.
                let step = |s: f64, i: usize| {
                    let (x, y) = ((ab.value)(a[row * k + i]), (ab.value)(b[i * n + col]));
                    fused(x, y, s, case.extra)
                };
                (0..k).fold(addend, step).to_bits()
            } else {
                (td.of)(((0..k).map(product).sum::<f64>() + addend) as i64)
            };
            let place = (line * ld.2 + q) * size;
            want[place..place + size].copy_from_slice(&sum.to_le_bytes()[..size]);
        }
    }
    assert!(bytes == want, "{} {}: {text}", ab.name, l.space);
}

#[test]
pub(super) fn every_shape_and_type_in_every_layout() {
    let mut random = Random(13);
    for case in cases() {
        let fixed = bits(&case.types.0) < 8;
        for (a, b) in [
            ("row", "col"),
            ("row", "row"),
            ("col", "row"),
            ("col", "col"),
        ] {
            if fixed && (a, b) != ("row", "col") {
                continue;
            }
            for (c, d) in [("row", "row"), ("col", "row"), ("row", "col")] {
                let l = Layouts {
                    a,
                    b,
                    c,
                    d,
                    space: ".global",
                    strides: true,
                };
                check(&case, &l, &mut random);
            }
        }
    }
}

#[test]
pub(super) fn in_shared_memory_and_with_natural_strides() {
    let mut random = Random(14);
    for case in cases() {
        let fixed = bits(&case.types.0) < 8;
        for (space, strides) in [
            (".shared", true),
            (".shared::cta", true),
            ("", true),
            (".global", false),
            (".shared", false),
        ] {
            for (a, b, c, d) in [("row", "col", "row", "col"), ("col", "row", "col", "row")] {
                let (a, b) = if fixed { ("row", "col") } else { (a, b) };
                let l = Layouts {
                    a,
                    b,
                    c,
                    d,
                    space,
                    strides,
                };
                check(&case, &l, &mut random);
            }
        }
    }
}

#[test]
pub(super) fn addresses_are_checked() {
    let case = &cases()[0];
    let l = Layouts {
        a: "row",
        b: "col",
        c: "row",
        d: "row",
        space: ".global",
        strides: true,
    };
    let bench = Bench::new();
    let (p, _) = bench.load(&kernel(case, &l, [16; 4]));
    let fine = bench.alloc(1024);
    let launch = |params: [u64; 4]| bench.launch(&p, "k", [1, 1, 1], [32, 1, 1], &params);
    launch([fine; 4]).unwrap();
    for k in 0..4 {
        let mut params = [fine; 4];
        params[k] = fine + 1024 - 256;
        let r = launch(params);
        assert!(matches!(r, Err(Fault::IllegalAddress(_))), "{k}: {r:?}");
        params[k] = fine + 1;
        let r = launch(params);
        assert!(matches!(r, Err(Fault::Misaligned(_))), "{k}: {r:?}");
    }
}

/// Lanes that diverged before a matrix instruction wait for each other at the instruction.
#[test]
pub(super) fn lanes_meet_at_the_instruction() {
    let case = &cases()[0];
    let l = Layouts {
        a: "row",
        b: "col",
        c: "row",
        d: "row",
        space: ".global",
        strides: true,
    };
    let text = kernel(case, &l, [16; 4]).replace(
        "wmma.load.c",
        "setp.lt.u32 %p, %t, 7; @%p bra NEAR; wmma_far: add.u32 %n, %t, 1; NEAR: wmma.load.c",
    );
    let bench = Bench::new();
    let (p, _) = bench.load(&text);
    let ones: Vec<u8> = std::iter::repeat_n(0x3c00u16.to_le_bytes(), 512)
        .flatten()
        .collect();
    let (a, c, d) = (bench.alloc(1024), bench.alloc(1024), bench.alloc(1024));
    bench.write(a, &ones);
    bench
        .launch(&p, "k", [1, 1, 1], [32, 1, 1], &[a, a, c, d])
        .unwrap();
    let words = bench.read_words(d, 256);
    assert!(words.iter().all(|w| f32::from_bits(*w) == 16.0));
}
