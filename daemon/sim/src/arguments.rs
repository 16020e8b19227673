//! The command line of `vgpu-sim`.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

/// Proves the scheduler's bounds in simulation. Without arguments: all proofs, as `make sim` does.
#[derive(Debug, Parser)]
#[command(name = "vgpu-sim", version)]
#[command(args_conflicts_with_subcommands = true)]
#[command(after_help = "\
Examples:
  vgpu-sim --ci
  vgpu-sim --list
  vgpu-sim replay sched.log")]
pub struct Arguments {
    /// The command; without one, the proofs run.
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Fewer and shorter runs: 10 runs of 30 simulated seconds, and brief runs of the other proofs
    #[arg(long)]
    pub ci: bool,
    /// Run only this proof; with --seed, one run of it
    #[arg(long, value_name = "NAME")]
    pub scenario: Option<String>,
    /// Number of the run of the proof
    #[arg(long, requires = "scenario", value_parser = whole_from::<0>)]
    pub seed: Option<u64>,
    /// Simulated seconds of each run
    #[arg(long, value_parser = whole_from::<1>)]
    pub seconds: Option<u64>,
    /// Number of runs over all proofs
    #[arg(long, value_parser = whole_from::<1>)]
    pub runs: Option<u64>,
    /// Print every event and decision of the run
    #[arg(long, requires = "seed")]
    pub verbose: bool,
    /// List the proofs
    #[arg(long)]
    pub list: bool,
    /// Number of threads (the results do not depend on it)
    #[arg(long, value_parser = whole_from::<1>)]
    pub threads: Option<u64>,
    /// Run only the proofs: no random events, no mutants, no report
    #[arg(long)]
    pub proofs: bool,
    /// Run only the mutants (or those with NAME in their name): each is built, and a proof must
    /// notice it
    #[arg(long, value_name = "NAME", num_args = 0..=1, default_missing_value = "")]
    pub mutants: Option<String>,
    /// Quick mode for a mutant: run the proofs, the named ones first, up to the first failure
    #[arg(long, hide = true, num_args = 0..)]
    pub first_failure: Option<Vec<String>>,
    /// File for the report
    #[arg(long, default_value = "target/sim/report.json")]
    pub report: PathBuf,
}

/// A clap value parser for whole numbers from `LEAST` on.
fn whole_from<const LEAST: u64>(text: &str) -> Result<u64, String> {
    match text.parse() {
        Ok(number) if number >= LEAST => Ok(number),
        _ => Err(format!(
            "`{text}` is not a whole number from {LEAST} to {}",
            u64::MAX
        )),
    }
}

/// Commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Replay a decision log of vgpud (`vgpu-admin sched log`) and compare every decision
    #[command(after_help = "Example:\n  vgpu-sim replay sched.log")]
    Replay {
        /// File with the log
        file: PathBuf,
    },
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn a_wrong_number_is_told_with_its_range() {
        for (line, least) in [
            ("--scenario=x --seed=-1", 0),
            ("--scenario=x --seed=abc", 0),
            ("--runs=0", 1),
            ("--threads=0", 1),
        ] {
            let words = ["vgpu-sim"].into_iter().chain(line.split(' '));
            let said = Arguments::try_parse_from(words).unwrap_err().to_string();
            let range = format!("is not a whole number from {least} to 18446744073709551615");
            assert!(said.contains(&range), "{said}");
        }
    }

    #[test]
    fn every_help_has_examples_that_parse() {
        let line = Arguments::command();
        let inner = line.get_subcommands().cloned().collect::<Vec<_>>();
        for mut command in inner.into_iter().chain([line]) {
            let help = command.render_long_help().to_string();
            let examples = help.split_once("Example").map_or("", |(_, after)| after);
            let mut lines = examples
                .lines()
                .filter(|line| line.starts_with("  vgpu-sim "));
            let first = lines.next();
            assert!(first.is_some(), "{help}");
            for line in first.into_iter().chain(lines) {
                let parsed = Arguments::try_parse_from(line.split_whitespace());
                assert!(parsed.is_ok(), "{line}");
            }
        }
    }
}
