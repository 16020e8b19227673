//! Completes the library's exports from the committed name lists.
//!
//! Every name of `symbols.txt` (of `vgpu-proto`) that no `exports!` block in `src/capi/` serves becomes
//! a stub that returns CUDA_ERROR_NOT_SUPPORTED, so that no client meets a missing symbol. Every row of
//! `procs.txt` becomes a row of the table of cuGetProcAddress, with whether it is served. Also sets the SONAME.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// The lists of names, which the guest shim's build reads too.
const NAMES: &str = "../proto/src/cuda";

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/capi");
    println!("cargo:rerun-if-changed={NAMES}");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // Keeps our own references inside the library when another libcuda is loaded in the same process
    // (a guest shim under test).
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Streams have threads in the library's code: it stays for the process's life.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");

    let capi = Path::new("src/capi");
    let served = served(capi)?;
    let names = Path::new(NAMES);
    let symbols = fs::read_to_string(names.join("symbols.txt"))?;
    let procs = fs::read_to_string(names.join("procs.txt"))?;
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or(io::ErrorKind::NotFound)?);
    fs::write(out.join("stubs.rs"), stubs(&symbols, &served))?;
    fs::write(out.join("procs.rs"), table(&procs, &served))
}

/// Served export → the `capi` module that has it.
fn served(capi: &Path) -> io::Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(capi)? {
        let path = entry?.path();
        let Some(stem) = path.file_stem().and_then(|s| s.to_str()) else {
            continue;
        };
        if path.extension().is_none_or(|e| e != "rs") {
            continue;
        }
        for line in fs::read_to_string(&path)?.lines() {
            let Some(rest) = line.trim_start().strip_prefix("fn cu") else {
                continue;
            };
            let head = rest.split('(').next().unwrap_or_default();
            for name in format!("cu{head}").split('|').map(str::trim) {
                if name.starts_with("cu")
                    && name.as_bytes().get(2).is_some_and(u8::is_ascii_uppercase)
                {
                    found.insert(name.to_owned(), stem.to_owned());
                }
            }
        }
    }
    Ok(found)
}

fn stubs(symbols: &str, served: &BTreeMap<String, String>) -> String {
    let mut text = String::from("stubs! {\n");
    for name in symbols.lines().filter(|n| !served.contains_key(*n)) {
        let _ = writeln!(text, "    {name};");
    }
    text + "}\n"
}

fn table(procs: &str, served: &BTreeMap<String, String>) -> String {
    let mut text = String::from("static PROCS: &[Proc] = &[\n");
    for line in procs.lines() {
        let f: Vec<&str> = line.split(' ').collect();
        let [base, version, flags, symbol] = f[..] else {
            panic!("procs.txt: not a row of four words: {line}");
        };
        let module = served.get(symbol).map_or("stubs", String::as_str);
        let _ = writeln!(
            text,
            "    Proc {{ name: \"{base}\", version: {version}, per_thread: {}, \
             entry: Entry(crate::capi::{module}::{symbol} as *const ()), served: {} }},",
            flags == "2",
            served.contains_key(symbol)
        );
    }
    text + "];\n"
}
