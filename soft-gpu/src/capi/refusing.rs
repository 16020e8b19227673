//! The functions of cuda.h that are not served: each returns CUDA_ERROR_NOT_SUPPORTED, and the log
//! names each once.

use std::collections::BTreeSet;
use std::sync::Mutex;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::names::{Address, Export};
use vgpu_cudart::unserved::{Arguments, wrong};

use crate::driver::driver;
use crate::driver::error::Result;
use crate::driver::sync::lock;

static NAMED: Mutex<BTreeSet<&'static str>> = Mutex::new(BTreeSet::new());

/// The first eight bytes of a structure of the program.
fn peek(at: u64) -> u64 {
    // SAFETY: CUDA's contract: a non-null argument points to such a structure. The table reads only
    // such arguments.
    unsafe { std::ptr::with_exposed_provenance::<u64>(at as usize).read_unaligned() }
}

fn unserved(name: &'static str, arguments: &Arguments) -> Result {
    let devices = driver()?.gpus.len() as u32;
    if let Some(code) = wrong(name, arguments, devices, peek) {
        return Err(code);
    }
    if lock(&NAMED).insert(name) {
        eprintln!("soft-gpu: {name} is not served: CUDA_ERROR_NOT_SUPPORTED");
    }
    Err(CuResult::NOT_SUPPORTED)
}

macro_rules! refusing {
    ($($name:ident;)*) => {
        /// The symbols that only refuse, sorted.
        pub static REFUSING: &[Export] = &[$(Export {
            symbol: stringify!($name),
            address: Address($name as *const ()),
        },)*];

        $(
            // The six argument registers. A call with fewer arguments leaves arbitrary values in
            // the others, which the table ignores.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32 {
                crate::capi::enter(stringify!($name), || unserved(stringify!($name), &[a, b, c, d, e, f]))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/refusing.rs"));
