//! Argument types of the C functions: pointers that know whether they may be null.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use crate::driver::copy::Mode;
use crate::driver::error::{CuError, Result};
use crate::driver::stream::Stream;
use crate::driver::stream_table;

/// A pointer that the function writes one value through.
#[repr(transparent)]
pub struct Out<T>(pub *mut T);

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> Out<T> {
    /// Writes the value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn set(self, value: T) -> Result {
        if self.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: the API's contract: a non-null out pointer is valid for a write of T.
        unsafe { self.0.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Fails early, before the call has effects.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn check(self) -> Result {
        if self.0.is_null() {
            Err(CuError::INVALID_VALUE)
        } else {
            Ok(())
        }
    }

    /// True for null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }

    /// Writes the values in a row.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn set_all(self, values: impl IntoIterator<Item = T>) -> Result {
        self.check()?;
        for (i, value) in values.into_iter().enumerate() {
            // SAFETY: the API's contract: the array has room for as many values as were asked for.
            unsafe { self.0.add(i).write_unaligned(value) };
        }
        Ok(())
    }
}

/// A pointer that the function reads values from.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct In<T>(pub *const T);

impl<T: Copy> In<T> {
    /// Reads the first value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn get(self) -> Result<T> {
        self.at(0)
    }

    /// Reads the value at `index`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn at(self, index: usize) -> Result<T> {
        if self.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: the API's contract: a non-null array has as many elements as its count says.
        Ok(unsafe { self.0.add(index).read_unaligned() })
    }

    /// True for null.
    pub fn is_null(self) -> bool {
        self.0.is_null()
    }
}

/// A NUL-terminated name.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text(pub *const c_char);

impl Text {
    /// The name; bytes that are no UTF-8 name nothing of ours and are replaced.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn get(self) -> Result<String> {
        if self.0.is_null() {
            return Err(CuError::INVALID_VALUE);
        }
        // SAFETY: the API's contract: a non-null name is NUL-terminated.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}

/// Copies `text` with a NUL into a buffer of `len` bytes, cut to fit.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for null or no room.
pub fn put_text(buffer: Out<u8>, len: i32, text: &str) -> Result {
    let room = usize::try_from(len)
        .ok()
        .filter(|n| *n > 0)
        .ok_or(CuError::INVALID_VALUE)?;
    let kept = text.as_bytes().iter().copied().take(room - 1);
    buffer.set_all(kept.chain([0]))
}

/// What handle 0 means in an entry point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Default {
    /// The legacy NULL stream.
    Legacy,
    /// The calling thread's stream (`_ptds`, `_ptsz`).
    PerThread,
}

impl Default {
    /// The stream for functions without a stream argument.
    ///
    /// # Errors
    /// No current context.
    pub fn stream(self) -> Result<Arc<Stream>> {
        StreamArg(0).get(self)
    }
}

/// A CUstream argument.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct StreamArg(pub u64);

impl StreamArg {
    /// The stream.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, no current context, or a poisoned process.
    pub fn get(self, default: Default) -> Result<Arc<Stream>> {
        crate::driver::healthy()?;
        stream_table::resolve(match (self.0, default) {
            (0, Default::PerThread) => stream_table::PER_THREAD_HANDLE,
            (handle, _) => handle,
        })
    }
}

/// `Mode` by name, for tables of functions.
pub const SYNC: Mode = Mode::Sync;
/// See [`SYNC`].
pub const ASYNC: Mode = Mode::Async;
