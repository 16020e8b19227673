//! Sizes of structures and offsets of their fields.

use super::*;

/// The layout of a structure in Rust.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// The structure's name in C.
    pub name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// The fields.
    pub fields: &'static [Field],
}

/// The layout of a field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The field's name in C.
    pub name: &'static str,
    /// Offset in bytes.
    pub at: usize,
    /// Whether the structure of CUDA 12.4 lacks the field, and may be shorter.
    pub newer: bool,
}

macro_rules! layouts {
    ($($name:ident $c:literal $size:literal {
        $($field:literal: $($path:ident).+),* $(, newer $newer:literal: $later:ident)* $(,)?
    })*) => {
        $(const _: () = assert!(size_of::<$name>() == $size);)*

        /// Every structure.
        pub static LAYOUTS: &[Layout] = &[$(Layout {
            name: $c,
            size: size_of::<$name>(),
            fields: &[
                $(Field {
                    name: $field,
                    at: std::mem::offset_of!($name, $($path).+),
                    newer: false,
                },)*
                $(Field {
                    name: $newer,
                    at: std::mem::offset_of!($name, $later),
                    newer: true,
                },)*
            ],
        },)*];
    };
}

layouts! {
    DeviceProperties "CUdevprop" 56 {
        "maxThreadsPerBlock": max_threads_per_block,
        "maxThreadsDim": max_threads_dim,
        "maxGridSize": max_grid_size,
        "sharedMemPerBlock": shared_mem_per_block,
        "totalConstantMemory": total_constant_memory,
        "SIMDWidth": simd_width,
        "memPitch": mem_pitch,
        "regsPerBlock": regs_per_block,
        "clockRate": clock_rate,
        "textureAlign": texture_align,
    }
    CtxCreateParams "CUctxCreateParams" 24 {
        "execAffinityParams": exec_affinity,
        "numExecAffinityParams": exec_affinities,
        "cigParams": cig,
    }
    Copy2D "CUDA_MEMCPY2D" 128 {
        "srcXInBytes": src.x,
        "srcY": src.y,
        "srcMemoryType": src.kind,
        "srcHost": src.host,
        "srcDevice": src.device,
        "srcArray": src.array,
        "srcPitch": src.pitch,
        "dstXInBytes": dst.x,
        "dstY": dst.y,
        "dstMemoryType": dst.kind,
        "dstHost": dst.host,
        "dstDevice": dst.device,
        "dstArray": dst.array,
        "dstPitch": dst.pitch,
        "WidthInBytes": width,
        "Height": height,
    }
    Copy3D "CUDA_MEMCPY3D" 200 {
        "srcXInBytes": src.x,
        "srcY": src.y,
        "srcZ": src.z,
        "srcLOD": src.lod,
        "srcMemoryType": src.kind,
        "srcHost": src.host,
        "srcDevice": src.device,
        "srcArray": src.array,
        "srcPitch": src.pitch,
        "srcHeight": src.height,
        "dstXInBytes": dst.x,
        "dstY": dst.y,
        "dstZ": dst.z,
        "dstLOD": dst.lod,
        "dstMemoryType": dst.kind,
        "dstHost": dst.host,
        "dstDevice": dst.device,
        "dstArray": dst.array,
        "dstPitch": dst.pitch,
        "dstHeight": dst.height,
        "WidthInBytes": width,
        "Height": height,
        "Depth": depth,
    }
    Copy3D "CUDA_MEMCPY3D_PEER" 200 {
        "srcXInBytes": src.x,
        "srcY": src.y,
        "srcZ": src.z,
        "srcLOD": src.lod,
        "srcMemoryType": src.kind,
        "srcHost": src.host,
        "srcDevice": src.device,
        "srcArray": src.array,
        "srcContext": src.context,
        "srcPitch": src.pitch,
        "srcHeight": src.height,
        "dstXInBytes": dst.x,
        "dstY": dst.y,
        "dstZ": dst.z,
        "dstLOD": dst.lod,
        "dstMemoryType": dst.kind,
        "dstHost": dst.host,
        "dstDevice": dst.device,
        "dstArray": dst.array,
        "dstContext": dst.context,
        "dstPitch": dst.pitch,
        "dstHeight": dst.height,
    }
    ArrayDescriptor "CUDA_ARRAY_DESCRIPTOR" 24 {
        "Width": width,
        "Height": height,
        "Format": format,
        "NumChannels": channels,
    }
    ArrayShape "CUDA_ARRAY3D_DESCRIPTOR" 40 {
        "Width": width,
        "Height": height,
        "Depth": depth,
        "Format": format,
        "NumChannels": channels,
        "Flags": flags,
    }
    ArrayMemoryRequirements "CUDA_ARRAY_MEMORY_REQUIREMENTS" 32 {
        "size": size,
        "alignment": alignment,
        "reserved": reserved,
    }
    CopyAttributes "CUmemcpyAttributes" 24 {
        "srcAccessOrder": order,
        "srcLocHint": src_hint,
        "dstLocHint": dst_hint,
        "flags": flags,
    }
    CopyOperand "CUmemcpy3DOperand" 40 {
        "type": kind,
        "op.ptr.ptr": what,
    }
    CopyOperation "CUDA_MEMCPY3D_BATCH_OP" 112 {
        "src": src,
        "dst": dst,
        "extent": extent,
        "srcAccessOrder": order,
        "flags": flags,
    }
    Location "CUmemLocation" 8 {
        "type": kind,
        "id": id,
    }
    AllocationProperties "CUmemAllocationProp" 32 {
        "type": kind,
        "requestedHandleTypes": handle_types,
        "location": location,
        "win32HandleMetaData": metadata,
        "allocFlags": flags,
    }
    AccessDescriptor "CUmemAccessDesc" 12 {
        "location": location,
        "flags": flags,
    }
    PoolProperties "CUmemPoolProps" 88 {
        "allocType": kind,
        "handleTypes": handle_types,
        "location": location,
        "win32SecurityAttributes": security,
        "maxSize": max_size,
        newer "usage": usage,
    }
    EdgeData "CUgraphEdgeData" 8 {
        "from_port": from_port,
        "to_port": to_port,
        "type": kind,
        "reserved": reserved,
    }
    NodeParams "CUgraphNodeParams" 256 {
        "type": kind,
        "reserved0": reserved,
        "reserved1": room,
        "reserved2": reserved_2,
    }
    KernelNodeParams "CUDA_KERNEL_NODE_PARAMS_v1" 56 {
        "func": function,
        "gridDimX": grid,
        "blockDimX": block,
        "sharedMemBytes": shared,
        "kernelParams": params,
        "extra": extra,
    }
    KernelNodeParams2 "CUDA_KERNEL_NODE_PARAMS_v2" 72 {
        "func": base.function,
        "extra": base.extra,
        "kern": kernel,
        "ctx": context,
    }
    MemsetNodeParams "CUDA_MEMSET_NODE_PARAMS" 40 {
        "dst": dst,
        "pitch": pitch,
        "value": value,
        "elementSize": element,
        "width": width,
        "height": height,
    }
    MemsetNodeParams2 "CUDA_MEMSET_NODE_PARAMS_v2" 48 {
        "dst": base.dst,
        "height": base.height,
        "ctx": context,
    }
    HostNodeParams "CUDA_HOST_NODE_PARAMS_v1" 16 {
        "fn": function,
        "userData": data,
    }
    HostNodeParams2 "CUDA_HOST_NODE_PARAMS_v2" 32 {
        "fn": base.function,
        "userData": base.data,
        "syncMode": sync_mode,
        newer "ctx": context,
    }
    CopyNodeParams "CUDA_MEMCPY_NODE_PARAMS" 216 {
        "flags": flags,
        "reserved": reserved,
        "copyCtx": context,
        "copyParams": copy,
    }
    ChildNodeParams "CUDA_CHILD_GRAPH_NODE_PARAMS" 16 {
        "graph": graph,
        newer "ownership": ownership,
    }
    ConditionalNodeParams "CUDA_CONDITIONAL_NODE_PARAMS" 32 {
        "handle": handle,
        "type": rule,
        "size": size,
        "phGraph_out": graphs,
        "ctx": context,
    }
    BatchNodeParams "CUDA_BATCH_MEM_OP_NODE_PARAMS" 32 {
        "ctx": context,
        "count": count,
        "paramArray": operations,
        "flags": flags,
    }
    AllocNodeParams "CUDA_MEM_ALLOC_NODE_PARAMS" 120 {
        "poolProps": pool,
        "accessDescs": access,
        "accessDescCount": accesses,
        "bytesize": bytes,
        "dptr": address,
    }
    MemOp "CUstreamBatchMemOpParams" 48 {
        "operation": operation,
        "memoryBarrier.flags": barrier_flags,
        "waitValue.address": address,
        "waitValue.value64": value,
        "waitValue.flags": flags,
        "waitValue.alias": alias,
    }
    InstantiateParams "CUDA_GRAPH_INSTANTIATE_PARAMS" 32 {
        "flags": flags,
        "hUploadStream": upload_stream,
        "hErrNode_out": error_node,
        "result_out": result,
    }
    ExecUpdateInfo "CUgraphExecUpdateResultInfo" 24 {
        "result": result,
        "errorNode": error_node,
        "errorFromNode": error_from,
    }
    LaunchConfig "CUlaunchConfig" 56 {
        "gridDimX": grid,
        "blockDimX": block,
        "sharedMemBytes": shared,
        "hStream": stream,
        "attrs": attributes,
        "numAttrs": count,
    }
    LaunchAttribute "CUlaunchAttribute" 72 {
        "id": id,
        "pad": reserved,
        "value": value,
    }
    DevResource "CUdevResource" 144 {
        "type": kind,
        "_internal_padding": internal,
        "sm.smCount": count,
        "sm.minSmPartitionSize": smallest,
        "sm.smCoscheduledAlignment": alignment,
        "nextResource": next,
        newer "sm.flags": flags,
        newer "sm.localityDomainId": domain,
    }
    GroupParams "CU_DEV_SM_RESOURCE_GROUP_PARAMS" 64 {
        "smCount": count,
        "coscheduledSmCount": together,
        "preferredCoscheduledSmCount": preferred,
        "flags": flags,
        "localityDomainId": domain,
        "reserved": reserved,
    }
}
