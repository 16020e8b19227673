//! Links the program so that it runs on the same old C libraries as the guest libraries.

#[path = "../floor/mod.rs"]
mod floor;

use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    floor::link_program(&out, Path::new("../floor"));
}
