//! The data connection: frames of the guest in, frames for it out, neither ever waiting.
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

pub mod reader;
pub mod writer;

pub use reader::{Bulk, Filled, Frame, Reader, WireError};
pub use writer::Writer;
