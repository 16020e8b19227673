//! The guests' connections: who connects, who may, and what becomes of the connection.
//!
//! A guest that may be served is handed to [`crate::supervisor`], which starts its worker, and the
//! data connection to [`crate::mediator`], which hands it to that worker.
//!
//! Every listener, whatever its kind, ends in one accept path that yields a stream and the VM
//! behind it. A VM is known by what it cannot forge: its CID, or the path of its socket (and, where
//! asked for, the uid of the process at the other end).
//!
//! | module | what it does |
//! |---|---|
//! | [`listeners`] | listeners appear and disappear with the VMs |
//! | `caps` | how many connections, how fast |
//! | [`opening`] | the first bytes, exactly as long as announced |
//! | `session` | from Hello to Welcome; then the control connection until the end |
//! | `rules` | which VM should have which socket |
//! | `failure` | why vgpud cannot listen on a socket, and what cures it |
//! | `sockets` | the Unix sockets in the file system |
//! | `vm_dirs` | removes the directories of VMs that are no longer registered |
//! | `accept` | the one accept path behind all listeners |
//! | `checks` | checks of the listeners for `vgpu-admin doctor` |
//! | `nonces` | binds a data connection to its session |
//! | [`conn`] | a stream socket |

mod accept;
pub(crate) mod caps;
mod checks;
pub mod conn;
mod failure;
pub mod listeners;
pub(crate) mod nonces;
pub mod opening;
mod peer;
mod rules;
mod session;
mod sockets;
mod vm_dirs;

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use crate::config::Config;
use crate::events::EventSink;
use crate::mediator::MediatorHandle;
use crate::supervisor::Supervisor;
use crate::system::closer::Closers;

pub use listeners::Gateway;
pub use peer::Peer;

/// What every connection needs.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) mediator: MediatorHandle,
    pub(crate) supervisor: Supervisor,
    pub(crate) events: EventSink,
    pub(crate) nonces: Arc<nonces::Nonces>,
    pub(crate) caps: Arc<caps::Caps>,
    config: RwLock<Arc<Config>>,
}

impl Shared {
    pub(crate) fn config(&self) -> Arc<Config> {
        self.config
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn set_config(&self, config: Arc<Config>) {
        self.caps.set(&config.limits);
        *self.config.write().unwrap_or_else(PoisonError::into_inner) = config;
    }

    /// What closes the sockets of VMs.
    pub(crate) fn closers(&self) -> &Closers {
        self.supervisor.launcher().closers()
    }

    pub(crate) fn handshake_deadline(&self) -> Duration {
        Duration::from_millis(self.config().limits.handshake_deadline_ms)
    }
}
