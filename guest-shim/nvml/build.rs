//! Writes a stub for each function of `nvml.h` that `src/exports` does not implement, because
//! programs link against all functions of the header. [`floor`] links the library so that it runs
//! on old versions of glibc.

#[path = "../floor/mod.rs"]
mod floor;

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src");
    // The name that programs load. NODELETE: the library stays mapped after `dlclose`, so that
    // handles stay valid.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libnvidia-ml.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
    let names = fs::read_to_string("src/functions.txt").expect("src/functions.txt is there");
    let served = served(Path::new("src/exports"));
    let mut stubs = String::from("stubs! {\n");
    let unserved = names
        .lines()
        .filter(|name| !served.iter().any(|s| s == name));
    for name in unserved {
        let _ = writeln!(stubs, "    {name};");
    }
    stubs.push_str("}\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
    floor::link(&out, Path::new("../floor"));
}

/// The names of the implemented functions: lines `fn nvmlA(…` and `fn nvmlA / nvmlA_v2 (…`.
fn served(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("src/exports is there") {
        let path = entry.expect("src/exports is readable").path();
        let text = fs::read_to_string(&path).expect("an export file is readable");
        let lines = text
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("fn nvml"));
        for line in lines {
            let head = format!("nvml{}", line.split('(').next().unwrap_or_default());
            found.extend(head.split('/').map(|name| name.trim().to_owned()));
        }
    }
    found
}
