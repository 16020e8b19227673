//! A worker as vgpud sees it: a process that inherits nothing of vgpud. vgpud sends messages
//! without waiting, kills the worker and verifies its end.
//!
//! | module | contents |
//! |---|---|
//! | [`spawn`] | starts a worker: empty environment, own uid, limits, control socket |
//! | [`owner`] | user and groups of workers |
//! | [`confine`] | the confinement of workers |
//! | [`channel`] | the control socket |
//! | [`pages`] | the two shared pages |
//! | [`cgroup`] | a cgroup for each worker, to kill all processes that the worker started |
//! | [`process`] | a process by its pidfd: kill, exit, identity |
//! | [`image_memory`] | memory of module images |
//! | [`images`] | caches of module images |
//! | [`records`] | files about running workers, for the next vgpud |

pub mod cgroup;
pub mod channel;
pub mod confine;
pub mod image_memory;
pub mod images;
pub mod owner;
pub mod pages;
pub mod process;
pub mod records;
pub mod spawn;
