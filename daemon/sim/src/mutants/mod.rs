//! Mutants: schedulers that are wrong on purpose. Each mutant is a small edit of the production
//! code, defined in `daemon/sim/mutants/NAME.toml`. Some proof must fail for every mutant;
//! otherwise the proofs show less than they claim.
//!
//! The edits are made in a copy of the sources under `target/sim/mutants`, one after the other in
//! one workspace, so that compilation is incremental. While a mutant is built, the previous mutant
//! runs. The unchanged copy is built and run first and must pass.

mod definition;
mod quick;
mod workshop;

use std::fmt::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

pub use definition::Mutant;
pub use quick::{Caught, first_failure};

use workshop::{Built, Workshop};

/// Result of a mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fate {
    /// A proof failed.
    Caught {
        /// Name of the proof.
        by: String,
        /// Violated bound or invariant.
        what: String,
    },
    /// Every proof passed.
    Survived,
    /// A proof did not end, so the result is unknown. The mutant must be replaced by a milder edit.
    Endless,
    /// The edit failed: the text to replace does not occur exactly once, or the result does not
    /// build.
    Stale(String),
}

/// Result and times of one mutant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// Name of the mutant.
    pub name: String,
    /// The fault, in one sentence.
    pub what: String,
    /// Result.
    pub fate: Fate,
    /// Time to build the mutant.
    pub build: Duration,
    /// Time until a proof failed.
    pub run: Duration,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fate = match &self.fate {
            Fate::Caught { by, what } => {
                let short: String = what.chars().take(90).collect();
                format!("caught by {by}: {short}")
            }
            Fate::Survived => "SURVIVED: no proof noticed".to_owned(),
            Fate::Endless => "ENDLESS: a proof does not end".to_owned(),
            Fate::Stale(why) => format!("STALE: {why}"),
        };
        write!(
            f,
            "{:<28} {:>5.1} s {:>5.1} s  {fate}",
            self.name,
            self.build.as_secs_f64(),
            self.run.as_secs_f64(),
        )
    }
}

/// Results of all mutants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MutantReport {
    /// One outcome per mutant, in the order of their names.
    pub outcomes: Vec<Outcome>,
    /// Elapsed real time.
    pub took: Duration,
}

impl MutantReport {
    /// Number of caught mutants.
    #[must_use]
    pub fn caught(&self) -> usize {
        let caught = |outcome: &&Outcome| matches!(outcome.fate, Fate::Caught { .. });
        self.outcomes.iter().filter(caught).count()
    }

    /// Whether all mutants were caught.
    #[must_use]
    pub fn passed(&self) -> bool {
        !self.outcomes.is_empty() && self.caught() == self.outcomes.len()
    }

    /// One line per mutant, and the number of caught mutants.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::new();
        for outcome in &self.outcomes {
            let _ = writeln!(text, "{outcome}");
        }
        let _ = writeln!(
            text,
            "mutants: {} of {} caught in {:.0} s",
            self.caught(),
            self.outcomes.len(),
            self.took.as_secs_f64()
        );
        text
    }
}

/// Root of the repository from which this program was built.
#[must_use]
pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Builds and runs all mutants, or those with `only` in their name.
///
/// # Errors
/// If the copy cannot be made, or the unchanged code does not pass the quick proofs.
pub fn run(repository: &Path, only: Option<&str>) -> Result<MutantReport> {
    let begun = Instant::now();
    let mut mutants = definition::load(&repository.join("daemon/sim/mutants"))?;
    mutants.retain(|mutant| only.is_none_or(|only| mutant.name.contains(only)));
    if mutants.is_empty() {
        bail!(
            "there is no mutant with {:?} in its name",
            only.unwrap_or_default()
        );
    }
    let mut workshop = Workshop::open(repository)?;
    let sound = workshop
        .build("unchanged")
        .context("the copy of the unchanged code does not build")?;
    let mut report = MutantReport::default();
    std::thread::scope(|scope| -> Result<()> {
        let (to_run, built) = mpsc::sync_channel::<(Mutant, Built)>(1);
        let runner = scope.spawn(move || -> Result<Vec<Outcome>> {
            if let Fate::Caught { by, what } = sound.run(&[])?.0 {
                bail!("the unchanged code does not pass the quick proofs: {by}: {what}");
            }
            let mut outcomes = vec![];
            for (mutant, built) in built {
                let (fate, run) = built.run(&mutant.caught_by)?;
                outcomes.push(outcome(mutant, fate, built.took, run));
            }
            Ok(outcomes)
        });
        for mutant in mutants {
            match workshop.make(&mutant) {
                Ok(built) => {
                    if to_run.send((mutant, built)).is_err() {
                        break;
                    }
                }
                Err(why) => {
                    let fate = Fate::Stale(format!("{why:#}"));
                    report
                        .outcomes
                        .push(outcome(mutant, fate, Duration::ZERO, Duration::ZERO));
                }
            }
        }
        drop(to_run);
        let Ok(outcomes) = runner.join() else {
            bail!("running the mutants panicked");
        };
        report.outcomes.extend(outcomes?);
        Ok(())
    })?;
    report.outcomes.sort_by(|a, b| a.name.cmp(&b.name));
    report.took = begun.elapsed();
    Ok(report)
}

fn outcome(mutant: Mutant, fate: Fate, build: Duration, run: Duration) -> Outcome {
    let outcome = Outcome {
        name: mutant.name,
        what: mutant.what,
        fate,
        build,
        run,
    };
    // The whole run takes minutes, so each outcome is printed as progress.
    eprintln!("{outcome}");
    outcome
}
