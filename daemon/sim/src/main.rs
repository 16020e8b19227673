//! `vgpu-sim`: runs the proofs, prints a table and writes a report.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use clap::Parser;
use vgpu_sim::proofs::{ALL, Plan};
use vgpu_sim::report::Report;
use vgpu_sim::runner::{self, Job};

/// Proves the scheduler's bounds in simulation. Without arguments: all proofs, as `make sim` does.
#[derive(Debug, Parser)]
#[command(version)]
struct Arguments {
    /// Fewer and shorter runs: 10 of 30 simulated seconds, the rest brief
    #[arg(long)]
    ci: bool,
    /// Only this proof; with --seed one run of it
    #[arg(long, value_name = "NAME")]
    scenario: Option<String>,
    /// Which run of the proof
    #[arg(long, requires = "scenario")]
    seed: Option<u64>,
    /// Simulated seconds of each run
    #[arg(long)]
    seconds: Option<u64>,
    /// Runs over all proofs
    #[arg(long)]
    runs: Option<u64>,
    /// Print every event and decision of the run
    #[arg(long, requires = "seed")]
    verbose: bool,
    /// List the proofs
    #[arg(long)]
    list: bool,
    /// Threads; the results do not depend on it
    #[arg(long)]
    threads: Option<usize>,
    /// Where to write the report
    #[arg(long, default_value = "target/sim/report.json")]
    report: PathBuf,
}

fn main() -> ExitCode {
    match prove(&Arguments::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("vgpu-sim: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn prove(arguments: &Arguments) -> Result<bool> {
    if arguments.list {
        for proof in ALL {
            println!("{:16} {}", proof.name, proof.what);
        }
        return Ok(true);
    }
    let jobs = jobs(arguments)?;
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let begun = Instant::now();
    let mut report = Report::default();
    runner::run(&jobs, arguments.threads.unwrap_or(cpus), &mut report);
    let took = begun.elapsed();
    report.print();
    println!(
        "\n{} runs, {:.0} simulated s, {:.1} M operations, {:.1} M decisions in {:.1} s ({:.2} M operations/s)",
        report.runs,
        report.simulated_ns as f64 / 1e9,
        report.operations as f64 / 1e6,
        report.decisions as f64 / 1e6,
        took.as_secs_f64(),
        report.operations as f64 / 1e6 / took.as_secs_f64(),
    );
    if arguments.scenario.is_none() {
        let cpu = format!("simulation on {cpus} CPUs");
        report.write(&arguments.report, &cpu)?;
        println!("report: {}", arguments.report.display());
    }
    let failures = report.failures();
    if !failures.is_empty() {
        println!("\nFAILED: {}", failures.join(", "));
        println!("one run again: cargo run -q -p vgpu-sim -- <where> [--verbose]");
    }
    Ok(failures.is_empty() && report.problems.is_empty())
}

fn jobs(arguments: &Arguments) -> Result<Vec<Job>> {
    let seconds = arguments.seconds.unwrap_or(30);
    let Some(name) = &arguments.scenario else {
        let runs = arguments
            .runs
            .unwrap_or(if arguments.ci { 10 } else { 300 });
        return Ok(runner::plan(runs, seconds, 3));
    };
    let proof = ALL
        .iter()
        .find(|proof| proof.name == name)
        .with_context(|| format!("no proof is called {name:?}; --list shows them"))?;
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => 0..arguments.runs.unwrap_or(10),
    };
    if seeds.is_empty() {
        bail!("--runs must be at least 1");
    }
    let plans = seeds.map(|seed| Job {
        proof,
        plan: Plan {
            seed,
            seconds,
            verbose: arguments.verbose,
        },
    });
    Ok(plans.collect())
}
