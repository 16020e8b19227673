//! Finds the functions that `src/capi/` serves, makes refusing exports of all others, so that no
//! client meets a missing symbol, and sets the name of the library.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    vgpu_cuda_abi::build::exports("src/capi", "crate::capi");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Keeps our own references inside the library when another libcuda is loaded in the same
    // process (a guest shim under test).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Streams have threads in the library's code: it stays for the process's life.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
