//! Explains why a VM waits, and the longest time that it waits.

mod bound;

use super::Scheduler;
use super::seats::pool_weight;
use crate::action::Refusal;
use crate::config::{Class, GpuHealth, Policy};
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Node, Vm};
use crate::stats::{Cap, WaitReason};

/// State of a VM, or the reason for which the VM does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reason {
    /// The VM has the GPU.
    Running,
    /// The VM has the GPU but no work, and no other VM waits: the VM does not pay for the lease.
    Parked,
    /// The programs of the VM have no work for the GPU.
    Idle,
    /// The VM runs no program. A program that starts now would be admitted.
    NoProgram,
    /// The VM runs no program. A program that starts now would be refused.
    Refused(Refusal),
    /// The VM has work that does not run, or may not submit work.
    Waits(WaitReason),
}

/// A holder of the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holder {
    /// The VM.
    pub vm: VmId,
    /// The session.
    pub session: SessionId,
    /// Epoch of the lease; 0 while a gang reserves the GPU.
    pub epoch: Epoch,
    /// Whether a gang reserves the GPU until it has all its GPUs.
    pub reserved: bool,
    /// Time in ns since the grant.
    pub held_ns: u64,
    /// Rest of the slice in ns; the slice ends only if others wait.
    pub slice_left_ns: u64,
    /// Time in ns since the revoke; `None` if the lease is not revoked.
    pub asked_ns: Option<u64>,
    /// Whether the holder kept the lease past slice and grace, so that the next session may run
    /// beside it.
    pub overrun: bool,
    /// Time in ns since the kill of the holder; `None` if the holder was not killed.
    pub killed_ns: Option<u64>,
    /// Whether the holder keeps the GPU for longer than holders of this GPU did so far. Then
    /// [`WaitBound::Within::usual_ns`] is the worst time.
    pub late: bool,
}

/// Longest wait of a VM, from now until it has the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitBound {
    /// The VM has the GPU.
    Now,
    /// The wait is bounded.
    Within {
        /// Bound in ns if the other VMs return the GPU as quickly as they have until now. While a
        /// holder is late ([`Holder::late`]): `worst_ns`.
        usual_ns: u64,
        /// Bound in ns if all others hang until the contended limit.
        worst_ns: u64,
    },
    /// The wait has no bound.
    Never(NoBound),
}

/// Why a wait has no bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NoBound {
    /// The VM is quarantined until an administrator releases it.
    Quarantined,
    /// No GPU serves the VM.
    NoGpu,
    /// The GPU has this health, under which nothing is granted.
    GpuUnavailable(GpuHealth),
    /// The pool has no aging: VMs of higher classes may go first forever.
    AgingOff,
    /// A rate limit of the VM is zero.
    ZeroRate(Cap),
    /// A holder does not give the GPU back, and a kill does not end its work.
    Hung {
        /// The GPU.
        gpu: GpuId,
        /// The VM of the holder.
        vm: VmId,
        /// The session of the holder.
        session: SessionId,
    },
}

/// The reason for which a VM waits, and its longest wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explanation {
    /// Time of the answer, in ns.
    pub now_ns: u64,
    /// The pool under which the VM is placed.
    pub pool: PoolId,
    /// The pool's policy.
    pub policy: Policy,
    /// GPU of the VM; for a gang, the GPU for which it waits, or its first GPU.
    pub gpu: Option<GpuId>,
    /// All GPUs of a gang, in the order in which it gathers them; empty for other VMs.
    pub gang: Vec<GpuId>,
    /// Number of GPUs that the gang has gathered.
    pub gang_held: u32,
    /// Present class, lowered while the VM is demoted.
    pub class: Class,
    /// Time in ns at which a demotion by the soft limit ends.
    pub demoted_until_ns: Option<u64>,
    /// State of the VM, or the reason for which the VM does not run.
    pub reason: Reason,
    /// Time in ns at which the quarantine ends; `u64::MAX`: until an administrator releases the VM.
    pub quarantined_until_ns: Option<u64>,
    /// Whether the VM recently overran and therefore may not run beside the present overrunner.
    pub held_off: bool,
    /// Time in ns at which the VM got the work that does not run yet.
    pub waiting_since_ns: Option<u64>,
    /// The holders of the GPU.
    pub holders: Vec<Holder>,
    /// VMs of the pool that would now get the GPU before this VM, in order.
    pub before: Vec<VmId>,
    /// Number of VMs of the pool that compete for the GPU now, including this VM.
    pub competing: u32,
    /// Weight of the VM in thousandths.
    pub weight_milli: u64,
    /// Sum of the weights of all competing VMs, including this VM, in thousandths.
    pub competing_weight_milli: u64,
    /// Share of the GPU's time that the VM may expect with the present competing VMs and pools, in
    /// thousandths. Under a policy without shares: the share that `weighted` would give.
    pub share_permille: u32,
    /// Lag in ns of GPU time; negative: a debt.
    pub lag_ns: i128,
    /// Longest wait; for an idle VM, the wait if it had work now.
    pub wait: WaitBound,
    /// Bytes that the VM may still pin under the limit of the host; its own limit is not counted.
    /// `u64::MAX`: no limit.
    pub pinned_room: u64,
}

impl Scheduler {
    /// Explains why the VM waits and for how long at most, as of the last event; `None`: unknown
    /// VM.
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

    /// Share of the GPU's time that a VM may expect among the competing VMs, in thousandths.
    pub(super) fn share_permille(&self, id: VmId, pool: PoolId, gpu: Option<&Gpu>) -> u32 {
        let node = gpu.and_then(|gpu| gpu.nodes.get(&pool));
        let (own, all) = self.weights(id, &self.rivals(id, node));
        let (pool_own, pool_all) = self.pool_weights(pool, gpu);
        let share = u128::from(own) * u128::from(pool_own) * 1000
            / (u128::from(all) * u128::from(pool_all)).max(1);
        u32::try_from(share.min(1000)).unwrap_or(1000)
    }

    /// Other VMs of the pool that compete on the node's GPU now.
    fn rivals(&self, id: VmId, node: Option<&Node>) -> Vec<VmId> {
        let members = node.map_or_else(Vec::new, |node| node.queue.keys());
        members.into_iter().filter(|&vm| vm != id).collect()
    }

    /// Weight of a VM, and the sum of this weight and the rivals' weights.
    fn weights(&self, id: VmId, rivals: &[VmId]) -> (u64, u64) {
        let weight = |vm: VmId| self.standing(vm).weight;
        let own = weight(id).max(1);
        let others = rivals.iter().map(|&vm| weight(vm));
        (own, others.fold(own, u64::saturating_add))
    }

    /// Weight of a pool on a GPU, and the sum of the weights of all competing pools, including this
    /// pool.
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
                killed_ns: gpu.dying.get(&session).map(|death| since(death.killed_ns)),
                late: self.is_late(gpu, session),
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

/// The GPUs of a gang; empty for other VMs.
fn gang(vm: &Vm) -> Vec<GpuId> {
    match vm.width() {
        0 | 1 => Vec::new(),
        width => (0..width).filter_map(|index| vm.seat_gpu(index)).collect(),
    }
}

#[cfg(test)]
mod tests;
