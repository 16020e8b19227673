//! NVIDIA's runtime in every version on PyPI: `tests/clients/cudart.c`, linked with it.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

use super::events::Dialect;
use super::follow::Unit;
use super::install::{Kit, run, source};
use super::plan::{PATIENCE, Plan, list_tests};

/// The last published version of each release, with its package.
pub(super) const VERSIONS: &[(&str, &str)] = &[
    ("nvidia-cuda-runtime-cu12", "12.0.146"),
    ("nvidia-cuda-runtime-cu12", "12.1.105"),
    ("nvidia-cuda-runtime-cu12", "12.2.140"),
    ("nvidia-cuda-runtime-cu12", "12.3.101"),
    ("nvidia-cuda-runtime-cu12", "12.4.127"),
    ("nvidia-cuda-runtime-cu12", "12.5.82"),
    ("nvidia-cuda-runtime-cu12", "12.6.77"),
    ("nvidia-cuda-runtime-cu12", "12.8.90"),
    ("nvidia-cuda-runtime-cu12", "12.9.79"),
    ("nvidia-cuda-runtime", "13.0.96"),
    ("nvidia-cuda-runtime", "13.1.80"),
    ("nvidia-cuda-runtime", "13.2.86"),
    ("nvidia-cuda-runtime", "13.3.29"),
    ("nvidia-cuda-runtime", "13.4.92"),
    ("nvidia-cuda-runtime", "13.5.37"),
];

/// One unit per version and way of linking.
///
/// # Errors
/// [`super::install::Missing`] without the packages; errors of the compiler.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    let mut units = Vec::new();
    for (package, version) in VERSIONS {
        let packages = kit.wheel(package, version)?;
        for (library, how) in libraries(&packages)? {
            units.push(unit(kit, version, &library, how)?);
        }
    }
    Ok(Plan {
        units,
        ..Plan::default()
    })
}

/// The runtime's libraries in a wheel, and their kinds of linking. Wheels before 12.9 have no
/// static library.
fn libraries(packages: &Path) -> Result<Vec<(PathBuf, &'static str)>> {
    let dirs = ["nvidia/cuda_runtime/lib", "nvidia/cu13/lib"].map(|dir| packages.join(dir));
    let dir = dirs.iter().find(|dir| dir.is_dir());
    let dir = dir.with_context(|| format!("no library in {}", packages.display()))?;
    let shared = ["libcudart.so.12", "libcudart.so.13"].map(|name| (dir.join(name), "shared"));
    let fixed = (dir.join("libcudart_static.a"), "static");
    let all = shared.into_iter().chain([fixed]);
    Ok(all.filter(|(library, _)| library.is_file()).collect())
}

fn unit(kit: &Kit, version: &str, library: &Path, how: &str) -> Result<Unit> {
    let name = format!("{version}-{how}");
    let program = kit.dir().join(format!("cudart-{name}"));
    let dir = library.parent().unwrap_or(library);
    run(Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source("cudart.c"))
        .arg(library)
        .arg(format!("-Wl,-rpath,{}", dir.display()))
        .args(["-ldl", "-lpthread", "-lrt"]))?;
    let tests = list_tests(&program)?;
    Ok(Unit {
        tests: tests.iter().map(|test| format!("{name}::{test}")).collect(),
        name,
        dialect: Dialect::Libtest,
        words: vec![program.into()],
        dir: kit.dir().join("scratch"),
        env: Vec::new(),
        parallel: false,
        patience: PATIENCE,
        alone: false,
    })
}
