//! The runtime state, for administrators.

use vgpu_api::{HostState, SessionState, WaitReason};
use vgpu_sched::{SessionId, SessionStats};

use super::actor::Actor;
use super::registry;
use super::session::{Phase, Session};
use crate::model::{GpuRuntime, Histogram, RuntimeSnapshot, VmRuntime};

impl Actor {
    pub(super) fn snapshot(&mut self) -> RuntimeSnapshot {
        self.bring_up_to_date();
        let state = match &self.draining {
            Some(_) => HostState::Draining,
            None if self.serving => HostState::Serving,
            None => HostState::Starting,
        };
        let mut handoff_time = Histogram::default();
        let gpus = self.gpus(&mut handoff_time);
        RuntimeSnapshot {
            state: Some(state),
            gpus,
            vms: self.vms(),
            sessions: self
                .sessions
                .values()
                .map(|session| self.session(session))
                .collect(),
            decisions: self.decisions,
            decision_time: self.decision_time.clone(),
            handoff_time,
            orphaned_workers: self.orphans,
            // The gateway fills this in.
            listener_problems: Vec::new(),
            warnings: self.warnings(),
        }
    }

    fn gpus(&self, handoff_time: &mut Histogram) -> Vec<GpuRuntime> {
        let mut gpus = Vec::new();
        for record in self.registry.gpus.values() {
            let id = vgpu_sched::GpuId(record.gpu_id);
            let Some(stats) = self.scheduler.gpu_stats(id) else {
                continue;
            };
            handoff_time.merge(&stats.handoff);
            gpus.push(GpuRuntime {
                uuid: record.seen.uuid.clone(),
                sessions: stats.sessions,
                holder_vm_id: stats.holders.first().map(|holder| holder.1.0),
                busy_permille: self.meter.busy_permille(id),
                handoffs: stats.handoffs,
                handoff: stats.handoff,
                account: vgpu_api::GpuAccount {
                    charged_ns: stats.account.charged_ns,
                    idle_ns: stats.account.idle_ns,
                    switch_ns: stats.account.switch_ns,
                    wall_ns: stats.wall_ns,
                },
                memory_used_bytes: Some(stats.memory_bytes),
                killed_pids: self.killed_on(id),
                dying_pids: self.dying_on(id),
            });
        }
        gpus
    }

    fn vms(&self) -> Vec<VmRuntime> {
        let mut vms = Vec::new();
        for vm in self.registry.vms.values() {
            let identity = vm.identity();
            let Some(stats) = self.scheduler.vm_stats(registry::vm_id(identity)) else {
                continue;
            };
            let gpu = stats.gpu.and_then(|gpu| self.registry.gpu(gpu));
            vms.push(VmRuntime {
                vm_id: vm.vm_id,
                gpu_uuid: gpu.map(|gpu| gpu.seen.uuid.clone()),
                more_gpu_uuids: self.uuids(&stats.also),
                quarantine: vm.quarantine.clone(),
                strikes: vm.strikes,
                quarantines: vm.quarantines,
                demoted: stats.demoted,
                sessions: stats.sessions,
                queue_calls: stats.depth.calls,
                queue_bytes: stats.depth.bytes,
                memory_bytes: stats.memory_bytes,
                pinned_bytes: stats.pinned_bytes,
                share_permille: self.meter.share_permille(identity),
                waiting: stats.waiting.map(why),
                wait: stats.wait,
                service: stats.service,
            });
        }
        vms
    }

    fn uuids(&self, gpus: &[vgpu_sched::GpuId]) -> Vec<String> {
        let known = gpus.iter().filter_map(|gpu| self.registry.gpu(*gpu));
        known.map(|gpu| gpu.seen.uuid.clone()).collect()
    }

    fn session(&self, session: &Session) -> vgpu_api::Session {
        let stats = self.scheduler.session_stats(SessionId(session.id));
        let stats = stats.as_ref();
        let unsettled = self.unsettled(session);
        vgpu_api::Session {
            session_id: session.id,
            vm_id: session.vm.vm_id,
            guest_pid: session.about.guest_pid,
            program: session.about.program.clone(),
            gpu_id: session.gpus.first().map(|gpu| gpu.id.0),
            gpu_uuid: Some(session.gpu_uuid().to_owned()),
            more_gpu_ids: session.gpus.iter().skip(1).map(|gpu| gpu.id.0).collect(),
            state: state(session, stats),
            waiting: stats.and_then(|stats| stats.waiting).map(why),
            peer: session.about.peer.clone(),
            worker_pid: session.worker.as_ref().map(|worker| worker.process.pid()),
            since_unix_ms: session.about.since_unix_ms,
            gpu_ns: stats.map_or(0, |stats| stats.gpu_ns),
            memory_bytes: stats.map_or(0, |stats| stats.memory_bytes),
            queue_calls: stats.map_or(0, |stats| stats.depth.calls),
            queue_bytes: stats.map_or(0, |stats| stats.depth.bytes),
            calls: stats
                .map_or(0, |stats| stats.calls)
                .saturating_add(unsettled.calls),
            bytes: stats
                .map_or(0, |stats| stats.bytes)
                .saturating_add(unsettled.bytes),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.orphans > 0 {
            warnings.push(format!(
                "{} workers of an earlier vgpud do not end; their GPUs are not used",
                self.orphans
            ));
        }
        if let Some(reason) = &self.draining {
            warnings.push(format!("No new session is admitted: {reason}"));
        }
        warnings
    }
}

fn state(session: &Session, stats: Option<&SessionStats>) -> SessionState {
    match (&session.phase, stats.map(|stats| stats.state)) {
        (Phase::Ending(..), _) => SessionState::Ending,
        (Phase::Starting, _) => SessionState::Starting,
        (Phase::Live, Some(vgpu_sched::SessionState::Waiting)) => SessionState::Waiting,
        (Phase::Live, Some(vgpu_sched::SessionState::Gathering)) => SessionState::Gathering,
        (Phase::Live, Some(vgpu_sched::SessionState::Running)) => SessionState::Running,
        (Phase::Live, Some(vgpu_sched::SessionState::Revoking)) => SessionState::Revoking,
        (Phase::Live, Some(vgpu_sched::SessionState::Ending)) => SessionState::Ending,
        (Phase::Live, _) => SessionState::Idle,
    }
}

fn why(reason: vgpu_sched::WaitReason) -> WaitReason {
    match reason {
        vgpu_sched::WaitReason::Slice => WaitReason::Slice,
        vgpu_sched::WaitReason::RateLimit { .. } => WaitReason::RateLimit,
        vgpu_sched::WaitReason::Depth => WaitReason::Depth,
        vgpu_sched::WaitReason::Quota => WaitReason::Quota,
        vgpu_sched::WaitReason::Quarantine => WaitReason::Quarantine,
        vgpu_sched::WaitReason::Gang { .. } => WaitReason::Gang,
        vgpu_sched::WaitReason::GpuUnavailable { .. } | vgpu_sched::WaitReason::NoGpu => {
            WaitReason::NoGpu
        }
        _ => WaitReason::Turn,
    }
}
