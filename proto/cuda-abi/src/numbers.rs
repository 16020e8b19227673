//! Numbers of `cuda.h` that more than one crate uses, under the names of the header.

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
        MAX_GRID_DIM_X = 5,
        MAX_SHARED_MEMORY_PER_BLOCK = 8,
        TOTAL_CONSTANT_MEMORY = 9,
        WARP_SIZE = 10,
        MAX_PITCH = 11,
        MAX_REGISTERS_PER_BLOCK = 12,
        CLOCK_RATE = 13,
        TEXTURE_ALIGNMENT = 14,
        MULTIPROCESSOR_COUNT = 16,
        PCI_BUS_ID = 33,
        PCI_DEVICE_ID = 34,
        MAX_THREADS_PER_MULTIPROCESSOR = 39,
        PCI_DOMAIN_ID = 50,
        COMPUTE_CAPABILITY_MAJOR = 75,
        COMPUTE_CAPABILITY_MINOR = 76,
        CAN_USE_64_BIT_STREAM_MEM_OPS = 122,
    }
    /// `CUfunction_attribute`.
    mod function_attribute "CU_FUNC_ATTRIBUTE_" {
        MAX_THREADS_PER_BLOCK = 0,
        MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
        NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
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
    }
    /// `CUjit_option`.
    mod jit_option "CU_JIT_" {
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
    /// `CUlaunchAttributeID`.
    mod launch_attribute "CU_LAUNCH_ATTRIBUTE_" {
        COOPERATIVE = 2,
        CLUSTER_DIMENSION = 4,
        PRIORITY = 8,
        MEM_SYNC_DOMAIN_MAP = 9,
        PREFERRED_CLUSTER_DIMENSION = 11,
        DEVICE_UPDATABLE_KERNEL_NODE = 13,
        PREFERRED_SHARED_MEMORY_CARVEOUT = 14,
    }
    /// `CUgraphInstantiate_flags`.
    mod instantiate "CUDA_GRAPH_INSTANTIATE_FLAG_" {
        AUTO_FREE_ON_LAUNCH = 1,
        UPLOAD = 2,
        DEVICE_LAUNCH = 4,
        USE_NODE_PRIORITY = 8,
    }
    /// `CUevent_flags`.
    mod event_flag "CU_EVENT_" {
        BLOCKING_SYNC = 1,
        DISABLE_TIMING = 2,
        INTERPROCESS = 4,
    }
    /// `CUstream_flags`.
    mod stream_flag "CU_STREAM_" {
        NON_BLOCKING = 1,
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
    /// `CUstreamBatchMemOpType`.
    mod mem_op "CU_STREAM_MEM_OP_" {
        WAIT_VALUE_32 = 1,
        WRITE_VALUE_32 = 2,
        FLUSH_REMOTE_WRITES = 3,
        WAIT_VALUE_64 = 4,
        WRITE_VALUE_64 = 5,
        BARRIER = 6,
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
