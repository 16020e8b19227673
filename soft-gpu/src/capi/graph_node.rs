//! Nodes of graphs: adding them by kind, reading and changing what they do.

use std::ffi::c_void;

use super::copy::Copy3;
use super::graph::dependencies;
use super::launch::parameters;
use super::memop::operations;
use super::pool::Properties as PoolProperties;
use super::types::{In, Out};
use super::vmm::Access;
use crate::driver::callback::{HostCall, HostFn};
use crate::driver::copy::Memset;
use crate::driver::error::{CuError, Result};
use crate::driver::graph::block::Space;
use crate::driver::graph::node::{
    Action, Attributes, COOPERATIVE, Dependency, KERNEL_ATTRIBUTES, kind,
};
use crate::driver::graph::{self, update};
use crate::driver::launch::Shape;
use crate::driver::memop::MemOp;
use crate::driver::{context, event, gpu, green, module};

/// CUDA_KERNEL_NODE_PARAMS_v1.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Kernel1 {
    func: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: In<*const u8>,
    extra: In<*const c_void>,
}

/// CUDA_KERNEL_NODE_PARAMS_v2 and _v3.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Kernel2 {
    base: Kernel1,
    kern: u64,
    context: u64,
}

impl Kernel1 {
    fn named(self, handle: u64) -> Result<Action> {
        let f = module::function(handle)?;
        let shape = Shape {
            part: green::current_part(),
            ..Shape::new(self.grid, self.block, self.shared)
        };
        let block = parameters(&f, self.params, self.extra)?;
        Action::kernel(f, handle, shape, block)
    }

    /// What a node with these parameters does.
    ///
    /// # Errors
    /// As the function that adds such a node.
    pub fn action(self) -> Result<Action> {
        self.named(self.func)
    }

    /// The parameters of such a node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub fn of(action: &Action) -> Result<Kernel1> {
        let Action::Kernel(k) = action else {
            return Err(CuError::INVALID_VALUE);
        };
        Ok(Kernel1 {
            func: k.function.handle,
            grid: k.shape.grid,
            block: k.shape.block,
            shared: k.shape.shared,
            params: In(k.params.pointers().cast()),
            extra: In(std::ptr::null()),
        })
    }
}

impl Kernel2 {
    /// What a node with these parameters does.
    ///
    /// # Errors
    /// As the function that adds such a node.
    pub fn action(self) -> Result<Action> {
        if self.context != 0 {
            context::get(self.context)?;
        }
        match (self.base.func, self.kern) {
            (0, 0) => Err(CuError::INVALID_VALUE),
            (0, kernel) => self.base.named(kernel),
            (func, _) => self.base.named(func),
        }
    }

    /// The parameters of such a node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub fn of(action: &Action) -> Result<Kernel2> {
        let base = Kernel1::of(action)?;
        let Action::Kernel(k) = action else {
            return Err(CuError::INVALID_VALUE);
        };
        Ok(Kernel2 {
            base,
            kern: if k.named == base.func { 0 } else { k.named },
            context: k.function.module.context,
        })
    }
}

/// CUDA_HOST_NODE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Host {
    call: Option<HostFn>,
    data: *mut c_void,
}

impl Host {
    /// What a node with these parameters does.
    ///
    /// # Errors
    /// As the function that adds such a node.
    pub fn action(self) -> Result<Action> {
        HostCall::new(self.call, self.data).map(Action::Host)
    }

    /// The parameters of such a node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub fn of(action: &Action) -> Result<Host> {
        match action {
            Action::Host(h) => Ok(Host {
                call: Some(h.call),
                data: h.data,
            }),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// CUDA_BATCH_MEM_OP_NODE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Batch {
    context: u64,
    count: u32,
    ops: In<MemOp>,
    flags: u32,
}

impl Batch {
    /// What a node with these parameters does.
    ///
    /// # Errors
    /// As the function that adds such a node.
    pub fn action(self) -> Result<Action> {
        let context = match self.context {
            0 => context::current()?.handle,
            given => context::get(given)?.handle,
        };
        let ops = operations(self.count, self.ops, self.flags)?;
        let later = crate::driver::copy::Planned::Later;
        ops.iter().try_for_each(|op| op.check(later))?;
        Ok(Action::MemOps(ops.into(), context))
    }

    /// The parameters of such a node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub fn of(action: &Action) -> Result<Batch> {
        match action {
            Action::MemOps(ops, context) => Ok(Batch {
                context: *context,
                count: ops.len() as u32,
                ops: In(ops.as_ptr()),
                flags: 0,
            }),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// CUDA_MEM_ALLOC_NODE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Alloc {
    pool: PoolProperties,
    access: In<Access>,
    accesses: usize,
    bytes: usize,
    /// Out: the address.
    pub addr: u64,
}

impl Alloc {
    /// What a node with these parameters does.
    ///
    /// # Errors
    /// As the function that adds such a node.
    pub fn action(&self) -> Result<Action> {
        let (device, space) = self.pool.place()?;
        if space == Space::Device {
            for i in 0..self.accesses {
                self.access.at(i)?.check_device(device)?;
            }
        }
        Action::alloc(self.bytes as u64, gpu(device)?.ordinal, space, 0)
    }

    /// The parameters of such a node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub fn of(action: &Action) -> Result<Alloc> {
        match action {
            Action::Alloc(a) => Ok(Alloc {
                pool: PoolProperties::of(a.block.device as i32, a.block.space),
                access: In(std::ptr::null()),
                accesses: 0,
                bytes: a.block.size as usize,
                addr: a.block.addr,
            }),
            _ => Err(CuError::INVALID_VALUE),
        }
    }
}

/// A child graph: a copy of `graph` where a node is added, the graph itself where one is compared.
///
/// # Errors
/// No such graph; graphs that cannot be cloned; taking the program's graph over is not served.
pub fn child(graph: u64, adding: bool, ownership: i32) -> Result<Action> {
    let graph = graph::get(graph)?;
    match (adding, ownership) {
        (false, _) => Ok(Action::Child(graph)),
        (true, 0) => graph.duplicate(true).map(Action::Child),
        // Taking the program's graph over, with its handle.
        (true, 1) => Err(CuError::NOT_SUPPORTED),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn add(out: Out<u64>, graph: u64, after: &[Dependency], action: Result<Action>) -> Result {
    out.check()?;
    let graph = graph::get(graph)?;
    out.set(graph.add(action?, Attributes::new(), after)?)
}

/// What `read` makes of a node's action.
///
/// # Errors
/// No such node; null; what `read` says.
pub fn get<T>(node: u64, out: Out<T>, read: impl FnOnce(&Action) -> Result<T>) -> Result {
    out.check()?;
    out.set(graph::with_node(node, |n| read(&n.action))?)
}

fn copy_of(action: &Action) -> Result<Copy3> {
    match action {
        Action::Memcpy(c, _) => Ok(*c),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn memset_of(action: &Action) -> Result<Memset> {
    match action {
        Action::Memset(m, _) => Ok(*m),
        _ => Err(CuError::INVALID_VALUE),
    }
}

fn event_of(action: &Action, wanted: u32) -> Result<u64> {
    match action {
        Action::EventWait(e) | Action::EventRecord(e) if action.kind() == wanted => Ok(e.handle),
        _ => Err(CuError::INVALID_VALUE),
    }
}

/// The context that a copy or memset node is in, which setting its parameters keeps.
fn context_of(node: u64) -> Result<u64> {
    graph::with_node(node, |n| match n.action {
        Action::Memcpy(_, context) | Action::Memset(_, context) => Ok(context),
        _ => Err(CuError::INVALID_VALUE),
    })
}

/// A value of an attribute where none was set.
fn default_attribute(id: u32) -> [u32; 16] {
    let mut value = [0; 16];
    match id {
        // CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP: {0, 1}; the carveout's -1 is "no preference".
        9 => value[0] = 1 << 8,
        14 => value[0] = u32::MAX,
        _ => {}
    }
    value
}

fn kernel_attribute(node: u64, id: u32) -> Result<[u32; 16]> {
    if !KERNEL_ATTRIBUTES.contains(&id) {
        return Err(CuError::INVALID_VALUE);
    }
    graph::with_node(node, |n| {
        let Action::Kernel(k) = &n.action else {
            return Err(CuError::INVALID_VALUE);
        };
        let set = n.attributes.get(&id).copied();
        Ok(set.unwrap_or_else(|| {
            let mut value = default_attribute(id);
            if id == COOPERATIVE {
                value[0] = u32::from(k.shape.cooperative);
            }
            value
        }))
    })
}

fn set_kernel_attribute(node: u64, id: u32, value: [u32; 16]) -> Result {
    if !KERNEL_ATTRIBUTES.contains(&id) {
        return Err(CuError::INVALID_VALUE);
    }
    // Clusters and updates from the device need a newer device.
    if matches!(id, 4 | 11) && value[..3].iter().any(|d| *d > 1) {
        return Err(CuError::INVALID_CLUSTER_SIZE);
    }
    if id == 13 && value[0] != 0 {
        return Err(CuError::NOT_SUPPORTED);
    }
    graph::with_node(node, |n| {
        if !matches!(n.action, Action::Kernel(_)) {
            return Err(CuError::INVALID_VALUE);
        }
        n.attributes.insert(id, value);
        Ok(())
    })
}

exports! {
    fn cuGraphAddKernelNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Kernel1>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphAddKernelNode_v2(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Kernel2>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphKernelNodeGetParams(node: u64, out: Out<Kernel1>) {
        get(node, out, Kernel1::of)
    }

    fn cuGraphKernelNodeGetParams_v2(node: u64, out: Out<Kernel2>) {
        get(node, out, Kernel2::of)
    }

    fn cuGraphKernelNodeSetParams(node: u64, params: In<Kernel1>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<Kernel2>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphKernelNodeGetAttribute(node: u64, id: u32, value: Out<[u32; 16]>) {
        value.check()?;
        value.set(kernel_attribute(node, id)?)
    }

    fn cuGraphKernelNodeSetAttribute(node: u64, id: u32, value: In<[u32; 16]>) {
        set_kernel_attribute(node, id, value.get()?)
    }

    fn cuGraphKernelNodeCopyAttributes(to: u64, from: u64) {
        let all = KERNEL_ATTRIBUTES.map(|id| kernel_attribute(from, id).map(|v| (id, v)));
        let all = all.into_iter().collect::<Result<Vec<_>>>()?;
        all.into_iter().try_for_each(|(id, value)| set_kernel_attribute(to, id, value))
    }

    fn cuGraphAddMemcpyNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Copy3>, context: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, Action::memcpy(&params.get()?, context))
    }

    fn cuGraphMemcpyNodeGetParams(node: u64, out: Out<Copy3>) {
        get(node, out, copy_of)
    }

    fn cuGraphMemcpyNodeSetParams(node: u64, params: In<Copy3>) {
        update::set_node(node, Action::memcpy(&params.get()?, context_of(node)?)?)
    }

    fn cuGraphAddMemsetNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Memset>, context: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, Action::memset(&params.get()?, context))
    }

    fn cuGraphMemsetNodeGetParams(node: u64, out: Out<Memset>) {
        get(node, out, memset_of)
    }

    fn cuGraphMemsetNodeSetParams(node: u64, params: In<Memset>) {
        update::set_node(node, Action::memset(&params.get()?, context_of(node)?)?)
    }

    fn cuGraphAddHostNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Host>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphHostNodeGetParams(node: u64, out: Out<Host>) {
        get(node, out, Host::of)
    }

    fn cuGraphHostNodeSetParams(node: u64, params: In<Host>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphAddChildGraphNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, of: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, child(of, true, 0))
    }

    fn cuGraphChildGraphNodeGetGraph(node: u64, out: Out<u64>) {
        get(node, out, |action| match action {
            Action::Child(g) => Ok(g.handle),
            _ => Err(CuError::INVALID_VALUE),
        })
    }

    fn cuGraphAddEmptyNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize) {
        add(out, graph, &dependencies(after, count)?, Ok(Action::Empty))
    }

    fn cuGraphAddEventRecordNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, event::get(event).map(Action::EventRecord))
    }

    fn cuGraphEventRecordNodeGetEvent(node: u64, out: Out<u64>) {
        get(node, out, |action| event_of(action, kind::EVENT_RECORD))
    }

    fn cuGraphEventRecordNodeSetEvent(node: u64, event: u64) {
        update::set_node(node, Action::EventRecord(event::get(event)?))
    }

    fn cuGraphAddEventWaitNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, event: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, event::get(event).map(Action::EventWait))
    }

    fn cuGraphEventWaitNodeGetEvent(node: u64, out: Out<u64>) {
        get(node, out, |action| event_of(action, kind::WAIT_EVENT))
    }

    fn cuGraphEventWaitNodeSetEvent(node: u64, event: u64) {
        update::set_node(node, Action::EventWait(event::get(event)?))
    }

    fn cuGraphAddBatchMemOpNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Batch>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphBatchMemOpNodeGetParams(node: u64, out: Out<Batch>) {
        get(node, out, Batch::of)
    }

    fn cuGraphBatchMemOpNodeSetParams(node: u64, params: In<Batch>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphAddMemAllocNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: Out<Alloc>,
    ) {
        let mut given = In(params.0.cast_const()).get()?;
        out.check()?;
        let action = given.action()?;
        given.addr = Alloc::of(&action)?.addr;
        add(out, graph, &dependencies(after, count)?, Ok(action))?;
        params.set(given)
    }

    fn cuGraphMemAllocNodeGetParams(node: u64, out: Out<Alloc>) {
        get(node, out, Alloc::of)
    }

    fn cuGraphAddMemFreeNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, addr: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, Action::free(addr))
    }

    fn cuGraphMemFreeNodeGetParams(node: u64, out: Out<u64>) {
        get(node, out, |action| match action {
            Action::Free(block) => Ok(block.addr),
            _ => Err(CuError::INVALID_VALUE),
        })
    }

    fn cuGraphNodeGetType(node: u64, out: Out<u32>) {
        get(node, out, |action| Ok(action.kind()))
    }

    fn cuGraphNodeGetContainingGraph(node: u64, out: Out<u64>) {
        out.set(graph::of_node(node)?.handle)
    }

    fn cuGraphNodeGetLocalId(node: u64, out: Out<u32>) {
        out.check()?;
        out.set(graph::with_node(node, |n| Ok(n.local))?)
    }

    fn cuGraphNodeGetToolsId(node: u64, out: Out<u64>) {
        out.check()?;
        let graph = graph::of_node(node)?;
        let local = graph::with_node(node, |n| Ok(n.local))?;
        out.set(u64::from(graph.id) << 32 | u64::from(local))
    }
}
