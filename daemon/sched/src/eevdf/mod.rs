//! Weighted sharing by virtual time: earliest eligible virtual deadline first (EEVDF).
//!
//! Each member has a virtual runtime `v` that grows by charged time ÷ weight. `V`, the weighted
//! mean of all `v`, is the virtual time of ideal sharing. `weight × (V − v)` is a member's *lag* in
//! ns: positive if the member got less GPU time than its share, negative if more. The lags of a
//! queue add up to zero. A member is eligible while its lag is not negative. Among the eligible
//! members, the member with the earliest deadline is chosen. A member that leaves and joins again
//! keeps its lag in ns (Stoica & Abdel-Wahab, 1995).
//!
//! In plain EEVDF, a deadline is one request (one slice ÷ weight) after `v`. Two turns of a member
//! may then lie almost two periods apart: the first at the start of one period, the second at the
//! end of the next. Here a deadline is earlier if the last turn *began* early: one period after
//! that start. A period is (slice + time to return the GPU) ÷ weight. So the members run in a
//! stable order, one turn each per period.
//!
//! Several members may have the same deadline; some of them are then late. Promises bound the delay
//! (see [`crate::promise`]): each waiting member is promised a turn within C_i · Σw/w_i + C,
//! measured on the queue's own clock (w_i: weight, C_i: cost of a turn of member i, C: cost of the
//! longest turn). If a turn of the chosen member would break a promise, that turn is shortened, or
//! another member is chosen.
//!
//! A lone member has lag zero by definition. `carry_ns` stores its earlier debt until a second
//! member joins.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::promise::{FRACTION_BITS, Now, Promise, Promises};

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Member {
    weight: i128,
    vruntime: i128,
    /// Deadline of the next turn if the request does not end earlier: one period after the last
    /// turn began.
    due_by: i128,
    /// Length of a whole request in virtual time.
    whole: i128,
    /// The scheduler interrupts a holder in order to serve this member.
    at_once: bool,
    /// `until`: `vruntime` at the end of the current request. `due`: the deadline at which the
    /// member was chosen for that request.
    until: i128,
    due: i128,
    request_ns: u64,
    carry_ns: i128,
    place: Place,
    /// Longest recent time from a revoke to the return of the GPU, in ns.
    back_ns: u64,
    /// While ready: time on the queue's clock by which a turn is promised.
    promised: i128,
}

impl Member {
    fn deadline(&self) -> i128 {
        if self.at_once {
            self.vruntime + self.whole - AT_ONCE
        } else {
            self.usual_deadline()
        }
    }

    fn usual_deadline(&self) -> i128 {
        self.due_by.clamp(self.vruntime, self.vruntime + self.whole)
    }

    /// Shortest length in ns to which a turn may be shortened.
    fn least_ns(&self) -> u64 {
        self.request_ns / 4
    }

    /// Deadline of a running member: until its request is complete, the deadline at which the
    /// member was chosen.
    fn running_deadline(&self) -> i128 {
        if self.vruntime < self.until {
            self.due
        } else {
            self.deadline()
        }
    }
}

/// Distance by which the deadline of an `at_once` member lies before all other deadlines.
const AT_ONCE: i128 = 1 << 100;

/// The index that a member is in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Place {
    /// No index: the member counts in the mean but cannot be chosen, because it runs or has no
    /// work.
    Held,
    /// The index by deadline. The lag was not negative when the member was put there.
    Eligible,
    /// The index by virtual runtime, for members with negative lag.
    Early,
}

/// The data of a member that joins a queue.
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
    /// `vruntime` of the first member of an empty queue.
    origin: i128,
    /// The queue's clock: grows by charged time ÷ Σ weight. Unlike the mean, it does not move when
    /// members join or leave.
    clock: i128,
    promises: Promises<K>,
    /// Longest recent time from a revoke to the return of the GPU, in ns, over all members.
    back_ns: u64,
    /// Number of members per length of request in ns.
    requests: BTreeMap<u64, usize>,
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
            clock: 0,
            promises: Promises::default(),
            back_ns: 0,
            requests: BTreeMap::new(),
        }
    }
}

impl<K: Ord + Copy> Eevdf<K> {
    /// Adds a member with the lag `lag_ns` (negative: a debt). The member cannot be chosen before
    /// [`Eevdf::set_ready`]. A call for a present member has no effect.
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
        let whole = virtual_time(u128::from(request_ns), weight);
        self.weight += weight;
        *self.requests.entry(request_ns).or_default() += 1;
        self.moment += weight * vruntime;
        let place = Place::Held;
        let member = Member {
            weight,
            vruntime,
            due_by: vruntime + whole,
            whole,
            at_once: false,
            until: vruntime,
            due: vruntime,
            request_ns,
            carry_ns,
            place,
            back_ns: self.back_ns,
            promised: 0,
        };
        self.members.insert(key, member);
    }

    /// Puts members into an empty queue, each with its lag. If the lags do not add up to zero, the
    /// difference is divided among the members by weight.
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
            // `join` has put the member at `origin`; here the member moves to the place of its lag.
            let vruntime = self.origin - lag / own;
            self.moment += own * (vruntime - member.vruntime);
            member.vruntime = vruntime;
            member.due_by = vruntime + member.whole;
            member.until = vruntime;
            member.due = vruntime;
            if alone {
                member.carry_ns = joiner.lag_ns;
            }
        }
    }

    /// Removes a member and returns its lag in ns. A debt is returned whole, a positive lag up to
    /// `claim_cap_ns`: a member that leaves has no work, and with a saved-up lag it could
    /// monopolise the GPU later. The rest of a positive lag is dropped, and the other members are
    /// freed from this debt.
    pub(crate) fn leave(&mut self, key: K, claim_cap_ns: u64) -> i128 {
        let lag = self.lag_ns(key).min(i128::from(claim_cap_ns));
        self.set_ready(key, false);
        let Some(member) = self.members.remove(&key) else {
            return 0;
        };
        self.forget_request(member.request_ns);
        self.weight -= member.weight;
        self.moment -= member.weight * member.vruntime;
        if self.weight == 0 {
            self.origin = member.vruntime;
        }
        lag
    }

    /// Sets whether the member can be chosen.
    pub(crate) fn set_ready(&mut self, key: K, ready: bool) {
        let Some(member) = self.members.get(&key).cloned() else {
            return;
        };
        if ready == (member.place != Place::Held) {
            return;
        }
        if ready {
            self.index(key);
            self.promise(key, i128::MAX);
            return;
        }
        self.unindex(&member, key);
        self.promises.end(member.promised, key);
        if let Some(member) = self.members.get_mut(&key) {
            member.place = Place::Held;
        }
    }

    /// Promises a ready member a turn within C_i · Σw/w_i + C from now on, plus (debt − C_i) ·
    /// Σw/w_i if the debt exceeds C_i; in any case before `before`.
    fn promise(&mut self, key: K, before: i128) {
        let Some(promise) = self.members.get(&key).map(|member| self.promise_to(member)) else {
            return;
        };
        let by = (self.clock + promise.period()).min(before);
        if let Some(member) = self.members.get_mut(&key) {
            member.promised = by;
        }
        self.promises.make(by, key, promise);
    }

    fn promise_to(&self, member: &Member) -> Promise {
        let ns = |ns: u64| u128::from(ns.saturating_add(self.back_ns));
        let round = virtual_time(ns(member.request_ns), member.weight);
        // A debt beyond one turn delays the next turn.
        let mean = self.moment.div_euclid(self.weight.max(1));
        let debt = (member.vruntime - mean - round).max(0);
        let longest = virtual_time(ns(self.longest_ns()), self.weight.max(1));
        let cost_ns = member.least_ns().saturating_add(member.back_ns);
        Promise::new(cost_ns, debt + round + longest)
    }

    /// Longest turn in ns that any member asks for.
    fn longest_ns(&self) -> u64 {
        self.requests.last_key_value().map_or(0, |(&ns, _)| ns)
    }

    fn now(&self) -> Now {
        Now {
            clock: self.clock,
            weight: self.weight,
        }
    }

    fn forget_request(&mut self, request_ns: u64) {
        if let Some(count) = self.requests.get_mut(&request_ns) {
            *count -= 1;
            if *count == 0 {
                self.requests.remove(&request_ns);
            }
        }
    }

    /// Records that a member returned the GPU `took_ns` after the revoke.
    pub(crate) fn gave_back(&mut self, key: K, took_ns: u64) {
        self.back_ns = took_ns.max(self.back_ns - self.back_ns / 256);
        if let Some(member) = self.members.get_mut(&key) {
            member.back_ns = took_ns.max(member.back_ns - member.back_ns / 16);
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
        self.clock += virtual_time(u128::from(ns), self.weight);
        if let Some(m) = self.members.get_mut(&key) {
            m.vruntime += step;
        }
        if member.place != Place::Held {
            self.index(key);
        }
    }

    /// Changes weight and request length. The lag in ns stays the same.
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
        self.forget_request(member.request_ns);
        *self.requests.entry(request_ns).or_default() += 1;
        // Distances to deadlines keep their length in ns but are cut to the new request.
        let whole = virtual_time(u128::from(request_ns), weight);
        let scaled = |ahead: i128| (ahead * member.weight / weight).clamp(0, whole);
        if let Some(m) = self.members.get_mut(&key) {
            m.weight = weight;
            m.vruntime = vruntime;
            m.request_ns = request_ns;
            m.whole = whole;
            m.due_by = vruntime + scaled(member.due_by - member.vruntime);
            m.until = vruntime + scaled(member.until - member.vruntime);
            m.due = vruntime + scaled(member.due - member.vruntime);
        }
        if member.place != Place::Held {
            self.index(key);
            self.promises.end(member.promised, key);
            self.promise(key, member.promised);
        }
    }

    /// Starts a turn of the member: the next turn is due one period from now. Returns the length of
    /// this turn in ns, at most the request.
    pub(crate) fn begin_turn(&mut self, key: K) -> u64 {
        let Some(member) = self.members.get(&key).cloned() else {
            return u64::MAX;
        };
        self.unindex(&member, key);
        let mean = self.moment.div_euclid(self.weight);
        let period = member.request_ns.saturating_add(self.back_ns);
        let period = virtual_time(u128::from(period), member.weight);
        if let Some(m) = self.members.get_mut(&key) {
            m.due = member.usual_deadline();
            m.at_once = false;
            m.due_by = mean.max(member.vruntime) + period;
            m.until = member.vruntime + member.whole;
        }
        if member.place != Place::Held {
            self.index(key);
        }
        let (least, most) = (member.least_ns(), member.request_ns);
        let room = self.room(key).unwrap_or(i128::from(u64::MAX));
        let room = u64::try_from(room).unwrap_or(0);
        room.saturating_sub(member.back_ns).clamp(least, most)
    }

    /// Ends the member's current request before all of its time is charged: its lease began before
    /// the previous lease ended, or its work ended before its turn.
    pub(crate) fn end_turn(&mut self, key: K) {
        if let Some(member) = self.members.get_mut(&key) {
            member.until = member.until.min(member.vruntime);
        }
    }

    /// Chooses the member for the next turn: the member with the earliest deadline, unless even its
    /// shortest turn would break a promise to another member. Then the member with that promise is
    /// chosen.
    pub(crate) fn pick(&mut self) -> Option<K> {
        let best = self.peek()?;
        if self.leaves_room(best) {
            return Some(best);
        }
        let mut pressing = self.promises.pressing(self.now());
        let pressed = pressing.find(|&key| self.may_be_early(key));
        pressed.or(Some(best))
    }

    /// Whether a member that is not eligible may have a shortest turn. Its debt after that turn may
    /// not exceed the debt after a whole turn of a member that has just become eligible.
    fn may_be_early(&self, key: K) -> bool {
        self.members.get(&key).is_some_and(|m| {
            let spared = m.request_ns.saturating_sub(m.least_ns());
            self.lag_ns(key) >= -i128::from(spared)
        })
    }

    /// Whether all promises to other members are still possible if this member runs a shortest turn
    /// now.
    fn leaves_room(&self, key: K) -> bool {
        let Some(member) = self.members.get(&key) else {
            return true;
        };
        let cost = member.least_ns().saturating_add(member.back_ns);
        self.room(key).is_none_or(|room| room >= i128::from(cost))
    }

    /// Longest turn of this member, in ns, that the promises to other members allow. `None`: no
    /// bound, also after an overrun so long that the promises cannot be kept any more.
    fn room(&self, key: K) -> Option<i128> {
        let hopeless = -i128::from(self.longest_ns().saturating_add(self.back_ns));
        let next = self.promise_to(self.members.get(&key)?);
        let room = self.promises.room(key, next, self.now());
        room.filter(|&room| room >= hopeless)
    }

    /// Lag of the member in ns; negative: a debt.
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

    /// The next member by deadline. If no ready member is eligible (the eligible members have no
    /// work), the ready member with the smallest virtual runtime is next.
    pub(crate) fn peek(&mut self) -> Option<K> {
        while let Some(&(vruntime, key)) = self.early.first() {
            if vruntime * self.weight > self.moment {
                break;
            }
            self.move_to(key, Place::Eligible);
        }
        // A member that joins with a positive lag moves the mean back. Members whose virtual
        // runtime is then above the mean are no longer eligible.
        while let Some(&(_, key)) = self.eligible.first() {
            if self.is_eligible(key) {
                return Some(key);
            }
            self.move_to(key, Place::Early);
        }
        self.early.first().map(|&(_, key)| key)
    }

    /// Whether `holder`, which runs, goes on instead of the best ready member.
    pub(crate) fn holder_wins(&mut self, holder: K) -> bool {
        let Some(best) = self.peek() else { return true };
        if best == holder {
            return true;
        }
        if !self.leaves_room(holder) {
            return false;
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

    /// Whether `other` is ready and eligible, and its deadline is before the end of `holder`'s
    /// current request.
    pub(crate) fn is_due_before(&self, other: K, holder: K) -> bool {
        let (Some(o), Some(h)) = (self.members.get(&other), self.members.get(&holder)) else {
            return false;
        };
        o.place != Place::Held && self.is_eligible(other) && o.vruntime + o.whole < h.until
    }

    /// Puts the member before all members with a usual deadline, because the scheduler interrupts a
    /// holder in order to serve this member. Several of these members keep their order.
    pub(crate) fn hasten(&mut self, key: K) {
        let Some(member) = self.members.get(&key).cloned() else {
            return;
        };
        self.unindex(&member, key);
        if let Some(m) = self.members.get_mut(&key) {
            m.at_once = true;
        }
        if member.place != Place::Held {
            self.index(key);
        }
    }

    /// Whether any member can be chosen.
    pub(crate) fn has_ready(&self) -> bool {
        !self.eligible.is_empty() || !self.early.is_empty()
    }

    /// Number of members that can be chosen.
    pub(crate) fn ready_count(&self) -> usize {
        self.eligible.len() + self.early.len()
    }

    /// All members.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> + '_ {
        self.members.keys().copied()
    }

    /// The ready members that would be chosen before `key` now, in order. `key` need not be a
    /// member.
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

    /// Virtual runtime at which a new member of this weight has exactly this lag, counting that its
    /// joining moves the mean.
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

/// Rounds to the nearest integer without fraction.
fn round_shift(value: i128) -> i128 {
    (value + (1 << (FRACTION_BITS - 1))) >> FRACTION_BITS
}

#[cfg(test)]
mod tests;
