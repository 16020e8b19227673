//! Numbers of `cuda.h` that more than one crate uses, under the names of the header, and the
//! numbers of CUDA's documentation that the header does not name.

/// All flags of `cuEventCreate`.
pub const EVENT_FLAGS: u32 =
    event_flag::BLOCKING_SYNC | event_flag::DISABLE_TIMING | event_flag::INTERPROCESS;
/// All flags of `cuDevSmResourceSplitByCount`.
pub const SM_SPLIT_FLAGS: u32 = resource::SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING
    | resource::SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
/// Bytes of the device heap of a new context ([`limit::MALLOC_HEAP_SIZE`]).
pub const USUAL_HEAP_BYTES: u64 = 8 << 20;
/// Result of `cuCtxGetApiVersion` for contexts that are created as since CUDA 3.2.
pub const CONTEXT_API_VERSION: u32 = 3020;
/// Largest number of memory operations in one call of `cuStreamBatchMemOp`.
pub const MOST_MEM_OPS: u32 = 256;

macro_rules! numbers {
    ($($(#[$doc:meta])* mod $group:ident $prefix:literal { $($name:ident = $value:literal,)* })*) => {
        $(
            $(#[$doc])*
            #[allow(missing_docs)] // The header's names say what each is.
            pub mod $group {
                $(pub const $name: u32 = $value;)*
            }
        )*

        /// Every number with its name in C.
        pub static NUMBERS: &[(&str, u32)] = &[
            $($((concat!($prefix, stringify!($name)), $group::$name),)*)*
        ];
    };
}

numbers! {
    /// `CUdevice_attribute`.
    mod device_attribute "CU_DEVICE_ATTRIBUTE_" {
        MAX_THREADS_PER_BLOCK = 1,
        MAX_BLOCK_DIM_X = 2,
        MAX_BLOCK_DIM_Z = 4,
        MAX_GRID_DIM_X = 5,
        MAX_GRID_DIM_Z = 7,
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
        TOTAL_CONSTANT_MEMORY = 9,
        WARP_SIZE = 10,
        MAX_PITCH = 11,
        MAX_REGISTERS_PER_BLOCK = 12,
        CLOCK_RATE = 13,
        TEXTURE_ALIGNMENT = 14,
        GPU_OVERLAP = 15,
        MULTIPROCESSOR_COUNT = 16,
        CAN_MAP_HOST_MEMORY = 19,
        MAXIMUM_TEXTURE1D_WIDTH = 21,
        MAXIMUM_TEXTURE2D_WIDTH = 22,
        MAXIMUM_TEXTURE2D_HEIGHT = 23,
        MAXIMUM_TEXTURE3D_WIDTH = 24,
        MAXIMUM_TEXTURE3D_HEIGHT = 25,
        MAXIMUM_TEXTURE3D_DEPTH = 26,
        MAXIMUM_TEXTURE2D_LAYERED_WIDTH = 27,
        MAXIMUM_TEXTURE2D_LAYERED_HEIGHT = 28,
        MAXIMUM_TEXTURE2D_LAYERED_LAYERS = 29,
        SURFACE_ALIGNMENT = 30,
        CONCURRENT_KERNELS = 31,
        PCI_BUS_ID = 33,
        PCI_DEVICE_ID = 34,
        MEMORY_CLOCK_RATE = 36,
        GLOBAL_MEMORY_BUS_WIDTH = 37,
        L2_CACHE_SIZE = 38,
        MAX_THREADS_PER_MULTIPROCESSOR = 39,
        ASYNC_ENGINE_COUNT = 40,
        UNIFIED_ADDRESSING = 41,
        MAXIMUM_TEXTURE1D_LAYERED_WIDTH = 42,
        MAXIMUM_TEXTURE1D_LAYERED_LAYERS = 43,
        CAN_TEX2D_GATHER = 44,
        MAXIMUM_TEXTURE2D_GATHER_WIDTH = 45,
        MAXIMUM_TEXTURE2D_GATHER_HEIGHT = 46,
        MAXIMUM_TEXTURE3D_WIDTH_ALTERNATE = 47,
        MAXIMUM_TEXTURE3D_HEIGHT_ALTERNATE = 48,
        MAXIMUM_TEXTURE3D_DEPTH_ALTERNATE = 49,
        PCI_DOMAIN_ID = 50,
        TEXTURE_PITCH_ALIGNMENT = 51,
        MAXIMUM_TEXTURECUBEMAP_WIDTH = 52,
        MAXIMUM_TEXTURECUBEMAP_LAYERED_WIDTH = 53,
        MAXIMUM_TEXTURECUBEMAP_LAYERED_LAYERS = 54,
        MAXIMUM_SURFACE1D_WIDTH = 55,
        MAXIMUM_SURFACE2D_WIDTH = 56,
        MAXIMUM_SURFACE2D_HEIGHT = 57,
        MAXIMUM_SURFACE3D_WIDTH = 58,
        MAXIMUM_SURFACE3D_HEIGHT = 59,
        MAXIMUM_SURFACE3D_DEPTH = 60,
        MAXIMUM_SURFACE1D_LAYERED_WIDTH = 61,
        MAXIMUM_SURFACE1D_LAYERED_LAYERS = 62,
        MAXIMUM_SURFACE2D_LAYERED_WIDTH = 63,
        MAXIMUM_SURFACE2D_LAYERED_HEIGHT = 64,
        MAXIMUM_SURFACE2D_LAYERED_LAYERS = 65,
        MAXIMUM_SURFACECUBEMAP_WIDTH = 66,
        MAXIMUM_SURFACECUBEMAP_LAYERED_WIDTH = 67,
        MAXIMUM_SURFACECUBEMAP_LAYERED_LAYERS = 68,
        MAXIMUM_TEXTURE1D_LINEAR_WIDTH = 69,
        MAXIMUM_TEXTURE2D_LINEAR_WIDTH = 70,
        MAXIMUM_TEXTURE2D_LINEAR_HEIGHT = 71,
        MAXIMUM_TEXTURE2D_LINEAR_PITCH = 72,
        MAXIMUM_TEXTURE2D_MIPMAPPED_WIDTH = 73,
        MAXIMUM_TEXTURE2D_MIPMAPPED_HEIGHT = 74,
        COMPUTE_CAPABILITY_MAJOR = 75,
        COMPUTE_CAPABILITY_MINOR = 76,
        MAXIMUM_TEXTURE1D_MIPMAPPED_WIDTH = 77,
        STREAM_PRIORITIES_SUPPORTED = 78,
        GLOBAL_L1_CACHE_SUPPORTED = 79,
        LOCAL_L1_CACHE_SUPPORTED = 80,
        MAX_SHARED_MEMORY_PER_MULTIPROCESSOR = 81,
        MAX_REGISTERS_PER_MULTIPROCESSOR = 82,
        MANAGED_MEMORY = 83,
        SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO = 87,
        PAGEABLE_MEMORY_ACCESS = 88,
        CONCURRENT_MANAGED_ACCESS = 89,
        COMPUTE_PREEMPTION_SUPPORTED = 90,
        COOPERATIVE_LAUNCH = 95,
        MAX_SHARED_MEMORY_PER_BLOCK_OPTIN = 97,
        HOST_REGISTER_SUPPORTED = 99,
        VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED = 102,
        HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED = 103,
        MAX_BLOCKS_PER_MULTIPROCESSOR = 106,
        RESERVED_SHARED_MEMORY_PER_BLOCK = 111,
        READ_ONLY_HOST_REGISTER_SUPPORTED = 113,
        MEMORY_POOLS_SUPPORTED = 115,
        CLUSTER_LAUNCH = 120,
        CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
        CAN_USE_STREAM_WAIT_VALUE_NOR = 123,
        MEM_SYNC_DOMAIN_COUNT = 126,
        TENSOR_MAP_ACCESS_SUPPORTED = 127,
        NUMA_ID = 131,
        GPU_PCI_DEVICE_ID = 139,
        HOST_NUMA_MEMORY_POOLS_SUPPORTED = 142,
        HOST_MEMORY_POOLS_SUPPORTED = 144,
        GPU_DIRECT_RDMA_WITH_LOCALIZED_MEMORY_SUPPORTED = 161,
    }
    /// `CUfunction_attribute`.
    mod function_attribute "CU_FUNC_ATTRIBUTE_" {
        MAX_THREADS_PER_BLOCK = 0,
        SHARED_SIZE_BYTES = 1,
        CONST_SIZE_BYTES = 2,
        LOCAL_SIZE_BYTES = 3,
        NUM_REGS = 4,
        PTX_VERSION = 5,
        BINARY_VERSION = 6,
        CACHE_MODE_CA = 7,
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
        CLUSTER_SIZE_MUST_BE_SET = 10,
        REQUIRED_CLUSTER_WIDTH = 11,
        REQUIRED_CLUSTER_HEIGHT = 12,
        REQUIRED_CLUSTER_DEPTH = 13,
        NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
        CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
    }
    /// `CUfunc_cache`.
    mod function_cache "CU_FUNC_CACHE_" {
        PREFER_NONE = 0,
        PREFER_SHARED = 1,
        PREFER_L1 = 2,
        PREFER_EQUAL = 3,
    }
    /// `CUsharedconfig`.
    mod shared_config "CU_SHARED_MEM_CONFIG_" {
        FOUR_BYTE_BANK_SIZE = 1,
        EIGHT_BYTE_BANK_SIZE = 2,
    }
    /// `CUctx_flags`.
    mod context_flag "CU_CTX_" {
        SCHED_BLOCKING_SYNC = 0x04,
        SCHED_MASK = 0x07,
        MAP_HOST = 0x08,
        LMEM_RESIZE_TO_MAX = 0x10,
        FLAGS_MASK = 0xff,
    }
    /// `CUlimit`.
    mod limit "CU_LIMIT_" {
        STACK_SIZE = 0,
        PRINTF_FIFO_SIZE = 1,
        MALLOC_HEAP_SIZE = 2,
        DEV_RUNTIME_SYNC_DEPTH = 3,
        DEV_RUNTIME_PENDING_LAUNCH_COUNT = 4,
        MAX_L2_FETCH_GRANULARITY = 5,
        PERSISTING_L2_CACHE_SIZE = 6,
        CIG_ENABLED = 8,
        CIG_SHMEM_FALLBACK_ENABLED = 9,
    }
    /// `CUpointer_attribute`.
    mod pointer_attribute "CU_POINTER_ATTRIBUTE_" {
        CONTEXT = 1,
        MEMORY_TYPE = 2,
        DEVICE_POINTER = 3,
        HOST_POINTER = 4,
        P2P_TOKENS = 5,
        SYNC_MEMOPS = 6,
        BUFFER_ID = 7,
        IS_MANAGED = 8,
        DEVICE_ORDINAL = 9,
        IS_LEGACY_CUDA_IPC_CAPABLE = 10,
        RANGE_START_ADDR = 11,
        RANGE_SIZE = 12,
        MAPPED = 13,
        ALLOWED_HANDLE_TYPES = 14,
        IS_GPU_DIRECT_RDMA_CAPABLE = 15,
        ACCESS_FLAGS = 16,
        MEMPOOL_HANDLE = 17,
        MAPPING_SIZE = 18,
        MAPPING_BASE_ADDR = 19,
        MEMORY_BLOCK_ID = 20,
    }
    /// `CUmemPool_attribute`.
    mod pool_attribute "CU_MEMPOOL_ATTR_" {
        REUSE_FOLLOW_EVENT_DEPENDENCIES = 1,
        REUSE_ALLOW_OPPORTUNISTIC = 2,
        REUSE_ALLOW_INTERNAL_DEPENDENCIES = 3,
        RELEASE_THRESHOLD = 4,
        RESERVED_MEM_CURRENT = 5,
        RESERVED_MEM_HIGH = 6,
        USED_MEM_CURRENT = 7,
        USED_MEM_HIGH = 8,
        ALLOCATION_TYPE = 9,
        EXPORT_HANDLE_TYPES = 10,
        LOCATION_ID = 11,
        LOCATION_TYPE = 12,
        MAX_POOL_SIZE = 13,
        HW_DECOMPRESS_ENABLED = 14,
    }
    /// `CUjit_option`.
    mod jit_option "CU_JIT_" {
        MAX_REGISTERS = 0,
        WALL_TIME = 2,
        INFO_LOG_BUFFER = 3,
        INFO_LOG_BUFFER_SIZE_BYTES = 4,
        ERROR_LOG_BUFFER = 5,
        ERROR_LOG_BUFFER_SIZE_BYTES = 6,
        GLOBAL_SYMBOL_NAMES = 17,
        GLOBAL_SYMBOL_COUNT = 19,
        REFERENCED_KERNEL_NAMES = 25,
        REFERENCED_VARIABLE_COUNT = 28,
    }
    /// `CUjitInputType`.
    mod jit_input "CU_JIT_INPUT_" {
        CUBIN = 0,
        PTX = 1,
        FATBINARY = 2,
        OBJECT = 3,
        LIBRARY = 4,
    }
    /// `CUmemorytype`.
    mod memory_type "CU_MEMORYTYPE_" {
        HOST = 1,
        DEVICE = 2,
        ARRAY = 3,
        UNIFIED = 4,
    }
    /// `CUmemLocationType`.
    mod location "CU_MEM_LOCATION_TYPE_" {
        INVALID = 0,
        DEVICE = 1,
        HOST = 2,
        HOST_NUMA = 3,
        HOST_NUMA_CURRENT = 4,
    }
    /// `CUmemAllocationType`.
    mod allocation "CU_MEM_ALLOCATION_TYPE_" {
        PINNED = 1,
        MANAGED = 2,
    }
    /// `CUmemAllocationHandleType`.
    mod handle_type "CU_MEM_HANDLE_TYPE_" {
        POSIX_FILE_DESCRIPTOR = 1,
    }
    /// `CUmemAccess_flags`.
    mod access "CU_MEM_ACCESS_FLAGS_PROT_" {
        NONE = 0,
        READ = 1,
        READWRITE = 3,
    }
    /// `CUgraphNodeType`.
    mod node "CU_GRAPH_NODE_TYPE_" {
        KERNEL = 0,
        MEMCPY = 1,
        MEMSET = 2,
        HOST = 3,
        GRAPH = 4,
        EMPTY = 5,
        WAIT_EVENT = 6,
        EVENT_RECORD = 7,
        EXT_SEMAS_SIGNAL = 8,
        EXT_SEMAS_WAIT = 9,
        MEM_ALLOC = 10,
        MEM_FREE = 11,
        BATCH_MEM_OP = 12,
        CONDITIONAL = 13,
    }
    /// Flags and kinds of conditional nodes.
    mod condition "CU_GRAPH_COND_" {
        ASSIGN_DEFAULT = 1,
        TYPE_IF = 0,
        TYPE_WHILE = 1,
        TYPE_SWITCH = 2,
    }
    /// `CUgraphDebugDot_flags`.
    mod dot_flag "CU_GRAPH_DEBUG_DOT_FLAGS_" {
        VERBOSE = 1,
        HANDLES = 0x400,
    }
    /// `CUlaunchAttributeID`.
    mod launch_attribute "CU_LAUNCH_ATTRIBUTE_" {
        ACCESS_POLICY_WINDOW = 1,
        COOPERATIVE = 2,
        SYNCHRONIZATION_POLICY = 3,
        CLUSTER_DIMENSION = 4,
        PRIORITY = 8,
        MEM_SYNC_DOMAIN_MAP = 9,
        MEM_SYNC_DOMAIN = 10,
        PREFERRED_CLUSTER_DIMENSION = 11,
        DEVICE_UPDATABLE_KERNEL_NODE = 13,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
    }
    /// `CUsynchronizationPolicy`.
    mod sync_policy "CU_SYNC_POLICY_" {
        AUTO = 1,
        BLOCKING_SYNC = 4,
    }
    /// `CUaccessProperty`.
    mod access_property "CU_ACCESS_PROPERTY_" {
        STREAMING = 1,
        PERSISTING = 2,
    }
    /// `CUgraphExecUpdateResult`.
    mod graph_update "CU_GRAPH_EXEC_UPDATE_" {
        SUCCESS = 0,
        ERROR = 1,
        ERROR_TOPOLOGY_CHANGED = 2,
        ERROR_NODE_TYPE_CHANGED = 3,
        ERROR_PARAMETERS_CHANGED = 5,
        ERROR_NOT_SUPPORTED = 6,
        ERROR_UNSUPPORTED_FUNCTION_CHANGE = 7,
        ERROR_ATTRIBUTES_CHANGED = 8,
    }
    /// `CUgraphInstantiate_flags`.
    mod instantiate "CUDA_GRAPH_INSTANTIATE_FLAG_" {
        AUTO_FREE_ON_LAUNCH = 1,
        UPLOAD = 2,
        DEVICE_LAUNCH = 4,
        USE_NODE_PRIORITY = 8,
    }
    /// `CUevent_flags`, `CUevent_record_flags` and `CUevent_wait_flags`.
    mod event_flag "CU_EVENT_" {
        BLOCKING_SYNC = 1,
        DISABLE_TIMING = 2,
        INTERPROCESS = 4,
        RECORD_EXTERNAL = 1,
        WAIT_EXTERNAL = 1,
    }
    /// `CUstream_flags`.
    mod stream_flag "CU_STREAM_" {
        NON_BLOCKING = 1,
    }
    /// `CUstreamCaptureMode`.
    mod capture_mode "CU_STREAM_CAPTURE_MODE_" {
        GLOBAL = 0,
        THREAD_LOCAL = 1,
        RELAXED = 2,
    }
    /// Flags of `cuMemHostAlloc`.
    mod host_alloc "CU_MEMHOSTALLOC_" {
        PORTABLE = 1,
        DEVICEMAP = 2,
        WRITECOMBINED = 4,
    }
    /// Flags of `cuMemHostRegister`.
    mod host_register "CU_MEMHOSTREGISTER_" {
        PORTABLE = 1,
        DEVICEMAP = 2,
        IOMEMORY = 4,
        READ_ONLY = 8,
    }
    /// `CUmemAttach_flags`.
    mod attach "CU_MEM_ATTACH_" {
        GLOBAL = 1,
        HOST = 2,
        SINGLE = 4,
    }
    /// `CUmemcpySrcAccessOrder`.
    mod copy_order "CU_MEMCPY_SRC_ACCESS_ORDER_" {
        STREAM = 1,
        DURING_API_CALL = 2,
        ANY = 3,
    }
    /// `CUmemcpy3DOperandType`.
    mod copy_operand "CU_MEMCPY_OPERAND_TYPE_" {
        POINTER = 1,
        ARRAY = 2,
    }
    /// `CUstreamBatchMemOpType`.
    mod mem_op "CU_STREAM_MEM_OP_" {
        WAIT_VALUE_32 = 1,
        WRITE_VALUE_32 = 2,
        FLUSH_REMOTE_WRITES = 3,
        WAIT_VALUE_64 = 4,
        WRITE_VALUE_64 = 5,
        BARRIER = 6,
        ATOMIC_REDUCTION = 8,
    }
    /// `CUstreamWaitValue_flags`.
    mod wait_value "CU_STREAM_WAIT_VALUE_" {
        GEQ = 0,
        EQ = 1,
        AND = 2,
        NOR = 3,
        FLUSH = 0x4000_0000,
    }
    /// `CUstreamWriteValue_flags`.
    mod write_value "CU_STREAM_WRITE_VALUE_" {
        NO_MEMORY_BARRIER = 1,
    }
    /// Keys of the list `extra` of a launch.
    mod launch_extra "CU_LAUNCH_PARAM_" {
        END_AS_INT = 0,
        BUFFER_POINTER_AS_INT = 1,
        BUFFER_SIZE_AS_INT = 2,
    }
    /// `CUcoredumpSettings`.
    mod coredump "CU_COREDUMP_" {
        ENABLE_ON_EXCEPTION = 1,
        ENABLE_USER_TRIGGER = 4,
        FILE = 5,
        PIPE = 6,
        GENERATION_FLAGS = 7,
    }
    /// Types of resources of a device, and flags of their split.
    mod resource "CU_DEV_" {
        RESOURCE_TYPE_SM = 1,
        SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING = 1,
        SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE = 2,
    }
    /// `CUgreenCtxCreate_flags`.
    mod green_context "CU_GREEN_CTX_" {
        DEFAULT_STREAM = 1,
    }
    /// The largest `CUatomicOperation`.
    mod atomic "CU_ATOMIC_OPERATION_" {
        FLOAT_MAX = 12,
    }
    /// Flags and statuses of `cuGetProcAddress`.
    mod proc_address "CU_GET_PROC_ADDRESS_" {
        LEGACY_STREAM = 1,
        PER_THREAD_DEFAULT_STREAM = 2,
        SUCCESS = 0,
        SYMBOL_NOT_FOUND = 1,
        VERSION_NOT_SUFFICIENT = 2,
    }
}
