//! PTX text: its parsed form and the parser.
//!
//! [`parse`] reads the bytes that a program passes to `cuModuleLoadData`, which are hostile. It
//! never panics and does not recurse with the nesting of the input. Its allocations are bounded by
//! the length of the input, [`MAX_REGISTERS`] names and [`MAX_PADDING`] initialiser elements.

pub mod ast;
mod body;
mod declare;
mod lexer;
mod module;
mod number;
mod operand;
mod scope;
mod stream;
#[cfg(test)]
mod tests;

/// The newest major version of PTX that is read. CUDA 13.5 writes 9.5.
pub const NEWEST_MAJOR: u32 = 9;

/// Most registers in one module: this number, plus one for every [`REGISTER_TEXT`] bytes of text. A
/// range (`%r<100>`) counts as 100 registers.
pub const MAX_REGISTERS: usize = 1 << 20;

/// Bytes of text that raise the limit of registers by one: libraries have modules of 46 MB with
/// more than a million registers.
pub const REGISTER_TEXT: usize = 16;

/// Most zero elements that the parser adds to short inner braces of initialisers in one module.
pub const MAX_PADDING: usize = 1 << 20;

/// Largest variable in bytes.
pub const MAX_VARIABLE: u64 = 1 << 40;

/// Deepest nesting of `{ }` scopes in a body.
pub const MAX_SCOPES: usize = 256;

/// Reason for the refusal of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Source line, from 1.
    pub line: u32,
    /// Message, without the line.
    pub message: String,
    /// Whether the input is valid PTX with an unsupported feature (textures, aliases, 32-bit
    /// addresses), instead of invalid PTX.
    pub unsupported: bool,
}

impl ParseError {
    /// An error for invalid PTX.
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        ParseError {
            line,
            message: message.into(),
            unsupported: false,
        }
    }

    /// An error for valid PTX with an unsupported feature.
    pub(crate) fn unsupported(line: u32, message: impl Into<String>) -> Self {
        ParseError {
            line,
            message: message.into(),
            unsupported: true,
        }
    }
}

impl std::fmt::Display for ParseError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PTX line {}: {}", self.line, self.message)
    }
}

impl std::error::Error for ParseError {}

/// Parses one PTX module. The PTX ends at the first NUL in `text`, if there is one.
///
/// The loader, not the parser, checks opcodes, and names that no scope of a body declares.
pub fn parse(text: &[u8]) -> Result<ast::Module, ParseError> {
    module::parse(text)
}
