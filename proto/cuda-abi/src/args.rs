//! Types for the arguments of C functions: pointers that may be null, texts, streams.
//!
//! A program calls an exported function with values of these types. `cuda.h` and CUDA's
//! documentation say what the caller guarantees: a non-null pointer is valid for everything that
//! the function reads or writes, an array is as long as its count says, a text ends with a NUL.
//! These guarantees hold for every value that is an argument, or part of a structure behind an
//! argument. Rust code can make a non-null value only with an `unsafe` function.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::fmt;
use std::os::unix::ffi::OsStrExt as _;

use crate::CuResult;

type Result<T = ()> = std::result::Result<T, CuResult>;

/// A pointer through which a function reads values.
#[repr(transparent)]
pub struct In<T> {
    pointer: *const T,
}

/// A pointer through which a function writes values. If CUDA's documentation says that an argument
/// is read first, [`Out::get`] reads the value.
#[repr(transparent)]
pub struct Out<T> {
    pointer: *mut T,
}

/// A NUL-terminated text of the program.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Text {
    pointer: *const c_char,
}

impl<T> Clone for In<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for In<T> {}

impl<T> Clone for Out<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Out<T> {}

impl<T> fmt::Debug for In<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.pointer, f)
    }
}

impl<T> fmt::Debug for Out<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.pointer, f)
    }
}

// SAFETY: the pointer points to memory of the program. The program calls the functions that use the
// pointer from threads of its choice, and guarantees that this is valid.
unsafe impl<T> Send for In<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for In<T> {}
// SAFETY: as above.
unsafe impl<T> Send for Out<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Out<T> {}

fn not_null(is_null: bool) -> Result {
    match is_null {
        true => Err(CuResult::INVALID_VALUE),
        false => Ok(()),
    }
}

impl<T> In<T> {
    /// A null pointer.
    pub const NULL: In<T> = In {
        pointer: std::ptr::null(),
    };

    /// The pointer that a program passed.
    ///
    /// # Safety
    /// `pointer` is null or valid for reads, for as long as the value is used, of as many `T` as
    /// the function reads.
    pub const unsafe fn new(pointer: *const T) -> In<T> {
        In { pointer }
    }

    /// True for null.
    pub fn is_null(self) -> bool {
        self.pointer.is_null()
    }

    /// The pointer.
    pub fn pointer(self) -> *const T {
        self.pointer
    }

    /// Fails for a null pointer, before the call has effects.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn check(self) -> Result {
        not_null(self.is_null())
    }
}

impl<T: Copy> In<T> {
    /// Reads the value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn get(self) -> Result<T> {
        self.at(0)
    }

    /// Reads an element of an array.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn at(self, index: usize) -> Result<T> {
        self.check()?;
        // SAFETY: by the caller's promise, a non-null array has the element, which need not be
        // aligned.
        Ok(unsafe { self.pointer.add(index).read_unaligned() })
    }

    /// Reads the value; `None` for null.
    pub fn given(self) -> Option<T> {
        self.get().ok()
    }

    /// Reads an array of `count` elements, which may be null if `count` is 0.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn list(self, count: usize) -> Result<Vec<T>> {
        (0..count).map(|index| self.at(index)).collect()
    }
}

impl In<c_void> {
    /// Converts an argument of type `const void *` to the type that the documentation names.
    pub fn of<T>(self) -> In<T> {
        In {
            pointer: self.pointer.cast(),
        }
    }
}

impl<T> Out<T> {
    /// A null pointer.
    pub const NULL: Out<T> = Out {
        pointer: std::ptr::null_mut(),
    };

    /// The pointer that a program passed.
    ///
    /// # Safety
    /// `pointer` is null or valid for reads and writes, for as long as the value is used, of as
    /// many `T` as the function writes.
    pub const unsafe fn new(pointer: *mut T) -> Out<T> {
        Out { pointer }
    }

    /// True for null.
    pub fn is_null(self) -> bool {
        self.pointer.is_null()
    }

    /// The pointer.
    pub fn pointer(self) -> *mut T {
        self.pointer
    }

    /// Fails for a null pointer, before the call has effects.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn check(self) -> Result {
        not_null(self.is_null())
    }

    /// Fails if both of two optional result pointers are null.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if both pointers are null.
    pub fn check_either<U>(self, other: Out<U>) -> Result {
        not_null(self.is_null() && other.is_null())
    }

    /// Writes the value.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn set(self, value: T) -> Result {
        self.check()?;
        // SAFETY: by the caller's promise, a non-null pointer is valid for a write, and need not
        // be aligned.
        unsafe { self.pointer.write_unaligned(value) };
        Ok(())
    }

    /// Writes the value unless the pointer is null.
    pub fn set_if_wanted(self, value: T) {
        let _ = self.set(value);
    }

    /// Writes consecutive values.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn set_all(self, values: impl IntoIterator<Item = T>) -> Result {
        self.check()?;
        for (i, value) in values.into_iter().enumerate() {
            self.element(i).set(value)?;
        }
        Ok(())
    }

    /// The pointer to an element of an array; null if the array is null.
    pub fn element(self, index: usize) -> Out<T> {
        match self.is_null() {
            true => self,
            false => Out {
                pointer: self.pointer.wrapping_add(index),
            },
        }
    }
}

impl<T: Copy> Out<T> {
    /// Reads the value of an argument that the function reads and then writes.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn get(self) -> Result<T> {
        self.input().get()
    }

    /// Reads an element of an array, as [`Out::get`].
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn at(self, index: usize) -> Result<T> {
        self.input().at(index)
    }

    /// The same argument, for reading only.
    pub fn input(self) -> In<T> {
        In {
            pointer: self.pointer.cast_const(),
        }
    }
}

impl Out<c_void> {
    /// Converts an argument of type `void *` to the type that the documentation names.
    pub fn of<T>(self) -> Out<T> {
        Out {
            pointer: self.pointer.cast(),
        }
    }
}

impl Out<c_char> {
    /// Writes a text and a NUL into a buffer of `room` bytes; cuts the text to fit.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the pointer is null or `room` is 0.
    pub fn set_text(self, room: usize, text: &[u8]) -> Result {
        not_null(room == 0)?;
        let kept = text.iter().take(room.saturating_sub(1)).copied();
        self.set_all(kept.chain([0]).map(|byte| byte as c_char))
    }
}

impl Text {
    /// The pointer that a program passed.
    ///
    /// # Safety
    /// `pointer` is null or a NUL-terminated text while the value is used.
    pub const unsafe fn new(pointer: *const c_char) -> Text {
        Text { pointer }
    }

    /// True for null.
    pub fn is_null(&self) -> bool {
        self.pointer.is_null()
    }

    /// Fails for a null pointer, before the call has effects.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn check(&self) -> Result {
        not_null(self.is_null())
    }

    /// The text.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn c_str(&self) -> Result<&CStr> {
        self.check()?;
        // SAFETY: by the caller's promise, a non-null text ends with a NUL.
        Ok(unsafe { CStr::from_ptr(self.pointer) })
    }

    /// The name of a symbol.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null, CUDA_ERROR_NOT_FOUND for invalid UTF-8, because no symbol
    /// has such a name.
    pub fn symbol(&self) -> Result<&str> {
        self.c_str()?.to_str().map_err(|_| CuResult::NOT_FOUND)
    }

    /// The path of a file.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn path(&self) -> Result<&OsStr> {
        Ok(OsStr::from_bytes(self.c_str()?.to_bytes()))
    }

    /// The bytes of the argument as a string, with invalid UTF-8 replaced.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn lossy(&self) -> Result<String> {
        Ok(self.c_str()?.to_string_lossy().into_owned())
    }
}

/// The stream that handle 0 means in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DefaultStream {
    /// The NULL stream of the context (plain symbols).
    Legacy,
    /// The calling thread's own stream (symbols that end in `_ptds` or `_ptsz`).
    PerThread,
}

/// A `CUstream` argument. [`StreamArg::named`] says which stream the handle means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub struct StreamArg(pub u64);

/// The stream that an argument means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Named {
    /// The NULL stream of the current context.
    Null,
    /// The calling thread's own stream.
    PerThread,
    /// A stream that the program created.
    Stream(u64),
}

impl StreamArg {
    /// The default stream of the call.
    pub const DEFAULT: StreamArg = StreamArg(0);
    /// `CU_STREAM_LEGACY`.
    pub const LEGACY: StreamArg = StreamArg(1);
    /// `CU_STREAM_PER_THREAD`.
    pub const PER_THREAD: StreamArg = StreamArg(2);

    /// The stream that the handle means, in a function where handle 0 means `default`.
    pub fn named(self, default: DefaultStream) -> Named {
        match (self, default) {
            (StreamArg::LEGACY, _) | (StreamArg::DEFAULT, DefaultStream::Legacy) => Named::Null,
            (StreamArg::PER_THREAD, _) | (StreamArg::DEFAULT, DefaultStream::PerThread) => {
                Named::PerThread
            }
            (StreamArg(handle), _) => Named::Stream(handle),
        }
    }
}

/// Declares exports. Each export goes to a macro of the library, which is named first: `[name]`.
///
/// `fn cuA(…) { … }` is one symbol. `fn cuA / cuA_v2(…) { … }` is two equal symbols. `fn cuA /
/// cuA_ptsz [mode] (…) { … }` is two symbols that differ in the meaning of stream 0; the body reads
/// the meaning from `mode`, a [`DefaultStream`]. The library's macro gets `[attributes] name [mode
/// = Variant or nothing] (arguments) body` and defines the symbol.
#[macro_export]
macro_rules! exports {
    ([$($one:tt)*]) => {};
    ([$($one:tt)*] $(#[$doc:meta])* fn $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $($one)*! { [$(#[$doc])*] $name [] ($($arg: $ty),*) $body }
        $crate::exports! { [$($one)*] $($rest)* }
    };
    ([$($one:tt)*] $(#[$doc:meta])* fn $name:ident / $same:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block
        $($rest:tt)*) => {
        $($one)*! { [$(#[$doc])*] $name [] ($($arg: $ty),*) $body }
        $($one)*! { [$(#[$doc])*] $same [] ($($arg: $ty),*) $body }
        $crate::exports! { [$($one)*] $($rest)* }
    };
    ([$($one:tt)*] $(#[$doc:meta])* fn $name:ident / $per_thread:ident [$mode:ident]
        ($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $($one)*! { [$(#[$doc])*] $name [$mode = Legacy] ($($arg: $ty),*) $body }
        $($one)*! { [$(#[$doc])*] $per_thread [$mode = PerThread] ($($arg: $ty),*) $body }
        $crate::exports! { [$($one)*] $($rest)* }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn null_is_refused_and_lists_may_be_empty() {
        assert_eq!(In::<u32>::NULL.get(), Err(CuResult::INVALID_VALUE));
        assert_eq!(In::<u32>::NULL.list(0), Ok(Vec::new()));
        assert_eq!(In::<u32>::NULL.list(1), Err(CuResult::INVALID_VALUE));
        assert_eq!(Out::<u32>::NULL.set(1), Err(CuResult::INVALID_VALUE));
        assert!(Out::<u32>::NULL.element(3).is_null());
        let mut place = 7_u32;
        // SAFETY: a local variable.
        let out = unsafe { Out::new(&raw mut place) };
        assert_eq!(Out::<u8>::NULL.check_either(out), Ok(()));
        assert_eq!((out.get(), out.set(8), out.get()), (Ok(7), Ok(()), Ok(8)));
    }

    #[test]
    fn a_text_is_cut_to_fit_with_its_nul() {
        let mut buffer = [b'x' as c_char; 4];
        // SAFETY: a local variable with as many bytes as the test writes.
        let out = unsafe { Out::new(buffer.as_mut_ptr()) };
        out.set_text(4, b"abcdef").expect("room");
        assert_eq!(buffer.map(|c| c as u8), *b"abc\0");
        assert_eq!(out.set_text(0, b"a"), Err(CuResult::INVALID_VALUE));
        // SAFETY: a static text.
        let name = unsafe { Text::new(c"\xff".as_ptr()) };
        assert_eq!(name.symbol(), Err(CuResult::NOT_FOUND));
    }

    #[test]
    fn stream_0_is_what_the_function_says() {
        let of = |handle, default| StreamArg(handle).named(default);
        assert_eq!(of(0, DefaultStream::Legacy), Named::Null);
        assert_eq!(of(0, DefaultStream::PerThread), Named::PerThread);
        assert_eq!(of(1, DefaultStream::PerThread), Named::Null);
        assert_eq!(of(2, DefaultStream::Legacy), Named::PerThread);
        assert_eq!(of(99, DefaultStream::Legacy), Named::Stream(99));
    }
}
