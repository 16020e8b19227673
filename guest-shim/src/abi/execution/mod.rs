//! Launches, host functions, occupancy.

pub(crate) mod host;
pub(crate) mod launch;
pub(crate) mod occupancy;
