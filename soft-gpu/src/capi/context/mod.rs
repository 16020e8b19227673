//! Contexts, and green contexts.

pub mod contexts;
pub mod green;
