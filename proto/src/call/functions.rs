//! The functions of `cuda.h` that the guest library serves.
//!
//! Symbols that are not in the list are exported too and return CUDA_ERROR_NOT_SUPPORTED.

use super::ops::Op;

/// How a function is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Served {
    /// Answered in the guest without the host.
    Local,
    /// Served by these operations of the worker.
    By(&'static [Op]),
    /// Lookups find the function, but it returns CUDA_ERROR_NOT_SUPPORTED, and a log line names an
    /// alternative.
    Refused,
}

/// A served function.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Exported symbol.
    pub symbol: &'static str,
    /// How the function is served.
    pub served: Served,
}

macro_rules! functions {
    ($($symbol:ident $($how:ident $($op:ident)*)?;)*) => {
        /// Every served function.
        pub static FUNCTIONS: &[Function] = &[$(Function {
            symbol: stringify!($symbol),
            served: functions!(@served $($how $($op)*)?),
        },)*];
    };
    (@served) => { Served::Local };
    (@served refused) => { Served::Refused };
    (@served by $($op:ident)+) => { Served::By(&[$(Op::$op),+]) };
}

functions! {
    cuInit;
    cuDriverGetVersion;
    cuGetErrorName;
    cuGetErrorString;
    cuGetProcAddress;
    cuGetProcAddress_v2;
    cuGetExportTable;

    cuDeviceGet;
    cuDeviceGetCount;
    cuDeviceGetName;
    cuDeviceGetUuid;
    cuDeviceGetUuid_v2;
    cuDeviceTotalMem_v2;
    cuDeviceGetAttribute;
    cuDeviceGetProperties;
    cuDeviceComputeCapability;
    cuDeviceGetByPCIBusId;
    cuDeviceGetPCIBusId;
    cuDeviceCanAccessPeer;

    cuDevicePrimaryCtxRetain by PrimaryCtxRetain;
    cuDevicePrimaryCtxRelease by PrimaryCtxRelease;
    cuDevicePrimaryCtxRelease_v2 by PrimaryCtxRelease;
    cuDevicePrimaryCtxReset by PrimaryCtxReset;
    cuDevicePrimaryCtxReset_v2 by PrimaryCtxReset;
    cuDevicePrimaryCtxSetFlags by PrimaryCtxSetFlags;
    cuDevicePrimaryCtxSetFlags_v2 by PrimaryCtxSetFlags;
    cuDevicePrimaryCtxGetState;
    cuCtxCreate_v2 by CtxCreate;
    cuCtxCreate_v3 by CtxCreate;
    cuCtxCreate_v4 by CtxCreate;
    cuCtxDestroy_v2 by CtxDestroy;
    cuCtxPushCurrent;
    cuCtxPushCurrent_v2;
    cuCtxPopCurrent;
    cuCtxPopCurrent_v2;
    cuCtxSetCurrent;
    cuCtxGetCurrent;
    cuCtxGetDevice;
    cuCtxGetFlags;
    cuCtxGetId;
    cuCtxGetApiVersion;
    cuCtxGetStreamPriorityRange;
    cuCtxSynchronize by CtxSynchronize HostPull;
    cuCtxSetLimit by CtxSetLimit;
    cuCtxGetLimit by CtxGetLimit;
    cuCtxSetCacheConfig by CtxSetCacheConfig;
    cuCtxGetCacheConfig;

    cuMemAlloc_v2 by MemAlloc;
    cuMemAllocPitch_v2 by MemAlloc;
    cuMemFree_v2 by MemFree;
    cuMemGetInfo_v2 by MemGetInfo;
    cuMemGetAddressRange_v2;
    cuMemAllocHost_v2;
    cuMemFreeHost by HostUnmap;
    cuMemHostAlloc;
    cuMemHostGetFlags;
    cuMemHostRegister_v2;
    cuMemHostUnregister by HostUnmap;
    cuPointerGetAttribute;
    cuPointerGetAttributes;
    cuMemcpy by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyAsync by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyHtoD_v2 by MemcpyHtoD;
    cuMemcpyHtoDAsync_v2 by MemcpyHtoD;
    cuMemcpyDtoH_v2 by MemcpyDtoH;
    cuMemcpyDtoHAsync_v2 by MemcpyDtoH;
    cuMemcpyDtoD_v2 by MemcpyDtoD;
    cuMemcpyDtoDAsync_v2 by MemcpyDtoD;
    cuMemsetD8_v2 by Memset;
    cuMemsetD16_v2 by Memset;
    cuMemsetD32_v2 by Memset;
    cuMemsetD8Async by Memset;
    cuMemsetD16Async by Memset;
    cuMemsetD32Async by Memset;
    cuMemsetD2D8_v2 by Memset2D;
    cuMemsetD2D16_v2 by Memset2D;
    cuMemsetD2D32_v2 by Memset2D;
    cuMemsetD2D8Async by Memset2D;
    cuMemsetD2D16Async by Memset2D;
    cuMemsetD2D32Async by Memset2D;

    cuModuleLoad by ImageQuery ImageData ModuleLoad;
    cuModuleLoadData by ImageQuery ImageData ModuleLoad;
    cuModuleLoadDataEx by ImageQuery ImageData ModuleLoad;
    cuModuleLoadFatBinary by ImageQuery ImageData ModuleLoad;
    cuModuleUnload by ModuleUnload;
    cuModuleGetLoadingMode;
    cuModuleGetFunction by ModuleGetFunction;
    cuModuleGetGlobal_v2 by ModuleGetGlobal;
    cuFuncGetModule;
    cuFuncGetName;
    cuFuncGetParamInfo;
    cuFuncGetAttribute by FuncGetAttribute;
    cuFuncSetAttribute by FuncSetAttribute;
    cuFuncSetCacheConfig by FuncSetCacheConfig;
    cuLaunchKernel by LaunchKernel HostMap HostPush;
    cuLaunchKernelEx by LaunchKernel HostMap HostPush;
    cuLaunchCooperativeKernel by OccupancyBlocks LaunchKernel HostMap HostPush;
    cuOccupancyMaxActiveBlocksPerMultiprocessor by OccupancyBlocks;
    cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags by OccupancyBlocks;
    cuOccupancyMaxPotentialBlockSize by OccupancyBlocks;
    cuOccupancyMaxPotentialBlockSizeWithFlags by OccupancyBlocks;

    cuStreamCreate by StreamCreate;
    cuStreamCreateWithPriority by StreamCreate;
    cuStreamDestroy_v2 by StreamDestroy;
    cuStreamGetPriority;
    cuStreamGetFlags;
    cuStreamGetId;
    cuStreamGetCtx;
    cuStreamSynchronize by StreamSynchronize HostPull;
    cuStreamQuery by StreamQuery HostPull;
    cuStreamWaitEvent by StreamWaitEvent;
    cuStreamIsCapturing;
    cuLaunchHostFunc by HostFunc HostFuncDone;
    cuLaunchHostFunc_v2 by HostFunc HostFuncDone;
    cuStreamAddCallback by HostFunc HostFuncDone;

    cuEventCreate by EventCreate;
    cuEventDestroy_v2 by EventDestroy;
    cuEventRecord by EventRecord;
    cuEventRecordWithFlags by EventRecord;
    cuEventQuery by EventQuery HostPull;
    cuEventSynchronize by EventSynchronize HostPull;
    cuEventElapsedTime by EventElapsedTime;
    cuEventElapsedTime_v2 by EventElapsedTime;

    cuMemcpy2D_v2 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy2DUnaligned_v2 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy2DAsync_v2 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3D_v2 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DAsync_v2 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoD MemcpyDtoH MemcpyDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;

    cuCtxGetDevice_v2;
    cuCtxSetFlags;
    cuCtxGetSharedMemConfig;
    cuCtxSetSharedMemConfig;
    cuCtxResetPersistingL2Cache;
    cuCtxEnablePeerAccess;
    cuCtxDisablePeerAccess;
    cuCtxSynchronize_v2 by CtxSynchronize HostPull;

    cuMemcpyPeer by MemcpyDtoD MemcpyHtoD MemcpyDtoH;
    cuMemcpyPeerAsync by MemcpyDtoD MemcpyHtoD MemcpyDtoH;

    cuDeviceGetP2PAttribute;
    cuDeviceGetExecAffinitySupport;
    cuDeviceGetTexture1DLinearMaxWidth;
    cuDeviceGetHostAtomicCapabilities;
    cuDeviceGetP2PAtomicCapabilities;
    cuDeviceRegisterAsyncNotification;
    cuDeviceUnregisterAsyncNotification;

    cuLibraryLoadData by ImageQuery ImageData ModuleLoad;
    cuLibraryLoadFromFile by ImageQuery ImageData ModuleLoad;
    cuLibraryUnload by ModuleUnload;
    cuLibraryGetKernel by ModuleGetFunction;
    cuLibraryGetKernelCount by ModuleFunctions;
    cuLibraryEnumerateKernels by ModuleFunctions ModuleGetFunction;
    cuLibraryGetModule by ModuleLoad;
    cuLibraryGetGlobal by ModuleGetGlobal;
    cuLibraryGetManaged;
    cuLibraryGetUnifiedFunction by ModuleFunctions;
    cuKernelGetFunction by ModuleGetFunction;
    cuKernelGetLibrary;
    cuKernelGetName;
    cuKernelGetParamInfo;
    cuKernelGetParamCount;
    cuKernelGetAttribute by FuncGetAttribute;
    cuKernelSetAttribute by FuncSetAttribute;
    cuKernelSetCacheConfig by FuncSetCacheConfig;

    cuLinkCreate;
    cuLinkCreate_v2;
    cuLinkAddData by ImageQuery ImageData;
    cuLinkAddData_v2 by ImageQuery ImageData;
    cuLinkAddFile by ImageQuery ImageData;
    cuLinkAddFile_v2 by ImageQuery ImageData;
    cuLinkComplete by Link LinkData;
    cuLinkDestroy;

    cuMemAllocManaged by HostMap;
    cuStreamAttachMemAsync;
    cuMemPrefetchAsync;
    cuMemAdvise;
    cuMemRangeGetAttribute;
    cuMemHostGetDevicePointer_v2 by HostMap;

    cuFuncGetParamCount;
    cuFuncIsLoaded;
    cuFuncLoad;
    cuFuncSetSharedMemConfig;
    cuModuleGetFunctionCount by ModuleFunctions;
    cuModuleEnumerateFunctions by ModuleFunctions ModuleGetFunction;

    cuOccupancyAvailableDynamicSMemPerBlock by OccupancyShared;
    cuOccupancyMaxActiveClusters by OccupancyClusters;
    cuOccupancyMaxPotentialClusterSize by OccupancyClusters;

    cuTensorMapEncodeTiled by TensorMapEncode;
    cuTensorMapEncodeIm2col by TensorMapEncode;
    cuTensorMapReplaceAddress by TensorMapReplaceAddress;

    cuPointerSetAttribute;

    cuMemAllocAsync by MemAllocAsync;
    cuMemAllocFromPoolAsync by MemAllocAsync;
    cuMemFreeAsync by MemFreeAsync;
    cuDeviceGetDefaultMemPool;
    cuDeviceGetMemPool;
    cuDeviceSetMemPool;
    cuMemPoolCreate;
    cuMemPoolDestroy;
    cuMemPoolTrimTo;
    cuMemPoolGetAttribute;
    cuMemPoolSetAttribute;
    cuMemPoolSetAccess;
    cuMemPoolGetAccess;

    cuProfilerInitialize;
    cuProfilerStart;
    cuProfilerStop;

    cuLogsRegisterCallback;
    cuLogsUnregisterCallback;
    cuLogsCurrent;
    cuLogsDumpToFile;
    cuLogsDumpToMemory;

    cuStreamGetCtx_v2;
    cuStreamGetGreenCtx;
    cuStreamGetDevice;
    cuStreamGetAttribute;
    cuStreamSetAttribute;
    cuStreamCopyAttributes;

    cuStreamWriteValue32 by StreamWriteValue;
    cuStreamWriteValue32_v2 by StreamWriteValue;
    cuStreamWriteValue64 by StreamWriteValue;
    cuStreamWriteValue64_v2 by StreamWriteValue;
    cuStreamWaitValue32 by StreamWaitValue;
    cuStreamWaitValue32_v2 by StreamWaitValue;
    cuStreamWaitValue64 by StreamWaitValue;
    cuStreamWaitValue64_v2 by StreamWaitValue;
    cuStreamBatchMemOp by StreamWriteValue StreamWaitValue;
    cuStreamBatchMemOp_v2 by StreamWriteValue StreamWaitValue;

    cuStreamBeginCapture;
    cuStreamBeginCapture_v2;
    cuStreamBeginCaptureToGraph;
    cuStreamEndCapture;
    cuStreamGetCaptureInfo;
    cuStreamGetCaptureInfo_v2;
    cuStreamGetCaptureInfo_v3;
    cuStreamUpdateCaptureDependencies;
    cuStreamUpdateCaptureDependencies_v2;
    cuThreadExchangeStreamCaptureMode;

    cuGraphCreate;
    cuGraphDestroy;
    cuGraphClone;
    cuGraphNodeFindInClone;
    cuGraphDestroyNode;
    cuGraphNodeGetType;
    cuGraphGetNodes;
    cuGraphGetRootNodes;
    cuGraphAddDependencies;
    cuGraphRemoveDependencies;
    cuGraphGetEdges;
    cuGraphNodeGetDependencies;
    cuGraphNodeGetDependentNodes;
    cuGraphAddDependencies_v2;
    cuGraphRemoveDependencies_v2;
    cuGraphGetEdges_v2;
    cuGraphNodeGetDependencies_v2;
    cuGraphNodeGetDependentNodes_v2;
    cuGraphAddEmptyNode;
    cuGraphAddChildGraphNode;
    cuGraphChildGraphNodeGetGraph;
    cuGraphDebugDotPrint;
    cuGraphGetId;
    cuGraphNodeGetContainingGraph;
    cuGraphNodeGetLocalId;
    cuGraphNodeGetToolsId;

    cuGraphInstantiate by GraphCreate GraphConditional GraphBuild;
    cuGraphInstantiate_v2 by GraphCreate GraphConditional GraphBuild;
    cuGraphInstantiateWithFlags by GraphCreate GraphConditional GraphBuild;
    cuGraphInstantiateWithParams by GraphCreate GraphConditional GraphBuild;
    cuGraphExecDestroy by GraphDestroy;
    cuGraphLaunch by GraphCreate GraphLaunch HostFunc HostPush;
    cuGraphUpload by GraphCreate;
    cuGraphExecGetFlags;
    cuGraphExecUpdate by GraphDestroy;
    cuGraphExecUpdate_v2 by GraphDestroy;
    cuGraphNodeSetEnabled;
    cuGraphNodeGetEnabled;
    cuGraphExecGetId;

    cuGraphAddKernelNode;
    cuGraphAddKernelNode_v2;
    cuGraphAddMemsetNode;
    cuGraphAddMemcpyNode;
    cuGraphAddHostNode;
    cuGraphAddEventRecordNode;
    cuGraphAddEventWaitNode;
    cuGraphAddMemAllocNode by MemAlloc;
    cuGraphAddMemFreeNode;
    cuGraphAddBatchMemOpNode;
    cuGraphConditionalHandleCreate by GraphCondition;
    cuGraphAddNode by MemAlloc;
    cuGraphAddNode_v2 by MemAlloc;
    cuGraphAddNode_v3 by MemAlloc;
    cuGraphNodeSetParams;
    cuGraphNodeSetParams_v2;
    cuGraphNodeGetParams;
    cuGraphKernelNodeGetAttribute;
    cuGraphKernelNodeSetAttribute;
    cuGraphKernelNodeCopyAttributes;
    cuGraphKernelNodeGetParams;
    cuGraphKernelNodeGetParams_v2;
    cuGraphKernelNodeSetParams;
    cuGraphKernelNodeSetParams_v2;
    cuGraphMemsetNodeGetParams;
    cuGraphMemsetNodeSetParams;
    cuGraphMemcpyNodeGetParams;
    cuGraphMemcpyNodeSetParams;
    cuGraphHostNodeGetParams;
    cuGraphHostNodeSetParams;
    cuGraphEventRecordNodeGetEvent;
    cuGraphEventWaitNodeGetEvent;
    cuGraphEventRecordNodeSetEvent;
    cuGraphEventWaitNodeSetEvent;
    cuGraphMemAllocNodeGetParams;
    cuGraphMemFreeNodeGetParams;
    cuGraphBatchMemOpNodeGetParams;
    cuGraphBatchMemOpNodeSetParams;
    cuGraphExecKernelNodeSetParams by GraphDestroy;
    cuGraphExecKernelNodeSetParams_v2 by GraphDestroy;
    cuGraphExecMemsetNodeSetParams by GraphDestroy;
    cuGraphExecMemcpyNodeSetParams by GraphDestroy;
    cuGraphExecHostNodeSetParams by GraphDestroy;
    cuGraphExecChildGraphNodeSetParams by GraphDestroy;
    cuGraphExecEventRecordNodeSetEvent by GraphDestroy;
    cuGraphExecEventWaitNodeSetEvent by GraphDestroy;
    cuGraphExecBatchMemOpNodeSetParams by GraphDestroy;
    cuGraphExecNodeSetParams by GraphDestroy;
    cuDeviceGetGraphMemAttribute;
    cuDeviceSetGraphMemAttribute;
    cuDeviceGraphMemTrim by MemFree;

    cuMemGetDefaultMemPool;
    cuMemGetMemPool;
    cuMemSetMemPool;
    cuUserObjectCreate;
    cuUserObjectRetain;
    cuUserObjectRelease;
    cuGraphRetainUserObject;
    cuGraphReleaseUserObject;

    cuArrayCreate_v2 by ArrayCreate;
    cuArray3DCreate_v2 by ArrayCreate;
    cuArrayDestroy by ArrayDestroy;
    cuArrayGetDescriptor_v2;
    cuArray3DGetDescriptor_v2;
    cuArrayGetMemoryRequirements;
    cuArrayGetSparseProperties;
    cuArrayGetPlane;
    cuMipmappedArrayCreate by ArrayCreate;
    cuMipmappedArrayGetLevel;
    cuMipmappedArrayDestroy by ArrayDestroy;
    cuMipmappedArrayGetMemoryRequirements;
    cuMipmappedArrayGetSparseProperties;
    cuMemcpyHtoA_v2 by MemcpyHtoA;
    cuMemcpyHtoAAsync_v2 by MemcpyHtoA;
    cuMemcpyAtoH_v2 by MemcpyAtoH;
    cuMemcpyAtoHAsync_v2 by MemcpyAtoH;
    cuMemcpyDtoA_v2 by MemcpyBox;
    cuMemcpyAtoD_v2 by MemcpyBox;
    cuMemcpyAtoA_v2 by MemcpyBox;

    cuMemGetAllocationGranularity by MemGranularity;
    cuMemAddressReserve by AddressReserve;
    cuMemAddressFree by AddressFree;
    cuMemCreate by PhysicalCreate;
    cuMemRelease by PhysicalRelease;
    cuMemMap by MemMap;
    cuMemUnmap by MemUnmap PhysicalRelease;
    cuMemSetAccess by MemSetAccess;
    cuMemGetAccess;
    cuMemRetainAllocationHandle;
    cuMemGetAllocationPropertiesFromHandle;

    cuCoredumpGetAttribute;
    cuCoredumpGetAttributeGlobal;
    cuCoredumpSetAttribute;
    cuCoredumpSetAttributeGlobal;
    cuCoredumpRegisterStartCallback;
    cuCoredumpRegisterCompleteCallback;
    cuCoredumpDeregisterStartCallback;
    cuCoredumpDeregisterCompleteCallback;

    cuDeviceGetDevResource;
    cuCtxGetDevResource;
    cuStreamGetDevResource;
    cuDevSmResourceSplitByCount;
    cuDevResourceGenerateDesc refused;
    cuGreenCtxCreate refused;
    cuCheckpointProcessGetState;
    cuCheckpointProcessGetRestoreThreadId;
    cuCheckpointProcessLock refused;
    cuCheckpointProcessUnlock;
    cuCheckpointProcessCheckpoint;
    cuCheckpointProcessRestore;
    cuMemAdvise_v2;
    cuMemPrefetchAsync_v2;
    cuMemPrefetchBatchAsync refused;
    cuMemDiscardBatchAsync refused;
    cuMemDiscardAndPrefetchBatchAsync refused;
    cuMemRangeGetAttributes;

    cuMemcpyBatchAsync by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyBatchAsync_v2 by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpyWithAttributesAsync by MemcpyHtoD MemcpyDtoH MemcpyDtoD;
    cuMemcpy3DBatchAsync by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DBatchAsync_v2 by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DWithAttributesAsync by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DPeer by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
    cuMemcpy3DPeerAsync by Memcpy2DHtoD Memcpy2DDtoH Memcpy2DDtoD MemcpyHtoA MemcpyAtoH MemcpyBox;
}
