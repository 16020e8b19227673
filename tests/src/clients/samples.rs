//! NVIDIA's cuda-samples of `0_Introduction` and `3_CUDA_Features`, built with nvcc from PyPI
//! (`tests/clients/cuda_samples.py`).

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::follow::Unit;
use super::install::{Kit, run, source};
use super::plan::{PTX_ONLY, Plan, pytest};
use crate::paths;

/// Newer samples call `cuCtxCreate` in the form of CUDA 13, so CUDA 12 needs older samples.
pub(super) const OF_CUDA_12: &str = "v12.9";
pub(super) const OF_CUDA_13: &str = "c94ff366aed18c797b8a85dfaac7817b0228b420";

/// Time for two runs of a sample that multiplies large matrices, and for its compilation, on a busy
/// machine.
const PATIENCE: Duration = Duration::from_secs(1800);

const GROUPS: [&str; 2] = ["0_Introduction", "3_CUDA_Features"];

/// The samples that link cuBLAS. A software device runs cuBLAS only if the device is newer than the
/// machine code in cuBLAS, so these samples are a suite with such a device.
const WITH_CUBLAS: [&str; 1] = ["UnifiedMemoryStreams"];

/// One unit per sample; its tests are its builds.
///
/// # Errors
/// [`super::install::Missing`] without the samples or the compiler.
pub(super) fn plan(kit: &Kit) -> Result<Plan> {
    plan_of(kit, "cuda-samples", &["cu12", "nvcc", "samples"])
}

/// The same for the samples that link cuBLAS.
///
/// # Errors
/// [`super::install::Missing`] without the samples, the compiler or cuBLAS.
pub(super) fn with_cublas(kit: &Kit) -> Result<Plan> {
    let venvs = ["cu12", "nvcc", "samples", "libraries-cu12", "libraries"];
    let mut plan = plan_of(kit, "cuda-samples-cublas", &venvs)?;
    plan.units
        .retain(|unit| WITH_CUBLAS.contains(&unit.name.as_str()));
    for unit in &mut plan.units {
        unit.env.push(("VGPU_SAMPLES_CC".into(), PTX_ONLY.into()));
    }
    plan.device = vec![("SOFT_GPU_CC".into(), PTX_ONLY.into())];
    Ok(plan)
}

/// `builds` names the directory of the programs. The toolkits are made from `venvs`: headers of
/// CUDA 12, the compiler, further packages, and perhaps NVIDIA's libraries of CUDA 12 and 13.
fn plan_of(kit: &Kit, builds: &str, venvs: &[&str]) -> Result<Plan> {
    let (twelve, thirteen) = match std::env::var_os("VGPU_CUDA_SAMPLES").map(PathBuf::from) {
        // One checkout serves both versions of CUDA.
        Some(dir) if dir.join("Samples").is_dir() => (dir.clone(), dir),
        _ => {
            let checkout = |at| kit.checkout("VGPU_CUDA_SAMPLES", "cuda-samples", at);
            (checkout(OF_CUDA_12)?, checkout(OF_CUDA_13)?)
        }
    };
    let builds = kit.dir().join(builds);
    let toolkits = builds.join("toolkits");
    let script = source("cuda_samples.py");
    let mut of = vec![script.clone()];
    of.extend(
        venvs
            .iter()
            .map(|name| source(&format!("requirements/{name}.txt"))),
    );
    let of: Vec<&Path> = of.iter().map(PathBuf::as_path).collect();
    let made = kit.made_of(&toolkits, &of)?;
    let with = kit.venv("samples")?;
    let soft = paths::soft_gpu_dir()?;
    if !made.is_current() {
        let mut maker = Command::new(&with.python);
        maker
            .arg(&script)
            .arg(&toolkits)
            .arg(soft.join("libcuda.so.1"));
        for name in venvs {
            let python = kit.venv(name)?.python;
            maker.args(python.parent().and_then(Path::parent));
        }
        run(&mut maker)?;
        made.say()?;
    }
    let env: Vec<(OsString, OsString)> = vec![
        ("PYTHONPATH".into(), source("").into()),
        ("VGPU_SAMPLES".into(), builds.into()),
        ("VGPU_SAMPLES_12".into(), twelve.into()),
        ("VGPU_SAMPLES_13".into(), thirteen.clone().into()),
        ("VGPU_SAMPLES_DRIVER".into(), soft.into()),
    ];
    let file = "test_cuda_samples.py";
    let unit = |name: String| {
        let mut unit = Unit {
            dir: source(""),
            patience: PATIENCE,
            ..pytest(&with, &name, &[source(file).into()])
        };
        unit.env.clone_from(&env);
        unit.env.push(("VGPU_SAMPLE".into(), name.into()));
        unit
    };
    Ok(Plan {
        units: names(&thirteen)?.into_iter().map(unit).collect(),
        prefix: "test_cuda_samples.py::",
        ..Plan::default()
    })
}

/// The samples of a checkout.
fn names(checkout: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for group in GROUPS {
        let dir = checkout.join("Samples").join(group);
        let entries =
            std::fs::read_dir(&dir).with_context(|| format!("reading {}", dir.display()))?;
        for entry in entries {
            let path = entry?.path();
            if path.join("CMakeLists.txt").is_file() {
                names.extend(path.file_name().map(|n| n.to_string_lossy().into_owned()));
            }
        }
    }
    ensure!(!names.is_empty(), "no samples in {}", checkout.display());
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clients::events::BY_SIGNAL;

    /// What `cuda_samples.py` decides about outputs, ends and times; the argument is [`BY_SIGNAL`].
    const DECISIONS: &str = r#"
import sys
from cuda_samples import MOST_SECONDS, SAYS, ending, normalised, too_slow
# Times and addresses are not compared, but results are.
assert normalised("took 3.1 ms\nat 0x7f00") == normalised("at 0x7f11\ntook 12 ms")
assert normalised("sum = 3.0") != normalised("sum = 3.1")
assert normalised("Result = PASS") != normalised("Result = FAIL")
assert ending(-11) == sys.argv[1] + "11" and ending(1) == "status 1"
assert set(MOST_SECONDS) == {name for name in SAYS if name.endswith("TensorCoreGemm")}
assert too_slow("tf32TensorCoreGemm", 60) is None and "93.0 s" in too_slow("tf32TensorCoreGemm", 93)
assert too_slow("vectorAdd", 1000) is None
"#;

    #[test]
    fn the_python_part_decides_rightly() -> Result<()> {
        let mut python = Command::new("python3");
        python.args(["-B", "-c", DECISIONS, BY_SIGNAL]);
        let output = python.env("PYTHONPATH", source("")).output()?;
        ensure!(
            output.status.success(),
            "{}",
            crate::guest::describe(&output)
        );
        Ok(())
    }
}
