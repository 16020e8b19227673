//! Checks of the host that need neither guests nor a mediator.

use std::sync::Arc;

use vgpu_api::{DoctorCheck, GpuSource};

use super::confinement::Confinement;
use crate::config::DriverKind;
use crate::model::ScannedGpu;
use crate::probe::Prober;
use crate::supervisor::launcher::{Launcher, driver_library};

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
        ];
        let confinement = self.confinement.check(&self.prober, soft);
        let (confinement, libraries) = tokio::join!(confinement, self.driver_libraries());
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

    /// Checks that workers can load the driver libraries. Works even without a GPU.
    pub async fn driver_libraries(&self) -> Vec<DoctorCheck> {
        let config = self.launcher.config();
        // One entry for each library to check: true for soft-gpu's, false for NVIDIA's. A library
        // that is not configured need not exist.
        let looks: &[bool] = match config.driver.kind {
            DriverKind::Nvidia => &[false],
            DriverKind::Soft => &[true],
            DriverKind::Auto => {
                let soft = driver_library(&config, true).is_ok();
                match (config.driver.library.is_some(), soft) {
                    (true, true) => &[false, true],
                    (true, false) => &[false],
                    (false, true) => &[true],
                    (false, false) => &[],
                }
            }
        };
        let mut checks = Vec::new();
        for &soft in looks {
            let prober = self.prober.clone();
            let look = tokio::task::spawn_blocking(move || prober.library(soft));
            let seen = look.await.unwrap_or_else(|e| Err(e.to_string()));
            let key = if soft { "soft_library" } else { "library" };
            let hint =
                format!("Mend what the message names, or correct driver.{key} in vgpud.toml");
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
