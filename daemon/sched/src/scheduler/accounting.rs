//! Where time goes: charging leases, the GPU's account, and a VM's place in the queues.

use super::Scheduler;
use crate::action::Ignored;
use crate::id::{GpuId, VmId};
use crate::model::{Gpu, Node, Phase, Vm, VmCounters};
use crate::runqueue::Standing;

impl Scheduler {
    /// Charges the time since the last call. Every change of who holds, waits or pays comes after this.
    pub(super) fn accrue(&mut self, id: GpuId) {
        let now = self.now_ns;
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        let passed = now.saturating_sub(gpu.settled_ns);
        if passed == 0 {
            return;
        }
        gpu.settled_ns = now;
        let payers = gpu.leases.iter().filter(|lease| lease.charged()).count() as u64;
        if payers == 0 {
            if gpu.leases.is_empty() && gpu.top.has_ready() {
                gpu.account.switch_ns += passed;
            } else {
                gpu.account.idle_ns += passed;
            }
            return;
        }
        gpu.account.charged_ns += passed;
        // Overlapping holders pay equal parts; what cannot be divided falls to the first.
        let mut part = passed / payers + passed % payers;
        let Gpu {
            leases, nodes, top, ..
        } = gpu;
        for lease in leases.iter_mut().filter(|lease| lease.charged()) {
            lease.charged_ns += part;
            if let Some(session) = self.sessions.get_mut(&lease.session) {
                session.gpu_ns += part;
            }
            if let Some(vm) = self.vms.get_mut(&lease.vm) {
                vm.count.gpu_ns += part;
                if let Some(bucket) = &mut vm.buckets.gpu_time {
                    bucket.charge(part, now);
                }
                if let Some((_, pool)) = vm.placement {
                    top.charge(pool, part);
                    if let Some(node) = nodes.get_mut(&pool) {
                        node.queue.charge(lease.vm, part);
                    }
                }
            }
            part = passed / payers;
        }
        debug_assert_eq!(
            gpu.account.charged_ns + gpu.account.idle_ns + gpu.account.switch_ns,
            now - gpu.since_ns,
            "every nanosecond of the GPU is accounted for once"
        );
    }

    /// Puts a VM where its state says it belongs: outside the queues, in them as one that runs, or in
    /// them as one that can be chosen. To be called after every change of its sessions, lease, throttle
    /// or quarantine.
    pub(super) fn sync_vm(&mut self, id: VmId) {
        let now = self.now_ns;
        let Some(placement) = self.vms.get(&id).map(|vm| vm.placement) else {
            return;
        };
        if let Some((gpu, _)) = placement {
            self.accrue(gpu);
            self.dirty.insert(gpu);
        }
        let standing = self.standing(id);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        note_phase(vm, now);
        let Some((gpu, pool)) = placement else { return };
        let Some(node) = self
            .gpus
            .get_mut(&gpu)
            .and_then(|gpu| gpu.nodes.get_mut(&pool))
        else {
            return;
        };
        let ready = vm.is_ready();
        let member = ready || vm.running.is_some_and(|(_, charged)| charged);
        if member && !vm.joined {
            node.queue.join(id, standing, vm.lag_ns);
            node.members += 1;
            vm.joined = true;
        }
        if !member && vm.joined {
            vm.lag_ns = node.queue.leave(id).unwrap_or(vm.lag_ns);
            node.members -= 1;
            vm.joined = false;
        }
        if vm.joined {
            node.queue.set_ready(id, ready, now);
        }
        self.sync_pool(gpu, pool);
    }

    /// The same for a pool among the pools of a GPU.
    fn sync_pool(&mut self, gpu: GpuId, pool: crate::PoolId) {
        let Some(config) = self.pools.get(&pool).map(|pool| &pool.config) else {
            return;
        };
        let (weight, slice) = (pool_weight(config.weight), config.slice());
        let claim_cap = config.claim_cap_ns();
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
        // A node outlives its assignment as long as VMs are placed on it.
        let vms_here = || {
            vms.iter().any(|vm| {
                self.vms
                    .get(vm)
                    .is_some_and(|vm| vm.placement == Some((gpu, pool)))
            })
        };
        if node.members == 0 && !pools.contains(&pool) && !vms_here() {
            nodes.remove(&pool);
        }
    }

    /// The node of a pool on a GPU, made if it is not there.
    pub(super) fn ensure_node(&mut self, gpu: GpuId, pool: crate::PoolId) {
        let Some(config) = self.pools.get(&pool).map(|pool| &pool.config) else {
            return;
        };
        let Some(gpu) = self.gpus.get_mut(&gpu) else {
            return;
        };
        gpu.nodes.entry(pool).or_insert_with(|| Node {
            queue: crate::runqueue::RunQueue::new(config),
            members: 0,
            lag_ns: 0,
            joined: false,
        });
    }

    /// Drops a node that nobody needs any more.
    pub(super) fn tidy_node(&mut self, gpu: GpuId, pool: crate::PoolId) {
        self.sync_pool(gpu, pool);
    }

    /// Class and weight of a VM now.
    pub(super) fn standing(&self, id: VmId) -> Standing {
        let Some(vm) = self.vms.get(&id) else {
            return Standing {
                class: crate::Class::Low,
                weight: 1,
            };
        };
        let class = vm.class();
        let pool = vm.placement.map_or(vm.config.pool, |(_, pool)| pool);
        let own = self
            .pools
            .get(&pool)
            .and_then(|pool| pool.config.class_weights);
        let weights = own.unwrap_or(self.config.class_weights);
        let factor = vm
            .config
            .factor_milli
            .clamp(1, crate::VmConfig::MAX_FACTOR_MILLI);
        Standing {
            class,
            weight: u64::from(weights.of(class)) * u64::from(factor),
        }
    }

    /// Tells a VM's queue of a new class, factor or demotion.
    pub(super) fn refresh_standing(&mut self, id: VmId) {
        let now = self.now_ns;
        let standing = self.standing(id);
        let Some((gpu, pool)) = self.vms.get(&id).and_then(|vm| vm.placement) else {
            return;
        };
        self.accrue(gpu);
        self.dirty.insert(gpu);
        if let Some(node) = self
            .gpus
            .get_mut(&gpu)
            .and_then(|gpu| gpu.nodes.get_mut(&pool))
        {
            node.queue.update(id, standing, now);
        }
    }

    /// The same for all VMs of some pools.
    pub(super) fn refresh_standings(&mut self, of: impl Fn(crate::PoolId) -> bool) {
        let placed = |vm: &Vm| vm.placement.is_some_and(|(_, pool)| of(pool));
        let all: Vec<VmId> = self
            .vms
            .iter()
            .filter(|(_, vm)| placed(vm))
            .map(|(id, _)| *id)
            .collect();
        for id in all {
            self.refresh_standing(id);
        }
    }
}

impl Scheduler {
    /// Counters begin anew, of one VM or of everything.
    pub(super) fn reset_stats(&mut self, of: Option<VmId>) -> Result<(), Ignored> {
        let now = self.now_ns;
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        for &gpu in &gpus {
            self.accrue(gpu);
        }
        if let Some(vm) = of {
            let vm = self.vms.get_mut(&vm).ok_or(Ignored::UnknownVm)?;
            vm.reset(now);
            return Ok(());
        }
        for vm in self.vms.values_mut() {
            vm.reset(now);
        }
        for gpu in self.gpus.values_mut() {
            gpu.since_ns = now;
            gpu.settled_ns = now;
            gpu.account = Default::default();
            gpu.handoffs = 0;
            gpu.handoff = Default::default();
        }
        Ok(())
    }
}

impl Vm {
    fn reset(&mut self, now_ns: u64) {
        note_phase(self, now_ns);
        self.count = VmCounters {
            memory_peak: self.memory,
            pinned_peak: self.pinned,
            ..VmCounters::default()
        };
    }
}

/// A pool's weight, held within its bounds.
pub(super) fn pool_weight(weight: u32) -> u64 {
    u64::from(weight.clamp(1, crate::ClassWeights::MAX))
}

/// Adds the time since the last change to what the VM spent it on.
fn note_phase(vm: &mut Vm, now: u64) {
    let passed = now.saturating_sub(vm.phase_ns);
    match vm.phase {
        Phase::Content => {}
        Phase::Waiting => vm.count.wait_ns += passed,
        Phase::Throttled => vm.count.throttled_ns += passed,
    }
    vm.phase_ns = now;
    vm.phase = if vm.runnable.is_empty() || vm.running.is_some() {
        Phase::Content
    } else if vm.throttle.is_some() {
        Phase::Throttled
    } else {
        Phase::Waiting
    };
}
