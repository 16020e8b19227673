//! Queues ordered by class with aging (`strict`), or by arrival (`fifo`).

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::config::{Aging, Class};
use crate::id::VmId;

const LEVELS: usize = Class::ALL.len();

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    class: Class,
    /// Set while the VM waits.
    waiting: Option<Waiting>,
    /// Level from which the VM was last chosen. Only a VM at a higher level may interrupt the turn.
    /// So a VM that rose by waiting gets a whole turn, and its lease is not revoked at once.
    chosen_at: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Waiting {
    since_ns: u64,
    /// Order of arrival; unique.
    ticket: u64,
    level: usize,
    /// Time in ns of the VM's next rise, as stored in `rises`.
    rises_ns: Option<u64>,
}

/// Waiting VMs, ordered by level and, within a level, by arrival. With classes, a VM begins at the
/// level of its class and rises while it waits. Without classes, all VMs are on one level.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Ordered {
    /// The rules of a queue by class; `None`: by arrival only.
    classes: Option<Rules>,
    members: BTreeMap<VmId, Member>,
    levels: [BTreeSet<(u64, VmId)>; LEVELS],
    /// Times in ns at which waiting VMs rise next.
    rises: BTreeSet<(u64, VmId)>,
    next_ticket: u64,
}

/// Rules of the levels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
struct Rules {
    aging: Option<Aging>,
}

impl Rules {
    /// Level of a VM that has waited since `since_ns`.
    fn level(self, class: Class, since_ns: u64, now_ns: u64) -> usize {
        let class = class.index();
        self.aging
            .map_or(class, |aging| aged(class, since_ns, aging, now_ns).0)
    }
}

impl Ordered {
    /// A queue by arrival.
    pub(crate) fn fifo() -> Self {
        Self::with(None)
    }

    /// A queue by class, with this aging.
    pub(crate) fn strict(aging: Option<Aging>) -> Self {
        Self::with(Some(Rules { aging }))
    }

    fn with(classes: Option<Rules>) -> Self {
        Self {
            classes,
            members: BTreeMap::new(),
            levels: Default::default(),
            rises: BTreeSet::new(),
            next_ticket: 0,
        }
    }

    /// Sets new aging. Waiting VMs move to the levels that the new aging gives them for their
    /// waiting time.
    pub(crate) fn set_aging(&mut self, aging: Option<Aging>, now_ns: u64) {
        let Some(rules) = &mut self.classes else {
            return;
        };
        if rules.aging == aging {
            return;
        }
        rules.aging = aging;
        let all: Vec<VmId> = self.members.keys().copied().collect();
        for vm in all {
            self.replace(vm, now_ns);
        }
    }

    pub(crate) fn join(&mut self, vm: VmId, class: Class) {
        self.members.entry(vm).or_insert(Member {
            class,
            waiting: None,
            chosen_at: 0,
        });
    }

    pub(crate) fn leave(&mut self, vm: VmId) {
        self.stop_waiting(vm);
        self.members.remove(&vm);
    }

    /// Changes the class. The waiting time stays.
    pub(crate) fn set_class(&mut self, vm: VmId, class: Class, now_ns: u64) {
        let Some(member) = self.members.get_mut(&vm) else {
            return;
        };
        if member.class != class {
            member.class = class;
            self.replace(vm, now_ns);
        }
    }

    /// Marks the VM as waiting or not. A VM that begins to wait goes behind all others of its
    /// level.
    pub(crate) fn set_ready(&mut self, vm: VmId, ready: bool, now_ns: u64) {
        let Some(member) = self.members.get_mut(&vm) else {
            return;
        };
        if ready == member.waiting.is_some() {
            return;
        }
        if !ready {
            let since_ns = member.waiting.map_or(now_ns, |waiting| waiting.since_ns);
            member.chosen_at = self
                .classes
                .map_or(0, |rules| rules.level(member.class, since_ns, now_ns));
            self.stop_waiting(vm);
            return;
        }
        self.next_ticket += 1;
        let ticket = self.next_ticket;
        member.waiting = Some(Waiting {
            since_ns: now_ns,
            ticket,
            level: 0,
            rises_ns: None,
        });
        self.place(vm, now_ns);
    }

    /// The next VM.
    pub(crate) fn peek(&mut self, now_ns: u64) -> Option<VmId> {
        self.rise(now_ns);
        self.levels
            .iter()
            .rev()
            .find_map(|level| level.first().map(|&(_, vm)| vm))
    }

    /// Whether `holder` goes on at the end of its slice: only if its class is above the levels of
    /// all waiting VMs. A level that the holder reached by waiting no longer counts.
    pub(crate) fn holder_wins(&mut self, holder: VmId, now_ns: u64) -> bool {
        let class = self.class_level(holder);
        let wins = self.best_level(now_ns).is_none_or(|best| class > best);
        if let Some(member) = self.members.get_mut(&holder).filter(|_| wins) {
            member.chosen_at = class;
        }
        wins
    }

    /// Whether `holder` must stop before the end of its slice: only if a waiting VM's level is
    /// above the holder's class and above the level from which the holder was chosen.
    pub(crate) fn preempts(&mut self, holder: VmId, now_ns: u64) -> bool {
        let chosen_at = self.members.get(&holder).map_or(0, |m| m.chosen_at);
        let own = self.class_level(holder).max(chosen_at);
        self.classes.is_some() && self.best_level(now_ns).is_some_and(|best| best > own)
    }

    /// The waiting VMs that go before `vm` at `now_ns`, in order. `vm` itself may be a VM that does
    /// not wait.
    pub(crate) fn before(&self, vm: VmId, now_ns: u64) -> Vec<VmId> {
        let rank = |id: VmId, member: &Member| {
            let waiting = member.waiting?;
            let level = self.classes.map_or(0, |rules| {
                rules.level(member.class, waiting.since_ns, now_ns)
            });
            Some((LEVELS - level, waiting.ticket, id))
        };
        let own = self.members.get(&vm).and_then(|member| rank(vm, member));
        let mut ranks: Vec<_> = self
            .members
            .iter()
            .filter(|&(&other, _)| other != vm)
            .filter_map(|(&other, member)| rank(other, member))
            .filter(|rank| own.is_none_or(|own| *rank < own))
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, _, id)| id).collect()
    }

    /// Time in ns at which `vm` began to wait; `None` if it does not wait.
    pub(crate) fn waiting_since(&self, vm: VmId) -> Option<u64> {
        let waiting = self.members.get(&vm)?.waiting?;
        Some(waiting.since_ns)
    }

    pub(crate) fn ready_count(&self) -> usize {
        self.levels.iter().map(BTreeSet::len).sum()
    }

    pub(crate) fn keys(&self) -> impl Iterator<Item = VmId> + '_ {
        self.members.keys().copied()
    }

    fn best_level(&mut self, now_ns: u64) -> Option<usize> {
        self.rise(now_ns);
        self.levels.iter().rposition(|level| !level.is_empty())
    }

    /// Level of the VM's class.
    fn class_level(&self, vm: VmId) -> usize {
        match (self.classes, self.members.get(&vm)) {
            (Some(_), Some(member)) => member.class.index(),
            _ => 0,
        }
    }

    /// Moves up the VMs whose time to rise has come by `now_ns`.
    fn rise(&mut self, now_ns: u64) {
        while let Some(&(at, vm)) = self.rises.first() {
            if at > now_ns {
                break;
            }
            self.replace(vm, now_ns);
        }
    }

    fn replace(&mut self, vm: VmId, now_ns: u64) {
        self.unplace(vm);
        self.place(vm, now_ns);
    }

    fn place(&mut self, vm: VmId, now_ns: u64) {
        let rules = self.classes;
        let Some(member) = self.members.get_mut(&vm) else {
            return;
        };
        let class = member.class.index();
        let Some(waiting) = &mut member.waiting else {
            return;
        };
        let (level, next_rise) = match rules {
            None => (0, None),
            Some(Rules { aging: None }) => (class, None),
            Some(Rules { aging: Some(aging) }) => aged(class, waiting.since_ns, aging, now_ns),
        };
        waiting.level = level;
        waiting.rises_ns = next_rise;
        self.levels[level].insert((waiting.ticket, vm));
        if let Some(at) = next_rise {
            self.rises.insert((at, vm));
        }
    }

    fn unplace(&mut self, vm: VmId) {
        let Some(waiting) = self.members.get(&vm).and_then(|member| member.waiting) else {
            return;
        };
        self.levels[waiting.level].remove(&(waiting.ticket, vm));
        if let Some(at) = waiting.rises_ns {
            self.rises.remove(&(at, vm));
        }
    }

    fn stop_waiting(&mut self, vm: VmId) {
        self.unplace(vm);
        if let Some(member) = self.members.get_mut(&vm) {
            member.waiting = None;
        }
    }
}

/// Level of a VM that has waited since `since_ns`, and the time in ns of its next rise.
fn aged(class: usize, since_ns: u64, aging: Aging, now_ns: u64) -> (usize, Option<u64>) {
    let mut level = class;
    while level + 1 < LEVELS && rise_at(class, since_ns, aging, level) <= now_ns {
        level += 1;
    }
    let next = (level + 1 < LEVELS).then(|| rise_at(class, since_ns, aging, level));
    (level, next)
}

/// Time in ns at which a VM of `class` rises from `level`.
fn rise_at(class: usize, since_ns: u64, aging: Aging, level: usize) -> u64 {
    let steps = (level - class.min(level)) as u64;
    since_ns
        .saturating_add(aging.after_ns)
        .saturating_add(steps.saturating_mul(aging.step_ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGING: Aging = Aging {
        after_ns: 100,
        step_ns: 10,
    };

    fn strict(members: &[(u32, Class)]) -> Ordered {
        let mut q = Ordered::strict(Some(AGING));
        for &(vm, class) in members {
            q.join(VmId(vm), class);
            q.set_ready(VmId(vm), true, 0);
        }
        q
    }

    #[test]
    fn the_highest_class_first_then_by_arrival() {
        let mut q = strict(&[(1, Class::Low), (2, Class::High), (3, Class::High)]);
        assert_eq!(q.peek(0), Some(VmId(2)));
        q.set_ready(VmId(2), false, 0);
        assert_eq!(q.peek(0), Some(VmId(3)));
        q.set_ready(VmId(2), true, 1);
        assert_eq!(q.peek(1), Some(VmId(3)), "a VM goes behind after its turn");
    }

    #[test]
    fn a_low_vm_rises_until_it_is_served() {
        let mut q = strict(&[(1, Class::Low)]);
        for now in [0, 99, 100, 110, 119] {
            q.join(VmId(9), Class::Critical);
            q.set_ready(VmId(9), true, now);
            assert_eq!(q.peek(now), Some(VmId(9)), "at {now}");
            q.leave(VmId(9));
        }
        q.join(VmId(9), Class::Critical);
        q.set_ready(VmId(9), true, 119);
        assert_eq!(
            q.peek(120),
            Some(VmId(1)),
            "after + 2 × step: level with critical, and older"
        );
    }

    #[test]
    fn only_a_higher_level_preempts_and_only_a_lower_one_lets_the_holder_go_on() {
        let mut q = strict(&[(1, Class::Medium), (2, Class::High)]);
        q.set_ready(VmId(1), false, 0);
        assert!(q.preempts(VmId(1), 0));
        q.set_ready(VmId(2), false, 0);
        q.set_ready(VmId(1), true, 0);
        assert!(!q.preempts(VmId(2), 0) && q.holder_wins(VmId(2), 0));
        assert!(
            !q.holder_wins(VmId(2), 100),
            "the medium VM has risen to the same level"
        );
    }

    #[test]
    fn what_one_rose_to_by_waiting_is_worth_a_turn() {
        let mut q = strict(&[(1, Class::Low)]);
        q.join(VmId(9), Class::Critical);
        q.set_ready(VmId(9), true, 119);
        assert_eq!(q.peek(120), Some(VmId(1)));
        q.set_ready(VmId(1), false, 120);
        assert!(!q.preempts(VmId(1), 120), "it keeps its turn");
        assert!(!q.holder_wins(VmId(1), 120), "but only one turn");
        q.set_ready(VmId(1), true, 130);
        q.set_ready(VmId(1), false, 140);
        assert!(
            q.preempts(VmId(1), 140),
            "chosen again without having risen"
        );
    }

    #[test]
    fn changes_of_class_and_aging_keep_the_time_waited() {
        let mut q = strict(&[(1, Class::Low), (2, Class::Medium)]);
        q.set_class(VmId(1), Class::Critical, 5);
        assert_eq!(q.peek(5), Some(VmId(1)));
        q.set_class(VmId(1), Class::Low, 6);
        assert_eq!(q.peek(6), Some(VmId(2)));
        q.set_aging(None, 1_000);
        assert_eq!(
            q.peek(1_000),
            Some(VmId(2)),
            "without aging only the class counts"
        );
        q.set_aging(Some(AGING), 1_000);
        assert_eq!(
            q.peek(1_000),
            Some(VmId(1)),
            "both are at the top level, and the older goes first"
        );
        q.leave(VmId(1));
        q.leave(VmId(2));
        assert!(q.rises.is_empty() && q.levels.iter().all(BTreeSet::is_empty));
    }

    #[test]
    fn who_is_before_whom_follows_level_and_arrival_even_before_it_rose() {
        let mut q = strict(&[(1, Class::Low), (2, Class::High), (3, Class::Medium)]);
        assert_eq!(q.before(VmId(1), 0), [VmId(2), VmId(3)]);
        assert_eq!(q.before(VmId(9), 0), [VmId(2), VmId(3), VmId(1)]);
        assert_eq!(
            q.before(VmId(2), 120),
            [VmId(1)],
            "as old, and first of its level"
        );
        assert_eq!(q.waiting_since(VmId(1)), Some(0));
        q.set_ready(VmId(1), false, 1);
        assert_eq!(q.waiting_since(VmId(1)), None);
        assert_eq!(q.peek(1), q.before(VmId(9), 1).first().copied());
    }

    #[test]
    fn fifo_ignores_classes() {
        let mut q = Ordered::fifo();
        for (vm, class) in [(5, Class::Low), (4, Class::Critical)] {
            q.join(VmId(vm), class);
            q.set_ready(VmId(vm), true, 0);
        }
        assert_eq!(q.peek(0), Some(VmId(5)));
        q.set_ready(VmId(5), false, 0);
        assert!(!q.preempts(VmId(5), 0) && !q.holder_wins(VmId(5), 0));
    }
}
