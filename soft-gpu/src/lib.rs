//! A software CUDA device.
//!
//! Built as a `libcuda.so`, it executes PTX on the CPU with the errors of hardware, for hosts
//! without a GPU and for tests. Four parts, data flowing one way:
//!
//! - [`ptx`]: text to statements;
//! - [`exec`]: statements to executable form, and running it;
//! - [`driver`]: devices, memory, contexts, streams, modules, and one device across processes;
//! - [`capi`]: the CUDA driver API's C entry points on top of it.

pub mod capi;
pub mod driver;
pub mod exec;
pub mod ptx;
