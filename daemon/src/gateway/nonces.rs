//! Nonces: a nonce binds a data connection to the session that expects the connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use vgpu_proto::handshake::NONCE_LEN;

use crate::model::VmIdentity;

type Nonce = [u8; NONCE_LEN];

/// The nonces that were issued and not yet used.
#[derive(Debug, Default)]
pub(crate) struct Nonces {
    open: Mutex<HashMap<Nonce, (u64, VmIdentity)>>,
}

/// An issued nonce. Dropping this value invalidates the nonce.
#[derive(Debug)]
pub(crate) struct Issued {
    nonces: Arc<Nonces>,
    nonce: Nonce,
}

impl Nonces {
    /// Issues a nonce for one data connection of `session`.
    ///
    /// # Errors
    /// If the kernel gives no random bytes.
    pub(crate) fn issue(
        self: &Arc<Self>,
        session: u64,
        identity: VmIdentity,
    ) -> std::io::Result<Issued> {
        let mut nonce = [0; NONCE_LEN];
        let got = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty())?;
        if got != NONCE_LEN {
            return Err(std::io::Error::other(
                "the kernel gave too few random numbers",
            ));
        }
        self.lock().insert(nonce, (session, identity));
        Ok(Issued {
            nonces: self.clone(),
            nonce,
        })
    }

    /// Uses up a nonce and returns its session, if the nonce was issued to this VM. A nonce that
    /// another VM presents stays valid.
    pub(crate) fn redeem(&self, nonce: &Nonce, identity: VmIdentity) -> Option<u64> {
        let mut open = self.lock();
        let &(session, owner) = open.get(nonce)?;
        if owner != identity {
            return None;
        }
        open.remove(nonce);
        Some(session)
    }

    /// Number of sessions of this VM that wait for their data connections.
    pub(crate) fn due(&self, identity: VmIdentity) -> usize {
        let open = self.lock();
        open.values()
            .filter(|(_, owner)| *owner == identity)
            .count()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Nonce, (u64, VmIdentity)>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Issued {
    /// The nonce to send in the Welcome.
    pub(crate) fn nonce(&self) -> Nonce {
        self.nonce
    }

    /// Whether the data connection has not come yet.
    pub(crate) fn is_open(&self) -> bool {
        self.nonces.lock().contains_key(&self.nonce)
    }
}

impl Drop for Issued {
    fn drop(&mut self) {
        self.nonces.lock().remove(&self.nonce);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nonce_opens_one_session_once_to_its_own_vm() {
        let nonces = Arc::new(Nonces::default());
        let owner = VmIdentity {
            vm_id: 1,
            generation: 5,
        };
        let issued = nonces.issue(7, owner).unwrap();
        let nonce = issued.nonce();
        for other in [
            VmIdentity {
                vm_id: 2,
                generation: 5,
            },
            VmIdentity {
                vm_id: 1,
                generation: 6,
            },
        ] {
            assert_eq!(nonces.redeem(&nonce, other), None, "{other:?}");
        }
        assert!(issued.is_open());
        assert_eq!(nonces.redeem(&nonce, owner), Some(7));
        assert!(!issued.is_open());
        assert_eq!(nonces.redeem(&nonce, owner), None, "used");
        assert_ne!(nonces.issue(8, owner).unwrap().nonce(), nonce);
    }

    #[test]
    fn a_session_that_ends_withdraws_its_nonce() {
        let nonces = Arc::new(Nonces::default());
        let owner = VmIdentity {
            vm_id: 1,
            generation: 5,
        };
        let issued = nonces.issue(7, owner).unwrap();
        let nonce = issued.nonce();
        drop(issued);
        assert_eq!(nonces.redeem(&nonce, owner), None);
    }
}
