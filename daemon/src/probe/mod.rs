//! Scans and checks of GPUs, each in a process with a deadline.
//!
//! vgpud itself never loads NVIDIA's libraries: libcuda and NVML can hang a process so that not
//! even SIGKILL ends it. A probe that hangs is given up, and vgpud goes on.

mod confinement;
mod failure;
mod processes;
mod run;
mod soft_state;

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::Deserialize;
use vgpu_api::GpuSource;
use vgpu_proto::text::printable;

use crate::config::{Config, DriverKind};
use crate::mediation::{CheckFound, GpuCheck};
use crate::model::{ScanResult, ScannedGpu, VmIdentity};
use crate::supervisor::launcher::{
    Launcher, driver_library, environment, probe_binary, worker_binary,
};
use crate::worker::confine::{Jail, Program};
use crate::worker::owner::{Owner, Use, reachable};

pub(crate) use confinement::DRIVER;
pub use confinement::{Attempt, Verdict};
use failure::Failure;
use run::Written;

/// Runs probes.
#[derive(Debug, Clone)]
pub struct Prober {
    launcher: Arc<Launcher>,
}

/// Output of `vgpu-probe canary` and `vgpu-probe library`.
#[derive(Debug, Deserialize)]
struct Answer {
    ok: bool,
    message: String,
    /// Whether the device memory was full.
    #[serde(default)]
    full: bool,
}

/// Time between two attempts of a check while the device memory or the host is full.
const AGAIN: Duration = Duration::from_millis(200);

impl Prober {
    /// Creates probes by the launcher's configuration.
    #[must_use]
    pub fn new(launcher: Arc<Launcher>) -> Prober {
        Prober { launcher }
    }

    /// Scans for GPUs. Blocks until the probes have answered or their deadlines have passed.
    ///
    /// # Errors
    /// A sentence, if no probe gave a result.
    pub fn scan(&self) -> Result<ScanResult, String> {
        let config = self.launcher.config();
        let mut result = ScanResult::default();
        if config.driver.kind != DriverKind::Soft {
            match self.scan_one(&config, false) {
                Ok(found) => result = found,
                Err(why) if config.driver.kind == DriverKind::Nvidia => return Err(why),
                Err(why) => result.warnings.push(why),
            }
        }
        let soft = match config.driver.kind {
            DriverKind::Soft => true,
            DriverKind::Nvidia => false,
            // A soft device never replaces a present GPU.
            DriverKind::Auto => result.gpus.is_empty(),
        };
        if soft {
            let found = self.scan_one(&config, true)?;
            // The lack of a GPU is no problem if software devices serve instead.
            if !found.gpus.is_empty() {
                result.warnings.clear();
            }
            result.gpus.extend(found.gpus);
            result.warnings.extend(found.warnings);
        }
        Ok(result)
    }

    fn scan_one(&self, config: &Config, soft: bool) -> Result<ScanResult, String> {
        let mut args: Vec<OsString> = vec!["scan".into()];
        args.extend(library_args(config, soft)?);
        let written = self.run(config, soft, &args, false)?;
        let mut found: ScanResult = serde_json::from_slice(&written.output)
            .map_err(|e| format!("the probe's answer is not understood: {e}"))?;
        if soft {
            explain(&mut found, written.said);
        }
        // The library belongs to the other driver if it shows devices of the wrong kind.
        if found
            .gpus
            .iter()
            .any(|gpu| (gpu.source == GpuSource::Soft) != soft)
        {
            return Err("the probe found devices of another driver than it was asked about".into());
        }
        Ok(found)
    }

    /// As [`Prober::check`], after the killed processes `dying` have ended. No check passes while
    /// one of them exists. Blocks.
    #[must_use]
    pub fn check_when_gone(
        &self,
        gpu: &ScannedGpu,
        dying: &[u32],
        mut killed: Vec<u32>,
    ) -> GpuCheck {
        let most = self.launcher.config().worker.kill_verify_ms / 2;
        if let Err(message) = processes::are_gone(dying, Duration::from_millis(most)) {
            let found = CheckFound::WorkerLeft;
            return GpuCheck { found, message };
        }
        killed.extend(dying);
        self.check(gpu, &killed)
    }

    /// Runs a small kernel on one GPU in a new process, and checks its result. Also checks that the
    /// memory was freed: that of the kernel and that of ended processes, including `killed`.
    /// Blocks.
    #[must_use]
    pub fn check(&self, gpu: &ScannedGpu, killed: &[u32]) -> GpuCheck {
        let config = self.launcher.config();
        let most = Duration::from_millis(config.worker.kill_verify_ms / 2);
        let until = Instant::now() + most / 2;
        let tries = || loop {
            match self.canary(&config, gpu) {
                Err(failure) if !failure.found.is_about_the_gpu() && Instant::now() < until => {
                    std::thread::sleep(AGAIN);
                }
                done => break done,
            }
        };
        let checked = match tries() {
            Err(failure) if failure.found == CheckFound::Failed => Err(failure),
            checked => self.memory_is_back(gpu, killed, most).and(checked),
        };
        match checked {
            Ok(message) => GpuCheck {
                found: CheckFound::Passed,
                message,
            },
            Err(Failure { found, message }) => GpuCheck { found, message },
        }
    }

    fn canary(&self, config: &Config, gpu: &ScannedGpu) -> Result<String, Failure> {
        let soft = gpu.source == GpuSource::Soft;
        let mut args: Vec<OsString> = vec!["canary".into()];
        args.extend(library_args(config, soft)?);
        let mut env = probe_environment(config, soft);
        env.push(("CUDA_VISIBLE_DEVICES".into(), OsString::from(&gpu.uuid)));
        // The canary has a worker's confinement, so it fails where workers would.
        let deadline = Duration::from_millis(config.worker.probe_deadline_ms);
        let written = self.run_confined(config, soft, &args, &env, true, deadline)?;
        understood(&written)
    }

    /// Runs the probe program with the confinement of a worker of no VM.
    /// `checks_gpu`: as for [`Launcher::confinement`].
    fn run_confined(
        &self,
        config: &Config,
        soft: bool,
        args: &[OsString],
        env: &[(OsString, OsString)],
        checks_gpu: bool,
        deadline: Duration,
    ) -> Result<Written, Failure> {
        let owner = self.launcher.owners().of(0)?;
        let program = self.program(&probe_binary(config)?, owner.as_ref())?;
        let inmate = (VmIdentity::PROBE, owner);
        let confinement = self.launcher.confinement(inmate, soft, None, checks_gpu)?;
        let confined = (self.launcher.jail(), confinement);
        run::run(&program, args, env, confined, deadline)
    }

    /// Loads the driver library of the workers and describes it. Needs no GPU. Blocks.
    ///
    /// # Errors
    /// A sentence, if workers cannot use the library or the probe did not answer.
    pub fn library(&self, soft: bool) -> Result<String, String> {
        const SYSTEM_DRIVER: &str = "libcuda.so.1";
        let config = self.launcher.config();
        let driver = driver_library(&config, soft)?.unwrap_or_else(|| SYSTEM_DRIVER.to_owned());
        let args = ["library".into(), "--driver".into(), driver.into()];
        understood(&self.run(&config, soft, &args, false)?).map_err(String::from)
    }

    /// Runs the worker program as vgpud runs it for guests, which answers with its version.
    ///
    /// # Errors
    /// Why the program cannot be run, or that it is of another version than vgpud.
    pub fn worker(&self) -> Result<String, String> {
        let config = self.launcher.config();
        let binary = worker_binary(&config)?;
        let written = self.run_program(&config, &binary, &["--version".into()], &[], false)?;
        let answer = printable(String::from_utf8_lossy(&written.output).trim(), 100);
        let expected = concat!("vgpu-worker ", env!("CARGO_PKG_VERSION"));
        match answer == expected {
            true => Ok(format!("vgpud can run {}: {answer}", binary.display())),
            false => Err(format!(
                "{} is not the worker of this vgpud ({expected}); its answer: {answer}",
                binary.display()
            )),
        }
    }

    fn run(
        &self,
        config: &Config,
        soft: bool,
        args: &[OsString],
        raised: bool,
    ) -> Result<Written, Failure> {
        let env = probe_environment(config, soft);
        self.run_program(config, &probe_binary(config)?, args, &env, raised)
    }

    /// Runs a program as the user of workers, and otherwise unconfined. `raised`: as for
    /// [`Jail::only_as`].
    fn run_program(
        &self,
        config: &Config,
        binary: &Path,
        args: &[OsString],
        env: &[(OsString, OsString)],
        raised: bool,
    ) -> Result<Written, Failure> {
        let deadline = Duration::from_millis(config.worker.probe_deadline_ms);
        // The same user as the workers, so that the probe sees the same access rights.
        let owner = self.launcher.owners().of(0)?;
        let program = self.program(binary, owner.as_ref())?;
        let jail = self.launcher.jail();
        run::run(
            &program,
            args,
            env,
            (jail, Jail::only_as(owner, raised)),
            deadline,
        )
    }

    fn program(&self, binary: &Path, owner: Option<&Owner>) -> Result<Program, String> {
        if let Some(owner) = owner {
            reachable(binary, owner, Use::Execute)?;
        }
        let program = self.launcher.jail().program(binary);
        program.map_err(|e| format!("cannot start {}: {e}", binary.display()))
    }
}

/// The environment of a probe.
fn probe_environment(config: &Config, soft: bool) -> Vec<(OsString, OsString)> {
    let mut env = environment(config, soft);
    // Any output of soft-gpu is then about its settings.
    env.push(("SOFT_GPU_BANNER".into(), "0".into()));
    env
}

/// The message of a probe's answer.
fn understood(written: &Written) -> Result<String, Failure> {
    let answer: Answer = serde_json::from_slice(&written.output)
        .map_err(|e| format!("the probe's answer is not understood: {e}"))?;
    let Answer {
        ok,
        mut message,
        full,
    } = answer;
    if ok {
        return Ok(message);
    }
    if !written.said.is_empty() {
        message += &format!(" ({})", written.said.join("; "));
    }
    let found = match full {
        true => CheckFound::MemoryFull,
        false => CheckFound::Failed,
    };
    Err(Failure { found, message })
}

/// Adds the output of soft-gpu: to the last warning, or as a remark about the devices that serve.
fn explain(found: &mut ScanResult, said: Vec<String>) {
    match found.warnings.last_mut() {
        Some(wrong) if !said.is_empty() => {
            *wrong = format!("{wrong} ({})", said.join("; "));
        }
        _ => found.warnings.extend(said),
    }
}

/// Arguments for the libraries that a probe loads.
fn library_args(config: &Config, soft: bool) -> Result<Vec<OsString>, String> {
    let mut args = Vec::new();
    if soft {
        args.push("--soft".into());
    } else if let Some(nvml) = &config.driver.nvml_library {
        args.extend(["--nvml".into(), nvml.into()]);
    }
    if let Some(driver) = driver_library(config, soft)? {
        args.extend(["--driver".into(), driver.into()]);
    }
    Ok(args)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn output_of_soft_gpu_becomes_a_warning_of_the_scan() {
        let said = || vec!["soft-gpu: nonsense".to_owned(), "soft-gpu: more".to_owned()];
        let mut serves = ScanResult::default();
        explain(&mut serves, said());
        assert_eq!(serves.warnings, said());
        let mut broken = ScanResult {
            warnings: vec!["cuInit failed".into()],
            ..ScanResult::default()
        };
        explain(&mut broken, Vec::new());
        assert_eq!(broken.warnings, ["cuInit failed"]);
        explain(&mut broken, said());
        assert_eq!(
            broken.warnings,
            ["cuInit failed (soft-gpu: nonsense; soft-gpu: more)"]
        );
    }
}
