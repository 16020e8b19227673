//! Placement: the GPUs that serve a VM.

use super::Scheduler;
use crate::action::Refusal;
use crate::config::VmConfig;
use crate::id::{GpuId, PoolId, VmId};
use crate::model::{Gpu, Placement, Seat, Vm};

impl Scheduler {
    /// Whether a session of this VM would be admitted now, and on which GPU (for a gang, the first
    /// of its GPUs). Changes nothing: only the answer to [`crate::Event::SessionAdded`] is binding.
    ///
    /// # Errors
    /// [`Refusal`], the reason for which a session would be refused now.
    pub fn can_admit(&self, id: VmId) -> Result<GpuId, Refusal> {
        let gpus = self.admits(id)?;
        gpus.first().copied().ok_or(Refusal::NoGpu)
    }

    /// The GPUs of a VM's sessions, in ascending order. For a VM without sessions: all GPUs of a
    /// gang; otherwise the GPU with the lowest number that serves the VM. The GPU of a later
    /// session depends on the load of other VMs, and the answer must not reveal that load.
    #[must_use]
    pub fn gpus_for(&self, id: VmId) -> Vec<GpuId> {
        let Some(vm) = self.vms.get(&id) else {
            return Vec::new();
        };
        if let Some(placement) = &vm.placement {
            return placement.seats.iter().map(|seat| seat.gpu).collect();
        }
        if vm.config.gang {
            return self.gang_gpus(&vm.config).unwrap_or_default();
        }
        let mut serving = self
            .gpus
            .iter()
            .filter(|&(&id, gpu)| serves(gpu, id, &vm.config, vm.config.pool));
        serving.next().map(|(&id, _)| id).into_iter().collect()
    }

    /// The GPUs on which a session of this VM would be admitted.
    pub(super) fn admits(&self, id: VmId) -> Result<Vec<GpuId>, Refusal> {
        let vm = self
            .vms
            .get(&id)
            .filter(|vm| !vm.removed)
            .ok_or(Refusal::UnknownVm)?;
        if vm.quarantined() {
            return Err(Refusal::Quarantined);
        }
        if let Some(limit) = vm.config.limits.sessions
            && vm.sessions.len() >= limit as usize
        {
            return Err(Refusal::TooManySessions { limit });
        }
        if let Some(placement) = &vm.placement {
            let gpus: Vec<GpuId> = placement.seats.iter().map(|seat| seat.gpu).collect();
            return self.all_admit(vm, gpus);
        }
        if vm.config.gang {
            let gpus = self.gang_gpus(&vm.config)?;
            return self.all_admit(vm, gpus);
        }
        self.least_loaded(vm).map(|gpu| vec![gpu])
    }

    /// All GPUs of a gang: the GPUs that the VM's settings name, each of which must serve the pool,
    /// or all GPUs of the pool.
    fn gang_gpus(&self, config: &VmConfig) -> Result<Vec<GpuId>, Refusal> {
        let serving = self
            .gpus
            .iter()
            .filter(|&(&id, gpu)| serves(gpu, id, config, config.pool));
        let gpus: Vec<GpuId> = serving.map(|(&id, _)| id).collect();
        let named = config.gpus.as_ref().map_or(gpus.len(), |gpus| gpus.len());
        if gpus.is_empty() || gpus.len() < named {
            return Err(Refusal::NoGpu);
        }
        Ok(gpus)
    }

    /// Checks that each of these GPUs admits one more session and has memory for its context.
    fn all_admit(&self, vm: &Vm, gpus: Vec<GpuId>) -> Result<Vec<GpuId>, Refusal> {
        let mut contexts = 0_u64;
        for id in &gpus {
            let gpu = self.gpus.get(id).ok_or(Refusal::NoGpu)?;
            if !gpu.health.admits() || gpu.removed {
                return Err(Refusal::GpuUnavailable);
            }
            if gpu.memory_left() < gpu.config.context_bytes {
                return Err(Refusal::NoMemory);
            }
            contexts = contexts.saturating_add(gpu.config.context_bytes);
        }
        if vm.memory_left() < contexts {
            return Err(Refusal::NoMemory);
        }
        Ok(gpus)
    }

    /// The least loaded GPU that the VM may use. The load is the sum of the weights of the VMs
    /// placed there.
    fn least_loaded(&self, vm: &Vm) -> Result<GpuId, Refusal> {
        let quota = vm.memory_left();
        let mut refusal = Refusal::NoGpu;
        let mut best: Option<(u64, GpuId)> = None;
        for (&id, gpu) in &self.gpus {
            if !serves(gpu, id, &vm.config, vm.config.pool) {
                continue;
            }
            if !gpu.health.admits() {
                if refusal == Refusal::NoGpu {
                    refusal = Refusal::GpuUnavailable;
                }
                continue;
            }
            if gpu.memory_left().min(quota) < gpu.config.context_bytes {
                refusal = Refusal::NoMemory;
                continue;
            }
            let load = gpu.vms.iter().map(|&vm| self.standing(vm).weight).sum();
            if best.is_none_or(|best| (load, id) < best) {
                best = Some((load, id));
            }
        }
        best.map(|(_, id)| id).ok_or(refusal)
    }

    /// Places a VM without placement on `gpus` and divides the VM's lag among them.
    pub(super) fn place(&mut self, id: VmId, gpus: &[GpuId]) {
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        if vm.placement.is_some() {
            return;
        }
        let pool = vm.config.pool;
        let seat = |&gpu: &GpuId| Seat {
            gpu,
            joined: false,
            lag_ns: 0,
            overrun_ns: self.now_ns,
            had_ns: vm.count.gpu_ns,
        };
        let mut seats: Vec<Seat> = gpus.iter().map(seat).collect();
        divide(vm.lag_ns, &mut seats);
        vm.placement = Some(Placement { pool, seats });
        for &gpu_id in gpus {
            self.ensure_node(gpu_id, pool);
            if let Some(gpu) = self.gpus.get_mut(&gpu_id) {
                gpu.vms.insert(id);
            }
        }
    }

    /// Removes the placement of a VM. The VM must have no session left; therefore it has no lease
    /// and leaves all queues.
    pub(super) fn unplace(&mut self, id: VmId) {
        self.sync_vm(id);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        let Some(placement) = vm.placement.take() else {
            return;
        };
        vm.lag_ns = placement.seats.iter().map(|seat| seat.lag_ns).sum();
        for seat in &placement.seats {
            if let Some(gpu) = self.gpus.get_mut(&seat.gpu) {
                gpu.vms.remove(&id);
                gpu.held_off.remove(&id);
            }
            self.tidy_node(seat.gpu, placement.pool);
        }
    }

    /// Removes a VM from its queues and stores its lag of each queue. Returns its GPUs.
    fn leave_queues(&mut self, id: VmId) -> Vec<GpuId> {
        self.accrue_vm(id);
        let cap = crate::PoolConfig::claim_cap_ns(self.standing(id).slice_ns);
        let Some(placement) = self.vms.get_mut(&id).and_then(|vm| vm.placement.as_mut()) else {
            return Vec::new();
        };
        let pool = placement.pool;
        for seat in placement.seats.iter_mut().filter(|seat| seat.joined) {
            let gpu = self.gpus.get_mut(&seat.gpu);
            if let Some(node) = gpu.and_then(|gpu| gpu.nodes.get_mut(&pool)) {
                seat.lag_ns = node.queue.leave(id, cap).unwrap_or(seat.lag_ns);
                node.members -= 1;
                seat.joined = false;
            }
        }
        placement.seats.iter().map(|seat| seat.gpu).collect()
    }

    /// Gives the place of a removed VM to a new VM with the same number. The lag of the removed VM
    /// is dropped; the new VM has its own lag and weight.
    pub(super) fn succeed(&mut self, id: VmId) {
        self.leave_queues(id);
        if let Some(vm) = self.vms.get_mut(&id) {
            let lag_ns = vm.lag_ns;
            if let Some(placement) = &mut vm.placement {
                divide(lag_ns, &mut placement.seats);
            }
        }
        self.sync_vm(id);
    }

    /// Moves the VM to its new pool if this pool serves the VM's present GPUs. Otherwise the
    /// present sessions finish in the old pool.
    pub(super) fn move_pool(&mut self, id: VmId) {
        let Some(vm) = self.vms.get(&id) else { return };
        let Some(placement) = &vm.placement else {
            return;
        };
        let (old, new) = (placement.pool, vm.config.pool);
        let moves = placement.seats.iter().all(|seat| {
            self.gpus
                .get(&seat.gpu)
                .is_some_and(|gpu| serves(gpu, seat.gpu, &vm.config, new))
        });
        if new == old || !moves {
            return;
        }
        let gpus = self.leave_queues(id);
        if let Some(placement) = self.vms.get_mut(&id).and_then(|vm| vm.placement.as_mut()) {
            placement.pool = new;
        }
        for &gpu in &gpus {
            self.ensure_node(gpu, new);
        }
        self.sync_vm(id);
        for gpu in gpus {
            self.tidy_node(gpu, old);
        }
    }
}

/// Divides a lag among seats.
fn divide(lag_ns: i128, seats: &mut [Seat]) {
    let parts = (seats.len() as i128).max(1);
    let (part, mut rest) = (lag_ns.div_euclid(parts), lag_ns.rem_euclid(parts));
    for seat in seats {
        seat.lag_ns = part + std::mem::take(&mut rest);
    }
}

fn serves(gpu: &Gpu, id: GpuId, config: &VmConfig, pool: PoolId) -> bool {
    !gpu.removed
        && gpu.pools.contains(&pool)
        && config
            .gpus
            .as_ref()
            .is_none_or(|allowed| allowed.contains(&id))
}
