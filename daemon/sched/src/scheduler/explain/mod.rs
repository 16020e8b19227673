//! Why a VM waits, and for how long at most.

mod bound;

use super::Scheduler;
use super::seats::pool_weight;
use crate::action::Refusal;
use crate::config::{Class, GpuHealth, Policy};
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Node, Vm};
use crate::stats::{Cap, WaitReason};

/// What a VM is doing, or why it does not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// It has the GPU.
    Running,
    /// It has the GPU, no work and no rival: the lease costs it nothing.
    Parked,
    /// Its programs have nothing for the GPU to do.
    Idle,
    /// It has no program, and one that starts now would be served.
    NoProgram,
    /// It has no program, and one that starts now would be refused.
    Refused(Refusal),
    /// It has work, or work that it may not submit.
    Waits(WaitReason),
}

/// Who has the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The VM.
    pub vm: VmId,
    /// Its session.
    pub session: SessionId,
    /// Its lease; 0 while a gang only keeps the GPU reserved.
    pub epoch: Epoch,
    /// A gang keeps it reserved until it has its other GPUs.
    pub reserved: bool,
    /// For how long it has had it.
    pub held_ns: u64,
    /// How much of its slice is left; counts while others wait.
    pub slice_left_ns: u64,
    /// How long ago the GPU was asked back.
    pub asked_ns: Option<u64>,
    /// It has outlasted slice and grace: the next one may run beside it.
    pub overrun: bool,
}

/// How long a VM waits at most, from now until it has the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitBound {
    /// It has it.
    Now,
    /// So long.
    Within {
        /// When the others give the GPU back as they did so far.
        usual_ns: u64,
        /// When all others let their work hang until the contended limit.
        worst_ns: u64,
    },
    /// Nothing bounds it.
    Never(NoBound),
}

/// Why nothing bounds a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum NoBound {
    /// It is quarantined until an administrator releases it.
    Quarantined,
    /// Nothing serves it.
    NoGpu,
    /// Its GPU is like this.
    GpuUnavailable(GpuHealth),
    /// Aging is off: higher classes may be first for ever.
    AgingOff,
    /// This limit of its own lets nothing through.
    ZeroRate(Cap),
}

/// The answer to "why does this VM wait, and for how long at most?"
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// The time of the answer.
    pub now_ns: u64,
    /// The pool under which it runs.
    pub pool: PoolId,
    /// The pool's policy.
    pub policy: Policy,
    /// The GPU on which it is placed; of a gang, the one for which it waits, or the first.
    pub gpu: Option<GpuId>,
    /// All the GPUs of a gang, in the order in which it takes them; otherwise empty.
    pub gang: Vec<GpuId>,
    /// How many of them it keeps reserved.
    pub gang_held: u32,
    /// Its class now (demotion included).
    pub class: Class,
    /// Demoted until then for having passed the soft limit.
    pub demoted_until_ns: Option<u64>,
    /// What it does, or why it does not.
    pub reason: Reason,
    /// Quarantined until then; `u64::MAX`: until it is released.
    pub quarantined_until_ns: Option<u64>,
    /// It has outlasted slice and grace itself until lately, and is not let in beside the overrunner that
    /// has the GPU now.
    pub held_off: bool,
    /// Since when it has work that does not run.
    pub waiting_since_ns: Option<u64>,
    /// Who has the GPU.
    pub holders: Vec<Holder>,
    /// Who of its pool would be given the GPU before it, as it stands now, the first first.
    pub before: Vec<VmId>,
    /// VMs of its pool that compete on its GPU now, itself included.
    pub competing: u32,
    /// Its weight in thousandths.
    pub weight_milli: u64,
    /// The weights of all that compete, itself included.
    pub competing_weight_milli: u64,
    /// The part of the GPU's time that it may expect among those that compete now, in thousandths (over
    /// the pools as well). Where the policy keeps no shares, as if it were `weighted`.
    pub share_permille: u32,
    /// GPU time that it is owed; negative: that it owes.
    pub lag_ns: i128,
    /// How long it waits at most. For one that has nothing to do: if it had work now.
    pub wait: WaitBound,
    /// How much more host memory the host lets it pin, whatever its own limit; `u64::MAX`: no bound.
    pub pinned_room: u64,
}

impl Scheduler {
    /// Why the VM waits, and for how long at most, as of the last event; `None` if it is not known.
    #[must_use]
    pub fn explain(&self, id: VmId) -> Option<Explanation> {
        let vm = self.vms.get(&id)?;
        let pool = self.pool_of(id)?;
        let config = &self.pools.get(&pool)?.config;
        let held = self.held(id);
        let gpu_id = vm.seat_gpu(held).or_else(|| vm.seat_gpu(0));
        let gpu = gpu_id.and_then(|gpu| self.gpus.get(&gpu));
        let node = gpu.and_then(|gpu| gpu.nodes.get(&pool));
        let reason = self.reason(id, vm);
        let rivals = self.rivals(id, node);
        let (own, all) = self.weights(id, &rivals);
        Some(Explanation {
            now_ns: self.now_ns,
            pool,
            policy: config.policy,
            gpu: gpu_id,
            gang: gang(vm),
            gang_held: u32::try_from(held).unwrap_or(u32::MAX),
            class: vm.class(),
            demoted_until_ns: vm.demoted_until_ns,
            reason,
            quarantined_until_ns: vm.quarantine,
            held_off: gpu.is_some_and(|gpu| gpu.held_off.contains_key(&id)),
            waiting_since_ns: self.waiting_since(vm),
            holders: gpu.map_or_else(Vec::new, |gpu| self.holders(gpu)),
            before: node.map_or_else(Vec::new, |node| node.queue.before(id, self.now_ns)),
            competing: u32::try_from(rivals.len() + 1).unwrap_or(u32::MAX),
            weight_milli: own,
            competing_weight_milli: all,
            share_permille: self.share_permille(id, pool, gpu),
            lag_ns: self.lag_of(id, vm),
            wait: self.wait_bound(id, vm, reason),
            pinned_room: self.pinned_room(id),
        })
    }

    fn reason(&self, id: VmId, vm: &Vm) -> Reason {
        if let Some((_, charged)) = vm.running {
            return if charged {
                Reason::Running
            } else {
                Reason::Parked
            };
        }
        if let Some(reason) = self.vm_waits(id, vm) {
            return Reason::Waits(reason);
        }
        if !vm.sessions.is_empty() {
            return Reason::Idle;
        }
        match self.can_admit(id) {
            Ok(_) => Reason::NoProgram,
            Err(refusal) => Reason::Refused(refusal),
        }
    }

    /// The others of its pool that compete on its GPU now.
    /// The part of the GPU's time that a VM may expect among those that compete now, in thousandths.
    pub(super) fn share_permille(&self, id: VmId, pool: PoolId, gpu: Option<&Gpu>) -> u32 {
        let node = gpu.and_then(|gpu| gpu.nodes.get(&pool));
        let (own, all) = self.weights(id, &self.rivals(id, node));
        let (pool_own, pool_all) = self.pool_weights(pool, gpu);
        let share = u128::from(own) * u128::from(pool_own) * 1000
            / (u128::from(all) * u128::from(pool_all)).max(1);
        u32::try_from(share.min(1000)).unwrap_or(1000)
    }

    fn rivals(&self, id: VmId, node: Option<&Node>) -> Vec<VmId> {
        let members = node.map_or_else(Vec::new, |node| node.queue.keys());
        members.into_iter().filter(|&vm| vm != id).collect()
    }

    /// The weight of a VM, and of all that compete, itself included.
    fn weights(&self, id: VmId, rivals: &[VmId]) -> (u64, u64) {
        let weight = |vm: VmId| self.standing(vm).weight;
        let own = weight(id).max(1);
        let others = rivals.iter().map(|&vm| weight(vm));
        (own, others.fold(own, u64::saturating_add))
    }

    /// The weight of a pool on a GPU, and of all pools that compete there, itself included.
    fn pool_weights(&self, pool: PoolId, gpu: Option<&Gpu>) -> (u64, u64) {
        let weight = |pool: PoolId| {
            self.pools
                .get(&pool)
                .map_or(1, |pool| pool_weight(pool.config.weight))
        };
        let own = weight(pool);
        let others = gpu.map_or(0, |gpu| {
            let competing = gpu.top.keys().filter(|&other| other != pool);
            competing.map(weight).sum()
        });
        (own, own + others)
    }

    fn holders(&self, gpu: &Gpu) -> Vec<Holder> {
        let left = |until: u64| until.saturating_sub(self.now_ns);
        let since = |at: u64| self.now_ns.saturating_sub(at);
        let leases = gpu.holders.iter().filter_map(|&session| {
            let record = self.sessions.get(&session)?;
            Some((session, record.vm, record.lease.as_ref()?))
        });
        leases
            .map(|(session, vm, lease)| Holder {
                vm,
                session,
                epoch: lease.epoch,
                reserved: !lease.granted(),
                held_ns: since(lease.granted_ns),
                slice_left_ns: left(lease.slice_end_ns),
                asked_ns: lease.revoked_ns.map(since),
                overrun: lease.overrun,
            })
            .collect()
    }

    fn waiting_since(&self, vm: &Vm) -> Option<u64> {
        if vm.running.is_some() {
            return None;
        }
        let (_, first) = vm.runnable.first_key_value()?;
        self.sessions
            .get(first)
            .map(|session| session.waiting_since_ns)
    }
}

/// The GPUs of a gang.
fn gang(vm: &Vm) -> Vec<GpuId> {
    match vm.width() {
        0 | 1 => Vec::new(),
        width => (0..width).filter_map(|index| vm.seat_gpu(index)).collect(),
    }
}

#[cfg(test)]
mod tests;
