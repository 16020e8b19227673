//! For the build scripts of libraries that replace NVIDIA's driver library. Finds the functions
//! that the library serves in the library's sources, and writes an export that refuses the call for
//! every other symbol.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs};

use crate::names;

/// Writes two files into `OUT_DIR`. Reads the lines `fn cuName(` in the sources under `folder` (for
/// example `src/abi`), which is the Rust module `module` (`crate::abi`):
///
/// - `served.rs`: an expression, the sorted list of served functions as
///   [`Export`](names::Export)s;
/// - `refusing.rs`: a call of [`refusing!`](crate::refusing) with every other symbol of NVIDIA's
///   library, sorted.
///
/// # Panics
/// If a file cannot be read or written, or if a source exports a name that is not a symbol of
/// NVIDIA's library.
pub fn exports(folder: &str, module: &str) {
    println!("cargo:rerun-if-changed={folder}");
    let mut found = BTreeMap::new();
    scan(Path::new(folder), module, &mut found);
    let symbols = names::symbols();
    let mut served = String::from("&[\n");
    for (symbol, module) in &found {
        assert!(
            symbols.contains(&symbol.as_str()),
            "{symbol} is exported but is no symbol of NVIDIA's library"
        );
        let _ = writeln!(
            served,
            "    ::vgpu_cuda_abi::names::Export {{ symbol: \"{symbol}\", \
             address: ::vgpu_cuda_abi::names::Address({module}::{symbol} as *const ()) }},"
        );
    }
    served.push_str("]\n");
    let mut refusing = String::from("::vgpu_cuda_abi::refusing! {\n");
    for symbol in symbols.iter().filter(|s| !found.contains_key(**s)) {
        let _ = writeln!(refusing, "    {symbol};");
    }
    refusing.push_str("}\n");
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    fs::write(out.join("served.rs"), served).expect("OUT_DIR is writable");
    fs::write(out.join("refusing.rs"), refusing).expect("OUT_DIR is writable");
}

/// Adds the functions in a folder and its subfolders: symbol → module.
fn scan(folder: &Path, module: &str, found: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(folder).expect("the folder of exports is readable") {
        let path = entry.expect("the folder of exports is readable").path();
        let Some(stem) = path.file_stem().and_then(|s| s.to_str()) else {
            continue;
        };
        if path.is_dir() {
            scan(&path, &format!("{module}::{stem}"), found);
            continue;
        }
        let module = match stem {
            "mod" => module.to_owned(),
            stem => format!("{module}::{stem}"),
        };
        let text = fs::read_to_string(&path).expect("a source file is readable");
        for symbol in text.lines().flat_map(symbols_of) {
            found.insert(symbol.to_owned(), module.clone());
        }
    }
}

/// The symbols that a line declares: `fn cuA(…`, `fn cuA / cuB(…`, `fn cuA / cuA_ptsz [mode] (…`.
fn symbols_of(line: &str) -> impl Iterator<Item = &str> {
    let declared = line.trim_start().strip_prefix("fn ").unwrap_or_default();
    let head = declared.split(['(', '[']).next().unwrap_or_default();
    let is_symbol = |name: &str| {
        let third = name.as_bytes().get(2);
        name.starts_with("cu") && third.is_some_and(u8::is_ascii_uppercase)
    };
    head.split('/')
        .map(str::trim)
        .filter(move |name| is_symbol(name))
}
