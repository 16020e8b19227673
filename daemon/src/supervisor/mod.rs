//! Starts the worker of each guest: from the admission until the driver is ready.
//!
//! | module | contents |
//! |---|---|
//! | [`start`] | the start of one session's worker: admission, process, cgroup, driver, one deadline |
//! | [`launcher`] | settings of a worker, by the configuration |
//! | [`spawner`] | the thread that starts all workers |
//! | `log` | standard error of workers |
//!
//! [`crate::worker`] has the parts of a running worker (process, cgroup, control socket, shared
//! pages). The mediator owns the session and ends it.

pub mod launcher;
mod log;
pub mod spawner;
pub mod start;

pub use start::{Started, Supervisor};
