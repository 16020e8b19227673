//! Initialisation, `cuGetProcAddress`, and what is asked about the process.

pub mod coredump;
pub mod entry;
