//! The client suites: programs nobody here wrote, with their own tests.
//!
//! Each suite is a published library of the CUDA world ([`suites`]) whose own tests run, unmodified, in
//! up to two rows for each driver ([`stand`]): directly on the driver's `libcuda.so`, and through our
//! shim and a vgpud. [`install`] fetches what they need, pinned; [`follow`] runs their test processes so that a
//! test that hangs or ends its process is known by name; [`expected`] holds the outcome against the
//! committed list of failures and their causes; [`report`] says and writes what came out.

mod cards;
mod cupy;
pub mod events;
pub mod expected;
pub mod follow;
pub mod install;
mod libraries;
pub mod report;
pub mod row;
mod runtimes;
mod same_work;
mod samples;
pub mod smoke;
pub mod stand;
pub mod suites;
mod torch;
