//! Accounts of time: charges for leases, the GPU's account, and the properties of VMs that decide
//! their turns.

use super::Scheduler;
use super::seats::note_phase;
use crate::action::Ignored;
use crate::config::{ClassWeights, PoolConfig};
use crate::id::{GpuId, PoolId, SessionId, VmId};
use crate::model::{Gpu, Lease, Vm, VmCounters};
use crate::runqueue::Standing;

impl Scheduler {
    /// Charges the time since the last call. Must be called before every change of holders, waiting
    /// VMs or payers. If a gang holds or reserves this GPU, its other GPUs are charged, too,
    /// because the gang's limit of GPU time counts all of them.
    pub(super) fn accrue(&mut self, id: GpuId) {
        if !self.accrue_one(id) {
            return;
        }
        let mut index = 0;
        while let Some(holder) = self.holder(id, index) {
            let mut place = 0;
            while let Some(other) = self.sessions.get(&holder).and_then(|s| s.nth_gpu(place)) {
                self.accrue(other);
                place += 1;
            }
            index += 1;
        }
    }

    /// Charges one GPU. Returns true if a gang was charged, so that its other GPUs must be charged,
    /// too.
    fn accrue_one(&mut self, id: GpuId) -> bool {
        // A session whose lease was granted before the previous lease ended pays from the announced
        // end of the previous holder's work.
        let begins = self.gpus.get(&id).and_then(|gpu| {
            let ahead = |holder: &SessionId| self.lease(*holder)?.ahead;
            let at = gpu.holders.iter().find_map(ahead)?;
            (gpu.settled_ns < at && at < self.now_ns).then_some(at)
        });
        if let Some(at) = begins {
            self.accrue_until(id, at);
        }
        self.accrue_until(id, self.now_ns)
    }

    /// Charges the time until `now`. The set of payers must not change before `now`.
    fn accrue_until(&mut self, id: GpuId, now: u64) -> bool {
        let Some(gpu) = self.gpus.get_mut(&id) else {
            return false;
        };
        let passed = now.saturating_sub(gpu.settled_ns);
        if passed == 0 {
            return false;
        }
        let from = std::mem::replace(&mut gpu.settled_ns, now);
        let pays = |lease: &Option<Lease>| lease.as_ref().is_some_and(|l| l.charged(from));
        let payers = gpu.holders.iter().filter(|&holder| {
            self.sessions
                .get(holder)
                .is_some_and(|session| pays(&session.lease))
        });
        let payers = payers.count() as u64;
        if payers == 0 {
            if gpu.holders.is_empty() && gpu.top.has_ready() {
                gpu.account.switch_ns += passed;
            } else {
                gpu.account.idle_ns += passed;
            }
            return false;
        }
        gpu.account.charged_ns += passed;
        // Holders that share the GPU pay equal parts. The remainder of the division goes to the
        // last holder, not to the overrunner.
        let (mut rest, mut left) = (passed, payers);
        let mut gangs = false;
        let Gpu {
            holders,
            nodes,
            top,
            ..
        } = gpu;
        for holder in holders.iter() {
            let Some(session) = self.sessions.get_mut(holder) else {
                continue;
            };
            gangs |= session.places.len() > 1;
            let Some(lease) = session.lease.as_mut().filter(|lease| lease.charged(from)) else {
                continue;
            };
            let part = rest / left.max(1);
            rest -= part;
            left -= 1;
            lease.charged_ns += part;
            session.gpu_ns += part;
            if let Some(vm) = self.vms.get_mut(&session.vm).filter(|_| !session.former) {
                vm.count.gpu_ns += part;
                if let Some(bucket) = &mut vm.buckets.gpu_time {
                    bucket.charge(part, from, now);
                }
                let pool = vm.pool();
                top.charge(pool, part);
                if let Some(node) = nodes.get_mut(&pool) {
                    node.queue.charge(session.vm, part);
                }
            }
        }
        debug_assert_eq!(
            gpu.account.charged_ns + gpu.account.idle_ns + gpu.account.switch_ns,
            now - gpu.since_ns,
            "every nanosecond of the GPU is accounted for once"
        );
        gangs
    }

    /// Charges all GPUs of a VM.
    pub(super) fn accrue_vm(&mut self, id: VmId) {
        let width = self.vms.get(&id).map_or(0, Vm::width);
        for index in 0..width {
            if let Some(gpu) = self.vms.get(&id).and_then(|vm| vm.seat_gpu(index)) {
                self.accrue(gpu);
            }
        }
    }

    /// The properties of a VM that decide its present share and turns.
    pub(super) fn standing(&self, id: VmId) -> Standing {
        let Some(vm) = self.vms.get(&id) else {
            return Standing {
                class: crate::Class::Low,
                weight: 1,
                slice_ns: PoolConfig::MIN_SLICE_NS,
                cost_ns: 0,
            };
        };
        let class = vm.class();
        let config = self.pools.get(&vm.pool()).map(|pool| &pool.config);
        let own = config.and_then(|config| config.class_weights);
        let weights = own.unwrap_or(self.config.class_weights);
        let factor = vm
            .config
            .factor_milli
            .clamp(1, crate::VmConfig::MAX_FACTOR_MILLI);
        let slice_ns = self.slice_of(vm);
        Standing {
            class,
            weight: u64::from(weights.of(class)) * u64::from(factor),
            slice_ns,
            cost_ns: self.cost_of(vm, slice_ns),
        }
    }

    /// Slice of a VM in ns.
    pub(super) fn slice_of(&self, vm: &Vm) -> u64 {
        let config = self.pools.get(&vm.pool()).map(|pool| &pool.config);
        config.map_or(PoolConfig::MIN_SLICE_NS, |config| {
            config.slice_of(&vm.config)
        })
    }

    /// Predicted time of a VM's next turn in ns: the prediction for the first waiting operation
    /// (without a prediction: a slice), or the average of the VM's recent turns if that is longer.
    fn cost_of(&self, vm: &Vm, slice_ns: u64) -> u64 {
        let first = vm.runnable.values().next().or(match &vm.running {
            Some((session, _)) => Some(session),
            None => None,
        });
        let head = first
            .and_then(|session| self.sessions.get(session))
            .map_or(0, |session| session.head.gpu_ns);
        let said = if head == 0 { slice_ns } else { head };
        said.max(vm.usual_ns.unwrap_or(0))
    }

    /// Updates a VM in its queues after a change of class, factor, slice or demotion.
    pub(super) fn refresh_standing(&mut self, id: VmId) {
        let now = self.now_ns;
        let standing = self.standing(id);
        self.accrue_vm(id);
        let Some(placement) = self.vms.get(&id).and_then(|vm| vm.placement.as_ref()) else {
            return;
        };
        for seat in &placement.seats {
            self.dirty.insert(seat.gpu);
            if let Some(node) = self
                .gpus
                .get_mut(&seat.gpu)
                .and_then(|gpu| gpu.nodes.get_mut(&placement.pool))
            {
                node.queue.update(id, standing, now);
            }
        }
    }

    /// Updates the queues for all VMs that are placed under the pools selected by `of`.
    pub(super) fn refresh_standings(&mut self, of: impl Fn(PoolId) -> bool) {
        let placed = |vm: &Vm| vm.placement.as_ref().is_some_and(|p| of(p.pool));
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

    pub(super) fn set_class_weights(&mut self, weights: ClassWeights) -> Result<(), Ignored> {
        self.config.class_weights = weights;
        self.refresh_standings(|_| true);
        Ok(())
    }

    /// Resets the counters of one VM, or of all VMs and GPUs.
    pub(super) fn reset_stats(&mut self, of: Option<VmId>) -> Result<(), Ignored> {
        let now = self.now_ns;
        let gpus: Vec<GpuId> = self.gpus.keys().copied().collect();
        for gpu in gpus {
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
