//! The other end of a connection, as the host sees it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

/// The address of a guest's end of a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// AF_VSOCK, from this CID.
    Vsock(u32),
    /// A Unix socket at this path, from a process of this uid.
    Unix(Arc<Path>, u32),
}

impl fmt::Display for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Peer::Vsock(cid) => write!(f, "vsock:{cid}"),
            Peer::Unix(path, _) => write!(f, "{}", path.display()),
        }
    }
}
