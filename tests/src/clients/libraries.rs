//! NVIDIA's libraries: `tests/clients/libraries/*.c`, each linked with one of them.
//!
//! They run on a software device that is newer than the machine code in the libraries. So the libraries
//! take the PTX that they carry, as on a card of the future.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;

use super::events::Dialect;
use super::follow::Unit;
use super::install::{Kit, run, source};
use super::suites::{Plan, list_tests};

/// Newer than what any of the libraries has machine code for.
const CAPABILITY: &str = "13.0";

/// cuBLAS of the newest release too: it takes other ways to a product than the one that PyTorch asks for.
const NEWEST_CUBLAS: &str = "13.10.0.20";

/// A program and the libraries that it is linked with, as files below `nvidia` in the packages.
const PROGRAMS: &[(&str, &[&str])] = &[
    ("cublas", &["cu13/lib/libcublas.so.13"]),
    ("cublaslt", &["cu13/lib/libcublasLt.so.13"]),
    ("cudnn", &["cudnn/lib/libcudnn.so.9"]),
    ("cufft", &["cu13/lib/libcufft.so.12"]),
    ("curand", &["cu13/lib/libcurand.so.10"]),
    ("cusolver", &["cu13/lib/libcusolver.so.12"]),
    ("cusparse", &["cu13/lib/libcusparse.so.12"]),
];

/// One unit for each program.
///
/// # Errors
/// [`super::install::Missing`] without the packages; what the compiler said.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    let packages = kit.venv("libraries")?.packages;
    let newest = kit.wheel("nvidia-cublas", NEWEST_CUBLAS)?;
    let mut units = Vec::new();
    for (program, libraries) in PROGRAMS {
        units.push(unit(kit, program, program, libraries, &[&packages])?);
        if program.starts_with("cublas") {
            let name = format!("{program}-newest");
            units.push(unit(kit, &name, program, libraries, &[&newest, &packages])?);
        }
    }
    Ok(Plan {
        units,
        device: vec![("SOFT_GPU_CC".into(), CAPABILITY.into())],
        ..Plan::default()
    })
}

/// Links a program with the libraries of the first of `packages`, and with the runtime and what else they need of the last.
fn unit(
    kit: &Kit,
    name: &str,
    program: &str,
    libraries: &[&str],
    packages: &[&Path],
) -> Result<Unit> {
    let binary = kit.dir().join(format!("library-{name}"));
    let mut compiler = Command::new("cc");
    compiler
        .args([
            "-O2",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-Wno-unused-function",
            "-Wno-deprecated-declarations",
            "-o",
        ])
        .arg(&binary)
        .arg(source(&format!("libraries/{program}.c")));
    let dirs: Vec<_> = packages.iter().map(|dir| dir.join("nvidia")).collect();
    for dir in &dirs {
        for include in ["cu13/include", "cudnn/include"] {
            compiler.arg("-isystem").arg(dir.join(include));
        }
        for library in ["cu13/lib", "cudnn/lib"] {
            compiler.arg(format!("-Wl,-rpath,{}", dir.join(library).display()));
        }
    }
    if let (Some(first), Some(last)) = (dirs.first(), dirs.last()) {
        compiler.args(libraries.iter().map(|library| first.join(library)));
        compiler.arg(last.join("cu13/lib/libcudart.so.13"));
    }
    run(compiler.arg("-lm"))?;
    let tests = list_tests(&binary)?;
    Ok(Unit {
        tests: tests.iter().map(|test| format!("{name}::{test}")).collect(),
        name: name.to_owned(),
        dialect: Dialect::Libtest,
        words: vec![binary.into()],
        dir: kit.dir().join("scratch"),
        env: Vec::new(),
        patience: Duration::from_secs(240),
        alone: false,
    })
}
