//! Weighted sharing by virtual time: earliest eligible virtual deadline first.
//!
//! Each member has a virtual runtime `v` that grows by charged time ÷ weight. `V`, the weighted mean
//! of all members' `v`, is where everybody would be under ideal sharing; `weight × (V − v)` is a member's
//! *lag*: the GPU time (ns) that it is still owed, negative if it had too much. The lags of the members
//! of a queue sum up to zero. A member is eligible while its lag is not negative; among the eligible
//! the earliest deadline wins. Members come and go with their lag in ns (Stoica & Abdel-Wahab, 1995).
//!
//! A deadline is `v` plus a *lead*. In EEVDF the lead is the whole request (one slice ÷ weight), for
//! everybody and always; two turns of a member may then lie almost two periods apart, the first at the
//! begin of its period and the second at the end of the next. Here the lead of a member's next turn
//! follows from its last: how far `V` was beyond `v` when that began, so that the next is due one
//! period after it. Members keep their places in the round, and meet the other bound as well, that
//! of the time between turns. The lead is never longer than the request, and drifts a tenth of the way
//! towards it at each turn, so that a member that is often late does not lose its share by that.
//!
//! A lone member has lag zero by definition, whatever it owes from before; that is kept aside
//! (`carry`) until somebody is there to whom it can be owed.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

/// Virtual time is in 2^-20 ns per unit of weight.
const FRACTION_BITS: u32 = 20;

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    weight: i128,
    vruntime: i128,
    /// From `vruntime` to the deadline.
    lead: i128,
    /// Where `vruntime` will be when the request for which it runs is done, and the deadline under
    /// which it was chosen for that.
    until: i128,
    due: i128,
    request_ns: u64,
    carry_ns: i128,
    place: Place,
}

impl Member {
    fn deadline(&self) -> i128 {
        self.vruntime + self.lead
    }

    /// The deadline of one that runs: while its request is not done, that under which it was chosen.
    fn running_deadline(&self) -> i128 {
        if self.vruntime < self.until {
            self.due
        } else {
            self.deadline()
        }
    }
}

/// In which index a member is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// In none: it counts in the mean but cannot be chosen (it has nothing to run, or runs).
    Held,
    /// By deadline. Its lag was not negative when it was put there.
    Eligible,
    /// By virtual runtime.
    Early,
}

/// One that joins a queue.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Joiner<K> {
    pub(crate) key: K,
    pub(crate) weight: u64,
    pub(crate) lag_ns: i128,
    pub(crate) request_ns: u64,
}

/// A queue of competing members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Eevdf<K: Ord> {
    members: BTreeMap<K, Member>,
    eligible: BTreeSet<(i128, K)>,
    early: BTreeSet<(i128, K)>,
    /// Σ weight.
    weight: i128,
    /// Σ weight × vruntime.
    moment: i128,
    /// Where the first member of an empty queue begins.
    origin: i128,
}

impl<K: Ord> Default for Eevdf<K> {
    fn default() -> Self {
        Self {
            members: BTreeMap::new(),
            eligible: BTreeSet::new(),
            early: BTreeSet::new(),
            weight: 0,
            moment: 0,
            origin: 0,
        }
    }
}

impl<K: Ord + Copy> Eevdf<K> {
    /// Adds a member that is owed `lag_ns` (or owes it, if negative). It cannot be chosen before
    /// [`Eevdf::set_ready`]. A member that is there already stays as it is.
    pub(crate) fn join(&mut self, key: K, weight: u64, lag_ns: i128, request_ns: u64) {
        if self.members.contains_key(&key) {
            return;
        }
        let weight = i128::from(weight.max(1));
        let mut lag = lag_ns;
        if let Some(lone) = self.lone_mut() {
            lag -= std::mem::take(&mut lone.carry_ns);
        }
        let (vruntime, carry_ns) = if self.weight == 0 {
            (self.origin, lag)
        } else {
            (self.place_for(weight, lag), 0)
        };
        let lead = virtual_time(u128::from(request_ns), weight);
        self.weight += weight;
        self.moment += weight * vruntime;
        let place = Place::Held;
        let member = Member {
            weight,
            vruntime,
            lead,
            until: vruntime,
            due: vruntime,
            request_ns,
            carry_ns,
            place,
        };
        self.members.insert(key, member);
    }

    /// Puts members into an empty queue, each with its lag. Where their lags do not sum up to zero, each
    /// bears its part of the difference, by weight.
    pub(crate) fn fill(&mut self, joiners: impl Iterator<Item = Joiner<K>> + Clone) {
        let weight_of = |joiner: &Joiner<K>| i128::from(joiner.weight.max(1));
        let weight: i128 = joiners.clone().map(|joiner| weight_of(&joiner)).sum();
        let surplus: i128 = joiners.clone().map(|joiner| joiner.lag_ns).sum();
        let alone = joiners.clone().count() == 1;
        for joiner in joiners {
            let own = weight_of(&joiner);
            self.join(joiner.key, joiner.weight, 0, joiner.request_ns);
            let lag = (joiner.lag_ns << FRACTION_BITS) - (surplus << FRACTION_BITS) * own / weight;
            let Some(member) = self.members.get_mut(&joiner.key) else {
                continue;
            };
            // It stands at the origin now, wherever the others are.
            let vruntime = self.origin - lag / own;
            self.moment += own * (vruntime - member.vruntime);
            member.vruntime = vruntime;
            member.until = vruntime;
            member.due = vruntime;
            if alone {
                member.carry_ns = joiner.lag_ns;
            }
        }
    }

    /// Removes a member and says what it is owed, in ns. What it owes is told whole; what it is owed is
    /// told up to `claim_cap_ns`: who leaves has all it wants, and a claim saved up would be a monopoly
    /// later. What is given up is no longer owed by those who stay.
    pub(crate) fn leave(&mut self, key: K, claim_cap_ns: u64) -> i128 {
        let lag = self.lag_ns(key).min(i128::from(claim_cap_ns));
        let Some(member) = self.members.remove(&key) else {
            return 0;
        };
        self.unindex(&member, key);
        self.weight -= member.weight;
        self.moment -= member.weight * member.vruntime;
        if self.weight == 0 {
            self.origin = member.vruntime;
        }
        lag
    }

    /// Says whether the member can be chosen.
    pub(crate) fn set_ready(&mut self, key: K, ready: bool) {
        let Some(member) = self.members.get(&key).cloned() else {
            return;
        };
        if ready == (member.place != Place::Held) {
            return;
        }
        self.unindex(&member, key);
        if ready {
            self.index(key);
        } else if let Some(member) = self.members.get_mut(&key) {
            member.place = Place::Held;
        }
    }

    /// Charges GPU time to a member.
    pub(crate) fn charge(&mut self, key: K, ns: u64) {
        let Some(member) = self.members.get(&key).cloned() else {
            return;
        };
        let step = virtual_time(u128::from(ns), member.weight);
        self.unindex(&member, key);
        self.moment += member.weight * step;
        if let Some(m) = self.members.get_mut(&key) {
            m.vruntime += step;
        }
        if member.place != Place::Held {
            self.index(key);
        }
    }

    /// Changes weight and request length; the lag in ns stays what it is.
    pub(crate) fn update(&mut self, key: K, weight: u64, request_ns: u64) {
        let weight = i128::from(weight.max(1));
        let lag = self.lag_ns(key);
        let Some(member) = self.members.get(&key).cloned() else {
            return;
        };
        if member.weight == weight && member.request_ns == request_ns {
            return;
        }
        self.unindex(&member, key);
        self.weight -= member.weight;
        self.moment -= member.weight * member.vruntime;
        let alone = self.weight == 0;
        let vruntime = if alone {
            member.vruntime
        } else {
            self.place_for(weight, lag)
        };
        self.weight += weight;
        self.moment += weight * vruntime;
        // Leads keep their length in ns, but none is longer than the new request.
        let whole = virtual_time(u128::from(request_ns), weight);
        let scaled = |lead: i128| (lead * member.weight / weight).clamp(0, whole);
        if let Some(m) = self.members.get_mut(&key) {
            m.weight = weight;
            m.vruntime = vruntime;
            m.request_ns = request_ns;
            m.lead = scaled(member.lead);
            m.until = vruntime + scaled(member.until - member.vruntime);
            m.due = vruntime + scaled(member.due - member.vruntime);
        }
        if member.place != Place::Held {
            self.index(key);
        }
    }

    /// A turn of the member begins: its lag now decides when the next is due.
    pub(crate) fn begin_turn(&mut self, key: K) {
        let Some(member) = self.members.get(&key).cloned() else {
            return;
        };
        self.unindex(&member, key);
        let whole = virtual_time(u128::from(member.request_ns), member.weight);
        let late = self.moment.div_euclid(self.weight) - member.vruntime;
        let late = late.clamp(0, whole);
        if let Some(m) = self.members.get_mut(&key) {
            m.due = member.deadline();
            m.lead = (late * 9 / 10 + whole * 9 / 100).min(whole * 9 / 10);
            m.until = member.vruntime + whole;
        }
        if member.place != Place::Held {
            self.index(key);
        }
    }

    /// What the member is owed in ns; negative: it owes.
    pub(crate) fn lag_ns(&self, key: K) -> i128 {
        let Some(member) = self.members.get(&key) else {
            return 0;
        };
        let distance = self.moment - self.weight * member.vruntime;
        let (whole, rest) = (
            distance.div_euclid(self.weight),
            distance.rem_euclid(self.weight),
        );
        let lag = whole * member.weight + rest * member.weight / self.weight;
        round_shift(lag) + member.carry_ns
    }

    /// Who is next. Members that can be chosen are always chosen from, even if none of them is eligible
    /// (those that are then have nothing to run).
    pub(crate) fn peek(&mut self) -> Option<K> {
        while let Some(&(vruntime, key)) = self.early.first() {
            if vruntime * self.weight > self.moment {
                break;
            }
            self.move_to(key, Place::Eligible);
        }
        // The mean goes back when somebody with a claim joins; those beyond it wait again.
        while let Some(&(_, key)) = self.eligible.first() {
            if self.is_eligible(key) {
                return Some(key);
            }
            self.move_to(key, Place::Early);
        }
        self.early.first().map(|&(_, key)| key)
    }

    /// Would `holder`, which runs now, be chosen before the best of the others if it asked again?
    pub(crate) fn holder_wins(&mut self, holder: K) -> bool {
        let Some(best) = self.peek() else { return true };
        if best == holder {
            return true;
        }
        let Some(h) = self.members.get(&holder) else {
            return false;
        };
        let Some(b) = self.members.get(&best) else {
            return true;
        };
        let holder_eligible = h.vruntime * self.weight <= self.moment;
        match (holder_eligible, self.is_eligible(best)) {
            (true, true) => (h.running_deadline(), holder) < (b.deadline(), best),
            (true, false) => true,
            (false, true) => false,
            (false, false) => (h.vruntime, holder) < (b.vruntime, best),
        }
    }

    /// Is `other`, which can be chosen, eligible, with a deadline before that by which the request for
    /// which `holder` runs would be done?
    pub(crate) fn is_due_before(&self, other: K, holder: K) -> bool {
        let (Some(o), Some(h)) = (self.members.get(&other), self.members.get(&holder)) else {
            return false;
        };
        o.place != Place::Held && self.is_eligible(other) && o.deadline() < h.until
    }

    /// Can one of these be chosen who is owed something?
    pub(crate) fn any_due(&self, which: impl Fn(K) -> bool) -> bool {
        let due = |m: &Member| m.place != Place::Held && m.vruntime * self.weight <= self.moment;
        self.members.iter().any(|(&key, m)| due(m) && which(key))
    }

    /// Can anybody be chosen?
    pub(crate) fn has_ready(&self) -> bool {
        !self.eligible.is_empty() || !self.early.is_empty()
    }

    /// How many can be chosen.
    pub(crate) fn ready_count(&self) -> usize {
        self.eligible.len() + self.early.len()
    }

    /// All members.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.members.keys().copied()
    }

    /// Who of those that can be chosen would be, as it stands now, before `key` (a member or not).
    pub(crate) fn before(&self, key: K) -> Vec<K> {
        let rank = |key: K, m: &Member| {
            let eligible = m.vruntime * self.weight <= self.moment;
            let order = if eligible { m.deadline() } else { m.vruntime };
            (!eligible, order, key)
        };
        let own = self.members.get(&key).map(|m| rank(key, m));
        let ready = |m: &Member| m.place != Place::Held;
        let mut ranks: Vec<_> = self
            .members
            .iter()
            .filter(|&(&other, m)| other != key && ready(m))
            .map(|(&other, m)| rank(other, m))
            .filter(|rank| own.is_none_or(|own| *rank < own))
            .collect();
        ranks.sort_unstable();
        ranks.into_iter().map(|(_, _, key)| key).collect()
    }

    fn lone_mut(&mut self) -> Option<&mut Member> {
        if self.members.len() == 1 {
            self.members.values_mut().next()
        } else {
            None
        }
    }

    /// The virtual runtime at which a new member of this weight has exactly this lag, once the mean has
    /// moved by its joining.
    fn place_for(&self, weight: i128, lag_ns: i128) -> i128 {
        let mean = self.moment.div_euclid(self.weight);
        let lag = lag_ns << FRACTION_BITS;
        mean - lag * (self.weight + weight) / (self.weight * weight)
    }

    fn is_eligible(&self, key: K) -> bool {
        self.members
            .get(&key)
            .is_some_and(|m| m.vruntime * self.weight <= self.moment)
    }

    fn unindex(&mut self, member: &Member, key: K) {
        match member.place {
            Place::Held => {}
            Place::Eligible => {
                self.eligible.remove(&(member.deadline(), key));
            }
            Place::Early => {
                self.early.remove(&(member.vruntime, key));
            }
        }
    }

    fn index(&mut self, key: K) {
        let place = if self.is_eligible(key) {
            Place::Eligible
        } else {
            Place::Early
        };
        let Some(member) = self.members.get_mut(&key) else {
            return;
        };
        member.place = place;
        match place {
            Place::Eligible => self.eligible.insert((member.deadline(), key)),
            Place::Early | Place::Held => self.early.insert((member.vruntime, key)),
        };
    }

    fn move_to(&mut self, key: K, place: Place) {
        let Some(member) = self.members.get_mut(&key) else {
            return;
        };
        match place {
            Place::Eligible => {
                self.early.remove(&(member.vruntime, key));
                self.eligible.insert((member.deadline(), key));
            }
            Place::Early | Place::Held => {
                self.eligible.remove(&(member.deadline(), key));
                self.early.insert((member.vruntime, key));
            }
        }
        member.place = place;
    }
}

fn virtual_time(ns: u128, weight: i128) -> i128 {
    ((ns << FRACTION_BITS) as i128) / weight
}

/// Drops the fraction, to the nearest.
fn round_shift(value: i128) -> i128 {
    (value + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS
}

#[cfg(test)]
mod tests {
    use super::*;

    const SLICE: u64 = 2_000_000;

    fn queue(weights: &[u64]) -> Eevdf<usize> {
        let mut q = Eevdf::default();
        for (key, &weight) in weights.iter().enumerate() {
            q.join(key, weight, 0, SLICE);
            q.set_ready(key, true);
        }
        q
    }

    /// Serves `turns` turns of one slice each; returns the time that each member got.
    fn serve(q: &mut Eevdf<usize>, n: usize, turns: usize) -> Vec<u64> {
        let mut got = vec![0; n];
        for _ in 0..turns {
            let key = q.peek().unwrap();
            q.set_ready(key, false);
            q.begin_turn(key);
            q.charge(key, SLICE);
            q.set_ready(key, true);
            got[key] += SLICE;
        }
        got
    }

    #[test]
    fn time_follows_weight_within_one_slice() {
        let weights = [1_000, 4_000, 16_000, 64_000];
        let mut q = queue(&weights);
        let turns = 8_500;
        let got = serve(&mut q, weights.len(), turns);
        for (key, &weight) in weights.iter().enumerate() {
            let ideal = SLICE * turns as u64 / 85_000 * weight;
            assert!(
                got[key].abs_diff(ideal) <= SLICE,
                "{key}: {} for {ideal}",
                got[key]
            );
            assert!(q.lag_ns(key).unsigned_abs() <= u128::from(SLICE));
        }
        let sum: i128 = (0..4).map(|k| q.lag_ns(k)).sum();
        assert!(sum.abs() <= 4, "lags sum up to zero: {sum}");
    }

    #[test]
    fn leaving_and_returning_keeps_the_lag() {
        let mut q = queue(&[1, 1, 3]);
        q.charge(0, 10_000_000);
        let before = q.lag_ns(0);
        assert_eq!(before, -8_000_000);
        assert_eq!(q.leave(0, u64::MAX), before);
        serve(&mut q, 3, 100);
        q.join(0, 1, before, SLICE);
        assert!((q.lag_ns(0) - before).abs() <= 1, "{}", q.lag_ns(0));
    }

    #[test]
    fn a_new_weight_keeps_the_lag() {
        let mut q = queue(&[1000, 1000, 7000]);
        q.charge(1, 5_000_001);
        for weight in [1, 16_000, 3, 100_000_000, 1000] {
            let before = q.lag_ns(1);
            q.update(1, weight, SLICE);
            assert!(
                (q.lag_ns(1) - before).abs() <= 2,
                "{before} became {}",
                q.lag_ns(1)
            );
        }
    }

    #[test]
    fn a_queue_that_is_filled_anew_keeps_all_lags() {
        let mut q = queue(&[1, 4, 2, 8]);
        for (key, ns) in [(3, 7_000_001), (1, 900_000), (0, 33)] {
            q.charge(key, ns);
        }
        let joiner = |key: usize, weight: u64| Joiner {
            key,
            weight,
            lag_ns: q.lag_ns(key),
            request_ns: SLICE,
        };
        let joiners = [joiner(0, 1), joiner(1, 4), joiner(2, 2), joiner(3, 8)];
        let mut other = Eevdf::default();
        other.fill(joiners.into_iter());
        for key in 0..4 {
            let (old, new) = (q.lag_ns(key), other.lag_ns(key));
            assert!((old - new).abs() <= 2, "{key}: {old} became {new}");
        }
        // A lone one's debt is kept for whoever comes.
        let mut lone = Eevdf::default();
        let lag_ns = -5_000;
        lone.fill(
            [Joiner {
                lag_ns,
                ..joiners[0]
            }]
            .into_iter(),
        );
        assert_eq!(lone.lag_ns(0), -5_000);
        lone.join(9, 1, 0, SLICE);
        assert_eq!((lone.lag_ns(0), lone.lag_ns(9)), (-5_000, 5_000));
    }

    #[test]
    fn a_debt_outlives_being_alone() {
        let mut q = queue(&[1, 1]);
        q.charge(0, 10_000_000);
        assert_eq!(q.lag_ns(0), -5_000_000);
        let debt = q.leave(0, u64::MAX);
        let claim = q.leave(1, 1_000_000);
        assert_eq!((debt, claim), (-5_000_000, 0));
        // The debtor comes back alone, works alone, and meets somebody new.
        q.join(0, 1, debt, SLICE);
        q.set_ready(0, true);
        serve(&mut q, 1, 50);
        q.join(2, 1, 0, SLICE);
        assert_eq!((q.lag_ns(0), q.lag_ns(2)), (-5_000_000, 5_000_000));
    }

    #[test]
    fn a_claim_that_is_given_up_is_owed_no_more() {
        let mut q = queue(&[1, 1]);
        q.charge(0, 10_000_000);
        assert_eq!(q.leave(1, 1_000_000), 1_000_000);
        q.join(1, 1, 1_000_000, SLICE);
        assert_eq!((q.lag_ns(0), q.lag_ns(1)), (-1_000_000, 1_000_000));
    }

    #[test]
    fn a_joiner_neither_gains_nor_loses() {
        let mut q = queue(&[1, 1]);
        serve(&mut q, 2, 1000);
        q.join(2, 1, 0, SLICE);
        q.set_ready(2, true);
        assert_eq!(q.lag_ns(2), 0);
        let got = serve(&mut q, 3, 300);
        for time in got {
            assert!(time.abs_diff(100 * SLICE) <= SLICE);
        }
    }

    #[test]
    fn who_is_before_whom_is_the_order_of_choosing() {
        let mut q = queue(&[1, 4, 2, 8]);
        for key in [3, 1, 0] {
            q.charge(key, SLICE / 3);
        }
        for _ in 0..20 {
            let mut order = q.before(9);
            assert_eq!(order.len(), 4);
            assert_eq!(order.first().copied(), q.peek());
            let last = order.pop().unwrap();
            assert_eq!(q.before(last), order);
            serve(&mut q, 4, 1);
        }
        q.set_ready(2, false);
        assert!(!q.before(9).contains(&2), "who runs is not before anybody");
    }

    #[test]
    fn somebody_is_chosen_even_if_only_the_others_are_eligible() {
        let mut q = queue(&[1, 1]);
        q.charge(0, 10_000_000);
        q.set_ready(1, false);
        assert_eq!(q.peek(), Some(0));
        q.set_ready(0, false);
        assert_eq!(q.peek(), None);
        assert!(!q.has_ready());
    }
}
