//! `make clients`: runs the tests of real CUDA clients, on soft-gpu directly and through the guest
//! library and vgpud.
//!
//! With `--driver=nvidia` (`tests/gpu/run.sh`): the same on this machine's GPU, with a smoke test
//! of the system. Exits 0 if there were no failures except those that `tests/clients/expected`
//! lists with a cause.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail, ensure};
use clap::{Parser, ValueEnum};
use serde_json::Value;
use vgpu_tests::clients::expected::Expected;
use vgpu_tests::clients::install::{Kit, Missing};
use vgpu_tests::clients::plan::Plan;
use vgpu_tests::clients::row::{self, Choice, Row};
use vgpu_tests::clients::stand::Mode;
use vgpu_tests::clients::suites::{self, Suite};
use vgpu_tests::clients::{report, smoke};
use vgpu_tests::host::Driver;

/// Run the tests of real CUDA clients
#[derive(Debug, Parser)]
struct Options {
    /// Only the part that CI runs
    #[arg(long)]
    ci: bool,
    /// Only these suites
    #[arg(long = "suite", value_name = "NAME")]
    suites: Vec<String>,
    /// Only this row
    #[arg(long)]
    row: Option<RowName>,
    /// On which driver
    #[arg(long, default_value = "soft")]
    driver: DriverName,
    /// Only units (test files) whose names contain this
    #[arg(long, value_name = "TEXT", value_parser = clap::builder::NonEmptyStringValueParser::new())]
    only: Vec<String>,
    /// Our own guest programs on the driver as well: right results, a hang that is ended
    #[arg(long)]
    smoke: bool,
    /// Units at once [default: the number of CPUs, 4 at most]
    #[arg(long)]
    jobs: Option<NonZeroUsize>,
    /// The report [default: target/clients/report.json]
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RowName {
    Direct,
    Remoted,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum DriverName {
    Soft,
    Nvidia,
}

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("clients: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> Result<bool> {
    if options.driver() == Driver::Nvidia {
        has_driver()?;
    }
    let kit = Kit::of_checkout();
    let choice = Choice {
        ci: options.ci,
        only: options.only.clone(),
        jobs: options.jobs.map_or_else(
            || std::thread::available_parallelism().map_or(1, |cpus| cpus.get().min(4)),
            NonZeroUsize::get,
        ),
        logs: kit.dir().join("logs"),
    };
    let mut run = Run {
        options,
        kit: &kit,
        choice: &choice,
        path: options
            .report
            .clone()
            .unwrap_or_else(|| kit.dir().join("report.json")),
        rows: Vec::new(),
        as_expected: true,
        known: Vec::new(),
        missing: Vec::new(),
        broken: Vec::new(),
    };
    // An unwritable report is detected before the suites run.
    report::write(&run.path, &run.rows)?;
    if options.smoke {
        let mode = smoke::mode(options.driver());
        let tests = smoke::run(mode.driver).context("the smoke test")?;
        let row = Row {
            suite: "system",
            version: env!("CARGO_PKG_VERSION"),
            mode,
            outcome: Ok(tests),
        };
        run.finished(&row, &Expected::default())?;
    }
    for suite in options.suites()? {
        run.suite(suite)?;
    }
    run.end()
}

/// A run of suites.
struct Run<'a> {
    options: &'a Options,
    kit: &'a Kit,
    choice: &'a Choice,
    /// The report.
    path: PathBuf,
    /// The rows of the report.
    rows: Vec<Value>,
    /// Whether all rows so far are as `tests/clients/expected` says.
    as_expected: bool,
    /// The units of each suite.
    known: Vec<(&'static str, Vec<String>)>,
    /// Suites that could not be fetched.
    missing: Vec<&'static str>,
    /// Suites with a row that did not complete.
    broken: Vec<&'static str>,
}

impl Run<'_> {
    /// Prints a row and adds it to the report.
    fn finished(&mut self, row: &Row, expected: &Expected) -> Result<()> {
        self.as_expected &= report::print(row, expected, self.options.ci);
        self.rows.push(report::to_json(row, expected));
        report::write(&self.path, &self.rows)
    }

    /// Runs the rows of a suite.
    fn suite(&mut self, suite: &'static Suite) -> Result<()> {
        let expected = Expected::read(suite.name)?;
        if self.options.ci && expected.by_hand() {
            println!("{}: skipped, it runs by hand only", suite.name);
            return Ok(());
        }
        let plan = plan_of(suite, self.kit)?;
        match &plan {
            Ok(plan) => {
                let units: Vec<String> = plan.units.iter().map(|unit| unit.name.clone()).collect();
                if let Some(vain) = expected.ci_in_vain(&units) {
                    eprintln!(
                        "clients: FAILED: tests/clients/expected/{}.toml: {vain}",
                        suite.name
                    );
                    self.broken.push(suite.name);
                }
                self.known.push((suite.name, units));
            }
            Err(_) => self.missing.push(suite.name),
        }
        for row in rows_of(suite, &plan, self.options, &expected, self.choice) {
            match row {
                Ok(row) => self.finished(&row, &expected)?,
                // The other suites still run.
                Err(e) => {
                    eprintln!("clients: FAILED: {e:#}");
                    self.broken.push(suite.name);
                }
            }
        }
        for left_out in expected.all_left_out() {
            let units = left_out.units.join(", ");
            println!(
                "    left out of {}: {units}: {}",
                suite.name, left_out.cause
            );
        }
        Ok(())
    }

    /// Prints the times and the place of the report. Returns whether all rows are as expected.
    ///
    /// # Errors
    /// Suites that did not run to the end, named suites that could not be fetched, and names of
    /// units that no suite has.
    fn end(self) -> Result<bool> {
        report::print_times(&self.rows);
        println!("clients: {}", self.path.display());
        if let Some(vain) = self.choice.named_in_vain(&self.known) {
            bail!(vain);
        }
        ensure!(
            self.options.suites.is_empty() || self.missing.is_empty(),
            "{} could not be had, see SKIPPED above",
            self.missing.join(", ")
        );
        ensure!(
            self.broken.is_empty(),
            "{} did not run to the end, see FAILED above",
            self.broken.join(", ")
        );
        Ok(self.as_expected)
    }
}

/// Checks that this machine has NVIDIA's driver. Without this check, every test would fail
/// separately.
fn has_driver() -> Result<()> {
    // SAFETY: loading runs the initialisers of a library that every CUDA program of this machine
    // loads.
    let library = unsafe { libloading::Library::new("libcuda.so.1") };
    library.map(drop).map_err(|e| {
        anyhow!("--driver=nvidia, but NVIDIA's driver is not installed here ({e}); --driver=soft runs the suites on soft-gpu")
    })
}

/// The plan of a suite, or the reason for which it could not be fetched.
fn plan_of(suite: &Suite, kit: &Kit) -> Result<Result<Plan, String>> {
    // A suite that could not be fetched is skipped. Any other error fails the run.
    match (suite.plan)(kit) {
        Ok(plan) => Ok(Ok(plan)),
        Err(e) => match e.downcast::<Missing>() {
            Ok(Missing(why)) => Ok(Err(why)),
            Err(e) => Err(e.context(format!("preparing {}", suite.name))),
        },
    }
}

/// The rows of a suite, each run on demand.
fn rows_of<'a>(
    suite: &'a Suite,
    plan: &'a Result<Plan, String>,
    options: &Options,
    expected: &'a Expected,
    choice: &'a Choice,
) -> impl Iterator<Item = Result<Row>> + 'a {
    options.modes().into_iter().map(move |mode| {
        let outcome = match plan {
            Ok(plan) => Ok(row::run(suite, plan, mode, expected, choice)
                .with_context(|| format!("{} {mode}", suite.name))?),
            Err(why) => Err(why.clone()),
        };
        Ok(Row {
            suite: suite.name,
            version: suite.version,
            mode,
            outcome,
        })
    })
}

impl Options {
    fn driver(&self) -> Driver {
        match self.driver {
            DriverName::Soft => Driver::Soft,
            DriverName::Nvidia => Driver::Nvidia,
        }
    }

    fn modes(&self) -> Vec<Mode> {
        let [direct, remoted] = Mode::both(self.driver());
        match self.row {
            None => vec![direct, remoted],
            Some(RowName::Direct) => vec![direct],
            Some(RowName::Remoted) => vec![remoted],
        }
    }

    fn suites(&self) -> Result<Vec<&'static Suite>> {
        if self.suites.is_empty() {
            return Ok(suites::ALL.iter().collect());
        }
        let find = |name: &String| {
            let known = || {
                suites::ALL
                    .iter()
                    .map(|s| s.name)
                    .collect::<Vec<_>>()
                    .join(", ")
            };
            let suite = suites::ALL.iter().find(|suite| suite.name == name);
            suite.with_context(|| format!("there is no suite {name}; the suites are {}", known()))
        };
        self.suites.iter().map(find).collect()
    }
}
