//! The C functions, in folders that follow the chapters of CUDA's driver API. Each function checks
//! its arguments, calls an operation or the state, and writes the results; see [`crate::ffi`].
//! `build.rs` exports every function that is declared here by a line `fn cuName(`.

pub(crate) mod context;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod execution;
pub(crate) mod graph;
pub(crate) mod init;
pub(crate) mod library;
pub(crate) mod memory;
pub(crate) mod module;
pub(crate) mod pool;
pub(crate) mod stream;
pub(crate) mod tensor_map;
pub(crate) mod vmm;
