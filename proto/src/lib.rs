//! The wire between guest library, daemon and worker.
//!
//! Everything on which two processes of this system must agree, and nothing else: no I/O, no
//! threads, no CUDA. Bytes from a guest or a worker are hostile: decoding never panics, checks an
//! announced length before it allocates, and accepts no trailing bytes.
//!
//! | module | content |
//! |---|---|
//! | [`call`] | the call table: every operation on the data connection and every served function |
//! | [`frame`] | the frame header of the data connection |
//! | [`changes`] | changes of memory that guest and worker both hold |
//! | [`codec`] | bincode, pinned and bounded; the only place that uses it |
//! | [`handshake`] | Hello, Welcome, refusals, and the control connection of a session |
//! | [`look`] | a VM's questions about itself, without a session |
//! | [`worker`] | messages between vgpud and a worker |
//! | [`text`] | makes untrusted text safe for a terminal |
//! | [`lease`] | the two shared pages between vgpud and a worker |
//! | [`cuda`] | handles and result codes, as numbers, and the versions of CUDA that are served |
//! | [`limits`] | every bound, with its reason |
#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

pub mod call;
pub mod changes;
pub mod codec;
pub mod cuda;
pub mod frame;
pub mod handshake;
pub mod lease;
pub mod limits;
pub mod look;
pub mod text;
pub mod worker;
