//! Work of PyTorch on a GPU (`benches/pytorch.py`): directly, and in a VM through vgpud.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::{Map, Value};
use vgpu_tests::guest;
use vgpu_tests::host::{self, Driver, Host, Options};
use vgpu_tests::paths;

use crate::quantile::quantile;
use crate::report::{self, DIRECT, Figure};

/// Passes; each runs the program directly and in the VM.
const PASSES: usize = 3;

/// The figures of a run directly and of one in a VM.
struct Pass {
    direct: Map<String, Value>,
    vm: Map<String, Value>,
}

/// Measures and prints the table.
///
/// # Errors
/// As [`figures`].
pub fn table() -> Result<()> {
    println!("{}", report::machine(Driver::Nvidia)?);
    report::print(&figures()?);
    Ok(())
}

/// Measures the program in turn directly and in a VM.
///
/// # Errors
/// Without `python3` and PyTorch for CUDA, or if the program fails.
pub fn figures() -> Result<Vec<Figure>> {
    let host = host::one_vm(&Options {
        driver: Driver::Nvidia,
        ..Options::default()
    })?;
    let pass = |_| {
        Ok(Pass {
            direct: run(None)?,
            vm: run(Some(&host))?,
        })
    };
    let passes = (0..PASSES).map(pass).collect::<Result<Vec<_>>>()?;
    let first = &passes.first().context("no pass ran")?.direct;
    let figure = |name: &String| {
        let of = |value: &dyn Fn(&Pass) -> f64| {
            let mut all: Vec<f64> = passes.iter().map(value).collect();
            quantile(&mut all, 0.5)
        };
        let number = |figures: &Map<String, Value>| figures[name][0].as_f64().unwrap_or(f64::NAN);
        Figure {
            name: format!("pytorch_{name}"),
            value: of(&|pass| number(&pass.vm)),
            unit: unit(&first[name][1]),
            baseline: DIRECT,
            baseline_value: Some(of(&|pass| number(&pass.direct))),
            ratio: Some(of(&|pass| number(&pass.vm) / number(&pass.direct))),
        }
    };
    Ok(first.keys().map(figure).collect())
}

/// The units of `benches/pytorch.py`.
fn unit(name: &Value) -> &'static str {
    let known = ["TFLOP/s", "1/s", "GB/s", "us", "s"];
    let known = known.into_iter().find(|unit| name == unit);
    known.unwrap_or("?")
}

/// Runs the program: name → value and unit.
fn run(host: Option<&Host>) -> Result<Map<String, Value>> {
    let mut command = Command::new("python3");
    command.arg(paths::root().join("benches/pytorch.py"));
    if let Some(host) = host {
        let dirs = [paths::shim_dir()?, paths::nvml_dir()?];
        let address = format!("unix:{}", host.vm_socket(1).display());
        command
            .env("LD_LIBRARY_PATH", std::env::join_paths(dirs)?)
            .env("VGPU_ADDRESS", address);
    }
    let output = command.output().context("running python3")?;
    ensure!(output.status.success(), "{}", guest::describe(&output));
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().last().context("pytorch.py printed nothing")?;
    serde_json::from_str(line).with_context(|| text.clone().into_owned())
}
