//! The token cursor that every part of the parser works on.

use super::ParseError;
use super::lexer::{Kind, Lexer, Token};
use super::number::{Literal, literal};

/// One token of lookahead over the lexer.
pub(super) struct Stream<'a> {
    lexer: Lexer<'a>,
    token: Token<'a>,
}

impl<'a> Stream<'a> {
    pub(super) fn new(text: &'a [u8]) -> Result<Self, ParseError> {
        let mut lexer = Lexer::new(text);
        let token = lexer.next()?;
        Ok(Stream { lexer, token })
    }

    /// The current token.
    pub(super) fn peek(&self) -> Kind<'a> {
        self.token.kind
    }

    /// The token after the current one.
    pub(super) fn peek_second(&self) -> Result<Kind<'a>, ParseError> {
        let mut ahead = self.lexer;
        Ok(ahead.next()?.kind)
    }

    /// The current token's line.
    pub(super) fn line(&self) -> u32 {
        self.token.line
    }

    /// Takes the current token.
    pub(super) fn take(&mut self) -> Result<Kind<'a>, ParseError> {
        let kind = self.token.kind;
        self.token = self.lexer.next()?;
        Ok(kind)
    }

    /// Drops the rest of the line of the current token.
    pub(super) fn drop_line(&mut self) -> Result<(), ParseError> {
        self.lexer.skip_line();
        self.take()?;
        Ok(())
    }

    /// An error at the line of the current token.
    pub(super) fn error<T>(&self, message: impl Into<String>) -> Result<T, ParseError> {
        Err(ParseError::new(self.token.line, message))
    }

    /// The error "expected X, found Y" at the current token.
    pub(super) fn expected<T>(&self, what: &str) -> Result<T, ParseError> {
        self.error(format!("expected {what}, found {}", self.token.kind))
    }

    pub(super) fn is(&self, punct: u8) -> bool {
        self.token.kind == Kind::Punct(punct)
    }

    /// Takes `punct` if it is the current token.
    pub(super) fn eat(&mut self, punct: u8) -> Result<bool, ParseError> {
        let found = self.is(punct);
        if found {
            self.take()?;
        }
        Ok(found)
    }

    pub(super) fn expect(&mut self, punct: u8) -> Result<(), ParseError> {
        if self.eat(punct)? {
            return Ok(());
        }
        self.expected(&format!("`{}`", char::from(punct)))
    }

    pub(super) fn ident(&mut self, what: &str) -> Result<&'a str, ParseError> {
        match self.token.kind {
            Kind::Ident(name) => {
                self.take()?;
                Ok(name)
            }
            _ => self.expected(what),
        }
    }

    pub(super) fn literal(&mut self) -> Result<Literal, ParseError> {
        let Kind::Number(text) = self.token.kind else {
            return self.expected("a number");
        };
        match literal(text) {
            Some(value) => {
                self.take()?;
                Ok(value)
            }
            None => self.expected("a number"),
        }
    }

    /// Reads a non-negative integer.
    pub(super) fn integer(&mut self) -> Result<u64, ParseError> {
        if let Kind::Number(text) = self.token.kind
            && let Some(Literal::Int(value)) = literal(text)
        {
            self.take()?;
            return Ok(value);
        }
        self.expected("an integer")
    }

    /// Reads a non-negative integer of 32 bits.
    pub(super) fn small(&mut self) -> Result<u32, ParseError> {
        let line = self.line();
        let value = self.integer()?;
        u32::try_from(value)
            .map_err(|_| ParseError::new(line, format!("{value} is too large here")))
    }

    /// Reads an integer with any number of signs: compilers write offsets such as `+-4`.
    pub(super) fn signed(&mut self) -> Result<i64, ParseError> {
        let mut negative = false;
        loop {
            if self.eat(b'-')? {
                negative = !negative;
            } else if !self.eat(b'+')? {
                break;
            }
        }
        // Offsets are added modulo 2^64.
        let value = self.integer()? as i64;
        Ok(if negative {
            value.wrapping_neg()
        } else {
            value
        })
    }
}
