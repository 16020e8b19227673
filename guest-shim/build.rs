//! Finds the functions that `src/abi/` serves, and writes an export that refuses the call for every
//! other function. Linking fails if a name is in both. [`floor`] links the library so that it runs
//! on old versions of glibc.

mod floor;

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    vgpu_cuda_abi::build::exports("src/abi", "crate::abi");
    // The name that programs load. NODELETE: a thread of the library runs until the process ends,
    // so the code must stay mapped even after the program calls `dlclose`.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    floor::link(&out, Path::new("floor"));
}
