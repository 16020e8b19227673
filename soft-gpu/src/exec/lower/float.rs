//! Floating-point instructions, one line of a table per form.

use super::func::Func;
use super::mods::Mods;
use super::{R, Why};
use crate::exec::inst::{OpFn, op};
use crate::exec::ops::approx::{self as ap, Approx, MapApprox};
use crate::exec::ops::family::{Each1, Each2, Each3, F1, F2, F3, Map1, Map2, Map3};
use crate::exec::ops::float::{self as fl, Ftz, Sat, flag};
use crate::exec::ops::misc::{Testp, class};
use crate::exec::round::Mode;
use crate::ptx::ast::{Operand, Type};

/// Takes a rounding modifier.
pub(crate) fn rounding(m: &mut Mods<'_>) -> Option<Mode> {
    m.one(&[
        ("rn", Mode::Nearest),
        ("rz", Mode::Zero),
        ("rm", Mode::Down),
        ("rp", Mode::Up),
    ])
}

/// Modifiers of a float instruction.
struct Flags {
    mode: Mode,
    ftz: bool,
    sat: bool,
    approx: bool,
    /// `.NaN`.
    nan: bool,
    /// `.xorsign.abs`.
    xorsign: bool,
}

/// The modifiers that an instruction may have, one letter each: `r` rounding, `a` `.approx`, `u`
/// `.full`, `f` `.ftz`, `s` `.sat`, `n` `.NaN`, `x` `.xorsign.abs`.
fn allowed(base: &str, double: bool) -> &'static str {
    match (base, double) {
        ("add" | "sub" | "mul" | "fma" | "mad", false) => "rfs",
        ("div", false) => "rauf",
        ("rcp" | "sqrt", false) => "raf",
        ("rsqrt" | "sin" | "cos" | "ex2" | "lg2", false) => "af",
        ("tanh", false) => "a",
        ("min" | "max", false) => "fnx",
        ("abs" | "neg", false) => "f",
        ("add" | "sub" | "mul" | "fma" | "mad" | "div" | "sqrt", true) => "r",
        ("rcp", true) => "raf",
        ("rsqrt", true) => "af",
        _ => "",
    }
}

impl Flags {
    /// Takes the modifiers that `base` may have. Any other modifier refuses the instruction. PTX of
    /// the first generation (sm_1x) has no modifiers: single precision flushes subnormals, `mad`
    /// means `fma.rn`, and all others mean `.approx` (PTX ISA, notes on sm_1x).
    fn take(m: &mut Mods<'_>, double: bool, first_generation: bool) -> R<Flags> {
        let may = allowed(m.base, double);
        let mut has = |letter: char, name: &str| may.contains(letter) && m.has(name);
        let old = first_generation && !double;
        let mut approx = has('a', "approx");
        let full = has('u', "full");
        let ftz = (approx || !double) && has('f', "ftz") || old;
        let (sat, nan) = (has('s', "sat"), has('n', "NaN"));
        let (xorsign, abs) = (has('x', "xorsign"), has('x', "abs"));
        if xorsign != abs {
            return Err(Why::invalid(".xorsign and .abs go together"));
        }
        let mut mode = if may.contains('r') && !approx && !full {
            rounding(m)
        } else {
            None
        };
        if old && !approx && !full && mode.is_none() {
            approx = may.contains('a');
            mode = (!approx).then_some(Mode::Nearest);
        }
        let chosen = matches!(
            m.base,
            "add" | "sub" | "mul" | "min" | "max" | "abs" | "neg" | "copysign"
        );
        if !chosen && usize::from(approx) + usize::from(full) + usize::from(mode.is_some()) != 1 {
            return Err(Why::invalid(
                "one of .approx, .full and the rounding modes is needed",
            ));
        }
        Ok(Flags {
            mode: mode.unwrap_or(Mode::Nearest),
            ftz,
            sat,
            approx,
            nan,
            xorsign,
        })
    }

    fn imm(&self) -> u64 {
        self.mode as u64
            | if self.ftz { flag::FTZ } else { 0 }
            | if self.sat { flag::SAT } else { 0 }
    }
}

fn with1<F: F1<A = f32, D = f32>>(ftz: bool) -> OpFn {
    if ftz {
        op::<Map1<Ftz<F>>>()
    } else {
        op::<Map1<F>>()
    }
}

/// The operation of a function of the C library, computed lane by lane.
fn dear1<F: F1<A = f32, D = f32>>(ftz: bool) -> OpFn {
    if ftz {
        op::<Each1<Ftz<F>>>()
    } else {
        op::<Each1<F>>()
    }
}

fn approx<F: Approx>(ftz: bool) -> OpFn {
    if ftz {
        op::<MapApprox<F, true>>()
    } else {
        op::<MapApprox<F, false>>()
    }
}

fn with2<F: F2<A = f32, B = f32, D = f32>>(x: &Flags) -> OpFn {
    match (x.ftz, x.sat) {
        (false, false) => op::<Map2<F>>(),
        (true, false) => op::<Map2<Ftz<F>>>(),
        (false, true) => op::<Map2<Sat<F>>>(),
        (true, true) => op::<Map2<Sat<Ftz<F>>>>(),
    }
}

fn with3<F: F3<A = f32, B = f32, C = f32, D = f32>>(x: &Flags) -> OpFn {
    match (x.ftz, x.sat) {
        (false, false) => op::<Map3<F>>(),
        (true, false) => op::<Map3<Ftz<F>>>(),
        (false, true) => op::<Map3<Sat<F>>>(),
        (true, true) => op::<Map3<Sat<Ftz<F>>>>(),
    }
}

/// Lowers floating-point arithmetic. Returns false for any other opcode.
pub(crate) fn lower<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let known = matches!(
        m.base,
        "add"
            | "sub"
            | "mul"
            | "div"
            | "fma"
            | "mad"
            | "min"
            | "max"
            | "abs"
            | "neg"
            | "sqrt"
            | "rsqrt"
            | "rcp"
            | "sin"
            | "cos"
            | "ex2"
            | "lg2"
            | "tanh"
            | "copysign"
            | "testp"
    );
    if !known {
        return Ok(false);
    }
    if m.base == "testp" {
        return testp(f, m, ops);
    }
    let t = m.ty()?;
    let x = Flags::take(m, t == Type::F64, f.m.ast.first_generation())?;
    let found = match t {
        Type::F32 => single(m.base, &x).or_else(|| single_unary(m.base, &x)),
        Type::F64 => double(m.base, &x),
        _ => None,
    };
    let (run, sig) = found.ok_or_else(|| Why::unsupported("this form is not served"))?;
    f.plan(run, sig, ops, x.imm())?;
    Ok(true)
}

fn single(base: &str, x: &Flags) -> Option<(OpFn, &'static str)> {
    let near = x.mode == Mode::Nearest;
    Some(match base {
        "add" if near => (with2::<fl::AddF32>(x), "f=ff"),
        "add" => (op::<Map2<fl::AddRndF32>>(), "f=ff"),
        "sub" if near => (with2::<fl::SubF32>(x), "f=ff"),
        "sub" => (op::<Map2<fl::SubRndF32>>(), "f=ff"),
        "mul" if near => (with2::<fl::MulF32>(x), "f=ff"),
        "mul" => (op::<Map2<fl::MulRndF32>>(), "f=ff"),
        "div" if x.approx => (with2::<fl::DivApproxF32>(x), "f=ff"),
        "div" if near => (with2::<fl::DivF32>(x), "f=ff"),
        "div" => (op::<Each2<fl::DivRndF32>>(), "f=ff"),
        "fma" | "mad" if near => (with3::<fl::FmaF32>(x), "f=fff"),
        "fma" | "mad" => (op::<Map3<fl::FmaRndF32>>(), "f=fff"),
        "min" => (minimum::<fl::MinF32, fl::MinNanF32>(x), "f=ff"),
        "max" => (minimum::<fl::MaxF32, fl::MaxNanF32>(x), "f=ff"),
        "copysign" => (op::<Map2<fl::CopysignF32>>(), "f=ff"),
        _ => return None,
    })
}

/// The operation of `min` or `max`: `F` without `.NaN`, `N` with `.NaN`.
fn minimum<F, N>(x: &Flags) -> OpFn
where
    F: F2<A = f32, B = f32, D = f32>,
    N: F2<A = f32, B = f32, D = f32>,
{
    match (x.nan, x.xorsign) {
        (false, false) => with2::<F>(x),
        (true, false) => with2::<N>(x),
        (false, true) => with2::<fl::XorSign<F>>(x),
        (true, true) => with2::<fl::XorSign<N>>(x),
    }
}

fn single_unary(base: &str, x: &Flags) -> Option<(OpFn, &'static str)> {
    let near = x.mode == Mode::Nearest;
    let run = match base {
        "abs" => with1::<fl::AbsF32>(x.ftz),
        "neg" => with1::<fl::NegF32>(x.ftz),
        "sqrt" if near => with1::<fl::SqrtF32>(x.ftz),
        "sqrt" => op::<Each1<fl::SqrtRndF32>>(),
        "rcp" if near => with1::<fl::RcpF32>(x.ftz),
        "rcp" => op::<Each1<fl::RcpRndF32>>(),
        "rsqrt" if x.approx => with1::<fl::RsqrtF32>(x.ftz),
        "sin" if x.approx => approx::<ap::Sin>(x.ftz),
        "cos" if x.approx => approx::<ap::Cos>(x.ftz),
        "ex2" if x.approx => approx::<ap::Ex2>(x.ftz),
        "lg2" if x.approx => approx::<ap::Lg2>(x.ftz),
        "tanh" if x.approx => dear1::<fl::TanhF32>(x.ftz),
        _ => return None,
    };
    Some((run, "f=f"))
}

fn double(base: &str, x: &Flags) -> Option<(OpFn, &'static str)> {
    let near = x.mode == Mode::Nearest;
    Some(match base {
        "add" if near => (op::<Map2<fl::AddF64>>(), "d=dd"),
        "add" => (op::<Each2<fl::AddRndF64>>(), "d=dd"),
        "sub" if near => (op::<Map2<fl::SubF64>>(), "d=dd"),
        "sub" => (op::<Each2<fl::SubRndF64>>(), "d=dd"),
        "mul" if near => (op::<Map2<fl::MulF64>>(), "d=dd"),
        "mul" => (op::<Each2<fl::MulRndF64>>(), "d=dd"),
        "div" if near => (op::<Map2<fl::DivF64>>(), "d=dd"),
        "div" => (op::<Each2<fl::DivRndF64>>(), "d=dd"),
        "fma" | "mad" if near => (op::<Map3<fl::FmaF64>>(), "d=ddd"),
        "fma" | "mad" => (op::<Each3<fl::FmaRndF64>>(), "d=ddd"),
        "min" => (op::<Map2<fl::MinF64>>(), "d=dd"),
        "max" => (op::<Map2<fl::MaxF64>>(), "d=dd"),
        "copysign" => (op::<Map2<fl::CopysignF64>>(), "d=dd"),
        "abs" => (op::<Map1<fl::AbsF64>>(), "d=d"),
        "neg" => (op::<Map1<fl::NegF64>>(), "d=d"),
        "sqrt" if near => (op::<Map1<fl::SqrtF64>>(), "d=d"),
        "sqrt" => (op::<Each1<fl::SqrtRndF64>>(), "d=d"),
        "rcp" if x.approx => (op::<Map1<fl::RcpApproxF64>>(), "d=d"),
        "rcp" if near => (op::<Map1<fl::RcpF64>>(), "d=d"),
        "rcp" => (op::<Each1<fl::RcpRndF64>>(), "d=d"),
        "rsqrt" if x.approx && x.ftz => (op::<Map1<fl::RsqrtApproxF64>>(), "d=d"),
        "rsqrt" if x.approx => (op::<Map1<fl::RsqrtF64>>(), "d=d"),
        _ => return None,
    })
}

fn testp<'m>(f: &mut Func<'_, 'm>, m: &mut Mods<'_>, ops: &'m [Operand]) -> R<bool> {
    let kind = m.one(&[
        ("finite", class::FINITE),
        ("infinite", class::INFINITE),
        ("number", class::NUMBER),
        ("notanumber", class::NAN),
        ("normal", class::NORMAL),
        ("subnormal", class::SUBNORMAL),
    ]);
    let kind = kind.ok_or_else(|| Why::invalid("testp of no class"))?;
    match m.ty()? {
        Type::F32 => f.plan(op::<Testp<u32>>(), "p=f", ops, kind)?,
        Type::F64 => f.plan(op::<Testp<u64>>(), "p=d", ops, kind)?,
        _ => return Err(Why::invalid("testp of this type")),
    }
    Ok(true)
}
