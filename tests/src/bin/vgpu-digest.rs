//! `vgpu-digest`: records a program's operations on soft-gpu, makes the records comparable, and
//! compares two runs.
//!
//! Exits 0 if two runs did the same work, 1 if not, 2 on an error.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use vgpu_tests::digest::{self, Process};

/// Record, normalise and compare what programs ask of soft-gpu
#[derive(Debug, Parser)]
struct Options {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Run a program that uses soft-gpu in its own process, and write its digest to a file
    Record {
        /// Run the program twice, and exclude data that differs each time: addresses of its
        /// process, bytes that it never set
        #[arg(long)]
        twice: bool,
        /// File of the digest
        out: PathBuf,
        /// The program and its arguments, after `--`
        #[arg(last = true, required = true)]
        command: Vec<OsString>,
    },
    /// Normalise a digest that processes wrote with `SOFT_GPU_DIGEST=PREFIX` in their environment
    Normalise {
        /// Value of the variable
        prefix: PathBuf,
        /// File of the digest
        out: PathBuf,
    },
    /// Compare two digests, and name the first operation that differs
    Compare {
        /// Digest of the first run
        left: PathBuf,
        /// Digest of the second run
        right: PathBuf,
    },
}

fn main() -> ExitCode {
    match run(Options::parse().action) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(e) => {
            eprintln!("vgpu-digest: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(action: Action) -> Result<bool> {
    match action {
        Action::Record {
            twice,
            out,
            command,
        } => {
            // Checked before the program runs, perhaps for hours.
            let place = || format!("writing {}", out.display());
            std::fs::File::create(&out).with_context(place)?;
            let mut found = recorded(&command, None)?;
            if twice {
                found = digest::own(&found, &recorded(&command, Some(digest::perturbed(1)))?);
                let (out, of) = digest::left_out(&found);
                say(&format!(
                    "{out} of {of} bytes of parameters and copies differ each time, and are left out"
                ))?;
            }
            digest::store(&found, &out)?;
            Ok(true)
        }
        Action::Normalise { prefix, out } => {
            digest::store(&normalised(&prefix)?, &out)?;
            Ok(true)
        }
        Action::Compare { left, right } => {
            let difference = digest::compare(&working(&left)?, &working(&right)?);
            match &difference {
                Some(d) => say(&d.to_string())?,
                None => say("the same work")?,
            }
            Ok(difference.is_none())
        }
    }
}

/// Prints a line of the result.
fn say(line: &str) -> Result<()> {
    let mut out = std::io::stdout();
    let written = writeln!(out, "{line}").and_then(|()| out.flush());
    written.context("writing the result")
}

fn recorded(command: &[OsString], env: Option<(&str, String)>) -> Result<Vec<Process>> {
    let dir = tempfile::tempdir()?;
    let prefix = dir.path().join("digest");
    let (program, args) = command.split_first().context("no program is given")?;
    let status = Command::new(program)
        .args(args)
        .env("SOFT_GPU_DIGEST", &prefix)
        .envs(env)
        .status()
        .with_context(|| format!("starting {}", program.display()))?;
    ensure!(
        status.success(),
        "{} ended with {status}",
        program.display()
    );
    normalised(&prefix)
}

/// Reads a digest with operations. Two digests without operations would be alike.
fn working(path: &Path) -> Result<Vec<Process>> {
    let processes = digest::load(path)?;
    ensure!(
        digest::operations(&processes) > 0,
        "{} has no operation of the device to compare",
        path.display()
    );
    Ok(processes)
}

fn normalised(prefix: &Path) -> Result<Vec<Process>> {
    let processes = digest::read(prefix)?;
    ensure!(
        !processes.is_empty(),
        "nothing was recorded at {}.N: did the program use soft-gpu, with SOFT_GPU_DIGEST set?",
        prefix.display()
    );
    Ok(processes)
}
