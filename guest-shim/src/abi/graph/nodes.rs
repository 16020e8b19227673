//! Nodes for kernels, fills, copies and host functions. The other kinds of nodes are in `events`,
//! `memory` and `params`.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::structs::{
    Copy3D, HostNodeParams, KernelNodeParams, KernelNodeParams2, MemsetNodeParams,
};

use crate::abi::graph::graphs::add;
use crate::ffi::exports;
use crate::ops::area::check;
use crate::ops::fill::Area;
use crate::ops::launch;
use crate::session::host::HostFunction;
use crate::state::Shim;
use crate::state::contexts::Context;
use crate::state::current::{live, shim};
use crate::state::graphs::{FillNode, Kind, update};
use crate::{Cu, lock};

/// A fill as the structure that programs see.
pub(crate) fn shown_fill(fill: &FillNode) -> MemsetNodeParams {
    MemsetNodeParams {
        dst: fill.dst,
        pitch: fill.pitch as usize,
        value: fill.value,
        element: fill.width.into(),
        width: fill.columns as usize,
        height: fill.rows as usize,
    }
}

/// A host function as the structure that programs see.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a node of another kind, or a node from `cuStreamAddCallback`.
pub(crate) fn shown_host(kind: &Kind) -> Cu<HostNodeParams> {
    match kind {
        Kind::Host(HostFunction::Plain(function, data)) => Ok(HostNodeParams {
            function: Some(*function),
            data: *data,
        }),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

exports! {
    /// Adds a kernel node.
    fn cuGraphAddKernelNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<KernelNodeParams>
    ) {
        add(out, graph, (behind, count), || kernel(&params.get()?))
    }

    /// Adds a kernel node.
    fn cuGraphAddKernelNode_v2(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<KernelNodeParams2>
    ) {
        add(out, graph, (behind, count), || kernel2(&params.get()?))
    }

    /// Adds a fill node.
    fn cuGraphAddMemsetNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<MemsetNodeParams>,
        ctx: u64
    ) {
        add(out, graph, (behind, count), || fill(&params.get()?, ctx))
    }

    /// Adds a copy node.
    fn cuGraphAddMemcpyNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<Copy3D>,
        ctx: u64
    ) {
        add(out, graph, (behind, count), || copy(&params.get()?, ctx))
    }

    /// Adds a host node.
    fn cuGraphAddHostNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<HostNodeParams>
    ) {
        add(out, graph, (behind, count), || host(&params.get()?))
    }

    /// The launch of the node. The pointers to parameters are valid while the node exists.
    fn cuGraphKernelNodeGetParams(node: u64, out: Out<KernelNodeParams>) {
        let params = shown_kernel(&lock(&shim()?.node(node)?.kind))?;
        out.set(params.base)
    }

    /// The launch of the node. The pointers to parameters are valid while the node exists.
    fn cuGraphKernelNodeGetParams_v2(node: u64, out: Out<KernelNodeParams2>) {
        let params = shown_kernel(&lock(&shim()?.node(node)?.kind))?;
        out.set(params)
    }

    /// Sets the launch of the node.
    fn cuGraphKernelNodeSetParams(node: u64, params: In<KernelNodeParams>) {
        set(live()?, node, kernel(&params.get()?)?)
    }

    /// Sets the launch of the node.
    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<KernelNodeParams2>) {
        set(live()?, node, kernel2(&params.get()?)?)
    }

    /// The fill of the node.
    fn cuGraphMemsetNodeGetParams(node: u64, out: Out<MemsetNodeParams>) {
        let Kind::Fill(fill) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(shown_fill(&fill))
    }

    /// Sets the fill of the node.
    fn cuGraphMemsetNodeSetParams(node: u64, params: In<MemsetNodeParams>) {
        set(live()?, node, fill(&params.get()?, 0)?)
    }

    /// The copy of the node.
    fn cuGraphMemcpyNodeGetParams(node: u64, out: Out<Copy3D>) {
        let Kind::Copy(copy) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(copy)
    }

    /// Sets the copy of the node.
    fn cuGraphMemcpyNodeSetParams(node: u64, params: In<Copy3D>) {
        set(live()?, node, copy(&params.get()?, 0)?)
    }

    /// The host function of the node.
    fn cuGraphHostNodeGetParams(node: u64, out: Out<HostNodeParams>) {
        let params = shown_host(&lock(&shim()?.node(node)?.kind))?;
        out.set(params)
    }

    /// Sets the host function of the node.
    fn cuGraphHostNodeSetParams(node: u64, params: In<HostNodeParams>) {
        set(live()?, node, host(&params.get()?)?)
    }

    /// Sets the launch of the node in an instance.
    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, params: In<KernelNodeParams>) {
        set_in(live()?, exec, node, kernel(&params.get()?)?)
    }

    /// Sets the launch of the node in an instance.
    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: In<KernelNodeParams2>) {
        set_in(live()?, exec, node, kernel2(&params.get()?)?)
    }

    /// Sets the fill of the node in an instance.
    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, params: In<MemsetNodeParams>, ctx: u64) {
        set_in(live()?, exec, node, fill(&params.get()?, ctx)?)
    }

    /// Sets the copy of the node in an instance.
    fn cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, params: In<Copy3D>, ctx: u64) {
        set_in(live()?, exec, node, copy(&params.get()?, ctx)?)
    }

    /// Sets the host function of the node in an instance.
    fn cuGraphExecHostNodeSetParams(exec: u64, node: u64, params: In<HostNodeParams>) {
        set_in(live()?, exec, node, host(&params.get()?)?)
    }
}

fn set(shim: &Shim, node: u64, kind: Kind) -> Cu {
    update::set_node(shim, node, kind)
}

fn set_in(shim: &Shim, exec: u64, node: u64, kind: Kind) -> Cu {
    crate::abi::graph::exec::find(shim, exec)?.set(shim, node, kind)
}

/// The context with this handle; null means the current context.
fn context(shim: &Shim, ctx: u64) -> Cu<Arc<Context>> {
    shim.contexts.named(ctx)
}

/// Checks the parameters of a launch and makes the work of a kernel node from the parameters.
fn kernel(params: &KernelNodeParams) -> Cu<Kind> {
    make_kernel(params, params.function, 0)
}

/// As `kernel`, for a launch of a kernel or a function.
///
/// # Errors
/// The errors of a launch.
pub(crate) fn kernel2(params: &KernelNodeParams2) -> Cu<Kind> {
    let handle = match params.base.function {
        0 => params.kernel,
        function => function,
    };
    make_kernel(&params.base, handle, params.context)
}

fn make_kernel(params: &KernelNodeParams, handle: u64, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    let context = context(shim, ctx)?;
    let shape = (params.grid, params.block, params.shared);
    let lists = (params.params, params.extra);
    let node = launch::node(shim, &context, handle, shape, lists)?;
    Ok(Kind::Kernel(Arc::new(node)))
}

/// A launch as the structure that programs see. The pointers to parameters are valid while the node
/// exists.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a node of another kind.
pub(crate) fn shown_kernel(kind: &Kind) -> Cu<KernelNodeParams2> {
    let Kind::Kernel(kernel) = kind else {
        return Err(CuResult::INVALID_VALUE);
    };
    let is_kernel = crate::state::libraries::is_kernel(kernel.handle);
    Ok(KernelNodeParams2 {
        base: KernelNodeParams {
            function: if is_kernel { 0 } else { kernel.handle },
            grid: kernel.grid,
            block: kernel.block,
            shared: kernel.shared,
            // SAFETY: a pointer to each parameter, valid while the node exists.
            params: unsafe { In::new(kernel.pointers.as_ptr().cast()) },
            extra: In::NULL,
        },
        kernel: if is_kernel { kernel.handle } else { 0 },
        context: shim()?.contexts.shown(kernel.function.ctx.0),
    })
}

/// Checks the parameters of a fill and makes the work of a fill node from the parameters.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for memory that is not device memory, or for an invalid element size.
pub(crate) fn fill(params: &MemsetNodeParams, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    context(shim, ctx)?;
    let width = match params.element {
        1 | 2 | 4 => params.element as u8,
        _ => return Err(CuResult::INVALID_VALUE),
    };
    let area = Area {
        dst: params.dst,
        pitch: params.pitch,
        columns: params.width,
        rows: params.height,
    };
    if params.width > 0 && params.height > 0 {
        area.check(shim, width).ok_or(CuResult::INVALID_VALUE)?;
    }
    Ok(Kind::Fill(FillNode {
        dst: params.dst,
        pitch: params.pitch as u64,
        value: params.value,
        width,
        columns: params.width as u64,
        rows: params.height as u64,
    }))
}

/// Checks the parameters of a copy and makes the work of a copy node from the parameters.
///
/// # Errors
/// The errors of a copy.
pub(crate) fn copy(copy: &Copy3D, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    context(shim, ctx)?;
    check(shim, copy)?;
    Ok(Kind::Copy(*copy))
}

/// Makes the work of a node of a host function.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE if the function is null.
pub(crate) fn host(params: &HostNodeParams) -> Cu<Kind> {
    let function = params.function.ok_or(CuResult::INVALID_VALUE)?;
    Ok(Kind::Host(HostFunction::Plain(function, params.data)))
}
