//! The VMs of one pool on one GPU, in the order of the pool's policy.

use serde::{Deserialize, Serialize};

use crate::config::{Class, Policy, PoolConfig};
use crate::eevdf::{Eevdf, Joiner};
use crate::id::VmId;
use crate::ordered::Ordered;
use crate::shortest::Shortest;

/// The properties of a VM that decide its order in the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    /// Present class, lowered while the VM is demoted.
    pub(crate) class: Class,
    /// Present weight: class weight × factor.
    pub(crate) weight: u64,
    pub(crate) slice_ns: u64,
    /// Predicted length of the next turn, in ns.
    pub(crate) cost_ns: u64,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
enum Order {
    Weighted(Eevdf<VmId>),
    Ordered(Ordered),
    Shortest(Shortest),
}

/// The queue. A member is *ready* (it can be chosen), or it only counts among the competitors (it
/// runs, say).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunQueue {
    policy: Policy,
    order: Order,
}

impl RunQueue {
    pub(crate) fn new(pool: &PoolConfig) -> Self {
        let order = match pool.policy {
            Policy::Weighted => Order::Weighted(Eevdf::default()),
            Policy::Strict => Order::Ordered(Ordered::strict(pool.aging)),
            Policy::Fifo => Order::Ordered(Ordered::fifo()),
            Policy::Sjf => Order::Shortest(Shortest::new(pool.aging, pool.slice())),
        };
        Self {
            policy: pool.policy,
            order,
        }
    }

    /// The policy that this queue was made for.
    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Applies new settings, if the policy is still the same.
    pub(crate) fn configure(&mut self, pool: &PoolConfig, now_ns: u64) {
        match &mut self.order {
            Order::Weighted(_) => {}
            Order::Ordered(queue) => queue.set_aging(pool.aging, now_ns),
            Order::Shortest(queue) => queue.configure(pool.aging, pool.slice()),
        }
    }

    pub(crate) fn join(&mut self, vm: VmId, standing: Standing, lag_ns: i128) {
        match &mut self.order {
            Order::Weighted(queue) => queue.join(vm, standing.weight, lag_ns, standing.slice_ns),
            Order::Ordered(queue) => queue.join(vm, standing.class),
            Order::Shortest(queue) => queue.join(vm, standing.cost_ns),
        }
    }

    /// Moves all members of another queue, with their lags, into this empty queue.
    pub(crate) fn fill(&mut self, members: &[(VmId, Standing, i128)]) {
        if let Order::Weighted(queue) = &mut self.order {
            queue.fill(members.iter().map(|&(vm, standing, lag_ns)| Joiner {
                key: vm,
                weight: standing.weight,
                lag_ns,
                request_ns: standing.slice_ns,
            }));
            return;
        }
        for &(vm, standing, lag_ns) in members {
            self.join(vm, standing, lag_ns);
        }
    }

    /// Removes the VM. Returns its lag in ns; `None` under a policy without lags, and the lag that
    /// the caller has stored then remains valid.
    pub(crate) fn leave(&mut self, vm: VmId, claim_cap_ns: u64) -> Option<i128> {
        match &mut self.order {
            Order::Weighted(queue) => Some(queue.leave(vm, claim_cap_ns)),
            Order::Ordered(queue) => {
                queue.leave(vm);
                None
            }
            Order::Shortest(queue) => {
                queue.leave(vm);
                None
            }
        }
    }

    pub(crate) fn update(&mut self, vm: VmId, standing: Standing, now_ns: u64) {
        match &mut self.order {
            Order::Weighted(queue) => queue.update(vm, standing.weight, standing.slice_ns),
            Order::Ordered(queue) => queue.set_class(vm, standing.class, now_ns),
            Order::Shortest(queue) => queue.set_cost(vm, standing.cost_ns),
        }
    }

    pub(crate) fn set_ready(&mut self, vm: VmId, ready: bool, now_ns: u64) {
        match &mut self.order {
            Order::Weighted(queue) => queue.set_ready(vm, ready),
            Order::Ordered(queue) => queue.set_ready(vm, ready, now_ns),
            Order::Shortest(queue) => queue.set_ready(vm, ready, now_ns),
        }
    }

    /// Sets a new predicted cost. Only `sjf` orders by cost.
    pub(crate) fn set_cost(&mut self, vm: VmId, cost_ns: u64) {
        if let Order::Shortest(queue) = &mut self.order {
            queue.set_cost(vm, cost_ns);
        }
    }

    /// Records that a whole turn of the VM has ended by time.
    pub(crate) fn end_turn(&mut self, vm: VmId) {
        if let Order::Weighted(queue) = &mut self.order {
            queue.end_turn(vm);
        }
    }

    /// Starts a turn of the VM. Returns the longest turn, in ns, that the promises to others allow.
    pub(crate) fn begin_turn(&mut self, vm: VmId) -> u64 {
        match &mut self.order {
            Order::Weighted(queue) => queue.begin_turn(vm),
            Order::Ordered(_) | Order::Shortest(_) => u64::MAX,
        }
    }

    /// Records that the VM returned the GPU `took_ns` after the revoke.
    pub(crate) fn gave_back(&mut self, vm: VmId, took_ns: u64) {
        if let Order::Weighted(queue) = &mut self.order {
            queue.gave_back(vm, took_ns);
        }
    }

    pub(crate) fn charge(&mut self, vm: VmId, ns: u64) {
        if let Order::Weighted(queue) = &mut self.order {
            queue.charge(vm, ns);
        }
    }

    /// The lag of the VM in ns; `None` under a policy without lags.
    pub(crate) fn lag_ns(&self, vm: VmId) -> Option<i128> {
        match &self.order {
            Order::Weighted(queue) => Some(queue.lag_ns(vm)),
            Order::Ordered(_) | Order::Shortest(_) => None,
        }
    }

    /// Chooses the VM for the next turn.
    pub(crate) fn pick(&mut self, now_ns: u64) -> Option<VmId> {
        match &mut self.order {
            Order::Weighted(queue) => queue.pick(),
            Order::Ordered(_) | Order::Shortest(_) => self.peek(now_ns),
        }
    }

    /// The first VM in the order of the policy.
    pub(crate) fn peek(&mut self, now_ns: u64) -> Option<VmId> {
        match &mut self.order {
            Order::Weighted(queue) => queue.peek(),
            Order::Ordered(queue) => queue.peek(now_ns),
            Order::Shortest(queue) => queue.peek(),
        }
    }

    /// Whether the holder goes on at the end of its slice.
    pub(crate) fn holder_wins(&mut self, holder: VmId, now_ns: u64) -> bool {
        match &mut self.order {
            Order::Weighted(queue) => queue.holder_wins(holder),
            Order::Ordered(queue) => queue.holder_wins(holder, now_ns),
            Order::Shortest(queue) => queue.holder_wins(holder, now_ns),
        }
    }

    /// Whether the holder must stop before the end of its slice, for a more urgent VM.
    pub(crate) fn preempts(&mut self, holder: VmId, now_ns: u64) -> bool {
        match &mut self.order {
            Order::Weighted(_) | Order::Shortest(_) => false,
            Order::Ordered(queue) => queue.preempts(holder, now_ns),
        }
    }

    /// Whether a VM that has just woken up is due before the holder.
    pub(crate) fn challenges(&self, challenger: VmId, holder: VmId) -> bool {
        match &self.order {
            Order::Weighted(queue) => queue.is_due_before(challenger, holder),
            Order::Ordered(_) | Order::Shortest(_) => false,
        }
    }

    /// Puts the VM first, because the scheduler interrupts a holder in order to serve this VM.
    pub(crate) fn hasten(&mut self, vm: VmId) {
        if let Order::Weighted(queue) = &mut self.order {
            queue.hasten(vm);
        }
    }

    pub(crate) fn ready_count(&self) -> usize {
        match &self.order {
            Order::Weighted(queue) => queue.ready_count(),
            Order::Ordered(queue) => queue.ready_count(),
            Order::Shortest(queue) => queue.ready_count(),
        }
    }

    /// The ready VMs that would be chosen before `vm` now.
    pub(crate) fn before(&self, vm: VmId, now_ns: u64) -> Vec<VmId> {
        match &self.order {
            Order::Weighted(queue) => queue.before(vm),
            Order::Ordered(queue) => queue.before(vm, now_ns),
            Order::Shortest(queue) => queue.before(vm),
        }
    }

    /// Time in ns at which the VM began to wait; `None` under a policy that does not count waiting
    /// time, or if the VM does not wait.
    pub(crate) fn waiting_since(&self, vm: VmId) -> Option<u64> {
        match &self.order {
            Order::Weighted(_) => None,
            Order::Ordered(queue) => queue.waiting_since(vm),
            Order::Shortest(queue) => queue.waiting_since(vm),
        }
    }

    pub(crate) fn keys(&self) -> Vec<VmId> {
        match &self.order {
            Order::Weighted(queue) => queue.keys().collect(),
            Order::Ordered(queue) => queue.keys().collect(),
            Order::Shortest(queue) => queue.keys().collect(),
        }
    }
}
