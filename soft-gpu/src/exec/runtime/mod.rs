//! The device runtime: functions with which kernels launch kernels (CUDA dynamic parallelism,
//! version 2), and the functions of the CUDA runtime that device code may call.
//!
//! nvcc declares these functions as `__cudaCDP2…`; NVIDIA's library `libcudadevrt` defines them.
//! Here the interpreter executes the calls (`call`), and keeps what a grid launched until the grid
//! has ended (`nest`). `cudaGetErrorName` and `cudaGetErrorString` are PTX of the driver, because
//! they return addresses of device memory.

pub(super) mod call;
pub(super) mod nest;

/// Errors (`cudaError_t`) that the device runtime returns.
pub mod error {
    macro_rules! errors {
        ($($(#[$doc:meta])* $name:ident = $code:literal $cuda:literal $text:literal,)*) => {
            $($(#[$doc])* #[doc = $cuda] pub const $name: u32 = $code;)*

            /// Number, name and description of each error.
            pub const TEXTS: &[(u32, &str, &str)] = &[$(($name, $cuda, $text),)*];
        };
    }

    errors! {
        SUCCESS = 0 "cudaSuccess" "no error",
        INVALID_VALUE = 1 "cudaErrorInvalidValue" "invalid argument",
        MEMORY_ALLOCATION = 2 "cudaErrorMemoryAllocation" "out of memory",
        /// A grid or block that the kernel cannot have.
        INVALID_CONFIGURATION = 9 "cudaErrorInvalidConfiguration" "invalid configuration argument",
        /// A pitch below the width.
        INVALID_PITCH_VALUE = 12 "cudaErrorInvalidPitchValue" "invalid pitch argument",
        INVALID_MEMCPY_DIRECTION = 21 "cudaErrorInvalidMemcpyDirection"
            "invalid copy direction for memcpy",
        /// The launching grid is at the deepest level.
        LAUNCH_MAX_DEPTH_EXCEEDED = 65 "cudaErrorLaunchMaxDepthExceeded"
            "launch would exceed maximum depth of nested launches",
        /// `cudaLimitDevRuntimePendingLaunchCount` launches wait.
        LAUNCH_PENDING_COUNT_EXCEEDED = 69 "cudaErrorLaunchPendingCountExceeded"
            "launch failed because launch would exceed cudaLimitDevRuntimePendingLaunchCount",
        /// No kernel of the module.
        INVALID_DEVICE_FUNCTION = 98 "cudaErrorInvalidDeviceFunction" "invalid device function",
        INVALID_DEVICE = 101 "cudaErrorInvalidDevice" "invalid device ordinal",
        UNSUPPORTED_LIMIT = 215 "cudaErrorUnsupportedLimit"
            "limit is not supported on this architecture",
        /// No stream or event of this launch.
        INVALID_RESOURCE_HANDLE = 400 "cudaErrorInvalidResourceHandle" "invalid resource handle",
        /// No room for parameters.
        LAUNCH_OUT_OF_RESOURCES = 701 "cudaErrorLaunchOutOfResources"
            "too many resources requested for launch",
        NOT_SUPPORTED = 801 "cudaErrorNotSupported" "operation not supported",
    }
}

/// Deepest level of a grid. A grid that the host launched is at level 0.
pub(crate) const DEEPEST: usize = 24;

/// A function of the device runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Call {
    DeviceGetAttribute,
    DeviceGetCacheConfig,
    DeviceGetLimit,
    DeviceGetSharedMemConfig,
    EventCreateWithFlags,
    EventDestroy,
    EventRecord,
    Free,
    FuncGetAttributes,
    GetDevice,
    GetDeviceCount,
    GetLastError,
    GetParameterBuffer,
    GetParameterBufferV2,
    LaunchDevice,
    LaunchDeviceV2,
    Malloc,
    Memcpy2DAsync,
    Memcpy3DAsync,
    MemcpyAsync,
    Memset2DAsync,
    Memset3DAsync,
    MemsetAsync,
    Occupancy,
    PeekAtLastError,
    RuntimeGetVersion,
    StreamCreateWithFlags,
    StreamDestroy,
    StreamWaitEvent,
}

/// Name without prefix, function, bytes of each argument.
type Row = (&'static str, Call, &'static [u64]);

const TABLE: [Row; 31] = [
    ("DeviceGetAttribute", Call::DeviceGetAttribute, &[8, 4, 4]),
    ("DeviceGetCacheConfig", Call::DeviceGetCacheConfig, &[8]),
    ("DeviceGetLimit", Call::DeviceGetLimit, &[8, 4]),
    (
        "DeviceGetSharedMemConfig",
        Call::DeviceGetSharedMemConfig,
        &[8],
    ),
    ("EventCreateWithFlags", Call::EventCreateWithFlags, &[8, 4]),
    ("EventDestroy", Call::EventDestroy, &[8]),
    ("EventRecord", Call::EventRecord, &[8, 8]),
    ("EventRecordWithFlags", Call::EventRecord, &[8, 8, 4]),
    ("Free", Call::Free, &[8]),
    ("FuncGetAttributes", Call::FuncGetAttributes, &[8, 8]),
    ("GetDevice", Call::GetDevice, &[8]),
    ("GetDeviceCount", Call::GetDeviceCount, &[8]),
    ("GetLastError", Call::GetLastError, &[]),
    ("GetParameterBuffer", Call::GetParameterBuffer, &[8, 8]),
    (
        "GetParameterBufferV2",
        Call::GetParameterBufferV2,
        &[8, 12, 12, 4],
    ),
    ("LaunchDevice", Call::LaunchDevice, &[8, 8, 12, 12, 4, 8]),
    ("LaunchDeviceV2", Call::LaunchDeviceV2, &[8, 8]),
    ("Malloc", Call::Malloc, &[8, 8]),
    (
        "Memcpy2DAsync",
        Call::Memcpy2DAsync,
        &[8, 8, 8, 8, 8, 8, 4, 8],
    ),
    ("Memcpy3DAsync", Call::Memcpy3DAsync, &[8, 8]),
    ("MemcpyAsync", Call::MemcpyAsync, &[8, 8, 8, 4, 8]),
    ("Memset2DAsync", Call::Memset2DAsync, &[8, 8, 4, 8, 8, 8]),
    ("Memset3DAsync", Call::Memset3DAsync, &[32, 4, 24, 8]),
    ("MemsetAsync", Call::MemsetAsync, &[8, 4, 8, 8]),
    (
        "OccupancyMaxActiveBlocksPerMultiprocessor",
        Call::Occupancy,
        &[8, 8, 4, 8],
    ),
    (
        "OccupancyMaxActiveBlocksPerMultiprocessorWithFlags",
        Call::Occupancy,
        &[8, 8, 4, 8, 4],
    ),
    ("PeekAtLastError", Call::PeekAtLastError, &[]),
    ("RuntimeGetVersion", Call::RuntimeGetVersion, &[8]),
    (
        "StreamCreateWithFlags",
        Call::StreamCreateWithFlags,
        &[8, 4],
    ),
    ("StreamDestroy", Call::StreamDestroy, &[8]),
    ("StreamWaitEvent", Call::StreamWaitEvent, &[8, 8, 4]),
];

/// A declared function: the number for the instruction, and the bytes of each argument.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Declared {
    /// Index in the table.
    pub(crate) index: u32,
    /// Bytes of each argument.
    pub(crate) arguments: &'static [u64],
}

/// Finds a function of the device runtime by its name in PTX. `_ptsz` names the same function of a
/// program with a default stream per thread.
pub(crate) fn find(name: &str) -> Option<Declared> {
    let name = name.strip_prefix("__cudaCDP2")?;
    let name = name.strip_suffix("_ptsz").unwrap_or(name);
    let index = TABLE.iter().position(|row| row.0 == name)?;
    Some(Declared {
        index: index as u32,
        arguments: TABLE[index].2,
    })
}

/// The function with the number of an instruction.
fn called(index: u32) -> Call {
    TABLE[index as usize].1
}
