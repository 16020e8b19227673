//! `vgpu-probe`: examines the host's GPUs in a separate process.
//!
//! NVIDIA's libraries can hang a process so that even SIGKILL does not end it. Therefore vgpud
//! never loads these libraries: vgpud starts this program with a deadline and reads one line of
//! JSON.

mod canary;
mod confinement;
mod cuda;
mod nvml;
mod report;
mod sysfs;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};
use nix::sys::prctl;
use serde::Serialize;
use vgpu_proto::cuda::version_text;

use crate::driver::{examine, exit_now};
use canary::Failed;
use report::ScanResult;

/// Examines the GPUs of this host. Started by vgpud; prints one line of JSON.
#[derive(Debug, Parser)]
#[command(name = "vgpu-probe", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists the GPUs.
    Scan {
        #[command(flatten)]
        libraries: Libraries,
        /// Where sysfs is mounted.
        #[arg(long, default_value = "/sys")]
        sysfs: PathBuf,
    },
    /// Lists the processes on one GPU, with the management library.
    Processes {
        /// UUID of the GPU.
        #[arg(long)]
        gpu: String,
        /// The management library; by default the system's.
        #[arg(long)]
        nvml: Option<PathBuf>,
    },
    /// Tries actions that a worker must not be able to do; started by vgpud with the confinement of
    /// a worker.
    Confinement {
        /// A namespace that the probe must not be in, as a link in /proc/PID/ns names it.
        #[arg(long)]
        outside: Vec<String>,
        /// A directory that the probe's user owns, but that the probe must not be able to write to.
        #[arg(long)]
        own: Option<PathBuf>,
        /// How many seconds the process that the probe leaves behind sleeps.
        #[arg(long)]
        left: String,
        #[command(flatten)]
        libraries: Libraries,
    },
    /// Loads a CUDA driver library, without a GPU, and reports whether workers can use it.
    Library {
        /// Path of the library.
        #[arg(long)]
        driver: String,
    },
    /// Runs a small kernel on the first visible GPU and checks its result.
    Canary {
        #[command(flatten)]
        libraries: Libraries,
    },
}

#[derive(Debug, Args)]
struct Libraries {
    /// The driver library serves the software device.
    #[arg(long)]
    soft: bool,
    /// The CUDA driver library; by default the system's.
    #[arg(long)]
    driver: Option<String>,
    /// The management library; by default the system's.
    #[arg(long)]
    nvml: Option<PathBuf>,
}

/// Output of `canary` and `library`.
#[derive(Debug, Serialize)]
struct Answer {
    ok: bool,
    message: String,
    /// Whether `canary` found the device memory full.
    full: bool,
}

/// If this variable is set, the program ends when its standard input is closed. vgpud holds the
/// other end, so a hanging probe ends together with vgpud.
pub const ENDS_WITH_STDIN: &str = "VGPU_PROBE_ENDS_WITH_STDIN";

/// Starts a thread that ends the process when standard input is closed, regardless of hanging
/// threads.
fn end_with_stdin() -> std::io::Result<()> {
    let watch = || {
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
        exit_now(1)
    };
    let thread = std::thread::Builder::new().name("stdin".into());
    thread.spawn(watch).map(|_: std::thread::JoinHandle<()>| ())
}

/// Runs the program.
pub fn run() -> ExitCode {
    // The name for `ps` and for soft-gpu's digests: vgpud starts the program through a descriptor.
    if let Err(e) = prctl::set_name(c"vgpu-probe") {
        eprintln!("vgpu-probe: cannot set the name of the process: {e}");
        return ExitCode::FAILURE;
    }
    if std::env::var_os(ENDS_WITH_STDIN).is_some()
        && let Err(e) = end_with_stdin()
    {
        eprintln!("vgpu-probe: no thread to watch the input: {e}");
        return ExitCode::FAILURE;
    }
    let line = match Cli::parse().command {
        Command::Scan { libraries, sysfs } => scan(&libraries, &sysfs)
            .and_then(|found| serde_json::to_string(&found).map_err(|e| e.to_string())),
        Command::Processes { gpu, nvml } => nvml::processes(nvml.as_deref(), &gpu)
            .and_then(|found| serde_json::to_string(&found).map_err(|e| e.to_string())),
        Command::Confinement {
            outside,
            own,
            left,
            libraries,
        } => {
            let lines = confinement::examine(&outside, own.as_deref(), &left, &libraries);
            serde_json::to_string(&lines).map_err(|e| e.to_string())
        }
        Command::Library { driver } => answer(library(&driver).map_err(Failed::from)),
        Command::Canary { libraries } => {
            answer(canary::run(libraries.driver.as_deref(), libraries.soft))
        }
    };
    match line {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(text) => {
            eprintln!("vgpu-probe: {text}");
            ExitCode::FAILURE
        }
    }
}

fn answer(result: Result<String, Failed>) -> Result<String, String> {
    let ok = result.is_ok();
    let Failed { full, message } = result.map_or_else(|failed| failed, Failed::from);
    let answer = Answer { ok, message, full };
    serde_json::to_string(&answer).map_err(|e| e.to_string())
}

fn library(driver: &str) -> Result<String, String> {
    let version = examine(driver).map_err(|e| e.to_string())?;
    let version = version_text(version);
    Ok(format!("{driver} is a CUDA driver of version {version}"))
}

/// Lists software devices with their CUDA driver, or the host's GPUs with NVML. If NVML cannot be
/// used, lists the GPUs that sysfs finds on the PCI bus.
fn scan(libraries: &Libraries, sysfs: &Path) -> Result<ScanResult, String> {
    if libraries.soft {
        // A problem of the library is a finding about the host, not a failure of the scan.
        let found = cuda::scan(libraries.driver.as_deref());
        return Ok(found.unwrap_or_else(|why| ScanResult {
            gpus: Vec::new(),
            warnings: vec![why],
        }));
    }
    let on_bus = sysfs::scan(sysfs);
    const NONE_ON_BUS: &str = "no NVIDIA GPU is on the PCI bus";
    match nvml::scan(libraries.nvml.as_deref()) {
        Ok(mut found) => {
            if found.gpus.is_empty() && on_bus.is_empty() {
                found.warnings.push(NONE_ON_BUS.to_owned());
            }
            for gpu in on_bus {
                let known = found.gpus.iter().any(|g| g.pci_address == gpu.pci_address);
                if !known && let Some(address) = &gpu.pci_address {
                    found.warnings.push(format!(
                        "the GPU at {address} is on the PCI bus, but its driver does not serve it; \
                         see the kernel's log for Xid messages"
                    ));
                }
            }
            Ok(found)
        }
        Err(why) if on_bus.is_empty() => Ok(ScanResult {
            gpus: Vec::new(),
            warnings: vec![format!("{NONE_ON_BUS}, and {why}")],
        }),
        Err(why) => Ok(ScanResult {
            gpus: on_bus,
            warnings: vec![why],
        }),
    }
}
