//! The C functions, by topic.

pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod process;
pub(crate) mod system;
