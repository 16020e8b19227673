//! What the world outside can know of a scheduler's state, from events and actions alone: who holds
//! what since when, who pays, what is booked. It is written from `docs/scheduling.md`, not from the
//! scheduler's code, and is what [`super::check`] compares the scheduler with.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_sched::{
    Action, ClassWeights, Credits, Epoch, Event, GpuConfig, GpuHealth, GpuId, KillCause, Memory,
    PoolConfig, PoolId, SECONDS, SessionId, Terms, Usage, VmConfig, VmId,
};

use super::Verdict;
use super::buckets::Buckets;
use super::ensure;

/// So long a VM that overran is not let in beside another overrunner.
const OVERRAN_NS: u64 = 10 * SECONDS;

/// One lease that is out.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) session: SessionId,
    pub(super) vm: VmId,
    pub(super) epoch: Epoch,
    pub(super) granted_ns: u64,
    pub(super) slice_end_ns: u64,
    pub(super) revoked_ns: Option<u64>,
    pub(super) overrun: bool,
    pub(super) beside: bool,
    pub(super) wanted: bool,
    pub(super) credits: Credits,
    /// As the scheduler said after the last event; nobody pays for a parked lease.
    pub(super) parked: bool,
}

/// Where a GPU's time went, by the model's reckoning.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spent {
    pub(super) charged_ns: u64,
    /// Time in which a lease was parked, or nobody could have held one.
    pub(super) idle_ns: u64,
    /// Time in which the GPU could not be granted and nobody held it: idle or switch.
    pub(super) either_ns: u64,
}

#[derive(Debug, Clone)]
pub(super) struct GpuModel {
    pub(super) config: GpuConfig,
    pub(super) health: GpuHealth,
    pub(super) removed: bool,
    pub(super) pools: BTreeSet<PoolId>,
    pub(super) since_ns: u64,
    charged_to_ns: u64,
    payers: Vec<(SessionId, VmId)>,
    /// Nobody holds it, and nobody could.
    barred: bool,
    pub(super) spent: Spent,
    /// Whose lease it is of, in the order of their coming; a gang that keeps it reserved among them.
    pub(super) holders: Vec<SessionId>,
    /// Canaries asked for and not answered.
    pub(super) canary: bool,
}

#[derive(Debug, Clone)]
pub(super) struct VmModel {
    pub(super) config: VmConfig,
    pub(super) removed: bool,
    pub(super) quarantined: bool,
    /// Its GPUs, in order, and the pool under which it runs there.
    pub(super) placement: Option<(Vec<GpuId>, PoolId)>,
    pub(super) sessions: BTreeSet<SessionId>,
    pub(super) gpu_ns: u64,
    /// The same, never reset.
    pub(super) total_ns: u64,
    /// A lease of it overran; until then it is not let in beside another overrunner.
    pub(super) overran_until_ns: Option<u64>,
    /// As the scheduler said after the last event.
    pub(super) demoted: bool,
    /// Its number was used again before the last worker of its former owner was gone.
    pub(super) revived: bool,
    pub(super) buckets: Buckets,
}

impl VmModel {
    /// Is it a gang, with a lag on each of several GPUs?
    pub(super) fn is_spread(&self) -> bool {
        self.placement
            .as_ref()
            .is_some_and(|(gpus, _)| gpus.len() > 1)
    }
}

#[derive(Debug, Clone)]
pub(super) struct SessionModel {
    pub(super) vm: VmId,
    /// Its GPUs, in order, and the device memory booked on each.
    pub(super) places: Vec<(GpuId, u64)>,
    pub(super) closing: bool,
    pub(super) killed_ns: Option<u64>,
    pub(super) pinned: u64,
    pub(super) gpu_ns: u64,
    /// Calls that wait, as last told.
    pub(super) depth: u64,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) progress_ns: u64,
    pub(super) used: Usage,
    /// Its last word was that it has nothing to do.
    pub(super) said_idle: bool,
}

impl SessionModel {
    pub(super) fn served(&self) -> bool {
        !self.closing && self.killed_ns.is_none()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.submitted - self.completed
    }

    pub(super) fn is_on(&self, gpu: GpuId) -> bool {
        self.places.iter().any(|&(on, _)| on == gpu)
    }

    pub(super) fn memory(&self) -> u128 {
        self.places
            .iter()
            .map(|&(_, bytes)| u128::from(bytes))
            .sum()
    }

    /// The place that is meant.
    pub(super) fn place_mut(&mut self, of: Memory) -> Option<&mut u64> {
        let at = |&(gpu, _): &(GpuId, u64)| match of {
            Memory::DeviceOn(on) => gpu == on,
            _ => true,
        };
        let index = self.places.iter().position(at)?;
        self.places.get_mut(index).map(|(_, bytes)| bytes)
    }
}

/// Everything.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) class_weights: ClassWeights,
    pub(super) gpus: BTreeMap<GpuId, GpuModel>,
    pub(super) pools: BTreeMap<PoolId, PoolConfig>,
    pub(super) vms: BTreeMap<VmId, VmModel>,
    /// Admitted and not known dead.
    pub(super) sessions: BTreeMap<SessionId, SessionModel>,
    /// Leases that are out.
    pub(super) leases: BTreeMap<SessionId, Holder>,
    /// Every session number that was ever used.
    pub(super) ever: Vec<SessionId>,
    pub(super) last_epoch: u64,
    /// The timer that was asked for; `u64::MAX`: none.
    pub(super) timer_ns: u64,
}

impl Default for Model {
    fn default() -> Self {
        Self {
            now: 0,
            class_weights: ClassWeights::default(),
            gpus: BTreeMap::new(),
            pools: BTreeMap::new(),
            vms: BTreeMap::new(),
            sessions: BTreeMap::new(),
            leases: BTreeMap::new(),
            ever: vec![],
            last_epoch: 0,
            timer_ns: u64::MAX,
        }
    }
}

impl Model {
    /// Lets time pass.
    pub(super) fn pass(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Charges the time since this was last done: every nanosecond of a GPU goes to those who held it, in
    /// equal parts (the first has the rest), or to nobody. To be called when the scheduler did the same,
    /// so that the rests are the same; who pays cannot have changed between.
    pub(super) fn charge(&mut self, id: GpuId) {
        let now = self.now;
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        let passed = now - std::mem::replace(&mut gpu.charged_to_ns, now);
        let payers = gpu.payers.len() as u64;
        if passed == 0 {
            return;
        }
        if payers == 0 {
            *(if gpu.barred {
                &mut gpu.spent.either_ns
            } else {
                &mut gpu.spent.idle_ns
            }) += passed;
            return;
        }
        gpu.spent.charged_ns += passed;
        let (mut rest, mut left) = (passed, payers);
        for (session, vm) in &gpu.payers {
            let part = rest / left;
            rest -= part;
            left -= 1;
            if let Some(session) = self.sessions.get_mut(session) {
                session.gpu_ns += part;
            }
            if let Some(vm) = self.vms.get_mut(vm) {
                vm.gpu_ns += part;
                vm.total_ns += part;
                vm.buckets.charge_gpu(part, now);
            }
        }
    }

    /// Notes who pays for each GPU from here on: holders, unless their lease is parked, and who keeps it
    /// reserved.
    pub(super) fn note_payers(&mut self) {
        let (leases, sessions) = (&self.leases, &self.sessions);
        for gpu in self.gpus.values_mut() {
            gpu.payers.clear();
            let pays = |id: &SessionId| leases.get(id).is_none_or(|lease| !lease.parked);
            for &id in gpu.holders.iter().filter(|id| pays(id)) {
                if let Some(session) = sessions.get(&id) {
                    gpu.payers.push((id, session.vm));
                }
            }
            gpu.barred = gpu.holders.is_empty() && !gpu.health.grants();
        }
    }

    /// A reservation that is given up is free at once: its worker was told of nothing.
    pub(super) fn note_given_up(&mut self, gpu: GpuId, by: Option<SessionId>) {
        let leases = &self.leases;
        if let Some(gpu) = self.gpus.get_mut(&gpu) {
            gpu.holders
                .retain(|id| leases.contains_key(id) || by == Some(*id));
        }
    }

    /// Takes over which gang keeps a GPU reserved.
    pub(super) fn note_reserved(&mut self, gpu: GpuId, by: Option<SessionId>) {
        if let Some(gpu) = self.gpus.get_mut(&gpu)
            && let Some(by) = by.filter(|by| !gpu.holders.contains(by))
        {
            gpu.holders.push(by);
        }
    }

    /// Would this event have an effect (beyond the time that passed)?
    pub(super) fn accepts(&self, event: &Event) -> bool {
        let gpu = |id: &GpuId| self.gpus.contains_key(id);
        let pool = |id: &PoolId| self.pools.contains_key(id);
        let vm = |id: &VmId| self.vms.get(id).is_some_and(|vm| !vm.removed);
        let session = |id: &SessionId| self.sessions.contains_key(id);
        match event {
            Event::AddGpu { gpu: id, .. } => self.gpus.get(id).is_none_or(|gpu| gpu.removed),
            Event::SetGpu { gpu: id, .. }
            | Event::RemoveGpu { gpu: id }
            | Event::GpuState { gpu: id, .. }
            | Event::UnassignGpu { gpu: id, .. }
            | Event::Verified { gpu: id, .. } => gpu(id),
            Event::AssignGpu { gpu: id, pool: of } => gpu(id) && pool(of),
            Event::AddPool { pool: id, .. } => !pool(id),
            Event::SetPool { pool: id, .. } => pool(id),
            Event::RemovePool { pool: id } => pool(id) && !self.lived_in(*id),
            Event::AddVm { vm: id, config, .. } => !vm(id) && pool(&config.pool),
            Event::SetVm { vm: id, config } => vm(id) && pool(&config.pool),
            Event::RemoveVm { vm: id }
            | Event::SetQuarantine { vm: id, .. }
            | Event::Strike { vm: id } => vm(id),
            Event::ResetStats { vm: Some(id) } => self.vms.contains_key(id),
            Event::SessionRemoved { session: id }
            | Event::Runnable { session: id, .. }
            | Event::Idle { session: id, .. }
            | Event::Progress { session: id, .. }
            | Event::WorkerExited { session: id }
            | Event::MemoryReserve { session: id, .. }
            | Event::MemoryRelease { session: id, .. } => session(id),
            Event::Released {
                session: id, epoch, ..
            }
            | Event::CreditsSpent {
                session: id, epoch, ..
            } => self.holds(*id, *epoch),
            _ => true,
        }
    }

    /// Does the session hold a lease of this number?
    pub(super) fn holds(&self, session: SessionId, epoch: Epoch) -> bool {
        self.holder(session)
            .is_some_and(|holder| holder.epoch == epoch)
    }

    /// The lease of a session.
    pub(super) fn holder(&self, session: SessionId) -> Option<&Holder> {
        self.leases.get(&session)
    }

    /// The leases of a GPU.
    pub(super) fn holders_on(&self, gpu: GpuId) -> impl Iterator<Item = &Holder> {
        let holders = self.gpus.get(&gpu).map(|gpu| gpu.holders.as_slice());
        let holders = holders.unwrap_or_default().iter();
        holders.filter_map(|id| self.leases.get(id))
    }

    /// Does anybody else hold, or keep, a GPU of this session?
    pub(super) fn has_company(&self, session: &SessionModel) -> bool {
        let crowded = |&(gpu, _): &(GpuId, u64)| {
            let gpu = self.gpus.get(&gpu);
            gpu.is_some_and(|gpu| gpu.holders.len() > 1)
        };
        session.places.iter().any(crowded)
    }

    /// Was its lease asked back just now although it had no work? Its hold may have ended at the same
    /// time: then it left the competition and came back.
    pub(super) fn comes_back(&self, gpu: GpuId, vm: VmId) -> bool {
        self.holders_on(gpu).any(|holder| {
            let session = self.sessions.get(&holder.session);
            holder.vm == vm
                && holder.revoked_ns == Some(self.now)
                && session.is_some_and(|session| session.said_idle)
        })
    }

    /// Are there VMs of this pool, or VMs that are still placed under it?
    pub(super) fn lived_in(&self, pool: PoolId) -> bool {
        self.vms.values().any(|vm| {
            (vm.config.pool == pool && !vm.removed)
                || vm
                    .placement
                    .as_ref()
                    .is_some_and(|(_, under)| *under == pool)
        })
    }

    /// What an accepted event says, before the scheduler answers.
    pub(super) fn hear(&mut self, event: &Event) {
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
            Event::SetQuarantine { vm, on } => {
                if let Some(vm) = self.vms.get_mut(vm) {
                    vm.quarantined = *on;
                }
            }
            _ => self.hear_worker(event),
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
        let buckets = Buckets::new(&config.limits, self.now);
        let old = self.vms.remove(&id);
        let vm = VmModel {
            config: config.clone(),
            removed: false,
            quarantined: false,
            placement: old.as_ref().and_then(|old| old.placement.clone()),
            revived: old.is_some(),
            total_ns: old.as_ref().map_or(0, |old| old.total_ns),
            sessions: old.map(|old| old.sessions).unwrap_or_default(),
            gpu_ns: 0,
            demoted: false,
            overran_until_ns: None,
            buckets,
        };
        self.vms.insert(id, vm);
        self.move_pool(id);
    }

    /// Counters begin anew; what was booked and owed stays.
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
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.buckets.configure(&config.limits, now);
            vm.config.clone_from(config);
        }
        self.move_pool(id);
    }

    /// A VM moves at once to a new pool that is served by the GPUs on which it lives.
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
            Event::CreditsSpent { session, used, .. } => self.settle(*session, Some(*used)),
            Event::WorkerExited { session } => self.hear_exit(*session),
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

    fn hear_exit(&mut self, id: SessionId) {
        // The GPUs may be forgotten with it.
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
                vm.revived = false;
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
            gpu.holders.retain(|&holder| holder != id);
        }
        if let Some(lease) = self.leases.remove(&id)
            && let Some(vm) = self.vms.get_mut(&lease.vm)
            && lease.overrun
        {
            vm.overran_until_ns = Some(self.now.saturating_add(OVERRAN_NS));
        }
    }

    /// Settles credit where a lease is out. `None`: the worker died with all of it.
    fn settle(&mut self, id: SessionId, used: Option<Usage>) {
        let now = self.now;
        let Some(credits) = self.holder(id).map(|holder| holder.credits) else {
            return;
        };
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let before = session.used;
        let more = used.map(|used| Usage {
            calls: used.calls.saturating_sub(before.calls),
            bytes: used.bytes.saturating_sub(before.bytes),
        });
        if let Some(more) = more {
            session.used.calls += more.calls;
            session.used.bytes += more.bytes;
        }
        if let Some(vm) = self.vms.get_mut(&session.vm) {
            vm.buckets.settle(credits, more, now);
        }
    }

    /// What was to be removed and has nothing left is gone.
    pub(super) fn forget(&mut self) {
        self.vms
            .retain(|_, vm| !vm.removed || !vm.sessions.is_empty());
        let sessions = &self.sessions;
        self.gpus
            .retain(|id, gpu| !gpu.removed || sessions.values().any(|session| session.is_on(*id)));
    }

    /// What one action does, and whether it was right.
    pub(super) fn obey(&mut self, action: &Action, event: &Event) -> Verdict {
        match *action {
            Action::Admit {
                session,
                vm,
                gpu,
                ref also,
            } => {
                let gpus = [gpu].into_iter().chain(also.iter().copied());
                return self.obey_admit(session, vm, gpus.collect());
            }
            Action::Grant(ref terms) => return self.obey_grant(terms, false),
            Action::GrantBeside(ref terms) => return self.obey_grant(terms, true),
            Action::Extend {
                session,
                epoch,
                slice_end_ns,
                ..
            } => {
                let now = self.now;
                let holder = self.served_holder(session, epoch, "Extend")?;
                ensure!(
                    holder.revoked_ns.is_none() && slice_end_ns > now,
                    "Extend of {session}: {holder:?}"
                );
                holder.slice_end_ns = slice_end_ns;
            }
            Action::Want {
                session,
                epoch,
                wanted,
                ..
            } => {
                let holder = self.served_holder(session, epoch, "Want")?;
                ensure!(
                    holder.revoked_ns.is_none() && holder.wanted != wanted,
                    "Want {wanted} told again to {session}"
                );
                holder.wanted = wanted;
            }
            Action::Revoke { session, epoch, .. } => {
                let now = self.now;
                let holder = self.any_holder(session, epoch, "Revoke")?;
                ensure!(holder.revoked_ns.is_none(), "{session} is revoked twice");
                holder.revoked_ns = Some(now);
                holder.parked = false;
            }
            Action::Credit {
                session,
                epoch,
                credits,
            } => {
                let holder = self.served_holder(session, epoch, "Credit")?;
                holder.credits = credits;
                return self.lend(session, credits);
            }
            Action::SetTimer { at_ns } => self.timer_ns = at_ns,
            Action::Kill { session, cause } => return self.obey_kill(session, cause),
            Action::Canary { gpu } => {
                if let Some(gpu) = self.gpus.get_mut(&gpu) {
                    gpu.canary = true;
                }
            }
            Action::Quarantine { vm, .. } => {
                let vm = self.vms.get_mut(&vm).ok_or("Quarantine of an unknown VM")?;
                ensure!(!vm.quarantined, "quarantined twice");
                vm.quarantined = true;
            }
            Action::QuarantineOver { vm } => {
                let vm = self.vms.get_mut(&vm).ok_or("QuarantineOver: unknown VM")?;
                ensure!(vm.quarantined, "QuarantineOver without a quarantine");
                vm.quarantined = false;
            }
            Action::GpuSuspect { gpu } => {
                let gpu = self.gpus.get_mut(&gpu).ok_or("GpuSuspect: unknown GPU")?;
                gpu.canary = false;
                gpu.health = GpuHealth::Suspect;
            }
            Action::Overrun { session, .. } => {
                let holder = self.leases.get_mut(&session);
                let holder = holder.ok_or("Overrun of one that holds nothing")?;
                ensure!(!holder.overrun, "{session} overruns twice");
                holder.overrun = true;
            }
            Action::SoftLimit { session, .. } => {
                ensure!(
                    self.sessions.contains_key(&session),
                    "SoftLimit: unknown {session}"
                );
            }
            Action::MemoryGranted { session, bytes, .. } => {
                let booked = self.sessions.get_mut(&session);
                let booked = booked.ok_or("MemoryGranted: unknown session")?;
                match event {
                    Event::MemoryReserve {
                        of: Memory::Pinned, ..
                    } => booked.pinned += bytes,
                    Event::MemoryReserve { of, .. } => {
                        *booked.place_mut(*of).ok_or("granted: not its GPU")? += bytes;
                    }
                    _ => return Err("MemoryGranted without a request".to_owned()),
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn obey_admit(&mut self, id: SessionId, vm_id: VmId, gpus: Vec<GpuId>) -> Verdict {
        let vm = self.vms.get_mut(&vm_id).ok_or("admitted: unknown VM")?;
        ensure!(!vm.removed && !vm.quarantined, "admitted: {vm:?}");
        let limit = vm.config.limits.sessions.map_or(usize::MAX, |l| l as usize);
        ensure!(vm.sessions.len() < limit, "admitted beyond the limit");
        let pool = vm.config.pool;
        let mut places = vec![];
        for id in &gpus {
            let gpu = self.gpus.get(id).ok_or("admitted: unknown GPU")?;
            ensure!(gpu.health.admits() && !gpu.removed, "admitted on {gpu:?}");
            let allowed = vm.config.gpus.as_ref().is_none_or(|g| g.contains(id));
            ensure!(
                vm.placement.is_some() || allowed && gpu.pools.contains(&pool),
                "placed on a GPU that does not serve it"
            );
            places.push((*id, gpu.config.context_bytes));
        }
        ensure!(gpus.is_sorted(), "admitted on {gpus:?}, not in order");
        let (here, _) = vm.placement.get_or_insert_with(|| (gpus.clone(), pool));
        ensure!(*here == gpus, "admitted away from its VM's GPUs");
        vm.sessions.insert(id);
        let session = SessionModel {
            vm: vm_id,
            places,
            closing: false,
            killed_ns: None,
            pinned: 0,
            gpu_ns: 0,
            depth: 0,
            submitted: 0,
            completed: 0,
            progress_ns: self.now,
            used: Usage::default(),
            said_idle: true,
        };
        ensure!(
            self.sessions.insert(id, session).is_none(),
            "{id} admitted twice"
        );
        self.ever.push(id);
        Ok(())
    }

    fn obey_grant(&mut self, terms: &Terms, beside: bool) -> Verdict {
        let now = self.now;
        let id = terms.session;
        let session = self.sessions.get_mut(&id);
        let session = session.ok_or("granted to one that is gone")?;
        ensure!(session.served(), "granted to one that is over: {session:?}");
        session.progress_ns = now;
        let (vm_id, depth) = (session.vm, session.depth);
        ensure!(depth > 0, "granted to {id} without work");
        let gpus = [terms.gpu].into_iter().chain(terms.also.iter().copied());
        let places = session.places.iter().map(|&(gpu, _)| gpu);
        ensure!(gpus.eq(places), "granted on other GPUs: {terms:?}");
        ensure!(
            self.leases.values().all(|holder| holder.vm != vm_id),
            "two leases of one VM"
        );
        let mut company = 0;
        for (gpu, _) in session.places.clone() {
            company += self.join_gpu(gpu, id)?;
        }
        ensure!(beside == (company > 0), "beside {company}: {terms:?}");
        ensure!(
            terms.epoch.0 > self.last_epoch,
            "epoch {} after {}",
            terms.epoch.0,
            self.last_epoch
        );
        ensure!(
            terms.slice_end_ns > now,
            "a slice that is over at its begin"
        );
        self.last_epoch = terms.epoch.0;
        let holder = Holder {
            session: id,
            vm: vm_id,
            epoch: terms.epoch,
            granted_ns: now,
            slice_end_ns: terms.slice_end_ns,
            revoked_ns: None,
            overrun: false,
            beside,
            wanted: terms.wanted,
            credits: terms.credits,
            parked: false,
        };
        self.leases.insert(id, holder);
        let vm = self.vms.get_mut(&vm_id).ok_or("granted: unknown VM")?;
        ensure!(!vm.quarantined, "granted to a quarantined VM");
        // A gang pays while it gathers; a late timer finds it without time at its begin.
        ensure!(
            vm.is_spread() || vm.buckets.has_gpu_time(now),
            "granted to {vm_id}, whose GPU time is used up"
        );
        self.lend(id, terms.credits)
    }

    /// A session comes to hold a GPU: alone, or beside one that was declared to overrun. How many others
    /// hold it.
    fn join_gpu(&mut self, id: GpuId, session: SessionId) -> Result<usize, String> {
        let gpu = self.gpus.get_mut(&id).ok_or("grant: unknown GPU")?;
        ensure!(
            gpu.health.grants(),
            "granted on a GPU that is {:?}",
            gpu.health
        );
        let mine = gpu.holders.contains(&session);
        let others = gpu.holders.iter().filter(|&&holder| holder != session);
        let mut company = 0;
        for other in others {
            let overruns = self.leases.get(other).is_some_and(|lease| lease.overrun);
            ensure!(overruns, "granted while {other} holds {id}");
            company += 1;
        }
        ensure!(company <= 1, "three on {id}: {:?}", gpu.holders);
        if !mine {
            gpu.holders.push(session);
        }
        Ok(company)
    }

    /// Credit is all that the VM's buckets hold, neither more nor less.
    fn lend(&mut self, session: SessionId, credits: Credits) -> Verdict {
        let now = self.now;
        let session = self
            .sessions
            .get(&session)
            .ok_or("credit: unknown session")?;
        let used = session.used;
        let vm = self.vms.get_mut(&session.vm).ok_or("credit: unknown VM")?;
        let expected = vm.buckets.lend(used, now);
        ensure!(
            credits == expected,
            "credit {credits:?}, but the limits leave {expected:?}"
        );
        ensure!(
            credits.calls > used.calls && credits.bytes > used.bytes
                || used.calls == u64::MAX
                || used.bytes == u64::MAX,
            "a lease without credit"
        );
        Ok(())
    }

    fn obey_kill(&mut self, id: SessionId, cause: KillCause) -> Verdict {
        let now = self.now;
        let session = self
            .sessions
            .get_mut(&id)
            .ok_or("killed: one that is gone")?;
        ensure!(session.killed_ns.is_none(), "{id} killed twice");
        session.killed_ns = Some(now);
        let lost = session.places.iter().any(|(gpu, _)| {
            let gpu = self.gpus.get(gpu);
            gpu.is_none_or(|gpu| gpu.health == GpuHealth::Lost)
        });
        let vm = session.vm;
        if let Some(holder) = self.leases.get_mut(&id) {
            holder.revoked_ns.get_or_insert(now);
            holder.parked = false;
        }
        let vm = self.vms.get(&vm).ok_or("killed: of an unknown VM")?;
        let right = match cause {
            KillCause::Quarantined => vm.quarantined,
            KillCause::VmRemoved => vm.removed,
            KillCause::GpuLost => lost,
            _ => true,
        };
        ensure!(right, "{id} killed because {cause}, which is not so");
        Ok(())
    }

    fn any_holder(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        what: &str,
    ) -> Result<&mut Holder, String> {
        self.leases
            .get_mut(&session)
            .filter(|holder| holder.epoch == epoch)
            .ok_or_else(|| format!("{what} for a lease that {session} does not hold"))
    }

    fn served_holder(
        &mut self,
        session: SessionId,
        epoch: Epoch,
        what: &str,
    ) -> Result<&mut Holder, String> {
        let served = self
            .sessions
            .get(&session)
            .is_some_and(SessionModel::served);
        ensure!(served, "{what} for {session}, which is over");
        self.any_holder(session, epoch, what)
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
