//! Places of VMs in the queues of their GPUs, and gangs that gather their GPUs one after the other.

use super::Scheduler;
use super::overruns::LOOK_NS;
use crate::config::PoolConfig;
use crate::id::{GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Lease, Node, Phase, Vm};
use crate::runqueue::{RunQueue, Standing};
use crate::stats::Cap;

/// State of a VM in the queue of one GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stand {
    /// The VM is not in the queue: it does not compete for the GPU.
    Out,
    /// The VM counts as a competitor but cannot be chosen: it runs, reserves the GPU, or may not
    /// run beside the present overrunner.
    Counts,
    /// The VM can be chosen.
    Ready,
}

impl Scheduler {
    /// Updates the VM's places in its queues after a change of its sessions, lease, throttle or
    /// quarantine.
    pub(super) fn sync_vm(&mut self, id: VmId) {
        let now = self.now_ns;
        let Some(width) = self.vms.get(&id).map(Vm::width) else {
            return;
        };
        for index in 0..width {
            if let Some(gpu) = self.vms.get(&id).and_then(|vm| vm.seat_gpu(index)) {
                self.accrue(gpu);
                self.dirty.insert(gpu);
            }
        }
        let mut wants = self.wants(id);
        if !wants {
            if self.abandon(id) {
                self.rethrottle(id);
            }
            // If GPU time is left, another session of the VM may gather GPUs now.
            wants = self.wants(id);
        }
        if let Some(vm) = self.vms.get_mut(&id) {
            note_phase(vm, now);
        }
        let standing = self.standing(id);
        for index in 0..width {
            self.sync_seat(id, index, wants, standing);
        }
    }

    /// Whether the VM may be chosen. For a gang, all its GPUs must also be usable, and the session
    /// that gathers GPUs must still exist.
    fn wants(&self, id: VmId) -> bool {
        let Some(vm) = self.vms.get(&id).filter(|vm| vm.is_ready()) else {
            return false;
        };
        let Some(placement) = &vm.placement else {
            return false;
        };
        if let [_] = placement.seats.as_slice() {
            return true;
        }
        let usable = placement.seats.iter().all(|seat| {
            self.gpus
                .get(&seat.gpu)
                .is_some_and(|gpu| gpu.health.grants())
        });
        let first = vm.runnable.first_key_value().map(|(_, &session)| session);
        usable && vm.gathering.is_none_or(|session| first == Some(session))
    }

    fn sync_seat(&mut self, id: VmId, index: usize, wants: bool, standing: Standing) {
        let now = self.now_ns;
        let held = self.held(id);
        let waits = wants && index == held;
        let held_off = waits && self.gives_way(id, index);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        let Some(placement) = &mut vm.placement else {
            return;
        };
        let pool = placement.pool;
        let Some(seat) = placement.seats.get_mut(index) else {
            return;
        };
        let gpu_id = seat.gpu;
        let Some(gpu) = self.gpus.get_mut(&gpu_id) else {
            return;
        };
        let stand = match vm.running {
            Some((_, true)) => Stand::Counts,
            Some((_, false)) => Stand::Out,
            None if vm.gathering.is_some() && index < held => Stand::Counts,
            None if held_off => Stand::Counts,
            None if waits => Stand::Ready,
            None => Stand::Out,
        };
        if held_off {
            gpu.held_off.insert(id, now.saturating_add(LOOK_NS));
        } else {
            gpu.held_off.remove(&id);
        }
        let Some(node) = gpu.nodes.get_mut(&pool) else {
            return;
        };
        let woke = stand == Stand::Ready && !seat.joined;
        if stand != Stand::Out && !seat.joined {
            node.queue.join(id, standing, seat.lag_ns);
            node.members += 1;
            seat.joined = true;
        }
        if stand == Stand::Out && seat.joined {
            let cap = PoolConfig::claim_cap_ns(standing.slice_ns);
            seat.lag_ns = node.queue.leave(id, cap).unwrap_or(seat.lag_ns);
            node.members -= 1;
            seat.joined = false;
        }
        if seat.joined {
            node.queue.set_cost(id, standing.cost_ns);
            node.queue.set_ready(id, stand == Stand::Ready, now);
        }
        self.sync_pool(gpu_id, pool);
        if woke {
            self.challenge(gpu_id, pool, id);
        }
    }

    /// Number of GPUs that a gang has gathered.
    pub(super) fn held(&self, id: VmId) -> usize {
        let gathering = self.vms.get(&id).and_then(|vm| vm.gathering);
        let lease = gathering.and_then(|session| self.sessions.get(&session)?.lease.as_ref());
        lease.map_or(0, |lease| lease.held)
    }

    /// Gives up the GPUs that a gang has gathered. They are free at once, because the worker does
    /// not have the lease yet.
    fn abandon(&mut self, id: VmId) -> bool {
        let Some(vm) = self.vms.get_mut(&id) else {
            return false;
        };
        let Some(session_id) = vm.gathering.take() else {
            return false;
        };
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return false;
        };
        let spent = session.lease.take().map_or(0, |lease| lease.charged_ns);
        for place in &session.places {
            if let Some(gpu) = self.gpus.get_mut(&place.gpu) {
                gpu.holders.retain(|&holder| holder != session_id);
            }
        }
        if vm.throttle.is_some_and(|limit| limit.cap == Cap::GpuTime) {
            // The GPU time did not suffice: the gang starts with more the next time.
            vm.gather_ns = vm.gather_ns.max(spent.saturating_mul(2));
        }
        true
    }

    /// Checks the GPU time of a gang, which pays for reserved GPUs while it waits for the next. If
    /// its GPU time is used up, gives up the reserved GPUs and returns true.
    pub(super) fn gathered_too_long(&mut self, id: VmId) -> bool {
        self.rethrottle(id);
        let over = self.vms.get(&id).is_some_and(|vm| vm.throttle.is_some());
        if over {
            self.sync_vm(id);
        }
        over
    }

    /// Ends gathering: the session has all its GPUs. If the VM has a remembered cost of gathering,
    /// updates it to twice the last cost, or to an eighth less than before if that is more.
    pub(super) fn stop_gathering(&mut self, id: VmId, session: SessionId) {
        let spent = self.lease(session).map_or(0, |lease| lease.charged_ns);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        vm.gathering = None;
        if vm.gather_ns > 0 {
            let less = vm.gather_ns - vm.gather_ns.div_ceil(8);
            vm.gather_ns = less.max(spent.saturating_mul(2));
        }
    }

    /// Updates the gangs placed on a GPU after a change of its health: they go on gathering, or
    /// give up.
    pub(super) fn sync_gangs(&mut self, gpu: GpuId) {
        self.sync_those(gpu, |vm| vm.width() > 1);
    }

    /// Checks again which VMs may run beside an overrunner, after an overrun began or ended.
    pub(super) fn sync_overrunners(&mut self, gpu: GpuId) {
        self.sync_those(gpu, |vm| vm.overran.is_some());
    }

    fn sync_those(&mut self, gpu: GpuId, which: impl Fn(&Vm) -> bool) {
        let here = self.gpus.get(&gpu).into_iter().flat_map(|gpu| &gpu.vms);
        let those: Vec<VmId> = here
            .copied()
            .filter(|vm| self.vms.get(vm).is_some_and(&which))
            .collect();
        for vm in those {
            self.sync_vm(vm);
        }
    }

    /// Marks the holders that a VM, which just woke up, may interrupt: the VM is due before them.
    fn challenge(&mut self, gpu_id: GpuId, pool: PoolId, challenger: VmId) {
        let Some(gpu) = self.gpus.get(&gpu_id) else {
            return;
        };
        for holder in gpu.holders.clone() {
            let Some(vm) = self.sessions.get(&holder).map(|session| session.vm) else {
                continue;
            };
            let granted = |lease: &&mut Lease| lease.granted() && lease.revoked_ns.is_none();
            if vm == challenger || !self.is_due_before(gpu_id, (pool, challenger), vm) {
                continue;
            }
            let Some(lease) = self.lease_mut(holder).filter(granted) else {
                continue;
            };
            lease.challenged = true;
            if self.pool_of(vm) == Some(pool)
                && let Some(gpu) = self.gpus.get_mut(&gpu_id)
                && let Some(node) = gpu.nodes.get_mut(&pool)
            {
                node.queue.hasten(challenger);
            }
        }
    }

    /// Whether a ready VM is eligible and has a deadline before the holder's.
    pub(super) fn is_due_before(&self, gpu: GpuId, other: (PoolId, VmId), holder: VmId) -> bool {
        let Some(pool) = self.vms.get(&holder).map(Vm::pool) else {
            return false;
        };
        let Some(gpu) = self.gpus.get(&gpu) else {
            return false;
        };
        if other.0 != pool {
            return gpu.top.is_due_before(other.0, pool);
        }
        gpu.nodes
            .get(&pool)
            .is_some_and(|node| node.queue.challenges(other.1, holder))
    }

    /// Updates the place of a pool in the queue of pools of a GPU.
    fn sync_pool(&mut self, gpu: GpuId, pool: PoolId) {
        let Some(config) = self.pools.get(&pool).map(|pool| &pool.config) else {
            return;
        };
        let (weight, slice) = (pool_weight(config.weight), config.slice());
        let claim_cap = PoolConfig::claim_cap_ns(slice);
        let Some(Gpu {
            nodes,
            top,
            pools,
            vms,
            ..
        }) = self.gpus.get_mut(&gpu)
        else {
            return;
        };
        let Some(node) = nodes.get_mut(&pool) else {
            return;
        };
        if node.members > 0 && !node.joined {
            top.join(pool, weight, node.lag_ns, slice);
            node.joined = true;
        }
        if node.members == 0 && node.joined {
            node.lag_ns = top.leave(pool, claim_cap);
            node.joined = false;
        }
        top.set_ready(pool, node.queue.ready_count() > 0);
        // A node must exist while VMs are placed on it, even if the pool is no longer assigned to
        // the GPU.
        let vms_here = || {
            let of_pool = |vm: &Vm| vm.placement.as_ref().is_some_and(|p| p.pool == pool);
            vms.iter().any(|vm| self.vms.get(vm).is_some_and(of_pool))
        };
        if node.members == 0 && !pools.contains(&pool) && !vms_here() {
            nodes.remove(&pool);
        }
    }

    /// Creates the node of a pool on a GPU if there is none.
    pub(super) fn ensure_node(&mut self, gpu: GpuId, pool: PoolId) {
        let Some(config) = self.pools.get(&pool).map(|pool| &pool.config) else {
            return;
        };
        let Some(gpu) = self.gpus.get_mut(&gpu) else {
            return;
        };
        gpu.nodes.entry(pool).or_insert_with(|| Node {
            queue: RunQueue::new(config),
            members: 0,
            lag_ns: 0,
            joined: false,
        });
    }

    /// Removes the node of a pool on a GPU if it is not needed any more.
    pub(super) fn tidy_node(&mut self, gpu: GpuId, pool: PoolId) {
        self.sync_pool(gpu, pool);
    }

    /// The session at position `index` among the holders of a GPU. Its lease may be revoked or not
    /// granted yet.
    pub(super) fn holder(&self, gpu: GpuId, index: usize) -> Option<SessionId> {
        self.gpus.get(&gpu)?.holders.get(index).copied()
    }
}

/// Weight of a pool, clamped to its bounds.
pub(super) fn pool_weight(weight: u32) -> u64 {
    u64::from(weight.clamp(1, crate::ClassWeights::MAX))
}

/// Adds the time since the last call to the counter of the VM's phase, and sets the present phase.
/// Counts how often a rate limit keeps waiting work from running.
pub(super) fn note_phase(vm: &mut Vm, now: u64) {
    let passed = now.saturating_sub(vm.phase_ns);
    let before = vm.phase;
    match before {
        Phase::Content => {}
        Phase::Waiting => vm.count.wait_ns += passed,
        Phase::Throttled => vm.count.throttled_ns += passed,
    }
    vm.phase_ns = now;
    vm.phase = if vm.runnable.is_empty() || vm.running.is_some() {
        Phase::Content
    } else if let Some(throttle) = vm.throttle {
        if before != Phase::Throttled {
            vm.count.rate_limited += 1;
            vm.count.rate_limited_by = Some(throttle.cap);
        }
        Phase::Throttled
    } else {
        Phase::Waiting
    };
}
