//! Updates the model by events, before the scheduler's actions are known.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_sched::{
    Event, GpuConfig, GpuHealth, GpuId, Memory, SECONDS, SessionId, Usage, VmConfig, VmId,
};

use super::{GpuModel, Model, SessionModel, Spent, VmModel};
use crate::fuzz::buckets::Buckets;

/// A VM that overran may not run beside another overrunner for at least this time in ns, and for at
/// least this many times the length of its overrun.
const OVERRAN_NS: u64 = 10 * SECONDS;
const OVERRAN_TIMES: u64 = 32;

impl Model {
    /// Applies an accepted event to the model, before the scheduler's actions are known.
    pub(in crate::fuzz) fn hear(&mut self, event: &Event) {
        match event {
            Event::AddGpu {
                gpu,
                config,
                health,
            } => self.hear_gpu(*gpu, config, *health),
            Event::SetGpu { gpu, config } => {
                if let Some(gpu) = self.gpus.get_mut(gpu) {
                    gpu.config.clone_from(config);
                }
            }
            Event::RemoveGpu { gpu } => {
                if let Some(gpu) = self.gpus.get_mut(gpu) {
                    gpu.removed = true;
                    gpu.health = GpuHealth::Lost;
                }
                self.forget();
            }
            Event::GpuState { gpu, health } => self.set_health(*gpu, *health),
            Event::AssignGpu { gpu, pool } => {
                if let Some(gpu) = self.gpus.get_mut(gpu) {
                    gpu.pools.insert(*pool);
                }
            }
            Event::UnassignGpu { gpu, pool } => {
                if let Some(gpu) = self.gpus.get_mut(gpu) {
                    gpu.pools.remove(pool);
                }
            }
            Event::Verified { gpu, ok } => self.hear_verified(*gpu, *ok),
            Event::AddPool { pool, config } | Event::SetPool { pool, config } => {
                self.pools.insert(*pool, config.clone());
            }
            Event::RemovePool { pool } => {
                self.pools.remove(pool);
                for gpu in self.gpus.values_mut() {
                    gpu.pools.remove(pool);
                }
            }
            Event::SetClassWeights { weights } => self.class_weights = *weights,
            Event::Timer => self.timer_ns = u64::MAX,
            Event::Away { for_ns } => self.hear_away(*for_ns),
            Event::AddVm { vm, config, past } => {
                self.hear_new_vm(*vm, config);
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.quarantined = past.quarantine.is_some();
                }
            }
            Event::ResetStats { vm } => self.hear_reset(*vm),
            Event::SetVm { vm, config } => self.hear_set_vm(*vm, config),
            Event::RemoveVm { vm } => {
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.removed = true;
                }
                self.forget();
            }
            Event::PinnedLeft { vm, bytes } => {
                let present = self.pinned_by(*vm);
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.pinned_left = (*bytes).min(u64::MAX - present);
                }
                self.forget();
            }
            Event::SetQuarantine { vm, on } => {
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.quarantined = *on;
                }
            }
            _ => self.hear_worker(event),
        }
    }

    fn hear_away(&mut self, for_ns: u64) {
        let later = |at: u64| at.saturating_add(for_ns).min(self.now);
        for session in self.sessions.values_mut() {
            session.progress_ns = later(session.progress_ns);
            session.exiting_ns = session.exiting_ns.map(later);
        }
        for holder in self.leases.values_mut() {
            holder.revoked_ns = holder.revoked_ns.map(later);
        }
    }

    fn hear_gpu(&mut self, id: GpuId, config: &GpuConfig, health: GpuHealth) {
        if let Some(gpu) = self.gpus.get_mut(&id) {
            gpu.removed = false;
            gpu.config.clone_from(config);
            self.set_health(id, health);
            return;
        }
        let gpu = GpuModel {
            config: config.clone(),
            health,
            removed: false,
            pools: BTreeSet::new(),
            since_ns: self.now,
            charged_to_ns: self.now,
            payers: vec![],
            barred: false,
            spent: Spent::default(),
            holders: vec![],
            canary: false,
        };
        self.gpus.insert(id, gpu);
    }

    fn set_health(&mut self, id: GpuId, health: GpuHealth) {
        if let Some(gpu) = self.gpus.get_mut(&id) {
            gpu.health = health;
        }
    }

    fn hear_verified(&mut self, id: GpuId, ok: bool) {
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        gpu.canary = false;
        if ok && gpu.health == GpuHealth::Unverified {
            gpu.health = GpuHealth::Healthy;
        }
    }

    fn hear_new_vm(&mut self, id: VmId, config: &VmConfig) {
        self.charge_vm(id);
        let buckets = Buckets::new(&config.limits, self.now);
        let old = self.vms.remove(&id);
        for session in self
            .sessions
            .values_mut()
            .filter(|session| session.vm == id)
        {
            session.former = true;
        }
        let vm = VmModel {
            config: config.clone(),
            removed: false,
            quarantined: false,
            placement: old.as_ref().and_then(|old| old.placement.clone()),
            revived: old.is_some(),
            totals: old
                .as_ref()
                .map_or_else(BTreeMap::new, |old| old.totals.clone()),
            pinned_left: old.as_ref().map_or(0, |old| old.pinned_left),
            sessions: old.map(|old| old.sessions).unwrap_or_default(),
            gathering: None,
            gather_ns: 0,
            gpu_ns: 0,
            demoted: false,
            overran_until_ns: None,
            buckets,
        };
        self.vms.insert(id, vm);
        self.move_pool(id);
    }

    /// Charges a VM's use until now under the old limits.
    fn charge_vm(&mut self, id: VmId) {
        let placement = self.vms.get(&id).and_then(|vm| vm.placement.clone());
        for gpu in placement.into_iter().flat_map(|(gpus, _)| gpus) {
            self.charge(gpu);
        }
    }

    /// Resets counters. Bookings and debts stay.
    fn hear_reset(&mut self, of: Option<VmId>) {
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        for gpu in gpus {
            self.charge(gpu);
        }
        for (id, vm) in &mut self.vms {
            if of.is_none_or(|of| of == *id) {
                vm.gpu_ns = 0;
            }
        }
        if of.is_none() {
            for gpu in self.gpus.values_mut() {
                gpu.since_ns = self.now;
                gpu.spent = Spent::default();
            }
        }
    }

    fn hear_set_vm(&mut self, id: VmId, config: &VmConfig) {
        let now = self.now;
        self.charge_vm(id);
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.buckets.configure(&config.limits, now);
            vm.config.clone_from(config);
        }
        self.move_pool(id);
    }

    /// Moves a VM to its new pool at once if its present GPUs serve that pool.
    fn move_pool(&mut self, id: VmId) {
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        let new = vm.config.pool;
        let Some((gpus, pool)) = &mut vm.placement else {
            return;
        };
        let serves = |id: &GpuId| {
            let allowed = vm.config.gpus.as_ref().is_none_or(|g| g.contains(id));
            let gpu = self.gpus.get(id);
            allowed && gpu.is_some_and(|gpu| !gpu.removed && gpu.pools.contains(&new))
        };
        if gpus.iter().all(serves) {
            *pool = new;
        }
    }

    fn hear_worker(&mut self, event: &Event) {
        let now = self.now;
        match event {
            Event::SessionRemoved { session } => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.closing = true;
                }
            }
            Event::Runnable { session, depth, .. } => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.depth = depth.calls;
                    session.said_idle = false;
                }
            }
            Event::Idle { session, .. } => {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.depth = 0;
                    session.completed = session.submitted;
                    session.said_idle = true;
                }
            }
            Event::Progress {
                session,
                submitted,
                completed,
            } => {
                if let Some(session) = self.sessions.get_mut(session) {
                    hear_progress(session, *submitted, *completed, now);
                }
            }
            Event::Released {
                session,
                used,
                depth,
                ..
            } => {
                self.settle(*session, Some(*used));
                self.drop_lease(*session);
                if let Some(session) = self.sessions.get_mut(session) {
                    session.completed = session.submitted;
                    session.depth = depth.calls;
                    session.said_idle = depth.calls == 0;
                }
            }
            Event::Ending {
                session,
                slice_end_ns,
                in_ns,
                ..
            } => self.hear_ending(*session, *slice_end_ns, *in_ns),
            Event::CreditsSpent { session, used, .. } => self.settle(*session, Some(*used)),
            Event::Used { session, used } => self.hear_used(*session, *used),
            Event::WorkerExited { session } => self.hear_exit(*session),
            Event::WorkerExiting { session } => {
                let session = self.sessions.get_mut(session);
                let exiting = session.and_then(|session| session.exiting_ns.as_mut());
                exiting.into_iter().for_each(|at| *at = now);
            }
            Event::MemoryRelease { session, of, bytes } => {
                if let Some(session) = self.sessions.get_mut(session) {
                    if *of == Memory::Pinned {
                        session.pinned -= session.pinned.min(*bytes);
                    } else if let Some(booked) = session.place_mut(*of) {
                        *booked -= (*booked).min(*bytes);
                    }
                }
            }
            _ => {}
        }
    }

    /// Records an announced end. Only the first announcement in a slice counts, and only if the
    /// session has work, shares the device with no other session, and its lease is wanted or
    /// revoked.
    fn hear_ending(&mut self, id: SessionId, slice_end_ns: u64, in_ns: u64) {
        let now = self.now;
        let Some(session) = self.sessions.get(&id) else {
            return;
        };
        let (gang, idle) = (session.places.len() > 1, session.said_idle);
        let Some(holder) = self.leases.get_mut(&id) else {
            return;
        };
        let asked = holder.revoked_ns.is_some();
        let shares = holder.beside || holder.overrun;
        let counts = holder.slice_end_ns == slice_end_ns && holder.ending_ns.is_none();
        if !gang && counts && !shares && (asked || holder.wanted && !idle) {
            holder.ending_ns = Some(now.saturating_add(in_ns));
            holder.ending_in_ns = in_ns;
        }
    }

    fn hear_exit(&mut self, id: SessionId) {
        // The GPUs may be deleted together with the session.
        let places = self.sessions.get(&id).map(|session| session.places.clone());
        for (gpu, _) in places.into_iter().flatten() {
            self.charge_if_held(gpu, id);
        }
        self.settle(id, None);
        self.drop_lease(id);
        let Some(session) = self.sessions.remove(&id) else {
            return;
        };
        if let Some(vm) = self.vms.get_mut(&session.vm) {
            vm.sessions.remove(&id);
            if vm.sessions.is_empty() {
                vm.placement = None;
            }
        }
        self.forget();
    }

    fn charge_if_held(&mut self, gpu: GpuId, by: SessionId) {
        let held = self.gpus.get(&gpu).map(|gpu| gpu.holders.contains(&by));
        if held == Some(true) {
            self.charge(gpu);
        }
    }

    fn drop_lease(&mut self, id: SessionId) {
        for gpu in self.gpus.values_mut() {
            let before = gpu.holders.len();
            gpu.holders.retain(|&holder| holder != id);
            if gpu.holders.len() < before {
                for left in &gpu.holders {
                    let lease = self.leases.get_mut(left);
                    if let Some(lease) = lease.filter(|lease| lease.ahead.is_some()) {
                        lease.ahead = None;
                        // The remaining session's work could not begin while the other session's
                        // work ran.
                        let at = self.now.saturating_add(lease.ending_in_ns);
                        lease.ending_ns = lease.ending_ns.map(|_| at);
                    }
                }
            }
        }
        if let Some(lease) = self.leases.remove(&id)
            && let Some(vm) = self.vms.get_mut(&lease.vm)
            && lease.overrun
        {
            let took = self.now - lease.revoked_ns.unwrap_or(self.now);
            let until = self.now + OVERRAN_NS.max(took.saturating_mul(OVERRAN_TIMES));
            vm.overran_until_ns = vm.overran_until_ns.max(Some(until));
        }
    }

    /// Charges use without a granted lease. During a granted lease the total counts only if the
    /// worker dies.
    fn hear_used(&mut self, id: SessionId, used: Usage) {
        let now = self.now;
        let holds = self.leases.contains_key(&id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if holds {
            session.told = used;
            return;
        }
        let more = session.add(used);
        if let Some(vm) = self.vms.get_mut(&session.vm).filter(|_| !session.former) {
            vm.buckets.charge(more, now);
        }
    }

    /// Settles the credit of a lease. `None`: the worker died. Then all its credit counts as used,
    /// or the last reported use if that is more.
    fn settle(&mut self, id: SessionId, used: Option<Usage>) {
        let now = self.now;
        let Some(credits) = self.holder(id).map(|holder| holder.credits) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let more = match used {
            Some(used) => session.add(used),
            None => session.beyond(session.told),
        };
        if let Some(vm) = self.vms.get_mut(&session.vm).filter(|_| !session.former) {
            vm.buckets.settle(credits, more, used.is_none(), now);
        }
    }
}

fn hear_progress(session: &mut SessionModel, submitted: u64, completed: u64, now: u64) {
    let idle = session.in_flight() == 0;
    let completed = completed.min(submitted);
    let moved = completed > session.completed;
    session.submitted = session.submitted.max(submitted);
    session.completed = session.completed.max(completed);
    if moved || (idle && session.in_flight() > 0) {
        session.progress_ns = now;
    }
}
