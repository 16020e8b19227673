//! Arguments of calls, as a C program passes them. Each function has the name of the argument's
//! type.

#![allow(non_snake_case, dead_code)]

use std::ffi::c_char;

pub(crate) use vgpu_cuda_abi::args::{In, Out, StreamArg, Text};

/// An argument that the function reads.
pub(crate) fn In<T>(pointer: *const T) -> In<T> {
    // SAFETY: tests pass pointers to memory that the called function may read.
    unsafe { In::new(pointer) }
}

/// An argument that the function writes.
pub(crate) fn Out<T>(pointer: *mut T) -> Out<T> {
    // SAFETY: tests pass pointers to as much memory as the called function writes.
    unsafe { Out::new(pointer) }
}

/// A text argument.
pub(crate) fn Text(pointer: *const c_char) -> Text {
    // SAFETY: tests pass NUL-terminated texts.
    unsafe { Text::new(pointer) }
}
