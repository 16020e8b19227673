//! CuPy's own tests, from the published source.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::follow::Unit;
use super::install::{Kit, fetch};
use super::plan::{PTX_ONLY, Plan, pytest, test_files};

/// Version of CuPy, as in `requirements/cupy.txt`.
pub(super) const VERSION: &str = "14.2.0";

/// Test folders that run: common parts of CuPy, and parts with special uses of the device.
const FOLDERS: &[&str] = &[
    "tests/cupy_tests/core_tests",
    "tests/cupy_tests/creation_tests",
    "tests/cupy_tests/cuda_tests",
    "tests/cupy_tests/fft_tests",
    "tests/cupy_tests/indexing_tests",
    "tests/cupy_tests/linalg_tests",
    "tests/cupy_tests/math_tests",
    "tests/cupy_tests/random_tests",
    "tests/cupyx_tests/scipy_tests/sparse_tests",
];

/// Fetches the tests from PyPI; arguments: address, SHA-256 of the file, destination.
const FETCH: &str = r#"
import hashlib, io, sys, tarfile, urllib.request
address, digest, into = sys.argv[1:]
published = urllib.request.urlopen(address, timeout=180).read()
if hashlib.sha256(published).hexdigest() != digest:
    sys.exit(f"{address} is not what was published")
with tarfile.open(fileobj=io.BytesIO(published)) as source:
    wanted = [m for m in source if "/tests/" in m.name or m.name.endswith("/pyproject.toml")]
    source.extractall(into, members=wanted, filter="data")
"#;
const ADDRESS: &str = "https://files.pythonhosted.org/packages/dc/10/059a92d40b161ea24607c9e41a75098812ca7021f2b565524f87beba15c9/cupy-14.2.0.tar.gz";
const DIGEST: &str = "cfed725e612178cfbdbf62f4a3a598b60edecbbca718c0d4580c21a16ae4a62c";

/// One unit per test file.
///
/// # Errors
/// [`super::install::Missing`] without the packages or the source.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    let venv = kit.venv("cupy")?;
    let source = source(kit, &venv.python)?;
    let nvcc = kit.venv("nvcc")?.packages.join("nvidia/cu13/bin/nvcc");
    let mut units = Vec::new();
    for folder in FOLDERS {
        for file in test_files(&source.join(folder))? {
            let file = format!("{folder}/{file}");
            let mut unit = Unit {
                dir: source.clone(),
                ..pytest(&venv, &file, &[(&file).into()])
            };
            // Kernels are compiled once for both rows.
            let cache = kit.dir().join("cupy-kernels");
            unit.env.push(("CUPY_CACHE_DIR".into(), cache.into()));
            unit.env.push(("NVCC".into(), nvcc.clone().into()));
            // Tests that need several devices are skipped.
            unit.env.push(("CUPY_TEST_GPU_LIMIT".into(), "1".into()));
            // Jitify determines the available headers once, by hundreds of compilations.
            unit.patience = Duration::from_secs(1800);
            units.push(unit);
        }
    }
    Ok(Plan {
        units,
        prefix: "tests/",
        device: vec![("SOFT_GPU_CC".into(), PTX_ONLY.into())],
        ..Plan::default()
    })
}

/// CuPy's source: a checkout that `VGPU_CUPY` names, or the file from PyPI.
fn source(kit: &Kit, python: &Path) -> Result<PathBuf> {
    if let Some(dir) = std::env::var_os("VGPU_CUPY") {
        let dir = PathBuf::from(dir);
        let tests = dir.join(FOLDERS[0]);
        ensure!(
            tests.is_dir(),
            "VGPU_CUPY is set, but {} is no directory",
            tests.display()
        );
        return Ok(dir);
    }
    let dir = kit.dir().join(format!("cupy-{VERSION}"));
    if !dir.is_dir() {
        let new = kit.dir().join("cupy.new");
        let _ = std::fs::remove_dir_all(&new);
        println!("clients: fetching the tests of CuPy {VERSION}");
        let mut get = Command::new(python);
        fetch(get.args(["-c", FETCH, ADDRESS, DIGEST]).arg(&new))?;
        std::fs::rename(new.join(format!("cupy-{VERSION}")), &dir)?;
    }
    Ok(dir)
}
