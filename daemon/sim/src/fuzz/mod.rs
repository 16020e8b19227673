//! Feeds random events of all kinds, valid and invalid, to the scheduler. After each event an
//! independent model checks the invariants.
//!
//! A run is a seed and a list of *genes*, random numbers that each decide one step. A run without
//! some of its genes is still valid. So a failing run can be shrunk: by this module, and by
//! proptest in the scheduler's tests.

mod buckets;
mod character;
mod check;
mod coverage;
mod lags;
mod make;
mod model;
mod shrink;
mod states;
mod steps;
mod world;

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub use coverage::{Coverage, Subject};

use crate::rng::Rng;

/// `Err` describes the violated invariant.
type Verdict = Result<(), String>;

macro_rules! ensure {
    ($holds:expr, $($what:tt)+) => {
        let holds: bool = $holds;
        if !holds {
            return Err(format!($($what)+));
        }
    };
}
use ensure;

/// Longest run, in genes.
pub const LONGEST: u64 = 2_000;

/// With this number of seeds or more, events must reach every reachable cell of the coverage table.
const FULL_COVERAGE_FROM: u64 = SEEDS_CI;

/// A failed run, after shrinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// Seed of the run.
    pub seed: u64,
    /// The violated invariant.
    pub what: String,
    /// Events and actions of the shortest failing run.
    pub story: Vec<String>,
}

/// Results of several runs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FuzzReport {
    /// Number of runs.
    pub seeds: u64,
    /// Number of events fed.
    pub events: u64,
    /// Number of resulting actions.
    pub actions: u64,
    /// Number of events in the longest run.
    pub longest: u64,
    /// Events by kind and state.
    pub coverage: Coverage,
    /// The first failures, by seed.
    pub failures: Vec<Failure>,
    /// Elapsed real time.
    pub took: Duration,
}

impl FuzzReport {
    /// Whether all runs passed. With many seeds, an unreached cell of the coverage table is a
    /// failure.
    #[must_use]
    pub fn passed(&self) -> bool {
        self.failures.is_empty()
            && (self.seeds < FULL_COVERAGE_FROM || self.coverage.empty().is_empty())
    }

    /// The report as text: counts, the coverage table, and the failures with commands that repeat
    /// them.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = format!(
            "fuzz: {} seeds, {} events (longest run {}), {} actions, {:.1} s\n",
            self.seeds,
            self.events,
            self.longest,
            self.actions,
            self.took.as_secs_f64()
        );
        text.push_str(&self.coverage.table());
        let empty = self.coverage.empty();
        let _ = writeln!(
            text,
            "event × state: {} of {} cells met",
            self.coverage.cells() - empty.len(),
            self.coverage.cells()
        );
        let told = usize::from(self.seeds >= FULL_COVERAGE_FROM) * empty.len();
        for cell in empty.into_iter().take(told) {
            let _ = writeln!(text, "  never: {cell}");
        }
        for failure in &self.failures {
            let _ = writeln!(
                text,
                "seed {}: {}\n  again: cargo run -q -p vgpu-sim -- --scenario fuzz --seed {}",
                failure.seed, failure.what, failure.seed
            );
            for line in &failure.story {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }

    fn merge(&mut self, other: Self) {
        self.seeds += other.seeds;
        self.events += other.events;
        self.actions += other.actions;
        self.longest = self.longest.max(other.longest);
        self.coverage.merge(&other.coverage);
        self.failures.extend(other.failures);
    }
}

/// Number of seeds of a full run, as in `make sim`.
pub const SEEDS: u64 = 100_000;
/// Number of seeds in CI.
pub const SEEDS_CI: u64 = 2_000;

/// Runs the seeds from 0 to `seeds` - 1 on `threads` threads. Stops after a few failures.
#[must_use]
pub fn run(seeds: u64, threads: usize) -> FuzzReport {
    run_range(0, seeds, threads)
}

/// Runs one seed. A failure in the report has all events and actions.
#[must_use]
pub fn run_seed(seed: u64) -> FuzzReport {
    run_range(seed, seed + 1, 1)
}

fn run_range(first: u64, end: u64, threads: usize) -> FuzzReport {
    let begun = Instant::now();
    let next = AtomicU64::new(first);
    let total = Mutex::new(FuzzReport::default());
    quietly(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let mut mine = FuzzReport::default();
                    while mine.failures.is_empty() {
                        let seed = next.fetch_add(1, Ordering::Relaxed);
                        if seed >= end {
                            break;
                        }
                        one(seed, &mut mine);
                    }
                    if let Ok(mut total) = total.lock() {
                        total.merge(mine);
                    }
                });
            }
        });
    });
    let mut report = total.into_inner().unwrap_or_default();
    report.failures.sort_by_key(|failure| failure.seed);
    report.took = begun.elapsed();
    report
}

/// The genes of a seed: mostly a short run, sometimes a run of the full length.
fn genes(seed: u64) -> Vec<u64> {
    let mut rng = Rng::part(seed, 3);
    let most = match rng.below(8) {
        0 => LONGEST,
        1..=3 => 600,
        _ => 200,
    };
    let length = if rng.below(64) == 0 {
        LONGEST
    } else {
        rng.between(20, most)
    };
    (0..length).map(|_| rng.bits()).collect()
}

fn one(seed: u64, report: &mut FuzzReport) {
    let genes = genes(seed);
    report.seeds += 1;
    let outcome = play(seed, &genes, false);
    report.events += outcome.events;
    report.actions += outcome.actions;
    report.longest = report.longest.max(outcome.events);
    report.coverage.merge(&outcome.coverage);
    if outcome.failed.is_some() {
        let genes = shrink::shrink(genes, |genes| play(seed, genes, false).failed.is_some());
        let outcome = play(seed, &genes, true);
        report.failures.push(Failure {
            seed,
            what: outcome.failed.unwrap_or_default(),
            story: outcome.story,
        });
    }
}

/// One run and its result.
#[derive(Debug, Default)]
struct Outcome {
    events: u64,
    actions: u64,
    coverage: Coverage,
    failed: Option<String>,
    story: Vec<String>,
}

/// Runs one seed with these genes. A panic of the scheduler counts as a failure. `tell`: record
/// events and actions.
fn play(seed: u64, genes: &[u64], tell: bool) -> Outcome {
    let mut world = None;
    let verdict = catch_unwind(AssertUnwindSafe(|| {
        let world = world.insert(world::World::new(seed, tell)?);
        genes.iter().try_for_each(|&gene| world.step(gene))?;
        world.finish()
    }));
    let failed = match verdict {
        Ok(verdict) => verdict.err(),
        Err(panic) => Some(format!("panic: {}", panic_text(panic.as_ref()))),
    };
    let Some(world) = world else {
        return Outcome {
            failed,
            ..Outcome::default()
        };
    };
    Outcome {
        events: world.events,
        actions: world.actions,
        coverage: world.coverage,
        failed,
        story: world.story.unwrap_or_default(),
    }
}

/// The violated invariant of the first failing seed of `seeds` seeds, without shrinking.
#[must_use]
pub fn first_failure(seeds: u64) -> Option<String> {
    let mut found = None;
    quietly(|| {
        found = (0..seeds).find_map(|seed| {
            let failed = play(seed, &genes(seed), false).failed;
            failed.map(|what| format!("seed {seed}: {what}"))
        });
    });
    found
}

/// Runs a seed with the caller's genes, for tests that shrink by themselves.
///
/// # Errors
/// The violated invariant.
pub fn check(seed: u64, genes: &[u64]) -> Result<(), String> {
    match play(seed, genes, false).failed {
        None => Ok(()),
        Some(what) => Err(what),
    }
}

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    if let Some(text) = panic.downcast_ref::<&str>() {
        (*text).to_owned()
    } else if let Some(text) = panic.downcast_ref::<String>() {
        text.clone()
    } else {
        "unknown".to_owned()
    }
}

/// Runs `work` without printing panics, because panics are findings here.
fn quietly(work: impl FnOnce()) {
    let loud = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    work();
    std::panic::set_hook(loud);
}
