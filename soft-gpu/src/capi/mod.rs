//! The C entry points: all symbols of cuda.h.
//!
//! Each chapter of CUDA's driver API has a folder or a module. Its `exports!` blocks map entry
//! points to the driver. build.rs generates the entry points without an implementation, which
//! return CUDA_ERROR_NOT_SUPPORTED. No panic unwinds into the caller, and null out-pointers are
//! errors.

// The functions have NVIDIA's names, and NVIDIA documents them.
#![allow(non_snake_case, missing_docs)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use crate::driver::error::Result;
use crate::driver::printed::PRINTED;
use crate::driver::stderr::say;
use crate::driver::stream::Stream;
use crate::driver::{self, inject, stream_table, strict};
use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, StreamArg};

/// Declares entry points; see [`vgpu_cuda_abi::exports`] for the forms.
macro_rules! exports {
    ($($all:tt)*) => { vgpu_cuda_abi::exports! { [entry_point] $($all)* } };
}

/// Defines one entry point. On x86-64 the symbol is not a Rust function: it jumps to the function
/// through [`scrub::pass`](crate::driver::scrub).
macro_rules! entry_point {
    ([$(#[$doc:meta])*] $name:ident [$($mode:ident = $value:ident)?] ($($arg:ident: $ty:ty),*) $body:block) => {
        mod $name {
            #[allow(unused_imports)] // Some functions use nothing of their module.
            use super::*;

            pub(super) extern "C" fn served($($arg: $ty),*) -> u32 {
                $(let $mode = ::vgpu_cuda_abi::args::DefaultStream::$value;)?
                crate::capi::enter(stringify!($name), || -> crate::driver::error::Result { $body })
            }
        }
        #[cfg(target_arch = "x86_64")]
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            std::arch::naked_asm!(
                "lea rax, [rip + {inner}]",
                "jmp {pass}",
                inner = sym $name::served,
                pass = sym crate::driver::scrub::pass,
            )
        }
        #[cfg(not(target_arch = "x86_64"))]
        #[unsafe(no_mangle)]
        pub extern "C" fn $name($($arg: $ty),*) -> u32 {
            $name::served($($arg),*)
        }
    };
}

pub mod context;
pub mod device;
pub mod event;
pub mod execution;
pub mod graph;
pub mod init;
pub mod library;
pub mod memory;
pub mod module;
pub mod pool;
pub mod refusing;
pub mod stream;
pub mod vmm;

/// A stream argument that can be resolved to a stream.
pub trait StreamOf {
    /// The stream. In the calling function, the handle 0 means the stream `default`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_HANDLE, no current context, or the sticky error.
    fn get(self, default: DefaultStream) -> Result<Arc<Stream>>;
}

impl StreamOf for StreamArg {
    fn get(self, default: DefaultStream) -> Result<Arc<Stream>> {
        crate::driver::healthy()?;
        stream_table::resolve(self.named(default))
    }
}

/// Functions that work before cuInit.
const ALWAYS: [&str; 8] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuGetProcAddress",
    "cuGetProcAddress_v2",
    "cuGetExportTable",
    "cuProfilerInitialize",
];

/// Runs an entry point: returns injected errors, refuses calls before cuInit, and catches panics.
fn enter(name: &'static str, body: impl FnOnce() -> Result) -> u32 {
    strict::enter(name);
    if let Some(code) = inject::call(name) {
        return code.0;
    }
    // Before cuInit no handle is valid, so the body is not called.
    if let Err(code) = driver::driver()
        && !ALWAYS.contains(&name)
    {
        return code.0;
    }
    let result = catch_unwind(AssertUnwindSafe(body));
    PRINTED.show();
    match result {
        Ok(Ok(())) => 0,
        Ok(Err(code)) => code.0,
        Err(_) => {
            say!("{name} panicked: please report it");
            CuResult::UNKNOWN.0
        }
    }
}
