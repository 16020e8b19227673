//! The mediation as a whole: real sockets, real processes (a worker that does as its guest says),
//! the real scheduler; no store and no admin API.

mod containment;
mod endings;
mod host;
mod leases;
mod liars;
mod limits;
mod listeners;
mod looks;
mod owners;
#[path = "../fake/program.rs"]
mod program;
