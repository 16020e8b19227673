//! Devices.

pub(crate) mod query;
pub(crate) mod resource;
