//! The checks that unserved functions make before they refuse, as in NVIDIA's driver. Sources:
//! measurements on cards (`tests/truth`), the checks of the present form of the same function, and
//! explicit statements in CUDA's header. Symbols without a row check nothing:
//!
//! | symbols | why |
//! |---|---|
//! | `cuMulticast…`, `cuLogicalEndpoint…`, `cuFabric…`, `cuDeviceGetClique…`, `cuDeviceGetFabric…`, `cuMemBatchDecompressAsync` | a card without the feature refuses before it looks at arguments (measured: `cuMulticastBindAddr_v2`, `cuMemBatchDecompressAsync`) |
//! | `cuGL…`, `cuEGL…`, `cuVDPAU…`, most of `cuGraphics…` | what a driver checks without a graphics API is not known |
//! | `cuFuncSetBlockShape`, `cuFuncSetSharedSize`, `cuParam…`, `cuLaunch`, `cuLaunchGrid…` | cards answer a null function with INVALID_VALUE or INVALID_HANDLE, which differs by function and is not known of these |
//! | other first forms of functions (`cuMemcpyDtoH`, `cuMemsetD8`, …) | they take addresses and sizes, and no document says which is looked at first |
//! | `cuCtxDetach`, `cuCheckpointOperationComplete`, `cuMemGetAttribute…`, `cuMemGetLocationInfo`, `cuStreamBeginRecaptureToGraph`, `cuStreamEndCaptureToCig` | no document says what is wrong with which argument |

/// An alternative to textures and surfaces.
pub const TEXTURES: &str =
    "there are no textures and surfaces; kernels have to read the memory itself";

/// An alternative to `__managed__` variables.
pub const MANAGED: &str = "use cudaMallocManaged (cuMemAllocManaged)";

/// A condition on an argument, which is given by its number from 0 on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Check {
    /// Not null; otherwise CUDA_ERROR_INVALID_VALUE.
    Value(usize),
    /// An int that is not 0; otherwise CUDA_ERROR_INVALID_VALUE.
    Count(usize),
    /// Not null; otherwise CUDA_ERROR_INVALID_HANDLE.
    Handle(usize),
    /// Not null; otherwise CUDA_ERROR_INVALID_CONTEXT.
    Context(usize),
    /// A device's ordinal; otherwise CUDA_ERROR_INVALID_DEVICE.
    Device(usize),
    /// One of these numbers; otherwise CUDA_ERROR_INVALID_VALUE.
    OneOf(usize, &'static [u32]),
    /// Points to one of these numbers; otherwise CUDA_ERROR_INVALID_VALUE.
    KindOf(usize, &'static [u32]),
    /// Points to a non-null value; otherwise CUDA_ERROR_INVALID_HANDLE.
    HandleIn(usize),
    /// Points to a non-null value; otherwise CUDA_ERROR_INVALID_CONTEXT.
    ContextIn(usize),
    /// Points to a non-null value; otherwise CUDA_ERROR_INVALID_VALUE.
    ValueIn(usize),
    /// Always CUDA_ERROR_INVALID_VALUE, because no object of this kind exists.
    Nothing,
}

use Check::*;

use vgpu_cuda_abi::CuResult;

/// Symbols (without `_ptds`, `_ptsz`) and their checks, in this order.
const CHECKS: &[(&[&str], &[Check])] = &[
    (&["cuDeviceGetLuid"], &[Value(0), Value(1), Device(2)]),
    (&["cuDeviceGetNvSciSyncAttributes"], &[Handle(0), Device(1)]),
    (
        &["cuFlushGPUDirectRDMAWrites"],
        &[OneOf(0, &[0]), OneOf(1, &[100, 200])],
    ),
    // File descriptors and NvSci; the other kinds exist on Windows only.
    (
        &["cuImportExternalMemory"],
        &[Value(0), Value(1), KindOf(1, &[1, 8, 9])],
    ),
    (
        &["cuImportExternalSemaphore"],
        &[Value(0), Value(1), KindOf(1, &[1, 6, 9])],
    ),
    (
        &[
            "cuExternalMemoryGetMappedBuffer",
            "cuExternalMemoryGetMappedMipmappedArray",
            "cuMemPoolImportPointer",
            "cuTexObjectCreate",
        ],
        &[Value(0), Value(1), Value(2)],
    ),
    (
        &[
            "cuSignalExternalSemaphoresAsync",
            "cuWaitExternalSemaphoresAsync",
        ],
        &[Value(0), Value(1), Count(2), ValueIn(0)],
    ),
    (
        &[
            "cuGraphAddExternalSemaphoresSignalNode",
            "cuGraphAddExternalSemaphoresWaitNode",
        ],
        &[Value(0), Value(1), Value(4)],
    ),
    (
        &[
            "cuIpcGetMemHandle",
            "cuMemPoolExportPointer",
            "cuMemPoolExportToShareableHandle",
            "cuSurfObjectCreate",
            "cuTensorMapReplaceAddress",
        ],
        &[Value(0), Value(1)],
    ),
    (
        &[
            "cuDestroyExternalMemory",
            "cuDestroyExternalSemaphore",
            "cuIpcCloseMemHandle",
            "cuIpcOpenEventHandle",
            "cuIpcOpenMemHandle",
            "cuIpcOpenMemHandle_v2",
            "cuMemExportToShareableHandle",
            "cuMemImportFromShareableHandle",
            "cuMemPoolImportFromShareableHandle",
            "cuTensorMapSetAllocationClass",
            "cuTexRefCreate",
        ],
        &[Value(0)],
    ),
    (
        &["cuMemGetHandleForAddressRange"],
        &[Value(0), Value(1), Value(2)],
    ),
    (&["cuMemMapArrayAsync"], &[Value(0), Count(1)]),
    // First forms, with 32-bit sizes; their present forms check the same first.
    (
        &[
            "cuArray3DGetDescriptor",
            "cuArrayGetDescriptor",
            "cuCtxCreate",
            "cuCtxGetExecAffinity",
            "cuMemAllocHost",
            "cuMemcpy2D",
            "cuMemcpy2DAsync",
            "cuMemcpy2DUnaligned",
            "cuMemcpy3D",
            "cuMemcpy3DAsync",
        ],
        &[Value(0)],
    ),
    (
        &["cuArrayCreate", "cuArray3DCreate", "cuMemAllocPitch"],
        &[Value(0), Value(1)],
    ),
    (&["cuDeviceTotalMem"], &[Value(0), Device(1)]),
    (&["cuMemAlloc", "cuMemHostRegister"], &[Value(0), Count(1)]),
    // By `cuda.h`, the flags must be 0.
    (
        &["cuMemHostGetDevicePointer"],
        &[Value(0), Value(1), OneOf(2, &[0])],
    ),
    (&["cuCtxAttach"], &[Value(0), OneOf(1, &[0])]),
    (
        &["cuDevSmResourceSplit"],
        &[Value(2), OneOf(4, &[0]), Value(5)],
    ),
    (
        &["cuLaunchCooperativeKernelMultiDevice"],
        &[Value(0), Count(1), OneOf(2, &[0, 1, 2, 3]), HandleIn(0)],
    ),
    (&["cuStreamBeginCaptureToCig"], &[Value(1), ContextIn(1)]),
    (
        &[
            "cuTensorMapEncodeTiled",
            "cuTensorMapEncodeIm2col",
            "cuTensorMapEncodeIm2colWide",
        ],
        &[Value(0), Value(3), Value(4), Value(5)],
    ),
    (
        &[
            "cuTexObjectGetResourceDesc",
            "cuTexObjectGetResourceViewDesc",
            "cuTexObjectGetTextureDesc",
            "cuSurfObjectGetResourceDesc",
        ],
        &[Value(0), Nothing],
    ),
    // Semaphore nodes cannot exist.
    (
        &[
            "cuGraphExecExternalSemaphoresSignalNodeSetParams",
            "cuGraphExecExternalSemaphoresWaitNodeSetParams",
            "cuGraphExternalSemaphoresSignalNodeGetParams",
            "cuGraphExternalSemaphoresSignalNodeSetParams",
            "cuGraphExternalSemaphoresWaitNodeGetParams",
            "cuGraphExternalSemaphoresWaitNodeSetParams",
            "cuTexObjectDestroy",
            "cuSurfObjectDestroy",
        ],
        &[Nothing],
    ),
    (
        &[
            "cuTexRefDestroy",
            "cuTexRefSetAddress2D",
            "cuTexRefSetAddress2D_v2",
            "cuTexRefSetAddress2D_v3",
            "cuTexRefSetAddressMode",
            "cuTexRefSetArray",
            "cuTexRefSetBorderColor",
            "cuTexRefSetFilterMode",
            "cuTexRefSetFlags",
            "cuTexRefSetFormat",
            "cuTexRefSetMaxAnisotropy",
            "cuTexRefSetMipmapFilterMode",
            "cuTexRefSetMipmapLevelBias",
            "cuTexRefSetMipmapLevelClamp",
            "cuTexRefSetMipmappedArray",
            "cuSurfRefSetArray",
            "cuGraphicsUnregisterResource",
            "cuGraphicsResourceSetMapFlags",
            "cuGraphicsResourceSetMapFlags_v2",
        ],
        &[Handle(0)],
    ),
    (
        &[
            "cuTexRefGetAddress",
            "cuTexRefGetAddress_v2",
            "cuTexRefGetAddressMode",
            "cuTexRefGetArray",
            "cuTexRefGetBorderColor",
            "cuTexRefGetFilterMode",
            "cuTexRefGetFlags",
            "cuTexRefGetMaxAnisotropy",
            "cuTexRefGetMipmapFilterMode",
            "cuTexRefGetMipmapLevelBias",
            "cuTexRefGetMipmappedArray",
            "cuSurfRefGetArray",
            "cuIpcGetEventHandle",
            "cuGraphicsSubResourceGetMappedArray",
            "cuGraphicsResourceGetMappedMipmappedArray",
        ],
        &[Value(0), Handle(1)],
    ),
    (
        &["cuTexRefGetFormat", "cuTexRefGetMipmapLevelClamp"],
        &[Handle(2)],
    ),
    (
        &["cuTexRefSetAddress", "cuTexRefSetAddress_v2"],
        &[Handle(1)],
    ),
    (
        &["cuModuleGetTexRef", "cuModuleGetSurfRef"],
        &[Value(0), Handle(1), Value(2)],
    ),
    (
        &["cuCtxFromGreenCtx", "cuGreenCtxStreamCreate"],
        &[Value(0), Context(1)],
    ),
    (
        &[
            "cuCtxRecordEvent",
            "cuCtxWaitEvent",
            "cuGreenCtxRecordEvent",
            "cuGreenCtxWaitEvent",
        ],
        &[Context(0), Handle(1)],
    ),
    (
        &[
            "cuGreenCtxDestroy",
            "cuGreenCtxGetDevResource",
            "cuGreenCtxGetId",
        ],
        &[Context(0)],
    ),
];

/// The arguments of a call that the table can check.
pub type Arguments = [u64; 6];

/// The error code of an invalid call of an unserved function; `None` for a valid call. `peek` reads
/// the first 8 bytes at an address of the program; `devices` is the number of devices.
pub fn wrong(
    symbol: &str,
    arguments: &Arguments,
    devices: u32,
    peek: impl Fn(u64) -> u64,
) -> Option<CuResult> {
    let name = symbol.trim_end_matches("_ptds").trim_end_matches("_ptsz");
    let row = CHECKS.iter().find(|(symbols, _)| symbols.contains(&name))?;
    let of = |n: usize| arguments.get(n).copied().unwrap_or_default();
    row.1.iter().find_map(|check| {
        let (holds, refusal) = match *check {
            Check::Value(n) => (of(n) != 0, CuResult::INVALID_VALUE),
            Check::Count(n) => (of(n) as u32 != 0, CuResult::INVALID_VALUE),
            Check::Handle(n) => (of(n) != 0, CuResult::INVALID_HANDLE),
            Check::Context(n) => (of(n) != 0, CuResult::INVALID_CONTEXT),
            // An int: the upper half of the word is arbitrary.
            Check::Device(n) => ((of(n) as u32) < devices, CuResult::INVALID_DEVICE),
            Check::OneOf(n, known) => (known.contains(&(of(n) as u32)), CuResult::INVALID_VALUE),
            Check::KindOf(n, known) => (
                known.contains(&(peek(of(n)) as u32)),
                CuResult::INVALID_VALUE,
            ),
            Check::HandleIn(n) => (peek(of(n)) != 0, CuResult::INVALID_HANDLE),
            Check::ContextIn(n) => (peek(of(n)) != 0, CuResult::INVALID_CONTEXT),
            Check::ValueIn(n) => (peek(of(n)) != 0, CuResult::INVALID_VALUE),
            Check::Nothing => (false, CuResult::INVALID_VALUE),
        };
        (!holds).then_some(refusal)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked_in_order_and_a_right_call_is_only_not_served() {
        let peek = |at| at - 100;
        let wrong = |symbol, arguments: Arguments| {
            super::wrong(symbol, &arguments, 2, peek).map(|code| code.0)
        };
        assert_eq!(wrong("cuDeviceGetLuid", [8, 8, 9, 0, 0, 0]), Some(101));
        assert_eq!(wrong("cuDeviceGetLuid", [0, 8, 9, 0, 0, 0]), Some(1));
        assert_eq!(wrong("cuDeviceGetLuid", [8, 8, 1, 0, 0, 0]), None);
        assert_eq!(wrong("cuImportExternalMemory", [8, 101, 0, 0, 0, 0]), None);
        assert_eq!(
            wrong("cuImportExternalMemory", [8, 102, 0, 0, 0, 0]),
            Some(1)
        );
        assert_eq!(
            wrong("cuMemMapArrayAsync_ptsz", [8, 0, 0, 0, 0, 0]),
            Some(1)
        );
        assert_eq!(wrong("cuMulticastBindAddr_v2", [0; 6]), None);
        assert_eq!(wrong("cuMemAlloc", [8, 0, 0, 0, 0, 0]), Some(1));
        assert_eq!(wrong("cuMemAlloc", [8, 1, 0, 0, 0, 0]), None);
        assert_eq!(wrong("cuDevSmResourceSplit", [0, 1, 8, 0, 1, 8]), Some(1));
    }

    #[test]
    fn a_symbol_has_one_row() {
        let mut all: Vec<&str> = CHECKS.iter().flat_map(|(s, _)| s.iter().copied()).collect();
        let number = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), number);
    }
}
