//! The wire between guest library, daemon and worker.
//!
//! Everything on which two processes of this system must agree, and nothing else: no I/O, no
//! threads, no CUDA. Bytes from a guest or a worker are hostile: decoding never panics, checks an
//! announced length before it allocates, and accepts no trailing bytes.
//!
//! | module | what it fixes |
//! |---|---|
//! | [`call`] | the call table: every operation on the data connection and every function we serve |
//! | [`frame`] | the frame header of the data connection |
//! | [`changes`] | what changed in memory that both sides hold |
//! | [`codec`] | bincode, pinned and bounded; the only place that names it |
//! | [`handshake`] | Hello, Welcome, refusals, and the control connection of a session |
//! | [`look`] | what a VM is told about itself without a session |
//! | [`worker`] | messages between vgpud and a worker |
//! | [`text`] | texts of others, made fit for a person's terminal |
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
