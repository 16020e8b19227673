//! CUDA types in messages (result codes, handles, shapes of arrays), maps by handle, and the served
//! versions.

pub use vgpu_cuda_abi::CuResult;
pub use vgpu_cuda_abi::hash::{HandleHasher, HandleMap};
pub use vgpu_cuda_abi::structs::{ArrayShape, MAX_LEVELS};

use crate::codec::{Decode, Encode};

/// The CUDA version of the served functions; raised when the client suites pass with a new version.
///
/// 13.0 is the first version with which a CUDA 13 runtime works at all. Each runtime (libcudart,
/// and the copy inside cuBLAS, cuDNN, cuda.bindings…) refuses a driver of an older major version
/// with cudaErrorInsufficientDriver, and clients built for 13 look functions up by the names of
/// 13.0. An older driver on the host lowers the version.
pub const OFFERED_CUDA_VERSION: u32 = 13_000;

/// Oldest host driver that the worker accepts (the worker needs `cuFuncGetParamInfo`).
pub const MINIMUM_DRIVER_VERSION: u32 = 12_040;

/// A version of `cuDriverGetVersion` as text: `12.4`.
#[must_use]
pub fn version_text(version: u32) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Encode, Decode)]
        pub struct $name(pub u64);
    )*};
}

handles! {
    /// A context; the worker chooses the handle.
    Ctx;
    /// A stream. 0 is the NULL stream of the call's context; the guest chooses every other handle
    /// (see [`GUEST_HANDLES`]). On the wire, the per-thread default stream is an explicit stream.
    Stream;
    /// An event; the guest chooses the handle.
    Event;
    /// A module; the worker chooses the handle.
    Module;
    /// A function of a module; the worker chooses the handle.
    Func;
    /// The result of a link; the worker chooses the handle.
    Linked;
    /// An array, or a level of a mipmapped array; the worker chooses the handle.
    Array;
    /// The unit of creation and destruction of arrays: one array, or all levels of a mipmapped
    /// array; the worker chooses the handle.
    ArrayBlock;
    /// Physical memory without an address; the worker chooses the handle.
    Physical;
    /// A device address: the same number in guest and host.
    DevPtr;
}

impl Stream {
    /// The NULL (legacy default) stream.
    pub const NULL: Stream = Stream(0);
}

/// Handles that the guest chooses (streams, events). Bit 63 stays clear, because numba and
/// cuda.core read handles as signed numbers and otherwise raise OverflowError.
pub const GUEST_HANDLES: std::ops::Range<u64> = 0x1000_0000_0000_0000..0x2000_0000_0000_0000;

/// Handles that the worker chooses.
pub const WORKER_HANDLES: std::ops::Range<u64> = 0x2000_0000_0000_0000..0x3000_0000_0000_0000;
