//! The mediation as administration sees it: mediator, listeners and probes behind one trait.

mod clock;
mod confinement;
mod host;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::OwnedMutexGuard;
use vgpu_api::{DoctorCheck, GpuSource};

use crate::config::Config;
use crate::gateway::Gateway;
use crate::mediation::{Change, Explained, GpuCheck, Mediation, MediationError, MediationFuture};
use crate::mediator::{Command, MediatorHandle};
use crate::model::{DeviceProcess, RuntimeSnapshot, ScanResult, ScannedGpu, VmRecord};
use crate::probe::Prober;
use crate::supervisor::launcher::Launcher;

pub use host::Host;

/// The whole mediation.
#[derive(Debug)]
pub struct Core {
    mediator: MediatorHandle,
    gateway: Arc<Gateway>,
    prober: Prober,
    launcher: Arc<Launcher>,
    known: Mutex<Known>,
    /// One scan at a time.
    scanning: tokio::sync::Mutex<()>,
    host: Host,
    /// Changes are applied one batch after another.
    applying: Arc<tokio::sync::Mutex<()>>,
}

/// The part of the configuration that listeners and probes need.
#[derive(Debug, Default)]
struct Known {
    vms: BTreeMap<u32, Arc<VmRecord>>,
    gpus: BTreeMap<String, ScannedGpu>,
}

impl Known {
    fn take(&mut self, change: &Change) {
        match change {
            Change::VmUpserted { vm, .. } => {
                self.vms.insert(vm.vm_id, Arc::new(vm.clone()));
            }
            Change::VmRemoved { vm_id, generation } => {
                self.vms
                    .retain(|id, vm| id != vm_id || vm.generation != *generation);
            }
            Change::GpuInventory(gpus) => {
                self.gpus = gpus
                    .iter()
                    .map(|gpu| (gpu.seen.uuid.clone(), gpu.seen.clone()))
                    .collect();
            }
            _ => {}
        }
    }
}

impl Core {
    /// Creates the mediation. Nothing listens until [`Core::open_listeners`].
    #[must_use]
    pub fn new(
        mediator: MediatorHandle,
        gateway: Gateway,
        prober: Prober,
        launcher: Arc<Launcher>,
    ) -> Core {
        let host = Host::new(prober.clone(), launcher.clone());
        Core {
            mediator,
            gateway: Arc::new(gateway),
            prober,
            launcher,
            known: Mutex::default(),
            scanning: tokio::sync::Mutex::default(),
            host,
            applying: Arc::default(),
        }
    }

    /// Opens the listeners for guests. Must be called within the runtime.
    pub fn open_listeners(&self) {
        self.gateway.open();
        let vms = self.known().vms.clone();
        self.gateway.sync(vms.values().map(Arc::as_ref));
    }

    /// Opens listeners again that could not be opened, or whose socket is gone.
    pub async fn reopen_listeners(&self) {
        let turn = self.applying.clone().lock_owned().await;
        // The gateway reports the problems itself.
        let _ = self.sync(turn, |gateway| !gateway.is_whole()).await;
    }

    /// Updates the listeners to the present VMs, if `due` says so. Files may be slow, so this runs
    /// outside the runtime's threads. The turn lasts until the end, even if the caller is gone.
    async fn sync(
        &self,
        turn: OwnedMutexGuard<()>,
        due: fn(&Gateway) -> bool,
    ) -> Result<(), MediationError> {
        let (gateway, vms) = (self.gateway.clone(), self.known().vms.clone());
        let sync = move || {
            if due(&gateway) {
                gateway.sync(vms.values().map(Arc::as_ref));
            }
            drop(turn);
        };
        let done = tokio::task::spawn_blocking(sync).await;
        done.map_err(|error| MediationError::Failed(error.to_string()))
    }

    /// Closes the listeners. Open connections stay.
    pub fn close_listeners(&self) {
        self.gateway.close();
    }

    /// Asks the devices which processes use them, and has the mediator compare the answers with its
    /// accounts. `cards`: asks the cards too, for which a probe process runs.
    pub async fn audit(&self, cards: bool) {
        let prober = self.prober.clone();
        let asked = self.audited(cards);
        self.audit_with(asked, move |gpu| prober.processes(gpu).ok())
            .await;
    }

    /// Like [`Core::audit`], with answers of `ask`. Devices that do not answer are left out.
    pub async fn audit_with(
        &self,
        gpus: Vec<ScannedGpu>,
        ask: impl Fn(&ScannedGpu) -> Option<Vec<DeviceProcess>> + Send + 'static,
    ) {
        if gpus.is_empty() || self.mediator.ask(Command::Audit).await.is_err() {
            return;
        }
        let Some(seen) = look(gpus, ask).await else {
            return;
        };
        for (processes, gpu_uuid) in seen {
            let said = Command::DeviceUse {
                gpu_uuid,
                processes,
            };
            let _ = self.mediator.send(said);
        }
    }

    /// The devices that report the memory of each process.
    fn audited(&self, cards: bool) -> Vec<ScannedGpu> {
        let wanted = |gpu: &&ScannedGpu| match gpu.source {
            GpuSource::Soft => true,
            GpuSource::Nvml => cards,
            GpuSource::Sysfs => false,
        };
        self.known().gpus.values().filter(wanted).cloned().collect()
    }

    fn known(&self) -> std::sync::MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Mediation for Core {
    fn apply(&self, changes: Vec<Change>) -> MediationFuture<'_, ()> {
        Box::pin(async move {
            let turn = self.applying.clone().lock_owned().await;
            for change in &changes {
                self.known().take(change);
            }
            // The mediator first: otherwise a guest could connect to a new socket before the
            // mediator knows the VM.
            self.mediator
                .ask(|done| Command::Apply(changes, done))
                .await?;
            self.sync(turn, |_| true).await
        })
    }

    fn snapshot(&self) -> MediationFuture<'_, RuntimeSnapshot> {
        Box::pin(async {
            let snapshot = self.mediator.ask(Command::Snapshot).await?;
            Ok(RuntimeSnapshot {
                listener_problems: self.gateway.shut(),
                ..snapshot
            })
        })
    }

    fn kill_session(&self, session_id: u64, reason: String) -> MediationFuture<'_, ()> {
        Box::pin(async move {
            let session = session_id;
            self.mediator
                .ask(|answer| Command::KillSession {
                    session,
                    reason,
                    answer,
                })
                .await?
        })
    }

    fn scan_gpus(&self) -> MediationFuture<'_, ScanResult> {
        Box::pin(async move {
            let _turn = self.scanning.lock().await;
            let prober = self.prober.clone();
            tokio::task::spawn_blocking(move || prober.scan())
                .await
                .map_err(|e| MediationError::Probe(e.to_string()))?
                .map_err(MediationError::Probe)
        })
    }

    fn check_gpu(&self, uuid: String) -> MediationFuture<'_, GpuCheck> {
        Box::pin(async move {
            let gpu = self.known().gpus.get(&uuid).cloned();
            let gpu = gpu.ok_or_else(|| MediationError::NoGpu(uuid.clone()))?;
            let prober = self.prober.clone();
            let snapshot = self.mediator.ask(Command::Snapshot).await?;
            let running = snapshot
                .gpus
                .into_iter()
                .find(|running| running.uuid == uuid);
            let (killed, dying) = running
                .map(|gpu| (gpu.killed_pids, gpu.dying_pids))
                .unwrap_or_default();
            tokio::task::spawn_blocking(move || prober.check_when_gone(&gpu, &dying, killed))
                .await
                .map_err(|e| MediationError::Probe(e.to_string()))
        })
    }

    fn sched_log(&self) -> MediationFuture<'_, vgpu_sched::log::View> {
        Box::pin(self.mediator.ask(Command::SchedLog))
    }

    fn explain(&self, vm_id: u32) -> MediationFuture<'_, Option<Explained>> {
        Box::pin(
            self.mediator
                .ask(move |answer| Command::Explain { vm_id, answer }),
        )
    }

    fn reconfigure(&self, config: Arc<Config>) -> MediationFuture<'_, ()> {
        Box::pin(async move {
            self.launcher.reconfigure(config.clone());
            self.gateway.reconfigure(config.clone());
            self.mediator
                .ask(|done| Command::Reconfigure(config, done))
                .await?;
            let turn = self.applying.clone().lock_owned().await;
            self.sync(turn, |_| true).await
        })
    }

    fn doctor(&self) -> MediationFuture<'_, Vec<DoctorCheck>> {
        Box::pin(async move {
            let gateway = self.gateway.clone();
            let checks = tokio::task::spawn_blocking(move || gateway.doctor()).await;
            let mut checks = checks.map_err(|error| MediationError::Failed(error.to_string()))?;
            let gpus: Vec<ScannedGpu> = self.known().gpus.values().cloned().collect();
            checks.extend(self.host.checks(&gpus).await);
            let prober = self.prober.clone();
            let ask = move |gpu: &ScannedGpu| prober.processes(gpu).ok();
            let used = look(self.audited(false), ask).await.unwrap_or_default();
            let used: Vec<_> = used.into_iter().flat_map(|(found, _)| found).collect();
            let snapshot = self.mediator.ask(Command::Snapshot).await?;
            checks.extend(clock::check(&used, &snapshot.sessions));
            let left = snapshot.orphaned_workers;
            let message = format!("{left} workers of an earlier vgpud still run");
            let hint = "They do not end although they were killed: the driver holds them; only a \
                        reboot, or a reset of their GPU, frees it";
            checks.push(match left {
                0 => DoctorCheck::ok("leftover-workers", message),
                _ => DoctorCheck::error("leftover-workers", message, hint),
            });
            Ok(checks)
        })
    }
}

/// The processes on these devices, by UUID. Devices that do not answer are left out.
async fn look(
    gpus: Vec<ScannedGpu>,
    ask: impl Fn(&ScannedGpu) -> Option<Vec<DeviceProcess>> + Send + 'static,
) -> Option<Vec<(Vec<DeviceProcess>, String)>> {
    let look = move || {
        gpus.into_iter()
            .filter_map(|gpu| Some((ask(&gpu)?, gpu.uuid)))
            .collect()
    };
    tokio::task::spawn_blocking(look).await.ok()
}
