//! Makes the two halves of the export list from what is written by hand.
//!
//! `src/symbols.rs` names every symbol of `cuda.h`; `src/exports/*.rs` implements some of them. This
//! script writes, into `OUT_DIR`, a table with the address of each implemented one and a stub that
//! returns CUDA_ERROR_NOT_SUPPORTED for each of the others. Linking fails where a name is in both.
//! [`floor`] arranges which C libraries the result runs on.

mod floor;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/symbols.rs");
    println!("cargo:rerun-if-changed=src/exports");
    // The name programs ask for. NODELETE: a thread of ours runs until the process ends, so the
    // code must stay mapped even when the program closes its handle.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let symbols = symbols(Path::new("src/symbols.rs"));
    let exports = exports(Path::new("src/exports"));
    for symbol in exports.keys() {
        assert!(
            symbols.contains(symbol),
            "{symbol} is exported but is no symbol of cuda.h"
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
    let unserved: Vec<&String> = symbols
        .iter()
        .filter(|s| !exports.contains_key(*s))
        .collect();
    for (index, symbol) in unserved.iter().enumerate() {
        let _ = writeln!(stubs, "    {symbol} {index};");
    }
    stubs.push_str("}\n");

    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("served.rs"), served).expect("OUT_DIR is writable");
    fs::write(out.join("stubs.rs"), stubs).expect("OUT_DIR is writable");
    floor::link(&out);
}

/// The names in the SYMBOLS table: the lines that hold one string and nothing else.
fn symbols(path: &Path) -> Vec<String> {
    let text = fs::read_to_string(path).expect("src/symbols.rs is there");
    text.lines()
        .filter_map(|line| line.strip_prefix("    \"")?.strip_suffix("\","))
        .map(str::to_owned)
        .collect()
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
