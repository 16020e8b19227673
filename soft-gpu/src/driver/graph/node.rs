//! The operation of a graph node, as the program described it.

use std::collections::BTreeMap;
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::node as kind;
use vgpu_cuda_abi::structs::{Copy3D, EdgeData, MemOp, MemsetNodeParams};

use super::Graph;
use super::block::{self, Block, Space};
use super::conditional::Conditional;
use crate::driver::callback::HostCall;
use crate::driver::context::{self, Context};
use crate::driver::copy::{Fill, Planned, Transfer};
use crate::driver::error::Result;
use crate::driver::event::Event;
use crate::driver::launch::Shape;
use crate::driver::module::Function;

/// The parameter block of a kernel, and the array `kernelParams` with one pointer per parameter,
/// which clients read.
#[derive(Debug)]
pub struct Params {
    bytes: Vec<u8>,
    pointers: Vec<*const u8>,
}

// SAFETY: the pointers point into `bytes`. This vector never changes, so its contents stay at the
// same address.
unsafe impl Send for Params {}
// SAFETY: as above.
unsafe impl Sync for Params {}

impl Params {
    fn new(f: &Function, bytes: Vec<u8>) -> Params {
        let base = bytes.as_ptr();
        let at = |offset: &(usize, usize)| base.wrapping_add(offset.0);
        Params {
            pointers: f.info.params.iter().map(at).collect(),
            bytes,
        }
    }

    /// The parameter block.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The array `kernelParams`, with one pointer per parameter; null for a kernel without
    /// parameters.
    pub fn pointers(&self) -> *const *const u8 {
        if self.pointers.is_empty() {
            std::ptr::null()
        } else {
            self.pointers.as_ptr()
        }
    }
}

/// The launch of a kernel node.
#[derive(Clone)]
pub struct KernelNode {
    /// Launched function.
    pub function: Arc<Function>,
    /// The CUfunction or CUkernel that the program named.
    pub named: u64,
    /// Grid, block and shared memory.
    pub shape: Shape,
    /// Parameters.
    pub params: Arc<Params>,
}

/// The allocation of an allocation node.
#[derive(Clone)]
pub struct AllocNode {
    /// Address range.
    pub block: Arc<Block>,
    /// Pool from which a captured call allocates; 0 for a node that the program added.
    pub pool: u64,
}

/// The operation of a node.
#[derive(Clone)]
pub enum Action {
    /// Launches a kernel.
    Kernel(KernelNode),
    /// Copies memory. The second field is the context.
    Memcpy(Copy3D, u64),
    /// Sets memory. The second field is the context.
    Memset(MemsetNodeParams, u64),
    /// Calls a host function.
    Host(HostCall),
    /// Runs an embedded graph.
    Child(Arc<Graph>),
    /// No operation; only joins dependencies.
    Empty,
    /// Waits for an event.
    EventWait(Arc<Event>),
    /// Records an event.
    EventRecord(Arc<Event>),
    /// Allocates memory.
    Alloc(AllocNode),
    /// Frees the memory of an allocation node. The reference keeps the block's addresses reserved.
    Free(Arc<Block>),
    /// Waits for values in memory, and writes values. The second field is the context.
    MemOps(Arc<[MemOp]>, u64),
    /// Runs embedded graphs, depending on a value in memory.
    Conditional(Conditional),
}

fn live_context(handle: u64) -> Result<Arc<Context>> {
    if handle == 0 {
        return context::current();
    }
    context::get(handle)
}

impl Action {
    /// A kernel launch, checked as cuLaunchKernel checks it. `params` is the parameter block.
    ///
    /// # Errors
    /// As [`Shape::check`].
    pub fn kernel(f: Arc<Function>, named: u64, shape: Shape, params: Vec<u8>) -> Result<Action> {
        shape.check(&f)?;
        let params = Arc::new(Params::new(&f, params));
        Ok(Action::Kernel(KernelNode {
            function: f,
            named,
            shape,
            params,
        }))
    }

    /// A copy in `context`; 0 means the current context.
    ///
    /// # Errors
    /// As [`Transfer::new`].
    pub fn memcpy(c: &Copy3D, context: u64) -> Result<Action> {
        let context = live_context(context)?.handle;
        Transfer::new(c, Planned::Later)?.ok_or(CuResult::INVALID_VALUE)?;
        Ok(Action::Memcpy(*c, context))
    }

    /// A memset in `context`; 0 means the current context.
    ///
    /// # Errors
    /// As [`Fill::new`]; an element size other than 1, 2, 4.
    pub fn memset(m: &MemsetNodeParams, context: u64) -> Result<Action> {
        let context = live_context(context)?.handle;
        if !matches!(m.element, 1 | 2 | 4) {
            return Err(CuResult::INVALID_VALUE);
        }
        Fill::new(m, Planned::Later)?.ok_or(CuResult::INVALID_VALUE)?;
        Ok(Action::Memset(*m, context))
    }

    /// An allocation of `size` bytes of the given kind of memory, on `device`. `pool` as in
    /// [`AllocNode::pool`].
    ///
    /// # Errors
    /// As [`block::reserve`].
    pub fn alloc(size: u64, device: usize, space: Space, pool: u64) -> Result<Action> {
        let block = block::reserve(size, device, space)?;
        Ok(Action::Alloc(AllocNode { block, pool }))
    }

    /// Frees the memory of the allocation node whose block starts at `addr`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an address of no allocation node.
    pub fn free(addr: u64) -> Result<Action> {
        block::find(addr)
            .map(Action::Free)
            .ok_or(CuResult::INVALID_VALUE)
    }

    /// CUgraphNodeType.
    pub fn kind(&self) -> u32 {
        match self {
            Action::Kernel(_) => kind::KERNEL,
            Action::Memcpy(..) => kind::MEMCPY,
            Action::Memset(..) => kind::MEMSET,
            Action::Host(_) => kind::HOST,
            Action::Child(_) => kind::GRAPH,
            Action::Empty => kind::EMPTY,
            Action::EventWait(_) => kind::WAIT_EVENT,
            Action::EventRecord(_) => kind::EVENT_RECORD,
            Action::Alloc(_) => kind::MEM_ALLOC,
            Action::Free(_) => kind::MEM_FREE,
            Action::MemOps(..) => kind::BATCH_MEM_OP,
            Action::Conditional(_) => kind::CONDITIONAL,
        }
    }

    /// Whether the node allocates or frees memory. A graph with such nodes can have only one
    /// instance, and its nodes and dependencies cannot be removed.
    pub fn owns_memory(&self) -> bool {
        match self {
            Action::Alloc(_) | Action::Free(_) => true,
            Action::Child(g) => g.owns_memory(),
            _ => false,
        }
    }

    /// The graphs that are embedded in the node.
    pub fn graphs(&self) -> &[Arc<Graph>] {
        match self {
            Action::Child(g) => std::slice::from_ref(g),
            Action::Conditional(c) => &c.graphs,
            _ => &[],
        }
    }

    /// A copy of the operation for another graph, with copies of the embedded graphs.
    ///
    /// # Errors
    /// As [`Graph::duplicate`].
    pub fn duplicate(&self) -> Result<Action> {
        match self {
            Action::Child(child) => child.duplicate(true).map(Action::Child),
            Action::Conditional(c) => c.duplicate().map(Action::Conditional),
            other => Ok(other.clone()),
        }
    }

    /// Whether a program may disable the node in an instance.
    pub fn can_be_disabled(&self) -> bool {
        matches!(
            self,
            Action::Kernel(_) | Action::Memcpy(..) | Action::Memset(..)
        )
    }
}

/// CUlaunchAttribute values by number, as the program set them.
pub type Attributes = BTreeMap<u32, [u32; 16]>;

/// Launch attributes of kernel nodes (CUkernelNodeAttrID).
pub const KERNEL_ATTRIBUTES: [u32; 10] = [1, 2, 4, 5, 8, 9, 10, 11, 13, 14];

/// A node of a graph.
pub struct Node {
    /// CUgraphNode.
    pub handle: u64,
    /// cuGraphNodeGetLocalId.
    pub local: u32,
    /// Operation of the node.
    pub action: Action,
    /// Launch attributes that the program set (kernels only).
    pub attributes: Attributes,
}

/// A dependency on a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dependency {
    /// CUgraphNode.
    pub node: u64,
    /// Edge data.
    pub data: EdgeData,
}

impl Dependency {
    /// A dependency with default edge data.
    pub fn on(node: u64) -> Dependency {
        Dependency {
            node,
            data: EdgeData::default(),
        }
    }
}
