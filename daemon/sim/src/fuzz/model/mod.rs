//! A model of the scheduler's state, computed only from events and actions: who holds a GPU and
//! since when, who pays, and the bookings. The model follows `docs/scheduling.md`, not the
//! scheduler's code. [`super::check`] compares the scheduler with the model.

mod hear;
mod obey;

use std::collections::{BTreeMap, BTreeSet};

use vgpu_sched::{
    ClassWeights, Credits, Epoch, Event, GpuConfig, GpuHealth, GpuId, Memory, PoolConfig, PoolId,
    SessionId, Usage, VmConfig, VmId,
};

use super::buckets::Buckets;

/// A granted lease.
#[derive(Debug, Clone)]
pub(super) struct Holder {
    pub(super) session: SessionId,
    pub(super) vm: VmId,
    pub(super) epoch: Epoch,
    pub(super) granted_ns: u64,
    pub(super) slice_end_ns: u64,
    pub(super) revoked_ns: Option<u64>,
    /// Announced end of the work in ns.
    pub(super) ending_ns: Option<u64>,
    /// Time in ns that was left at the announcement.
    pub(super) ending_in_ns: u64,
    /// For a lease that was granted before the previous lease ended: the announced end of the
    /// previous holder's work, from which this lease is charged.
    pub(super) ahead: Option<u64>,
    pub(super) overrun: bool,
    pub(super) beside: bool,
    pub(super) wanted: bool,
    pub(super) credits: Credits,
    /// Whether the scheduler reported the lease as parked after the last event. A parked lease is
    /// not charged.
    pub(super) parked: bool,
}

impl Holder {
    /// Time in ns from which the next session may get its lease, once this lease is revoked.
    pub(super) fn let_in_ns(&self) -> Option<u64> {
        let at = self.ending_ns.filter(|_| !self.overrun)?;
        Some(at.saturating_sub(vgpu_sched::LET_IN_NS))
    }

    /// Whether the lease is revoked and its work is about to end.
    pub(super) fn leaves(&self, now: u64) -> bool {
        let in_time = |at: u64| now < at.saturating_add(vgpu_sched::LATE_NS);
        self.revoked_ns.is_some()
            && self.let_in_ns().is_some_and(|at| at <= now)
            && self.ending_ns.is_some_and(in_time)
    }
}

/// The use of a GPU's time, as the model computes it, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Spent {
    pub(super) charged_ns: u64,
    /// Time in which the lease was parked or no session could have held a lease.
    pub(super) idle_ns: u64,
    /// Time in which the GPU could not be granted and had no holder. The scheduler counts it as
    /// idle or as switch.
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
    /// The payers: session, VM, and the time in ns from which it pays.
    payers: Vec<(SessionId, VmId, u64)>,
    /// Whether the GPU has no holder and cannot be granted.
    barred: bool,
    pub(super) spent: Spent,
    /// The sessions that hold the GPU, in order of their grants, including a gang that reserves the
    /// GPU.
    pub(super) holders: Vec<SessionId>,
    /// Whether a canary was ordered and has not reported its result.
    pub(super) canary: bool,
}

#[derive(Debug, Clone)]
pub(super) struct VmModel {
    pub(super) config: VmConfig,
    pub(super) removed: bool,
    pub(super) quarantined: bool,
    /// GPUs of the VM, in ascending order, and the pool under which the VM is placed there.
    pub(super) placement: Option<(Vec<GpuId>, PoolId)>,
    pub(super) sessions: BTreeSet<SessionId>,
    /// Pinned bytes that ended sessions left behind.
    pub(super) pinned_left: u64,
    pub(super) gpu_ns: u64,
    /// Charged time in ns per GPU, never reset.
    pub(super) totals: BTreeMap<GpuId, u64>,
    /// For a gang: the session that gathers GPUs, and the cost so far in ns.
    pub(super) gathering: Option<(SessionId, u64)>,
    /// Largest GPU time in ns that the gang may need for gathering: twice the last cost, or an
    /// eighth less than the previous value. 0 if the gang never gave up its GPUs.
    pub(super) gather_ns: u64,
    /// Time in ns until which an overrun counts: the VM may not run beside another overrunner.
    pub(super) overran_until_ns: Option<u64>,
    /// Whether the scheduler reported the VM as demoted after the last event.
    pub(super) demoted: bool,
    /// Whether the present event reused the VM's number before the last worker of the old VM had
    /// exited.
    pub(super) revived: bool,
    pub(super) buckets: Buckets,
}

impl VmModel {
    /// Whether the VM is a gang, which has one lag per GPU.
    pub(super) fn is_spread(&self) -> bool {
        self.placement
            .as_ref()
            .is_some_and(|(gpus, _)| gpus.len() > 1)
    }

    /// Cost in ns of a turn of a gang that once gave up its GPUs: a slice on each GPU, plus the
    /// cost of gathering. 0 for all other VMs, whose bucket of GPU time may have no debt.
    pub(super) fn turn_ns(&self, pools: &BTreeMap<PoolId, PoolConfig>) -> u128 {
        let placement = self.placement.as_ref();
        let placement = placement.filter(|(gpus, _)| gpus.len() > 1 && self.gather_ns > 0);
        let Some((gpus, pool)) = placement else {
            return 0;
        };
        let slice = pools
            .get(pool)
            .map_or(0, |pool| pool.slice_of(&self.config));
        u128::from(slice) * gpus.len() as u128 + u128::from(self.gather_ns)
    }

    /// Records that a session has gathered all its GPUs (`granted`) or has given them up.
    fn stop_gathering(&mut self, session: SessionId, granted: bool) {
        let by = |gathering: &mut (SessionId, u64)| gathering.0 == session;
        let (_, spent) = self.gathering.take_if(by).unwrap_or((session, 0));
        if granted {
            self.gather_ns -= self.gather_ns.div_ceil(8);
        }
        if !granted || self.gather_ns > 0 {
            self.gather_ns = self.gather_ns.max(spent.saturating_mul(2));
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct SessionModel {
    pub(super) vm: VmId,
    /// GPUs of the session, in ascending order, and the bytes of device memory booked on each.
    pub(super) places: Vec<(GpuId, u64)>,
    pub(super) closing: bool,
    /// Whether the session belongs to a removed VM whose number another VM has now. That VM does
    /// not pay for the session.
    pub(super) former: bool,
    /// Time of the kill or of the last news that the killed worker still exits, in ns.
    pub(super) exiting_ns: Option<u64>,
    pub(super) pinned: u64,
    pub(super) gpu_ns: u64,
    /// Number of waiting calls, by the last report.
    pub(super) depth: u64,
    pub(super) submitted: u64,
    pub(super) completed: u64,
    pub(super) progress_ns: u64,
    pub(super) used: Usage,
    /// The last use that the worker reported during a lease without ending the lease.
    pub(super) told: Usage,
    /// Whether the last report of the session was that it is idle.
    pub(super) said_idle: bool,
}

impl SessionModel {
    pub(super) fn served(&self) -> bool {
        !self.closing && self.exiting_ns.is_none()
    }

    pub(super) fn in_flight(&self) -> u64 {
        self.submitted - self.completed
    }

    /// The part of a reported total that exceeds the known total.
    pub(super) fn beyond(&self, total: Usage) -> Usage {
        Usage {
            calls: total.calls.saturating_sub(self.used.calls),
            bytes: total.bytes.saturating_sub(self.used.bytes),
        }
    }

    /// Adds what a reported total exceeds the known total by, and returns it.
    pub(super) fn add(&mut self, total: Usage) -> Usage {
        let more = self.beyond(total);
        self.used.calls += more.calls;
        self.used.bytes += more.bytes;
        more
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

    /// The booking in bytes on the GPU that `of` names.
    pub(super) fn place_mut(&mut self, of: Memory) -> Option<&mut u64> {
        let at = |&(gpu, _): &(GpuId, u64)| match of {
            Memory::DeviceOn(on) => gpu == on,
            _ => true,
        };
        let index = self.places.iter().position(at)?;
        self.places.get_mut(index).map(|(_, bytes)| bytes)
    }
}

/// The whole model.
#[derive(Debug, Clone)]
pub(super) struct Model {
    pub(super) now: u64,
    pub(super) class_weights: ClassWeights,
    pub(super) gpus: BTreeMap<GpuId, GpuModel>,
    pub(super) pools: BTreeMap<PoolId, PoolConfig>,
    pub(super) vms: BTreeMap<VmId, VmModel>,
    /// Admitted sessions whose workers are not known to be dead.
    pub(super) sessions: BTreeMap<SessionId, SessionModel>,
    /// Granted leases.
    pub(super) leases: BTreeMap<SessionId, Holder>,
    /// Every session number that was ever used.
    pub(super) ever: Vec<SessionId>,
    pub(super) last_epoch: u64,
    /// Time in ns of the timer that the scheduler asked for; `u64::MAX`: none.
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
    /// Advances the clock to `now`.
    pub(super) fn pass(&mut self, now: u64) {
        self.now = self.now.max(now);
    }

    /// Charges the time since the last call. Every nanosecond of a GPU goes to its holders in equal
    /// parts (the last holder gets the remainder), or to no VM. Must be called whenever the
    /// scheduler charges, so that the remainders agree; the payers must not have changed since the
    /// last call.
    pub(super) fn charge(&mut self, id: GpuId) {
        let Some(gpu) = self.gpus.get(&id) else {
            return;
        };
        let begins = gpu.payers.iter().map(|&(_, _, from)| from);
        let within = |at: &u64| (gpu.charged_to_ns..self.now).contains(at);
        if let Some(at) = begins.filter(within).max() {
            self.charge_until(id, at);
        }
        self.charge_until(id, self.now);
    }

    fn charge_until(&mut self, id: GpuId, now: u64) {
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        let from = std::mem::replace(&mut gpu.charged_to_ns, now);
        let passed = now - from;
        let pays = |payer: &&(SessionId, VmId, u64)| payer.2 <= from;
        let payers = gpu.payers.iter().filter(pays).count() as u64;
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
        for (session, vm, _) in gpu.payers.iter().filter(pays) {
            let part = rest / left;
            rest -= part;
            left -= 1;
            let mut former = false;
            if let Some(session) = self.sessions.get_mut(session) {
                session.gpu_ns += part;
                former = session.former;
            }
            if let Some(vm) = self.vms.get_mut(vm).filter(|_| !former) {
                vm.gpu_ns += part;
                *vm.totals.entry(id).or_default() += part;
                vm.buckets.charge_gpu(part, from, now);
                if let Some((by, spent)) = &mut vm.gathering
                    && by == session
                {
                    *spent += part;
                }
            }
        }
    }

    /// Records who pays for each GPU from now on: holders of leases that are not parked, and gangs
    /// that reserve the GPU.
    pub(super) fn note_payers(&mut self) {
        for vm in self.vms.values_mut() {
            vm.revived = false;
        }
        let (leases, sessions) = (&self.leases, &self.sessions);
        for gpu in self.gpus.values_mut() {
            gpu.payers.clear();
            for id in &gpu.holders {
                let lease = leases.get(id);
                let from = lease.and_then(|lease| lease.ahead).unwrap_or(0);
                let pays = lease.is_none_or(|lease| !lease.parked);
                if let Some(session) = sessions.get(id).filter(|_| pays) {
                    gpu.payers.push((*id, session.vm, from));
                }
            }
            gpu.barred = gpu.holders.is_empty() && !gpu.health.grants();
        }
    }

    /// Removes the reservation of a gang that gave up its GPUs, without an action. A reservation
    /// that has just become a lease stays.
    pub(super) fn note_given_up(
        &mut self,
        gpu: GpuId,
        by: Option<SessionId>,
        granted: &[SessionId],
    ) {
        let leases = &self.leases;
        let Some(gpu) = self.gpus.get_mut(&gpu) else {
            return;
        };
        let stays =
            |id: &SessionId| leases.contains_key(id) || by == Some(*id) || granted.contains(id);
        for id in gpu.holders.iter().filter(|id| !stays(id)) {
            let vm = self.sessions.get(id).map(|session| session.vm);
            if let Some(vm) = vm.and_then(|vm| self.vms.get_mut(&vm)) {
                vm.stop_gathering(*id, false);
            }
        }
        gpu.holders.retain(stays);
    }

    /// Records the gang that reserves a GPU.
    pub(super) fn note_reserved(&mut self, gpu: GpuId, by: Option<SessionId>) {
        let (Some(by), Some(gpu)) = (by, self.gpus.get_mut(&gpu)) else {
            return;
        };
        if !gpu.holders.contains(&by) {
            gpu.holders.push(by);
        }
        let vm = self.sessions.get(&by).map(|session| session.vm);
        if let Some(vm) = vm.and_then(|vm| self.vms.get_mut(&vm))
            && vm.gathering.is_none_or(|(session, _)| session != by)
        {
            vm.gathering = Some((by, 0));
        }
    }

    /// The gangs that reserve a GPU and have no lease yet.
    pub(super) fn reserving(&self, gpu: &GpuModel) -> impl Iterator<Item = &VmModel> {
        let waits = |id: &&SessionId| !self.leases.contains_key(id);
        let reserving = gpu.holders.iter().filter(waits);
        reserving.filter_map(|id| self.vms.get(&self.sessions.get(id)?.vm))
    }

    /// Whether the scheduler accepts this event. An event that is not accepted only advances the
    /// time.
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
            Event::ResetStats { vm: Some(id) } | Event::PinnedLeft { vm: id, .. } => {
                self.vms.contains_key(id)
            }
            Event::SessionRemoved { session: id }
            | Event::Runnable { session: id, .. }
            | Event::Idle { session: id, .. }
            | Event::Progress { session: id, .. }
            | Event::WorkerExited { session: id }
            | Event::WorkerExiting { session: id }
            | Event::Used { session: id, .. }
            | Event::MemoryReserve { session: id, .. }
            | Event::MemoryRelease { session: id, .. } => session(id),
            Event::Released {
                session: id, epoch, ..
            }
            | Event::Ending {
                session: id, epoch, ..
            }
            | Event::CreditsSpent {
                session: id, epoch, ..
            } => self.holds(*id, *epoch),
            Event::SessionAdded { .. }
            | Event::SetClassWeights { .. }
            | Event::ResetStats { vm: None }
            | Event::Timer
            | Event::Away { .. } => true,
        }
    }

    /// Whether the next session may get a lease beside this holder.
    pub(super) fn makes_room(&self, id: SessionId) -> bool {
        let dying = |s: &SessionModel| s.exiting_ns.is_some();
        let dying = self.sessions.get(&id).is_none_or(dying);
        self.holder(id)
            .is_some_and(|lease| lease.overrun || !dying && lease.leaves(self.now))
    }

    /// Whether a worker on the GPU was killed and nothing shows that the worker still exits.
    pub(super) fn has_stuck_worker(&self, gpu: GpuId) -> bool {
        let verify_ns = vgpu_sched::Config::default().verify_ns;
        let stuck = |at: u64| self.now - at >= verify_ns;
        let mut here = self.sessions.values().filter(|session| session.is_on(gpu));
        here.any(|session| session.exiting_ns.is_some_and(stuck))
    }

    /// Bytes that the present sessions of a VM have pinned.
    pub(super) fn pinned_by(&self, vm: VmId) -> u64 {
        let sessions = self.sessions.values().filter(|session| session.vm == vm);
        sessions.map(|session| session.pinned).sum()
    }

    /// Whether the session holds the lease `epoch`.
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

    /// Whether another session holds or reserves a GPU of this session.
    pub(super) fn has_company(&self, session: &SessionModel) -> bool {
        let crowded = |&(gpu, _): &(GpuId, u64)| {
            let gpu = self.gpus.get(&gpu);
            gpu.is_some_and(|gpu| gpu.holders.len() > 1)
        };
        session.places.iter().any(crowded)
    }

    /// Whether the VM's lease was revoked at this moment although the VM had no work. If its hold
    /// ended at the same moment, the VM left the competition and joined again.
    pub(super) fn comes_back(&self, gpu: GpuId, vm: VmId) -> bool {
        self.holders_on(gpu).any(|holder| {
            let session = self.sessions.get(&holder.session);
            holder.vm == vm
                && holder.revoked_ns == Some(self.now)
                && session.is_some_and(|session| session.said_idle)
        })
    }

    /// Whether VMs belong to the pool, or are still placed under it.
    pub(super) fn lived_in(&self, pool: PoolId) -> bool {
        self.vms.values().any(|vm| {
            (vm.config.pool == pool && !vm.removed)
                || vm
                    .placement
                    .as_ref()
                    .is_some_and(|(_, under)| *under == pool)
        })
    }

    /// Deletes removed VMs that have no sessions and no pinned memory any more, and removed GPUs
    /// that have no sessions any more.
    pub(super) fn forget(&mut self) {
        self.vms
            .retain(|_, vm| !vm.removed || !vm.sessions.is_empty() || vm.pinned_left > 0);
        let sessions = &self.sessions;
        self.gpus
            .retain(|id, gpu| !gpu.removed || sessions.values().any(|session| session.is_on(*id)));
    }
}
