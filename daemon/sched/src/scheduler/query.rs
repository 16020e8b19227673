//! Queries. They do not change the state.

use super::Scheduler;
use crate::config::GpuHealth;
use crate::depth::Depth;
use crate::id::{GpuId, PoolId, SessionId, VmId};
use crate::model::{Lease, Phase, Seat, Use, Vm};
use crate::stats::{GpuStats, SessionState, SessionStats, VmStats, WaitReason};

impl Scheduler {
    /// Counters and state of a VM as of the last event; `None`: unknown VM. (The caller can feed
    /// [`crate::Event::Timer`] first, which updates the charged time.)
    #[must_use]
    pub fn vm_stats(&self, id: VmId) -> Option<VmStats> {
        let vm = self.vms.get(&id)?;
        let pool = self.pool_of(id)?;
        let decay = self
            .pools
            .get(&pool)
            .and_then(|pool| pool.config.strike_decay_ns);
        let since_phase = self.now_ns.saturating_sub(vm.phase_ns);
        let more = |phase: Phase| if vm.phase == phase { since_phase } else { 0 };
        Some(VmStats {
            pool: vm.config.pool,
            class: vm.config.class,
            demoted: vm.demoted_until_ns.is_some(),
            gpu: vm.home().map(|(gpu, _)| gpu),
            also: (1..vm.width())
                .filter_map(|index| vm.seat_gpu(index))
                .collect(),
            quarantined: vm.quarantined(),
            quarantine: vm.quarantine_left(self.now_ns),
            quarantines: vm.quarantines.now(decay, self.now_ns),
            strikes: vm.strikes.now(decay, self.now_ns),
            sessions: u32::try_from(vm.sessions.len()).unwrap_or(u32::MAX),
            gpu_ns: vm.count.gpu_ns,
            wait_ns: vm.count.wait_ns + more(Phase::Waiting),
            throttled_ns: vm.count.throttled_ns + more(Phase::Throttled),
            rate_limited: vm.count.rate_limited,
            rate_limited_by: vm.count.rate_limited_by,
            grants: vm.count.grants,
            kills: vm.count.kills,
            soft_limits: vm.count.soft_limits,
            memory_denied: vm.count.memory_denied,
            calls: vm.count.calls,
            bytes: vm.count.bytes,
            debt_ns: self.debt_of(id, vm),
            depth: self.depth_of(vm),
            memory_bytes: vm.memory,
            memory_peak_bytes: vm.count.memory_peak,
            pinned_bytes: vm.pinned,
            pinned_peak_bytes: vm.count.pinned_peak,
            waiting: self.vm_waits(id, vm),
            wait: vm.count.wait.clone(),
            service: vm.count.service.clone(),
        })
    }

    /// Bytes of device memory that are booked for a VM on one GPU.
    #[must_use]
    pub fn memory_on(&self, vm: VmId, gpu: GpuId) -> u64 {
        let sessions = self.vms.get(&vm).into_iter().flat_map(|vm| &vm.sessions);
        let places = sessions
            .filter_map(|id| self.sessions.get(id))
            .flat_map(|session| &session.places);
        let here = places.filter(|place| place.gpu == gpu);
        here.map(|place| place.memory).sum()
    }

    /// Bytes of device memory that are booked for a session on each of its GPUs.
    pub fn memory_of(&self, id: SessionId) -> impl Iterator<Item = (GpuId, u64)> {
        let session = self.sessions.get(&id).into_iter();
        let places = session.flat_map(|session| &session.places);
        places.map(|place| (place.gpu, place.memory))
    }

    /// Largest number of bytes that the VM can allocate on a GPU now, by the free memory of the GPU
    /// and the VM's quota.
    #[must_use]
    pub fn memory_left(&self, vm: VmId, gpu: GpuId) -> u64 {
        let (Some(vm), Some(gpu)) = (self.vms.get(&vm), self.gpus.get(&gpu)) else {
            return 0;
        };
        gpu.memory_left().min(vm.memory_left())
    }

    /// Counters and state of a session as of the last event; `None`: unknown session.
    #[must_use]
    pub fn session_stats(&self, id: SessionId) -> Option<SessionStats> {
        let session = self.sessions.get(&id)?;
        let vm = self.vms.get(&session.vm)?;
        let state = match &session.lease {
            _ if !session.served() => SessionState::Ending,
            Some(lease) if !lease.granted() => SessionState::Gathering,
            Some(lease) if lease.revoked_ns.is_some() => SessionState::Revoking,
            Some(lease) if lease.usage == Use::Parked => SessionState::Parked,
            Some(_) => SessionState::Running,
            None if session.ticket.is_some() => SessionState::Waiting,
            None => SessionState::Idle,
        };
        let waits = matches!(state, SessionState::Waiting | SessionState::Gathering);
        Some(SessionStats {
            vm: session.vm,
            gpu: session.gpu(),
            also: session.also(),
            state,
            waiting: waits.then(|| self.why(session.vm, vm)),
            gpu_ns: session.gpu_ns,
            memory_bytes: session.memory(),
            pinned_bytes: session.pinned,
            depth: session.depth,
            calls: session.used.calls,
            bytes: session.used.bytes,
        })
    }

    /// Counters and state of a GPU as of the last event; `None`: unknown GPU.
    #[must_use]
    pub fn gpu_stats(&self, id: GpuId) -> Option<GpuStats> {
        let gpu = self.gpus.get(&id)?;
        let waiting = gpu.sessions.iter().filter(|session| {
            self.sessions
                .get(session)
                .is_some_and(|session| session.ticket.is_some())
        });
        let lease = |id: &SessionId| {
            let session = self.sessions.get(id)?;
            Some((*id, session.vm, session.lease.as_ref()?))
        };
        let leases = || gpu.holders.iter().filter_map(lease);
        let granted = |(_, _, lease): &(SessionId, VmId, &Lease)| lease.granted();
        Some(GpuStats {
            health: gpu.health,
            holders: leases()
                .filter(granted)
                .map(|(session, vm, lease)| (session, vm, lease.epoch))
                .collect(),
            reserved: leases()
                .find(|lease| !granted(lease))
                .map(|(session, vm, _)| (session, vm)),
            sessions: u32::try_from(gpu.sessions.len()).unwrap_or(u32::MAX),
            waiting: u32::try_from(waiting.count()).unwrap_or(u32::MAX),
            account: gpu.account,
            wall_ns: self.now_ns.saturating_sub(gpu.since_ns),
            handoffs: gpu.handoffs,
            handoff: gpu.handoff.clone(),
            memory_bytes: gpu.memory,
            memory_total_bytes: gpu.config.memory_bytes,
        })
    }

    /// The gang session that reserves a GPU while it gathers its other GPUs.
    #[must_use]
    pub fn reserved_by(&self, gpu: GpuId) -> Option<SessionId> {
        let mut holders = self.gpus.get(&gpu)?.holders.iter();
        let gathers = |id: &&SessionId| self.lease(**id).is_some_and(|lease| !lease.granted());
        holders.find(gathers).copied()
    }

    /// The known GPUs, in ascending order.
    pub fn gpus(&self) -> impl Iterator<Item = GpuId> + '_ {
        self.gpus.keys().copied()
    }

    /// The known VMs, in ascending order, including removed VMs that still have sessions or pinned
    /// memory.
    pub fn vms(&self) -> impl Iterator<Item = VmId> + '_ {
        self.vms.keys().copied()
    }

    /// The VMs of a pool.
    pub fn vms_of(&self, pool: PoolId) -> impl Iterator<Item = VmId> + '_ {
        self.pools
            .get(&pool)
            .into_iter()
            .flat_map(|pool| pool.vms.iter().copied())
    }

    /// The sessions of a VM whose workers have not exited.
    pub fn sessions_of(&self, vm: VmId) -> impl Iterator<Item = SessionId> + '_ {
        self.vms
            .get(&vm)
            .into_iter()
            .flat_map(|vm| vm.sessions.iter().copied())
    }

    /// Lag of a VM in ns of GPU time as of the last event; negative: a debt. `None`: unknown VM.
    #[must_use]
    pub fn lag_ns(&self, vm: VmId) -> Option<i128> {
        self.vms.get(&vm).map(|record| self.lag_of(vm, record))
    }

    /// Lag of a VM on one GPU, in ns. `None`: the VM is not placed there.
    #[must_use]
    pub fn lag_on_ns(&self, vm: VmId, gpu: GpuId) -> Option<i128> {
        let placement = self.vms.get(&vm)?.placement.as_ref()?;
        let seat = placement.seats.iter().find(|seat| seat.gpu == gpu)?;
        Some(self.seat_lag(vm, placement.pool, seat))
    }

    /// Calls and bytes that one session may queue: the VM's depth limits divided by its number of
    /// sessions, at least one call and one byte. `u64::MAX`: no limit.
    #[must_use]
    pub fn depth_allowance(&self, session: SessionId) -> Depth {
        let unlimited = Depth {
            calls: u64::MAX,
            bytes: u64::MAX,
        };
        let vm = self
            .sessions
            .get(&session)
            .and_then(|session| self.vms.get(&session.vm));
        let Some(vm) = vm else { return unlimited };
        let among = vm.sessions.len().max(1) as u64;
        let part = |limit: Option<u64>| limit.map_or(u64::MAX, |limit| (limit / among).max(1));
        Depth {
            calls: part(vm.config.limits.depth_calls),
            bytes: part(vm.config.limits.depth_bytes),
        }
    }

    /// Time in ns at which [`crate::Event::Timer`] is due; `u64::MAX`: never.
    #[must_use]
    pub fn next_timer_ns(&self) -> u64 {
        self.timers.next()
    }

    pub(super) fn debt_of(&self, id: VmId, vm: &Vm) -> u64 {
        u64::try_from((-self.lag_of(id, vm)).max(0)).unwrap_or(u64::MAX)
    }

    pub(super) fn lag_of(&self, id: VmId, vm: &Vm) -> i128 {
        let Some(placement) = &vm.placement else {
            return vm.lag_ns;
        };
        let at = |seat: &Seat| self.seat_lag(id, placement.pool, seat);
        placement.seats.iter().map(at).sum()
    }

    fn seat_lag(&self, id: VmId, pool: PoolId, seat: &Seat) -> i128 {
        let gpu = self.gpus.get(&seat.gpu).filter(|_| seat.joined);
        gpu.and_then(|gpu| gpu.nodes.get(&pool))
            .and_then(|node| node.queue.lag_ns(id))
            .unwrap_or(seat.lag_ns)
    }

    fn depth_of(&self, vm: &Vm) -> Depth {
        let sessions = vm
            .sessions
            .iter()
            .filter_map(|session| self.sessions.get(session));
        sessions.fold(Depth::default(), |sum, session| Depth {
            calls: sum.calls.saturating_add(session.depth.calls),
            bytes: sum.bytes.saturating_add(session.depth.bytes),
        })
    }

    pub(super) fn vm_waits(&self, id: VmId, vm: &Vm) -> Option<WaitReason> {
        if vm.running.is_none() && !vm.runnable.is_empty() {
            return Some(self.why(id, vm));
        }
        if vm.quarantined() {
            return Some(WaitReason::Quarantine);
        }
        let depth = self.depth_of(vm);
        let full = |limit: Option<u64>, depth: u64| limit.is_some_and(|limit| depth >= limit);
        let limits = &vm.config.limits;
        if full(limits.depth_calls, depth.calls) || full(limits.depth_bytes, depth.bytes) {
            return Some(WaitReason::Depth);
        }
        (vm.quota_hit && vm.running.is_none()).then_some(WaitReason::Quota)
    }

    /// The reason for which a VM with work does not run.
    fn why(&self, id: VmId, vm: &Vm) -> WaitReason {
        if vm.quarantined() {
            return WaitReason::Quarantine;
        }
        let held = self.held(id);
        let gpus = || (0..vm.width()).filter_map(|index| vm.seat_gpu(index));
        let health = gpus()
            .filter_map(|gpu| self.gpus.get(&gpu).map(|gpu| gpu.health))
            .find(|health| !health.grants());
        if let Some(health) = health {
            return WaitReason::GpuUnavailable { health };
        }
        let Some(gpu) = vm.seat_gpu(held).and_then(|gpu| self.gpus.get(&gpu)) else {
            return WaitReason::NoGpu;
        };
        if let Some(throttle) = vm.throttle {
            return WaitReason::RateLimit {
                cap: throttle.cap,
                until_ns: throttle.until_ns,
            };
        }
        if held > 0 {
            let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
            return WaitReason::Gang {
                held: number(held),
                of: number(vm.width()),
            };
        }
        if vm.sliced {
            return WaitReason::Slice;
        }
        let competes = |other: &&VmId| {
            **other != id
                && self
                    .vms
                    .get(other)
                    .is_some_and(|vm| vm.is_ready() || vm.running.is_some())
        };
        let rivals = gpu.vms.iter().filter(competes).count();
        WaitReason::Turn {
            rivals: u32::try_from(rivals).unwrap_or(u32::MAX),
        }
    }
}

impl GpuHealth {
    /// The health as one word.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            GpuHealth::Unverified => "unverified",
            GpuHealth::Healthy => "healthy",
            GpuHealth::Draining => "draining",
            GpuHealth::Suspect => "suspect",
            GpuHealth::Lost => "lost",
        }
    }
}
