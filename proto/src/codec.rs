//! The encoding of arguments: bincode 2.0.1, fixed-width little-endian integers, bounded.
//!
//! No other file encodes or decodes with bincode. vgpu-cuda-abi only derives the traits of bincode.
//! Decoding refuses trailing bytes. A length inside the data never causes an allocation beyond the
//! bound of the message.

use bincode::config::{Configuration, Fixint, Limit, LittleEndian};
pub use bincode::{Decode, Encode};

use crate::limits::MAX_ARGS;

/// The reason for which bytes are not a valid value.
#[derive(Debug, thiserror::Error)]
pub enum CodecError {
    /// Truncated, over the limit, an unknown variant, not UTF-8, …
    #[error("malformed message: {0}")]
    Malformed(String),
    /// Bytes after the value.
    #[error("malformed message: {0} trailing bytes")]
    Trailing(usize),
}

type Config = Configuration<LittleEndian, Fixint, Limit<MAX_ARGS>>;

fn config() -> Config {
    bincode::config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<MAX_ARGS>()
}

/// Appends the encoding of `value` to `out`.
///
/// # Errors
/// If the encoding would exceed [`MAX_ARGS`] bytes; `out` is then unchanged.
pub fn encode_into<T: Encode>(value: &T, out: &mut Vec<u8>) -> Result<(), CodecError> {
    let start = out.len();
    match bincode::encode_into_std_write(value, out, config()) {
        Ok(_) if out.len() - start <= MAX_ARGS => Ok(()),
        Ok(n) => {
            out.truncate(start);
            Err(CodecError::Malformed(format!(
                "{n} bytes of arguments, at most {MAX_ARGS}"
            )))
        }
        Err(e) => {
            out.truncate(start);
            Err(CodecError::Malformed(e.to_string()))
        }
    }
}

/// The encoding of `value`.
///
/// # Errors
/// As [`encode_into`].
pub fn encode<T: Encode>(value: &T) -> Result<Vec<u8>, CodecError> {
    let mut out = Vec::new();
    encode_into(value, &mut out)?;
    Ok(out)
}

/// Decodes all of `bytes`.
///
/// # Errors
/// If the bytes are not exactly one value of `T`.
pub fn decode<T: Decode<()>>(bytes: &[u8]) -> Result<T, CodecError> {
    let (value, used) = bincode::decode_from_slice(bytes, config())
        .map_err(|e| CodecError::Malformed(e.to_string()))?;
    match bytes.len() - used {
        0 => Ok(value),
        left => Err(CodecError::Trailing(left)),
    }
}
