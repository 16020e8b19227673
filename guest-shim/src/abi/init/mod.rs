//! Initialisation, `cuGetProcAddress`, and functions about the process.

pub(crate) mod coredump;
pub(crate) mod entry;
pub(crate) mod logs;
pub(crate) mod profiler;
pub(crate) mod refused;
