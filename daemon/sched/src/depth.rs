//! Work that waits in the queue of a session.

use serde::{Deserialize, Serialize};

/// Calls and bytes that wait in the worker of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Depth {
    /// Calls that the worker has received completely, that need the GPU, and that are not
    /// submitted.
    pub calls: u64,
    /// Bulk data of these calls, in bytes.
    pub bytes: u64,
}

/// Expected cost of the first waiting call of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeadCost {
    /// Predicted GPU time in ns; 0: unknown.
    pub gpu_ns: u64,
    /// Bytes that the call copies.
    pub bytes: u64,
}
