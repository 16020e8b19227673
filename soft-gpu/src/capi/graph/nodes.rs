//! Nodes of graphs: creation by type, reading and changing their parameters.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::launch_attribute::COOPERATIVE;
use vgpu_cuda_abi::numbers::node as kind;
use vgpu_cuda_abi::structs::{
    AllocNodeParams, AttributeValue, BatchNodeParams, Copy3D, HostNodeParams, KernelNodeParams,
    KernelNodeParams2, MemsetNodeParams,
};

use crate::capi::execution::launch::parameters;
use crate::capi::graph::graphs::dependencies;
use crate::capi::pool::{place_of, properties};
use crate::capi::stream::word::operations;
use crate::capi::vmm::check_device;
use crate::driver::callback::HostCall;
use crate::driver::error::Result;
use crate::driver::graph::block::Space;
use crate::driver::graph::node::{Action, Attributes, Dependency, KERNEL_ATTRIBUTES};
use crate::driver::graph::{self, update};
use crate::driver::launch::Shape;
use crate::driver::memop::Operation as _;
use crate::driver::{context, event, gpu, green, module};

/// The parameter structure of one type of node.
pub trait Params: Sized {
    /// The operation of a node with these parameters.
    ///
    /// # Errors
    /// As the function that adds such a node.
    fn action(&self) -> Result<Action>;

    /// The parameters of an operation.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an operation of another type.
    fn of(action: &Action) -> Result<Self>;
}

fn launch(params: &KernelNodeParams, handle: u64) -> Result<Action> {
    let f = module::function(handle)?;
    let shape = Shape {
        part: green::current_part(),
        ..Shape::new(params.grid, params.block, params.shared)
    };
    let block = parameters(&f, params.params, params.extra)?;
    Action::kernel(f, handle, shape, block)
}

impl Params for KernelNodeParams {
    fn action(&self) -> Result<Action> {
        launch(self, self.function)
    }

    fn of(action: &Action) -> Result<Self> {
        let Action::Kernel(k) = action else {
            return Err(CuResult::INVALID_VALUE);
        };
        Ok(KernelNodeParams {
            function: k.function.handle,
            grid: k.shape.grid,
            block: k.shape.block,
            shared: k.shape.shared,
            // SAFETY: the array has one pointer per parameter and lives as long as the node.
            params: unsafe { In::new(k.params.pointers().cast()) },
            extra: In::NULL,
        })
    }
}

impl Params for KernelNodeParams2 {
    fn action(&self) -> Result<Action> {
        if self.context != 0 {
            context::get(self.context)?;
        }
        match (self.base.function, self.kernel) {
            (0, 0) => Err(CuResult::INVALID_VALUE),
            (0, kernel) => launch(&self.base, kernel),
            (func, _) => launch(&self.base, func),
        }
    }

    fn of(action: &Action) -> Result<Self> {
        let base = KernelNodeParams::of(action)?;
        let Action::Kernel(k) = action else {
            return Err(CuResult::INVALID_VALUE);
        };
        Ok(KernelNodeParams2 {
            base,
            kernel: if k.named == base.function { 0 } else { k.named },
            context: k.function.module.context,
        })
    }
}

impl Params for HostNodeParams {
    fn action(&self) -> Result<Action> {
        HostCall::new(self.function, self.data as *mut c_void).map(Action::Host)
    }

    fn of(action: &Action) -> Result<Self> {
        match action {
            Action::Host(h) => Ok(HostNodeParams {
                function: Some(h.call),
                data: h.data as usize,
            }),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

impl Params for BatchNodeParams {
    fn action(&self) -> Result<Action> {
        let context = match self.context {
            0 => context::current()?.handle,
            given => context::get(given)?.handle,
        };
        let ops = operations(self.count, self.operations, self.flags)?;
        let later = crate::driver::copy::Planned::Later;
        ops.iter().try_for_each(|op| op.check(later))?;
        Ok(Action::MemOps(ops.into(), context))
    }

    fn of(action: &Action) -> Result<Self> {
        match action {
            Action::MemOps(ops, context) => Ok(BatchNodeParams {
                context: *context,
                count: ops.len() as u32,
                // SAFETY: the list lives as long as the node.
                operations: unsafe { In::new(ops.as_ptr()) },
                flags: 0,
            }),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

impl Params for AllocNodeParams {
    fn action(&self) -> Result<Action> {
        let (device, space) = place_of(&self.pool)?;
        if space == Space::Device {
            for i in 0..self.accesses {
                check_device(&self.access.at(i)?, device)?;
            }
        }
        Action::alloc(self.bytes as u64, gpu(device)?.ordinal, space, 0)
    }

    fn of(action: &Action) -> Result<Self> {
        match action {
            Action::Alloc(a) => Ok(AllocNodeParams {
                pool: properties(a.block.device as i32, a.block.space),
                access: In::NULL,
                accesses: 0,
                bytes: a.block.size as usize,
                address: a.block.addr,
            }),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// The operation of a child graph node. If the node is being added, the operation holds a copy of
/// `graph`; otherwise (for a comparison) the operation holds `graph` itself.
///
/// # Errors
/// An unknown graph; a graph that cannot be cloned; CUDA_ERROR_NOT_SUPPORTED if the program wants
/// to move its graph into the node.
pub fn child(graph: u64, adding: bool, ownership: u32) -> Result<Action> {
    let graph = graph::get(graph)?;
    match (adding, ownership) {
        (false, _) => Ok(Action::Child(graph)),
        (true, 0) => graph.duplicate(true).map(Action::Child),
        // 1 is CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE: the node takes over the program's graph and
        // handle.
        (true, 1) => Err(CuResult::NOT_SUPPORTED),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn add(out: Out<u64>, graph: u64, after: &[Dependency], action: Result<Action>) -> Result {
    out.check()?;
    let graph = graph::get(graph)?;
    out.set(graph.add(action?, Attributes::new(), after)?)
}

/// Calls `read` with the operation of a node, and writes the result to `out`.
///
/// # Errors
/// An unknown node; a null `out`; errors of `read`.
pub fn get<T>(node: u64, out: Out<T>, read: impl FnOnce(&Action) -> Result<T>) -> Result {
    out.check()?;
    out.set(graph::with_node(node, |n| read(&n.action))?)
}

fn copy_of(action: &Action) -> Result<Copy3D> {
    match action {
        Action::Memcpy(c, _) => Ok(*c),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn memset_of(action: &Action) -> Result<MemsetNodeParams> {
    match action {
        Action::Memset(m, _) => Ok(*m),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn event_of(action: &Action, wanted: u32) -> Result<u64> {
    match action {
        Action::EventWait(e) | Action::EventRecord(e) if action.kind() == wanted => Ok(e.handle),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// The context of a copy or memset node. New parameters of the node leave the context unchanged.
fn context_of(node: u64) -> Result<u64> {
    graph::with_node(node, |n| match n.action {
        Action::Memcpy(_, context) | Action::Memset(_, context) => Ok(context),
        _ => Err(CuResult::INVALID_VALUE),
    })
}

/// The default value of a launch attribute of a kernel node.
fn default_attribute(id: u32) -> AttributeValue {
    let mut value = [0; 16];
    match id {
        // The default of CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP (9) is {0, 1}. The default of the
        // shared memory carveout (14) is -1, no preference.
        9 => value[0] = 1 << 8,
        14 => value[0] = u32::MAX,
        _ => {}
    }
    value
}

fn kernel_attribute(node: u64, id: u32) -> Result<AttributeValue> {
    if !KERNEL_ATTRIBUTES.contains(&id) {
        return Err(CuResult::INVALID_VALUE);
    }
    graph::with_node(node, |n| {
        let Action::Kernel(k) = &n.action else {
            return Err(CuResult::INVALID_VALUE);
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

fn set_kernel_attribute(node: u64, id: u32, value: AttributeValue) -> Result {
    if !KERNEL_ATTRIBUTES.contains(&id) {
        return Err(CuResult::INVALID_VALUE);
    }
    // Attributes of clusters (4, 11) and updates from the device (13) are not served.
    if matches!(id, 4 | 11) && value[..3].iter().any(|d| *d > 1) {
        return Err(CuResult::INVALID_CLUSTER_SIZE);
    }
    if id == 13 && value[0] != 0 {
        return Err(CuResult::NOT_SUPPORTED);
    }
    graph::with_node(node, |n| {
        if !matches!(n.action, Action::Kernel(_)) {
            return Err(CuResult::INVALID_VALUE);
        }
        n.attributes.insert(id, value);
        Ok(())
    })
}

exports! {
    fn cuGraphAddKernelNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<KernelNodeParams>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphAddKernelNode_v2(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<KernelNodeParams2>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphKernelNodeGetParams(node: u64, out: Out<KernelNodeParams>) {
        get(node, out, KernelNodeParams::of)
    }

    fn cuGraphKernelNodeGetParams_v2(node: u64, out: Out<KernelNodeParams2>) {
        get(node, out, KernelNodeParams2::of)
    }

    fn cuGraphKernelNodeSetParams(node: u64, params: In<KernelNodeParams>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<KernelNodeParams2>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphKernelNodeGetAttribute(node: u64, id: u32, value: Out<AttributeValue>) {
        value.check()?;
        value.set(kernel_attribute(node, id)?)
    }

    fn cuGraphKernelNodeSetAttribute(node: u64, id: u32, value: In<AttributeValue>) {
        set_kernel_attribute(node, id, value.get()?)
    }

    fn cuGraphKernelNodeCopyAttributes(to: u64, from: u64) {
        let all = KERNEL_ATTRIBUTES.map(|id| kernel_attribute(from, id).map(|v| (id, v)));
        let all = all.into_iter().collect::<Result<Vec<_>>>()?;
        all.into_iter().try_for_each(|(id, value)| set_kernel_attribute(to, id, value))
    }

    fn cuGraphAddMemcpyNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<Copy3D>, context: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, Action::memcpy(&params.get()?, context))
    }

    fn cuGraphMemcpyNodeGetParams(node: u64, out: Out<Copy3D>) {
        get(node, out, copy_of)
    }

    fn cuGraphMemcpyNodeSetParams(node: u64, params: In<Copy3D>) {
        update::set_node(node, Action::memcpy(&params.get()?, context_of(node)?)?)
    }

    fn cuGraphAddMemsetNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<MemsetNodeParams>, context: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, Action::memset(&params.get()?, context))
    }

    fn cuGraphMemsetNodeGetParams(node: u64, out: Out<MemsetNodeParams>) {
        get(node, out, memset_of)
    }

    fn cuGraphMemsetNodeSetParams(node: u64, params: In<MemsetNodeParams>) {
        update::set_node(node, Action::memset(&params.get()?, context_of(node)?)?)
    }

    fn cuGraphAddHostNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<HostNodeParams>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphHostNodeGetParams(node: u64, out: Out<HostNodeParams>) {
        get(node, out, HostNodeParams::of)
    }

    fn cuGraphHostNodeSetParams(node: u64, params: In<HostNodeParams>) {
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
            _ => Err(CuResult::INVALID_VALUE),
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
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: In<BatchNodeParams>,
    ) {
        add(out, graph, &dependencies(after, count)?, params.get()?.action())
    }

    fn cuGraphBatchMemOpNodeGetParams(node: u64, out: Out<BatchNodeParams>) {
        get(node, out, BatchNodeParams::of)
    }

    fn cuGraphBatchMemOpNodeSetParams(node: u64, params: In<BatchNodeParams>) {
        update::set_node(node, params.get()?.action()?)
    }

    fn cuGraphAddMemAllocNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: Out<AllocNodeParams>,
    ) {
        let mut given = params.get()?;
        out.check()?;
        let action = given.action()?;
        given.address = AllocNodeParams::of(&action)?.address;
        add(out, graph, &dependencies(after, count)?, Ok(action))?;
        params.set(given)
    }

    fn cuGraphMemAllocNodeGetParams(node: u64, out: Out<AllocNodeParams>) {
        get(node, out, AllocNodeParams::of)
    }

    fn cuGraphAddMemFreeNode(
        out: Out<u64>, graph: u64, after: In<u64>, count: usize, addr: u64,
    ) {
        add(out, graph, &dependencies(after, count)?, Action::free(addr))
    }

    fn cuGraphMemFreeNodeGetParams(node: u64, out: Out<u64>) {
        get(node, out, |action| match action {
            Action::Free(block) => Ok(block.addr),
            _ => Err(CuResult::INVALID_VALUE),
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
