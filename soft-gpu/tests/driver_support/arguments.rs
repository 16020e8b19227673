//! Arguments as a C program passes them, made by functions with the names of their types.

#![allow(non_snake_case, dead_code)]

use std::ffi::c_char;

pub(crate) use vgpu_cuda_abi::args::{In, Out, StreamArg, Text};

/// An argument to read from.
pub(crate) fn In<T>(pointer: *const T) -> In<T> {
    // SAFETY: tests pass what the function that they call reads.
    unsafe { In::new(pointer) }
}

/// An argument to write to.
pub(crate) fn Out<T>(pointer: *mut T) -> Out<T> {
    // SAFETY: tests pass as much room as the function that they call writes.
    unsafe { Out::new(pointer) }
}

/// A text.
pub(crate) fn Text(pointer: *const c_char) -> Text {
    // SAFETY: tests pass texts that end with a NUL.
    unsafe { Text::new(pointer) }
}
