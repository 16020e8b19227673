//! Results of driver operations.

use vgpu_cuda_abi::CuResult;

/// Result of a driver operation.
pub type Result<T = ()> = std::result::Result<T, CuResult>;
