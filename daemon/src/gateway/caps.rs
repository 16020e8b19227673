//! Bounds at the doors: how many connections, and how fast new ones may come.
//!
//! One VM that floods hurts itself: its own bounds are reached long before those of all.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::config::Limits;

/// Who is counted: a VM, or everybody whom we do not know.
pub(crate) type Who = Option<u32>;

/// The counters of all doors.
#[derive(Debug)]
pub(crate) struct Caps {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    total: u32,
    rate: DefaultDirectRateLimiter,
    peers: HashMap<Who, Door>,
}

#[derive(Debug)]
struct Door {
    connections: u32,
    handshakes: u32,
    telling: u32,
    rate: DefaultDirectRateLimiter,
}

/// Refusals of one VM that are being told at once; beyond it connections are closed without a word.
const TELLING: u32 = 8;

/// What to do with a new connection.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Serve it.
    Serve(Permit),
    /// Refuse it with this sentence.
    Tell(Permit, String),
    /// Close it without a word: there are too many even to tell.
    Close,
}

impl Caps {
    pub(crate) fn new(limits: &Limits) -> Arc<Caps> {
        let state = State {
            limits: limits.clone(),
            total: 0,
            rate: limiter(limits.connects_per_s_total, limits.connects_per_s_total),
            peers: HashMap::new(),
        };
        Arc::new(Caps {
            state: Mutex::new(state),
        })
    }

    /// Takes new limits over; what is open stays open.
    pub(crate) fn set(&self, limits: &Limits) {
        let mut state = self.lock();
        state.limits = limits.clone();
        state.rate = limiter(limits.connects_per_s_total, limits.connects_per_s_total);
        for door in state.peers.values_mut() {
            door.rate = limiter(limits.connects_per_s_per_vm, limits.connects_burst_per_vm);
        }
    }

    /// Counts a new connection, or says why not.
    pub(crate) fn enter(self: &Arc<Self>, who: Who) -> Verdict {
        let mut state = self.lock();
        let State {
            limits,
            total,
            rate,
            peers,
        } = &mut *state;
        if *total >= limits.connections_total {
            return Verdict::Close;
        }
        let door = peers.entry(who).or_insert_with(|| Door {
            connections: 0,
            handshakes: 0,
            telling: 0,
            rate: limiter(limits.connects_per_s_per_vm, limits.connects_burst_per_vm),
        });
        let reason = door.full(limits).or_else(|| {
            // The VM's own bucket first: a flooding VM must not empty the one of all.
            (door.rate.check().is_err() || rate.check().is_err()).then(|| {
                "new connections come too fast; the limits are limits.connects_per_s_per_vm and \
                 limits.connects_per_s_total of the host's vgpud.toml"
                    .to_owned()
            })
        });
        match reason {
            None => {
                *total += 1;
                door.connections += 1;
                door.handshakes += 1;
                Verdict::Serve(Permit {
                    caps: self.clone(),
                    who,
                    kind: Kind::Handshake,
                })
            }
            Some(reason) if door.telling < TELLING => {
                *total += 1;
                door.telling += 1;
                Verdict::Tell(
                    Permit {
                        caps: self.clone(),
                        who,
                        kind: Kind::Telling,
                    },
                    reason,
                )
            }
            Some(_) => Verdict::Close,
        }
    }

    /// Forgets the counters of VMs that are no more, unless something of them is still open.
    pub(crate) fn keep(&self, vms: &HashSet<u32>) {
        self.lock().peers.retain(|who, door| {
            who.is_none_or(|vm| vms.contains(&vm)) || door.connections + door.telling > 0
        });
    }

    /// Open connections.
    pub(crate) fn open(&self) -> u32 {
        self.lock().total
    }

    fn leave(&self, who: Who, kind: Kind) {
        let mut state = self.lock();
        state.total = state.total.saturating_sub(1);
        let Some(door) = state.peers.get_mut(&who) else {
            return;
        };
        match kind {
            Kind::Telling => door.telling = door.telling.saturating_sub(1),
            Kind::Handshake => {
                door.handshakes = door.handshakes.saturating_sub(1);
                door.connections = door.connections.saturating_sub(1);
            }
            Kind::Known => door.connections = door.connections.saturating_sub(1),
        }
    }

    fn settle(&self, who: Who) {
        if let Some(door) = self.lock().peers.get_mut(&who) {
            door.handshakes = door.handshakes.saturating_sub(1);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Plain counters: a panic elsewhere leaves them usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Door {
    fn full(&self, limits: &Limits) -> Option<String> {
        if self.handshakes >= limits.handshakes_per_peer {
            return Some(format!(
                "{} connections of this VM have not introduced themselves yet, and no more may \
                 (limits.handshakes_per_peer of the host's vgpud.toml)",
                self.handshakes
            ));
        }
        (self.connections >= limits.connections_per_vm).then(|| {
            format!(
                "this VM has {} connections, and no more may be open \
                 (limits.connections_per_vm of the host's vgpud.toml)",
                self.connections
            )
        })
    }
}

fn limiter(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let positive = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    RateLimiter::direct(Quota::per_second(positive(per_second)).allow_burst(positive(burst)))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Handshake,
    Known,
    Telling,
}

/// A counted connection; counted no more when dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    caps: Arc<Caps>,
    who: Who,
    kind: Kind,
}

impl Permit {
    /// The connection has said who it is.
    pub(crate) fn introduced(&mut self) {
        if self.kind == Kind::Handshake {
            self.kind = Kind::Known;
            self.caps.settle(self.who);
        }
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.caps.leave(self.who, self.kind);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits() -> Limits {
        Limits {
            connections_total: 40,
            connections_per_vm: 4,
            handshakes_per_peer: 2,
            connects_per_s_total: 1_000,
            connects_per_s_per_vm: 1_000,
            connects_burst_per_vm: 1_000,
            ..Limits::default()
        }
    }

    fn serve(caps: &Arc<Caps>, who: Who) -> Permit {
        match caps.enter(who) {
            Verdict::Serve(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn handshakes_connections_and_refusals_are_bounded_per_vm() {
        let caps = Caps::new(&limits());
        let mut held = vec![serve(&caps, Some(1)), serve(&caps, Some(1))];
        let mut told = Vec::new();
        while let Verdict::Tell(permit, text) = caps.enter(Some(1)) {
            assert!(text.contains("limits.handshakes_per_peer"), "{text}");
            told.push(permit);
        }
        assert_eq!(told.len() as u32, TELLING, "then closed without a word");
        drop(told);
        held.push(serve(&caps, Some(2)));

        held.iter_mut().for_each(Permit::introduced);
        for _ in 0..2 {
            let mut permit = serve(&caps, Some(1));
            permit.introduced();
            held.push(permit);
        }
        let Verdict::Tell(_, text) = caps.enter(Some(1)) else {
            panic!("a fifth is served")
        };
        assert!(text.contains("limits.connections_per_vm"), "{text}");
        drop(held);
        assert_eq!(caps.open(), 0);
        drop(serve(&caps, Some(1)));
    }

    #[test]
    fn a_flood_of_one_vm_leaves_the_others_their_rate() {
        let caps = Caps::new(&Limits {
            connects_per_s_per_vm: 1,
            connects_burst_per_vm: 3,
            ..limits()
        });
        let served = (0..100)
            .filter(|_| matches!(caps.enter(Some(1)), Verdict::Serve(_)))
            .count();
        assert!((3..=4).contains(&served), "{served}");
        drop(serve(&caps, Some(2)));
    }

    #[test]
    fn counters_of_vms_that_are_gone_are_forgotten() {
        let caps = Caps::new(&limits());
        let held = serve(&caps, Some(1));
        drop(serve(&caps, Some(2)));
        caps.keep(&HashSet::new());
        let known = || caps.lock().peers.len();
        assert_eq!(known(), 1, "what is open still counts");
        drop(held);
        caps.keep(&HashSet::new());
        assert_eq!(known(), 0);
    }

    #[test]
    fn the_total_is_a_hard_bound() {
        let caps = Caps::new(&Limits {
            connections_total: 2,
            ..limits()
        });
        let _held = [serve(&caps, Some(1)), serve(&caps, None)];
        assert!(matches!(caps.enter(Some(3)), Verdict::Close));
    }
}
