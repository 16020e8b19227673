//! Makes the two halves of the export list from what is written by hand.
//!
//! `symbols.txt` (of `vgpu-proto`) names every symbol of NVIDIA's library; `src/exports/*.rs` implements
//! some of them. This script writes, into `OUT_DIR`, a table with the address of each implemented one and
//! a stub that returns CUDA_ERROR_NOT_SUPPORTED for each of the others. Linking fails where a name is in
//! both. From `procs.txt` it makes the table of `cuGetProcAddress`. [`floor`] arranges which C libraries
//! the result runs on.

mod floor;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

/// The lists of names, which soft-gpu's build reads too.
const NAMES: &str = "../proto/src/cuda";

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed={NAMES}");
    println!("cargo:rerun-if-changed=src/exports");
    // The name programs ask for. NODELETE: a thread of ours runs until the process ends, so the
    // code must stay mapped even when the program closes its handle.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let read = |name: &str| {
        fs::read_to_string(Path::new(NAMES).join(name)).expect("a list of names is there")
    };
    let symbols = read("symbols.txt");
    let symbols: Vec<&str> = symbols.lines().collect();
    let exports = exports(Path::new("src/exports"));
    for symbol in exports.keys() {
        assert!(
            symbols.contains(&symbol.as_str()),
            "{symbol} is exported but is no symbol of NVIDIA's library"
        );
    }

    let mut served = String::from("&[\n");
    for (symbol, module) in &exports {
        let _ = writeln!(
            served,
            "    Served {{ symbol: \"{symbol}\", address: Address(crate::exports::{module}::{symbol} as *const ()) }},"
        );
    }
    served.push_str("]\n");

    let mut stubs = String::from("stubs! {\n");
    let unserved = symbols.iter().filter(|s| !exports.contains_key(**s));
    for (index, symbol) in unserved.enumerate() {
        let _ = writeln!(stubs, "    {symbol} {index};");
    }
    stubs.push_str("}\n");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("served.rs"), served).expect("OUT_DIR is writable");
    fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
    fs::write(out.join("ladder.rs"), ladder(&read("procs.txt"))).expect("OUT_DIR is writable");
    floor::link(&out, Path::new("floor"));
}

/// The rows of `procs.txt` as tuples: name asked for, since version, per-thread default stream, symbol.
fn ladder(procs: &str) -> String {
    let mut rows = String::from("&[\n");
    for line in procs.lines() {
        let row: Vec<&str> = line.split(' ').collect();
        let [name, since, flags, symbol] = row[..] else {
            panic!("procs.txt: {line}");
        };
        let _ = writeln!(
            rows,
            "    (\"{name}\", {since}, {}, \"{symbol}\"),",
            flags == "2"
        );
    }
    rows + "]\n"
}

/// symbol → module, from lines of the form `fn cuA(…` and `fn cuA / cuA_ptsz …(…`.
fn exports(folder: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).expect("src/exports is there") {
        let path = entry.expect("src/exports is readable").path();
        let Some(module) = path
            .file_stem()
            .and_then(|s| s.to_str())
            .filter(|m| *m != "mod")
        else {
            continue;
        };
        let text = fs::read_to_string(&path).expect("an export file is readable");
        for line in text.lines() {
            let Some(rest) = line.trim_start().strip_prefix("fn cu") else {
                continue;
            };
            let head = format!("cu{}", rest.split('(').next().unwrap_or_default());
            for symbol in head.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')) {
                if symbol.starts_with("cu") {
                    found.insert(symbol.to_owned(), module.to_owned());
                }
            }
        }
    }
    found
}
