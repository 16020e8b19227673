//! Checks of the host that need neither guests nor a mediator.

use std::sync::Arc;

use vgpu_api::{DoctorCheck, GpuSource};

use super::confinement::{Confinement, Looked};
use crate::config::DriverKind;
use crate::model::ScannedGpu;
use crate::probe::Prober;
use crate::supervisor::launcher::{Launcher, driver_library};
use crate::system::priority;

/// Checks whether this host can run workers.
#[derive(Debug)]
pub struct Host {
    prober: Prober,
    launcher: Arc<Launcher>,
    confinement: Confinement,
}

impl Host {
    /// Checks with the programs and users of `launcher`.
    #[must_use]
    pub fn new(prober: Prober, launcher: Arc<Launcher>) -> Host {
        Host {
            prober,
            launcher,
            confinement: Confinement::default(),
        }
    }

    /// All checks. `gpus`: those of the last scan.
    pub async fn checks(&self, gpus: &[ScannedGpu]) -> Vec<DoctorCheck> {
        // Workers of software devices are confined more.
        let soft = match self.launcher.config().driver.kind {
            DriverKind::Soft => true,
            DriverKind::Nvidia => false,
            DriverKind::Auto => gpus.iter().all(|gpu| gpu.source == GpuSource::Soft),
        };
        let mut checks = vec![
            self.worker_program().await,
            self.worker_user(),
            self.worker_forks(soft),
            priority(),
        ];
        // The driver of a GPU that only the PCI bus shows is not loaded: no worker starts it.
        let driven = gpus.iter().any(|gpu| gpu.source == GpuSource::Nvml);
        let looked = match (soft, driven) {
            (true, _) => Looked::SoftDevices,
            (false, true) => Looked::Gpus,
            (false, false) if gpus.is_empty() => Looked::Nothing,
            (false, false) => Looked::GpusWithoutDriver,
        };
        let confinement = self.confinement.check(&self.prober, looked);
        let (confinement, libraries) = tokio::join!(confinement, self.driver_libraries(gpus));
        checks.push(confinement);
        checks.extend(libraries);
        checks
    }

    fn worker_user(&self) -> DoctorCheck {
        const NAME: &str = "worker-user";
        let (good, message) = self.launcher.owners().describe();
        let hint = "A guest may come to own its worker; see `[worker]` in docs/configuration.md.";
        match good {
            true => DoctorCheck::ok(NAME, message),
            false => DoctorCheck::error(NAME, message, hint),
        }
    }

    fn worker_forks(&self, soft: bool) -> DoctorCheck {
        const NAME: &str = "worker-forks";
        let (good, message) = self.launcher.forks_end(soft);
        let hint = "Give vgpud CAP_SYS_ADMIN, let it make process and mount namespaces (systemd: \
                    `RestrictNamespaces=net ipc pid mnt`) and leave worker.confined on, or give it a cgroup \
                    (`Delegate=yes` and `ProtectControlGroups=no`); see worker.cgroups in \
                    docs/configuration.md.";
        match good {
            true => DoctorCheck::ok(NAME, message),
            false => DoctorCheck::warning(NAME, message, hint),
        }
    }

    /// Checks that workers can load the driver libraries. Works even without a GPU. `gpus`: those
    /// of the last scan.
    pub async fn driver_libraries(&self, gpus: &[ScannedGpu]) -> Vec<DoctorCheck> {
        let config = self.launcher.config();
        let soft = driver_library(&config, true).is_ok();
        let mut checks = Vec::new();
        for &soft in needed(
            config.driver.kind,
            gpus,
            config.driver.library.is_some(),
            soft,
        ) {
            let prober = self.prober.clone();
            let look = tokio::task::spawn_blocking(move || prober.library(soft));
            let seen = look.await.unwrap_or_else(|e| Err(e.to_string()));
            let key = if soft { "soft_library" } else { "library" };
            let hint = match (soft, &config.driver.library) {
                (false, None) => {
                    "Install NVIDIA's driver, or name its library with driver.library in \
                                  vgpud.toml"
                        .to_owned()
                }
                _ => format!("Mend what the message names, or correct driver.{key} in vgpud.toml"),
            };
            checks.push(match seen {
                Ok(message) => DoctorCheck::ok("driver-library", message),
                Err(why) => DoctorCheck::error("driver-library", why, hint),
            });
        }
        checks
    }

    async fn worker_program(&self) -> DoctorCheck {
        let prober = self.prober.clone();
        let run = tokio::task::spawn_blocking(move || prober.worker());
        let ran = run.await.unwrap_or_else(|e| Err(e.to_string()));
        let hint = "Install the vgpu packages completely, or correct worker.binary in vgpud.toml";
        match ran {
            Ok(message) => DoctorCheck::ok("worker-program", message),
            Err(why) => DoctorCheck::error("worker-program", why, hint),
        }
    }
}

/// The libraries to check: true stands for soft-gpu's, false for NVIDIA's. `named`: whether
/// `driver.library` names NVIDIA's. `soft`: whether soft-gpu is installed. A library that is not
/// configured need not exist.
fn needed(kind: DriverKind, gpus: &[ScannedGpu], named: bool, soft: bool) -> &'static [bool] {
    let on_gpu = gpus.iter().any(|gpu| gpu.source != GpuSource::Soft);
    match kind {
        DriverKind::Nvidia => &[false],
        DriverKind::Soft => &[true],
        // Software devices never serve beside a GPU.
        DriverKind::Auto if on_gpu => &[false],
        DriverKind::Auto => match (named, soft) {
            (true, true) => &[false, true],
            (true, false) => &[false],
            (false, true) => &[true],
            (false, false) => &[],
        },
    }
}

/// Whether vgpud decides in time beside workers that use all CPUs.
fn priority() -> DoctorCheck {
    const NAME: &str = "cpu-priority";
    match priority::can_raise() {
        Ok(()) => DoctorCheck::ok(
            NAME,
            "The part of vgpud that decides for all VMs runs before workers.",
        ),
        Err(why) => DoctorCheck::warning(
            NAME,
            format!("vgpud does not run before workers: {why}"),
            "Give vgpud CAP_SYS_NICE, and set kernel.sched_autogroup_enabled=0. Otherwise workers that use all CPUs \
             delay vgpud.",
        ),
    }
}

#[cfg(test)]
mod tests {
    use vgpu_api::GpuHealth;

    use super::*;

    fn gpu(source: GpuSource) -> ScannedGpu {
        ScannedGpu {
            uuid: "GPU-0".into(),
            ordinal: 0,
            model: "Board".into(),
            memory_bytes: 0,
            memory_used_bytes: None,
            pci_address: None,
            driver: None,
            cuda_version: None,
            compute_capability: None,
            source,
            mig: Vec::new(),
            health: GpuHealth::default(),
        }
    }

    #[test]
    fn a_gpu_needs_the_library_of_nvidia_even_where_soft_gpu_is_installed() {
        for source in [GpuSource::Sysfs, GpuSource::Nvml] {
            let gpus = [gpu(source)];
            assert_eq!(needed(DriverKind::Auto, &gpus, false, true), [false]);
            assert_eq!(needed(DriverKind::Soft, &gpus, false, true), [true]);
        }
        let soft = [gpu(GpuSource::Soft)];
        assert_eq!(needed(DriverKind::Auto, &soft, false, true), [true]);
        assert_eq!(needed(DriverKind::Auto, &[], true, true), [false, true]);
        assert!(needed(DriverKind::Auto, &[], false, false).is_empty());
    }
}
