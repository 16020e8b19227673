//! Symbols of NVIDIA's library that are exported but not served: CUDA_ERROR_NOT_SUPPORTED, counted, and
//! named once in the log. Programs that link against the entry points of GL, EGL and VDPAU load so.

use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_proto::cuda::CuResult;

use crate::{log, process};

macro_rules! stubs {
    ($($symbol:ident $index:literal;)*) => {
        /// Names, and numbers of calls, in order of index.
        static NAMES: &[&str] = &[$(stringify!($symbol),)*];
        static CALLS: [AtomicU32; NAMES.len()] = [const { AtomicU32::new(0) }; NAMES.len()];

        /// The exported functions. They take no argument that they look at, so one signature does.
        #[allow(non_snake_case)]
        mod stubs {
            $(
                #[unsafe(no_mangle)]
                pub(crate) extern "C" fn $symbol() -> u32 {
                    super::called($index)
                }
            )*
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));

fn called(index: usize) -> u32 {
    // As NVIDIA's: nothing is known about what is supported before cuInit.
    if let Err(code) = process::shim() {
        return code.0;
    }
    if let Some(symbol) = NAMES.get(index) {
        crate::observe::not_served(symbol);
    }
    if let (Some(symbol), Some(calls)) = (NAMES.get(index), CALLS.get(index))
        && calls.fetch_add(1, Ordering::Relaxed) == 0
    {
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
