//! `vgpu-sim`: runs the proofs, prints a table and writes a report.

use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;
use clap::error::{ContextKind, ErrorKind};
use clap::{CommandFactory as _, Parser};
use vgpu_sim::arguments::{Arguments, Command};
use vgpu_sim::fuzz::{self, FuzzReport};
use vgpu_sim::mutants::{self, MutantReport};
use vgpu_sim::proofs::{ALL, Plan};
use vgpu_sim::replay;
use vgpu_sim::report::{Report, Row};
use vgpu_sim::runner::{self, Job};

/// Name of the fuzzer in the list of proofs.
const FUZZ: &str = "fuzz";

fn main() -> ExitCode {
    let arguments = Arguments::try_parse().unwrap_or_else(|mut error| {
        // clap suggests to pass the unknown option as a value, which no command means.
        if error.kind() == ErrorKind::UnknownArgument {
            error.remove(ContextKind::Suggested);
        }
        error.exit()
    });
    match prove(&arguments) {
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
        println!("{FUZZ:16} random events, compared with a model after each");
        return Ok(true);
    }
    if let Some(named) = &arguments.first_failure {
        let caught = mutants::first_failure(named);
        if let Some(caught) = &caught {
            println!("caught by {}: {}", caught.by, caught.what);
        }
        return Ok(caught.is_none());
    }
    if let Some(Command::Replay { file }) = &arguments.command {
        println!("{}", replay::sentence(&replay::replay(file)?));
        return Ok(true);
    }
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = match arguments.threads {
        Some(threads) => usize::try_from(threads).unwrap_or(usize::MAX),
        None => cpus,
    };
    if let Some(only) = &arguments.mutants {
        return Ok(mutate(only)?.passed());
    }
    if arguments.scenario.as_deref() == Some(FUZZ) {
        return Ok(fuzz_events(arguments, threads).passed());
    }
    let jobs = jobs(arguments)?;
    let begun = Instant::now();
    let mut report = Report::default();
    runner::run(&jobs, threads, &mut report);
    let took = begun.elapsed();
    let mut sound = true;
    let whole = arguments.scenario.is_none() && !arguments.proofs;
    if whole {
        let fuzzed = fuzz_events(arguments, threads);
        let mutated = mutate("")?;
        sound = fuzzed.passed() && mutated.passed();
        put_counts(&mut report, &fuzzed, &mutated);
    }
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
    if whole {
        let cpu = format!("simulation on {cpus} CPUs");
        report.write(&arguments.report, &cpu)?;
        println!("report: {}", arguments.report.display());
    }
    let failures = report.failures();
    if !failures.is_empty() {
        println!("\nFAILED: {}", failures.join(", "));
        println!("repeat one run: cargo run -q -p vgpu-sim -- WHERE [--verbose]");
    }
    Ok(sound && failures.is_empty() && report.problems.is_empty())
}

/// Runs the fuzzer: one seed, or all seeds.
fn fuzz_events(arguments: &Arguments, threads: usize) -> FuzzReport {
    let all = if arguments.ci {
        fuzz::SEEDS_CI
    } else {
        fuzz::SEEDS
    };
    let report = match (arguments.seed, &arguments.scenario) {
        (Some(seed), _) => fuzz::run_seed(seed),
        (None, Some(_)) => fuzz::run(arguments.runs.unwrap_or(all), threads),
        (None, None) => fuzz::run(all, threads),
    };
    print!("{}", report.text());
    report
}

fn mutate(only: &str) -> Result<MutantReport> {
    let only = Some(only).filter(|only| !only.is_empty());
    let report = mutants::run(&mutants::repository(), only)?;
    print!("{}", report.text());
    Ok(report)
}

/// Adds rows for counts that no proof measures.
fn put_counts(report: &mut Report, fuzzed: &FuzzReport, mutated: &MutantReport) {
    let (caught, mutants) = (mutated.caught() as f64, mutated.outcomes.len() as f64);
    let mut put = |name, what: String, value, bound, place: &str, pass| {
        let row = Row {
            name,
            what,
            unit: "",
            value,
            bound,
            place: place.to_owned(),
            pass,
        };
        report.put(row, 0.0);
    };
    put(
        "seeds",
        format!("random runs, {} events", fuzzed.events),
        fuzzed.seeds as f64,
        None,
        "--scenario fuzz",
        fuzzed.passed(),
    );
    put(
        "mutants_caught",
        "wrong schedulers that a proof noticed".to_owned(),
        caught,
        Some(mutants),
        "--mutants",
        mutated.passed(),
    );
    put(
        "mutants",
        "wrong schedulers".to_owned(),
        mutants,
        None,
        "--mutants",
        true,
    );
}

fn jobs(arguments: &Arguments) -> Result<Vec<Job>> {
    let seconds = arguments.seconds.unwrap_or(30);
    let Some(name) = &arguments.scenario else {
        let runs = arguments
            .runs
            .unwrap_or(if arguments.ci { 10 } else { 400 });
        return Ok(runner::plan(runs, seconds, 3));
    };
    let Some(proof) = ALL.iter().find(|proof| proof.name == name) else {
        let why = format!("there is no proof {name:?}; --list shows the names");
        Arguments::command()
            .error(ErrorKind::InvalidValue, why)
            .exit()
    };
    let seeds = match arguments.seed {
        Some(seed) => seed..seed + 1,
        None => 0..arguments.runs.unwrap_or(10),
    };
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
