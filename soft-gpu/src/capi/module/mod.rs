//! Modules and linking.

pub mod link;
pub mod load;
