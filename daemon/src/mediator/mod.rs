//! The mediator: one thread that owns the scheduler and all state that the scheduler decides about.
//!
//! The thread waits in one place: for messages and deaths of workers, commands of the rest of
//! vgpud, and one timer. It never blocks elsewhere, never touches a disk, and never reads the wall
//! clock for a decision: its clock is the kernel's CLOCK_MONOTONIC.
//!
//! | module | contents |
//! |---|---|
//! | [`handle`] | interface for the rest of vgpud |
//! | `actor` | the thread: handles events in order |
//! | `admission` | admits guest programs, or says why not |
//! | `commands` | commands of the rest of vgpud |
//! | `answers` | requests that the scheduler answers at once: sessions, memory |
//! | `actions` | carries out decisions: leases, kills, canaries |
//! | `messages` | workers' messages, checked against vgpud's own accounts |
//! | `message_rate` | how many messages the workers of a VM may send |
//! | `ending` | the end of a session: informs the guest, kills the worker and verifies its end |
//! | `depth` | calls and bytes that each session may have queued |
//! | `unrequested` | device memory that no worker requested, charged to the VM |
//! | `registry` | the configured GPUs, pools and VMs, in the scheduler's terms |
//! | `session` | the session table |
//! | `strikes` | strikes and quarantines |
//! | `crashes` | VMs whose workers crash again and again |
//! | `meter` | usage and shares, measured once a second |
//! | `explain` | the decision log and explanations |
//! | `look` | answers the looks of VMs |
//! | `snapshot` | the runtime state, for administrators |
//! | `reactor` | epoll, timer, deadlines |

mod actions;
mod actor;
mod admission;
mod answers;
mod audit;
mod claims;
mod commands;
mod crashes;
mod depth;
mod ending;
mod explain;
mod freeing;
pub mod handle;
mod held;
mod images;
mod look;
mod message_rate;
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
