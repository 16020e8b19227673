//! The data connection: frames of the guest in, frames for it out, neither ever waiting.
//! Generic over the memory in which bulk bytes lie, which the session chooses.
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

pub use reader::{Filled, Frame, Landing, Reader, WireError};
pub use writer::Writer;
