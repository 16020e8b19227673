//! Floating-point arithmetic, compared with the floating-point unit of the host in each rounding
//! mode; approximations, compared with double precision.

use super::super::eval::{pairs, triples};
use super::super::rounding as host;
use super::integer::singles;
use super::{Case, Rows, Want, forms, lane, rows};

const EDGES32: [u32; 24] = [
    0x0000_0000, // +0
    0x8000_0000, // -0
    0x3f80_0000, // 1
    0xbf80_0000, // -1
    0x7f80_0000, // inf
    0xff80_0000, // -inf
    0x7fc0_0000, // NaN
    0xffa0_1234, // a signalling NaN with sign and payload
    0x0000_0001, // smallest subnormal
    0x807f_ffff, // largest negative subnormal
    0x0080_0000, // smallest normal
    0x7f7f_ffff, // largest
    0xff7f_ffff,
    0x3f80_0001, // smallest number above 1
    0x3380_0000, // half a unit in the last place of 1
    0x3380_0001,
    0xb380_0000,
    0x3f00_0000, // 0.5
    0x3eaa_aaab, // 1/3
    0x4049_0fdb, // pi
    0xc2c8_0000, // -100
    0x7e80_0001, // above 2^126
    0x4b7f_ffff,
    0x0080_0001,
];

const EDGES64: [u64; 20] = [
    0,
    1 << 63,
    0x3ff0_0000_0000_0000,
    0xbff0_0000_0000_0000,
    0x7ff0_0000_0000_0000,
    0xfff0_0000_0000_0000,
    0x7ff8_0000_0000_0000,
    0xfff4_0000_0000_1234,
    1,
    0x800f_ffff_ffff_ffff,
    0x0010_0000_0000_0000,
    0x7fef_ffff_ffff_ffff,
    0xffef_ffff_ffff_ffff,
    0x3ff0_0000_0000_0001,
    0x3ca0_0000_0000_0000, // half a unit in the last place of 1
    0x3ca0_0000_0000_0001,
    0x3fe0_0000_0000_0000,
    0x3fd5_5555_5555_5555,
    0x4009_21fb_5444_2d18,
    0xc059_0000_0000_0000,
];

/// Edge values of single precision.
pub(super) fn edges32() -> Vec<u64> {
    EDGES32.iter().map(|b| u64::from(*b)).collect()
}

/// Edge values of double precision.
pub(super) fn edges64() -> Vec<u64> {
    EDGES64.to_vec()
}

/// `.ftz`: replaces a subnormal by a zero of the same sign.
pub(super) fn flush(x: f32) -> f32 {
    if x.is_subnormal() {
        0f32.copysign(x)
    } else {
        x
    }
}

fn f(bits: u64) -> f32 {
    f32::from_bits(bits as u32)
}

fn d(bits: u64) -> f64 {
    f64::from_bits(bits)
}

/// The rounding mode of MXCSR for the rounding modifier of a form.
pub(super) fn control(p: &[String]) -> u32 {
    for (name, rc) in [
        ("rm", 1),
        ("rp", 2),
        ("rz", 3),
        ("rmi", 1),
        ("rpi", 2),
        ("rzi", 3),
    ] {
        if p.iter().any(|m| m == name) {
            return rc;
        }
    }
    0
}

/// Whether a form has a modifier.
pub(super) fn has(p: &[String], name: &str) -> bool {
    p.iter().any(|m| m == name)
}

/// `.sat`: clamps to [0, 1]; NaN becomes 0.
pub(super) fn saturate(x: f32) -> f32 {
    if x > 0.0 { x.min(1.0) } else { 0.0 }
}

type Fn32 = fn(&[f32], u32) -> f32;
type Fn64 = fn(&[f64], u32) -> f64;

/// A case of a single-precision form. `host` computes the result from the operands and the rounding
/// mode.
fn single(form: &str, p: &[String], inputs: &Rows, host: Fn32) -> Case {
    let (rc, ftz, sat) = (control(p), has(p, "ftz"), has(p, "sat"));
    let n = inputs[0].len();
    lane(form, "f32", &["f32"; 3][..n], inputs, move |r| {
        let input = |v: &u64| if ftz { flush(f(*v)) } else { f(*v) };
        let operands: Vec<f32> = r.iter().map(input).collect();
        let x = host(&operands, rc);
        let x = if ftz { flush(x) } else { x };
        Want::Single(if sat { saturate(x) } else { x })
    })
}

fn double(form: &str, p: &[String], inputs: &Rows, host: Fn64) -> Case {
    let rc = control(p);
    let n = inputs[0].len();
    lane(form, "f64", &["f64"; 3][..n], inputs, move |r| {
        let operands: Vec<f64> = r.iter().map(|v| d(*v)).collect();
        Want::Double(host(&operands, rc))
    })
}

fn host_single(op: &str) -> Fn32 {
    match op {
        "add" => |v, rc| host::add32(v[0], v[1], rc),
        "sub" => |v, rc| host::add32(v[0], -v[1], rc),
        "mul" => |v, rc| host::mul32(v[0], v[1], rc),
        "div" => |v, rc| host::div32(v[0], v[1], rc),
        "rcp" => |v, rc| host::div32(1.0, v[0], rc),
        "sqrt" => |v, rc| host::sqrt32(v[0], v[0], rc),
        _ => |v, rc| host::fma32(v[0], v[1], v[2], rc),
    }
}

fn host_double(op: &str) -> Fn64 {
    match op {
        "add" => |v, rc| host::add64(v[0], v[1], rc),
        "sub" => |v, rc| host::add64(v[0], -v[1], rc),
        "mul" => |v, rc| host::mul64(v[0], v[1], rc),
        "div" => |v, rc| host::div64(v[0], v[1], rc),
        "rcp" => |v, rc| host::div64(1.0, v[0], rc),
        "sqrt" => |v, rc| host::sqrt64(v[0], v[0], rc),
        _ => |v, rc| host::fma64(v[0], v[1], v[2], rc),
    }
}

fn arithmetic() -> Vec<Case> {
    let (e32, e64) = (edges32(), edges64());
    let inputs = |e: &[u64], op: &str| match op {
        "fma" | "mad" => rows(triples(&e[..18], &e[..18], &e[..18])),
        "rcp" | "sqrt" => singles(e),
        _ => rows(pairs(e, e)),
    };
    let mut out = Vec::new();
    for pattern in [
        "{add,sub,mul}{,.rn,.rz,.rm,.rp}{,.ftz}{,.sat}",
        "{fma,mad}.{rn,rz,rm,rp}{,.ftz}{,.sat}",
        "{div,rcp,sqrt}.{rn,rz,rm,rp}{,.ftz}",
    ] {
        for (form, p) in forms(&format!("{pattern}.f32")) {
            out.push(single(&form, &p, &inputs(&e32, &p[0]), host_single(&p[0])));
        }
    }
    for pattern in [
        "{add,sub,mul}{,.rn,.rz,.rm,.rp}",
        "{fma,mad}.{rn,rz,rm,rp}",
        "{div,rcp,sqrt}.{rn,rz,rm,rp}",
    ] {
        for (form, p) in forms(&format!("{pattern}.f64")) {
            out.push(double(&form, &p, &inputs(&e64, &p[0]), host_double(&p[0])));
        }
    }
    out
}

/// The results that are accepted for an approximation of `x`: within two units in the last place.
fn close(x: f64, ftz: bool) -> Want {
    if x.abs() >= 3.402_823_567_797_336_6e38 {
        return Want::Single(f32::INFINITY.copysign(x as f32));
    }
    if ftz && x.abs() < f64::from(f32::MIN_POSITIVE) {
        return Want::Single(0f32.copysign(x as f32));
    }
    Want::Near(x, 4.0)
}

/// `a / b`. By the PTX manual, `.approx` treats a divisor above 2^126 as infinite.
fn quotient(a: f64, b: f64, approx: bool) -> f64 {
    if approx && b.is_finite() && b.abs() > 2f64.powi(126) {
        return a * 0f64.copysign(b);
    }
    a / b
}

fn approximations() -> Vec<Case> {
    let mut e = edges32();
    e.extend((-40..40).map(|i| u64::from((i as f32 * 0.37 + 0.011).to_bits())));
    e.extend(
        [1e5f32, 123_456.7, 3e10, -149.0, -126.5, 127.9, 128.0].map(|x| u64::from(x.to_bits())),
    );
    let one = singles(&e);
    let two = rows(pairs(&e[..30], &e[..30]));
    let mut out = Vec::new();
    for (form, p) in forms("{rcp,sqrt,rsqrt,sin,cos,ex2,lg2}.approx{,.ftz}.f32") {
        let function: fn(f64) -> f64 = match p[0].as_str() {
            "rcp" => |x| 1.0 / x,
            "sqrt" => f64::sqrt,
            "rsqrt" => |x| 1.0 / x.sqrt(),
            "sin" => f64::sin,
            "cos" => f64::cos,
            "ex2" => f64::exp2,
            _ => f64::log2,
        };
        let ftz = has(&p, "ftz");
        out.push(lane(&form, "f32", &["f32"], &one, move |r| {
            let x = if ftz { flush(f(r[0])) } else { f(r[0]) };
            close(function(f64::from(x)), ftz)
        }));
    }
    out.push(lane("tanh.approx.f32", "f32", &["f32"], &one, |r| {
        Want::Near(f64::from(f(r[0])).tanh(), 4.0)
    }));
    for (form, p) in forms("div.{approx,full}{,.ftz}.f32") {
        let (ftz, approx) = (has(&p, "ftz"), has(&p, "approx"));
        out.push(lane(&form, "f32", &["f32"; 2], &two, move |r| {
            let v = |k: usize| f64::from(if ftz { flush(f(r[k])) } else { f(r[k]) });
            close(quotient(v(0), v(1), approx), ftz)
        }));
    }
    // The forms for doubles compute only the high word of the result; the low word is zero.
    let mut e = edges64();
    e.extend([3f64, -0.1, 1e300, 1.7e308, 0.7, 2e-300].map(f64::to_bits));
    let one = singles(&e);
    for (form, p) in forms("{rcp.approx.ftz,rsqrt.approx,rsqrt.approx.ftz}.f64") {
        let (ftz, rcp) = (has(&p, "ftz"), p[0] == "rcp");
        out.push(lane(&form, "f64", &["f64"], &one, move |r| {
            let flush = |x: f64| {
                if ftz && x.is_subnormal() {
                    0f64.copysign(x)
                } else {
                    x
                }
            };
            let x = flush(d(r[0]));
            let v = flush(if rcp { 1.0 / x } else { 1.0 / x.sqrt() });
            Want::NearDouble(v, 1e-6)
        }));
    }
    let text = "rcp.approx.ftz.f64 %y0, %a; mov.b64 {%x0, %x1}, %y0; cvt.u64.u32 %d, %x0;";
    let finite: Vec<u64> = e.iter().copied().filter(|b| !d(*b).is_nan()).collect();
    let low = |_: &[u64]| Want::Bits(0);
    out.push(super::code(
        "rcp.approx.ftz.f64",
        text,
        "b64",
        &["f64"],
        &singles(&finite),
        low,
    ));
    out
}

/// The minimum or maximum by the PTX manual: -0 is less than +0, and a number is preferred to NaN.
fn extreme(a: f64, b: f64, max: bool, nan: bool) -> f64 {
    match (a.is_nan(), b.is_nan()) {
        (true, true) => f64::NAN,
        (true, false) | (false, true) if nan => f64::NAN,
        (true, false) => b,
        (false, true) => a,
        _ if (a.total_cmp(&b).is_lt()) != max => a,
        _ => b,
    }
}

fn extremes() -> Vec<Case> {
    let (e32, e64) = (edges32(), edges64());
    let mut out = Vec::new();
    for (form, p) in forms("{min,max}{,.ftz}{,.NaN}{,.xorsign.abs}.f32") {
        let (max, ftz) = (p[0] == "max", has(&p, "ftz"));
        let (nan, xorsign) = (has(&p, "NaN"), has(&p, "xorsign"));
        out.push(lane(
            &form,
            "f32",
            &["f32"; 2],
            &rows(pairs(&e32, &e32)),
            move |r| {
                let v = |k: usize| if ftz { flush(f(r[k])) } else { f(r[k]) };
                let (a, b) = (v(0), v(1));
                if !xorsign {
                    return Want::Single(extreme(a.into(), b.into(), max, nan) as f32);
                }
                let x = extreme(a.abs().into(), b.abs().into(), max, nan) as f32;
                let negative = a.is_sign_negative() != b.is_sign_negative();
                Want::Single(if negative { -x } else { x })
            },
        ));
    }
    for (form, p) in forms("{min,max}.f64") {
        let max = p[0] == "max";
        out.push(lane(
            &form,
            "f64",
            &["f64"; 2],
            &rows(pairs(&e64, &e64)),
            move |r| Want::Double(extreme(d(r[0]), d(r[1]), max, false)),
        ));
    }
    out
}

fn signs() -> Vec<Case> {
    let (e32, e64) = (edges32(), edges64());
    let mut out = Vec::new();
    for (form, p) in forms("{abs,neg}{,.ftz}.f32") {
        let (abs, ftz) = (p[0] == "abs", has(&p, "ftz"));
        out.push(lane(&form, "f32", &["f32"], &singles(&e32), move |r| {
            let x = u64::from(if ftz { flush(f(r[0])) } else { f(r[0]) }.to_bits());
            Want::Bits(if abs {
                x & 0x7fff_ffff
            } else {
                x ^ 0x8000_0000
            })
        }));
    }
    for (form, p) in forms("{abs,neg}.f64") {
        let abs = p[0] == "abs";
        out.push(lane(&form, "f64", &["f64"], &singles(&e64), move |r| {
            Want::Bits(if abs { r[0] << 1 >> 1 } else { r[0] ^ 1 << 63 })
        }));
    }
    // The magnitude of the second operand with the sign of the first.
    out.push(lane(
        "copysign.f32",
        "f32",
        &["f32"; 2],
        &rows(pairs(&e32, &e32)),
        |r| Want::Bits(r[0] & 0x8000_0000 | r[1] & 0x7fff_ffff),
    ));
    out.push(lane(
        "copysign.f64",
        "f64",
        &["f64"; 2],
        &rows(pairs(&e64, &e64)),
        |r| Want::Bits(r[0] & 1 << 63 | r[1] << 1 >> 1),
    ));
    out
}

pub(super) fn cases() -> Vec<Case> {
    let mut out = arithmetic();
    out.extend(approximations());
    out.extend(extremes());
    out.extend(signs());
    out
}
