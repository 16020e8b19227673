//! Compares kernels on soft-gpu, in this process, with the same loops in plain single-threaded
//! Rust. Runs of both alternate, and their results are compared.
//!
//! soft-gpu spreads the warps of a grid over the processors (`SOFT_GPU_THREADS` limits their
//! number); the plain loop uses one processor. The time of a launch includes the synchronisation,
//! but no copies.

mod plain;

use std::ffi::CString;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use vgpu_tests::paths;

use self::plain::{Arg, Case};
use crate::cuda::{Kernel, Program, Shape};
use crate::quantile::quantile;
use crate::report::Figure;

/// Number of pairs per figure.
pub const PAIRS: usize = 11;

/// Folder of the kernels' PTX, relative to the root of the repository.
const FIXTURES: &str = "soft-gpu/fixtures/demo";

/// A case that is ready for launch.
struct Loaded {
    kernel: Kernel,
    shape: Shape,
    args: Vec<u64>,
    output: u64,
    bytes: usize,
}

/// Runs the cases in `named` (all cases if `named` is empty), with `pairs` pairs each.
///
/// # Errors
/// If there is no such case, soft-gpu cannot be loaded, or the results of a pair differ.
pub fn figures(pairs: usize, named: &[&str]) -> Result<Vec<Figure>> {
    let mut cases = plain::cases();
    let names: Vec<&str> = cases.iter().map(|c| c.name()).collect();
    if let Some(unknown) = named.iter().find(|n| !names.contains(n)) {
        bail!(
            "there is no kernel {unknown}; the kernels are {}",
            names.join(", ")
        );
    }
    let library = paths::soft_gpu_dir()?.join("libcuda.so.1");
    let program = Program::start(&library, &source("null")?)?;
    cases
        .iter_mut()
        .filter(|c| named.is_empty() || named.contains(&c.name()))
        .map(|case| figure(&program, &mut **case, pairs).with_context(|| case.name()))
        .collect()
}

fn source(file: &str) -> Result<CString> {
    let path = paths::root().join(FIXTURES).join(format!("{file}.ptx"));
    let text = std::fs::read(&path).with_context(|| format!("reading {}", path.display()))?;
    Ok(CString::new(text)?)
}

fn figure(program: &Program, case: &mut dyn Case, pairs: usize) -> Result<Figure> {
    let mut loaded = load(program, case)?;
    let zeros = vec![0u8; loaded.bytes];
    let mut result = zeros.clone();
    let (mut soft, mut plain, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for pair in 0..=pairs {
        program.upload(loaded.output, &zeros)?;
        let start = Instant::now();
        program.launch_kernel(loaded.kernel, &loaded.shape, &mut loaded.args)?;
        program.synchronize()?;
        let here = start.elapsed().as_secs_f64() * 1e3;
        let start = Instant::now();
        case.plain();
        let there = start.elapsed().as_secs_f64() * 1e3;
        program.download(&mut result, loaded.output)?;
        case.check(&result)?;
        // The first pair is not counted: it fills caches and maps pages.
        if pair > 0 {
            soft.push(here);
            plain.push(there);
            ratios.push(here / there);
        }
    }
    Ok(Figure {
        name: format!("soft_{}", case.name()),
        value: quantile(&mut soft, 0.5),
        unit: "ms",
        baseline: "the same loop in plain Rust, one thread",
        baseline_value: Some(quantile(&mut plain, 0.5)),
        ratio: Some(quantile(&mut ratios, 0.5)),
    })
}

fn load(program: &Program, case: &dyn Case) -> Result<Loaded> {
    let (file, kernel) = case.kernel();
    let kernel = program.kernel(source(file)?.to_bytes_with_nul(), &CString::new(kernel)?)?;
    let (mut output, mut bytes, mut args) = (0, 0, Vec::new());
    for arg in case.args() {
        args.push(match arg {
            Arg::Input(data) => {
                let at = program.alloc(data.len())?;
                program.upload(at, &data)?;
                at
            }
            Arg::Output(len) => {
                output = program.alloc(len)?;
                bytes = len;
                output
            }
            Arg::Word(word) => u64::from(word),
        });
    }
    ensure!(bytes > 0, "the kernel has no output");
    Ok(Loaded {
        kernel,
        shape: case.shape(),
        args,
        output,
        bytes,
    })
}
