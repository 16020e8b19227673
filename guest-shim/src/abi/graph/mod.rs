//! Graphs.

pub(crate) mod attributes;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod graphs;
pub(crate) mod memory;
pub(crate) mod nodes;
pub(crate) mod params;
pub(crate) mod user_object;
