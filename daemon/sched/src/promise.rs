//! Promises: the time by which each waiting member begins its next turn, and the check whether a
//! turn of another member leaves enough time for all promises.
//!
//! A promise says: the member begins a turn before the queue's clock reaches `by`. The clock grows
//! by charged time ÷ Σ weight, so it runs slower when more members compete. Turns may be shortened
//! to keep promises. `cost` is the member's shortest turn plus the return of the GPU; `period` is
//! the length of the promise when it was made.
//!
//! If the members run shortest turns in the order of their promises, all begin in time when, for
//! each promise k, the turns before it fit (summed over all j with by_j < by_k):
//!
//! ```text
//! F(k) = Σ cost_j · (1 + 2 · (by_k − by_j) / period_j)  ≤  (by_k − now) · Σw
//! ```
//!
//! The 1 stands for the turn that j waits for. The rest stands for the turns that j will ask for
//! until by_k, if no member runs before half of its period has passed. The shortest turns are then
//! sporadic tasks with implicit deadlines of half a period. Earliest deadline first meets these
//! deadlines as long as the tasks use at most the whole GPU (Liu and Layland, 1973; Jeffay, Stanat
//! and Martel, 1991, for turns that cannot be interrupted). So if Σ cost / (period · Σw) ≤ 1/2, a
//! turn that leaves the inequality true now also leaves it true later, for all promises. Where the
//! sum is larger (kernels outlast a slice), the second term is left out, and the promises are
//! attempted, not proven.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Fraction bits of virtual time. The unit is 2^-20 ns per unit of weight.
pub(crate) const FRACTION_BITS: u32 = 20;

/// Number of promises that one decision examines, the earliest first. Later promises are examined
/// when they become the earliest.
const IN_SIGHT: usize = 32;

/// Fraction bits of cost ÷ period.
const LOAD_BITS: u32 = 32;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Promise {
    /// Length of the shortest turn plus the return of the GPU, in ns.
    cost_ns: u64,
    /// Length of the promise in virtual time: the longest wait.
    period: i128,
    /// Cost ÷ period, in ns per virtual time.
    load: i128,
}

impl Promise {
    /// A promise of length `period` (virtual time) to a member whose shortest turn takes `cost_ns`.
    pub(crate) fn new(cost_ns: u64, period: i128) -> Self {
        Self {
            cost_ns,
            period,
            load: (i128::from(cost_ns) << LOAD_BITS) / period.max(1),
        }
    }

    /// Length in virtual time.
    pub(crate) fn period(self) -> i128 {
        self.period
    }
}

/// The clock of a queue and its rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Now {
    /// Σ charged time ÷ Σw.
    pub(crate) clock: i128,
    /// Σw.
    pub(crate) weight: i128,
}

impl Now {
    /// GPU time in ns until the clock reaches `by`.
    fn until_ns(self, by: i128) -> i128 {
        product(by - self.clock, self.weight) >> FRACTION_BITS
    }
}

/// Work that must be complete before a promise: F in ns, up to a clock value.
struct Ahead {
    /// 2, or 0 if the formula leaves out the turns that members will ask for later.
    twice: i128,
    ns: i128,
    slope: i128,
    at: i128,
}

impl Ahead {
    /// Moves on to the clock value `to`.
    fn pass(&mut self, to: i128) {
        self.ns += product(self.slope, (to - self.at).max(0)) >> LOAD_BITS;
        self.at = self.at.max(to);
    }

    fn put(&mut self, promise: Promise) {
        self.ns += i128::from(promise.cost_ns);
        self.slope += self.twice * promise.load;
    }
}

/// Product of two numbers below 2^63, as all times and weights within their limits are. One
/// multiplication of 64 bits is faster than several.
fn product(a: i128, b: i128) -> i128 {
    let small = |number: i128| number.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64;
    i128::from(small(a)).wrapping_mul(i128::from(small(b)))
}

/// The promises to waiting members.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(bound(serialize = "K: Serialize", deserialize = "K: Deserialize<'de>"))]
pub(crate) struct Promises<K: Ord> {
    #[serde(with = "crate::serial::pairs")]
    by: BTreeMap<(i128, K), Promise>,
    /// Σ cost ÷ period.
    load: i128,
    /// Σ cost.
    cost_ns: u64,
}

impl<K: Ord> Default for Promises<K> {
    fn default() -> Self {
        Self {
            by: BTreeMap::new(),
            load: 0,
            cost_ns: 0,
        }
    }
}

impl<K: Ord + Copy> Promises<K> {
    pub(crate) fn make(&mut self, by: i128, key: K, promise: Promise) {
        self.load += promise.load;
        self.cost_ns = self.cost_ns.saturating_add(promise.cost_ns);
        self.by.insert((by, key), promise);
    }

    /// Removes a promise: its member begins a turn or no longer waits.
    pub(crate) fn end(&mut self, by: i128, key: K) {
        if let Some(promise) = self.by.remove(&(by, key)) {
            self.load -= promise.load;
            self.cost_ns = self.cost_ns.saturating_sub(promise.cost_ns);
        }
    }

    /// Whether it is proven that promises which satisfy the inequality are kept.
    pub(crate) fn provable(&self, now: Now) -> bool {
        2 * (self.load << FRACTION_BITS) <= now.weight << LOAD_BITS
    }

    /// Longest turn of `whose` in ns, including the return of the GPU, after which all promises to
    /// others can still be kept and `whose` waits under the promise `next`. Negative: the promises
    /// cannot be proven to hold. `None`: no bound.
    pub(crate) fn room(&self, whose: K, next: Promise, now: Now) -> Option<i128> {
        let mut ahead = Ahead {
            twice: if self.provable(now) { 2 } else { 0 },
            ns: 0,
            slope: 0,
            at: now.clock,
        };
        let mut rest = i128::from(self.cost_ns) + i128::from(next.cost_ns);
        let mut next = Some((now.clock + next.period, next));
        let mut room: Option<i128> = None;
        for (&(by, key), &promise) in self.by.iter().take(IN_SIGHT) {
            if let Some((_, next)) = next.take_if(|(next_by, _)| *next_by < by) {
                ahead.pass(now.clock + next.period);
                ahead.put(next);
            }
            ahead.pass(by);
            if key != whose {
                let left = now.until_ns(by) - ahead.ns;
                let least = room.map_or(left, |room| room.min(left));
                room = Some(least);
                ahead.put(promise);
                rest -= i128::from(promise.cost_ns);
                // Later promises leave at least this time: F grows at most as fast as time passes.
                if left - rest - i128::from(promise.cost_ns) >= least {
                    break;
                }
            }
        }
        room
    }

    /// Members whose promise is at least half over, in the order of their promises.
    pub(crate) fn pressing(&self, now: Now) -> impl Iterator<Item = K> + '_ {
        let half_over = move |&(&(by, _), promise): &(&(i128, K), &Promise)| {
            by - now.clock <= promise.period / 2
        };
        let in_sight = self.by.iter().take(IN_SIGHT);
        in_sight.filter(half_over).map(|(&(_, key), _)| key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With weight 1, virtual time is ns.
    fn at(ns: i128) -> Now {
        Now {
            clock: ns << FRACTION_BITS,
            weight: 1,
        }
    }

    fn promises(those: &[(i128, u64, i128)]) -> Promises<usize> {
        let mut promises = Promises::default();
        for (key, &(by, cost_ns, period)) in those.iter().enumerate() {
            let period = period << FRACTION_BITS;
            promises.make(by << FRACTION_BITS, key, Promise::new(cost_ns, period));
        }
        promises
    }

    const LATER: Promise = Promise {
        cost_ns: 1,
        period: 1 << 80,
        load: 0,
    };

    #[test]
    fn whose_turn_it_is_will_ask_for_another() {
        let p = promises(&[(100, 10, 1_000_000_000)]);
        let next = Promise::new(7, 40 << FRACTION_BITS);
        assert_eq!(p.room(9, LATER, at(0)), Some(100));
        let then = 100 - 7 - 2 * 7 * 60 / 40;
        let room = p.room(9, next, at(0)).unwrap();
        assert!((then..=then + 1).contains(&room), "{room}");
        assert_eq!(
            p.room(9, next, at(70)),
            Some(30),
            "no further turn is due before that"
        );
    }

    #[test]
    fn room_is_what_the_tightest_promise_leaves() {
        let long = 1_000_000_000;
        let p = promises(&[(100, 10, long), (30, 10, long), (32, 5, long)]);
        // Before clock value 32, the member that is due at 30 has its turn; before 100, both
        // others.
        assert_eq!(p.room(9, LATER, at(0)), Some(22));
        assert_eq!(
            p.room(1, LATER, at(0)),
            Some(32),
            "a member's own promise does not limit its turn"
        );
        assert_eq!(p.room(9, LATER, at(25)), Some(-3));
        assert_eq!(promises(&[]).room(9, LATER, at(5)), None);
        assert_eq!(promises(&[(7, 1, 10)]).room(0, LATER, at(5)), None);
    }

    #[test]
    fn time_that_passes_more_slowly_leaves_more_room() {
        let p = promises(&[(100, 10, 1_000)]);
        let now = Now {
            clock: 0,
            weight: 5,
        };
        assert_eq!(p.room(9, LATER, now), Some(500));
    }

    #[test]
    fn what_will_be_asked_for_meanwhile_counts_where_that_is_provable() {
        let p = promises(&[(10, 12, 50), (50, 1, 1_000)]);
        assert!(p.provable(at(0)));
        assert_eq!(p.room(9, LATER, at(0)), Some(10));
        let later = promises(&[(10, 12, 50), (25, 1, 1_000)]);
        assert_eq!(
            later.room(9, LATER, at(0)),
            Some(6),
            "12 · (1 + 2 · 15/50) must be done before it"
        );
        let hopeless = promises(&[(10, 40, 50), (30, 1, 1_000)]);
        assert!(!hopeless.provable(at(0)));
        assert_eq!(hopeless.room(9, LATER, at(0)), Some(-10));
    }

    #[test]
    fn pressing_are_those_that_waited_for_half_their_time() {
        let mut p = promises(&[(100, 1, 100), (60, 1, 200), (55, 1, 80)]);
        let pressing = |p: &Promises<usize>, ns| p.pressing(at(ns)).collect::<Vec<_>>();
        assert_eq!(pressing(&p, 10), [1]);
        assert_eq!(pressing(&p, 15), [2, 1]);
        p.end(55 << FRACTION_BITS, 2);
        p.end(55 << FRACTION_BITS, 2);
        assert_eq!(pressing(&p, 50), [1, 0]);
        p.end(60 << FRACTION_BITS, 1);
        p.end(100 << FRACTION_BITS, 0);
        assert_eq!(p, Promises::default());
    }
}
