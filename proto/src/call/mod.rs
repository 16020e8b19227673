//! The call table.
//!
//! There are two lists. [`ops`] holds every operation of the data connection: number, class, need,
//! arguments and results. It is the source of the codec, the worker's dispatch ([`Request`]), the
//! names in traces, and the [`FINGERPRINT`] that both sides compare in the handshake. [`functions`]
//! holds every function of `cuda.h` that the guest library serves, with the operations that it
//! uses. It is the source of the coverage table.
//!
//! To add a function: add the operation that it needs to [`ops`] (never reuse a number), the row to
//! [`functions`], the export to the guest library and the arm to the worker. The compiler names a
//! missing arm, because the worker matches [`Request`] exhaustively; tests of the guest library
//! name a missing export.

mod cluster;
pub mod functions;
pub mod ops;
mod shortage;

pub use cluster::{Cluster, OWN_CLUSTER, whole_clusters};
pub use functions::{FUNCTIONS, Function, Served};
pub use ops::{LinkInput, Notice, OPS, Op, Request, Tensor, TensorMap, Window, rep, req};
pub use shortage::{MemoryLimit, Shortage};

use crate::codec::CodecError;

/// Whether the guest waits for an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Class {
    /// The guest sends the request and does not wait. If the operation fails, the next
    /// synchronising call returns the error.
    Async,
    /// The caller waits for the reply.
    Sync,
}

/// Whether an operation needs the GPU. The worker schedules the operation accordingly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Need {
    /// Needs no GPU: the worker runs the operation on receipt, even if earlier operations wait. The
    /// depth limit of the queue applies; no GPU time is charged.
    None,
    /// Runs in the session's order, without a turn on the GPU: a stream wait, an event record.
    Order,
    /// Needs a turn on the GPU: runs only under the lease and within credit.
    Submit,
    /// Waits for earlier work of the stream or context, then runs without a turn: free, unload,
    /// synchronise.
    Drain,
}

/// A row of the operation table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpInfo {
    /// The operation.
    pub op: Op,
    /// Name in traces.
    pub name: &'static str,
    /// See [`Class`].
    pub class: Class,
    /// See [`Need`].
    pub need: Need,
    /// Whether the request may carry bulk bytes.
    pub bulk: bool,
}

/// The reason for which a request was not understood. The connection is closed with this sentence.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// Unknown operation.
    #[error("unknown operation {0:#06x}")]
    UnknownOp(u16),
    /// The arguments do not decode.
    #[error("{0}: {1}")]
    Args(&'static str, #[source] CodecError),
    /// Bulk bytes on an operation that takes none.
    #[error("{0} carries bulk data")]
    Bulk(&'static str),
}

/// Identifies the operation table: any change of a number, name, class, need, argument or result
/// changes the fingerprint.
pub const FINGERPRINT: u64 = fnv1a(ops::CANONICAL.as_bytes());

/// FNV-1a with 64 bits. The hash detects accidental differences. It need not stop a guest that lies
/// about the fingerprint: only that guest's calls are misread, and all their bounds are checked.
const fn fnv1a(bytes: &[u8]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut i = 0;
    while i < bytes.len() {
        // The layout of the source does not affect the protocol.
        if !bytes[i].is_ascii_whitespace() {
            hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0000_0100_0000_01b3);
        }
        i += 1;
    }
    hash
}
