//! The functions of `cuda.h` that the shim serves.
//!
//! Symbols that are not here are exported too and return CUDA_ERROR_NOT_SUPPORTED.

use super::ops::Op;

/// How a function is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// Answered in the guest from what it knows.
    Local,
    /// By these operations.
    By(&'static [Op]),
}

/// One served function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Exported symbol.
    pub symbol: &'static str,
    /// CUDA version that introduced this form, as in `cudaTypedefs.h` (e.g. 3020).
    pub since: u32,
    /// How.
    pub served: Served,
}

macro_rules! functions {
    ($($symbol:ident $since:literal $(by $($op:ident)+)?;)*) => {
        /// Every served function.
        pub static FUNCTIONS: &[Function] = &[$(Function {
            symbol: stringify!($symbol),
            since: $since,
            served: functions!(@served $($($op)+)?),
        },)*];
    };
    (@served) => { Served::Local };
    (@served $($op:ident)+) => { Served::By(&[$(Op::$op),+]) };
}

functions! {
    cuInit 2000;
    cuDriverGetVersion 2020;
    cuGetErrorName 6000;
    cuGetErrorString 6000;
    cuGetProcAddress 11030;
    cuGetProcAddress_v2 12000;
    cuGetExportTable 3000;

    cuDeviceGet 2000;
    cuDeviceGetCount 2000;
    cuDeviceGetName 2000;
    cuDeviceGetUuid 9020;
    cuDeviceGetUuid_v2 11040;
    cuDeviceTotalMem_v2 3020;
    cuDeviceGetAttribute 2000;
    cuDeviceGetProperties 2000;
    cuDeviceComputeCapability 2000;
    cuDeviceGetByPCIBusId 4010;
    cuDeviceGetPCIBusId 4010;
    cuDeviceCanAccessPeer 4000;

    cuDevicePrimaryCtxRetain 7000 by PrimaryCtxRetain;
    cuDevicePrimaryCtxRelease 7000 by PrimaryCtxRelease;
    cuDevicePrimaryCtxRelease_v2 11000 by PrimaryCtxRelease;
    cuDevicePrimaryCtxReset 7000 by PrimaryCtxReset;
    cuDevicePrimaryCtxReset_v2 11000 by PrimaryCtxReset;
    cuDevicePrimaryCtxSetFlags 7000 by PrimaryCtxSetFlags;
    cuDevicePrimaryCtxSetFlags_v2 11000 by PrimaryCtxSetFlags;
    cuDevicePrimaryCtxGetState 7000;
    cuCtxCreate_v2 3020 by CtxCreate;
    cuCtxCreate_v3 11040 by CtxCreate;
    cuCtxCreate_v4 12050 by CtxCreate;
    cuCtxDestroy_v2 4000 by CtxDestroy;
    cuCtxPushCurrent 2000;
    cuCtxPushCurrent_v2 4000;
    cuCtxPopCurrent 2000;
    cuCtxPopCurrent_v2 4000;
    cuCtxSetCurrent 4000;
    cuCtxGetCurrent 4000;
    cuCtxGetDevice 2000;
    cuCtxGetFlags 7000;
    cuCtxGetId 12000;
    cuCtxGetApiVersion 3020;
    cuCtxGetStreamPriorityRange 5050;
    cuCtxSynchronize 2000 by CtxSynchronize;
    cuCtxSetLimit 3010 by CtxSetLimit;
    cuCtxGetLimit 3010 by CtxGetLimit;
    cuCtxSetCacheConfig 3020 by CtxSetCacheConfig;
    cuCtxGetCacheConfig 3020;

    cuMemAlloc_v2 3020 by MemAlloc;
    cuMemAllocPitch_v2 3020 by MemAlloc;
    cuMemFree_v2 3020 by MemFree;
    cuMemGetInfo_v2 3020 by MemGetInfo;
    cuMemGetAddressRange_v2 3020;
    cuMemAllocHost_v2 3020;
    cuMemFreeHost 2000;
    cuMemHostAlloc 2020;
    cuMemHostGetFlags 2030;
    cuMemHostRegister_v2 6050;
    cuMemHostUnregister 4000;
    cuPointerGetAttribute 4000;
    cuPointerGetAttributes 7000;
    cuMemcpy 4000 by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyAsync 4000 by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyHtoD_v2 3020 by MemcpyHtoD;
    cuMemcpyHtoDAsync_v2 3020 by MemcpyHtoD;
    cuMemcpyDtoH_v2 3020 by MemcpyDtoH;
    cuMemcpyDtoHAsync_v2 3020 by MemcpyDtoH;
    cuMemcpyDtoD_v2 3020 by MemcpyDtoD;
    cuMemcpyDtoDAsync_v2 3020 by MemcpyDtoD;
    cuMemsetD8_v2 3020 by Memset;
    cuMemsetD16_v2 3020 by Memset;
    cuMemsetD32_v2 3020 by Memset;
    cuMemsetD8Async 3020 by Memset;
    cuMemsetD16Async 3020 by Memset;
    cuMemsetD32Async 3020 by Memset;
    cuMemsetD2D8_v2 3020 by Memset2D;
    cuMemsetD2D16_v2 3020 by Memset2D;
    cuMemsetD2D32_v2 3020 by Memset2D;
    cuMemsetD2D8Async 3020 by Memset2D;
    cuMemsetD2D16Async 3020 by Memset2D;
    cuMemsetD2D32Async 3020 by Memset2D;

    cuModuleLoad 2000 by ImageQuery ImageData ModuleLoad;
    cuModuleLoadData 2000 by ImageQuery ImageData ModuleLoad;
    cuModuleLoadDataEx 2010 by ImageQuery ImageData ModuleLoad;
    cuModuleLoadFatBinary 2000 by ImageQuery ImageData ModuleLoad;
    cuModuleUnload 2000 by ModuleUnload;
    cuModuleGetLoadingMode 11070;
    cuModuleGetFunction 2000 by ModuleGetFunction;
    cuModuleGetGlobal_v2 3020 by ModuleGetGlobal;
    cuFuncGetModule 11000;
    cuFuncGetName 12030;
    cuFuncGetParamInfo 12040;
    cuFuncGetAttribute 2020 by FuncGetAttribute;
    cuFuncSetAttribute 9000 by FuncSetAttribute;
    cuFuncSetCacheConfig 3000 by FuncSetCacheConfig;
    cuLaunchKernel 4000 by LaunchKernel;
    cuLaunchKernelEx 11060 by LaunchKernel;
    cuLaunchCooperativeKernel 9000 by OccupancyBlocks LaunchKernel;
    cuOccupancyMaxActiveBlocksPerMultiprocessor 6050 by OccupancyBlocks;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags 7000 by OccupancyBlocks;
    cuOccupancyMaxPotentialBlockSize 6050 by OccupancyBlocks;
    cuOccupancyMaxPotentialBlockSizeWithFlags 7000 by OccupancyBlocks;

    cuStreamCreate 2000 by StreamCreate;
    cuStreamCreateWithPriority 5050 by StreamCreate;
    cuStreamDestroy_v2 4000 by StreamDestroy;
    cuStreamGetPriority 5050;
    cuStreamGetFlags 5050;
    cuStreamGetId 12000;
    cuStreamGetCtx 9020;
    cuStreamSynchronize 2000 by StreamSynchronize;
    cuStreamQuery 2000 by StreamQuery;
    cuStreamWaitEvent 3020 by StreamWaitEvent;
    cuStreamIsCapturing 10000;

    cuEventCreate 2000 by EventCreate;
    cuEventDestroy_v2 4000 by EventDestroy;
    cuEventRecord 2000 by EventRecord;
    cuEventRecordWithFlags 11010 by EventRecord;
    cuEventQuery 2000 by EventQuery;
    cuEventSynchronize 2000 by EventSynchronize;
    cuEventElapsedTime 2000 by EventElapsedTime;
    cuEventElapsedTime_v2 12080 by EventElapsedTime;
}
