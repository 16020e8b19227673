//! Modules and linking.

pub(crate) mod link;
pub(crate) mod load;
