//! The state of the object that an event is about: the column of the coverage table.

use vgpu_sched::{
    Event, GpuHealth, GpuId, PoolId, Scheduler, SessionId, SessionState, VmId, WaitReason,
};

use super::coverage;
use super::model::Model;

/// Row and column of an event in the coverage table, before the event is fed.
pub(super) fn of(model: &Model, sched: &Scheduler, event: &Event) -> (usize, usize) {
    let mut forged = false;
    let state = match event {
        Event::Released { session, epoch, .. }
        | Event::Ending { session, epoch, .. }
        | Event::CreditsSpent { session, epoch, .. } => {
            forged = !model.holds(*session, *epoch);
            session_state(model, sched, *session)
        }
        Event::Runnable { session, .. }
        | Event::Idle { session, .. }
        | Event::Progress { session, .. }
        | Event::MemoryReserve { session, .. }
        | Event::MemoryRelease { session, .. }
        | Event::SessionRemoved { session }
        | Event::WorkerExited { session }
        | Event::WorkerExiting { session }
        | Event::Used { session, .. } => session_state(model, sched, *session),
        Event::SessionAdded { vm, .. }
        | Event::AddVm { vm, .. }
        | Event::SetVm { vm, .. }
        | Event::RemoveVm { vm }
        | Event::SetQuarantine { vm, .. }
        | Event::Strike { vm }
        | Event::PinnedLeft { vm, .. } => vm_state(model, sched, *vm),
        Event::ResetStats { vm } => vm_state(model, sched, vm.unwrap_or_default()),
        Event::AddGpu { gpu, .. }
        | Event::SetGpu { gpu, .. }
        | Event::RemoveGpu { gpu }
        | Event::GpuState { gpu, .. }
        | Event::Verified { gpu, .. }
        | Event::AssignGpu { gpu, .. }
        | Event::UnassignGpu { gpu, .. } => gpu_state(model, *gpu),
        Event::AddPool { pool, .. } | Event::SetPool { pool, .. } | Event::RemovePool { pool } => {
            pool_state(model, *pool)
        }
        Event::SetClassWeights { .. } | Event::Timer | Event::Away { .. } => timer_state(model),
    };
    (coverage::kind(event, forged), state)
}

fn session_state(model: &Model, sched: &Scheduler, id: SessionId) -> usize {
    let Some(session) = model.sessions.get(&id) else {
        return 0;
    };
    let Some(stats) = sched.session_stats(id) else {
        return 0;
    };
    let holder = model.holder(id);
    if let Some(holder) = holder {
        if holder.overrun {
            return 9;
        }
        if holder.beside && session.served() && holder.revoked_ns.is_none() {
            return 10;
        }
        if holder.ahead.is_some() && session.served() {
            return 13;
        }
        if holder.leaves(model.now) && session.served() {
            return 14;
        }
    }
    match (stats.state, stats.waiting) {
        (SessionState::Idle, _) => 1,
        (SessionState::Waiting, Some(WaitReason::RateLimit { .. })) => 3,
        (SessionState::Waiting, Some(WaitReason::GpuUnavailable { .. })) => 4,
        (SessionState::Waiting, _) => 2,
        (SessionState::Running, _) if session.said_idle => 6,
        (SessionState::Running, _) => 5,
        (SessionState::Parked, _) => 7,
        (SessionState::Revoking, _) => 8,
        (SessionState::Ending, _) => 11,
        (SessionState::Gathering, _) => 12,
    }
}

fn vm_state(model: &Model, sched: &Scheduler, id: VmId) -> usize {
    let Some(vm) = model.vms.get(&id) else {
        return 0;
    };
    if vm.removed {
        return 7;
    }
    if vm.quarantined {
        return 6;
    }
    if vm.sessions.is_empty() {
        return 1;
    }
    if vm.sessions.iter().any(|&id| model.holder(id).is_some()) {
        return 5;
    }
    let mut waiting = vm
        .sessions
        .iter()
        .filter_map(|&id| sched.session_stats(id)?.waiting);
    match waiting.next_back() {
        None => 2,
        Some(WaitReason::RateLimit { .. }) => 4,
        Some(_) => 3,
    }
}

fn gpu_state(model: &Model, id: GpuId) -> usize {
    let Some(gpu) = model.gpus.get(&id) else {
        return 0;
    };
    if gpu.removed {
        return 8;
    }
    match (gpu.health, gpu.holders.len()) {
        (GpuHealth::Unverified, _) => 4,
        (GpuHealth::Draining, _) => 5,
        (GpuHealth::Suspect, _) => 6,
        (GpuHealth::Lost, _) => 7,
        (GpuHealth::Healthy, 0) => 1,
        (GpuHealth::Healthy, 1) => 2,
        (GpuHealth::Healthy, _) => 3,
    }
}

fn pool_state(model: &Model, id: PoolId) -> usize {
    if !model.pools.contains_key(&id) {
        return 0;
    }
    if !model.lived_in(id) {
        return 1;
    }
    let runs = model.leases.values().any(|lease| {
        let vm = model.vms.get(&lease.vm);
        vm.and_then(|vm| vm.placement.as_ref())
            .is_some_and(|(_, pool)| *pool == id)
    });
    if runs { 3 } else { 2 }
}

fn timer_state(model: &Model) -> usize {
    match model.timer_ns.cmp(&model.now) {
        std::cmp::Ordering::Greater => 0,
        std::cmp::Ordering::Equal => 1,
        std::cmp::Ordering::Less => 2,
    }
}
