//! Launches and occupancy.

pub mod launch;
pub mod legacy;
pub mod occupancy;
