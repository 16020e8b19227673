//! A deterministic discrete-event simulator of GPUs, workers and guests around the production scheduler
//! ([`vgpu_sched`]), and the proofs that it runs: shares, bounds, accounts, containment.
//! `make sim` runs all of them.
//!
//! | module | what it is |
//! |---|---|
//! | [`setup`] | what is simulated |
//! | [`world`] | the host: what happens, in order of time; messages and their delays |
//! | `daemon` | vgpud's part between workers and scheduler |
//! | `worker` | workers: the lease protocol on the real pages, window, markers |
//! | [`guest`], [`dist`], [`trace`] | what guests do |
//! | [`device`] | GPUs, and the ground truth of who occupied them |
//! | [`books`] | who held what when, by the simulator's own account |
//! | [`measure`], [`found`] | what is measured, and its bounds |
//! | [`proofs`] | the runs and what must hold in them |
//! | [`fuzz`] | random events, compared with a model after each |
//! | [`runner`], [`report`] | all runs on all CPUs; the table |
//! | [`mod@replay`] | a decision log of vgpud, decided again |
#![forbid(unsafe_code)]

pub mod books;
mod daemon;
pub mod device;
pub mod dist;
pub mod found;
pub mod fuzz;
pub mod guest;
pub mod measure;
pub mod mutants;
pub mod proofs;
pub mod replay;
pub mod report;
pub mod rng;
pub mod runner;
pub mod setup;
pub mod trace;
mod worker;
pub mod world;
