//! Limits the connections of the admin API: in all, per listener, and per caller.
//!
//! Of `admin.max_connections`, an eighth is reserved for root (and vgpud's own user). Each other
//! caller on the Unix socket gets at most a quarter. The TCP listener gets at most half. Each token
//! gets at most a quarter, each address without a known token an eighth, and all such addresses
//! together a quarter.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Holder {
    /// Root, or vgpud's own user.
    Root,
    /// Another user, on the Unix socket.
    User(u32),
    /// A TCP peer that has not presented a valid token.
    Address(IpAddr),
    /// A TCP peer with this token.
    Token(String),
}

impl Holder {
    /// Returns the holder of a TCP connection without a token. All loopback addresses count as one
    /// address, and so do all addresses of an IPv6 network (/64).
    pub(super) fn address(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            ip if ip.is_loopback() => Self::Address(std::net::Ipv4Addr::LOCALHOST.into()),
            IpAddr::V6(ip) => {
                let network = u128::from(ip) & !u128::from(u64::MAX);
                Self::Address(std::net::Ipv6Addr::from(network).into())
            }
            ip => Self::Address(ip),
        }
    }

    fn is_tcp(&self) -> bool {
        matches!(self, Self::Address(_) | Self::Token(_))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root => f.write_str("root"),
            Self::User(uid) => write!(f, "uid {uid}"),
            Self::Address(ip) => write!(f, "{ip} without a token"),
            Self::Token(name) => f.write_str(name),
        }
    }
}

#[derive(Debug)]
pub(super) struct Places {
    most: u32,
    taken: Mutex<HashMap<Holder, u32>>,
}

/// A place for one connection, which is free again when this value is dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    holder: Holder,
}

impl Places {
    pub(super) fn new(most: u32) -> Arc<Self> {
        Arc::new(Self {
            most,
            taken: Mutex::default(),
        })
    }

    /// Takes a place.
    ///
    /// # Errors
    /// A sentence, if there are too many connections.
    pub(super) fn take(self: &Arc<Self>, holder: Holder) -> Result<Place, String> {
        self.enter(&mut self.lock(), &holder)?;
        Ok(Place {
            places: self.clone(),
            holder,
        })
    }

    fn enter(&self, taken: &mut HashMap<Holder, u32>, holder: &Holder) -> Result<(), String> {
        let part = |divisor: u32| (self.most / divisor).max(1);
        let reserve = part(8).min(self.most - 1);
        let count = |counted: &dyn Fn(&Holder) -> bool| -> u32 {
            let counted = taken.iter().filter(|(holder, _)| counted(holder));
            counted.map(|(_, places)| places).sum()
        };
        let own = taken.get(holder).copied().unwrap_or(0);
        let bounds = match holder {
            Holder::Root => vec![],
            Holder::User(_) => vec![(own, part(4))],
            Holder::Token(_) => vec![(own, part(4)), (count(&Holder::is_tcp), part(2))],
            Holder::Address(_) => vec![
                (own, part(8)),
                (
                    count(&|holder| matches!(holder, Holder::Address(_))),
                    part(4),
                ),
                (count(&Holder::is_tcp), part(2)),
            ],
        };
        if let Some((_, most)) = bounds.iter().find(|(open, most)| open >= most) {
            return Err(format!(
                "vgpud has too many admin connections of {holder}: {own} are open, and the share is {most} \
                 (of admin.max_connections = {})",
                self.most
            ));
        }
        let most = match holder {
            Holder::Root => self.most,
            _ => self.most - reserve,
        };
        let open = count(&|_| true);
        if open >= most {
            return Err(format!(
                "vgpud has too many admin connections: {open} are open (admin.max_connections = {}, of \
                 which {reserve} are kept for root)",
                self.most
            ));
        }
        *taken.entry(holder.clone()).or_default() += 1;
        Ok(())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Holder, u32>> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn leave(taken: &mut HashMap<Holder, u32>, holder: &Holder) {
    if let Some(places) = taken.get_mut(holder) {
        *places -= 1;
        if *places == 0 {
            taken.remove(holder);
        }
    }
}

impl Place {
    /// Moves the place to another holder, because the connection has presented a token.
    ///
    /// # Errors
    /// As [`Places::take`]. The place then stays with the old holder.
    pub(super) fn pass_to(&mut self, holder: Holder) -> Result<(), String> {
        if self.holder == holder {
            return Ok(());
        }
        let mut taken = self.places.lock();
        leave(&mut taken, &self.holder);
        let entered = self.places.enter(&mut taken, &holder);
        if entered.is_err() {
            *taken.entry(self.holder.clone()).or_default() += 1;
            return entered;
        }
        self.holder = holder;
        Ok(())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        leave(&mut self.places.lock(), &self.holder);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(places: &Arc<Places>, holder: &Holder) -> Vec<Place> {
        std::iter::from_fn(|| places.take(holder.clone()).ok()).collect()
    }

    fn address(text: &str) -> Holder {
        Holder::address(text.parse().unwrap())
    }

    #[test]
    fn every_caller_has_a_share_and_root_has_a_reserve() {
        let places = Places::new(64);
        let mut held = fill(&places, &address("10.0.0.1"));
        assert_eq!(held.len(), 8);
        let refused = places.take(address("10.0.0.1")).unwrap_err();
        assert!(refused.contains("10.0.0.1 without a token"), "{refused}");
        for last in 2..20 {
            held.extend(fill(&places, &address(&format!("10.0.0.{last}"))));
        }
        assert_eq!(held.len(), 16, "all without a token");
        held.extend(fill(&places, &Holder::Token("token:a".into())));
        held.extend(fill(&places, &Holder::Token("token:b".into())));
        assert_eq!(held.len(), 32, "the listener");
        for uid in 1..9 {
            let refused = |places: &Arc<Places>| places.take(Holder::User(uid)).unwrap_err();
            let more = fill(&places, &Holder::User(uid));
            assert!(more.len() <= 16);
            assert!(refused(&places).contains("vgpud has too many admin connections"));
            held.extend(more);
        }
        assert_eq!(held.len(), 56);
        assert_eq!(fill(&places, &Holder::Root).len(), 8);
        drop(held);
        assert_eq!(fill(&places, &Holder::Root).len(), 64);
    }

    #[test]
    fn a_place_moves_to_the_presented_token() {
        let places = Places::new(64);
        let token = Holder::Token("token:a".into());
        let mut first = places.take(address("::1")).unwrap();
        first.pass_to(token.clone()).unwrap();
        assert_eq!(first.holder, token);
        assert_eq!(
            fill(&places, &address("127.0.0.9")).len(),
            8,
            "its place is free again"
        );
        let held = fill(&places, &token);
        assert_eq!(held.len(), 15);
        let mut late = places.take(address("10.0.0.1")).unwrap();
        assert!(late.pass_to(token).unwrap_err().contains("token:a"));
        assert_eq!(late.holder, address("10.0.0.1"));
        drop((first, held, late));
        assert!(places.lock().is_empty());
    }

    #[test]
    fn networks_count_as_one_caller() {
        assert_eq!(address("2001:db8::1"), address("2001:db8::2"));
        assert_ne!(address("2001:db8:0:1::1"), address("2001:db8::1"));
        assert_eq!(address("::ffff:10.0.0.1"), address("10.0.0.1"));
    }

    #[test]
    fn few_places_leave_one_for_root() {
        let places = Places::new(2);
        assert_eq!(fill(&places, &Holder::User(1)).len(), 1);
        let _held = places.take(Holder::User(1)).unwrap();
        assert!(places.take(Holder::User(2)).is_err());
        assert_eq!(fill(&places, &Holder::Root).len(), 1);
        assert_eq!(fill(&Places::new(1), &Holder::User(1)).len(), 1);
    }
}
