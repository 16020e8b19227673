//! What messages carry of CUDA: result codes, handles, shapes of arrays; and the versions served.

mod array;

pub use array::{ArrayShape, MAX_LEVELS};
pub use vgpu_cuda_abi::CuResult;

use crate::codec::{Decode, Encode};

/// The CUDA version that the served surface amounts to; raised when the client suites pass at it.
///
/// 13.0 is the first at which a CUDA 13 runtime works at all: each (libcudart, and the one inside cuBLAS,
/// cuDNN, cuda.bindings…) refuses a driver of an older major version with cudaErrorInsufficientDriver, and
/// clients built for 13 look functions up by the names that 13.0 gave them. A host's older driver lowers
/// it.
pub const OFFERED_CUDA_VERSION: u32 = 13_000;

/// Oldest host driver that the worker accepts (it needs `cuFuncGetParamInfo`).
pub const MINIMUM_DRIVER_VERSION: u32 = 12_040;

/// A version as `cuDriverGetVersion` gives it, as people write it: `12.4`.
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
    /// A context, minted by the worker.
    Ctx;
    /// A stream. 0 is the NULL stream of the call's context; every other is minted by the guest
    /// (see [`GUEST_HANDLES`]). The per-thread default stream is an explicit one on the wire.
    Stream;
    /// An event, minted by the guest.
    Event;
    /// A module, minted by the worker.
    Module;
    /// A function of a module, minted by the worker.
    Func;
    /// The result of a link, minted by the worker.
    Linked;
    /// An array, or a level of a mipmapped one, minted by the worker.
    Array;
    /// What arrays are made and destroyed as: one array, or all levels of a mipmapped one; minted by
    /// the worker.
    ArrayBlock;
    /// Physical memory without an address, minted by the worker.
    Physical;
    /// A device address: the same number in guest and host.
    DevPtr;
}

impl Stream {
    /// The NULL (legacy default) stream.
    pub const NULL: Stream = Stream(0);
}

/// Handles that the guest mints (streams, events). Bit 63 stays clear: numba and cuda.core read
/// handles as signed and raise OverflowError otherwise.
pub const GUEST_HANDLES: std::ops::Range<u64> = 0x1000_0000_0000_0000..0x2000_0000_0000_0000;

/// Handles that the worker mints.
pub const WORKER_HANDLES: std::ops::Range<u64> = 0x2000_0000_0000_0000..0x3000_0000_0000_0000;
