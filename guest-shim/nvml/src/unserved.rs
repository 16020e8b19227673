//! The functions of `nvml.h` that are not served.

use crate::ffi::guard;
use crate::state;

macro_rules! stubs {
    ($($name:ident;)*) => {$(
        #[unsafe(no_mangle)]
        #[allow(non_snake_case)]
        extern "C" fn $name() -> u32 {
            guard(state::unserved)
        }
    )*};
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
