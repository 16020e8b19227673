//! The code with which programs in a VM reach vgpud: the address ([`address`]), a connection
//! ([`socket`]), questions about the VM without a session ([`mod@look`]), and the log level
//! ([`level`]). The driver library, the management library and `vgpu-guest` share this crate.
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

pub mod address;
pub mod fd;
pub mod level;
pub mod look;
pub mod socket;

pub use address::Address;
pub use fd::beyond_standard;
pub use level::Level;
pub use look::{LIMIT, look};
pub use socket::{Failure, Socket};
