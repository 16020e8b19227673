//! Conversions, moves and addresses.

use super::super::eval::pairs;
use super::super::rounding as host;
use super::float::{control, edges32, edges64, flush, has, saturate};
use super::integer::{cut, read, reg, shape, singles, values};
use super::{Case, Want, block, code, forms, lane, rows};

const INTEGERS: &str = "{u8,s8,u16,s16,u32,s32,u64,s64}";

fn range(bits: u32, signed: bool) -> (i128, i128) {
    if signed {
        (-(1 << (bits - 1)), (1 << (bits - 1)) - 1)
    } else {
        (0, (1 << bits) - 1)
    }
}

/// The value of a type, as a register of at least 16 bits holds it.
fn held(v: i128, bits: u32, signed: bool) -> u64 {
    cut(read(v as u64, bits, signed), bits.max(16))
}

fn inputs(bits: u32) -> Vec<u64> {
    let mut out: Vec<u64> = values(64).to_vec();
    out.extend([
        0x7f,
        0x80,
        0xff,
        0x7fff,
        0x8000,
        0xffff,
        0x7fff_ffff,
        0x8000_0000,
    ]);
    // Midpoints between two singles, and between two doubles.
    out.extend([
        0x0100_0001,
        0x0100_0003,
        0x20_0000_0000_0001,
        0x7fff_ffbf_ffff_ffff,
    ]);
    out.iter()
        .map(|v| cut(i128::from(*v), bits.max(16)))
        .collect()
}

fn between_integers() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms(&format!("cvt{{,.sat}}.{INTEGERS}.{INTEGERS}")) {
        let ((dbits, dsigned), (sbits, ssigned)) = (shape(&p[p.len() - 2]), shape(&p[p.len() - 1]));
        let sat = has(&p, "sat");
        let rows = singles(&inputs(sbits));
        out.push(lane(&form, reg(dbits), &[reg(sbits)], &rows, move |r| {
            let v = read(r[0], sbits, ssigned);
            let (lo, hi) = range(dbits, dsigned);
            Want::Bits(held(if sat { v.clamp(lo, hi) } else { v }, dbits, dsigned))
        }));
    }
    out
}

/// Rounds an integer exactly to `digits` binary digits.
fn rounded(v: i128, digits: u32, rc: u32) -> f64 {
    let magnitude = v.unsigned_abs();
    let length = 128 - magnitude.leading_zeros();
    let drop = length.saturating_sub(digits);
    let (kept, rest, half) = (
        magnitude >> drop,
        magnitude & ((1 << drop) - 1),
        (1u128 << drop) >> 1,
    );
    let up = match rc {
        0 => rest > half || (rest == half && rest != 0 && kept & 1 != 0),
        1 => v < 0 && rest != 0,
        2 => v > 0 && rest != 0,
        _ => false,
    };
    // Both factors are exact, because `kept` has at most 53 digits.
    let x = (kept + u128::from(up)) as f64 * 2f64.powi(drop as i32);
    if v < 0 { -x } else { x }
}

fn integers_to_floats() -> Vec<Case> {
    let mut out = Vec::new();
    let single = format!("cvt.{{rn,rz,rm,rp}}{{,.ftz}}{{,.sat}}.f32.{INTEGERS}");
    let double = format!("cvt.{{rn,rz,rm,rp}}{{,.sat}}.f64.{INTEGERS}");
    for (form, p) in forms(&single).into_iter().chain(forms(&double)) {
        let (bits, signed) = shape(p.last().unwrap());
        let (rc, sat, wide) = (control(&p), has(&p, "sat"), has(&p, "f64"));
        let rows = singles(&inputs(bits));
        let d = if wide { "f64" } else { "f32" };
        out.push(lane(&form, d, &[reg(bits)], &rows, move |r| {
            let x = rounded(read(r[0], bits, signed), if wide { 53 } else { 24 }, rc);
            let x = if sat { x.clamp(0.0, 1.0) } else { x };
            if wide {
                Want::Double(x)
            } else {
                Want::Single(x as f32)
            }
        }));
    }
    out
}

/// Rounds a value to an integral value in a rounding mode of MXCSR.
fn integral(x: f64, rc: u32) -> f64 {
    match rc {
        0 => x.round_ties_even(),
        1 => x.floor(),
        2 => x.ceil(),
        _ => x.trunc(),
    }
}

const FLOATS: [f64; 24] = [
    0.4,
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
    2_147_483_647.0,
    2_147_483_648.0,
    -2_147_483_649.0,
    4_294_967_295.0,
    1e19,
    -1e19,
    1e30,
    0.1,
    1e39,
    1e-46,
    1e-39,
    -1e-300,
];

fn float_inputs(single: bool) -> Vec<u64> {
    let mut out = if single { edges32() } else { edges64() };
    out.extend(FLOATS.iter().map(|x| {
        if single {
            u64::from((*x as f32).to_bits())
        } else {
            x.to_bits()
        }
    }));
    out
}

fn value(r: u64, single: bool, ftz: bool) -> f64 {
    if !single {
        return f64::from_bits(r);
    }
    let x = f32::from_bits(r as u32);
    f64::from(if ftz { flush(x) } else { x })
}

fn floats_to_integers() -> Vec<Case> {
    let mut out = Vec::new();
    let single = format!("cvt.{{rni,rzi,rmi,rpi}}{{,.ftz}}{{,.sat}}.{INTEGERS}.f32");
    let double = format!("cvt.{{rni,rzi,rmi,rpi}}{{,.sat}}.{INTEGERS}.f64");
    for (form, p) in forms(&single).into_iter().chain(forms(&double)) {
        let (bits, signed) = shape(&p[p.len() - 2]);
        let (rc, ftz, single) = (control(&p), has(&p, "ftz"), has(&p, "f32"));
        let s = if single { "f32" } else { "f64" };
        let rows = singles(&float_inputs(single));
        out.push(lane(&form, reg(bits), &[s], &rows, move |r| {
            let x = value(r[0], single, ftz);
            let (lo, hi) = range(bits, signed);
            // By the PTX manual, NaN becomes zero if both types have at most 32 bits, otherwise
            // only the top bit is set.
            let v = match x.is_nan() {
                false => (integral(x, rc) as i128).clamp(lo, hi),
                true if single && bits < 64 => 0,
                true => 1i128 << (bits - 1),
            };
            Want::Bits(held(v, bits, signed))
        }));
    }
    out
}

fn between_floats() -> Vec<Case> {
    let mut out = Vec::new();
    for (form, p) in forms("cvt.{rn,rz,rm,rp}{,.ftz}{,.sat}.f32.f64") {
        let (rc, ftz, sat) = (control(&p), has(&p, "ftz"), has(&p, "sat"));
        out.push(lane(
            &form,
            "f32",
            &["f64"],
            &singles(&float_inputs(false)),
            move |r| {
                let x = host::narrow_host(f64::from_bits(r[0]), rc);
                let x = if ftz { flush(x) } else { x };
                Want::Single(if sat { saturate(x) } else { x })
            },
        ));
    }
    for (form, p) in forms("cvt{,.ftz}{,.sat}.f64.f32") {
        let (ftz, sat) = (has(&p, "ftz"), has(&p, "sat"));
        out.push(lane(
            &form,
            "f64",
            &["f32"],
            &singles(&float_inputs(true)),
            move |r| {
                let x = value(r[0], true, ftz);
                Want::Double(match sat {
                    true if x > 0.0 => x.min(1.0),
                    true => 0.0,
                    false => x,
                })
            },
        ));
    }
    for (form, p) in forms("cvt{,.rni,.rzi,.rmi,.rpi}{,.ftz}{,.sat}.f32.f32") {
        let (rc, ftz, sat) = (control(&p), has(&p, "ftz"), has(&p, "sat"));
        let whole = p.iter().any(|m| m.ends_with('i'));
        out.push(lane(
            &form,
            "f32",
            &["f32"],
            &singles(&float_inputs(true)),
            move |r| {
                let x = value(r[0], true, ftz);
                let x = if whole { integral(x, rc) } else { x } as f32;
                if x.is_nan() && !whole && !sat && !ftz {
                    // Nothing is computed: the bits are copied.
                    return Want::Bits(r[0]);
                }
                Want::Single(if sat { saturate(x) } else { x })
            },
        ));
    }
    for (form, p) in forms("cvt{,.rni,.rzi,.rmi,.rpi}{,.sat}.f64.f64") {
        let (rc, sat) = (control(&p), has(&p, "sat"));
        let whole = p.iter().any(|m| m.ends_with('i'));
        out.push(lane(
            &form,
            "f64",
            &["f64"],
            &singles(&float_inputs(false)),
            move |r| {
                let x = f64::from_bits(r[0]);
                let x = if whole { integral(x, rc) } else { x };
                Want::Double(match sat {
                    true if x > 0.0 => x.min(1.0),
                    true => 0.0,
                    false => x,
                })
            },
        ));
    }
    out
}

fn packs() -> Vec<Case> {
    let edges = [
        0,
        1,
        2,
        0xffff_ffff,
        127,
        128,
        0xffff_ff80,
        0xffff_ff7f,
        7,
        8,
        40_000,
        70_000,
        0x8000_0000,
    ];
    let mut out = Vec::new();
    for (form, p) in forms(
        "cvt.pack.sat.{u16.s32,s16.s32,u8.s32.b32,s8.s32.b32,u4.s32.b32,s4.s32.b32,u2.s32.b32,s2.s32.b32}",
    ) {
        let (bits, signed) = shape(&p[3]);
        let cut_to = move |v: u64| {
            let (lo, hi) = range(bits, signed);
            cut(read(v, 32, true).clamp(lo, hi), bits)
        };
        if bits == 16 {
            out.push(lane(
                &form,
                "b32",
                &["b32"; 2],
                &rows(pairs(&edges, &edges)),
                move |r| Want::Bits(cut_to(r[0]) << 16 | cut_to(r[1])),
            ));
            continue;
        }
        let inputs = pairs(&edges, &edges)
            .into_iter()
            .map(|r| vec![r[0], r[1], 0x8123_4567])
            .collect();
        out.push(lane(&form, "b32", &["b32"; 3], &rows(inputs), move |r| {
            let low = cut_to(r[0]) << bits | cut_to(r[1]);
            Want::Bits((r[2] << (2 * bits) | low) & 0xffff_ffff)
        }));
    }
    out
}

fn moves() -> Vec<Case> {
    let mut out = Vec::new();
    out.push(lane(
        "mov.pred",
        "pred",
        &["pred"],
        &singles(&[0, 1]),
        |r| Want::Bits(r[0]),
    ));
    for (form, p) in forms("mov.{b16,b32,b64,u16,u32,u64,s16,s32,s64,f32,f64}") {
        let (bits, _) = shape(&p[1]);
        let r = match p[1].as_str() {
            "f32" => "f32",
            "f64" => "f64",
            _ => reg(bits),
        };
        out.push(lane(&form, r, &[r], &singles(values(bits)), |r| {
            Want::Bits(r[0])
        }));
    }
    let wide = singles(&[0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210]);
    let swap = |v: u64, part: u32, parts: u32| {
        (0..parts).fold(0, |acc, k| {
            let field = v >> (k * part) & ((1 << part) - 1);
            acc | field << ((parts - 1 - k) * part)
        })
    };
    let halves =
        ".reg .b16 %h<4>; mov.b64 {%h0, %h1, %h2, %h3}, %a; mov.b64 %d, {%h3, %h2, %h1, %h0};";
    out.push(code("mov.b64", halves, "b64", &["b64"], &wide, move |r| {
        Want::Bits(swap(r[0], 16, 4))
    }));
    let words = "mov.b64 {%x0, _}, %a; mov.b64 {_, %x1}, %a; mov.b64 %d, {%x1, %x0};";
    out.push(code("mov.b64", words, "b64", &["b64"], &wide, move |r| {
        Want::Bits(swap(r[0], 32, 2))
    }));
    let low = singles(&[0x89ab_cdef]);
    let halves = ".reg .b16 %h<2>; mov.b32 {%h0, %h1}, %a; mov.b32 %d, {%h1, %h0};";
    out.push(code("mov.b32", halves, "b32", &["b32"], &low, move |r| {
        Want::Bits(swap(r[0], 16, 2))
    }));
    let bytes =
        ".reg .b8 %q<4>; mov.b32 {%q0, %q1, %q2, %q3}, %a; mov.b32 %d, {%q3, %q2, %q1, %q0};";
    out.push(code("mov.b32", bytes, "b32", &["b32"], &low, move |r| {
        Want::Bits(swap(r[0], 8, 4))
    }));
    out
}

/// `cvta` in both directions, an access through the generic address, and `isspacep` of the address.
fn spaces() -> Vec<Case> {
    let mut out = Vec::new();
    // (space, code for the address, whether the memory is writable, spaces that contain the
    // address)
    let table: [(&str, &str, bool, &[&str]); 7] = [
        (
            "global",
            ".global .align 8 .u32 cell[2]; mov.u64 %d0, cell;",
            true,
            &["global"],
        ),
        (
            "const",
            ".const .align 8 .u32 cell[2] = {0, 77}; mov.u64 %d0, cell;",
            false,
            &["const"],
        ),
        (
            "shared",
            "mov.u64 %d0, buf;",
            true,
            &["shared", "shared::cta"],
        ),
        (
            "shared::cta",
            "mov.u64 %d0, buf;",
            true,
            &["shared", "shared::cta"],
        ),
        (
            "local",
            ".local .align 8 .u32 cell[2]; mov.u64 %d0, cell;",
            true,
            &["local"],
        ),
        (
            "param",
            "mov.u64 %d0, out;",
            false,
            &["param", "param::entry"],
        ),
        (
            "param::entry",
            "mov.u64 %d0, out;",
            false,
            &["param", "param::entry"],
        ),
    ];
    let all = [
        "global",
        "const",
        "shared",
        "shared::cta",
        "local",
        "param",
        "param::entry",
    ];
    for (space, setup, writable, inside) in table {
        let (cvta, back) = (format!("cvta.{space}.u64"), format!("cvta.to.{space}.u64"));
        let base = space.split("::").next().unwrap_or(space);
        let write = if writable {
            "mov.u32 %r1, 77; st.u32 [%d1+4], %r1;"
        } else {
            ""
        };
        let body = format!(
            "{setup} {cvta} %d1, %d0; {back} %d2, %d1; {write}\n\
             ld.u32 %r2, [%d1+4]; ld.{base}.u32 %r3, [%d2+4]; mov.u32 %r0, %r3;\n\
             setp.ne.u32 %p1, %r2, %r3; @%p1 mov.u32 %r0, 1; setp.ne.u64 %p1, %d0, %d2; @%p1 mov.u32 %r0, 2;"
        );
        let shown = if base == "param" {
            // The high word depends on the address of the output, so any value is accepted.
            format!(
                "{body} mov.b64 {{_, %r4}}, %o; shl.b32 %r5, %t, 2; setp.eq.u32 %p1, %r0, %r4; selp.u32 %r0, 77, %r0, %p1;"
            )
        } else {
            body
        };
        let cases: [&str; 2] = [&cvta, &back];
        out.push(block(&cases, &shown, 1, |_| 77));
        for query in all {
            let form = format!("isspacep.{query}");
            let body =
                format!("{setup} {cvta} %d1, %d0; {form} %p1, %d1; selp.u32 %r0, 1, 0, %p1;");
            let yes = u32::from(inside.contains(&query));
            out.push(block(&[&form], &body, 1, move |_| yes));
        }
    }
    out
}

/// Registers wider than the types: only the low bits of a source count, and a result is extended.
fn wide_registers() -> Vec<Case> {
    let inputs = singles(&[5, 0xdead_0000_ffff_fffb, 0x1234_5678_7fff_ff80]);
    let low = |r: &[u64]| r[0] as u32 as i32;
    let as_single = move |r: &[u64]| u64::from((low(r) as f32).to_bits());
    vec![
        lane("cvt.rn.f32.s32", "f32", &["b64"], &inputs, move |r| {
            Want::Bits(as_single(r))
        }),
        lane("cvt.rn.f32.s32", "b64", &["b64"], &inputs, move |r| {
            Want::Bits(as_single(r))
        }),
        lane("cvt.rn.f32.s32", "b64", &["b32"], &inputs, move |r| {
            Want::Bits(as_single(r))
        }),
        lane("cvt.rn.f64.u32", "f64", &["b64"], &inputs, |r| {
            Want::Double(f64::from(r[0] as u32))
        }),
        lane("cvt.s64.s8", "b64", &["b64"], &inputs, |r| {
            Want::Bits(r[0] as i8 as u64)
        }),
        lane("cvt.u8.u32", "b64", &["b64"], &inputs, |r| {
            Want::Bits(r[0] & 0xff)
        }),
    ]
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = between_integers();
    out.extend(wide_registers());
    out.extend(integers_to_floats());
    out.extend(floats_to_integers());
    out.extend(between_floats());
    out.extend(packs());
    out.extend(moves());
    out.extend(spaces());
    out
}
