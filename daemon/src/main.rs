//! `vgpud`: lets virtual machines without a GPU use the GPUs of the host.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use vgpud::app::{self, Options};

/// The host daemon: admits guests, schedules the GPUs, supervises workers, serves the admin API.
///
/// GPUs, pools and VMs are set with vgpu-admin; the file holds the daemon's own settings only.
#[derive(Debug, Parser)]
#[command(name = "vgpud", version, after_help = AFTER_HELP)]
struct Arguments {
    /// Configuration file [default: /etc/vgpu/vgpud.toml where it exists]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Only check the configuration
    #[arg(long)]
    check: bool,

    /// Only check this host, without a running vgpud, and print the checks as JSON; `vgpu-admin doctor`
    /// shows them as a table if vgpud does not run
    #[arg(long, conflicts_with = "check")]
    doctor: bool,

    /// Database and image cache, in place of daemon.state_dir
    #[arg(long, value_name = "DIR")]
    state_dir: Option<PathBuf>,

    /// Sockets and lock files, in place of daemon.runtime_dir
    #[arg(long, value_name = "DIR")]
    runtime_dir: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Signals: SIGHUP reads the configuration again; SIGTERM lets sessions finish (daemon.drain_s), then stops.
Exit status: 0 stopped as asked; 1 failed; 2 wrong arguments or configuration; 7 --doctor found errors.

Examples:
  vgpud --check --config /etc/vgpu/vgpud.toml
  vgpud --state-dir /tmp/vgpu/state --runtime-dir /tmp/vgpu/run";

/// The exit status if a check found an error, as of `vgpu-admin doctor`.
const FOUND_ERRORS: u8 = 7;

fn doctor(options: &Options) -> ExitCode {
    let printed = app::examine(options).and_then(|report| {
        println!("{}", serde_json::to_string_pretty(&report)?);
        Ok(report.ok)
    });
    match printed {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(FOUND_ERRORS),
        Err(error) => {
            eprintln!("vgpud: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let options = Options {
        config_file: arguments.config,
        state_dir: arguments.state_dir,
        runtime_dir: arguments.runtime_dir,
    };
    if arguments.doctor {
        return doctor(&options);
    }
    let config = match options.load() {
        Ok(config) => config,
        Err(error) => {
            eprintln!("vgpud: {error:#}");
            return ExitCode::from(2);
        }
    };
    if arguments.check {
        for warning in config.warnings() {
            println!("Warning: {warning}");
        }
        println!("The configuration is valid.");
        return ExitCode::SUCCESS;
    }
    match app::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("vgpud: {error:#}");
            ExitCode::FAILURE
        }
    }
}
