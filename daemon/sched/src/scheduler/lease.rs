//! Leases: choice, grant, revoke and release.

use super::Scheduler;
use crate::action::{Action, Ignored, Terms};
use crate::depth::Depth;
use crate::event::Usage;
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Lease, Session, Use, Vm};
use crate::timers::TimerKey;

impl Scheduler {
    /// Runs after every event that changed a GPU: grants the GPU if it is free, revokes leases that
    /// are due, reports to the holders whether others wait, and sets the GPU's timer.
    pub(super) fn settle(&mut self, id: GpuId) {
        self.accrue(id);
        while self.is_free(id) {
            let Some((vm, session)) = self.choose(id) else {
                break;
            };
            if self.needs_it_whole(id, session) || !self.acquire(id, vm, session) {
                break;
            }
        }
        let mut index = 0;
        while let Some(holder) = self.holder(id, index) {
            self.press(holder);
            index += 1;
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

    /// Whether a lease of this GPU may be granted now.
    fn is_free(&self, id: GpuId) -> bool {
        let Some(gpu) = self.gpus.get(&id) else {
            return false;
        };
        gpu.health.grants()
            && match gpu.holders.as_slice() {
                [] => true,
                [only] => self.makes_room(*only),
                _ => false,
            }
    }

    /// Lease of a session, granted or being gathered.
    pub(super) fn lease(&self, session: SessionId) -> Option<&Lease> {
        self.sessions.get(&session)?.lease.as_ref()
    }

    pub(super) fn lease_mut(&mut self, session: SessionId) -> Option<&mut Lease> {
        self.sessions.get_mut(&session)?.lease.as_mut()
    }

    /// The session that would get a free GPU now.
    #[must_use]
    pub fn choose_next(&mut self, gpu: GpuId) -> Option<SessionId> {
        self.choose(gpu).map(|(_, session)| session)
    }

    fn choose(&mut self, id: GpuId) -> Option<(VmId, SessionId)> {
        let Gpu { top, nodes, .. } = self.gpus.get_mut(&id)?;
        let vm = nodes.get_mut(&top.peek()?)?.queue.pick(self.now_ns)?;
        let (_, &session) = self.vms.get(&vm)?.runnable.first_key_value()?;
        Some((vm, session))
    }

    /// Assigns the GPU to a session. A gang reserves each GPU, and pays for it, until the gang has
    /// all its GPUs.
    fn acquire(&mut self, id: GpuId, vm_id: VmId, session_id: SessionId) -> bool {
        let now = self.now_ns;
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return false;
        };
        let held = session.lease.as_ref().map_or(0, |lease| lease.held);
        if session.nth_gpu(held) != Some(id) {
            return false;
        }
        let all = held + 1 == session.places.len();
        if held > 0 && self.gathered_too_long(vm_id) {
            return false;
        }
        let most = self.begin_turn(id, vm_id);
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return false;
        };
        let lease = session.lease.get_or_insert_with(|| Lease::begin(now));
        lease.held = held + 1;
        self.note_let_in(id);
        if let Some(gpu) = self.gpus.get_mut(&id) {
            gpu.holders.push(session_id);
            if gpu.last_holder.replace(session_id) != Some(session_id) {
                gpu.handoffs += 1;
            }
        }
        if all {
            // The turn of a gang is not shortened, because gathering was expensive.
            let most = if held == 0 { most } else { u64::MAX };
            self.grant(vm_id, session_id, most);
        } else {
            if let Some(vm) = self.vms.get_mut(&vm_id) {
                vm.gathering = Some(session_id);
            }
            self.sync_vm(vm_id);
        }
        true
    }

    /// Starts a turn of the VM, and of its pool, on this GPU. Returns the longest turn in ns that
    /// the promises to other VMs of the pool allow.
    fn begin_turn(&mut self, id: GpuId, vm: VmId) -> u64 {
        let pool = self.vms.get(&vm).map(Vm::pool);
        let Some((pool, gpu)) = pool.zip(self.gpus.get_mut(&id)) else {
            return u64::MAX;
        };
        gpu.top.begin_turn(pool);
        let node = gpu.nodes.get_mut(&pool);
        node.map_or(u64::MAX, |node| node.queue.begin_turn(vm))
    }

    /// Grants the lease to a session that has all its GPUs. The turn is the VM's slice, or
    /// `most_ns` if that is shorter.
    fn grant(&mut self, vm_id: VmId, session_id: SessionId, most_ns: u64) {
        let now = self.now_ns;
        let epoch = Epoch(self.next_epoch);
        self.next_epoch += 1;
        self.stop_gathering(vm_id, session_id);
        self.unqueue(session_id);
        let credits = self.lend(session_id);
        let (slice, hold) = self.slice_and_hold(vm_id);
        let window_ns = self.window_of(vm_id);
        let turn = self.turn_ns(session_id, slice, most_ns);
        let slice_end_ns = now.saturating_add(turn);
        if let Some(session) = self.sessions.get_mut(&session_id) {
            // The operations of an earlier lease had completed when that lease was released.
            session.progress_ns = now;
            if let Some(lease) = &mut session.lease {
                lease.epoch = epoch;
                lease.granted_ns = now;
                lease.slice_end_ns = slice_end_ns;
                lease.told_end_ns = slice_end_ns;
                lease.whole = turn >= slice;
                lease.usage = Use::Active;
            }
            if let Some(vm) = self.vms.get_mut(&vm_id) {
                vm.running = Some((session_id, true));
                vm.sliced = false;
                vm.count.grants += 1;
                vm.count
                    .wait
                    .record(now.saturating_sub(session.waiting_since_ns));
            }
        }
        self.sync_vm(vm_id);
        let wanted = self.others_wait(session_id);
        let beside = self.is_beside_overrunner(session_id);
        let ahead = self.leaving_until(session_id).filter(|_| !beside);
        let Some(session) = self.sessions.get_mut(&session_id) else {
            return;
        };
        if let Some(lease) = &mut session.lease {
            lease.wanted = wanted;
            lease.beside = beside;
            lease.ahead = ahead;
        }
        let terms = Terms {
            gpu: session.gpu(),
            also: session.also(),
            session: session_id,
            epoch,
            slice_end_ns,
            credits,
            hold_ns: hold,
            window_ns,
            wanted,
        };
        self.out.push(if beside {
            Action::GrantBeside(terms)
        } else {
            Action::Grant(terms)
        });
    }

    /// Length of a turn in ns. Beside an overrunner the turn is longer: the driver divides the GPU
    /// in time slices of its own, and each handoff gives the overrunner one whole time slice.
    fn turn_ns(&self, id: SessionId, slice_ns: u64, most_ns: u64) -> u64 {
        if self.is_beside_overrunner(id) {
            slice_ns.max(crate::PoolConfig::BESIDE_NS)
        } else {
            slice_ns.min(most_ns)
        }
    }

    fn slice_and_hold(&self, vm: VmId) -> (u64, u64) {
        let Some(vm) = self.vms.get(&vm) else {
            return (crate::MILLIS, 0);
        };
        let pool = self.pools.get(&vm.pool());
        (
            self.slice_of(vm),
            pool.map_or(0, |pool| pool.config.hold_ns),
        )
    }

    fn window_of(&self, vm: VmId) -> u64 {
        let pool = self.pool_of(vm).and_then(|pool| self.pools.get(&pool));
        pool.map_or(crate::gate::WINDOW_NS, |pool| pool.config.window_ns)
    }

    /// Whether another session holds a GPU of this session.
    pub(super) fn has_company(&self, session: SessionId) -> bool {
        self.any_gpu(session, |gpu| gpu.holders.len() > 1)
    }

    /// Whether an overrunner holds a GPU of this session.
    fn is_beside_overrunner(&self, id: SessionId) -> bool {
        let overruns = |&other: &SessionId| {
            other != id && self.lease(other).is_some_and(|lease| lease.overrun)
        };
        self.any_gpu(id, |gpu| gpu.holders.iter().any(overruns))
    }

    /// Whether another session waits for a GPU of this session's lease.
    pub(super) fn others_wait(&self, session: SessionId) -> bool {
        let vm = self.sessions.get(&session).map(|session| session.vm);
        let Some(vm) = vm.and_then(|vm| self.vms.get(&vm)) else {
            return false;
        };
        let brother = !vm.runnable.is_empty() && vm.throttle.is_none() && !vm.quarantined();
        brother
            || self.any_gpu(session, |gpu| {
                gpu.top.has_ready() || !gpu.held_off.is_empty()
            })
    }

    fn any_gpu(&self, session: SessionId, what: impl Fn(&Gpu) -> bool) -> bool {
        let places = self.sessions.get(&session).map(|session| &session.places);
        places
            .into_iter()
            .flatten()
            .any(|place| self.gpus.get(&place.gpu).is_some_and(&what))
    }

    /// Reports to a holder whether others wait, and revokes the lease if it is due.
    fn press(&mut self, id: SessionId) {
        let now = self.now_ns;
        let wanted = self.others_wait(id);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let (vm, gpu, served) = (session.vm, session.gpu(), session.served());
        let Some(lease) = session.lease.as_mut().filter(|lease| lease.granted()) else {
            return;
        };
        let turned = lease.wanted != wanted;
        lease.wanted = wanted;
        if lease.revoked_ns.is_some() {
            return;
        }
        let (usage, epoch, over) = (lease.usage, lease.epoch, lease.turn_end_ns() <= now);
        let late = lease.ahead_until_ns().is_some_and(|until| until <= now);
        let held_back = self.vms.get(&vm).is_some_and(|vm| vm.throttle.is_some());
        let end = match usage {
            _ if held_back || !served || late => true,
            _ if !wanted => false,
            Use::Parked => true,
            Use::Hold { until_ns } => until_ns <= now,
            Use::Active if over => !self.slice_over(id, vm),
            Use::Active | Use::Gathering => self.is_preempted(id, vm),
        };
        if end {
            self.revoke(id);
        } else if turned {
            if !wanted {
                self.forget_ending(id);
            }
            self.out.push(Action::Want {
                gpu,
                session: id,
                epoch,
                wanted,
            });
        }
    }

    /// Handles the end of a slice while others wait. Returns true if the holder is next again and
    /// goes on.
    fn slice_over(&mut self, id: SessionId, vm: VmId) -> bool {
        let now = self.now_ns;
        self.end_turn(id, vm);
        if !self.holder_wins(id, vm) {
            if let Some(vm) = self.vms.get_mut(&vm) {
                vm.sliced = true;
            }
            return false;
        }
        let (mut index, mut most) = (0, u64::MAX);
        while let Some(gpu) = self.sessions.get(&id).and_then(|s| s.nth_gpu(index)) {
            most = most.min(self.begin_turn(gpu, vm));
            index += 1;
        }
        let (slice, _) = self.slice_and_hold(vm);
        let turn = self.turn_ns(id, slice, most);
        let slice_end_ns = now.saturating_add(turn);
        let Some(session) = self.sessions.get_mut(&id) else {
            return false;
        };
        let gpu = session.gpu();
        let Some(lease) = &mut session.lease else {
            return false;
        };
        lease.slice_end_ns = slice_end_ns;
        lease.told_end_ns = slice_end_ns;
        lease.whole = turn >= slice;
        lease.ending_ns = None;
        self.out.push(Action::Extend {
            gpu,
            session: id,
            epoch: lease.epoch,
            slice_end_ns,
        });
        true
    }

    /// Whether the holder would be chosen again on all its GPUs, and no other session of its VM
    /// waits.
    fn holder_wins(&mut self, id: SessionId, vm_id: VmId) -> bool {
        let alone = self
            .vms
            .get(&vm_id)
            .is_some_and(|vm| vm.runnable.is_empty());
        alone && self.vm_wins(id, vm_id)
    }

    /// Whether the holder's VM would be chosen again on all its GPUs.
    pub(super) fn vm_wins(&mut self, id: SessionId, vm_id: VmId) -> bool {
        let now = self.now_ns;
        let Some(pool) = self.vms.get(&vm_id).map(Vm::pool) else {
            return false;
        };
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        session.places.iter().all(|place| {
            let Some(Gpu { top, nodes, .. }) = self.gpus.get_mut(&place.gpu) else {
                return false;
            };
            let Some(node) = nodes.get_mut(&pool) else {
                return false;
            };
            let pool_wins = match top.peek() {
                Some(best) if best == pool => true,
                _ => top.holder_wins(pool),
            };
            pool_wins && node.queue.holder_wins(vm_id, now)
        })
    }

    /// Whether the holder must stop before its slice ends, because a VM of a higher class waits or
    /// a VM woke up that is due earlier.
    fn is_preempted(&mut self, id: SessionId, vm: VmId) -> bool {
        let now = self.now_ns;
        let Some(session) = self.sessions.get(&id) else {
            return false;
        };
        let Some(pool) = self.vms.get(&vm).map(Vm::pool) else {
            return false;
        };
        let urgent = session.places.iter().any(|place| {
            let gpu = self.gpus.get_mut(&place.gpu);
            gpu.and_then(|gpu| gpu.nodes.get_mut(&pool))
                .is_some_and(|node| node.queue.preempts(vm, now))
        });
        if urgent {
            return true;
        }
        let Some(lease) = session.lease.as_ref().filter(|lease| lease.challenged) else {
            return false;
        };
        if now < self.preemptible_ns(lease, pool) {
            return false;
        }
        let mut index = 0;
        while let Some(gpu) = self.sessions.get(&id).and_then(|s| s.nth_gpu(index)) {
            let best = self.best(gpu);
            if best.is_some_and(|best| self.is_due_before(gpu, best, vm)) {
                return true;
            }
            index += 1;
        }
        // The VM that woke up no longer waits, or is no longer due before the holder.
        if let Some(lease) = self.lease_mut(id) {
            lease.challenged = false;
        }
        false
    }

    /// Time in ns from which a VM that woke up may interrupt the holder.
    pub(super) fn preemptible_ns(&self, lease: &Lease, pool: PoolId) -> u64 {
        let least = self.pools.get(&pool).map_or(0, |p| p.config.min_run_ns);
        lease.granted_ns.saturating_add(least)
    }

    fn best(&mut self, gpu: GpuId) -> Option<(PoolId, VmId)> {
        let Gpu { top, nodes, .. } = self.gpus.get_mut(&gpu)?;
        let pool = top.peek()?;
        let vm = nodes.get_mut(&pool)?.queue.peek(self.now_ns)?;
        Some((pool, vm))
    }

    /// Revokes a lease. From now on the VM pays even for a parked lease, until it is returned.
    pub(super) fn revoke(&mut self, id: SessionId) {
        let now = self.now_ns;
        let Some(vm) = self.sessions.get(&id).map(|session| session.vm) else {
            return;
        };
        self.accrue_vm(vm);
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        let gpu = session.gpu();
        let Some(lease) = session.lease.as_mut().filter(|lease| lease.granted()) else {
            return;
        };
        if lease.revoked_ns.is_some() {
            return;
        }
        lease.revoked_ns = Some(now);
        lease.early = lease.let_in_ns().is_some_and(|at| at <= now);
        lease.usage = Use::Active;
        self.out.push(Action::Revoke {
            gpu,
            session: id,
            epoch: lease.epoch,
        });
        self.set_charged(vm, true);
    }

    /// Sets whether the VM pays for its lease.
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
        let present = |lease: &Lease| lease.granted() && lease.epoch == epoch;
        if !session.lease.as_ref().is_some_and(present) {
            return Err(Ignored::StaleEpoch);
        }
        session.completed = session.submitted;
        session.soft_noted = false;
        session.depth = depth;
        // The session joins its VM's queue before the lease ends, so that a VM with more work never
        // leaves the competition.
        self.enqueue(id);
        self.end_lease(id, Some(used));
        Ok(())
    }

    /// Ends a lease. `used` is `None` if the worker died.
    pub(super) fn end_lease(&mut self, id: SessionId, used: Option<Usage>) {
        let now = self.now_ns;
        let Some(vm_id) = self.sessions.get(&id).map(|session| session.vm) else {
            return;
        };
        self.accrue_vm(vm_id);
        let Some(lease) = self.sessions.get_mut(&id).and_then(|s| s.lease.take()) else {
            return;
        };
        let pool = self.pool_of(vm_id);
        for place in self.sessions.get(&id).into_iter().flat_map(|s| &s.places) {
            let Some(gpu) = self.gpus.get_mut(&place.gpu) else {
                continue;
            };
            gpu.holders.retain(|&holder| holder != id);
            if let Some(revoked) = lease.revoked_ns {
                // If the next session already has its lease, the handoff was recorded at that
                // grant.
                if gpu.holders.is_empty() || lease.overrun {
                    gpu.handoff.record(now.saturating_sub(revoked));
                }
                let asked = if lease.early {
                    revoked.max(lease.slice_end_ns)
                } else {
                    revoked
                };
                let took = now.saturating_sub(asked);
                if let Some(vm) = self.vms.get_mut(&vm_id) {
                    let before = vm.back_ns.unwrap_or(0);
                    vm.back_ns = Some(took.max(before - before / 16));
                }
                // The time of an overrun is not typical.
                if let Some(node) = pool
                    .and_then(|pool| gpu.nodes.get_mut(&pool))
                    .filter(|_| !lease.overrun)
                {
                    node.queue.gave_back(vm_id, took);
                }
            }
        }
        self.settle_credit(id, used);
        if let Some(vm) = self.vms.get(&vm_id) {
            let most = self.slice_of(vm).saturating_mul(4);
            let took = lease.charged_ns.min(most);
            let usual = vm.usual_ns.map_or(took, |usual| (3 * usual + took) / 4);
            if let Some(vm) = self.vms.get_mut(&vm_id) {
                vm.running = None;
                vm.ran_ns = Some(now);
                vm.usual_ns = Some(usual);
                vm.count.service.record(lease.charged_ns);
            }
        }
        if lease.overrun {
            self.remember_overrun(vm_id, &lease);
        }
        self.rethrottle(vm_id);
        self.sync_vm(vm_id);
        if lease.overrun || self.any_gpu(id, |gpu| !gpu.holders.is_empty()) {
            self.sync_neighbours(id);
            self.leave_alone(id);
        }
    }

    /// Reports to the sessions beside an ended lease that they are now alone on their GPUs.
    fn leave_alone(&mut self, ended: SessionId) {
        let now = self.now_ns;
        let places = self.sessions.get(&ended).into_iter();
        let gpus = places.flat_map(|session| &session.places);
        let gpus = gpus.filter_map(|place| self.gpus.get(&place.gpu));
        let left: Vec<SessionId> = gpus.flat_map(|gpu| gpu.holders.iter().copied()).collect();
        for id in left {
            if self.has_company(id) {
                continue;
            }
            let Some(session) = self.sessions.get_mut(&id) else {
                continue;
            };
            let gpu = session.gpu();
            let Some(lease) = session.lease.as_mut() else {
                continue;
            };
            lease.begins_alone(now);
            if !lease.beside {
                continue;
            }
            lease.beside = false;
            self.out.push(Action::Alone {
                gpu,
                session: id,
                epoch: lease.epoch,
            });
        }
    }

    /// Checks again which VMs may run beside this session, whose overrun began or ended.
    pub(super) fn sync_neighbours(&mut self, session: SessionId) {
        let mut index = 0;
        while let Some(gpu) = self
            .sessions
            .get(&session)
            .and_then(|s: &Session| s.nth_gpu(index))
        {
            self.sync_overrunners(gpu);
            index += 1;
        }
    }

    /// The pool under which a VM is placed; if it is not placed, the configured pool.
    pub(super) fn pool_of(&self, vm: VmId) -> Option<PoolId> {
        self.vms.get(&vm).map(Vm::pool)
    }
}
