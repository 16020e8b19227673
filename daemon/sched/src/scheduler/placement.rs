//! Which GPU serves a VM.

use super::Scheduler;
use crate::action::Refusal;
use crate::config::VmConfig;
use crate::id::{GpuId, PoolId, VmId};
use crate::model::Gpu;

impl Scheduler {
    /// Would a session of this VM be admitted, and on which GPU? Changes nothing: the answer that counts
    /// is the one to [`crate::Event::SessionAdded`].
    pub fn can_admit(&self, id: VmId) -> Result<GpuId, Refusal> {
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
        let quota_left = vm
            .config
            .limits
            .memory_bytes
            .map(|quota| quota.saturating_sub(vm.memory));
        let fits = |gpu: &Gpu| {
            let needed = gpu.config.context_bytes;
            quota_left.is_none_or(|left| left >= needed) && gpu.memory_left() >= needed
        };
        if let Some((here, _)) = vm.placement {
            let gpu = self.gpus.get(&here).ok_or(Refusal::NoGpu)?;
            return match (gpu.health.admits() && !gpu.removed, fits(gpu)) {
                (false, _) => Err(Refusal::GpuUnavailable),
                (_, false) => Err(Refusal::NoMemory),
                _ => Ok(here),
            };
        }
        self.least_loaded(&vm.config, fits)
    }

    /// The least loaded GPU (by the weights of the VMs placed there) that the VM may use.
    fn least_loaded(
        &self,
        config: &VmConfig,
        fits: impl Fn(&Gpu) -> bool,
    ) -> Result<GpuId, Refusal> {
        let mut refusal = Refusal::NoGpu;
        let mut best: Option<(u64, GpuId)> = None;
        for (&id, gpu) in &self.gpus {
            if !serves(gpu, id, config, config.pool) {
                continue;
            }
            if !gpu.health.admits() {
                if refusal == Refusal::NoGpu {
                    refusal = Refusal::GpuUnavailable;
                }
                continue;
            }
            if !fits(gpu) {
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

    /// Places a VM that has no placement.
    pub(super) fn place(&mut self, id: VmId, gpu_id: GpuId) {
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        if vm.placement.is_some() {
            return;
        }
        let pool = vm.config.pool;
        vm.placement = Some((gpu_id, pool));
        self.ensure_node(gpu_id, pool);
        if let Some(gpu) = self.gpus.get_mut(&gpu_id) {
            gpu.vms.insert(id);
        }
    }

    /// Ends the placement of a VM without sessions (and so without lease and place in a queue).
    pub(super) fn unplace(&mut self, id: VmId) {
        self.sync_vm(id);
        let Some(vm) = self.vms.get_mut(&id) else {
            return;
        };
        let Some((gpu_id, pool)) = vm.placement.take() else {
            return;
        };
        if let Some(gpu) = self.gpus.get_mut(&gpu_id) {
            gpu.vms.remove(&id);
        }
        self.tidy_node(gpu_id, pool);
    }

    /// After a change of pool: moves the VM to its new pool where that one is served by the same GPU.
    /// Elsewhere its sessions finish where they are.
    pub(super) fn move_pool(&mut self, id: VmId) {
        let Some(vm) = self.vms.get(&id) else { return };
        let Some((gpu_id, old)) = vm.placement else {
            return;
        };
        let new = vm.config.pool;
        let moves = self
            .gpus
            .get(&gpu_id)
            .is_some_and(|gpu| serves(gpu, gpu_id, &vm.config, new));
        if new == old || !moves {
            return;
        }
        self.accrue(gpu_id);
        if let Some(node) = self
            .gpus
            .get_mut(&gpu_id)
            .and_then(|gpu| gpu.nodes.get_mut(&old))
            && let Some(vm) = self.vms.get_mut(&id)
            && vm.joined
        {
            vm.lag_ns = node.queue.leave(id).unwrap_or(vm.lag_ns);
            node.members -= 1;
            vm.joined = false;
        }
        if let Some(vm) = self.vms.get_mut(&id) {
            vm.placement = Some((gpu_id, new));
        }
        self.ensure_node(gpu_id, new);
        self.sync_vm(id);
        self.tidy_node(gpu_id, old);
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
