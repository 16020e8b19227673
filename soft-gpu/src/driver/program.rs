//! The parts of the interpreter that the driver uses.

pub use crate::exec::program::Program;
pub use crate::exec::run;
pub(super) use crate::exec::serves;
