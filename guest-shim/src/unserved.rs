//! Symbols of NVIDIA's library that are exported but not served: CUDA_ERROR_NOT_SUPPORTED, counted, and
//! named once in the log. Programs that link against the entry points of GL, EGL and VDPAU load so.

use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_proto::call::unserved::{Arguments, wrong};
use vgpu_proto::cuda::CuResult;

use crate::{log, process};

macro_rules! stubs {
    ($($symbol:ident $index:literal;)*) => {
        /// Names, and numbers of calls, in order of index.
        static NAMES: &[&str] = &[$(stringify!($symbol),)*];
        static CALLS: [AtomicU32; NAMES.len()] = [const { AtomicU32::new(0) }; NAMES.len()];

        /// The exported functions, with what the first registers hold: a call with fewer arguments leaves
        /// anything in the others, which the table does not look at.
        #[allow(non_snake_case)]
        mod stubs {
            $(
                #[unsafe(no_mangle)]
                pub(crate) extern "C" fn $symbol(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32 {
                    super::called($index, &[a, b, c, d, e, f])
                }
            )*
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

/// The address of one that is found all the same: PyTorch looks these up without a way to go on where they are missing,
/// whether it shares memory or not.
pub(crate) fn found(symbol: &str) -> Option<*const ()> {
    match symbol {
        "cuMemExportToShareableHandle" => Some(stubs::cuMemExportToShareableHandle as *const ()),
        "cuMemImportFromShareableHandle" => {
            Some(stubs::cuMemImportFromShareableHandle as *const ())
        }
        _ => None,
    }
}

/// The first eight bytes of a structure of the program.
fn peek(at: u64) -> u64 {
    // SAFETY: by the contract of the function, an argument that is not null points to such a structure; the
    // table asks for those only.
    unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read_unaligned() }
}

fn called(index: usize, arguments: &Arguments) -> u32 {
    let (Some(symbol), Some(calls)) = (NAMES.get(index), CALLS.get(index)) else {
        return CuResult::NOT_SUPPORTED.0;
    };
    // As NVIDIA's: nothing is known about what is supported before cuInit.
    let shim = match process::shim() {
        Ok(shim) => shim,
        Err(code) => return code.0,
    };
    if let Some(code) = wrong(symbol, arguments, shim.devices.count() as u32, peek) {
        return code;
    }
    crate::observe::not_served(symbol);
    if calls.fetch_add(1, Ordering::Relaxed) == 0 {
        // Formatting must not unwind into C; a failing log is not worth a crash.
        let _ = std::panic::catch_unwind(|| {
            log::line(
                log::Level::Warn,
                &format!("{symbol} is not served (CUDA_ERROR_NOT_SUPPORTED)"),
            );
        });
    }
    CuResult::NOT_SUPPORTED.0
}

#[cfg(test)]
mod tests {
    use super::NAMES;
    use crate::proc_address::SERVED;

    #[test]
    fn every_symbol_of_nvidia_s_library_is_exported_once() {
        let mut exported: Vec<&str> = NAMES.to_vec();
        exported.extend(SERVED.iter().map(|s| s.symbol));
        exported.sort_unstable();
        let symbols = include_str!("../../proto/src/cuda/symbols.txt");
        assert!(exported.into_iter().eq(symbols.lines()));
    }
}
