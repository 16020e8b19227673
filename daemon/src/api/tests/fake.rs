//! A mediation that records its calls and answers as the test sets.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use vgpu_api::{
    DoctorCheck, GpuAccount, GpuHealth, GpuSource, HostState, Quarantine, Session, SessionState,
    WaitReason,
};

use vgpu_sched::log::{Bounds, DecisionLog};
use vgpu_sched::{Class, Event as SchedEvent, PoolConfig, PoolId, Scheduler, VmConfig, VmId};

use crate::config::Config;
use crate::mediation::{
    Change, CheckFound, Explained, GpuCheck, Mediation, MediationError, MediationFuture,
};
use crate::model::{
    GpuRuntime, Histogram, ListenerProblem, RuntimeSnapshot, ScanResult, ScannedGpu, VmRuntime,
};

#[derive(Debug, Default)]
pub(super) struct FakeMediation {
    pub(super) applied: Mutex<Vec<Change>>,
    pub(super) killed: Mutex<Vec<(u64, String)>>,
    pub(super) reconfigured: Mutex<Vec<Arc<Config>>>,
    /// Sockets of VMs on which vgpud does not listen.
    pub(super) shut: Mutex<Vec<ListenerProblem>>,
    /// The quarantine of VM 3 by strikes, which the store does not know yet.
    pub(super) struck: Mutex<Option<Quarantine>>,
    /// While set, `apply` waits.
    pub(super) held: AtomicBool,
    /// Number of calls of `apply`.
    pub(super) asked: AtomicU64,
    /// While set, `apply` fails.
    pub(super) broken: AtomicBool,
    /// While set, `snapshot` never answers.
    pub(super) silent: AtomicBool,
    /// What checks of GPUs find; `None`: they pass.
    pub(super) check: Mutex<Option<(CheckFound, &'static str)>>,
    /// While set, the probe fails.
    pub(super) no_probe: AtomicBool,
    /// While set, scans find GPU 0 without a driver.
    pub(super) no_driver: AtomicBool,
}

fn soft(n: u32) -> ScannedGpu {
    ScannedGpu {
        uuid: format!("GPU-soft-{n}"),
        ordinal: n,
        model: format!("Soft GPU {n} (soft)"),
        memory_bytes: 1 << 30,
        memory_used_bytes: Some(1 << 20),
        pci_address: None,
        driver: Some("12.4".into()),
        cuda_version: Some(12_040),
        compute_capability: Some("8.0".into()),
        source: GpuSource::Soft,
        mig: Vec::new(),
        health: GpuHealth {
            ok: true,
            temperature_celsius: Some(40),
            power_milliwatts: Some(90_000),
            ..GpuHealth::default()
        },
    }
}

fn session() -> Session {
    Session {
        session_id: 77,
        vm_id: 3,
        guest_pid: 1234,
        program: "matmul".into(),
        gpu_id: None,
        gpu_uuid: Some("GPU-soft-0".into()),
        more_gpu_ids: Vec::new(),
        state: SessionState::Waiting,
        waiting: Some(WaitReason::Turn),
        peer: "vsock:103".into(),
        worker_pid: Some(999),
        since_unix_ms: 5,
        gpu_ns: 1_000_000,
        memory_bytes: 4096,
        queue_calls: 12,
        queue_bytes: 300,
        calls: 40,
        bytes: 5_000,
    }
}

fn snapshot() -> RuntimeSnapshot {
    let mut wait = Histogram::default();
    wait.record(2_000_000);
    RuntimeSnapshot {
        state: Some(HostState::Serving),
        gpus: vec![GpuRuntime {
            uuid: "GPU-soft-0".into(),
            sessions: 1,
            holder_vm_id: Some(3),
            busy_permille: 900,
            handoffs: 5,
            account: GpuAccount {
                charged_ns: 3_000_000_000,
                idle_ns: 2_000_000_000,
                switch_ns: 4_000,
                wall_ns: 5_000_004_000,
            },
            memory_used_bytes: Some(2 << 20),
            ..GpuRuntime::default()
        }],
        vms: vec![VmRuntime {
            vm_id: 3,
            gpu_uuid: Some("GPU-soft-0".into()),
            sessions: 1,
            queue_calls: 12,
            queue_bytes: 300,
            memory_bytes: 4096,
            share_permille: 500,
            waiting: Some(WaitReason::Turn),
            wait,
            ..VmRuntime::default()
        }],
        sessions: vec![session()],
        decisions: 42,
        ..RuntimeSnapshot::default()
    }
}

/// Events that add a pool and a VM in it.
fn events(vm_id: u32) -> [SchedEvent; 2] {
    let pool = PoolId(1);
    [
        SchedEvent::AddPool {
            pool,
            config: PoolConfig::default(),
        },
        SchedEvent::AddVm {
            vm: VmId(vm_id),
            config: VmConfig::new(pool, Class::High),
            past: vgpu_sched::Past::default(),
        },
    ]
}

impl FakeMediation {
    pub(super) fn checks_find(&self, found: Option<(CheckFound, &'static str)>) {
        *self.check.lock().unwrap() = found;
    }

    fn log(&self) -> vgpu_sched::log::View {
        let mut scheduler = Scheduler::new(vgpu_sched::Config::default());
        let mut log = DecisionLog::new(&scheduler, Bounds::default());
        for event in events(3) {
            log.handle(&mut scheduler, 1_000, event, &mut Vec::new());
        }
        log.view(&scheduler)
    }
}

impl Mediation for FakeMediation {
    fn apply(&self, changes: Vec<Change>) -> MediationFuture<'_, ()> {
        Box::pin(async move {
            self.asked.fetch_add(1, Ordering::SeqCst);
            while self.held.load(Ordering::SeqCst) {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
            if self.broken.load(Ordering::SeqCst) {
                return Err(MediationError::Failed("the scheduler is gone".into()));
            }
            self.applied.lock().unwrap().extend(changes);
            Ok(())
        })
    }

    fn snapshot(&self) -> MediationFuture<'_, RuntimeSnapshot> {
        Box::pin(async {
            if self.silent.load(Ordering::SeqCst) {
                std::future::pending::<()>().await;
            }
            let mut now = RuntimeSnapshot {
                listener_problems: self.shut.lock().unwrap().clone(),
                ..snapshot()
            };
            now.vms[0].quarantine = self.struck.lock().unwrap().clone();
            (now.vms[0].strikes, now.vms[0].quarantines) = (3, 1);
            Ok(now)
        })
    }

    fn kill_session(&self, session_id: u64, reason: String) -> MediationFuture<'_, ()> {
        Box::pin(async move {
            if session_id != session().session_id {
                return Err(MediationError::NoSession(session_id));
            }
            self.killed.lock().unwrap().push((session_id, reason));
            Ok(())
        })
    }

    fn scan_gpus(&self) -> MediationFuture<'_, ScanResult> {
        Box::pin(async {
            if self.no_probe.load(Ordering::SeqCst) {
                return Err(MediationError::Probe("no answer within 10 s".into()));
            }
            let mut gpus = vec![soft(0), soft(1)];
            if self.no_driver.load(Ordering::SeqCst) {
                gpus[0].source = GpuSource::Sysfs;
            }
            Ok(ScanResult {
                gpus,
                warnings: vec!["NVML is absent".into()],
            })
        })
    }

    fn check_gpu(&self, _uuid: String) -> MediationFuture<'_, GpuCheck> {
        Box::pin(async {
            let passes = (CheckFound::Passed, "canary in 3 ms");
            let (found, message) = self.check.lock().unwrap().unwrap_or(passes);
            let message = message.into();
            Ok(GpuCheck { found, message })
        })
    }

    fn sched_log(&self) -> MediationFuture<'_, vgpu_sched::log::View> {
        Box::pin(async { Ok(self.log()) })
    }

    fn explain(&self, vm_id: u32) -> MediationFuture<'_, Option<Explained>> {
        Box::pin(async move {
            let mut scheduler = Scheduler::new(vgpu_sched::Config::default());
            for event in events(vm_id) {
                scheduler.handle(1_000, event, &mut Vec::new());
            }
            let explanation = scheduler.explain(VmId(vm_id));
            Ok(explanation.map(|explanation| Explained {
                explanation,
                pool: "A".into(),
            }))
        })
    }

    fn reconfigure(&self, config: Arc<Config>) -> MediationFuture<'_, ()> {
        self.reconfigured.lock().unwrap().push(config);
        Box::pin(async { Ok(()) })
    }

    fn doctor(&self) -> MediationFuture<'_, Vec<DoctorCheck>> {
        Box::pin(async { Ok(vec![DoctorCheck::ok("listeners", "20 sockets")]) })
    }
}
