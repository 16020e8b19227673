//! The structures of `cuda.h`, with the sizes of a 64-bit Linux.
//!
//! This project chose the names of the fields. Handles and addresses of the program are numbers
//! (`u64`); a pointer that a function dereferences is an [`In`] or an [`Out`](crate::args::Out).
//! [`LAYOUTS`] gives NVIDIA's name of each field, for `header-check/`.

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::args::{In, StreamArg};

mod array;
mod graph;
mod layouts;

pub use array::{ArrayDescriptor, ArrayShape, MAX_LEVELS, element_bytes};
pub use graph::*;
pub use layouts::{LAYOUTS, Layout};

/// `CUhostFn`: a function of the program, with the program's argument.
pub type HostFn = unsafe extern "C" fn(*mut c_void);
/// `CUstreamCallback`: the stream, its status, the program's argument.
pub type StreamCallback = unsafe extern "C" fn(u64, u32, *mut c_void);
/// `CUoccupancyB2DSize`: returns the bytes of dynamic shared memory for a block with this number of
/// threads.
pub type SharedOfBlock = unsafe extern "C" fn(c_int) -> usize;
/// `CUlogsCallback`: the program's argument, `CUlogLevel`, the message and its length in bytes.
pub type LogsCallback = unsafe extern "C" fn(*mut c_void, c_uint, *mut c_char, usize);
/// `CUlaunchAttributeValue`, `CUstreamAttrValue`, `CUkernelNodeAttrValue`: a union.
pub type AttributeValue = [u32; 16];

/// `CUdevprop`: the result of `cuDeviceGetProperties`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DeviceProperties {
    /// Largest number of threads in a block.
    pub max_threads_per_block: i32,
    /// Largest block, in each dimension.
    pub max_threads_dim: [i32; 3],
    /// Largest grid, in each dimension.
    pub max_grid_size: [i32; 3],
    /// Bytes of shared memory per block.
    pub shared_mem_per_block: i32,
    /// Size in bytes.
    pub total_constant_memory: i32,
    /// Threads in a warp.
    pub simd_width: i32,
    /// Largest distance of rows, in bytes.
    pub mem_pitch: i32,
    /// 32-bit registers per block.
    pub regs_per_block: i32,
    /// Clock rate in kHz.
    pub clock_rate: i32,
    /// Alignment in bytes.
    pub texture_align: i32,
}

/// `CUctxCreateParams`: parameters of `cuCtxCreate_v4`.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct CtxCreateParams {
    /// `CUexecAffinityParam`s.
    pub exec_affinity: In<c_void>,
    /// Length of `exec_affinity`.
    pub exec_affinities: i32,
    /// `CUctxCigParam`: a context that is shared with graphics.
    pub cig: In<c_void>,
}

/// One side of [`Copy2D`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Side2D {
    /// Offset in a row, in bytes.
    pub x: usize,
    /// Offset in rows.
    pub y: usize,
    /// [`memory_type`](crate::numbers::memory_type).
    pub kind: u32,
    /// Address of host memory.
    pub host: u64,
    /// Address of device or unified memory.
    pub device: u64,
    /// `CUarray`.
    pub array: u64,
    /// Distance between rows in bytes.
    pub pitch: usize,
}

/// `CUDA_MEMCPY2D`: a copy of rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Copy2D {
    /// Source.
    pub src: Side2D,
    /// Destination.
    pub dst: Side2D,
    /// Bytes in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

/// One side of [`Copy3D`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Side3D {
    /// Offset in a row, in bytes.
    pub x: usize,
    /// Offset in rows of a slice.
    pub y: usize,
    /// Offset in slices.
    pub z: usize,
    /// Level of detail; arrays only.
    pub lod: usize,
    /// [`memory_type`](crate::numbers::memory_type).
    pub kind: u32,
    /// Address of host memory.
    pub host: u64,
    /// Address of device or unified memory.
    pub device: u64,
    /// `CUarray`.
    pub array: u64,
    /// Context of this side in `CUDA_MEMCPY3D_PEER`; otherwise reserved.
    pub context: u64,
    /// Distance between rows in bytes; 0 for rows without gaps.
    pub pitch: usize,
    /// Distance between slices in rows; 0 for slices without gaps.
    pub height: usize,
}

/// `CUDA_MEMCPY3D`: a copy of a box. `CUDA_MEMCPY3D_PEER` differs in the meaning of one field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Copy3D {
    /// Source.
    pub src: Side3D,
    /// Destination.
    pub dst: Side3D,
    /// Bytes in a row.
    pub width: usize,
    /// Rows in a slice.
    pub height: usize,
    /// Number of slices.
    pub depth: usize,
}

/// `CUDA_ARRAY_MEMORY_REQUIREMENTS`: requirements of an array with deferred mapping.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ArrayMemoryRequirements {
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub alignment: usize,
    /// Always 0.
    pub reserved: [u32; 4],
}

/// `CUmemcpyAttributes`: attributes of copies in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CopyAttributes {
    /// `CUmemcpySrcAccessOrder`.
    pub order: u32,
    /// Location of the source.
    pub src_hint: Location,
    /// Location of the destination.
    pub dst_hint: Location,
    /// `CUmemcpyFlags`.
    pub flags: u32,
}

/// `CUmemcpy3DOperand`: one side of [`CopyOperation`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CopyOperand {
    /// `CUmemcpy3DOperandType`.
    pub kind: u32,
    /// An address, or a `CUarray`.
    pub what: u64,
    /// For memory: elements in a row, rows in a slice, a hint. For an array: offset x, y, z.
    pub numbers: [usize; 3],
}

/// `CUDA_MEMCPY3D_BATCH_OP`: a copy of a box in a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CopyOperation {
    /// Source.
    pub src: CopyOperand,
    /// Destination.
    pub dst: CopyOperand,
    /// Width, height and depth; in elements if one side is an array.
    pub extent: [usize; 3],
    /// `CUmemcpySrcAccessOrder`.
    pub order: u32,
    /// `CUmemcpyFlags`.
    pub flags: u32,
}

/// `CUmemLocation`: a location of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct Location {
    /// [`location`](crate::numbers::location).
    pub kind: u32,
    /// Ordinal of a device, or a NUMA node.
    pub id: i32,
}

/// `CUmemAllocationProp`: properties of memory without an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct AllocationProperties {
    /// [`allocation`](crate::numbers::allocation).
    pub kind: u32,
    /// `CUmemAllocationHandleType`s.
    pub handle_types: u32,
    /// Location of the memory.
    pub location: Location,
    /// An address, on Windows only.
    pub metadata: u64,
    /// Compression, RDMA, usage.
    pub flags: [u8; 8],
}

/// `CUmemAccessDesc`: access rights of a location.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct AccessDescriptor {
    /// The location.
    pub location: Location,
    /// [`access`](crate::numbers::access).
    pub flags: u32,
}

/// `CUmemPoolProps`: properties of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PoolProperties {
    /// [`allocation`](crate::numbers::allocation).
    pub kind: u32,
    /// `CUmemAllocationHandleType`s.
    pub handle_types: u32,
    /// Location of the memory.
    pub location: Location,
    /// An address, on Windows only.
    pub security: u64,
    /// Size in bytes; 0 for the maximum of the device.
    pub max_size: usize,
    /// Flags.
    pub usage: u16,
    /// Always 0.
    pub reserved: [u8; 54],
}

/// `CUstreamBatchMemOpParams`: a write of a word of memory, or a wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemOp {
    /// `CUstreamBatchMemOpType`.
    pub operation: u32,
    /// Flags of operations without an address.
    pub barrier_flags: u32,
    /// Address of the word.
    pub address: u64,
    /// Value; the lower half for 32-bit operations.
    pub value: u64,
    /// Flags of the operation.
    pub flags: u32,
    /// Padding.
    pub reserved: u32,
    /// Reserved.
    pub alias: u64,
    /// Padding.
    pub rest: u64,
}

/// `CUlaunchConfig`: a launch with attributes.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct LaunchConfig {
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// The stream.
    pub stream: StreamArg,
    /// The attributes.
    pub attributes: In<LaunchAttribute>,
    /// Number of attributes.
    pub count: u32,
}

/// `CUlaunchAttribute`: an attribute of a launch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct LaunchAttribute {
    /// [`launch_attribute`](crate::numbers::launch_attribute).
    pub id: u32,
    /// Padding.
    pub reserved: u32,
    /// The value.
    pub value: AttributeValue,
}

/// `CUdevResource`: a resource of a device, as of CUDA 13. In CUDA 12, the structure has the same
/// size and fewer fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct DevResource {
    /// `CUdevResourceType`.
    pub kind: u32,
    /// Internal data of the driver.
    pub internal: [u8; 92],
    /// Number of multiprocessors.
    pub count: u32,
    /// Smallest number of multiprocessors in a part.
    pub smallest: u32,
    /// Alignment of the number of multiprocessors in a part.
    pub alignment: u32,
    /// Flags of a part.
    pub flags: u32,
    /// Locality domain.
    pub domain: u32,
    /// Padding.
    pub rest: [u32; 5],
    /// Address of another resource.
    pub next: u64,
}

/// `CU_DEV_SM_RESOURCE_GROUP_PARAMS`: a requested part of the multiprocessors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct GroupParams {
    /// Number of multiprocessors; 0: the maximum.
    pub count: u32,
    /// Multiprocessors that are scheduled together.
    pub together: u32,
    /// Preferred number, for clusters.
    pub preferred: u32,
    /// `CUdevSmResourceGroup_flags`.
    pub flags: u32,
    /// Locality domain.
    pub domain: u32,
    /// Always 0.
    pub reserved: [u32; 11],
}

impl Side3D {
    /// An empty side, to be filled in.
    pub const NOWHERE: Side3D = Side3D {
        x: 0,
        y: 0,
        z: 0,
        lod: 0,
        kind: 0,
        host: 0,
        device: 0,
        array: 0,
        context: 0,
        pitch: 0,
        height: 0,
    };
}

impl From<Side2D> for Side3D {
    fn from(side: Side2D) -> Side3D {
        Side3D {
            x: side.x,
            y: side.y,
            kind: side.kind,
            host: side.host,
            device: side.device,
            array: side.array,
            pitch: side.pitch,
            ..Side3D::NOWHERE
        }
    }
}

impl From<Copy2D> for Copy3D {
    fn from(copy: Copy2D) -> Copy3D {
        Copy3D {
            src: copy.src.into(),
            dst: copy.dst.into(),
            width: copy.width,
            height: copy.height,
            depth: 1,
        }
    }
}
