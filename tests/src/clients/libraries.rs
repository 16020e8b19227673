//! NVIDIA's libraries: the programs `tests/clients/libraries/*.c`, each linked with one library.
//!
//! The programs run on a software device that is newer than the machine code in the libraries. So
//! the libraries use the PTX that they contain, as on a future card.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::events::Dialect;
use super::follow::Unit;
use super::install::{Kit, run, source};
use super::plan::{PTX_ONLY, Plan, list_tests};

/// cuBLAS of the newest release too, because it computes a product in other ways than the release
/// that PyTorch requires.
const NEWEST_CUBLAS: &str = "13.10.0.20";

/// A program and the library with which it is linked.
const PROGRAMS: &[(&str, &str)] = &[
    ("cublas", "libcublas.so."),
    ("cublaslt", "libcublasLt.so."),
    ("cudnn", "libcudnn.so."),
    ("cufft", "libcufft.so."),
    ("curand", "libcurand.so."),
    ("cusolver", "libcusolver.so."),
    ("cusparse", "libcusparse.so."),
];

/// One unit per program and release.
///
/// # Errors
/// [`super::install::Missing`] without the packages; errors of the compiler.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    let packages = kit.venv("libraries")?.packages;
    let mut units = Vec::new();
    if kit.uses_own_packages() {
        for (program, library) in PROGRAMS {
            units.push(unit(kit, program, program, library, &[&packages])?);
        }
    } else {
        let newest = kit.wheel("nvidia-cublas", NEWEST_CUBLAS)?;
        let of_cuda_12 = kit.venv("libraries-cu12")?.packages;
        for (program, library) in PROGRAMS {
            units.push(unit(kit, program, program, library, &[&packages])?);
            let name = format!("{program}-cu12");
            units.push(unit(kit, &name, program, library, &[&of_cuda_12])?);
            if program.starts_with("cublas") {
                let name = format!("{program}-newest");
                units.push(unit(kit, &name, program, library, &[&newest, &packages])?);
            }
        }
    }
    Ok(Plan {
        units,
        device: vec![("SOFT_GPU_CC".into(), PTX_ONLY.into())],
        ..Plan::default()
    })
}

/// The directories of this name in NVIDIA's packages.
fn dirs(packages: &Path, name: &str) -> Result<Vec<PathBuf>> {
    let nvidia = packages.join("nvidia");
    let all = std::fs::read_dir(&nvidia).with_context(|| nvidia.display().to_string())?;
    let mut found = Vec::new();
    for entry in all {
        found.push(entry?.path().join(name));
    }
    found.retain(|dir| dir.is_dir());
    found.sort();
    Ok(found)
}

/// The library whose file name has this prefix, in the first package that has it.
fn find(packages: &[&Path], name: &str) -> Result<PathBuf> {
    for packages in packages {
        for dir in dirs(packages, "lib")? {
            for entry in std::fs::read_dir(dir)? {
                let entry = entry?;
                if entry.file_name().to_string_lossy().starts_with(name) {
                    return Ok(entry.path());
                }
            }
        }
    }
    anyhow::bail!("no package carries {name}")
}

/// Links a program with the library and the runtime that are found first in `packages`.
fn unit(kit: &Kit, name: &str, program: &str, library: &str, packages: &[&Path]) -> Result<Unit> {
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
    if let Some(toolkit) = kit
        .uses_own_packages()
        .then(|| std::env::var_os("CUDA_HOME"))
        .flatten()
    {
        // PyPI's packages of a part of the toolkit lack headers of other parts.
        let include = Path::new(&toolkit).join("include");
        compiler.arg("-idirafter").arg(include);
    }
    for packages in packages {
        for include in dirs(packages, "include")? {
            compiler.arg("-isystem").arg(include);
        }
        for libraries in dirs(packages, "lib")? {
            compiler.arg(format!("-Wl,-rpath,{}", libraries.display()));
        }
    }
    compiler.arg(find(packages, library)?);
    compiler.arg(find(packages, "libcudart.so.")?);
    run(compiler.arg("-lm"))?;
    let tests = list_tests(&binary)?;
    Ok(Unit {
        tests: tests.iter().map(|test| format!("{name}::{test}")).collect(),
        name: name.to_owned(),
        dialect: Dialect::Libtest,
        words: vec![binary.into()],
        dir: kit.dir().join("scratch"),
        env: Vec::new(),
        parallel: false,
        // MT19937 prepares 8192 generators, which takes half a minute of CPU time, more on a loaded
        // machine.
        patience: Duration::from_secs(600),
        alone: false,
    })
}
