//! Values of PTX literals (PTX ISA, "Constants").

/// A literal's value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Literal {
    /// Decimal, hexadecimal (`0x`), octal (`0…`) or binary (`0b`), with an optional `U`.
    Int(u64),
    /// `0fXXXXXXXX`: bits of a single.
    Single(u32),
    /// `0dXXXXXXXXXXXXXXXX`: bits of a double.
    Double(u64),
    /// Decimal float, which the grammar defines as a double.
    Decimal(f64),
}

/// The value of a number token of the lexer; `None` if the token is not a literal.
pub(super) fn literal(text: &str) -> Option<Literal> {
    let bytes = text.as_bytes();
    let second = bytes.get(1).map(u8::to_ascii_lowercase);
    if bytes.first() == Some(&b'0') {
        match second {
            Some(b'f') => return hex(&text[2..], 8).map(|v| Literal::Single(v as u32)),
            Some(b'd') => return hex(&text[2..], 16).map(Literal::Double),
            _ => {}
        }
    }
    let digits = text.strip_suffix(['U', 'u']).unwrap_or(text);
    let (digits, radix) = match second {
        Some(b'x') if bytes[0] == b'0' => (&digits[2..], 16),
        Some(b'b') if bytes[0] == b'0' => (&digits[2..], 2),
        Some(b'0'..=b'9') if bytes[0] == b'0' => (&digits[1..], 8),
        _ => (digits, 10),
    };
    if !digits.is_empty() && digits.bytes().all(|c| char::from(c).is_digit(radix)) {
        return u64::from_str_radix(digits, radix).ok().map(Literal::Int);
    }
    let float = digits
        .bytes()
        .all(|c| c.is_ascii_digit() || b".eE+-".contains(&c));
    (float && digits == text).then(|| text.parse().ok().map(Literal::Decimal))?
}

fn hex(digits: &str, count: usize) -> Option<u64> {
    let good = digits.len() == count && digits.bytes().all(|c| c.is_ascii_hexdigit());
    good.then(|| u64::from_str_radix(digits, 16).ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_every_radix() {
        for (text, value) in [
            ("0", 0),
            ("42", 42),
            ("42U", 42),
            ("0x1F", 31),
            ("0XfFu", 255),
            ("017", 15),
            ("0b101U", 5),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(literal(text), Some(Literal::Int(value)), "{text}");
        }
    }

    #[test]
    fn floats_keep_their_bits() {
        assert_eq!(literal("0f7FA00001"), Some(Literal::Single(0x7fa0_0001)));
        assert_eq!(
            literal("0d7FF0000000000001"),
            Some(Literal::Double(0x7ff0_0000_0000_0001))
        );
        assert_eq!(literal("1.5e-3"), Some(Literal::Decimal(1.5e-3)));
        assert_eq!(literal("1e+2"), Some(Literal::Decimal(100.0)));
    }

    #[test]
    fn malformed_literals_are_refused() {
        for text in [
            "0x",
            "0f123",
            "0fXYZXYZXY",
            "08",
            "12ab",
            "18446744073709551616",
            "0b2",
            "1.5U",
            "U",
        ] {
            assert_eq!(literal(text), None, "{text}");
        }
    }
}
