//! Workers as processes: started with nothing of vgpud's, spoken to without ever waiting, killed, and
//! verified gone.
//!
//! | module | what it does |
//! |---|---|
//! | [`spawn`] | starts one: cleared environment, own uid, limits, control socket |
//! | [`launcher`] | what a worker gets, by the configuration |
//! | [`room`] | memory for module images |
//! | [`images`] | the VMs' caches of module images |
//! | [`owner`] | as whom they run |
//! | [`confine`] | what is taken from them before they begin |
//! | [`channel`] | the control socket |
//! | [`pages`] | the two shared pages |
//! | [`cage`] | a cgroup for each, with which all that it started ends |
//! | [`process`] | a process by its pidfd: kill, exit, identity |
//! | [`nursery`] | the thread that starts them all |
//! | [`leftover`] | workers of an earlier vgpud |
//! | `log` | what a worker writes to its standard error |

pub mod cage;
pub mod channel;
pub mod confine;
pub mod images;
pub mod launcher;
pub mod leftover;
pub(crate) mod log;
pub mod nursery;
pub mod owner;
pub mod pages;
pub mod process;
pub mod room;
pub mod spawn;
