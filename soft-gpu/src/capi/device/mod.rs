//! Devices.

pub mod query;
pub mod resource;
