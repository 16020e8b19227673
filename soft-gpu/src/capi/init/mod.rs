//! Initialisation, `cuGetProcAddress`, and queries about the process.

pub mod coredump;
pub mod entry;
