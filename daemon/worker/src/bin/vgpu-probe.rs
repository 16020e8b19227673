//! `vgpu-probe`: looks at GPUs in a process of its own; see [`vgpu_worker::probe`].

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use vgpu_worker::probe::{Options, canary, scan};

/// Looks at GPUs for vgpud, and prints one line of JSON.
#[derive(Debug, Parser)]
#[command(name = "vgpu-probe", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Find GPUs: model, UUID, memory, PCI address, driver, MIG instances, health.
    Scan {
        #[command(flatten)]
        libraries: Libraries,
        /// NVIDIA's management library, instead of the system's.
        #[arg(long)]
        nvml: Option<PathBuf>,
        /// Root of sysfs.
        #[arg(long, default_value = "/sys")]
        sysfs: PathBuf,
    },
    /// Run a small kernel on the first visible device and check its result.
    Canary {
        #[command(flatten)]
        libraries: Libraries,
    },
}

#[derive(Debug, Args)]
struct Libraries {
    /// Software devices, through --driver.
    #[arg(long)]
    soft: bool,
    /// The CUDA driver library, instead of the system's.
    #[arg(long)]
    driver: Option<PathBuf>,
}

fn main() -> ExitCode {
    let answer = match Cli::parse().command {
        Command::Scan {
            libraries,
            nvml,
            sysfs,
        } => {
            let Libraries { soft, driver } = libraries;
            serde_json::to_string(&scan(&Options {
                soft,
                driver,
                nvml,
                sysfs,
            }))
        }
        Command::Canary { libraries } => {
            serde_json::to_string(&canary(libraries.driver.as_deref()))
        }
    };
    match answer {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(e) => {
            eprintln!("vgpu-probe: {e}");
            ExitCode::FAILURE
        }
    }
}
