//! Invariants, which the fuzzer checks after every event.

use vgpu_sched::{
    Event, GpuHealth, GpuId, PoolConfig, Scheduler, SessionId, SessionState, SessionStats, VmId,
    WaitReason,
};

use super::lags::Lags;
use super::model::{GpuModel, Holder, Model};
use super::{Verdict, ensure};

/// Compares a scheduler with the model.
#[derive(Debug, Clone, Default)]
pub(super) struct Checker {
    lags: Lags,
    /// VMs that wait only for their turn, with their GPUs.
    ready: Vec<(GpuId, VmId)>,
}

impl Checker {
    /// Checks all invariants after an event. The scheduler must have handled `event`, and the model
    /// must contain event and actions.
    pub(super) fn check(
        &mut self,
        model: &mut Model,
        sched: &Scheduler,
        event: &Event,
        complete: &[GpuId],
    ) -> Verdict {
        ensure!(
            sched.gpus().eq(model.gpus.keys().copied()),
            "known GPUs differ: {:?}",
            model.gpus.keys()
        );
        ensure!(
            sched.vms().eq(model.vms.keys().copied()),
            "known VMs differ: {:?}",
            model.vms.keys()
        );
        ensure!(
            sched.next_timer_ns() == model.timer_ns,
            "the timer is due at {}, but {} was announced",
            sched.next_timer_ns(),
            model.timer_ns
        );
        self.sessions(model, sched, matches!(event, Event::Timer))?;
        let settled = matches!(event, Event::Timer) && model.timer_ns > model.now;
        let ids: Vec<GpuId> = model.gpus.keys().copied().collect();
        for id in ids {
            let complete = complete.contains(&id);
            self.gpu(model, sched, id, complete)?;
            let Some(gpu) = model.gpus.get(&id) else {
                continue;
            };
            ensure!(
                complete || !matches!(event, Event::Timer),
                "a timer leaves time of {id} unaccounted for"
            );
            self.work_is_conserved(model, gpu, id)?;
            if settled {
                self.nothing_is_overdue(model, sched, id)?;
            }
            let ready: Vec<VmId> = self.ready_on(id).collect();
            if !gpu.health.grants() {
                self.lags.lose(model, id);
            } else if complete {
                self.lags.check(model, sched, id, &ready)?;
            }
        }
        self.lags.keep_apart(model, sched, &self.ready, event)?;
        Ok(())
    }

    fn ready_on(&self, gpu: GpuId) -> impl Iterator<Item = VmId> {
        self.ready
            .iter()
            .filter(move |(on, _)| *on == gpu)
            .map(|&(_, vm)| vm)
    }

    /// Checks sessions and VMs: memory, ready VMs, and the state of each lease. If all time is
    /// charged (`settled`), also checks the charges to the nanosecond.
    fn sessions(&mut self, model: &mut Model, sched: &Scheduler, settled: bool) -> Verdict {
        self.ready.clear();
        let now = model.now;
        let Model {
            sessions,
            vms,
            leases,
            ..
        } = model;
        for (&vm_id, vm) in vms.iter_mut() {
            ensure!(
                sched.sessions_of(vm_id).eq(vm.sessions.iter().copied()),
                "{vm_id} has other sessions than {:?}",
                vm.sessions
            );
            let (mut memory, mut pinned) = (0_u128, u128::from(vm.pinned_left));
            let mut waits = None;
            for &id in &vm.sessions {
                let stats = sched.session_stats(id).ok_or("a session is forgotten")?;
                let Some(session) = sessions.get(&id) else {
                    continue;
                };
                ensure!(
                    u128::from(stats.memory_bytes) == session.memory()
                        && stats.pinned_bytes == session.pinned,
                    "{id}: {stats:?}, but {session:?}"
                );
                ensure!(
                    !settled || stats.gpu_ns == session.gpu_ns,
                    "{id} was charged {} ns, used {} ns",
                    stats.gpu_ns,
                    session.gpu_ns
                );
                memory += session.memory();
                pinned += u128::from(session.pinned);
                lease_state(leases.get_mut(&id), id, &stats)?;
                waits = waits.or(turn(&stats));
                if let Some(WaitReason::RateLimit { until_ns, .. }) = stats.waiting {
                    ensure!(
                        until_ns == u64::MAX || sched.next_timer_ns() <= until_ns,
                        "{id} is held back until {until_ns} without a timer for it"
                    );
                }
            }
            let stats = sched.vm_stats(vm_id).ok_or("a VM is forgotten")?;
            ensure!(
                u128::from(stats.memory_bytes) == memory
                    && u128::from(stats.pinned_bytes) == pinned
                    && stats.quarantined == vm.quarantined,
                "{vm_id} has {memory} bytes, {pinned} pinned, quarantined: {}; the scheduler says \
                 {stats:?}",
                vm.quarantined
            );
            ensure!(
                !settled || stats.gpu_ns == vm.gpu_ns,
                "{vm_id} was charged {} ns, used {} ns",
                stats.gpu_ns,
                vm.gpu_ns
            );
            vm.demoted = stats.demoted;
            if settled && vm.overran_until_ns.is_some_and(|until| until <= now) {
                vm.overran_until_ns = None;
            }
            let gpus = vm.placement.as_ref().map(|(gpus, _)| gpus);
            let runs = leases.values().any(|lease| lease.vm == vm_id);
            if let (Some(held), Some(gpus), false) = (waits, gpus, runs) {
                let next = gpus
                    .get(held)
                    .ok_or("a gang waits although it has all its GPUs")?;
                self.ready.push((*next, vm_id));
            }
        }
        Ok(())
    }

    /// Checks the account of one GPU; to the nanosecond if all its time is charged (`complete`).
    fn gpu(&self, model: &Model, sched: &Scheduler, id: GpuId, complete: bool) -> Verdict {
        let stats = sched.gpu_stats(id).ok_or("a GPU is forgotten")?;
        let gpu = model.gpus.get(&id).ok_or("no such GPU")?;
        ensure!(
            stats.health == gpu.health,
            "{id} is {:?}, not {:?}",
            stats.health,
            gpu.health
        );
        let told = stats.holders.iter().copied();
        let expected = model.holders_on(id).map(|h| (h.session, h.vm, h.epoch));
        ensure!(
            told.eq(expected),
            "{id} is held by {:?}, the scheduler says {:?}",
            gpu.holders,
            stats.holders
        );
        let here = || model.sessions.values().filter(|s| s.is_on(id));
        let places = here().flat_map(|session| &session.places);
        let booked = places
            .filter(|(on, _)| *on == id)
            .map(|&(_, bytes)| u128::from(bytes));
        let memory: u128 = booked.sum();
        ensure!(
            u128::from(stats.memory_bytes) == memory && stats.sessions as usize == here().count(),
            "{id}: {} bytes and {} sessions booked, {memory} bytes expected",
            stats.memory_bytes,
            stats.sessions
        );
        let account = stats.account;
        let sum = account.charged_ns + account.idle_ns + account.switch_ns;
        let wall = model.now - gpu.since_ns;
        ensure!(sum <= wall, "{id}: {account:?} of {wall} ns");
        if !complete {
            return Ok(());
        }
        let free = account.idle_ns + account.switch_ns;
        ensure!(
            account.charged_ns == gpu.spent.charged_ns
                && free == gpu.spent.idle_ns + gpu.spent.either_ns
                && account.switch_ns <= gpu.spent.either_ns,
            "{id}: {account:?}, expected {:?}",
            gpu.spent
        );
        Ok(())
    }

    /// Checks that no GPU idles while a VM could use it.
    fn work_is_conserved(&self, model: &Model, gpu: &GpuModel, id: GpuId) -> Verdict {
        let overruns = |holder| model.holder(holder).is_some_and(|lease| lease.overrun);
        let free = match gpu.holders.as_slice() {
            [] => true,
            [only] => overruns(*only),
            _ => false,
        };
        // A VM that overran recently may not run beside another overrunner.
        let kept_off = |vm: &VmId| {
            let vm = model.vms.get(vm);
            !gpu.holders.is_empty() && vm.is_some_and(|vm| vm.overran_until_ns.is_some())
        };
        if gpu.health.grants() && free {
            let waits = self.ready_on(id).find(|vm| !kept_off(vm));
            ensure!(waits.is_none(), "{waits:?} waits and {id} is free");
        }
        Ok(())
    }

    /// After all timers fired: checks that slices have ended and that limits were enforced.
    fn nothing_is_overdue(&self, model: &Model, sched: &Scheduler, id: GpuId) -> Verdict {
        let now = model.now;
        let health = model.gpus.get(&id).map(|gpu| gpu.health);
        let trusted = matches!(health, Some(GpuHealth::Healthy | GpuHealth::Draining));
        ensure!(
            !trusted || !model.has_stuck_worker(id),
            "a killed worker does not end, and {id} is not suspect"
        );
        for vm in model
            .gpus
            .get(&id)
            .into_iter()
            .flat_map(|gpu| model.reserving(gpu))
        {
            let turn_ns = vm.turn_ns(&model.pools);
            ensure!(
                !vm.buckets.clone().owes_gpu_time(turn_ns, now),
                "a gang without GPU time keeps {id} reserved: {vm:?}"
            );
        }
        for holder in model.holders_on(id) {
            let (Some(session), Some(vm)) = (
                model.sessions.get(&holder.session),
                model.vms.get(&holder.vm),
            ) else {
                continue;
            };
            let Some(pool) = vm
                .placement
                .as_ref()
                .and_then(|(_, pool)| model.pools.get(pool))
            else {
                continue;
            };
            let mut waiting = session
                .places
                .iter()
                .flat_map(|(gpu, _)| self.ready_on(*gpu));
            let rivals = waiting.any(|vm| vm != holder.vm);
            if session.exiting_ns.is_some() {
                continue;
            }
            ensure!(
                !(rivals && holder.parked),
                "others wait, and {holder:?} is parked"
            );
            if rivals && holder.revoked_ns.is_none() && !session.said_idle && session.depth > 0 {
                let let_in = holder.let_in_ns().unwrap_or(u64::MAX);
                ensure!(
                    holder.slice_end_ns.min(let_in) > now,
                    "others wait, and {holder:?} keeps the GPU"
                );
            }
            ensure!(
                holder.revoked_ns.is_some()
                    || holder.ahead.is_none_or(|at| at + vgpu_sched::LATE_NS > now),
                "the holder before {holder:?} is late, and the lease was not revoked"
            );
            // A parked lease is not charged. If its VM has no GPU time left, it is revoked when the
            // worker retakes it.
            let turn_ns = vm.turn_ns(&model.pools);
            let empty = !holder.parked && vm.buckets.clone().owes_gpu_time(turn_ns, now);
            ensure!(
                !empty || holder.revoked_ns.is_some(),
                "{holder:?} has no GPU time left and keeps the GPU"
            );
            let asked = holder.revoked_ns.map(|at| now - at);
            let grace = pool.overrun_grace_ns.map(|grace| grace.max(1));
            if let (Some(asked), Some(grace)) = (asked, grace) {
                ensure!(
                    asked < grace || holder.overrun,
                    "{holder:?} overruns by {asked} ns, undeclared"
                );
            }
            let contended = model.has_company(session) || brothers_wait(vm, sched) || rivals;
            let limit = hard_limit(vm, pool, contended);
            let stalled =
                (session.in_flight() > 0).then(|| now - session.progress_ns.max(holder.granted_ns));
            ensure!(
                stalled.zip(limit).is_none_or(|(time, limit)| time < limit),
                "{holder:?} hangs for {stalled:?}, limit {limit:?}"
            );
            let back = if session.in_flight() > 0 {
                limit
            } else {
                hard_limit(vm, pool, true)
            };
            ensure!(
                asked.zip(back).is_none_or(|(time, limit)| time < limit),
                "{holder:?} keeps its lease for {asked:?}, limit {back:?}"
            );
        }
        Ok(())
    }
}

/// For a session that waits only for a GPU: the number of GPUs that the session already has. `None`
/// for other sessions.
fn turn(stats: &SessionStats) -> Option<usize> {
    match (stats.state, stats.waiting) {
        (SessionState::Waiting, Some(WaitReason::Turn { .. } | WaitReason::Slice)) => Some(0),
        (SessionState::Gathering, Some(WaitReason::Gang { held, .. })) => Some(held as usize),
        _ => None,
    }
}

/// Whether another session of the holder's VM waits and is not throttled.
fn brothers_wait(vm: &super::model::VmModel, sched: &Scheduler) -> bool {
    vm.sessions
        .iter()
        .filter_map(|&id| sched.session_stats(id))
        .any(|stats| turn(&stats).is_some())
}

fn hard_limit(vm: &super::model::VmModel, pool: &PoolConfig, contended: bool) -> Option<u64> {
    let sane = |limit: u64| limit.max(PoolConfig::MIN_LIMIT_NS);
    let hard = vm.config.hard_limit.resolve(pool.hard_limit_ns).map(sane);
    if contended {
        let finite = sane(pool.contended_limit_ns);
        Some(hard.map_or(finite, |hard| hard.min(finite)))
    } else {
        hard
    }
}

/// Records in the model whether the lease is parked, and checks that lease and session state agree.
fn lease_state(holder: Option<&mut Holder>, id: SessionId, stats: &SessionStats) -> Verdict {
    match (holder, stats.state) {
        (Some(holder), state) => {
            let revoking = holder.revoked_ns.is_some();
            let right = match state {
                SessionState::Running | SessionState::Parked => !revoking,
                SessionState::Revoking | SessionState::Ending => true,
                _ => false,
            };
            ensure!(right, "{id} is {state:?} with {holder:?}");
            holder.parked = state == SessionState::Parked;
        }
        (None, SessionState::Running | SessionState::Parked | SessionState::Revoking) => {
            return Err(format!("{id} is {:?} without a lease", stats.state));
        }
        _ => {}
    }
    Ok(())
}
