//! Functions whose parameters are Rust enums in cudarc: a number from a guest, or one that a newer
//! driver defines, would be an invalid value there. They are taken from cudarc's library with
//! integers in the enums' place (the C ABI is the same).

use std::ffi::{c_int, c_uint};
use std::sync::OnceLock;

use cudarc::driver::sys;
use vgpu_proto::cuda::CuResult;

use super::{Result, number};

macro_rules! raw {
    ($($(#[$doc:meta])* $name:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// As the CUDA function: pointers must be writable, handles live, and the context current.
        #[allow(non_snake_case)]
        pub(super) unsafe fn $name($($arg: $ty),*) -> Result<()> {
            type F = unsafe extern "C" fn($($ty),*) -> c_uint;
            static F: OnceLock<Option<F>> = OnceLock::new();
            let f = F.get_or_init(|| {
                // SAFETY: the library is present (`load` ran first), and the type is the function's
                // with 32-bit enums as integers.
                unsafe { sys::culib().get::<F>(concat!(stringify!($name), "\0").as_bytes()) }
                    .ok()
                    .map(|symbol| *symbol)
            });
            match f {
                // SAFETY: the caller's promise.
                Some(f) => number(unsafe { f($($arg),*) }),
                None => Err(CuResult::NOT_SUPPORTED),
            }
        }
    )*};
}

raw! {
    /// Value of an attribute of a device.
    cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: sys::CUdevice);
    /// Value of an attribute of a function.
    cuFuncGetAttribute(value: *mut c_int, attribute: c_uint, function: sys::CUfunction);
    /// Sets an attribute of a function.
    cuFuncSetAttribute(function: sys::CUfunction, attribute: c_uint, value: c_int);
    /// Prefers shared memory or L1 for a function.
    cuFuncSetCacheConfig(function: sys::CUfunction, config: c_uint);
    /// Sets a limit of the current context.
    cuCtxSetLimit(limit: c_uint, value: usize);
    /// A limit of the current context.
    cuCtxGetLimit(value: *mut usize, limit: c_uint);
    /// Prefers shared memory or L1 for the current context.
    cuCtxSetCacheConfig(config: c_uint);
}
