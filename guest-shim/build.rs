//! Finds the functions that `src/abi/` serves and makes refusing exports of all others. Linking
//! fails where a name is in both. [`floor`] arranges which C libraries the result runs on.

mod floor;

use std::env;
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    vgpu_cuda_abi::build::exports("src/abi", "crate::abi");
    // The name programs ask for. NODELETE: a thread of ours runs until the process ends, so the
    // code must stay mapped even when the program closes its handle.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    floor::link(&out, Path::new("floor"));
}
