//! Structures about graphs.

use std::ffi::c_void;

use super::{AccessDescriptor, Copy3D, HostFn, MemOp, PoolProperties};
use crate::args::{In, StreamArg};
use crate::numbers::graph_update;

/// `CUgraphEdgeData`: properties of an edge besides its nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(C)]
pub struct EdgeData {
    /// `CU_GRAPH_KERNEL_NODE_PORT_…`.
    pub from_port: u8,
    /// Always 0.
    pub to_port: u8,
    /// `CUgraphDependencyType`.
    pub kind: u8,
    /// Always 0.
    pub reserved: [u8; 5],
}

/// `CUgraphNodeParams`: the parameters of a node of any kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct NodeParams {
    /// [`node`](crate::numbers::node).
    pub kind: u32,
    /// Always 0.
    pub reserved: [u32; 3],
    /// The parameters, as the structure that belongs to `kind`.
    pub room: [u64; 29],
    /// Always 0.
    pub reserved_2: u64,
}

/// `CUDA_KERNEL_NODE_PARAMS_v1`: a launch.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KernelNodeParams {
    /// `CUfunction`; since CUDA 12 also `CUkernel`.
    pub function: u64,
    /// Blocks in each dimension.
    pub grid: [u32; 3],
    /// Threads in each dimension.
    pub block: [u32; 3],
    /// Bytes of dynamic shared memory.
    pub shared: u32,
    /// A pointer to each parameter.
    pub params: In<In<u8>>,
    /// The parameters as an `extra` list, if `params` is null.
    pub extra: In<In<c_void>>,
}

/// `CUDA_KERNEL_NODE_PARAMS_v2`: a launch with a kernel and a context.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct KernelNodeParams2 {
    /// As in the first form.
    pub base: KernelNodeParams,
    /// `CUkernel`, if the function is null.
    pub kernel: u64,
    /// `CUcontext`.
    pub context: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`: a fill.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemsetNodeParams {
    /// Address of the first byte.
    pub dst: u64,
    /// Distance between rows in bytes.
    pub pitch: usize,
    /// Value of an element.
    pub value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub element: u32,
    /// Elements in a row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS_v2`: a fill with a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct MemsetNodeParams2 {
    /// As in the first form.
    pub base: MemsetNodeParams,
    /// `CUcontext`.
    pub context: u64,
}

/// `CUDA_HOST_NODE_PARAMS_v1`: a call of a function of the program.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HostNodeParams {
    /// The function.
    pub function: Option<HostFn>,
    /// The function's argument.
    pub data: usize,
}

/// `CUDA_HOST_NODE_PARAMS_v2`: a call of a function of the program, with the kind of wait.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct HostNodeParams2 {
    /// As in the first form.
    pub base: HostNodeParams,
    /// The kind of the stream's wait for the function.
    pub sync_mode: u32,
    /// `CUcontext`.
    pub context: u64,
}

/// `CUDA_MEMCPY_NODE_PARAMS`: a copy with a context.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct CopyNodeParams {
    /// Always 0.
    pub flags: u32,
    /// Always 0.
    pub reserved: u32,
    /// `CUcontext`.
    pub context: u64,
    /// The copy.
    pub copy: Copy3D,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`: a graph in a graph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ChildNodeParams {
    /// `CUgraph`.
    pub graph: u64,
    /// `CUgraphChildGraphNodeOwnership`, since CUDA 12.9.
    pub ownership: u32,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`: a condition and its bodies.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct ConditionalNodeParams {
    /// `CUgraphConditionalHandle`.
    pub handle: u64,
    /// `CUgraphConditionalNodeType`.
    pub rule: u32,
    /// Number of bodies.
    pub size: u32,
    /// Written by the driver: the bodies, valid while the node exists.
    pub graphs: In<u64>,
    /// `CUcontext`.
    pub context: u64,
}

/// `CUDA_BATCH_MEM_OP_NODE_PARAMS`: writes of words and waits for words.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct BatchNodeParams {
    /// `CUcontext`.
    pub context: u64,
    /// Number of operations.
    pub count: u32,
    /// The operations.
    pub operations: In<MemOp>,
    /// Always 0.
    pub flags: u32,
}

/// `CUDA_MEM_ALLOC_NODE_PARAMS`: an allocation.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub struct AllocNodeParams {
    /// Properties of the memory.
    pub pool: PoolProperties,
    /// Access rights of other devices.
    pub access: In<AccessDescriptor>,
    /// Length of `access`.
    pub accesses: usize,
    /// Size in bytes.
    pub bytes: usize,
    /// Written by the driver: the address.
    pub address: u64,
}

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`: parameters of an instantiation, and the cause of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct InstantiateParams {
    /// `CUgraphInstantiate_flags`.
    pub flags: u64,
    /// Stream in which the instantiated graph is uploaded.
    pub upload_stream: StreamArg,
    /// Written by the driver: the node that caused the failure.
    pub error_node: u64,
    /// Written by the driver: `CUgraphInstantiateResult`.
    pub result: u32,
}

/// `CUgraphExecUpdateResultInfo`: the result of an update of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct ExecUpdateInfo {
    /// `CUgraphExecUpdateResult`.
    pub result: u32,
    /// The node that caused the failure.
    pub error_node: u64,
    /// The node at which the edge that caused the failure begins.
    pub error_from: u64,
}

/// A structure that [`NodeParams`] can hold: all byte patterns are valid values, and the structure
/// fits into `room`.
///
/// # Safety
/// Both conditions must hold.
pub unsafe trait OfNode: Copy {}

macro_rules! of_node {
    ($($name:ty),*) => {$(
        const _: () = assert!(size_of::<$name>() <= 29 * 8 && align_of::<$name>() <= 8);
        // SAFETY: integers, pointers and an optional function; the size is checked above.
        unsafe impl OfNode for $name {}
    )*};
}

of_node!(
    KernelNodeParams2,
    CopyNodeParams,
    MemsetNodeParams2,
    HostNodeParams2,
    ChildNodeParams,
    ConditionalNodeParams,
    BatchNodeParams,
    AllocNodeParams,
    u64
);

impl NodeParams {
    /// Parameters of a kind without parameters.
    #[must_use]
    pub fn empty(kind: u32) -> NodeParams {
        NodeParams {
            kind,
            reserved: [0; 3],
            room: [0; 29],
            reserved_2: 0,
        }
    }

    /// The parameters, as the structure of their kind.
    #[must_use]
    pub fn view<T: OfNode>(&self) -> T {
        // SAFETY: the structure fits, and all bytes are valid values (`OfNode`).
        unsafe { self.room.as_ptr().cast::<T>().read() }
    }

    /// Writes the parameters.
    pub fn put<T: OfNode>(&mut self, value: T) {
        // SAFETY: the structure fits (`OfNode`).
        unsafe { self.room.as_mut_ptr().cast::<T>().write(value) };
    }
}

/// `CUgraphExecUpdateResult`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum UpdateOutcome {
    /// Updated.
    Success = graph_update::SUCCESS,
    /// Refused for a reason without a code of its own.
    Error = graph_update::ERROR,
    /// The graph has other nodes or dependencies than the instance.
    TopologyChanged = graph_update::ERROR_TOPOLOGY_CHANGED,
    /// A node is of another kind.
    TypeChanged = graph_update::ERROR_NODE_TYPE_CHANGED,
    /// A parameter differs that an update cannot change.
    ParametersChanged = graph_update::ERROR_PARAMETERS_CHANGED,
    /// A node of this kind cannot be updated.
    NotSupported = graph_update::ERROR_NOT_SUPPORTED,
    /// A kernel node has a function of another context.
    FunctionChange = graph_update::ERROR_UNSUPPORTED_FUNCTION_CHANGE,
    /// An attribute differs that an update cannot change.
    AttributesChanged = graph_update::ERROR_ATTRIBUTES_CHANGED,
}

/// The result of an update of an instance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UpdateReport {
    /// The outcome.
    pub outcome: UpdateOutcome,
    /// The node that caused a refusal, or 0.
    pub node: u64,
    /// If an edge caused the refusal: the node at which the edge begins; otherwise 0.
    pub from: u64,
}

impl UpdateReport {
    /// A report that is not about an edge.
    #[must_use]
    pub fn at(outcome: UpdateOutcome, node: u64) -> UpdateReport {
        UpdateReport {
            outcome,
            node,
            from: 0,
        }
    }
}

impl From<UpdateReport> for ExecUpdateInfo {
    fn from(report: UpdateReport) -> ExecUpdateInfo {
        ExecUpdateInfo {
            result: report.outcome as u32,
            error_node: report.node,
            error_from: report.from,
        }
    }
}
