//! Splits bytes into tokens.
//!
//! The lexer works on bytes instead of text, because comments and file names may hold any bytes;
//! identifiers and numbers are ASCII by the grammar. Tokens borrow from the input and the lexer
//! allocates nothing, so that a hostile image costs no further memory. The lexer is `Copy`: the
//! parser looks ahead by lexing on a copy.

use super::ParseError;

/// The kind of a token. Its text is borrowed from the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// `[a-zA-Z_$%][a-zA-Z0-9_$]*`: a name, an opcode's first word, or `_`.
    Ident(&'a str),
    /// `.word`, without the dot. `::` is part of the word (`.L2::128B`).
    Dot(&'a str),
    /// A number as written; [`super::number`] computes the value.
    Number(&'a str),
    /// A string, without its contents: no directive that affects execution has a string.
    Str,
    /// Any other character.
    Punct(u8),
    /// End of the input.
    End,
}

impl std::fmt::Display for Kind<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Kind::Ident(s) | Kind::Number(s) => write!(f, "`{}`", clip(s)),
            Kind::Dot(s) => write!(f, "`.{}`", clip(s)),
            Kind::Str => f.write_str("a string"),
            Kind::Punct(c) if c.is_ascii_graphic() => write!(f, "`{}`", char::from(*c)),
            Kind::Punct(c) => write!(f, "byte 0x{c:02x}"),
            Kind::End => f.write_str("the end of the text"),
        }
    }
}

/// The start of a name for an error message, because a hostile name can be megabytes long. Names
/// are ASCII, so any byte is a character boundary.
fn clip(s: &str) -> &str {
    s.get(..80).unwrap_or(s)
}

/// A token and its position.
#[derive(Debug, Clone, Copy)]
pub(super) struct Token<'a> {
    pub(super) kind: Kind<'a>,
    pub(super) line: u32,
}

/// A cursor over the input.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lexer<'a> {
    text: &'a [u8],
    pos: usize,
    line: u32,
}

fn is_name_start(c: u8) -> bool {
    c.is_ascii_alphabetic() || matches!(c, b'_' | b'$' | b'%')
}

fn is_name(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$')
}

impl<'a> Lexer<'a> {
    /// Starts at the first byte. The PTX ends at the first NUL, because the driver's functions take
    /// a C string.
    pub(super) fn new(text: &'a [u8]) -> Self {
        let end = text.iter().position(|&c| c == 0).unwrap_or(text.len());
        Lexer {
            text: &text[..end],
            pos: 0,
            line: 1,
        }
    }

    fn at(&self, ahead: usize) -> u8 {
        self.text.get(self.pos + ahead).copied().unwrap_or(0)
    }

    /// The next token. At the end, every call returns [`Kind::End`].
    pub(super) fn next(&mut self) -> Result<Token<'a>, ParseError> {
        self.skip_blank()?;
        let line = self.line;
        let Some(&c) = self.text.get(self.pos) else {
            return Ok(Token {
                kind: Kind::End,
                line,
            });
        };
        let kind = match c {
            c if is_name_start(c) => {
                let start = self.pos;
                self.pos += 1;
                Kind::Ident(self.take_name(start))
            }
            b'0'..=b'9' => self.number(),
            b'.' if is_name(self.at(1)) => self.dot_word(),
            b'"' => self.string()?,
            c => {
                self.pos += 1;
                Kind::Punct(c)
            }
        };
        Ok(Token { kind, line })
    }

    /// Skips the rest of the current line (`@@DWARF …`).
    pub(super) fn skip_line(&mut self) {
        while self.pos < self.text.len() && self.text[self.pos] != b'\n' {
            self.pos += 1;
        }
    }

    fn slice(&self, start: usize) -> &'a str {
        // Names and numbers consist of ASCII bytes, so the fallback is never used.
        std::str::from_utf8(&self.text[start..self.pos]).unwrap_or("")
    }

    fn take_name(&mut self, start: usize) -> &'a str {
        while is_name(self.at(0)) {
            self.pos += 1;
        }
        self.slice(start)
    }

    fn dot_word(&mut self) -> Kind<'a> {
        self.pos += 1;
        let start = self.pos;
        loop {
            while is_name(self.at(0)) {
                self.pos += 1;
            }
            if self.at(0) == b':' && self.at(1) == b':' && is_name(self.at(2)) {
                self.pos += 2;
            } else {
                return Kind::Dot(self.slice(start));
            }
        }
    }

    fn number(&mut self) -> Kind<'a> {
        let start = self.pos;
        while self.at(0).is_ascii_alphanumeric() {
            self.pos += 1;
        }
        let decimal = self.text[start..self.pos].iter().all(u8::is_ascii_digit);
        if decimal && self.at(0) == b'.' && self.at(1).is_ascii_digit() {
            self.pos += 1;
            while self.at(0).is_ascii_alphanumeric() {
                self.pos += 1;
            }
        }
        let exponent = self.text[start..self.pos].split(|c| matches!(c, b'e' | b'E'));
        let bare = exponent.clone().count() == 2
            && exponent.flatten().all(|c| c.is_ascii_digit() || *c == b'.')
            && matches!(self.text[self.pos - 1], b'e' | b'E');
        if bare && matches!(self.at(0), b'+' | b'-') && self.at(1).is_ascii_digit() {
            self.pos += 1;
            while self.at(0).is_ascii_digit() {
                self.pos += 1;
            }
        }
        Kind::Number(self.slice(start))
    }

    fn string(&mut self) -> Result<Kind<'a>, ParseError> {
        let line = self.line;
        self.pos += 1;
        loop {
            match self.text.get(self.pos) {
                None => return Err(ParseError::new(line, "this string has no closing quote")),
                Some(b'"') => break,
                Some(b'\\') => self.pos += 1,
                Some(b'\n') => self.line = self.line.saturating_add(1),
                Some(_) => {}
            }
            self.pos += 1;
        }
        self.pos += 1;
        Ok(Kind::Str)
    }

    fn skip_blank(&mut self) -> Result<(), ParseError> {
        loop {
            match self.at(0) {
                b'\n' => {
                    self.line = self.line.saturating_add(1);
                    self.pos += 1;
                }
                b' ' | b'\t' | b'\r' | 0x0b | 0x0c => self.pos += 1,
                b'/' if self.at(1) == b'/' => self.skip_line(),
                b'/' if self.at(1) == b'*' => self.skip_comment()?,
                _ => return Ok(()),
            }
        }
    }

    fn skip_comment(&mut self) -> Result<(), ParseError> {
        let line = self.line;
        self.pos += 2;
        while !(self.at(0) == b'*' && self.at(1) == b'/') {
            if self.pos >= self.text.len() {
                return Err(ParseError::new(line, "this comment has no `*/`"));
            }
            if self.at(0) == b'\n' {
                self.line = self.line.saturating_add(1);
            }
            self.pos += 1;
        }
        self.pos += 2;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<String> {
        let mut lexer = Lexer::new(text.as_bytes());
        let mut out = Vec::new();
        loop {
            let token = lexer.next().unwrap();
            if token.kind == Kind::End {
                return out;
            }
            out.push(format!("{}:{}", token.line, token.kind));
        }
    }

    #[test]
    fn splits_names_words_and_numbers() {
        assert_eq!(
            kinds("ld.global.L2::128B %r1, [%rd2+-4]; // c\n0x1Fu 1.5e-3 1e+2 8.7 \"a\\\"\n\" $L:"),
            [
                "1:`ld`",
                "1:`.global`",
                "1:`.L2::128B`",
                "1:`%r1`",
                "1:`,`",
                "1:`[`",
                "1:`%rd2`",
                "1:`+`",
                "1:`-`",
                "1:`4`",
                "1:`]`",
                "1:`;`",
                "2:`0x1Fu`",
                "2:`1.5e-3`",
                "2:`1e+2`",
                "2:`8.7`",
                "2:a string",
                "3:`$L`",
                "3:`:`"
            ]
        );
    }

    #[test]
    fn hexadecimal_e_is_not_an_exponent() {
        assert_eq!(kinds("0x1e+4"), ["1:`0x1e`", "1:`+`", "1:`4`"]);
    }

    #[test]
    fn ends_at_nul_and_reports_open_comments_and_strings() {
        assert_eq!(kinds("a /* x\n */ b\0 c"), ["1:`a`", "2:`b`"]);
        assert!(Lexer::new(b"\n/* x").next().is_err_and(|e| e.line == 2));
        assert!(Lexer::new(b"\"abc").next().is_err());
        assert!(Lexer::new(b"\"abc\\").next().is_err());
    }
}
