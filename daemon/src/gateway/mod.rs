//! Accepts the connections of guests, identifies the VM of each, and decides what happens to the
//! connection.
//!
//! For an admitted guest, [`crate::supervisor`] starts a worker. The data connection goes to
//! [`crate::mediator`], which passes it to that worker.
//!
//! All listeners end in one function, which gets a stream and the VM behind the stream. A VM is
//! known by a property that it cannot forge: its CID, or the path of its socket and, if registered,
//! the uid of the process at the other end.
//!
//! | module | contents |
//! |---|---|
//! | [`listeners`] | opens and closes listeners as VMs come and go |
//! | `caps` | limits of connections and of their rate |
//! | [`opening`] | reads the first bytes of a connection |
//! | `session` | a connection from the Hello to the Welcome, then the control connection |
//! | `rules` | which VM should have which socket |
//! | `failure` | why vgpud cannot listen on a socket, and advice |
//! | `sockets` | the Unix sockets in the file system |
//! | `vm_dirs` | removes the directories of VMs that are no longer registered |
//! | `accept` | the accept loops |
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

/// State that all connections share.
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

    /// The threads that close the sockets of VMs.
    pub(crate) fn closers(&self) -> &Closers {
        self.supervisor.launcher().closers()
    }

    pub(crate) fn handshake_deadline(&self) -> Duration {
        Duration::from_millis(self.config().limits.handshake_deadline_ms)
    }
}
