//! The C boundary: panics do not unwind, and one macro declares every export.

use std::panic::{AssertUnwindSafe, catch_unwind};

use vgpu_cuda_abi::CuResult;

use crate::session::PRINTED;
use crate::{Cu, log};

/// Runs the body of an export. A panic becomes CUDA_ERROR_UNKNOWN, because unwinding out of a C
/// function would abort the program. Logs the reason of an error, if the reason is known.
pub(crate) fn guard(name: &str, body: impl FnOnce() -> Cu) -> u32 {
    let run = || body().inspect_err(|code| log::refusal::say(name, *code));
    let result = catch_unwind(AssertUnwindSafe(run));
    PRINTED.show();
    match result {
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

/// Declares exports; see [`vgpu_cuda_abi::exports`] for the forms.
macro_rules! exports {
    ($($all:tt)*) => { vgpu_cuda_abi::exports! { [$crate::ffi::export] $($all)* } };
}

/// Defines one exported function.
macro_rules! export {
    ([$(#[$doc:meta])*] $name:ident [$($mode:ident = $value:ident)?] ($($arg:ident: $ty:ty),*) $body:block) => {
        $(#[$doc])*
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        pub(crate) extern "C" fn $name($($arg: $ty),*) -> u32 {
            $(let $mode = ::vgpu_cuda_abi::args::DefaultStream::$value;)?
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
pub(crate) use {export, exports};
