//! A software CUDA device.
//!
//! Built as a `libcuda.so`, it executes PTX on the CPU with the errors of hardware, for hosts
//! without a GPU and for tests. Three parts, data flowing one way:
//!
//! - [`ptx`]: text to statements;
//! - [`exec`]: statements to executable form, and running it;
//! - [`driver`]: the CUDA driver API around it.

pub mod driver;
pub mod exec;
pub mod ptx;
