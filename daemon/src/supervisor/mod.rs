//! Starts workers: for each guest that asks, from its admission until its driver is up.
//!
//! | module | what it does |
//! |---|---|
//! | [`start`] | the start of one session's worker: admission, process, cgroup, driver, one deadline |
//! | [`launcher`] | what a worker gets, by the configuration |
//! | [`spawner`] | the thread that starts them all |
//! | `log` | what a worker writes to its standard error |
//!
//! What a running worker is to vgpud (process, cgroup, control socket, shared pages) is in
//! [`crate::worker`]; its session and its end are the mediator's.

pub mod launcher;
mod log;
pub mod spawner;
pub mod start;

pub use start::{Started, Supervisor};
