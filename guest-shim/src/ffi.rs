//! The C boundary: no unwinding, no null dereference, one way to declare an export.

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use vgpu_proto::cuda::CuResult;

use crate::{Cu, log};

/// Which stream the handle 0 means in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultStream {
    /// The NULL stream of the context (plain symbols).
    Legacy,
    /// The calling thread's own stream (symbols ending in `_ptds` or `_ptsz`).
    PerThread,
}

/// Runs the body of an export; a panic becomes CUDA_ERROR_UNKNOWN, because unwinding out of a C
/// function would abort the program. Why it fails is said, where that is known.
pub(crate) fn guard(name: &str, body: impl FnOnce() -> Cu) -> u32 {
    let run = || body().inspect_err(|code| log::refusal::say(name, *code));
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => CuResult::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => {
            log::line(
                log::Level::Error,
                &format!("{name} failed inside the library (a bug; please report it)"),
            );
            CuResult::UNKNOWN.0
        }
    }
}

/// Writes a result through a pointer of the caller.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if it is null.
///
/// # Safety
/// `out` is null or valid for writing a `T`; it need not be aligned.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Cu {
    if out.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// As [`put`], for results that the caller may leave out.
///
/// # Safety
/// As [`put`].
pub(crate) unsafe fn put_optional<T>(out: *mut T, value: T) {
    if !out.is_null() {
        // SAFETY: not null, and valid by this function's contract.
        unsafe { out.write_unaligned(value) };
    }
}

/// Fails at once where a result has nowhere to go, before anything is done.
pub(crate) fn required<T>(pointer: *const T) -> Cu {
    if pointer.is_null() {
        Err(CuResult::INVALID_VALUE)
    } else {
        Ok(())
    }
}

/// One of two results may be left out, and not both.
///
/// # Errors
/// `CUDA_ERROR_INVALID_VALUE`.
pub(crate) fn one_required<T, U>(first: *const T, second: *const U) -> Cu {
    match first.is_null() {
        true => required(second),
        false => Ok(()),
    }
}

/// A name of the caller.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if null, CUDA_ERROR_NOT_FOUND if it is no UTF-8 (no symbol is).
///
/// # Safety
/// `name` is null or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(name: *const c_char) -> Cu<&'a str> {
    required(name)?;
    // SAFETY: not null, and NUL-terminated by this function's contract.
    unsafe { CStr::from_ptr(name) }
        .to_str()
        .map_err(|_| CuResult::NOT_FOUND)
}

/// Declares exports. `fn cuA(…) { … }` is one symbol; `fn cuA / cuA_v2(…) { … }` is two that do the same;
/// `fn cuA / cuA_ptsz [mode] (…) { … }` is two that differ in what stream 0 means, which the body finds in `mode`.
macro_rules! exports {
    () => {};
    ($(#[$doc:meta])* fn $name:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::ffi::exports!(@one [$(#[$doc])*] $name [] ($($arg: $ty),*) $body);
        $crate::ffi::exports!($($rest)*);
    };
    ($(#[$doc:meta])* fn $name:ident / $same:ident ($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::ffi::exports!(@one [$(#[$doc])*] $name [] ($($arg: $ty),*) $body);
        $crate::ffi::exports!(@one [$(#[$doc])*] $same [] ($($arg: $ty),*) $body);
        $crate::ffi::exports!($($rest)*);
    };
    ($(#[$doc:meta])* fn $name:ident / $per_thread:ident [$mode:ident]
        ($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::ffi::exports!(@one [$(#[$doc])*] $name [$mode = Legacy] ($($arg: $ty),*) $body);
        $crate::ffi::exports!(@one [$(#[$doc])*] $per_thread [$mode = PerThread] ($($arg: $ty),*) $body);
        $crate::ffi::exports!($($rest)*);
    };
    (@one [$(#[$doc:meta])*] $name:ident [$($mode:ident = $value:ident)?] ($($arg:ident: $ty:ty),*) $body:block) => {
        $(#[$doc])*
        ///
        /// # Safety
        /// As CUDA's documentation of the function says: pointers are null or valid for what they
        /// point to.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
            $(let $mode = $crate::ffi::DefaultStream::$value;)?
            let run = move || $crate::ffi::guard(stringify!($name), move || $body);
            if $crate::observe::on() {
                return $crate::observe::call(
                    stringify!($name),
                    &[$((stringify!($arg), &$arg as &dyn $crate::observe::gist::Gist)),*],
                    run,
                );
            }
            run()
        }
    };
}
pub(crate) use exports;
