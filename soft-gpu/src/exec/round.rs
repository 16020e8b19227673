//! Exact rounding in the four IEEE directions.
//!
//! Every function ends in [`pack`], which rounds once: it converts an exact integer times a power
//! of two, plus a positive rest below one unit, to a number of a format. Arithmetic of `f32` is
//! faster through a double that is *rounded to odd* (the last bit is set if the result is inexact);
//! rounding that double to 24 bits then gives the correct result.

/// Rounding direction. Also the low two bits of an immediate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mode {
    /// To nearest, ties to even (`.rn`).
    Nearest,
    /// Toward zero (`.rz`).
    Zero,
    /// Toward negative infinity (`.rm`).
    Down,
    /// Toward positive infinity (`.rp`).
    Up,
}

impl Mode {
    /// The direction in the low two bits of an immediate.
    #[inline(always)]
    pub(crate) fn of(m: u64) -> Mode {
        match m & 3 {
            0 => Mode::Nearest,
            1 => Mode::Zero,
            2 => Mode::Down,
            _ => Mode::Up,
        }
    }
}

/// A binary floating-point format.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Format {
    /// Bits of the significand, including the hidden bit.
    precision: i32,
    /// Exponent of the smallest subnormal.
    least: i32,
    /// Bits of the exponent field.
    exponent_bits: u32,
}

/// IEEE half precision.
pub(crate) const F16: Format = Format {
    precision: 11,
    least: -24,
    exponent_bits: 5,
};
/// `e5m2`, 8 bits.
pub(crate) const E5M2: Format = Format {
    precision: 3,
    least: -16,
    exponent_bits: 5,
};
/// Magnitudes of `e4m3`, 8 bits, as if the exponent had one more bit. `e4m3` itself does not have
/// the largest values of this format.
pub(crate) const E4M3: Format = Format {
    precision: 4,
    least: -9,
    exponent_bits: 5,
};
/// bfloat16.
pub(crate) const BF16: Format = Format {
    precision: 8,
    least: -133,
    exponent_bits: 8,
};
/// IEEE single precision.
pub(crate) const F32: Format = Format {
    precision: 24,
    least: -149,
    exponent_bits: 8,
};
/// IEEE double precision.
pub(crate) const F64: Format = Format {
    precision: 53,
    least: -1074,
    exponent_bits: 11,
};

/// The bits of `(-1)^neg · (mant + δ) · 2^exp`, rounded. δ is in (0, 1) if `more`, otherwise 0.
pub(crate) fn pack(neg: bool, mant: u128, exp: i32, more: bool, mode: Mode, f: Format) -> u64 {
    let sign = u64::from(neg) << (f.precision - 1 + f.exponent_bits as i32);
    if mant == 0 && !more {
        return sign;
    }
    let top = exp + 127 - mant.leading_zeros() as i32;
    let lsb = (top - (f.precision - 1)).max(f.least);
    let shift = lsb - exp;
    let (mut m, above, tie) = if shift <= 0 {
        (mant << (-shift).min(127), false, false)
    } else if shift > 127 {
        (0, false, false)
    } else {
        let rest = mant & ((1u128 << shift) - 1);
        let half = 1u128 << (shift - 1);
        (
            mant >> shift,
            rest > half || (rest == half && more),
            rest == half && !more,
        )
    };
    let inexact = more
        || match shift {
            ..=0 => false,
            128.. => mant != 0,
            s => mant & ((1u128 << s) - 1) != 0,
        };
    let up = match mode {
        Mode::Nearest => above || (tie && m & 1 != 0),
        Mode::Zero => false,
        Mode::Down => neg && inexact,
        Mode::Up => !neg && inexact,
    };
    m += u128::from(up);
    let hidden = f.precision - 1;
    let bits = if m < 1u128 << hidden {
        m as u64
    } else {
        (((lsb - f.least) as u64) << hidden).wrapping_add(m as u64)
    };
    let infinity = ((1u64 << f.exponent_bits) - 1) << hidden;
    if bits < infinity {
        return sign | bits;
    }
    let keeps_finite = match mode {
        Mode::Nearest => false,
        Mode::Zero => true,
        Mode::Down => !neg,
        Mode::Up => neg,
    };
    sign | if keeps_finite { infinity - 1 } else { infinity }
}

/// Sign, significand and exponent of a finite double.
fn unpack(x: f64) -> (bool, u64, i32) {
    let bits = x.to_bits();
    let frac = bits & ((1 << 52) - 1);
    let e = (bits >> 52 & 0x7ff) as i32;
    let (m, e) = if e == 0 {
        (frac, -1074)
    } else {
        (frac | 1 << 52, e - 1075)
    };
    (bits >> 63 != 0, m, e)
}

/// As [`unpack`], but the top bit of the significand is bit 52 even for subnormals. The value must
/// not be zero.
fn unpack_normal(x: f64) -> (bool, u64, i32) {
    let (s, m, e) = unpack(x);
    let k = m.leading_zeros() as i32 - 11;
    (s, m << k, e - k)
}

/// The value of a double in another format.
pub(crate) fn from_f64(x: f64, mode: Mode, f: Format) -> u64 {
    let (s, m, e) = unpack(x);
    pack(s, u128::from(m), e, false, mode, f)
}

/// `a · b`.
pub(crate) fn mul64(a: f64, b: f64, mode: Mode) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a * b;
    }
    let ((sa, ma, ea), (sb, mb, eb)) = (unpack(a), unpack(b));
    f64::from_bits(pack(
        sa != sb,
        u128::from(ma) * u128::from(mb),
        ea + eb,
        false,
        mode,
        F64,
    ))
}

/// `a / b`.
pub(crate) fn div64(a: f64, b: f64, mode: Mode) -> f64 {
    if !a.is_finite() || !b.is_finite() || a == 0.0 || b == 0.0 {
        return a / b;
    }
    let ((sa, ma, ea), (sb, mb, eb)) = (unpack_normal(a), unpack_normal(b));
    let n = u128::from(ma) << 70;
    let d = u128::from(mb);
    f64::from_bits(pack(sa != sb, n / d, ea - 70 - eb, n % d != 0, mode, F64))
}

/// `√a`.
pub(crate) fn sqrt64(a: f64, mode: Mode) -> f64 {
    if a <= 0.0 || !a.is_finite() {
        return a.sqrt();
    }
    let (_, mut m, mut e) = unpack_normal(a);
    if e & 1 != 0 {
        m <<= 1;
        e -= 1;
    }
    let n = u128::from(m) << 64;
    let r = n.isqrt();
    f64::from_bits(pack(false, r, (e - 64) / 2, r * r != n, mode, F64))
}

/// The zero that results from an exact cancellation.
#[inline(always)]
fn cancelled(mode: Mode) -> f64 {
    if mode == Mode::Down { -0.0 } else { 0.0 }
}

/// `a · b + c`, rounded once.
pub(crate) fn fma64(a: f64, b: f64, c: f64, mode: Mode) -> f64 {
    if !a.is_finite() || !b.is_finite() || !c.is_finite() {
        return a.mul_add(b, c);
    }
    if a == 0.0 || b == 0.0 {
        if c != 0.0 {
            return c;
        }
        let p = a * b;
        return if p.is_sign_negative() == c.is_sign_negative() {
            c
        } else {
            cancelled(mode)
        };
    }
    let ((sa, ma, ea), (sb, mb, eb)) = (unpack(a), unpack(b));
    let product = (sa != sb, u128::from(ma) * u128::from(mb), ea + eb);
    if c == 0.0 {
        return f64::from_bits(pack(product.0, product.1, product.2, false, mode, F64));
    }
    let (sc, mc, ec) = unpack(c);
    // Both significands are shifted so that their top bit is bit 125. The lowest bit of the product
    // is then at least at bit 20, so the alignment drops bits only where no cancellation can
    // follow.
    let align = |(s, m, e): (bool, u128, i32)| {
        let k = m.leading_zeros() as i32 - 2;
        (s, m << k, e - k)
    };
    let (p, q) = (align(product), align((sc, u128::from(mc), ec)));
    let (x, y) = if (p.2, p.1) >= (q.2, q.1) {
        (p, q)
    } else {
        (q, p)
    };
    let d = x.2 - y.2;
    let (low, more) = match d {
        0 => (y.1, false),
        1..=127 => (y.1 >> d, y.1 & ((1u128 << d) - 1) != 0),
        _ => (0, true),
    };
    if x.0 == y.0 {
        return f64::from_bits(pack(x.0, x.1 + low, x.2, more, mode, F64));
    }
    let m = x.1 - low - u128::from(more);
    if m == 0 && !more {
        return cancelled(mode);
    }
    f64::from_bits(pack(x.0, m, x.2, more, mode, F64))
}

/// `a + b`.
pub(crate) fn add64(a: f64, b: f64, mode: Mode) -> f64 {
    fma64(a, 1.0, b, mode)
}

/// Converts a sum or quotient `s`, rounded to nearest with the error `err`, to a double rounded to
/// odd.
#[inline(always)]
fn to_odd(s: f64, err: f64) -> f64 {
    if err == 0.0 || !s.is_finite() || s == 0.0 || s.to_bits() & 1 != 0 {
        return s;
    }
    let away = (err > 0.0) == (s > 0.0);
    f64::from_bits(if away {
        s.to_bits() + 1
    } else {
        s.to_bits() - 1
    })
}

/// `a + b` rounded to odd.
#[inline(always)]
pub(crate) fn add_odd(a: f64, b: f64) -> f64 {
    let s = a + b;
    let t = s - a;
    to_odd(s, (a - (s - t)) + (b - t))
}

/// A double rounded to single.
#[inline(always)]
pub(crate) fn narrow(x: f64, mode: Mode) -> f32 {
    let y = x as f32;
    let w = f64::from(y);
    match mode {
        Mode::Nearest => y,
        Mode::Zero if w.abs() > x.abs() => f32::from_bits(y.to_bits() - 1),
        Mode::Down if w > x => y.next_down(),
        Mode::Up if w < x => y.next_up(),
        _ => y,
    }
}

/// `a + b`.
#[inline(always)]
pub(crate) fn add32(a: f32, b: f32, mode: Mode) -> f32 {
    let s = add_odd(f64::from(a), f64::from(b));
    if s == 0.0 && a.is_sign_negative() != b.is_sign_negative() {
        return cancelled(mode) as f32;
    }
    narrow(s, mode)
}

/// `a · b`.
#[inline(always)]
pub(crate) fn mul32(a: f32, b: f32, mode: Mode) -> f32 {
    narrow(f64::from(a) * f64::from(b), mode)
}

/// `a · b + c`.
#[inline(always)]
pub(crate) fn fma32(a: f32, b: f32, c: f32, mode: Mode) -> f32 {
    let p = f64::from(a) * f64::from(b);
    let s = add_odd(p, f64::from(c));
    if s == 0.0 && p.is_sign_negative() != c.is_sign_negative() {
        return cancelled(mode) as f32;
    }
    narrow(s, mode)
}

/// `a / b`.
pub(crate) fn div32(a: f32, b: f32, mode: Mode) -> f32 {
    let (x, y) = (f64::from(a), f64::from(b));
    let q = x / y;
    if !q.is_finite() || !y.is_finite() {
        return q as f32;
    }
    let rest = (-q).mul_add(y, x);
    narrow(to_odd(q, if y < 0.0 { -rest } else { rest }), mode)
}

/// `√a`.
pub(crate) fn sqrt32(a: f32, mode: Mode) -> f32 {
    let x = f64::from(a);
    let q = x.sqrt();
    if !q.is_finite() {
        return q as f32;
    }
    narrow(to_odd(q, (-q).mul_add(q, x)), mode)
}
