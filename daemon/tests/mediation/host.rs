//! A host under test.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Sender};
use std::time::Duration;

use vgpu_api::{
    DoctorCheck, Event, EventKind, GpuHealth, GpuSource, GpuState, PoolSettings, Priority, Session,
    Severity, VmLimits, VmUsage, Weights,
};
use vgpud::config::{Config, DriverKind};
use vgpud::core::Core;
use vgpud::events::{EventSink, Journal};
use vgpud::gateway::Gateway;
use vgpud::mediation::{Change, CheckFound, GpuCheck, Mediation};
use vgpud::mediator::{Mediator, MediatorSettings};
use vgpud::model::{
    AssignmentRecord, DeviceProcess, GpuRecord, PoolRecord, RuntimeSnapshot, ScannedGpu, VmRecord,
};
use vgpud::probe::Prober;
use vgpud::supervisor::Supervisor;
use vgpud::supervisor::launcher::{Launcher, prepare_soft_state};
use vgpud::worker::images::ImageKeeper;
use vgpud::worker::records::WorkerRecords;

use crate::guest::{GPU, Guest, SOON, until};

/// A deadline below the ten seconds after which most conditions hold anyway. On an idle machine,
/// the conditions take milliseconds.
pub(crate) const PROMPTLY: Duration = Duration::from_secs(9);

/// The settings in which hosts differ.
#[derive(Clone)]
pub(crate) struct Setup {
    pub(crate) start: &'static str,
    pub(crate) settings: PoolSettings,
    pub(crate) configure: fn(&mut Config),
    pub(crate) canary: CheckFound,
    pub(crate) unverified: bool,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            start: "",
            settings: PoolSettings::default(),
            configure: |_| {},
            canary: CheckFound::Passed,
            unverified: false,
        }
    }
}

/// A host with one GPU, in pool A.
pub(crate) struct Host {
    pub(crate) dir: tempfile::TempDir,
    runtime: tokio::runtime::Runtime,
    /// The runtime of the mediator's blocking work. It has one thread, which a test can block.
    blocking: tokio::runtime::Runtime,
    journal: Arc<Journal>,
    config: Arc<Config>,
    pub(crate) core: Arc<Core>,
    mediator: Option<Mediator>,
}

impl Host {
    pub(crate) fn new() -> Host {
        Host::with(&Setup::default())
    }

    pub(crate) fn with(setup: &Setup) -> Host {
        let dir = passable(tempfile::tempdir().expect("a directory"));
        let config = Arc::new(config(dir.path(), setup));
        let mut builder = tokio::runtime::Builder::new_multi_thread();
        builder.worker_threads(2).enable_all();
        let runtime = builder.build().expect("a runtime");
        let blocking = builder.max_blocking_threads(1).build().expect("a runtime");
        let journal = Arc::new(Journal::new(0, Default::default()));
        let events = EventSink::new(journal.clone());
        let records = WorkerRecords::open(&config.daemon.runtime_dir).expect("records");
        let launcher = Launcher::new(config.clone(), records.clone()).expect("a thread");
        let launcher = Arc::new(launcher);
        prepare_soft_state(&config, launcher.owners()).expect("a directory for soft devices");
        let found = setup.canary;
        let unverified = if setup.unverified {
            [GPU.to_owned()].into()
        } else {
            Default::default()
        };
        let mediator = Mediator::start(MediatorSettings {
            config: config.clone(),
            events: events.clone(),
            records,
            canary: Arc::new(move |_, _| {
                Box::pin(async move {
                    GpuCheck {
                        found,
                        message: "as the test says".into(),
                    }
                })
            }),
            runtime: blocking.handle().clone(),
            unverified,
            orphans: u32::from(setup.unverified),
            images: ImageKeeper::start(config.images_dir()).expect("a thread"),
            first_session: 1,
            first_epoch: 1,
        })
        .expect("a mediator");
        let handle = mediator.handle();
        let supervisor = Supervisor::new(handle.clone(), launcher.clone(), events.clone());
        let gateway = Gateway::new(config.clone(), handle, supervisor, events);
        let prober = Prober::new(launcher.clone());
        let core = Arc::new(Core::new(mediator.handle(), gateway, prober, launcher));
        let host = Host {
            dir,
            runtime,
            blocking,
            journal,
            config,
            core,
            mediator: Some(mediator),
        };
        host.apply(vec![
            Change::GpuInventory(vec![gpu()]),
            Change::PoolUpserted {
                pool: pool(setup.settings.clone()),
                weights: Weights::default(),
            },
            Change::GpuAssigned(AssignmentRecord {
                gpu_uuid: GPU.into(),
                pool: "A".into(),
                since_unix_ms: 0,
            }),
        ]);
        host.open_listeners();
        host
    }

    pub(crate) fn apply(&self, changes: Vec<Change>) {
        self.runtime
            .block_on(self.core.apply(changes))
            .expect("applied");
    }

    /// Registers a VM with these limits. Returns the path of its socket.
    pub(crate) fn vm(&self, vm_id: u32, limits: VmLimits) -> PathBuf {
        let vm = vm(vm_id, 100 + u64::from(vm_id), limits);
        self.apply(vec![Change::VmUpserted { vm, debt_ns: None }]);
        self.socket(vm_id)
    }

    /// Registers VMs 1 to N without limits. Returns a guest of each.
    pub(crate) fn guests<const N: usize>(&self) -> [Guest; N] {
        std::array::from_fn(|i| {
            let vm_id = u32::try_from(i).expect("few") + 1;
            Guest::connect(&self.vm(vm_id, VmLimits::default()))
        })
    }

    /// The check of mediation with this name for `vgpu-admin doctor`.
    pub(crate) fn doctor(&self, name: &str) -> DoctorCheck {
        let mut checks = self.checks().into_iter();
        checks.find(|check| check.name == name).expect("a check")
    }

    /// All checks of mediation for `vgpu-admin doctor`.
    pub(crate) fn checks(&self) -> Vec<DoctorCheck> {
        let checks = self.runtime.block_on(self.core.doctor());
        checks.expect("an answer")
    }

    pub(crate) fn open_listeners(&self) {
        let _entered = self.runtime.enter();
        self.core.open_listeners();
    }

    /// What `vgpu-admin reload` does with an unchanged configuration.
    pub(crate) fn reload(&self) {
        let reload = self.core.reconfigure(self.config.clone());
        self.runtime.block_on(reload).expect("taken over");
    }

    /// What vgpud does every few seconds.
    pub(crate) fn reopen_listeners(&self) {
        self.runtime.block_on(self.core.reopen_listeners());
    }

    pub(crate) fn socket(&self, vm_id: u32) -> PathBuf {
        self.dir.path().join(format!("run/vm/{vm_id}/vgpu.sock"))
    }

    pub(crate) fn snapshot(&self) -> RuntimeSnapshot {
        self.runtime
            .block_on(self.core.snapshot())
            .expect("a snapshot")
    }

    pub(crate) fn sessions(&self) -> Vec<Session> {
        self.snapshot().sessions
    }

    /// Reads from the device which processes use it, as vgpud does every second.
    pub(crate) fn audit(&self) {
        self.runtime.block_on(self.core.audit(false));
    }

    /// Like [`Host::audit`], if the device were a card, on which a process has this much memory.
    pub(crate) fn audit_card(&self, pid: u32, memory_bytes: u64) {
        let process = DeviceProcess {
            pid,
            memory_bytes,
            busy_ns: None,
            open_ns: None,
        };
        let audit = self
            .core
            .audit_with(vec![gpu().seen], move |_| Some(vec![process]));
        self.runtime.block_on(audit);
    }

    pub(crate) fn kill_session(&self, session: u64, reason: &str) {
        self.runtime
            .block_on(self.core.kill_session(session, reason.into()))
            .expect("such a session");
    }

    pub(crate) fn events(&self, kind: EventKind) -> Vec<Event> {
        self.journal
            .events_after(0, 10_000, |event| event.kind == kind)
    }

    /// The usage of a VM, as the store would get it.
    pub(crate) fn usage(&self, vm_id: u32) -> VmUsage {
        self.journal.usage_of(vm_id).total
    }

    /// Blocks the freeing of image memory until the result is dropped.
    pub(crate) fn hold_freeing(&self) -> Sender<()> {
        let (hold, held) = mpsc::channel();
        let (begin, begun) = mpsc::channel::<()>();
        self.blocking.spawn_blocking(move || {
            drop(begin);
            let _ = held.recv();
        });
        let _ = begun.recv_timeout(SOON);
        hold
    }

    pub(crate) fn wait_no_sessions(&self) {
        until("no session is left", || {
            self.sessions().is_empty().then_some(())
        });
    }

    pub(crate) fn no_errors(&self) {
        let errors = self
            .journal
            .events_after(0, 100, |event| event.severity == Severity::Error);
        assert!(errors.is_empty(), "{errors:#?}");
    }

    /// Ends the mediator and nothing else, like a kill of vgpud.
    pub(crate) fn stop_mediator(&mut self) {
        if let Some(mediator) = self.mediator.take() {
            mediator.stop();
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.stop_mediator();
    }
}

/// Lets workers, which have users of their own, pass through a directory.
fn passable(dir: tempfile::TempDir) -> tempfile::TempDir {
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
    std::fs::set_permissions(dir.path(), mode).expect("a mode");
    dir
}

fn config(dir: &Path, setup: &Setup) -> Config {
    let mut config = Config::default();
    config.daemon.state_dir = dir.join("state");
    config.daemon.runtime_dir = dir.join("run");
    config.listen.vsock = false;
    config.driver.kind = DriverKind::Soft;
    // The library is never loaded, because the worker is a fake.
    config.driver.soft_library = Some("/dev/null".into());
    config
        .driver
        .soft_env
        .insert("FAKE_START".into(), setup.start.into());
    config.worker.binary = Some(crate::program::fake_worker(dir));
    (setup.configure)(&mut config);
    config
}

pub(crate) fn gpu() -> GpuRecord {
    GpuRecord {
        gpu_id: 0,
        seen: ScannedGpu {
            uuid: GPU.into(),
            ordinal: 0,
            model: "Fake (soft)".into(),
            memory_bytes: 1 << 30,
            memory_used_bytes: None,
            pci_address: None,
            driver: None,
            cuda_version: Some(12_040),
            compute_capability: None,
            source: GpuSource::Soft,
            mig: Vec::new(),
            health: GpuHealth {
                ok: true,
                ..GpuHealth::default()
            },
        },
        state: GpuState::Ready,
        state_reason: None,
        first_seen_unix_ms: 0,
        last_seen_unix_ms: 0,
    }
}

pub(crate) fn pool(settings: PoolSettings) -> PoolRecord {
    PoolRecord {
        name: "A".into(),
        settings,
        created_unix_ms: 0,
    }
}

pub(crate) fn vm(vm_id: u32, generation: u64, limits: VmLimits) -> VmRecord {
    VmRecord {
        vm_id,
        name: format!("vm{vm_id}"),
        pool: "A".into(),
        priority: Priority::Medium,
        factor_percent: 100,
        generation,
        limits,
        ..VmRecord::default()
    }
}
