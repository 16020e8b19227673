//! A software CUDA device.
//!
//! Built as a `libcuda.so`, the library executes PTX on the CPU and returns the errors that
//! hardware returns. It serves hosts without a GPU, and tests. Data flows one way through four
//! parts:
//!
//! - [`ptx`]: parses text into statements;
//! - [`exec`]: lowers statements to an executable form, and runs that form;
//! - [`driver`]: devices, memory, contexts, streams, modules, and a device shared by processes;
//! - [`capi`]: the C entry points of the CUDA driver API.

pub mod capi;
pub mod driver;
pub mod exec;
pub mod ptx;
