//! The C functions, by theme.

pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod process;
pub(crate) mod system;
