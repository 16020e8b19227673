//! The mediator: one thread that owns the scheduler and everything the scheduler decides about.
//!
//! It waits in one place for what concerns mediation: messages and deaths of workers, commands of
//! the rest of vgpud, and one timer. It never waits anywhere else, never touches a disk, and never
//! reads the wall clock for a decision: the kernel's monotonic clock is its time.
//!
//! | module | what it does |
//! |---|---|
//! | [`handle`] | how the rest of vgpud speaks with it |
//! | `actor` | the thread: what happened, in order |
//! | `commands` | requests of the rest of vgpud |
//! | `answers` | what it asks the scheduler and is answered at once: sessions, memory |
//! | `actions` | what the scheduler decided: leases, kills, canaries |
//! | `messages` | workers' messages, checked against vgpud's own accounts |
//! | `ending` | the end of a session: the guest is told, the worker killed and verified gone |
//! | `depth` | how much each program may have queued |
//! | `unrequested` | device memory that no worker requested, counted as its VM's |
//! | `registry` | the configured GPUs, pools and VMs, in the scheduler's terms |
//! | `session` | the session table |
//! | `strikes` | misbehaviour counted, up to the quarantine |
//! | `meter` | usage and shares, once a second |
//! | `explain` | its decisions, written down and explained |
//! | `look` | what a VM is told about itself |
//! | `snapshot` | what runs now, for administrators |
//! | `reactor` | epoll, timer, deadlines |

mod actions;
mod actor;
mod answers;
mod audit;
mod claims;
mod commands;
mod depth;
mod ending;
mod explain;
mod freeing;
pub mod handle;
mod held;
mod images;
mod look;
mod messages;
mod meter;
mod reactor;
mod registry;
mod session;
mod snapshot;
mod strikes;
mod unrequested;

pub use actor::{Canary, Mediator, MediatorSettings};
pub(crate) use handle::Command;
pub use handle::{
    Admission, AdmitRequest, Admitted, GuestEnd, MediatorHandle, Note, Ready, Refused,
};
