//! C's `printf` for device code. The format and its arguments lie in device memory.

use super::lane_memory::LaneMemory;

/// Widest field and longest precision, in characters: a hostile format must not allocate gigabytes.
const MAX_WIDTH: usize = 4096;

/// Longest output of one call by one thread, in bytes.
const MAX_OUTPUT: usize = 256 * 1024;

#[derive(Default)]
struct Spec {
    left: bool,
    plus: bool,
    space: bool,
    alt: bool,
    zero: bool,
    width: usize,
    precision: Option<usize>,
    /// Bytes of an integer argument.
    size: usize,
}

struct Args<'a, 'm> {
    at: u64,
    mem: &'a LaneMemory<'m>,
    count: u32,
}

impl Args<'_, '_> {
    fn word32(&mut self) -> Result<u32, u64> {
        let at = self.at.next_multiple_of(4);
        self.at = at.wrapping_add(4);
        self.count += 1;
        Ok(u32::from_le_bytes(self.mem.bytes(at)?))
    }

    fn word64(&mut self) -> Result<u64, u64> {
        let at = self.at.checked_next_multiple_of(8).ok_or(self.at)?;
        self.at = at.wrapping_add(8);
        self.count += 1;
        Ok(u64::from_le_bytes(self.mem.bytes(at)?))
    }
}

/// Appends the formatted text to `out`. Returns the number of arguments used; the error is an
/// invalid address.
pub(crate) fn format(
    format: &[u8],
    args: u64,
    mem: &LaneMemory<'_>,
    out: &mut Vec<u8>,
) -> Result<u32, u64> {
    let mut a = Args {
        at: args,
        mem,
        count: 0,
    };
    let mut i = 0;
    let limit = out.len() + MAX_OUTPUT;
    while i < format.len() && out.len() < limit {
        if format[i] != b'%' {
            out.push(format[i]);
            i += 1;
            continue;
        }
        let start = i;
        i += 1;
        let mut s = Spec {
            size: 4,
            ..Spec::default()
        };
        i = flags(format, i, &mut s);
        i = numbers(format, i, &mut s, &mut a)?;
        i = length(format, i, &mut s);
        let Some(&conv) = format.get(i) else {
            out.extend_from_slice(&format[start..]);
            break;
        };
        i += 1;
        if !convert(conv, &s, &mut a, out)? {
            out.extend_from_slice(&format[start..i]);
        }
    }
    Ok(a.count)
}

fn flags(f: &[u8], mut i: usize, s: &mut Spec) -> usize {
    while let Some(c) = f.get(i) {
        match c {
            b'-' => s.left = true,
            b'+' => s.plus = true,
            b' ' => s.space = true,
            b'#' => s.alt = true,
            b'0' => s.zero = true,
            _ => break,
        }
        i += 1;
    }
    i
}

fn number(f: &[u8], mut i: usize) -> (usize, usize) {
    let mut n = 0usize;
    while let Some(c @ b'0'..=b'9') = f.get(i) {
        n = n.saturating_mul(10).saturating_add(usize::from(c - b'0'));
        i += 1;
    }
    (n.min(MAX_WIDTH), i)
}

fn numbers(f: &[u8], i: usize, s: &mut Spec, a: &mut Args<'_, '_>) -> Result<usize, u64> {
    let mut i = i;
    if f.get(i) == Some(&b'*') {
        let w = a.word32()? as i32;
        s.left |= w < 0;
        s.width = (w.unsigned_abs() as usize).min(MAX_WIDTH);
        i += 1;
    } else {
        (s.width, i) = number(f, i);
    }
    if f.get(i) == Some(&b'.') {
        i += 1;
        if f.get(i) == Some(&b'*') {
            let p = a.word32()? as i32;
            s.precision = usize::try_from(p).ok().map(|p| p.min(MAX_WIDTH));
            i += 1;
        } else {
            let (p, j) = number(f, i);
            s.precision = Some(p);
            i = j;
        }
    }
    Ok(i)
}

fn length(f: &[u8], mut i: usize, s: &mut Spec) -> usize {
    while let Some(c) = f.get(i) {
        match c {
            b'h' => s.size = if s.size == 2 { 1 } else { 2 },
            b'l' | b'j' | b'z' | b't' | b'L' => s.size = 8,
            _ => break,
        }
        i += 1;
    }
    i
}

fn convert(conv: u8, s: &Spec, a: &mut Args<'_, '_>, out: &mut Vec<u8>) -> Result<bool, u64> {
    match conv {
        b'%' => out.push(b'%'),
        b'd' | b'i' => {
            let v = match s.size {
                8 => a.word64()? as i64,
                4 => i64::from(a.word32()? as i32),
                2 => i64::from(a.word32()? as i16),
                _ => i64::from(a.word32()? as i8),
            };
            integer(out, s, sign(s, v < 0), "", v.unsigned_abs().to_string());
        }
        b'u' | b'o' | b'x' | b'X' => {
            let v = match s.size {
                8 => a.word64()?,
                4 => u64::from(a.word32()?),
                2 => u64::from(a.word32()? as u16),
                _ => u64::from(a.word32()? as u8),
            };
            let (prefix, digits) = match conv {
                b'u' => ("", v.to_string()),
                b'o' if s.alt && v != 0 => ("", format!("0{v:o}")),
                b'o' => ("", format!("{v:o}")),
                b'x' => (if s.alt && v != 0 { "0x" } else { "" }, format!("{v:x}")),
                _ => (if s.alt && v != 0 { "0X" } else { "" }, format!("{v:X}")),
            };
            integer(out, s, "", prefix, digits);
        }
        b'c' => {
            let c = a.word32()? as u8;
            pad(out, s, "", &[c], false);
        }
        b's' => {
            let p = a.word64()?;
            let mut text = if p == 0 {
                b"(null)".to_vec()
            } else {
                a.mem.text(p)?
            };
            text.truncate(s.precision.unwrap_or(usize::MAX));
            pad(out, s, "", &text, false);
        }
        b'p' => {
            let p = a.word64()?;
            let text = if p == 0 {
                "(nil)".to_string()
            } else {
                format!("{p:#x}")
            };
            pad(out, s, "", text.as_bytes(), false);
        }
        b'f' | b'F' | b'e' | b'E' | b'g' | b'G' | b'a' | b'A' => {
            let v = f64::from_bits(a.word64()?);
            float(out, s, conv, v);
        }
        _ => return Ok(false),
    }
    Ok(true)
}

fn sign(s: &Spec, negative: bool) -> &'static str {
    match (negative, s.plus, s.space) {
        (true, ..) => "-",
        (_, true, _) => "+",
        (_, _, true) => " ",
        _ => "",
    }
}

fn integer(out: &mut Vec<u8>, s: &Spec, sign: &str, prefix: &str, mut digits: String) {
    if let Some(p) = s.precision {
        if p == 0 && digits == "0" {
            digits.clear();
        }
        if digits.len() < p {
            digits = "0".repeat(p - digits.len()) + &digits;
        }
    }
    let head = format!("{sign}{prefix}");
    pad(
        out,
        s,
        &head,
        digits.as_bytes(),
        s.zero && s.precision.is_none(),
    );
}

/// Writes `head` and `body` into the field, with zeros between them if `zeros`.
fn pad(out: &mut Vec<u8>, s: &Spec, head: &str, body: &[u8], zeros: bool) {
    let fill = s.width.saturating_sub(head.len() + body.len());
    let (before, between, after) = match (s.left, zeros) {
        (true, _) => (0, 0, fill),
        (_, true) => (0, fill, 0),
        _ => (fill, 0, 0),
    };
    out.extend(std::iter::repeat_n(b' ', before));
    out.extend_from_slice(head.as_bytes());
    out.extend(std::iter::repeat_n(b'0', between));
    out.extend_from_slice(body);
    out.extend(std::iter::repeat_n(b' ', after));
}

fn float(out: &mut Vec<u8>, s: &Spec, conv: u8, v: f64) {
    let upper = conv.is_ascii_uppercase();
    let sign = sign(s, v.is_sign_negative());
    let x = v.abs();
    if !x.is_finite() {
        let text = match (x.is_nan(), upper) {
            (true, false) => "nan",
            (true, true) => "NAN",
            (false, false) => "inf",
            (false, true) => "INF",
        };
        return pad(out, s, sign, text.as_bytes(), false);
    }
    let p = s.precision.unwrap_or(6);
    let (head, mut body) = match conv.to_ascii_lowercase() {
        b'f' => ("", fixed(x, p, s.alt)),
        b'e' => ("", exponent(x, p, s.alt)),
        b'g' => ("", general(x, p, s.alt)),
        _ => ("0x", hex(x, s.precision, s.alt)),
    };
    let mut head = format!("{sign}{head}");
    if upper {
        body.make_ascii_uppercase();
        head.make_ascii_uppercase();
    }
    pad(out, s, &head, body.as_bytes(), s.zero);
}

fn fixed(x: f64, p: usize, alt: bool) -> String {
    let dot = if alt && p == 0 { "." } else { "" };
    format!("{x:.p$}{dot}")
}

fn exponent(x: f64, p: usize, alt: bool) -> String {
    let text = format!("{x:.p$e}");
    let (m, e) = text.split_once('e').unwrap_or((&text, "0"));
    let e: i32 = e.parse().unwrap_or(0);
    let dot = if alt && p == 0 { "." } else { "" };
    let s = if e < 0 { '-' } else { '+' };
    format!("{m}{dot}e{s}{:02}", e.abs())
}

fn general(x: f64, p: usize, alt: bool) -> String {
    let p = p.max(1);
    let sci = format!("{x:.*e}", p - 1);
    let e: i32 = sci
        .split_once('e')
        .and_then(|(_, e)| e.parse().ok())
        .unwrap_or(0);
    if e >= -4 && e < p as i32 {
        let text = fixed(x, (p as i32 - 1 - e) as usize, alt);
        return if alt { text } else { trim(&text) };
    }
    let text = exponent(x, p - 1, alt);
    match text.split_once('e') {
        Some((m, e)) if !alt => format!("{}e{e}", trim(m)),
        _ => text,
    }
}

fn trim(text: &str) -> String {
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_string()
    } else {
        text.to_string()
    }
}

fn hex(x: f64, precision: Option<usize>, alt: bool) -> String {
    let bits = x.to_bits();
    let frac = bits & ((1 << 52) - 1);
    let raw = (bits >> 52 & 0x7ff) as i32;
    let (mut lead, e) = match (raw, frac) {
        (0, 0) => (0u64, 0),
        (0, _) => (0, -1022),
        _ => (1, raw - 1023),
    };
    let mut digits = frac;
    let shown = match precision {
        Some(p) if p < 13 => {
            let cut = 52 - 4 * p as u32;
            let all = lead << 52 | frac;
            let (half, rest) = (1u64 << (cut - 1), all & ((1 << cut) - 1));
            let mut kept = all >> cut;
            if rest > half || (rest == half && kept & 1 != 0) {
                kept += 1;
            }
            lead = kept >> (52 - cut);
            digits = kept & ((1 << (52 - cut)) - 1);
            if p == 0 {
                String::new()
            } else {
                format!("{digits:0p$x}")
            }
        }
        Some(p) => format!("{digits:013x}{}", "0".repeat(p - 13)),
        None => format!("{digits:013x}").trim_end_matches('0').to_string(),
    };
    let dot = if shown.is_empty() && !alt { "" } else { "." };
    let s = if e < 0 { '-' } else { '+' };
    format!("{lead}{dot}{shown}p{s}{}", e.abs())
}
