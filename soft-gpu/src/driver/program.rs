//! The interpreter, as the driver uses it.

pub use crate::exec::program::Program;
pub use crate::exec::run;
