//! Functions that a library exports but does not serve: [`refusing!`](crate::refusing) declares
//! them, and [`wrong`] makes the checks that NVIDIA's driver makes before it refuses. Sources of
//! the checks: measurements on cards (`tests/truth`), the checks of the present form of the same
//! function, and explicit statements in CUDA's header. Symbols without a row check nothing:
//!
//! | symbols | reason |
//! |---|---|
//! | `cuMulticast…`, `cuLogicalEndpoint…`, `cuFabric…`, `cuDeviceGetClique…`, `cuDeviceGetFabric…`, `cuMemBatchDecompressAsync` | a card without the feature refuses before it looks at arguments (measured: `cuMulticastBindAddr_v2`, `cuMemBatchDecompressAsync`) |
//! | `cuGL…`, `cuEGL…`, `cuVDPAU…`, most of `cuGraphics…` | it is not known which checks a driver makes without a graphics API |
//! | `cuFuncSetBlockShape`, `cuFuncSetSharedSize`, `cuParam…`, `cuLaunch`, `cuLaunchGrid…` | cards answer a null function with INVALID_VALUE or INVALID_HANDLE, which differs by function and is not known of these |
//! | other first forms of functions (`cuMemcpyDtoH`, `cuMemsetD8`, …) | they take addresses and sizes, and no document says which is checked first |
//! | `cuCtxDetach`, `cuCheckpointOperationComplete`, `cuMemGetAttribute…`, `cuMemGetLocationInfo`, `cuStreamBeginRecaptureToGraph`, `cuStreamEndCaptureToCig` | no document says which argument values are invalid |

/// The alternative that messages suggest to textures and surfaces.
pub const TEXTURES: &str =
    "there are no textures and surfaces; kernels have to read the memory itself";

/// The alternative that messages suggest to `__managed__` variables.
pub const MANAGED: &str = "use cudaMallocManaged (cuMemAllocManaged)";

/// A condition on an argument. The number is the argument's position, from 0 on.
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
    /// Always CUDA_ERROR_INVALID_VALUE: no object of the required kind can exist.
    Nothing,
}

use Check::*;

use crate::CuResult;

/// Symbols (without `_ptds`, `_ptsz`), and their checks in the order in which they are made. The
/// guest's library and soft-gpu share this table: a function has a row while one of them refuses
/// the function.
const CHECKS: &[(&[&str], &[Check])] = &[
    (&["cuDeviceGetLuid"], &[Value(0), Value(1), Device(2)]),
    (&["cuDeviceGetNvSciSyncAttributes"], &[Handle(0), Device(1)]),
    (
        &["cuFlushGPUDirectRDMAWrites"],
        &[OneOf(0, &[0]), OneOf(1, &[100, 200])],
    ),
    // File descriptors and NvSci; the other kinds of handles exist on Windows only.
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
    // Functions whose first argument is checked first: mostly first forms, of which the newer forms
    // check the same arguments.
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
    // `cuda.h` says that the flags must be 0.
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
    // Semaphore nodes cannot be created, so no node is valid.
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

/// The first six argument registers of a call. A call with fewer arguments leaves arbitrary values
/// in the remaining registers; the table does not read these registers.
#[derive(Debug, Clone, Copy)]
pub struct Arguments([u64; 6]);

impl Arguments {
    /// # Safety
    /// The registers must be those of a C call of the function whose name is given to [`wrong`]. A
    /// pointer among the arguments is null, or points to what `cuda.h` says.
    #[must_use]
    pub unsafe fn of_call(registers: [u64; 6]) -> Self {
        Self(registers)
    }

    /// The argument with this number. An int is in the lower half; the upper half is arbitrary.
    fn word(&self, n: usize) -> u64 {
        self.0[n]
    }

    fn int(&self, n: usize) -> u32 {
        self.word(n) as u32
    }

    /// The first 8 bytes of the structure that an argument points to. Only rows that have checked
    /// the pointer for null ask for this.
    fn first_of(&self, n: usize) -> u64 {
        let at = std::ptr::with_exposed_provenance::<u64>(self.word(n) as usize);
        // SAFETY: a pointer that is not null points to a structure of at least 8 bytes, by the
        // contract of `of_call`.
        unsafe { at.read_unaligned() }
    }
}

/// The error code of an invalid call of an unserved function; `None` for a valid call. `devices` is
/// the number of devices.
#[must_use]
pub fn wrong(symbol: &str, arguments: &Arguments, devices: u32) -> Option<CuResult> {
    let name = symbol.trim_end_matches("_ptds").trim_end_matches("_ptsz");
    let row = CHECKS.iter().find(|(symbols, _)| symbols.contains(&name))?;
    row.1.iter().find_map(|check| {
        let (holds, refusal) = match *check {
            Value(n) => (arguments.word(n) != 0, CuResult::INVALID_VALUE),
            Count(n) => (arguments.int(n) != 0, CuResult::INVALID_VALUE),
            Handle(n) => (arguments.word(n) != 0, CuResult::INVALID_HANDLE),
            Context(n) => (arguments.word(n) != 0, CuResult::INVALID_CONTEXT),
            Device(n) => (arguments.int(n) < devices, CuResult::INVALID_DEVICE),
            OneOf(n, known) => (known.contains(&arguments.int(n)), CuResult::INVALID_VALUE),
            KindOf(n, known) => {
                let kind = arguments.first_of(n) as u32;
                (known.contains(&kind), CuResult::INVALID_VALUE)
            }
            HandleIn(n) => (arguments.first_of(n) != 0, CuResult::INVALID_HANDLE),
            ContextIn(n) => (arguments.first_of(n) != 0, CuResult::INVALID_CONTEXT),
            ValueIn(n) => (arguments.first_of(n) != 0, CuResult::INVALID_VALUE),
            Nothing => (false, CuResult::INVALID_VALUE),
        };
        (!holds).then_some(refusal)
    })
}

/// Declares an export for every symbol, which passes its name and arguments to the function
/// `called(&'static str, &Arguments) -> u32` of the module that contains the macro's call, and the
/// list `REFUSING` of these exports, sorted. The build script makes the call (`build::exports`).
#[macro_export]
macro_rules! refusing {
    ($($symbol:ident;)*) => {
        /// Every symbol that only refuses, sorted.
        pub static REFUSING: &[$crate::names::Export] = &[$($crate::names::Export {
            symbol: stringify!($symbol),
            address: $crate::names::Address(refusing::$symbol as *const ()),
        },)*];

        #[allow(non_snake_case)]
        mod refusing {
            $(
                #[unsafe(no_mangle)]
                pub extern "C" fn $symbol(a: u64, b: u64, c: u64, d: u64, e: u64, f: u64) -> u32 {
                    // SAFETY: these are the registers of a call of this function.
                    let arguments = unsafe {
                        $crate::unserved::Arguments::of_call([a, b, c, d, e, f])
                    };
                    super::called(stringify!($symbol), &arguments)
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_checked_in_order_and_a_right_call_is_only_not_served() {
        let wrong = |symbol, registers: [u64; 6]| {
            // SAFETY: the pointers are null, or only compared with null, or those of `pointing`.
            let arguments = unsafe { Arguments::of_call(registers) };
            super::wrong(symbol, &arguments, 2).map(|code| code.0)
        };
        let pointing = |to: &u64| std::ptr::from_ref(to).expose_provenance() as u64;
        assert_eq!(wrong("cuDeviceGetLuid", [8, 8, 9, 0, 0, 0]), Some(101));
        assert_eq!(wrong("cuDeviceGetLuid", [0, 8, 9, 0, 0, 0]), Some(1));
        assert_eq!(wrong("cuDeviceGetLuid", [8, 8, 1, 0, 0, 0]), None);
        let import = |kind: u64| wrong("cuImportExternalMemory", [8, pointing(&kind), 0, 0, 0, 0]);
        assert_eq!(import(1), None);
        assert_eq!(import(2), Some(1));
        assert_eq!(
            wrong("cuMemMapArrayAsync_ptsz", [8, 0, 0, 0, 0, 0]),
            Some(1)
        );
        assert_eq!(wrong("cuMulticastBindAddr_v2", [0; 6]), None);
        assert_eq!(wrong("cuMemAlloc", [8, 0, 0, 0, 0, 0]), Some(1));
        assert_eq!(wrong("cuMemAlloc", [8, 1, 0, 0, 0, 0]), None);
        assert_eq!(wrong("cuDevSmResourceSplit", [0, 1, 8, 0, 1, 8]), Some(1));
        assert_eq!(wrong("cuTensorMapEncodeTiled", [0, 7, 1, 8, 8, 8]), Some(1));
        assert_eq!(wrong("cuTensorMapEncodeTiled", [8, 7, 1, 8, 8, 8]), None);
    }

    #[test]
    fn structures_are_read_only_behind_a_check_for_null() {
        for (symbols, checks) in CHECKS {
            for (i, check) in checks.iter().enumerate() {
                let (KindOf(n, _) | HandleIn(n) | ContextIn(n) | ValueIn(n)) = *check else {
                    continue;
                };
                assert!(checks[..i].contains(&Value(n)), "{symbols:?}: argument {n}");
            }
        }
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
