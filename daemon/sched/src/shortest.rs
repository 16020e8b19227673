//! Shortest predicted work first (`sjf`), with aging.
//!
//! A VM that begins to wait at time `t` with a predicted cost `p` gets the key `t + lead(p)`; the
//! VM with the smallest key goes first. `lead` grows with `p`, up to [`Aging::after_ns`]. So a VM
//! with short work overtakes a VM with long work only if it arrives less than `after_ns` later, and
//! each VM before a waiting VM goes before it only once. A VM whose prediction is too small gains
//! at most `after_ns`, and never overtakes a VM that has waited longer than that.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::Aging;
use crate::id::VmId;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    cost_ns: u64,
    waiting: Option<Waiting>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    since_ns: u64,
    /// Key of the VM in `queue`.
    key: u64,
    ticket: u64,
}

/// Waiting VMs, ordered by predicted cost and age.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Shortest {
    aging: Option<Aging>,
    /// Costs above this value, in ns, count as this value.
    longest_ns: u64,
    #[serde(with = "crate::serial::pairs")]
    members: BTreeMap<VmId, Member>,
    queue: BTreeSet<(u64, u64, VmId)>,
    next_ticket: u64,
}

impl Shortest {
    /// An empty queue. Costs above four slices count as four slices.
    pub(crate) fn new(aging: Option<Aging>, slice_ns: u64) -> Self {
        Self {
            aging,
            longest_ns: longest(slice_ns),
            members: BTreeMap::new(),
            queue: BTreeSet::new(),
            next_ticket: 0,
        }
    }

    /// Sets new settings. Waiting VMs get the keys that the new settings give them for their time
    /// of arrival.
    pub(crate) fn configure(&mut self, aging: Option<Aging>, slice_ns: u64) {
        let longest_ns = longest(slice_ns);
        if (self.aging, self.longest_ns) == (aging, longest_ns) {
            return;
        }
        self.aging = aging;
        self.longest_ns = longest_ns;
        let all: Vec<VmId> = self.members.keys().copied().collect();
        for vm in all {
            self.refile(vm);
        }
    }

    pub(crate) fn join(&mut self, vm: VmId, cost_ns: u64) {
        self.members.entry(vm).or_insert(Member {
            cost_ns,
            waiting: None,
        });
    }

    pub(crate) fn leave(&mut self, vm: VmId) {
        self.unfile(vm);
        self.members.remove(&vm);
    }

    /// Sets a new predicted cost. The waiting time stays.
    pub(crate) fn set_cost(&mut self, vm: VmId, cost_ns: u64) {
        let Some(member) = self.members.get_mut(&vm) else {
            return;
        };
        if member.cost_ns != cost_ns {
            member.cost_ns = cost_ns;
            self.refile(vm);
        }
    }

    /// Marks the VM as waiting or not.
    pub(crate) fn set_ready(&mut self, vm: VmId, ready: bool, now_ns: u64) {
        let Some(member) = self.members.get_mut(&vm) else {
            return;
        };
        if ready == member.waiting.is_some() {
            return;
        }
        if !ready {
            self.unfile(vm);
            if let Some(member) = self.members.get_mut(&vm) {
                member.waiting = None;
            }
            return;
        }
        self.next_ticket += 1;
        member.waiting = Some(Waiting {
            since_ns: now_ns,
            key: 0,
            ticket: self.next_ticket,
        });
        self.refile(vm);
    }

    /// The next VM.
    pub(crate) fn peek(&self) -> Option<VmId> {
        self.queue.first().map(|&(_, _, vm)| vm)
    }

    /// Whether `holder` goes on at the end of its slice: only if a VM with its cost that arrived
    /// now would be first.
    pub(crate) fn holder_wins(&self, holder: VmId, now_ns: u64) -> bool {
        let Some(&(best, _, _)) = self.queue.first() else {
            return true;
        };
        self.members
            .get(&holder)
            .is_some_and(|member| self.key(member.cost_ns, now_ns) < best)
    }

    pub(crate) fn ready_count(&self) -> usize {
        self.queue.len()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = VmId> + '_ {
        self.members.keys().copied()
    }

    /// The waiting VMs that go before `vm`, in order. `vm` itself may be a VM that does not wait.
    pub(crate) fn before(&self, vm: VmId) -> Vec<VmId> {
        let order = self.queue.iter().map(|&(_, _, other)| other);
        order.take_while(|&other| other != vm).collect()
    }

    /// Time in ns at which `vm` began to wait; `None` if it does not wait.
    pub(crate) fn waiting_since(&self, vm: VmId) -> Option<u64> {
        Some(self.members.get(&vm)?.waiting?.since_ns)
    }

    /// The key of a VM. Without aging, the cost alone is the key.
    fn key(&self, cost_ns: u64, since_ns: u64) -> u64 {
        let Some(aging) = self.aging else {
            return cost_ns;
        };
        let part = u128::from(cost_ns.min(self.longest_ns)) * u128::from(aging.after_ns)
            / u128::from(self.longest_ns);
        since_ns.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
    }

    fn refile(&mut self, vm: VmId) {
        self.unfile(vm);
        let Some(&member) = self.members.get(&vm) else {
            return;
        };
        let Some(waiting) = member.waiting else {
            return;
        };
        let key = self.key(member.cost_ns, waiting.since_ns);
        self.queue.insert((key, waiting.ticket, vm));
        if let Some(member) = self.members.get_mut(&vm) {
            member.waiting = Some(Waiting { key, ..waiting });
        }
    }

    fn unfile(&mut self, vm: VmId) {
        if let Some(waiting) = self.members.get(&vm).and_then(|member| member.waiting) {
            self.queue.remove(&(waiting.key, waiting.ticket, vm));
        }
    }
}

fn longest(slice_ns: u64) -> u64 {
    slice_ns.max(1).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;

    const AFTER: u64 = 4_000;
    const SLICE: u64 = 100;

    fn queue(costs: &[u64]) -> Shortest {
        let step_ns = 0;
        let mut q = Shortest::new(
            Some(Aging {
                after_ns: AFTER,
                step_ns,
            }),
            SLICE,
        );
        for (index, &cost) in costs.iter().enumerate() {
            q.join(VmId(index as u32), cost);
            q.set_ready(VmId(index as u32), true, 0);
        }
        q
    }

    #[test]
    fn the_shortest_goes_first_and_equals_go_by_arrival() {
        let mut q = queue(&[300, 10, 200, 10]);
        let order = [VmId(1), VmId(3), VmId(2), VmId(0)];
        assert_eq!(q.before(VmId(9)), order);
        assert_eq!(q.before(VmId(2)), order[..2]);
        for vm in order {
            assert_eq!(q.peek(), Some(vm));
            q.leave(vm);
        }
        assert!(q.queue.is_empty() && q.peek().is_none());
    }

    #[test]
    fn nobody_is_overtaken_by_one_that_comes_later_than_the_aging_allows() {
        let mut q = queue(&[u64::MAX]);
        q.join(VmId(7), 0);
        q.set_ready(VmId(7), true, AFTER - 1);
        assert_eq!(q.peek(), Some(VmId(7)), "it arrived within the aging time");
        q.set_ready(VmId(7), false, AFTER);
        q.set_ready(VmId(7), true, AFTER);
        assert_eq!(q.peek(), Some(VmId(0)), "it arrived too late to overtake");
    }

    #[test]
    fn the_holder_goes_on_only_if_it_is_shorter_than_all_that_wait() {
        let mut q = queue(&[40, 20]);
        q.set_ready(VmId(1), false, 10);
        assert!(q.holder_wins(VmId(1), 10));
        assert!(
            !q.holder_wins(VmId(1), 300),
            "the other VM has waited longer"
        );
        q.set_cost(VmId(1), 60);
        assert!(!q.holder_wins(VmId(1), 10));
    }

    #[test]
    fn settings_and_predictions_change_while_vms_wait() {
        let mut q = queue(&[300, 200]);
        q.set_cost(VmId(0), 100);
        assert_eq!(q.peek(), Some(VmId(0)));
        q.set_cost(VmId(0), 300);
        assert_eq!(q.peek(), Some(VmId(1)));
        // All costs above four slices count as equal, so the VM that has waited longer goes first.
        q.configure(q.aging, 10);
        assert_eq!(q.peek(), Some(VmId(0)));
        q.configure(None, 10);
        assert_eq!(
            q.peek(),
            Some(VmId(1)),
            "without aging the cost alone decides"
        );
        assert_eq!(q.waiting_since(VmId(1)), Some(0));
    }
}
