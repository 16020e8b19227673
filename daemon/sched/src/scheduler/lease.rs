//! Leases: choosing, granting, asking back, taking back.

use super::Scheduler;
use crate::action::{Action, Ignored, Terms};
use crate::event::{Depth, Usage};
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Lease, Use};
use crate::timers::TimerKey;

impl Scheduler {
    /// After every event that touched a GPU: grants what can be granted, asks back what is due, tells
    /// the holders who waits, and sets the GPU's timer.
    pub(super) fn settle(&mut self, id: GpuId) {
        self.accrue(id);
        while self.gpus.get(&id).is_some_and(Gpu::is_free) {
            let Some((vm, session)) = self.choose(id) else {
                break;
            };
            self.grant(id, vm, session);
        }
        let holders = self.gpus.get(&id).map_or(0, |gpu| gpu.leases.len());
        for index in 0..holders {
            self.press(id, index);
        }
        let at = self.next_watch(id);
        self.timers.set(TimerKey::Gpu(id), at);
        if self
            .gpus
            .get(&id)
            .is_some_and(|gpu| gpu.removed && gpu.sessions.is_empty())
        {
            self.forget_gpu(id);
        }
    }

    /// Who would be granted a free GPU now.
    #[must_use]
    pub fn choose_next(&mut self, gpu: GpuId) -> Option<SessionId> {
        self.choose(gpu).map(|(_, session)| session)
    }

    fn choose(&mut self, id: GpuId) -> Option<(VmId, SessionId)> {
        let Gpu { top, nodes, .. } = self.gpus.get_mut(&id)?;
        let vm = nodes.get_mut(&top.peek()?)?.queue.peek(self.now_ns)?;
        let (_, &session) = self.vms.get(&vm)?.runnable.first_key_value()?;
        Some((vm, session))
    }

    fn grant(&mut self, id: GpuId, vm_id: VmId, session_id: SessionId) {
        let now = self.now_ns;
        let epoch = Epoch(self.next_epoch);
        self.next_epoch += 1;
        self.unqueue(session_id);
        let credits = self.lend(session_id);
        let (slice, hold) = self.slice_and_hold(vm_id);
        if let Some(session) = self.sessions.get_mut(&session_id) {
            // Work of an earlier lease was drained before that was returned.
            session.progress_ns = now;
            if let Some(vm) = self.vms.get_mut(&vm_id) {
                vm.running = Some((session_id, true));
                vm.sliced = false;
                vm.count.grants += 1;
                vm.count
                    .wait
                    .record(now.saturating_sub(session.waiting_since_ns));
            }
        }
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        if gpu.last_holder.replace(session_id) != Some(session_id) {
            gpu.handoffs += 1;
        }
        let beside = !gpu.leases.is_empty();
        gpu.leases.push(Lease {
            session: session_id,
            vm: vm_id,
            epoch,
            granted_ns: now,
            slice_end_ns: now.saturating_add(slice),
            charged_ns: 0,
            usage: Use::Active,
            wanted: false,
            revoked_ns: None,
            overrun: false,
        });
        self.sync_vm(vm_id);
        let wanted = self.others_wait(id, vm_id);
        let Some(lease) = self
            .gpus
            .get_mut(&id)
            .and_then(|gpu| gpu.lease_of(session_id))
        else {
            return;
        };
        lease.wanted = wanted;
        let terms = Terms {
            gpu: id,
            also: Vec::new(),
            session: session_id,
            epoch,
            slice_end_ns: lease.slice_end_ns,
            credits,
            hold_ns: hold,
            wanted,
        };
        self.out.push(if beside {
            Action::GrantBeside(terms)
        } else {
            Action::Grant(terms)
        });
    }

    fn slice_and_hold(&self, vm: VmId) -> (u64, u64) {
        let pool = self
            .vms
            .get(&vm)
            .and_then(|vm| vm.placement)
            .map(|(_, pool)| pool);
        let config = pool
            .and_then(|pool| self.pools.get(&pool))
            .map(|pool| &pool.config);
        config.map_or((crate::MILLIS, 0), |config| {
            (config.slice(), config.hold_ns)
        })
    }

    /// Does anybody but the holder (a session of `vm`) wait for this GPU?
    pub(super) fn others_wait(&self, id: GpuId, vm: VmId) -> bool {
        let Some(gpu) = self.gpus.get(&id) else {
            return false;
        };
        let brother = |vm: &crate::model::Vm| {
            !vm.runnable.is_empty() && vm.throttle.is_none() && !vm.quarantined()
        };
        gpu.top.has_ready() || self.vms.get(&vm).is_some_and(brother)
    }

    /// Tells one holder whether it is wanted, and asks its lease back if that is due.
    fn press(&mut self, id: GpuId, index: usize) {
        let now = self.now_ns;
        let Some(lease) = self.gpus.get(&id).and_then(|gpu| gpu.leases.get(index)) else {
            return;
        };
        let (session, epoch, vm) = (lease.session, lease.epoch, lease.vm);
        let wanted = self.others_wait(id, vm);
        let Some(lease) = self
            .gpus
            .get_mut(&id)
            .and_then(|gpu| gpu.leases.get_mut(index))
        else {
            return;
        };
        if lease.revoked_ns.is_some() {
            lease.wanted = wanted;
            return;
        }
        let turned = lease.wanted != wanted;
        lease.wanted = wanted;
        let (usage, over) = (lease.usage, lease.slice_end_ns <= now);
        let held_back = self.vms.get(&vm).is_some_and(|vm| vm.throttle.is_some());
        let served = self
            .sessions
            .get(&session)
            .is_some_and(crate::model::Session::served);
        let end = match usage {
            _ if held_back || !served => true,
            _ if !wanted => false,
            Use::Parked => true,
            Use::Hold { until_ns } => until_ns <= now,
            Use::Active if over => !self.slice_over(id, vm, session, epoch),
            Use::Active => self.is_preempted(id, vm),
        };
        if end {
            self.revoke(id, session);
        } else if turned {
            self.out.push(Action::Want {
                gpu: id,
                session,
                epoch,
                wanted,
            });
        }
    }

    /// At the end of a slice that others wait for: true if the holder is the next again and goes on.
    fn slice_over(&mut self, id: GpuId, vm: VmId, session: SessionId, epoch: Epoch) -> bool {
        let now = self.now_ns;
        if !self.holder_wins(id, vm) {
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.sliced = true;
            }
            return false;
        }
        let (slice, _) = self.slice_and_hold(vm);
        let slice_end_ns = now.saturating_add(slice);
        if let Some(lease) = self.gpus.get_mut(&id).and_then(|gpu| gpu.lease_of(session)) {
            lease.slice_end_ns = slice_end_ns;
        }
        self.out.push(Action::Extend {
            gpu: id,
            session,
            epoch,
            slice_end_ns,
        });
        true
    }

    fn holder_wins(&mut self, id: GpuId, vm_id: VmId) -> bool {
        let now = self.now_ns;
        let Some(vm) = self.vms.get(&vm_id) else {
            return false;
        };
        let Some((_, pool)) = vm.placement else {
            return false;
        };
        let alone_in_vm = vm.runnable.is_empty();
        let Some(Gpu { top, nodes, .. }) = self.gpus.get_mut(&id) else {
            return false;
        };
        let Some(node) = nodes.get_mut(&pool) else {
            return false;
        };
        let pool_wins = match top.peek() {
            Some(best) if best == pool => true,
            _ => top.holder_wins(pool),
        };
        pool_wins && alone_in_vm && node.queue.holder_wins(vm_id, now)
    }

    fn is_preempted(&mut self, id: GpuId, vm: VmId) -> bool {
        let now = self.now_ns;
        let Some((_, pool)) = self.vms.get(&vm).and_then(|vm| vm.placement) else {
            return false;
        };
        let node = self
            .gpus
            .get_mut(&id)
            .and_then(|gpu| gpu.nodes.get_mut(&pool));
        node.is_some_and(|node| node.queue.preempts(vm, now))
    }

    /// Asks a lease back. A parked one is charged again from here on, so that keeping it costs.
    pub(super) fn revoke(&mut self, id: GpuId, session: SessionId) {
        let now = self.now_ns;
        self.accrue(id);
        let Some(lease) = self.gpus.get_mut(&id).and_then(|gpu| gpu.lease_of(session)) else {
            return;
        };
        if lease.revoked_ns.is_some() {
            return;
        }
        lease.revoked_ns = Some(now);
        lease.usage = Use::Active;
        let (epoch, vm) = (lease.epoch, lease.vm);
        self.out.push(Action::Revoke {
            gpu: id,
            session,
            epoch,
        });
        self.dirty.insert(id);
        self.set_charged(vm, true);
    }

    /// Says whether the VM's lease is paid for.
    pub(super) fn set_charged(&mut self, vm: VmId, charged: bool) {
        if let Some(vm) = self.vms.get_mut(&vm)
            && let Some(running) = &mut vm.running
        {
            running.1 = charged;
        }
        self.sync_vm(vm);
    }

    pub(super) fn released(
        &mut self,
        id: SessionId,
        epoch: Epoch,
        used: Usage,
        depth: Depth,
    ) -> Result<(), Ignored> {
        let session = self.session_mut(id)?;
        let gpu = session.gpu;
        let lease = self.gpu_mut(gpu)?.lease_of(id).ok_or(Ignored::StaleEpoch)?;
        if lease.epoch != epoch {
            return Err(Ignored::StaleEpoch);
        }
        if let Some(session) = self.sessions.get_mut(&id) {
            session.completed = session.submitted;
            session.soft_noted = false;
            session.depth = depth;
        }
        // First the queue, then the lease: a VM that has more work never leaves the competition between.
        self.enqueue(id);
        self.end_lease(gpu, id, Some(used));
        Ok(())
    }

    /// Takes a lease off the books. `used` is `None` when its worker died.
    pub(super) fn end_lease(&mut self, id: GpuId, session: SessionId, used: Option<Usage>) {
        let now = self.now_ns;
        self.accrue(id);
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return;
        };
        let Some(index) = gpu.leases.iter().position(|lease| lease.session == session) else {
            return;
        };
        let lease = gpu.leases.remove(index);
        if let Some(revoked) = lease.revoked_ns {
            gpu.handoff.record(now.saturating_sub(revoked));
        }
        // The one beside an overrunner now has the GPU to itself: its own grace begins when it is asked.
        self.settle_credit(session, used);
        if let Some(vm) = self.vms.get_mut(&lease.vm) {
            vm.running = None;
            vm.count.service.record(lease.charged_ns);
        }
        self.rethrottle(lease.vm);
        self.sync_vm(lease.vm);
    }

    /// The pool under which a VM runs.
    pub(super) fn pool_of(&self, vm: VmId) -> Option<PoolId> {
        self.vms
            .get(&vm)
            .map(|vm| vm.placement.map_or(vm.config.pool, |(_, pool)| pool))
    }
}
