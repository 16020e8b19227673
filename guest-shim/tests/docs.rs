//! `docs/coverage.md` is generated from the call table and the sources of the tests.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use vgpu_cuda_abi::names::{LADDER, since};
use vgpu_proto::call::{Class, FUNCTIONS, Function, Op, Served};
use vgpu_proto::cuda::version_text;

const HEAD: &str = "\
# Coverage

This page is for users who look up whether vGPU serves a function of `cuda.h`. A test makes the page
from the call table (`proto/src/call/functions.rs`):
`UPDATE_GOLDEN=1 cargo nextest run -p vgpu-guest-shim --test docs`. Without the variable, the test
fails if the page is out of date.

A function with a stream argument has its `_ptds` or `_ptsz` form too (`perthread.c` calls these
forms). All other symbols of NVIDIA's library are exported and return CUDA_ERROR_NOT_SUPPORTED:
`cuda.h` 13.5 and the entry points of GL, EGL and VDPAU, so that programs linked against them load.
`cuGetProcAddress` finds all functions of this page, also refused ones. Of the other functions, it
finds those not newer than itself (CUDA 11.3), because the CUDA runtime mistakes a driver without
them for an old driver.

| class | cost of a call |
|---|---|
| local | no message: answered in the guest |
| cached | a round trip at the first call |
| async | a message without a wait |
| sync | a round trip |
| refused | CUDA_ERROR_NOT_SUPPORTED, and a line on standard error that names an alternative |

\"Tested by\" names the programs and tests that call the function with real arguments. Programs in
`.c` run directly on soft-gpu and through the whole system, and check results and errors. Programs
of `tests/system/calls.rs` must also print the same in both. Programs in `.h` are also parts of
`tests/truth`, which compares with answers of real cards. Every function is also called with null
arguments, before and after `cuInit` (`guest-shim/tests/surface.rs`).

";

/// Served functions that no program calls with real arguments, with the reason.
const EXCEPTIONS: &[(&str, &str)] = &[];

/// Operations whose results the guest stores.
const KEPT: &[Op] = &[
    Op::ModuleGetFunction,
    Op::ModuleGetGlobal,
    Op::FuncGetAttribute,
    Op::OccupancyBlocks,
    Op::OccupancyShared,
    Op::OccupancyClusters,
    Op::TensorMapEncode,
    Op::MemGranularity,
    Op::PrimaryCtxRetain,
    Op::ModuleLoad,
];

/// Whether each call of a function loads a module. Other functions load a module only if a library
/// has none in the context yet.
fn always_loads(symbol: &str) -> bool {
    symbol.starts_with("cuModuleLoad") || symbol.starts_with("cuLibraryLoad")
}

fn class(function: &Function) -> &'static str {
    match function.served {
        Served::Local => "local",
        Served::Refused => "refused",
        Served::By(ops) => {
            let mut waits = ops.iter().filter(|op| op.class() == Class::Sync);
            let first = waits.clone().next();
            if first.is_none() {
                "async"
            } else if !always_loads(function.symbol) && waits.all(|op| KEPT.contains(op)) {
                "cached"
            } else {
                "sync"
            }
        }
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// (name, text) of programs and tests that call the library.
fn sources() -> Vec<(String, String)> {
    let mut all = Vec::new();
    for folder in [
        "guest-shim/tests",
        "guest-shim/tests/common",
        "tests/guests",
        "tests/truth",
    ] {
        let entries = std::fs::read_dir(root().join(folder)).expect("the tests are there");
        for path in entries.map(|e| e.expect("readable").path()) {
            let extension = path.extension().and_then(|e| e.to_str());
            let name = path.file_name().expect("a file").to_string_lossy();
            // This file only names functions, and lists of symbols contain no calls: neither
            // counts.
            let calls = matches!(extension, Some("rs" | "c" | "h")) && name != "docs.rs";
            if calls {
                let text = std::fs::read_to_string(&path).expect("a test is text");
                all.push((format!("{folder}/{name}"), text));
            }
        }
    }
    all.sort();
    all
}

/// Whether the source text `text` contains a call of the function `symbol`, not only a declaration
/// in C.
fn calls(text: &str, symbol: &str) -> bool {
    let word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    text.match_indices(symbol).any(|(at, _)| {
        let before = &text[..at];
        let after = &text[at + symbol.len()..];
        let whole = !before.ends_with(word) && !after.starts_with(word);
        whole && !before.ends_with("CUresult ")
    })
}

/// Names of the programs and tests that call a function.
fn testers<'a>(sources: &'a [(String, String)], symbol: &str) -> Vec<&'a str> {
    sources
        .iter()
        .filter(|(_, source)| calls(source, symbol))
        .map(|(name, _)| name.rsplit('/').next().unwrap_or(name))
        .collect()
}

/// The served exports for per-thread default streams.
fn per_thread_forms() -> BTreeSet<String> {
    let forms = LADDER.iter().filter(|form| form.per_thread);
    let served = |symbol: &&str| FUNCTIONS.iter().any(|f| f.symbol == plain(symbol));
    let symbols = forms.map(|form| form.symbol).filter(served);
    symbols.map(str::to_owned).collect()
}

/// The function of a form for per-thread default streams.
fn plain(form: &str) -> &str {
    form.trim_end_matches("_ptds").trim_end_matches("_ptsz")
}

fn page() -> String {
    let sources = sources();
    let mut text = HEAD.to_owned();
    let served = FUNCTIONS.iter().filter(|f| f.served != Served::Refused);
    let _ = writeln!(text, "{} functions are served.\n", served.count());
    text.push_str(
        "| function | since CUDA | class | operations | tested by |\n|---|---|---|---|---|\n",
    );
    for function in FUNCTIONS {
        let operations = match function.served {
            Served::By(ops) => ops
                .iter()
                .map(|op| op.name())
                .collect::<Vec<_>>()
                .join(", "),
            Served::Local | Served::Refused => String::new(),
        };
        let tests = testers(&sources, function.symbol);
        let first = version_text(since(function.symbol).expect("a form"));
        let _ = writeln!(
            text,
            "| `{}` | {first} | {} | {operations} | {} |",
            function.symbol,
            class(function),
            tests.join(", ")
        );
    }
    text
}

#[test]
fn the_coverage_page_is_true() {
    vgpu_golden::assert_golden(root().join("docs/coverage.md"), &page());
}

#[test]
fn every_served_function_is_called_with_real_arguments() {
    let sources = sources();
    let excepted = |symbol: &str| EXCEPTIONS.iter().any(|(name, _)| *name == symbol);
    let served = |f: &&Function| f.served != Served::Refused;
    let refused = |symbol: &str| {
        let mut functions = FUNCTIONS.iter();
        functions.any(|f| f.symbol == symbol && f.served == Served::Refused)
    };
    let mut untested: Vec<String> = FUNCTIONS
        .iter()
        .filter(served)
        .map(|f| f.symbol.to_owned())
        .chain(per_thread_forms())
        .filter(|symbol| !excepted(symbol) && !refused(plain(symbol)))
        .filter(|symbol| testers(&sources, symbol).is_empty())
        .collect();
    untested.sort();
    assert!(
        untested.is_empty(),
        "no program of tests/guests calls these with real arguments (or say in EXCEPTIONS why): {untested:#?}"
    );
    for (symbol, _) in EXCEPTIONS {
        assert!(
            testers(&sources, symbol).is_empty(),
            "{symbol} is tested, and no exception"
        );
    }
}
