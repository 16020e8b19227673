//! The C boundary: results, null checks, no unwinding, and one macro that declares every export.

use std::ffi::{CStr, c_char, c_uint};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An `nvmlReturn_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Code(pub(crate) u32);

impl Code {
    pub(crate) const SUCCESS: Code = Code(0);
    pub(crate) const UNINITIALIZED: Code = Code(1);
    pub(crate) const INVALID_ARGUMENT: Code = Code(2);
    pub(crate) const NOT_SUPPORTED: Code = Code(3);
    pub(crate) const NO_PERMISSION: Code = Code(4);
    pub(crate) const NOT_FOUND: Code = Code(6);
    pub(crate) const INSUFFICIENT_SIZE: Code = Code(7);
    pub(crate) const DRIVER_NOT_LOADED: Code = Code(9);
    pub(crate) const TIMEOUT: Code = Code(10);
    pub(crate) const VERSION_MISMATCH: Code = Code(18);
    pub(crate) const IN_USE: Code = Code(19);
    pub(crate) const INSUFFICIENT_RESOURCES: Code = Code(23);
    pub(crate) const ARGUMENT_VERSION: Code = Code(25);
    pub(crate) const UNKNOWN: Code = Code(999);
}

/// The texts of the result codes, as in NVML. The last text is for every other code.
pub(crate) const TEXTS: [&CStr; 32] = [
    c"Success",
    c"Uninitialized",
    c"Invalid Argument",
    c"Not Supported",
    c"Insufficient Permissions",
    c"Already Initialized",
    c"Not Found",
    c"Insufficient Size",
    c"Insufficient External Power",
    c"Driver Not Loaded",
    c"Timeout",
    c"Interrupt Request Issue",
    c"NVML Shared Library Not Found",
    c"Function Not Found",
    c"Corrupted infoROM",
    c"GPU is lost",
    c"GPU requires reset",
    c"GPU access blocked by the operating system",
    c"Driver/library version mismatch",
    c"In use by another client",
    c"Insufficient Memory",
    c"No data",
    c"The requested vgpu operation is not available on target device, because ECC is enabled",
    c"Ran out of critical resources, other than memory",
    c"Ran out of critical resources, other than memory",
    c"Argument version mismatch",
    c"The requested functionality has been deprecated",
    c"The system is not ready for the request",
    c"No GPUs were found",
    c"Resource not in correct state to perform requested operation",
    c"Reset not supported for given device/parameters",
    c"Unknown Error",
];

/// A result: the value, or the code that the function returns.
pub(crate) type Ml<T = ()> = Result<T, Code>;

/// Runs the body of an export. A panic becomes NVML_ERROR_UNKNOWN, because unwinding out of a C
/// function would abort the program.
pub(crate) fn guard(body: impl FnOnce() -> Ml) -> u32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => Code::SUCCESS.0,
        Ok(Err(code)) => code.0,
        Err(_) => Code::UNKNOWN.0,
    }
}

/// Writes a result through a pointer of the caller.
///
/// # Errors
/// NVML_ERROR_INVALID_ARGUMENT if the pointer is null.
///
/// # Safety
/// `out` is null or valid for writing a `T`; it need not be aligned.
pub(crate) unsafe fn put<T>(out: *mut T, value: T) -> Ml {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and valid by this function's contract.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Reads the value behind a pointer of the caller.
///
/// # Errors
/// NVML_ERROR_INVALID_ARGUMENT if the pointer is null.
///
/// # Safety
/// `from` is null or valid for reading a `T`; it need not be aligned.
pub(crate) unsafe fn get<T: Copy>(from: *const T) -> Ml<T> {
    if from.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and valid by this function's contract.
    Ok(unsafe { from.read_unaligned() })
}

/// A text of the caller.
///
/// # Errors
/// NVML_ERROR_INVALID_ARGUMENT if the text is null or not UTF-8.
///
/// # Safety
/// `text` is null or a NUL-terminated string.
pub(crate) unsafe fn text<'a>(text: *const c_char) -> Ml<&'a str> {
    if text.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    // SAFETY: not null, and NUL-terminated by this function's contract.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Code::INVALID_ARGUMENT)
}

/// Writes a text and a NUL into a buffer of the caller.
///
/// # Errors
/// NVML_ERROR_INVALID_ARGUMENT if the buffer is null, NVML_ERROR_INSUFFICIENT_SIZE if the text does
/// not fit.
///
/// # Safety
/// `out` is null or valid for writing `len` bytes.
pub(crate) unsafe fn put_text(out: *mut c_char, len: c_uint, text: &str) -> Ml {
    if out.is_null() {
        return Err(Code::INVALID_ARGUMENT);
    }
    if text.len() >= len as usize {
        return Err(Code::INSUFFICIENT_SIZE);
    }
    // SAFETY: there is room for the text and its NUL.
    unsafe {
        std::ptr::copy_nonoverlapping(text.as_ptr().cast(), out, text.len());
        out.add(text.len()).write(0);
    }
    Ok(())
}

/// A text in a field of fixed size, cut so that a NUL fits.
pub(crate) fn field<const N: usize>(text: &str) -> [u8; N] {
    let mut field = [0; N];
    let len = text.len().min(N - 1);
    field[..len].copy_from_slice(&text.as_bytes()[..len]);
    field
}

/// Checks the version field of the caller's structure: its size, with `number` in the highest byte.
///
/// # Errors
/// NVML_ERROR_ARGUMENT_VERSION_MISMATCH.
pub(crate) fn versioned<T>(version: c_uint, number: c_uint) -> Ml {
    match version == size_of::<T>() as c_uint | number << 24 {
        true => Ok(()),
        false => Err(Code::ARGUMENT_VERSION),
    }
}

/// Declares exports. `fn nvmlA(…) { … }` is one symbol; `fn nvmlA / nvmlA_v2 (…) { … }` is two
/// equal symbols.
macro_rules! exports {
    () => {};
    ($(#[$doc:meta])* fn $($name:ident)/+ ($($arg:ident: $ty:ty),* $(,)?) $body:block $($rest:tt)*) => {
        $crate::ffi::exports!(@each [$($name)+] [$(#[$doc])*] ($($arg: $ty),*) $body);
        $crate::ffi::exports!($($rest)*);
    };
    (@each [] $doc:tt $args:tt $body:block) => {};
    (@each [$name:ident $($more:ident)*] [$($doc:tt)*] ($($arg:ident: $ty:ty),*) $body:block) => {
        $($doc)*
        ///
        /// # Safety
        /// As in NVML's documentation of the function: pointers are null or valid.
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
            $crate::ffi::guard(move || $body)
        }
        $crate::ffi::exports!(@each [$($more)*] [$($doc)*] ($($arg: $ty),*) $body);
    };
}
pub(crate) use exports;
