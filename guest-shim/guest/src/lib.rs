//! `vgpu-guest`: tells users of a VM about its GPU from inside the VM, without an administrator.
//! Only `doctor` opens a session, for its `cuInit`.
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod attempt;
mod doctor;
mod library;
mod tell;

use std::io::{ErrorKind, Write as _};
use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use vgpu_door::{Address, LIMIT, look};
use vgpu_proto::look::Looked;

/// The GPU of this VM, as its users see it.
#[derive(Debug, Parser)]
#[command(name = "vgpu-guest", version, arg_required_else_help = true)]
#[command(after_help = "Example:\n  vgpu-guest doctor   # why CUDA programs do not run")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// GPUs, programs, use and limits
    #[command(after_help = "Example:\n  vgpu-guest status")]
    Status,
    /// Why the VM's programs wait, or do not
    #[command(after_help = "Example:\n  vgpu-guest explain")]
    Explain,
    /// Finds out why CUDA programs do not run
    #[command(
        after_help = "Example:\n  VGPU_ADDRESS=unix:/run/vgpu-vm/vgpu.sock vgpu-guest doctor"
    )]
    Doctor,
    /// One step of doctor that loads a library, in a separate process
    #[command(hide = true)]
    Attempt { step: attempt::Step },
}

/// The command line, from which the manual page and completions are made.
#[must_use]
pub fn command_line() -> clap::Command {
    Cli::command()
}

/// Runs the command that the process's arguments name.
#[must_use]
pub fn run() -> ExitCode {
    let told = match Cli::parse().command {
        Command::Status => told(tell::status),
        Command::Explain => told(tell::explain),
        Command::Doctor => Ok(doctor::examine()),
        Command::Attempt { step } => return step.make(),
    };
    let (text, good) = match told {
        Ok(told) => told,
        Err(why) => {
            eprintln!("vgpu-guest: {why}");
            return ExitCode::FAILURE;
        }
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // A closed pipe is a normal end.
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            eprintln!("vgpu-guest: the answer cannot be written: {e}");
            ExitCode::FAILURE
        }
        _ if good => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Asks vgpud about this VM. Returns the text to print, and `true`, because nothing is checked.
fn told(tell: fn(&Looked) -> String) -> Result<(String, bool), String> {
    let looked = look(&Address::from_environment()?, LIMIT).map_err(|e| e.to_string())?;
    Ok((tell(&looked), true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_help_has_an_example() {
        let line = command_line();
        let own = line.clone().render_long_help().to_string();
        let inner = line.get_subcommands().filter(|inner| !inner.is_hide_set());
        let inner = inner.map(|inner| inner.clone().render_long_help().to_string());
        for help in inner.chain([own]) {
            assert!(help.contains("Example:\n  "), "{help}");
        }
    }
}
