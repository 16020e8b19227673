//! Settings that the administrator changes. Each setting may change while VMs run.

use super::Scheduler;
use crate::action::{Ignored, KillCause};
use crate::bucket::Bucket;
use crate::config::{GpuConfig, GpuHealth, PoolConfig, Rate, VmConfig};
use crate::event::Past;
use crate::id::{GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Pool, Vm};
use crate::runqueue::RunQueue;
use crate::timers::TimerKey;

impl Scheduler {
    pub(super) fn add_gpu(
        &mut self,
        id: GpuId,
        config: GpuConfig,
        health: GpuHealth,
    ) -> Result<(), Ignored> {
        if let Some(gpu) = self.gpus.get_mut(&id) {
            if !gpu.removed {
                return Err(Ignored::Exists);
            }
            // The GPU was removed and is added again before its last worker has exited.
            gpu.removed = false;
            gpu.config = config;
            return self.gpu_state(id, health);
        }
        self.gpus.insert(id, Gpu::new(config, health, self.now_ns));
        Ok(())
    }

    pub(super) fn set_gpu(&mut self, id: GpuId, config: GpuConfig) -> Result<(), Ignored> {
        self.gpu_mut(id)?.config = config;
        Ok(())
    }

    pub(super) fn remove_gpu(&mut self, id: GpuId) -> Result<(), Ignored> {
        self.accrue(id);
        let gpu = self.gpu_mut(id)?;
        gpu.removed = true;
        gpu.health = GpuHealth::Lost;
        gpu.canary = None;
        let sessions = gpu.sessions.iter().copied().collect();
        self.kill_all(sessions, KillCause::GpuLost);
        self.dirty.insert(id);
        Ok(())
    }

    pub(super) fn forget_gpu(&mut self, id: GpuId) {
        self.gpus.remove(&id);
        self.timers.set(TimerKey::Gpu(id), None);
    }

    pub(super) fn gpu_state(&mut self, id: GpuId, health: GpuHealth) -> Result<(), Ignored> {
        self.accrue(id);
        let gpu = self.gpu_mut(id)?;
        gpu.health = health;
        self.sync_gangs(id);
        let gpu = self.gpu_mut(id)?;
        if health == GpuHealth::Lost {
            gpu.canary = None;
            let sessions = gpu.sessions.iter().copied().collect();
            self.kill_all(sessions, KillCause::GpuLost);
        }
        self.dirty.insert(id);
        Ok(())
    }

    pub(super) fn add_pool(&mut self, id: PoolId, config: PoolConfig) -> Result<(), Ignored> {
        if self.pools.contains_key(&id) {
            return Err(Ignored::Exists);
        }
        self.pools.insert(
            id,
            Pool {
                config,
                vms: Default::default(),
            },
        );
        Ok(())
    }

    pub(super) fn set_pool(&mut self, id: PoolId, config: &PoolConfig) -> Result<(), Ignored> {
        let pool = self.pools.get_mut(&id).ok_or(Ignored::UnknownPool)?;
        pool.config.clone_from(config);
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        for gpu_id in gpus {
            self.accrue(gpu_id);
            self.rebuild_node(gpu_id, id, config);
            let Some(gpu) = self.gpus.get_mut(&gpu_id) else {
                continue;
            };
            if !gpu.nodes.contains_key(&id) {
                continue;
            }
            gpu.top
                .update(id, super::seats::pool_weight(config.weight), config.slice());
            for holder in gpu.holders.clone() {
                self.shorten(holder);
            }
            self.dirty.insert(gpu_id);
        }
        self.refresh_standings(|pool| pool == id);
        Ok(())
    }

    /// Shortens a running lease after a change of the slice: it ends at most one new slice from
    /// now.
    fn shorten(&mut self, id: SessionId) {
        let Some(vm) = self.sessions.get(&id).and_then(|s| self.vms.get(&s.vm)) else {
            return;
        };
        let latest = self.now_ns.saturating_add(self.slice_of(vm));
        if let Some(lease) = self.lease_mut(id) {
            lease.slice_end_ns = lease.slice_end_ns.min(latest);
        }
    }

    /// Replaces a node's queue after a change of the pool's policy. The VMs move over with their
    /// lags.
    fn rebuild_node(&mut self, gpu: GpuId, pool: PoolId, config: &PoolConfig) {
        let now = self.now_ns;
        let Some(node) = self
            .gpus
            .get_mut(&gpu)
            .and_then(|gpu| gpu.nodes.get_mut(&pool))
        else {
            return;
        };
        if node.queue.policy() == config.policy {
            node.queue.configure(config, now);
            return;
        }
        let old = std::mem::replace(&mut node.queue, RunQueue::new(config));
        let mut members = Vec::new();
        for id in old.keys() {
            let standing = self.standing(id);
            let placement = self.vms.get_mut(&id).and_then(|vm| vm.placement.as_mut());
            let seats = placement.into_iter().flat_map(|p| &mut p.seats);
            for seat in seats.filter(|seat| seat.gpu == gpu) {
                seat.lag_ns = old.lag_ns(id).unwrap_or(seat.lag_ns);
                members.push((id, standing, seat.lag_ns));
            }
        }
        if let Some(node) = self
            .gpus
            .get_mut(&gpu)
            .and_then(|gpu| gpu.nodes.get_mut(&pool))
        {
            node.queue.fill(&members);
        }
        for (id, _, _) in members {
            self.sync_vm(id);
        }
    }

    pub(super) fn remove_pool(&mut self, id: PoolId) -> Result<(), Ignored> {
        let pool = self.pools.get(&id).ok_or(Ignored::UnknownPool)?;
        let lived_in = self
            .vms
            .values()
            .any(|vm| vm.placement.is_some() && vm.pool() == id);
        if !pool.vms.is_empty() || lived_in {
            return Err(Ignored::PoolInUse);
        }
        for gpu in self.gpus.values_mut() {
            gpu.pools.remove(&id);
            gpu.nodes.remove(&id);
        }
        self.pools.remove(&id);
        Ok(())
    }

    pub(super) fn assign_gpu(&mut self, gpu: GpuId, pool: PoolId) -> Result<(), Ignored> {
        if !self.pools.contains_key(&pool) {
            return Err(Ignored::UnknownPool);
        }
        self.gpu_mut(gpu)?.pools.insert(pool);
        Ok(())
    }

    pub(super) fn unassign_gpu(&mut self, gpu: GpuId, pool: PoolId) -> Result<(), Ignored> {
        self.gpu_mut(gpu)?.pools.remove(&pool);
        self.tidy_node(gpu, pool);
        Ok(())
    }

    pub(super) fn add_vm(
        &mut self,
        id: VmId,
        config: VmConfig,
        past: &Past,
    ) -> Result<(), Ignored> {
        self.accrue_vm(id);
        let pool = self
            .pools
            .get_mut(&config.pool)
            .ok_or(Ignored::UnknownPool)?;
        let fresh = Vm::new(config, past, self.now_ns);
        if let Some(old) = self.vms.get_mut(&id) {
            if !old.removed {
                return Err(Ignored::Exists);
            }
            // The number is used again before the last worker of the old VM has exited. The new VM
            // inherits only the memory that those workers still have.
            pool.vms.insert(id);
            let Vm {
                placement,
                sessions,
                runnable,
                running,
                gathering,
                memory,
                pinned,
                pinned_left,
                phase,
                ..
            } = old.clone();
            *old = Vm {
                placement,
                sessions,
                runnable,
                running,
                gathering,
                memory,
                pinned,
                pinned_left,
                phase,
                ..fresh
            };
            for session in &old.sessions {
                if let Some(session) = self.sessions.get_mut(session) {
                    session.former = true;
                }
            }
            self.arm_vm(id);
            self.succeed(id);
            self.move_pool(id);
            return Ok(());
        }
        pool.vms.insert(id);
        self.vms.insert(id, fresh);
        self.arm_vm(id);
        Ok(())
    }

    pub(super) fn set_vm(&mut self, id: VmId, config: VmConfig) -> Result<(), Ignored> {
        let now = self.now_ns;
        if !self.pools.contains_key(&config.pool) {
            return Err(Ignored::UnknownPool);
        }
        // The use until now is charged under the old limits.
        self.accrue_vm(id);
        let vm = self
            .vms
            .get_mut(&id)
            .filter(|vm| !vm.removed)
            .ok_or(Ignored::UnknownVm)?;
        let (old, new) = (&vm.config.limits, &config.limits);
        let recredit = old.calls != new.calls || old.bytes != new.bytes;
        set_bucket(&mut vm.buckets.calls, new.calls, now);
        set_bucket(&mut vm.buckets.bytes, new.bytes, now);
        set_bucket(&mut vm.buckets.gpu_time, new.gpu_time, now);
        let (old_pool, new_pool) = (vm.config.pool, config.pool);
        vm.config = config;
        let running = vm.running;
        if let Some(pool) = self.pools.get_mut(&old_pool) {
            pool.vms.remove(&id);
        }
        if let Some(pool) = self.pools.get_mut(&new_pool) {
            pool.vms.insert(id);
        }
        self.move_pool(id);
        self.refresh_standing(id);
        self.rethrottle(id);
        self.sync_vm(id);
        if let Some((session, _)) = running {
            self.shorten(session);
            // The credit of the lease was computed from the old rates.
            if recredit {
                self.revoke(session);
            }
        }
        Ok(())
    }

    pub(super) fn remove_vm(&mut self, id: VmId) -> Result<(), Ignored> {
        let vm = self
            .vms
            .get_mut(&id)
            .filter(|vm| !vm.removed)
            .ok_or(Ignored::UnknownVm)?;
        vm.removed = true;
        let pool = vm.config.pool;
        let sessions: Vec<_> = vm.sessions.iter().copied().collect();
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.vms.remove(&id);
        }
        self.kill_all(sessions, KillCause::VmRemoved);
        self.forget_vm(id);
        Ok(())
    }

    /// Deletes the record of a removed VM that has no sessions and no pinned memory.
    pub(super) fn forget_vm(&mut self, id: VmId) {
        let stays = |vm: &Vm| !vm.removed || !vm.sessions.is_empty() || vm.pinned_left > 0;
        if self.vms.get(&id).is_none_or(stays) {
            return;
        }
        self.vms.remove(&id);
        self.timers.set(TimerKey::Vm(id), None);
    }
}

fn set_bucket(bucket: &mut Option<Bucket>, rate: Option<Rate>, now: u64) {
    match (bucket.as_mut(), rate) {
        (Some(bucket), Some(rate)) => bucket.set_rate(rate, now),
        (None, Some(rate)) => *bucket = Some(Bucket::new(rate, now)),
        (_, None) => *bucket = None,
    }
}
