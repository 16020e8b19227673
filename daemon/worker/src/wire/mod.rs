//! The data connection: frames of the guest in, frames for it out, neither ever waiting.

pub mod reader;
pub mod writer;

pub use reader::{Bulk, Filled, Frame, Reader, WireError};
pub use writer::Writer;
