//! Graphs.

pub mod exec;
pub mod graphs;
pub mod nodes;
pub mod params;
