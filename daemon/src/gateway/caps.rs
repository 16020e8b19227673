//! Limits of the listeners: how many connections are open, and how fast new connections come.
//!
//! A VM that floods the listeners harms itself only, however many VMs do so. Half of the
//! connections and of the rate for all VMs is reserved, with the same share for each registered VM.
//! The other half goes to whoever comes first. The data connection of an admitted session is
//! outside all limits, because the admission promised this connection.

use std::collections::{HashMap, HashSet};
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use governor::{DefaultDirectRateLimiter, Quota, RateLimiter};

use crate::config::Limits;

/// Key of the counters: a VM, or `None` for all peers that are no registered VM.
pub(crate) type Who = Option<u32>;

/// The counters of all listeners.
#[derive(Debug)]
pub(crate) struct Caps {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    limits: Limits,
    /// Number of registered VMs, and so of reserved shares.
    vms: u32,
    total: u32,
    /// Connections of VMs beyond their reserved shares, and of unknown peers.
    pooled: u32,
    /// Rate of new connections beyond the reserved shares.
    rate: DefaultDirectRateLimiter,
    peers: HashMap<Who, PeerCounters>,
}

#[derive(Debug)]
struct PeerCounters {
    connections: u32,
    handshakes: u32,
    telling: u32,
    /// Connections that may be the data connections of admitted sessions.
    promised: u32,
    rate: DefaultDirectRateLimiter,
    looks: DefaultDirectRateLimiter,
    /// The VM's reserved part of the total rate; `None` for unknown peers.
    reserved: Option<DefaultDirectRateLimiter>,
}

/// Least burst of a VM's reserved rate: a VM may always open this many connections at once, however
/// many VMs there are.
const RESERVED_BURST: u32 = 4;

/// Most looks of one VM per second that are answered; twice as many at once after a pause. A tool
/// sends one or two looks per second.
pub(crate) const LOOKS_PER_S: u32 = 20;

/// Most refusals of one VM that are being sent at a time. Further connections are closed without a
/// refusal.
const TELLING: u32 = 8;

/// The decision about a new connection.
#[derive(Debug)]
pub(crate) enum Verdict {
    /// Serve it.
    Serve(Permit),
    /// Refuse it with this sentence. The permit counts the refusal while it is being sent.
    Tell(Permit, String),
    /// Close it without a refusal: too many refusals are being sent, or all places are taken.
    Close,
}

impl Caps {
    pub(crate) fn new(limits: &Limits) -> Arc<Caps> {
        let state = State {
            limits: limits.clone(),
            vms: 0,
            total: 0,
            pooled: 0,
            rate: pool_rate(limits),
            peers: HashMap::new(),
        };
        Arc::new(Caps {
            state: Mutex::new(state),
        })
    }

    /// Applies new limits. Open connections stay open, even beyond the new limits.
    pub(crate) fn set(&self, limits: &Limits) {
        let mut state = self.lock();
        state.limits = limits.clone();
        state.rate = pool_rate(limits);
        for peer in state.peers.values_mut() {
            peer.rate = limiter(limits.connects_per_s_per_vm, limits.connects_burst_per_vm);
        }
        state.share_out();
    }

    /// Counts a new connection and decides about it. `promised`: number of sessions of this VM that
    /// wait for their data connections. As many connections are accepted beyond the limits until
    /// their first bytes show their kind.
    pub(crate) fn enter(self: &Arc<Self>, who: Who, promised: usize) -> Verdict {
        let mut state = self.lock();
        let peer = state.peer(who);
        let permit = |kind| Permit {
            caps: self.clone(),
            who,
            kind,
        };
        if (peer.promised as usize) < promised {
            peer.promised += 1;
            state.count(who);
            return Verdict::Serve(permit(Kind::Promised));
        }
        match state.refusal(who, 0) {
            None => {
                let peer = state.peer(who);
                peer.handshakes += 1;
                state.count(who);
                Verdict::Serve(permit(Kind::Handshake))
            }
            Some(Over::All) => Verdict::Close,
            Some(Over::Own(reason)) => {
                let peer = state.peer(who);
                if peer.telling >= TELLING {
                    return Verdict::Close;
                }
                peer.telling += 1;
                state.count(who);
                Verdict::Tell(permit(Kind::Telling), reason)
            }
        }
    }

    /// Whether one more look of a VM may be answered. Each look also counts as a connection.
    pub(crate) fn may_look(&self, vm: u32) -> bool {
        self.lock().peer(Some(vm)).looks.check().is_ok()
    }

    /// Removes the counters of VMs that are no longer registered, except those with open
    /// connections, and divides the reserved half among the registered VMs.
    pub(crate) fn keep(&self, vms: &HashSet<u32>) {
        let mut state = self.lock();
        state
            .peers
            .retain(|who, peer| who.is_none_or(|vm| vms.contains(&vm)) || peer.connections > 0);
        let count = u32::try_from(vms.len()).unwrap_or(u32::MAX);
        if count != state.vms {
            state.vms = count;
            state.share_out();
        }
    }

    /// Open connections.
    pub(crate) fn open(&self) -> u32 {
        self.lock().total
    }

    fn leave(&self, who: Who, kind: Kind) {
        let mut state = self.lock();
        let share = state.share(who);
        let Some(peer) = state.peers.get_mut(&who) else {
            return;
        };
        peer.forget(kind);
        let beyond = peer.connections > share;
        peer.connections = peer.connections.saturating_sub(1);
        state.total = state.total.saturating_sub(1);
        state.pooled = state.pooled.saturating_sub(u32::from(beyond));
    }

    /// Called when the first bytes of a connection have shown its kind. Returns the kind under
    /// which the connection counts from now on.
    fn settle(&self, who: Who, kind: Kind, redeemed: bool) -> Result<Kind, Option<String>> {
        let mut state = self.lock();
        let over = match kind {
            Kind::Promised if !redeemed => state.refusal(who, 1),
            _ => None,
        };
        let peer = state.peer(who);
        match over {
            None => {
                peer.forget(kind);
                Ok(Kind::Known)
            }
            Some(Over::Own(reason)) if peer.telling < TELLING => Err(Some(reason)),
            Some(_) => Err(None),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state holds plain counters, which stay valid after a panic of another thread.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limit that refuses a new connection.
enum Over {
    /// A limit of the VM, with the sentence for the VM.
    Own(String),
    /// The limit of all VMs together: there is no place even to send a refusal.
    All,
}

impl State {
    fn peer(&mut self, who: Who) -> &mut PeerCounters {
        let (limits, vms) = (&self.limits, self.vms);
        self.peers.entry(who).or_insert_with(|| PeerCounters {
            connections: 0,
            handshakes: 0,
            telling: 0,
            promised: 0,
            rate: limiter(limits.connects_per_s_per_vm, limits.connects_burst_per_vm),
            looks: limiter(LOOKS_PER_S, 2 * LOOKS_PER_S),
            reserved: who.and_then(|_| reserved_rate(limits, vms)),
        })
    }

    /// Connections that are reserved for this VM; 0 for unknown peers.
    fn share(&self, who: Who) -> u32 {
        let reserved = self.limits.connections_total / 2;
        who.and_then(|_| reserved.checked_div(self.vms))
            .unwrap_or(0)
    }

    fn count(&mut self, who: Who) {
        let share = self.share(who);
        let peer = self.peer(who);
        peer.connections += 1;
        let beyond = peer.connections > share;
        self.total += 1;
        self.pooled += u32::from(beyond);
    }

    /// Returns the limit that refuses one more connection. If none does, the connection is charged
    /// to the rates. `counted`: 1 if the connection is already among the open ones, else 0.
    fn refusal(&mut self, who: Who, counted: u32) -> Option<Over> {
        let share = self.share(who);
        let pool = self.limits.connections_total - self.share(Some(0)) * self.vms;
        let pool_full = self.pooled >= pool;
        self.peer(who);
        let (limits, rate) = (&self.limits, &self.rate);
        let peer = self.peers.get(&who)?;
        if peer.connections - counted >= share && pool_full {
            return Some(Over::All);
        }
        let reserved = || {
            peer.reserved
                .as_ref()
                .is_some_and(|own| own.check().is_ok())
        };
        let too_fast = || {
            // The VM's own bucket is checked first: a flooding VM must not empty the common bucket.
            peer.rate.check().is_err() || !(reserved() || rate.check().is_ok())
        };
        let reason = peer.full(limits).or_else(|| {
            too_fast().then(|| {
                "new connections come too fast; the limits are limits.connects_per_s_per_vm and \
                 limits.connects_per_s_total of the host's vgpud.toml"
                    .to_owned()
            })
        });
        reason.map(Over::Own)
    }

    /// Recomputes the share of each VM after a change of the limits or of the number of VMs.
    fn share_out(&mut self) {
        let shares: Vec<(Who, u32)> = self
            .peers
            .keys()
            .map(|who| (*who, self.share(*who)))
            .collect();
        let (limits, vms) = (&self.limits, self.vms);
        self.pooled = 0;
        for (who, share) in shares {
            let Some(peer) = self.peers.get_mut(&who) else {
                continue;
            };
            peer.reserved = who.and_then(|_| reserved_rate(limits, vms));
            self.pooled += peer.connections.saturating_sub(share);
        }
    }
}

impl PeerCounters {
    fn full(&self, limits: &Limits) -> Option<String> {
        if self.handshakes >= limits.handshakes_per_peer {
            return Some(format!(
                "{} connections of this VM have not introduced themselves yet, and no more may \
                 (limits.handshakes_per_peer of the host's vgpud.toml)",
                self.handshakes
            ));
        }
        let open = self.connections - self.telling - self.promised;
        (open >= limits.connections_per_vm).then(|| {
            format!(
                "this VM has {open} connections, and no more may be open \
                 (limits.connections_per_vm of the host's vgpud.toml)",
            )
        })
    }

    fn forget(&mut self, kind: Kind) {
        let counter = match kind {
            Kind::Known => return,
            Kind::Handshake => &mut self.handshakes,
            Kind::Promised => &mut self.promised,
            Kind::Telling => &mut self.telling,
        };
        *counter = counter.saturating_sub(1);
    }
}

fn limiter(per_second: u32, burst: u32) -> DefaultDirectRateLimiter {
    let positive = |n| NonZeroU32::new(n).unwrap_or(NonZeroU32::MIN);
    RateLimiter::direct(Quota::per_second(positive(per_second)).allow_burst(positive(burst)))
}

/// The half of the total rate that is not reserved.
fn pool_rate(limits: &Limits) -> DefaultDirectRateLimiter {
    let half = limits.connects_per_s_total.div_ceil(2);
    limiter(half, half)
}

/// The share of one VM in the reserved half of the total rate.
fn reserved_rate(limits: &Limits, vms: u32) -> Option<DefaultDirectRateLimiter> {
    let half = (limits.connects_per_s_total / 2).max(1);
    let period = Duration::from_secs(1) * vms.max(1) / half;
    let burst = (half / vms.max(1)).max(RESERVED_BURST);
    let quota = Quota::with_period(period)?.allow_burst(NonZeroU32::new(burst)?);
    Some(RateLimiter::direct(quota))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Handshake,
    /// Counted outside the limits until the first bytes show the kind of the connection.
    Promised,
    Known,
    Telling,
}

/// A counted connection. The count ends when this value is dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    caps: Arc<Caps>,
    who: Who,
    kind: Kind,
}

impl Permit {
    /// Called when the first bytes have shown the kind of the connection. `redeemed`: a session's
    /// data connection with a valid nonce.
    ///
    /// # Errors
    /// If the connection was accepted beyond the limits as a promised data connection, is of
    /// another kind, and the limits refuse it. Holds the sentence for the guest, or `None` if too
    /// many refusals are being sent.
    pub(crate) fn introduced(&mut self, redeemed: bool) -> Result<(), Option<String>> {
        self.kind = self.caps.settle(self.who, self.kind, redeemed)?;
        Ok(())
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
        match caps.enter(who, 0) {
            Verdict::Serve(permit) => permit,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn handshakes_connections_and_refusals_are_bounded_per_vm() {
        let caps = Caps::new(&limits());
        let mut held = vec![serve(&caps, Some(1)), serve(&caps, Some(1))];
        let mut told = Vec::new();
        while let Verdict::Tell(permit, text) = caps.enter(Some(1), 0) {
            assert!(text.contains("limits.handshakes_per_peer"), "{text}");
            told.push(permit);
        }
        assert_eq!(told.len() as u32, TELLING, "then closed without a word");
        drop(told);
        held.push(serve(&caps, Some(2)));

        for permit in &mut held {
            permit.introduced(false).unwrap();
        }
        for _ in 0..2 {
            let mut permit = serve(&caps, Some(1));
            permit.introduced(false).unwrap();
            held.push(permit);
        }
        let Verdict::Tell(_, text) = caps.enter(Some(1), 0) else {
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
            .filter(|_| matches!(caps.enter(Some(1), 0), Verdict::Serve(_)))
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
        assert!(matches!(caps.enter(Some(3), 0), Verdict::Close));
    }

    #[test]
    fn storms_of_many_vms_beyond_the_totals_leave_every_vm_its_share() {
        let caps = Caps::new(&Limits {
            connections_per_vm: 30,
            handshakes_per_peer: 30,
            connects_per_s_total: 40,
            ..limits()
        });
        caps.keep(&(1..=5).collect());
        // Four VMs and unknown peers open and hold as many connections as they get.
        let mut held = Vec::new();
        for who in [Some(1), Some(2), Some(3), Some(4), None] {
            for _ in 0..30 {
                if let Verdict::Serve(permit) = caps.enter(who, 0) {
                    held.push(permit);
                }
            }
        }
        assert!(held.len() >= 20, "{}", held.len());
        assert!(caps.open() <= 36, "{} of 40", caps.open());
        // The share of the fifth VM is left: 40 / 2 / 5 = 4 connections, and a burst of 4 at its
        // rate.
        held.extend((0..4).map(|_| serve(&caps, Some(5))));
        assert!(!matches!(caps.enter(Some(5), 0), Verdict::Serve(_)));
        assert!(!matches!(caps.enter(None, 0), Verdict::Serve(_)));
        drop(held);
        assert_eq!((caps.open(), caps.lock().pooled), (0, 0));
    }

    #[test]
    fn shares_follow_the_number_of_vms() {
        let caps = Caps::new(&limits());
        caps.keep(&[1].into());
        let held: Vec<Permit> = (0..2).map(|_| serve(&caps, Some(1))).collect();
        assert_eq!(caps.lock().pooled, 0, "its share is 20");
        caps.keep(&(1..=20).collect());
        assert_eq!(caps.lock().pooled, 1, "its share is 1");
        drop(held);
        assert_eq!(caps.lock().pooled, 0);
    }

    #[test]
    fn a_promised_data_connection_is_outside_the_bounds_and_nothing_else_is() {
        let caps = Caps::new(&Limits {
            connections_per_vm: 1,
            connects_burst_per_vm: 1,
            connects_per_s_per_vm: 1,
            ..limits()
        });
        let mut control = serve(&caps, Some(1));
        control.introduced(false).unwrap();
        assert!(matches!(caps.enter(Some(1), 0), Verdict::Tell(..)));
        let Verdict::Serve(mut data) = caps.enter(Some(1), 1) else {
            panic!("a data connection is due")
        };
        assert!(
            matches!(caps.enter(Some(1), 1), Verdict::Tell(..)),
            "one is due, and one may be it"
        );
        data.introduced(true).unwrap();
        drop(data);
        let Verdict::Serve(mut liar) = caps.enter(Some(1), 1) else {
            panic!("a data connection is due")
        };
        let text = liar.introduced(false).unwrap_err().unwrap();
        assert!(text.contains("limits.connections_per_vm"), "{text}");
        drop((control, liar));
        assert_eq!(caps.open(), 0);
    }
}
