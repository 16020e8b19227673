//! PTX text: its parsed form and the parser.
//!
//! [`parse`] takes what a program handed to `cuModuleLoadData`: hostile bytes. It never panics,
//! does not recurse with the input's nesting, and what it allocates is bounded by the text's length
//! plus [`MAX_REGISTERS`] names and [`MAX_PADDING`] initialiser elements.

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

/// Most registers in one module, ranges (`%r<100>`) expanded, beside one for every [`REGISTER_TEXT`] bytes of it.
pub const MAX_REGISTERS: usize = 1 << 20;

/// Bytes of text for which a module may have a further register: libraries have modules of 46 MB with more than a million.
pub const REGISTER_TEXT: usize = 16;

/// Most zero elements that inner braces of initialisers may stand for in one module.
pub const MAX_PADDING: usize = 1 << 20;

/// Largest variable in bytes.
pub const MAX_VARIABLE: u64 = 1 << 40;

/// Deepest nesting of `{ }` scopes in a body.
pub const MAX_SCOPES: usize = 256;

/// Why a text was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseError {
    /// Source line, counted from 1.
    pub line: u32,
    /// A sentence without the line.
    pub message: String,
    /// True where the text is valid PTX that is not served (textures, aliases, 32-bit addresses),
    /// false where it is not PTX.
    pub unsupported: bool,
}

impl ParseError {
    /// The text is not PTX.
    pub(crate) fn new(line: u32, message: impl Into<String>) -> Self {
        ParseError {
            line,
            message: message.into(),
            unsupported: false,
        }
    }

    /// The text is PTX that is not served.
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

/// Parses one PTX module. The text ends at its first NUL, if it has one.
///
/// Opcodes, and names that no scope of a body declares, are left for the loader to check.
pub fn parse(text: &[u8]) -> Result<ast::Module, ParseError> {
    module::parse(text)
}
