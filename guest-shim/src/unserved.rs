//! Symbols of `cuda.h` that are exported but not served: CUDA_ERROR_NOT_SUPPORTED, counted, and
//! named once in the log.

use std::sync::atomic::{AtomicU32, Ordering};

use vgpu_proto::cuda::CuResult;

use crate::log;

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
    use crate::symbols::SYMBOLS;

    #[test]
    fn every_symbol_of_the_header_is_exported_once() {
        let mut exported: Vec<&str> = NAMES.to_vec();
        exported.extend(SERVED.iter().map(|s| s.symbol));
        exported.sort_unstable();
        assert_eq!(exported, SYMBOLS);
    }
}
