//! The content of a reply.

use vgpu_cuda_abi::CuResult;

/// The content of a reply.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Result code of the call.
    pub(crate) status: CuResult,
    /// Encoded results.
    pub(crate) args: Vec<u8>,
    /// Number of bulk bytes that arrived.
    pub(crate) filled: usize,
}
