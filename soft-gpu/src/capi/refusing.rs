//! Everything in cuda.h that is not served: CUDA_ERROR_NOT_SUPPORTED, named once in the log.

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
    // SAFETY: the API's contract: an argument that is not null points to such a structure; the table asks for
    // those only.
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
        /// Every symbol that only refuses, sorted.
        pub static REFUSING: &[Export] = &[$(Export {
            symbol: stringify!($name),
            address: Address($name as *const ()),
        },)*];

        $(
            // What the first registers hold: a call with fewer arguments leaves anything in the others, which
            // the table does not look at.
            #[unsafe(no_mangle)]
            pub extern "C" fn $name(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32 {
                crate::capi::enter(stringify!($name), || unserved(stringify!($name), &[a, b, c, d, e, f]))
            }
        )*
    };
}

include!(concat!(env!("OUT_DIR"), "/refusing.rs"));
