//! A worker as vgpud holds it: a process that has nothing of vgpud's, is spoken to without ever waiting,
//! is killed, and is verified gone.
//!
//! | module | what it does |
//! |---|---|
//! | [`spawn`] | starts one: cleared environment, own uid, limits, control socket |
//! | [`owner`] | as whom they run |
//! | [`confine`] | what is taken from them before they begin |
//! | [`channel`] | the control socket |
//! | [`pages`] | the two shared pages |
//! | [`cage`] | a cgroup for each, with which all that it started ends |
//! | [`process`] | a process by its pidfd: kill, exit, identity |
//! | [`room`] | memory for module images |
//! | [`images`] | the VMs' caches of module images |
//! | [`leftover`] | workers of an earlier vgpud |

pub mod cage;
pub mod channel;
pub mod confine;
pub mod images;
pub mod leftover;
pub mod owner;
pub mod pages;
pub mod process;
pub mod room;
pub mod spawn;
