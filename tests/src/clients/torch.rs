//! PyTorch: `tests/clients/test_torch.py`. Each test runs in a separate process, because the work
//! on the device is compared per test.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Result, ensure};

use super::follow::{Unit, without_the_caller_s};
use super::install::{Kit, Venv, run, source};
use super::plan::{Plan, pytest};

const FILE: &str = "test_torch.py";

/// PyTorch for CUDA 13.
///
/// # Errors
/// [`super::install::Missing`] without the packages.
pub(super) fn cu13(kit: &Kit) -> Result<Plan> {
    plan(&kit.venv("torch-cu13")?, kit)
}

/// PyTorch for CUDA 12.
///
/// # Errors
/// As [`cu13`].
pub(super) fn cu12(kit: &Kit) -> Result<Plan> {
    plan(&kit.venv("torch-cu12")?, kit)
}

fn plan(venv: &Venv, kit: &Kit) -> Result<Plan> {
    let tests = tests(&venv.python)?;
    let unit = |test: String| unit(venv, kit, &test);
    Ok(Plan {
        units: tests.into_iter().map(unit).collect(),
        direct_libraries: vec![nvml_for_soft_gpu(kit)?],
        prefix: "test_torch.py::",
        // The wheels contain no PTX.
        device: vec![("SOFT_GPU_SASS".into(), "skip".into())],
        // Triton uses its own ptxas for machine code if there is a GPU.
        soft_env: vec![("TRITON_PTXAS_PATH".into(), source("ptxas_ptx.sh").into())],
        same_work: true,
        idle: &[
            "test_torch.py::test_device_is_described",
            "test_torch.py::test_nvml_is_the_vm_s",
        ],
        ..Plan::default()
    })
}

/// The directory of the library that NCCL takes for NVIDIA's management library in the direct row.
fn nvml_for_soft_gpu(kit: &Kit) -> Result<PathBuf> {
    let dir = kit.dir().join("nvml-direct");
    std::fs::create_dir_all(&dir)?;
    run(Command::new("cc")
        .args([
            "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o",
        ])
        .arg(dir.join("libnvidia-ml.so.1"))
        .arg(source("nvml_direct.c")))?;
    Ok(dir)
}

fn unit(venv: &Venv, kit: &Kit, test: &str) -> Unit {
    let mut unit = pytest(venv, test, &[source("").join(test).into()]);
    unit.dir = kit.dir().join("scratch");
    unit.words
        .push(format!("--rootdir={}", source("").display()).into());
    let caches = kit.dir().join("scratch/inductor");
    unit.env.extend([
        ("TORCHINDUCTOR_CACHE_DIR".into(), caches.into()),
        ("USE_PYTORCH_KERNEL_CACHE".into(), "0".into()),
    ]);
    unit.alone = true;
    unit
}

/// The tests of the file, under their pytest names.
fn tests(python: &Path) -> Result<Vec<String>> {
    let mut list = Command::new(python);
    without_the_caller_s(&mut list).args([
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "--collect-only",
        "-q",
    ]);
    let output = list.arg(FILE).current_dir(source("")).output()?;
    ensure!(
        output.status.success(),
        "listing the tests of {FILE}: {}",
        crate::guest::describe(&output)
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let tests = text.lines().filter(|line| line.starts_with(FILE));
    Ok(tests.map(str::to_owned).collect())
}
