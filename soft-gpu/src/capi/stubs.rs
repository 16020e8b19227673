//! Everything in cuda.h that is not served: CUDA_ERROR_NOT_SUPPORTED, named once in the log.

use std::collections::BTreeSet;
use std::sync::Mutex;

use crate::driver::error::{CuError, Result};
use crate::driver::sync::lock;

static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

fn unserved(name: &'static str) -> Result {
    if lock(&NAMED).insert(name) {
        eprintln!("soft-gpu: {name} is not served: CUDA_ERROR_NOT_SUPPORTED");
    }
    Err(CuError::NOT_SUPPORTED)
}

macro_rules! stubs {
    ($($name:ident;)*) => {
        $(
            // Arguments are ignored, which the C calling conventions of all targets allow.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name() -> u32 {
                crate::capi::enter(stringify!($name), || unserved(stringify!($name)))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/stubs.rs"));
