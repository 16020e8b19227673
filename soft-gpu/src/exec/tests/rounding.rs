//! Directed rounding, compared with the floating-point unit of the host in each rounding mode.
#![cfg(target_arch = "x86_64")]

use std::arch::asm;

use super::eval::eval;
use super::inputs::Random;
use crate::exec::round::{self, Mode};

const MODES: [(Mode, u32, &str); 4] = [
    (Mode::Nearest, 0, "rn"),
    (Mode::Down, 1, "rm"),
    (Mode::Up, 2, "rp"),
    (Mode::Zero, 3, "rz"),
];

/// Runs one scalar instruction on `a` and `b` in a rounding mode of MXCSR.
macro_rules! host {
    ($name:ident, $t:ty, $ins:literal) => {
        pub(super) fn $name(a: $t, b: $t, rc: u32) -> $t {
            let (with, normal) = (0x1f80u32 | rc << 13, 0x1f80u32);
            let mut x = a;
            // SAFETY: the rounding mode is restored before other code runs.
            unsafe {
                asm!(
                    "ldmxcsr [{w}]",
                    concat!($ins, " {x}, {b}"),
                    "ldmxcsr [{n}]",
                    w = in(reg) &with, n = in(reg) &normal, x = inout(xmm_reg) x, b = in(xmm_reg) b,
                    options(nostack),
                );
            }
            x
        }
    };
}
host!(add32, f32, "addss");
host!(mul32, f32, "mulss");
host!(div32, f32, "divss");
host!(sqrt32, f32, "sqrtss");
host!(add64, f64, "addsd");
host!(mul64, f64, "mulsd");
host!(div64, f64, "divsd");
host!(sqrt64, f64, "sqrtsd");

macro_rules! host_fma {
    ($name:ident, $t:ty, $ins:literal) => {
        pub(super) fn $name(a: $t, b: $t, c: $t, rc: u32) -> $t {
            let (with, normal) = (0x1f80u32 | rc << 13, 0x1f80u32);
            let mut x = a;
            // SAFETY: as above; the caller checked that the CPU has FMA.
            unsafe {
                asm!(
                    "ldmxcsr [{w}]",
                    concat!($ins, " {x}, {b}, {c}"),
                    "ldmxcsr [{n}]",
                    w = in(reg) &with, n = in(reg) &normal, x = inout(xmm_reg) x,
                    b = in(xmm_reg) b, c = in(xmm_reg) c,
                    options(nostack),
                );
            }
            x
        }
    };
}
host_fma!(fma32, f32, "vfmadd213ss");
host_fma!(fma64, f64, "vfmadd213sd");

/// Rounds a double to single precision in a rounding mode of MXCSR.
pub(super) fn narrow_host(a: f64, rc: u32) -> f32 {
    let (with, normal) = (0x1f80u32 | rc << 13, 0x1f80u32);
    let x: f32;
    // SAFETY: as above.
    unsafe {
        asm!(
            "ldmxcsr [{w}]", "cvtsd2ss {x}, {a}", "ldmxcsr [{n}]",
            w = in(reg) &with, n = in(reg) &normal, x = out(xmm_reg) x, a = in(xmm_reg) a,
            options(nostack),
        );
    }
    x
}

fn singles(random: &mut Random, n: usize) -> Vec<f32> {
    let edges = [
        0u32,
        0x8000_0000,
        1,
        0x8000_0001,
        0x007f_ffff,
        0x0080_0000,
        0x0080_0001,
        0x3f80_0000,
        0xbf80_0000,
        0x3f80_0001,
        0x3f7f_ffff,
        0x7f7f_ffff,
        0xff7f_ffff,
        0x7f80_0000,
        0xff80_0000,
        0x4b7f_ffff,
        0x3400_0000,
        0x3380_0000,
        0x3380_0001,
    ];
    let mut out: Vec<f32> = edges.iter().map(|b| f32::from_bits(*b)).collect();
    while out.len() < n {
        let r = random.next();
        // Half of the rows have similar exponents, so that sums cancel.
        let bits = if r & 1 << 40 == 0 {
            r as u32
        } else {
            r as u32 & 0x80ff_ffff | 0x3f00_0000
        };
        let x = f32::from_bits(bits);
        if !x.is_nan() {
            out.push(x);
        }
    }
    out
}

fn doubles(random: &mut Random, n: usize) -> Vec<f64> {
    let edges = [
        0u64,
        1 << 63,
        1,
        0x000f_ffff_ffff_ffff,
        0x0010_0000_0000_0000,
        0x3ff0_0000_0000_0000,
        0x3ff0_0000_0000_0001,
        0xbfef_ffff_ffff_ffff,
        0x7fef_ffff_ffff_ffff,
        0xffef_ffff_ffff_ffff,
        0x7ff0_0000_0000_0000,
        0x3ca0_0000_0000_0000,
        0x3c90_0000_0000_0001,
        0x0370_0000_0000_0000,
    ];
    let mut out: Vec<f64> = edges.iter().map(|b| f64::from_bits(*b)).collect();
    while out.len() < n {
        let r = random.next();
        let bits = match r >> 3 & 3 {
            0 => random.next(),
            1 => random.next() & 0x801f_ffff_ffff_ffff | 0x3fe0_0000_0000_0000,
            2 => random.next() & 0x800f_ffff_ffff_ffff | (r & 0x7f) << 52,
            _ => random.next() & 0xffff_ffff_0000_0000,
        };
        let x = f64::from_bits(bits);
        if !x.is_nan() {
            out.push(x);
        }
    }
    out
}

fn same32(got: f32, want: f32, what: impl FnOnce() -> String) {
    let nan = got.is_nan() && want.is_nan();
    assert!(
        nan || got.to_bits() == want.to_bits(),
        "{}: {got:e} not {want:e}",
        what()
    );
}

fn same64(got: f64, want: f64, what: impl FnOnce() -> String) {
    let nan = got.is_nan() && want.is_nan();
    assert!(
        nan || got.to_bits() == want.to_bits(),
        "{}: {got:e} not {want:e}",
        what()
    );
}

#[test]
fn single_precision() {
    let mut random = Random(1);
    let v = singles(&mut random, 300);
    for (mode, rc, name) in MODES {
        for &a in &v {
            same32(round::sqrt32(a, mode), sqrt32(a, a, rc), || {
                format!("sqrt.{name} {a:e}")
            });
            for &b in &v {
                let what = |op: &str| format!("{op}.{name} {a:e} {b:e}");
                same32(round::add32(a, b, mode), add32(a, b, rc), || what("add"));
                same32(round::mul32(a, b, mode), mul32(a, b, rc), || what("mul"));
                same32(round::div32(a, b, mode), div32(a, b, rc), || what("div"));
            }
        }
    }
}

#[test]
fn double_precision() {
    let mut random = Random(2);
    let v = doubles(&mut random, 300);
    for (mode, rc, name) in MODES {
        for &a in &v {
            same64(round::sqrt64(a, mode), sqrt64(a, a, rc), || {
                format!("sqrt.{name} {a:e}")
            });
            same32(round::narrow(a, mode), narrow_host(a, rc), || {
                format!("cvt.{name} {a:e}")
            });
            let packed = f32::from_bits(round::from_f64(a, mode, round::F32) as u32);
            if a.is_finite() {
                same32(packed, narrow_host(a, rc), || format!("pack.{name} {a:e}"));
            }
            for &b in &v {
                let what = |op: &str| format!("{op}.{name} {a:e} {b:e}");
                same64(round::add64(a, b, mode), add64(a, b, rc), || what("add"));
                same64(round::mul64(a, b, mode), mul64(a, b, rc), || what("mul"));
                same64(round::div64(a, b, mode), div64(a, b, rc), || what("div"));
            }
        }
    }
}

#[test]
fn fused_multiply_add() {
    if !std::is_x86_feature_detected!("fma") {
        eprintln!("SKIPPED: this processor has no fused multiply-add to compare with");
        return;
    }
    let mut random = Random(3);
    let (v, d) = (singles(&mut random, 60), doubles(&mut random, 60));
    for (mode, rc, name) in MODES {
        for (i, &a) in v.iter().enumerate() {
            for (j, &b) in v.iter().enumerate() {
                for (k, &c) in v.iter().enumerate() {
                    // Some addends almost cancel the product.
                    let c = if (i + j + k) % 3 == 0 { -(a * b) } else { c };
                    if c.is_nan() {
                        continue;
                    }
                    let what = || format!("fma.{name} {a:e} {b:e} {c:e}");
                    if mode != Mode::Nearest {
                        same32(round::fma32(a, b, c, mode), fma32(a, b, c, rc), what);
                    }
                    let (a, b, mut c) = (d[i], d[j], d[k]);
                    if (i + j + k) % 3 == 0 {
                        c = -(a * b);
                    }
                    if c.is_nan() {
                        continue;
                    }
                    let what = || format!("fma.{name}.f64 {a:e} {b:e} {c:e}");
                    same64(round::fma64(a, b, c, mode), fma64(a, b, c, rc), what);
                }
            }
        }
    }
}

#[test]
fn instructions_use_their_modes() {
    let mut random = Random(4);
    let v = singles(&mut random, 64);
    let rows: Vec<Vec<u64>> = v
        .iter()
        .zip(v.iter().rev())
        .map(|(a, b)| vec![u64::from(a.to_bits()), u64::from(b.to_bits())])
        .collect();
    for (_, rc, name) in MODES {
        type Host = fn(f32, f32, u32) -> f32;
        let ops: [(&str, Host); 4] = [
            ("add", add32),
            ("mul", mul32),
            ("div", div32),
            ("sub", |a, b, rc| add32(a, -b, rc)),
        ];
        for (op, host) in ops {
            let got = eval(
                &format!("{op}.{name}.f32 %d, %a, %b;"),
                "f32",
                &["f32", "f32"],
                &rows,
            );
            for (row, got) in rows.iter().zip(got) {
                let (a, b) = (f32::from_bits(row[0] as u32), f32::from_bits(row[1] as u32));
                same32(f32::from_bits(got as u32), host(a, b, rc), || {
                    format!("{op}.{name} {a:e} {b:e}")
                });
            }
        }
        let got = eval(
            &format!("rcp.{name}.f32 %d, %b; "),
            "f32",
            &["f32", "f32"],
            &rows,
        );
        for (row, got) in rows.iter().zip(got) {
            let b = f32::from_bits(row[1] as u32);
            same32(f32::from_bits(got as u32), div32(1.0, b, rc), || {
                format!("rcp.{name} {b:e}")
            });
        }
        let got = eval(
            &format!("cvt.{name}.f32.s64 %d, %a;"),
            "f32",
            &["b64"],
            &[vec![0x7fff_ffbf_ffff_ffff], vec![(-16_777_217i64) as u64]],
        );
        let want: Vec<u64> = [0x7fff_ffbf_ffff_ffffu64 as i64, -16_777_217]
            .iter()
            .map(|v| {
                // The exact reference compares the two nearest singles, then applies the direction.
                let near = *v as f32;
                let back = near as i128;
                let x = i128::from(*v);
                let r = match name {
                    "rm" if back > x => near.next_down(),
                    "rp" if back < x => near.next_up(),
                    "rz" if back.abs() > x.abs() => f32::from_bits(near.to_bits() - 1),
                    _ => near,
                };
                u64::from(r.to_bits())
            })
            .collect();
        assert_eq!(got, want, "cvt.{name}.f32.s64");
    }
}
