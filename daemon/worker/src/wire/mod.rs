//! The data connection: frames from the guest and to the guest, without waiting. The session
//! chooses the memory for bulk bytes (type parameter).
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
