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
    /// Found, and refused with CUDA_ERROR_NOT_SUPPORTED and a line that says what to do instead.
    Refused,
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
    ($($symbol:ident $since:literal $($how:ident $($op:ident)*)?;)*) => {
        /// Every served function.
        pub static FUNCTIONS: &[Function] = &[$(Function {
            symbol: stringify!($symbol),
            since: $since,
            served: functions!(@served $($how $($op)*)?),
        },)*];
    };
    (@served) => { Served::Local };
    (@served refused) => { Served::Refused };
    (@served by $($op:ident)+) => { Served::By(&[$(Op::$op),+]) };
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
    cuCtxSynchronize 2000 by CtxSynchronize HostPull;
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
    cuMemFreeHost 2000 by HostUnmap;
    cuMemHostAlloc 2020;
    cuMemHostGetFlags 2030;
    cuMemHostRegister_v2 6050;
    cuMemHostUnregister 4000 by HostUnmap;
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
    cuLaunchKernel 4000 by LaunchKernel HostMap HostPush;
    cuLaunchKernelEx 11060 by LaunchKernel HostMap HostPush;
    cuLaunchCooperativeKernel 9000 by OccupancyBlocks LaunchKernel HostMap HostPush;
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
    cuStreamSynchronize 2000 by StreamSynchronize HostPull;
    cuStreamQuery 2000 by StreamQuery HostPull;
    cuStreamWaitEvent 3020 by StreamWaitEvent;
    cuStreamIsCapturing 10000;
    cuLaunchHostFunc 10000 by HostFunc HostFuncDone;
    cuLaunchHostFunc_v2 13010 by HostFunc HostFuncDone;
    cuStreamAddCallback 5000 by HostFunc HostFuncDone;

    cuEventCreate 2000 by EventCreate;
    cuEventDestroy_v2 4000 by EventDestroy;
    cuEventRecord 2000 by EventRecord;
    cuEventRecordWithFlags 11010 by EventRecord;
    cuEventQuery 2000 by EventQuery HostPull;
    cuEventSynchronize 2000 by EventSynchronize HostPull;
    cuEventElapsedTime 2000 by EventElapsedTime;
    cuEventElapsedTime_v2 12080 by EventElapsedTime;

    cuMemcpy2D_v2 3020 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy2DUnaligned_v2 3020 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy2DAsync_v2 3020 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3D_v2 3020 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DAsync_v2 3020 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;

    cuCtxGetDevice_v2 13000;
    cuCtxSetFlags 12010;
    cuCtxGetSharedMemConfig 4020;
    cuCtxSetSharedMemConfig 4020;
    cuCtxResetPersistingL2Cache 11000;
    cuCtxEnablePeerAccess 4000;
    cuCtxDisablePeerAccess 4000;
    cuCtxSynchronize_v2 13000 by CtxSynchronize HostPull;

    cuMemcpyPeer 4000 by MemcpyDtoD MemcpyHtoD MemcpyDtoH;
    cuMemcpyPeerAsync 4000 by MemcpyDtoD MemcpyHtoD MemcpyDtoH;

    cuDeviceGetP2PAttribute 8000;
    cuDeviceGetExecAffinitySupport 11040;
    cuDeviceGetTexture1DLinearMaxWidth 11010;
    cuDeviceGetHostAtomicCapabilities 13000;
    cuDeviceGetP2PAtomicCapabilities 13000;
    cuDeviceRegisterAsyncNotification 12040;
    cuDeviceUnregisterAsyncNotification 12040;

    cuLibraryLoadData 12000 by ImageQuery ImageData ModuleLoad;
    cuLibraryLoadFromFile 12000 by ImageQuery ImageData ModuleLoad;
    cuLibraryUnload 12000 by ModuleUnload;
    cuLibraryGetKernel 12000 by ModuleGetFunction;
    cuLibraryGetKernelCount 12040 by ModuleFunctions;
    cuLibraryEnumerateKernels 12040 by ModuleFunctions ModuleGetFunction;
    cuLibraryGetModule 12000 by ModuleLoad;
    cuLibraryGetGlobal 12000 by ModuleGetGlobal;
    cuLibraryGetManaged 12000;
    cuLibraryGetUnifiedFunction 12000 by ModuleFunctions;
    cuKernelGetFunction 12000 by ModuleGetFunction;
    cuKernelGetLibrary 12050;
    cuKernelGetName 12030;
    cuKernelGetParamInfo 12040;
    cuKernelGetParamCount 13020;
    cuKernelGetAttribute 12000 by FuncGetAttribute;
    cuKernelSetAttribute 12000 by FuncSetAttribute;
    cuKernelSetCacheConfig 12000 by FuncSetCacheConfig;

    cuLinkCreate 5050;
    cuLinkCreate_v2 6050;
    cuLinkAddData 5050 by ImageQuery ImageData;
    cuLinkAddData_v2 6050 by ImageQuery ImageData;
    cuLinkAddFile 5050 by ImageQuery ImageData;
    cuLinkAddFile_v2 6050 by ImageQuery ImageData;
    cuLinkComplete 5050 by Link LinkData;
    cuLinkDestroy 5050;

    cuMemAllocManaged 6000 by HostMap;
    cuStreamAttachMemAsync 6000;
    cuMemPrefetchAsync 8000;
    cuMemAdvise 8000;
    cuMemRangeGetAttribute 8000;
    cuMemHostGetDevicePointer_v2 3020 by HostMap;

    cuFuncGetParamCount 13020;
    cuFuncIsLoaded 12040;
    cuFuncLoad 12040;
    cuFuncSetSharedMemConfig 4020;
    cuModuleGetFunctionCount 12040 by ModuleFunctions;
    cuModuleEnumerateFunctions 12040 by ModuleFunctions ModuleGetFunction;

    cuOccupancyAvailableDynamicSMemPerBlock 10020 by OccupancyShared;
    cuOccupancyMaxActiveClusters 11070 by OccupancyBlocks;
    cuOccupancyMaxPotentialClusterSize 11070;

    cuPointerSetAttribute 6000;

    cuMemAllocAsync 11020 by MemAllocAsync;
    cuMemAllocFromPoolAsync 11020 by MemAllocAsync;
    cuMemFreeAsync 11020 by MemFreeAsync;
    cuDeviceGetDefaultMemPool 11020;
    cuDeviceGetMemPool 11020;
    cuDeviceSetMemPool 11020;
    cuMemPoolCreate 11020;
    cuMemPoolDestroy 11020;
    cuMemPoolTrimTo 11020;
    cuMemPoolGetAttribute 11020;
    cuMemPoolSetAttribute 11020;
    cuMemPoolSetAccess 11020;
    cuMemPoolGetAccess 11020;

    cuProfilerInitialize 4000;
    cuProfilerStart 4000;
    cuProfilerStop 4000;

    cuLogsRegisterCallback 12090;
    cuLogsUnregisterCallback 12090;
    cuLogsCurrent 12090;
    cuLogsDumpToFile 12090;
    cuLogsDumpToMemory 12090;

    cuStreamGetCtx_v2 12050;
    cuStreamGetGreenCtx 12040;
    cuStreamGetDevice 12080;
    cuStreamGetAttribute 11000;
    cuStreamSetAttribute 11000;
    cuStreamCopyAttributes 11000;

    cuStreamWriteValue32 8000 by StreamWriteValue;
    cuStreamWriteValue32_v2 11070 by StreamWriteValue;
    cuStreamWriteValue64 9000 by StreamWriteValue;
    cuStreamWriteValue64_v2 11070 by StreamWriteValue;
    cuStreamWaitValue32 8000 by StreamWaitValue;
    cuStreamWaitValue32_v2 11070 by StreamWaitValue;
    cuStreamWaitValue64 9000 by StreamWaitValue;
    cuStreamWaitValue64_v2 11070 by StreamWaitValue;
    cuStreamBatchMemOp 8000 by StreamWriteValue StreamWaitValue;
    cuStreamBatchMemOp_v2 11070 by StreamWriteValue StreamWaitValue;

    cuStreamBeginCapture 10000;
    cuStreamBeginCapture_v2 10010;
    cuStreamBeginCaptureToGraph 12030;
    cuStreamEndCapture 10000;
    cuStreamGetCaptureInfo 10010;
    cuStreamGetCaptureInfo_v2 11030;
    cuStreamGetCaptureInfo_v3 12030;
    cuStreamUpdateCaptureDependencies 11030;
    cuStreamUpdateCaptureDependencies_v2 12030;
    cuThreadExchangeStreamCaptureMode 10010;

    cuGraphCreate 10000;
    cuGraphDestroy 10000;
    cuGraphClone 10000;
    cuGraphNodeFindInClone 10000;
    cuGraphDestroyNode 10000;
    cuGraphNodeGetType 10000;
    cuGraphGetNodes 10000;
    cuGraphGetRootNodes 10000;
    cuGraphAddDependencies 10000;
    cuGraphRemoveDependencies 10000;
    cuGraphGetEdges 10000;
    cuGraphNodeGetDependencies 10000;
    cuGraphNodeGetDependentNodes 10000;
    cuGraphAddDependencies_v2 12030;
    cuGraphRemoveDependencies_v2 12030;
    cuGraphGetEdges_v2 12030;
    cuGraphNodeGetDependencies_v2 12030;
    cuGraphNodeGetDependentNodes_v2 12030;
    cuGraphAddEmptyNode 10000;
    cuGraphAddChildGraphNode 10000;
    cuGraphChildGraphNodeGetGraph 10000;
    cuGraphDebugDotPrint 11030;
    cuGraphGetId 13010;
    cuGraphNodeGetContainingGraph 13010;
    cuGraphNodeGetLocalId 13010;
    cuGraphNodeGetToolsId 13010;

    cuGraphInstantiate 10000 by GraphCreate GraphConditional GraphBuild;
    cuGraphInstantiate_v2 11000 by GraphCreate GraphConditional GraphBuild;
    cuGraphInstantiateWithFlags 11040 by GraphCreate GraphConditional GraphBuild;
    cuGraphInstantiateWithParams 12000 by GraphCreate GraphConditional GraphBuild;
    cuGraphExecDestroy 10000 by GraphDestroy;
    cuGraphLaunch 10000 by GraphCreate GraphLaunch HostFunc HostPush;
    cuGraphUpload 11010 by GraphCreate;
    cuGraphExecGetFlags 12000;
    cuGraphExecUpdate 10020 by GraphDestroy;
    cuGraphExecUpdate_v2 12000 by GraphDestroy;
    cuGraphNodeSetEnabled 11060;
    cuGraphNodeGetEnabled 11060;
    cuGraphExecGetId 13010;

    cuGraphAddKernelNode 10000;
    cuGraphAddKernelNode_v2 12000;
    cuGraphAddMemsetNode 10000;
    cuGraphAddMemcpyNode 10000;
    cuGraphAddHostNode 10000;
    cuGraphAddEventRecordNode 11010;
    cuGraphAddEventWaitNode 11010;
    cuGraphAddMemAllocNode 11040 by MemAlloc;
    cuGraphAddMemFreeNode 11040;
    cuGraphAddBatchMemOpNode 11070;
    cuGraphConditionalHandleCreate 12030 by GraphCondition;
    cuGraphAddNode 12020 by MemAlloc;
    cuGraphAddNode_v2 12030 by MemAlloc;
    cuGraphAddNode_v3 13040 by MemAlloc;
    cuGraphNodeSetParams 12020;
    cuGraphNodeSetParams_v2 13040;
    cuGraphNodeGetParams 13020;
    cuGraphKernelNodeGetAttribute 11000;
    cuGraphKernelNodeSetAttribute 11000;
    cuGraphKernelNodeCopyAttributes 11000;
    cuGraphKernelNodeGetParams 10000;
    cuGraphKernelNodeGetParams_v2 12000;
    cuGraphKernelNodeSetParams 10000;
    cuGraphKernelNodeSetParams_v2 12000;
    cuGraphMemsetNodeGetParams 10000;
    cuGraphMemsetNodeSetParams 10000;
    cuGraphMemcpyNodeGetParams 10000;
    cuGraphMemcpyNodeSetParams 10000;
    cuGraphHostNodeGetParams 10000;
    cuGraphHostNodeSetParams 10000;
    cuGraphEventRecordNodeGetEvent 11010;
    cuGraphEventWaitNodeGetEvent 11010;
    cuGraphEventRecordNodeSetEvent 11010;
    cuGraphEventWaitNodeSetEvent 11010;
    cuGraphMemAllocNodeGetParams 11040;
    cuGraphMemFreeNodeGetParams 11040;
    cuGraphBatchMemOpNodeGetParams 11070;
    cuGraphBatchMemOpNodeSetParams 11070;
    cuGraphExecKernelNodeSetParams 10010 by GraphDestroy;
    cuGraphExecKernelNodeSetParams_v2 12000 by GraphDestroy;
    cuGraphExecMemsetNodeSetParams 10020 by GraphDestroy;
    cuGraphExecMemcpyNodeSetParams 10020 by GraphDestroy;
    cuGraphExecHostNodeSetParams 10020 by GraphDestroy;
    cuGraphExecChildGraphNodeSetParams 11010 by GraphDestroy;
    cuGraphExecEventRecordNodeSetEvent 11010 by GraphDestroy;
    cuGraphExecEventWaitNodeSetEvent 11010 by GraphDestroy;
    cuGraphExecBatchMemOpNodeSetParams 11070 by GraphDestroy;
    cuGraphExecNodeSetParams 12020 by GraphDestroy;
    cuDeviceGetGraphMemAttribute 11040;
    cuDeviceSetGraphMemAttribute 11040;
    cuDeviceGraphMemTrim 11040 by MemFree;

    cuMemGetDefaultMemPool 13000;
    cuMemGetMemPool 13000;
    cuMemSetMemPool 13000;
    cuUserObjectCreate 11030;
    cuUserObjectRetain 11030;
    cuUserObjectRelease 11030;
    cuGraphRetainUserObject 11030;
    cuGraphReleaseUserObject 11030;

    cuArrayCreate_v2 3020 by ArrayCreate;
    cuArray3DCreate_v2 3020 by ArrayCreate;
    cuArrayDestroy 2000 by ArrayDestroy;
    cuArrayGetDescriptor_v2 3020;
    cuArray3DGetDescriptor_v2 3020;
    cuArrayGetMemoryRequirements 11060;
    cuArrayGetSparseProperties 11010;
    cuArrayGetPlane 11020;
    cuMipmappedArrayCreate 5000 by ArrayCreate;
    cuMipmappedArrayGetLevel 5000;
    cuMipmappedArrayDestroy 5000 by ArrayDestroy;
    cuMipmappedArrayGetMemoryRequirements 11060;
    cuMipmappedArrayGetSparseProperties 11010;
    cuMemcpyHtoA_v2 3020 by MemcpyHtoA;
    cuMemcpyHtoAAsync_v2 3020 by MemcpyHtoA;
    cuMemcpyAtoH_v2 3020 by MemcpyAtoH;
    cuMemcpyAtoHAsync_v2 3020 by MemcpyAtoH;
    cuMemcpyDtoA_v2 3020 by MemcpyBox;
    cuMemcpyAtoD_v2 3020 by MemcpyBox;
    cuMemcpyAtoA_v2 3020 by MemcpyBox;

    cuMemGetAllocationGranularity 10020 by MemGranularity;
    cuMemAddressReserve 10020 by AddressReserve;
    cuMemAddressFree 10020 by AddressFree;
    cuMemCreate 10020 by PhysicalCreate;
    cuMemRelease 10020 by PhysicalRelease;
    cuMemMap 10020 by MemMap;
    cuMemUnmap 10020 by MemUnmap PhysicalRelease;
    cuMemSetAccess 10020 by MemSetAccess;
    cuMemGetAccess 10020;
    cuMemRetainAllocationHandle 11000;
    cuMemGetAllocationPropertiesFromHandle 10020;

    cuCoredumpGetAttribute 12010;
    cuCoredumpGetAttributeGlobal 12010;
    cuCoredumpSetAttribute 12010;
    cuCoredumpSetAttributeGlobal 12010;
    cuCoredumpRegisterStartCallback 13020;
    cuCoredumpRegisterCompleteCallback 13020;
    cuCoredumpDeregisterStartCallback 13020;
    cuCoredumpDeregisterCompleteCallback 13020;

    cuDeviceGetDevResource 12040;
    cuCtxGetDevResource 12040;
    cuStreamGetDevResource 13010;
    cuDevSmResourceSplitByCount 12040;
    cuDevResourceGenerateDesc 12040 refused;
    cuGreenCtxCreate 12040 refused;
    cuCheckpointProcessGetState 12080;
    cuCheckpointProcessGetRestoreThreadId 12080;
    cuCheckpointProcessLock 12080 refused;
    cuCheckpointProcessUnlock 12080;
    cuCheckpointProcessCheckpoint 12080;
    cuCheckpointProcessRestore 12080;
    cuMemAdvise_v2 12020;
    cuMemPrefetchAsync_v2 12020;
    cuMemPrefetchBatchAsync 13000 refused;
    cuMemDiscardBatchAsync 13000 refused;
    cuMemDiscardAndPrefetchBatchAsync 13000 refused;
    cuMemRangeGetAttributes 8000;

    cuMemcpyBatchAsync 12080 by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyBatchAsync_v2 13000 by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyWithAttributesAsync 13020 by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpy3DBatchAsync 12080 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DBatchAsync_v2 13000 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DWithAttributesAsync 13020 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DPeer 4000 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DPeerAsync 4000 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
}
