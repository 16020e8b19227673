//! The call table.
//!
//! Two lists. [`ops`] holds every operation of the data connection: number, class, need, arguments
//! and results; from it come the codec, the worker's dispatch ([`Request`]), the trace names and
//! the [`FINGERPRINT`] that both sides compare in the handshake. [`functions`] holds every function
//! of `cuda.h` that the shim serves and the operations it uses; from it comes the coverage table.
//!
//! To add a function: add the operation it needs to [`ops`] (never reuse a number), its row to
//! [`functions`], the export in the shim and the arm in the worker. The compiler names a missing arm,
//! because [`Request`] is matched exhaustively there; the shim's tests name a missing export.

pub mod functions;
pub mod ops;

pub use functions::{FUNCTIONS, Function, Served};
pub use ops::{LinkInput, Notice, OPS, Op, Request, rep, req};

use crate::codec::CodecError;

/// What the guest does with an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// Sent and forgotten; an error surfaces at the next synchronising call.
    Async,
    /// The caller waits for the reply.
    Sync,
}

/// What an operation needs of the GPU, and so of the scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// Nothing: runs when received, whatever waits. Rate-limited by the queue, never charged.
    None,
    /// Its place in the session's order, but no turn: a stream wait, an event record.
    Order,
    /// A turn: runs only under the lease and within credit.
    Submit,
    /// Waits for its stream's or context's earlier work, then needs no turn: free, unload,
    /// synchronise.
    Drain,
}

/// One row of the operation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpInfo {
    /// Which.
    pub op: Op,
    /// Name, for traces.
    pub name: &'static str,
    /// See [`Class`].
    pub class: Class,
    /// See [`Need`].
    pub need: Need,
    /// May carry bulk bytes from the guest.
    pub bulk: bool,
}

/// Why a request was not understood. The connection is closed with the sentence.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// No such operation.
    #[error("unknown operation {0:#06x}")]
    UnknownOp(u16),
    /// Arguments do not decode.
    #[error("{0}: {1}")]
    Args(&'static str, #[source] CodecError),
    /// Bulk bytes on an operation that takes none.
    #[error("{0} carries bulk data")]
    Bulk(&'static str),
}

/// Identifies the operation table: any change of a number, name, class, need, argument or result
/// changes it.
pub const FINGERPRINT: u64 = fnv1a(ops::CANONICAL.as_bytes());

/// FNV-1a, 64 bit. Not a defence: it tells accidental mismatch, and a guest that lies about it
/// only gets its own calls misread within the bounds that are checked anyway.
const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        // Layout of the source is no part of the protocol.
        if !bytes[i].is_ascii_whitespace() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
        i += 1;
    }
    hash
}
