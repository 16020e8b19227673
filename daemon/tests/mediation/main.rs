//! Tests of the whole mediation: real sockets and processes and the real scheduler, with a fake
//! worker that executes commands of its guest. There is no store and no admin API.

mod containment;
mod endings;
#[path = "../fake/guest.rs"]
mod guest;
mod host;
mod leases;
mod liars;
mod limits;
mod listeners;
mod looks;
mod owners;
#[path = "../fake/program.rs"]
mod program;
