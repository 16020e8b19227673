//! What waits in a session's queue.

use serde::{Deserialize, Serialize};

/// Work that waits in a session's worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct Depth {
    /// Fully received calls that need the GPU and are not submitted.
    pub calls: u64,
    /// Bytes of bulk data of these calls.
    pub bytes: u64,
}

/// Expected cost of the first waiting call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeadCost {
    /// Predicted GPU time in ns; 0 where unknown.
    pub gpu_ns: u64,
    /// Bytes that the call copies.
    pub bytes: u64,
}
