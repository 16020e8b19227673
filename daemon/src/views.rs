//! The views for administrators: configuration, runtime state and usage combined.

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_api::{
    DaemonStatus, Gpu, HostState, Limit, Pool, PoolStatus, Session, Status, Vm, VmLimits, VmState,
};

use crate::config::Config;
use crate::events::Journal;
use crate::model::{
    GpuRecord, GpuRuntime, ListenerProblem, PoolRecord, RuntimeSnapshot, UsageRecord, VmRecord,
    VmRuntime, now_unix_ms, summary,
};
use crate::store::{Catalog, catalog};

/// The data of all views, as of one moment.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) catalog: Arc<Catalog>,
    /// Without its lists of GPUs and VMs, which are separate fields.
    pub(crate) snapshot: RuntimeSnapshot,
    config: Arc<Config>,
    usage: BTreeMap<u32, UsageRecord>,
    running_gpus: BTreeMap<String, GpuRuntime>,
    running_vms: BTreeMap<u32, VmRuntime>,
}

impl World {
    pub(crate) fn new(
        catalog: Arc<Catalog>,
        config: Arc<Config>,
        mut snapshot: RuntimeSnapshot,
        journal: &Journal,
    ) -> Self {
        let gpus = std::mem::take(&mut snapshot.gpus).into_iter();
        let vms = std::mem::take(&mut snapshot.vms).into_iter();
        Self {
            catalog,
            snapshot,
            config,
            usage: journal.all_usage(),
            running_gpus: gpus.map(|gpu| (gpu.uuid.clone(), gpu)).collect(),
            running_vms: vms.map(|vm| (vm.vm_id, vm)).collect(),
        }
    }

    pub(crate) fn running_gpu(&self, uuid: &str) -> Option<&GpuRuntime> {
        self.running_gpus.get(uuid)
    }

    pub(crate) fn running_vm(&self, vm_id: u32) -> Option<&VmRuntime> {
        self.running_vms.get(&vm_id)
    }

    pub(crate) fn gpus(&self) -> Vec<Gpu> {
        let mut gpus: Vec<Gpu> = self
            .catalog
            .gpus
            .values()
            .map(|record| self.gpu(record))
            .collect();
        gpus.sort_by_key(|gpu| gpu.gpu_id);
        gpus
    }

    pub(crate) fn gpu(&self, record: &GpuRecord) -> Gpu {
        let idle = GpuRuntime::default();
        let running = self.running_gpu(&record.seen.uuid);
        let runtime = running.unwrap_or(&idle);
        let seen = &record.seen;
        Gpu {
            gpu_id: record.gpu_id,
            uuid: seen.uuid.clone(),
            model: seen.model.clone(),
            memory_bytes: seen.memory_bytes,
            memory_used_bytes: runtime.memory_used_bytes.or(seen.memory_used_bytes),
            pci_address: seen.pci_address.clone(),
            driver: seen.driver.clone(),
            compute_capability: seen.compute_capability.clone(),
            source: seen.source,
            mig: seen.mig.clone(),
            health: seen.health.clone(),
            state: record.state,
            state_reason: record.state_reason.clone(),
            pools: self.catalog.pools_of(&seen.uuid),
            first_seen_unix_ms: record.first_seen_unix_ms,
            last_seen_unix_ms: record.last_seen_unix_ms,
            sessions: runtime.sessions,
            holder_vm_id: runtime.holder_vm_id,
            busy_permille: runtime.busy_permille,
            handoffs: runtime.handoffs,
            handoff: summary(&runtime.handoff),
            account: running.map(|gpu| gpu.account),
        }
    }

    pub(crate) fn pool(&self, record: &PoolRecord) -> Pool {
        let gpus = self.catalog.gpus_of(&record.name);
        Pool {
            name: record.name.clone(),
            settings: record.settings.clone(),
            effective_weights: self.catalog.weights_of(record),
            gpu_ids: gpus.iter().map(|gpu| gpu.gpu_id).collect(),
            vm_ids: self
                .catalog
                .vms_of(&record.name)
                .map(|vm| vm.vm_id)
                .collect(),
            created_unix_ms: record.created_unix_ms,
        }
    }

    pub(crate) fn pools(&self) -> Vec<PoolStatus> {
        let status = |record: &PoolRecord| {
            let pool = self.pool(record);
            let running = pool
                .vm_ids
                .iter()
                .filter_map(|vm_id| self.running_vm(*vm_id));
            let (mut sessions, mut queue_calls, mut waiting_vms) = (0, 0, 0);
            for vm in running {
                sessions += vm.sessions;
                queue_calls += vm.queue_calls;
                // A quarantine or a quota holds also VMs without a program.
                waiting_vms += u32::from(vm.sessions > 0 && vm.waiting.is_some());
            }
            PoolStatus {
                pool,
                sessions,
                queue_calls,
                waiting_vms,
            }
        };
        self.catalog.pools.values().map(status).collect()
    }

    pub(crate) fn vms(&self) -> Vec<Vm> {
        self.catalog
            .vms
            .values()
            .map(|record| self.vm(record))
            .collect()
    }

    /// The effective limits of a VM.
    pub(crate) fn limits(&self, record: &VmRecord) -> VmLimits {
        let pool = self.catalog.pools.get(&record.pool);
        let settings = pool.map(|pool| &pool.settings);
        self.config.defaults.limits_of(record, settings)
    }

    pub(crate) fn vm(&self, record: &VmRecord) -> Vm {
        let idle = VmRuntime::default();
        let runtime = self.running_vm(record.vm_id).unwrap_or(&idle);
        let pool = self.catalog.pools.get(&record.pool);
        let settings = pool.map(|pool| &pool.settings);
        let strike_decay_s = settings.map_or(Limit::Unlimited, |s| s.strike_decay_s);
        let usage = self
            .usage
            .get(&record.vm_id)
            .filter(|u| u.generation == record.generation);
        let quarantine = record.quarantine.as_ref().or(runtime.quarantine.as_ref());
        let now = now_unix_ms();
        // The store learns a quarantine by strikes a moment later, with its counters.
        let (strikes, quarantines) = match (&record.quarantine, &runtime.quarantine) {
            (None, Some(_)) => (runtime.strikes, runtime.quarantines),
            _ => (
                record.strikes_at(now, strike_decay_s),
                record.quarantines_at(now, strike_decay_s),
            ),
        };
        Vm {
            vm_id: record.vm_id,
            name: record.name.clone(),
            pool: record.pool.clone(),
            priority: record.priority,
            factor_percent: record.factor_percent,
            slice_us: record.slice_us,
            gang: record.gang,
            allowed_gpu_ids: record.gpus.as_ref().map(|uuids| self.gpu_ids(uuids.iter())),
            generation: record.generation,
            cid: record.cid,
            socket: record.socket.clone(),
            peer_uid: record.peer_uid,
            socket_paths: self
                .config
                .socket_paths(record)
                .iter()
                .map(|path| path.display().to_string())
                .collect(),
            limits: record.limits.clone(),
            effective_limits: self.limits(record),
            state: match quarantine {
                Some(_) => VmState::Quarantined,
                None => VmState::Active,
            },
            quarantine: quarantine.cloned(),
            strikes,
            quarantines,
            demoted: runtime.demoted,
            registered_unix_ms: record.registered_unix_ms,
            origin: record.origin.clone(),
            gpu_id: runtime
                .gpu_uuid
                .as_deref()
                .and_then(|uuid| self.gpu_id(uuid)),
            more_gpu_ids: self.gpu_ids(runtime.more_gpu_uuids.iter()),
            sessions: runtime.sessions,
            queue_calls: runtime.queue_calls,
            queue_bytes: runtime.queue_bytes,
            memory_bytes: runtime.memory_bytes,
            pinned_bytes: runtime.pinned_bytes,
            share_permille: runtime.share_permille,
            waiting: runtime.waiting,
            wait: summary(&runtime.wait),
            usage: usage.map(|usage| usage.total).unwrap_or_default(),
        }
    }

    pub(crate) fn sessions(&self) -> Vec<Session> {
        let mut sessions = self.snapshot.sessions.clone();
        for session in &mut sessions {
            let gpu_id = session
                .gpu_uuid
                .as_deref()
                .and_then(|uuid| self.gpu_id(uuid));
            session.gpu_id = gpu_id.or(session.gpu_id);
        }
        sessions.sort_by_key(|session| session.session_id);
        sessions
    }

    pub(crate) fn status(&self, daemon: DaemonStatus, journal: &Journal) -> Status {
        use vgpu_api::Severity;
        Status {
            daemon,
            gpus: self.gpus(),
            pools: self.pools(),
            vms: self.vms(),
            sessions: self.sessions(),
            recent_events: journal.newest(10, |event| event.severity >= Severity::Warning),
        }
    }

    /// A warning for each pool with VMs that may use none of the pool's GPUs that take new work,
    /// although another GPU of the pool does.
    fn barred(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        for pool in self.catalog.pools.keys() {
            let mut gpus = self.catalog.gpus_of(pool);
            gpus.retain(|gpu| gpu.is_usable());
            let barred = |vm: &&VmRecord| !gpus.iter().any(|gpu| vm.may_use(&gpu.seen.uuid));
            let vms: Vec<u32> = self
                .catalog
                .vms_of(pool)
                .filter(barred)
                .map(|vm| vm.vm_id)
                .collect();
            if gpus.is_empty() || vms.is_empty() {
                continue;
            }
            let allows = match vms.as_slice() {
                [vm_id] => format!("`vgpu-admin vm set {vm_id} --gpus=all`"),
                _ => "`vgpu-admin vm set VM --gpus=all`".into(),
            };
            warnings.push(format!(
                "{} may use no GPU of pool {pool} that takes work: programs are refused. {allows} allows \
                 every GPU of the pool.",
                catalog::vms(&vms)
            ));
        }
        warnings
    }

    /// Returns sentences about problems that need an administrator.
    pub(crate) fn warnings(&self) -> Vec<String> {
        use vgpu_api::GpuState;
        let mut warnings = self.snapshot.warnings.clone();
        warnings.extend(shut_sentences(&self.snapshot.listener_problems));
        for gpu in self.gpus() {
            let reason = gpu.state_reason.as_deref().unwrap_or("no reason given");
            match gpu.state {
                GpuState::Suspect => warnings.push(format!(
                    "GPU {} is suspect: {reason}. `vgpu-admin gpu resume {}` checks it \
                     and lets it work again.",
                    gpu.gpu_id, gpu.gpu_id
                )),
                GpuState::Vanished if !gpu.pools.is_empty() => warnings.push(format!(
                    "GPU {} ({}) serves pool {} but is gone: {reason}.",
                    gpu.gpu_id,
                    gpu.model,
                    gpu.pools.join(", ")
                )),
                GpuState::NoDriver if !gpu.pools.is_empty() => warnings.push(format!(
                    "GPU {} ({}) serves pool {} but has no driver: {reason}. When that is mended: \
                     `vgpu-admin scan-gpus`.",
                    gpu.gpu_id,
                    gpu.model,
                    gpu.pools.join(", ")
                )),
                GpuState::Ready | GpuState::Draining | GpuState::Vanished | GpuState::NoDriver => {}
            }
        }
        let unserved = GpuRecord::none_served(self.catalog.gpus.values());
        for pool in self.pools() {
            if pool.pool.gpu_ids.is_empty() && !pool.pool.vm_ids.is_empty() {
                let mut warning = format!(
                    "Pool {} has VMs but no GPU: `vgpu-admin assign-gpu GPU --pool={}`",
                    pool.pool.name, pool.pool.name
                );
                warning += match unserved.is_empty() {
                    true => ".",
                    false => ", once a driver serves one of this host.",
                };
                warnings.push(warning);
            }
        }
        warnings.extend(self.barred());
        if self.snapshot.orphaned_workers > 0 {
            warnings.push(match self.snapshot.orphaned_workers {
                1 => "1 worker of an earlier vgpud is not yet gone; its GPU waits for it.".into(),
                workers => format!(
                    "{workers} workers of an earlier vgpud are not yet gone; their GPUs wait for them."
                ),
            });
        }
        warnings
    }

    /// Whether a GPU of this host can take work.
    pub(crate) fn can_work(&self) -> bool {
        use vgpu_api::GpuState;
        let mut states = self.catalog.gpus.values().map(|gpu| gpu.state);
        states.any(|state| matches!(state, GpuState::Ready | GpuState::Draining))
    }

    pub(crate) fn host_state(&self) -> HostState {
        self.snapshot.state.unwrap_or(HostState::Starting)
    }

    /// The numbers of GPUs, in order. Unknown GPUs are left out.
    fn gpu_ids<'a>(&self, uuids: impl Iterator<Item = &'a String>) -> Vec<u32> {
        let mut ids: Vec<u32> = uuids.filter_map(|uuid| self.gpu_id(uuid)).collect();
        ids.sort_unstable();
        ids
    }

    fn gpu_id(&self, uuid: &str) -> Option<u32> {
        self.catalog.gpus.get(uuid).map(|gpu| gpu.gpu_id)
    }
}

/// Returns sentences about problems with the sockets of VMs.
pub(super) fn shut_sentences(shut: &[ListenerProblem]) -> impl Iterator<Item = String> {
    let told = ListenerProblem::told(shut).into_iter();
    told.map(|(what, hint)| format!("{what}. {hint}."))
}
