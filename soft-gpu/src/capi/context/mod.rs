//! Contexts, of whole devices and of parts.

pub mod contexts;
pub mod green;
