//! Prints the table of figures and writes `target/bench/report.json`.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use vgpu_tests::host::Driver;

/// The baseline of a program that runs on the driver without vGPU.
pub const DIRECT: &str = "the same program on the driver directly";

/// One figure beside its baseline.
#[derive(Debug, Clone)]
pub struct Figure {
    /// Name, stable across versions.
    pub name: String,
    /// Measured value.
    pub value: f64,
    /// Unit of value and baseline.
    pub unit: &'static str,
    /// Description of the baseline; empty if there is none.
    pub baseline: &'static str,
    /// Baseline, measured in the same run or published.
    pub baseline_value: Option<f64>,
    /// Median over the passes of value / baseline.
    pub ratio: Option<f64>,
}

impl Figure {
    fn json(&self) -> Value {
        json!({
            "name": self.name,
            "value": self.value,
            "unit": self.unit,
            "baseline": self.baseline,
            "baseline_value": self.baseline_value,
            "ratio": self.ratio,
        })
    }
}

/// This machine's GPU and driver in one line.
fn gpu() -> Result<String> {
    let mut query = std::process::Command::new("nvidia-smi");
    query.args(["--query-gpu=name,driver_version", "--format=csv,noheader"]);
    let output = query.output().context("running nvidia-smi")?;
    ensure!(output.status.success(), "nvidia-smi: {}", output.status);
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim()
        .replace('\n', "; "))
}

/// The machine in one line: processor, cores, kernel, and with NVIDIA's driver the GPU.
///
/// # Errors
/// If nvidia-smi does not run.
pub fn machine(driver: Driver) -> Result<String> {
    let gpu = match driver {
        Driver::Soft => "no GPU".to_owned(),
        Driver::Nvidia => gpu()?,
    };
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpuinfo = read("/proc/cpuinfo");
    let model = cpuinfo
        .lines()
        .find_map(|l| l.strip_prefix("model name"))
        .map_or("unknown processor", |l| {
            l.trim_start_matches([' ', '\t', ':'])
        });
    let cores = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    Ok(format!(
        "{model}, {cores} CPUs, Linux {}, {gpu}",
        read("/proc/sys/kernel/osrelease").trim()
    ))
}

/// Prints the table.
pub fn print(figures: &[Figure]) {
    println!(
        "\n{:36} {:>12} {:10} {:>12} {:>7}  baseline",
        "figure", "value", "unit", "baseline", "ratio"
    );
    for f in figures {
        let number = |v: Option<f64>| v.map_or_else(|| "-".into(), short);
        println!(
            "{:36} {:>12} {:10} {:>12} {:>7}  {}",
            f.name,
            short(f.value),
            f.unit,
            number(f.baseline_value),
            f.ratio.map_or_else(|| "-".into(), |r| format!("{r:.2}")),
            f.baseline
        );
    }
}

/// Formats with about three significant digits.
fn short(v: f64) -> String {
    match v.abs() {
        x if x >= 1000.0 => format!("{v:.0}"),
        x if x >= 100.0 => format!("{v:.1}"),
        x if x >= 1.0 => format!("{v:.2}"),
        _ => format!("{v:.4}"),
    }
}

/// Writes the report.
///
/// # Errors
/// If the file cannot be written.
pub fn write(path: &Path, machine: &str, figures: &[Figure]) -> Result<()> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)?;
    }
    let results: Vec<Value> = figures.iter().map(Figure::json).collect();
    let text = serde_json::to_string_pretty(&json!({ "machine": machine, "results": results }))?;
    std::fs::write(path, text + "\n").with_context(|| format!("writing {}", path.display()))
}
