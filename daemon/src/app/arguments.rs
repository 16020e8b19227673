//! The command line of vgpud.

use std::path::PathBuf;

use clap::Parser;

use super::Options;

/// The host daemon: admits guests, schedules the GPUs, supervises workers, serves the admin API.
///
/// GPUs, pools and VMs are set with vgpu-admin; the file holds the daemon's own settings only.
#[derive(Debug, Parser)]
#[command(name = "vgpud", version, after_help = AFTER_HELP)]
pub struct Arguments {
    /// Configuration file [default: /etc/vgpu/vgpud.toml where it exists]
    #[arg(long, value_name = "FILE")]
    pub(super) config: Option<PathBuf>,

    /// Only check the configuration
    #[arg(long)]
    pub check: bool,

    /// Only check this host, without a running vgpud, and print the checks as JSON; `vgpu-admin
    /// doctor` shows them as a table if vgpud does not run
    #[arg(long, conflicts_with = "check")]
    pub doctor: bool,

    /// Database and image cache, in place of daemon.state_dir
    #[arg(long, value_name = "DIR")]
    pub(super) state_dir: Option<PathBuf>,

    /// Sockets and lock files, in place of daemon.runtime_dir
    #[arg(long, value_name = "DIR")]
    pub(super) runtime_dir: Option<PathBuf>,
}

const AFTER_HELP: &str = "\
Signals: SIGHUP reads the configuration again; SIGTERM lets sessions finish (daemon.drain_s), then stops.
Exit status: 0 stopped as asked; 1 failed; 2 wrong arguments or configuration; 7 --doctor found errors.

Examples:
  vgpud --check --config /etc/vgpu/vgpud.toml
  vgpud --state-dir /tmp/vgpu/state --runtime-dir /tmp/vgpu/run";

impl From<Arguments> for Options {
    fn from(arguments: Arguments) -> Options {
        Options {
            config_file: arguments.config,
            state_dir: arguments.state_dir,
            runtime_dir: arguments.runtime_dir,
        }
    }
}
