//! A deterministic discrete-event simulator of GPUs, workers and guests around the production
//! scheduler ([`vgpu_sched`]), and proofs of shares, bounds, accounts and containment. `make sim`
//! runs all proofs.
//!
//! | module | content |
//! |---|---|
//! | [`setup`] | the description of a simulation |
//! | [`world`] | the host: events in order of time, messages and their delays |
//! | `world::daemon` | vgpud's part between workers and scheduler |
//! | `world::worker` | one worker: its guest, lease machine, gate and streams |
//! | `world::workers` | the actions of workers: the lease protocol on the real pages, window, markers |
//! | `parts` | events of the host, and the state that vgpud and workers share |
//! | [`guest`], [`op`], [`dist`], [`trace`] | the load of guests |
//! | [`device`] | GPUs, and the true record of the time that each context used |
//! | [`books`] | the simulator's own accounts of leases, charges and waits |
//! | [`measure`], [`found`] | measured quantities and their bounds |
//! | [`proofs`] | families of runs, and the bounds that must hold in them |
//! | [`fuzz`] | random events, and a model that checks the scheduler after each |
//! | [`mutants`] | wrong schedulers that the proofs must notice |
//! | [`runner`], [`report`] | distribution of the runs over all CPUs; the table of results |
//! | [`arguments`] | the command line |
//! | [`mod@replay`] | the replay of a decision log of vgpud |
#![forbid(unsafe_code)]

pub mod arguments;
pub mod books;
pub mod device;
pub mod dist;
pub mod found;
pub mod fuzz;
pub mod guest;
pub mod measure;
pub mod mutants;
pub mod op;
mod parts;
pub mod proofs;
pub mod replay;
pub mod report;
pub mod rng;
pub mod runner;
pub mod setup;
pub mod trace;
pub mod world;
