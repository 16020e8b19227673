//! The client suites: third-party programs with their own tests.
//!
//! Each suite is a published CUDA library ([`suites`]). Its own tests run, unmodified, in up to two
//! rows per driver ([`stand`]): directly on the driver's `libcuda.so`, and through the guest
//! library and a vgpud. [`install`] fetches the pinned packages. [`plan`] describes the processes
//! of a suite. The suite [`truth`] compares answers with those of real cards. [`follow`] runs the
//! test processes and identifies each test that hangs or ends its process. [`expected`] compares
//! the outcomes with the committed list of failures and their causes. [`report`] prints and writes
//! the results.

mod cupy;
pub mod events;
pub mod expected;
pub mod follow;
pub mod install;
mod libraries;
pub mod plan;
pub mod report;
pub mod row;
mod runtimes;
mod same_work;
mod samples;
pub mod smoke;
pub mod stand;
pub mod suites;
mod torch;
pub mod truth;
