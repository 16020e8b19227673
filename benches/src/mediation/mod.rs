//! Benchmarks of scheduling with the real daemon: vgpud with soft-gpu and its device clock, and
//! workers and guest processes as in production. Shares are measured at the device, by soft-gpu's
//! own account of each process.
//!
//! Each figure stands beside a published figure, which it should beat; the text of the figure gives
//! the conditions. The published figures were measured on GPUs. These figures come from a software
//! device whose kernels take exactly the time that its clock says. The comparison is about
//! scheduling, not about speed.

mod handoff;
mod hang;
mod latency;
mod live;
mod overhead;
mod reclaim;
mod shares;

use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_tests::device::Kernels;
use vgpu_tests::guest::{Guest, LOAD, Running, describe};
use vgpu_tests::host::{Host, Options, one_vm};

use crate::quantile::quantile;
use crate::report::Figure;

/// The length of the measurements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pace {
    /// Full length.
    Full,
    /// A fifth of the full length, to test the benchmark itself. Do not quote such figures.
    Quick,
}

impl Pace {
    fn seconds(self, full: u64) -> u64 {
        match self {
            Pace::Full => full,
            Pace::Quick => full.div_ceil(5).max(2),
        }
    }

    fn time(self, full: u64) -> Duration {
        Duration::from_secs(self.seconds(full))
    }
}

/// A part of the bench by name.
pub type Part = (&'static str, fn(Pace) -> Result<Vec<Figure>>);

/// The parts, in the order of the report.
pub const PARTS: [Part; 7] = [
    ("shares", shares::figures),
    ("latency", latency::figures),
    ("handoff", handoff::figures),
    ("hang", hang::figures),
    ("overhead", overhead::figures),
    ("reclaim", reclaim::figures),
    ("live", live::figures),
];

/// A host with one clocked device and VM 1 in pool A.
fn host(kernels: Kernels) -> Result<Host> {
    // Strict mode of soft-gpu adds checks that are off in normal use.
    let options = Options {
        strict: false,
        ..Options::default()
    };
    one_vm(&kernels.on(options))
}

/// Starts a guest that makes requests of `count` kernels and pauses for about `think` after each.
fn requests(
    host: &Host,
    vm: u32,
    (kernel, count): (&str, u32),
    think: Duration,
    seconds: u64,
) -> Result<Running> {
    Guest::new(LOAD, host.target(vm))?
        .arg("requests")
        .arg(kernel)
        .arg(count.to_string())
        .arg(think.as_micros().to_string())
        .arg(seconds.to_string())
        .spawn()
}

/// Waits for the end of a guest. Returns the numbers that the guest printed, by line.
fn printed(guest: Running, seconds: u64) -> Result<Vec<Vec<u64>>> {
    let output = guest.finish(Duration::from_secs(seconds + 30))?;
    anyhow::ensure!(output.status.success(), "{}", describe(&output));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |word: &str| {
        word.parse()
            .with_context(|| format!("a number, not {word}"))
    };
    text.lines()
        .map(|line| line.split_whitespace().map(number).collect())
        .collect()
}

/// Latencies in µs that a guest of [`requests`] printed.
fn latencies(guest: Running, seconds: u64) -> Result<Vec<f64>> {
    let lines = printed(guest, seconds)?;
    Ok(lines
        .iter()
        .filter_map(|line| Some(*line.get(1)? as f64 / 1e3))
        .collect())
}

fn p(samples: &[f64], q: f64) -> f64 {
    quantile(&mut samples.to_vec(), q)
}

/// A figure beside a published figure or a bound.
fn beside(
    name: impl Into<String>,
    value: f64,
    unit: &'static str,
    (published, baseline): (f64, &'static str),
) -> Figure {
    Figure {
        name: name.into(),
        value,
        unit,
        baseline,
        baseline_value: Some(published),
        ratio: Some(value / published),
    }
}

fn alone(name: impl Into<String>, value: f64, unit: &'static str, text: &'static str) -> Figure {
    Figure {
        name: name.into(),
        value,
        unit,
        baseline: text,
        baseline_value: None,
        ratio: None,
    }
}
