//! A worker as vgpud holds it: a process that has nothing of vgpud's, is spoken to without ever
//! waiting, is killed, and is verified gone.
//!
//! | module | what it does |
//! |---|---|
//! | [`spawn`] | starts one: cleared environment, own uid, limits, control socket |
//! | [`owner`] | as whom they run |
//! | [`confine`] | what is taken from them before they begin |
//! | [`channel`] | the control socket |
//! | [`pages`] | the two shared pages |
//! | [`cgroup`] | a cgroup for each worker, with which all that it started ends |
//! | [`process`] | a process by its pidfd: kill, exit, identity |
//! | [`image_memory`] | memory for module images |
//! | [`images`] | the VMs' caches of module images |
//! | [`records`] | files about the running workers, by which the next vgpud finds them |

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
