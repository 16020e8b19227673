//! Whole-system tests: the harness.
//!
//! The harness runs real processes: [`host::Host`] is a separate vgpud in a temporary directory,
//! [`guest`] compiles and runs CUDA programs that know nothing of this project, and [`wait`] waits
//! for conditions with a deadline. The demo, the tests and the benchmarks share the harness.

pub mod clients;
pub mod device;
pub mod digest;
pub mod guest;
pub mod host;
pub mod hostile;
pub mod paths;
pub mod vm;
pub mod wait;
