//! What nodes of graphs do: kernels, fills, copies, host functions. Others are in `graph_events`,
//! `graph_memory` and `graph_params`.

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
use crate::process::{live, shim};
use crate::session::host::HostFunction;
use crate::state::Shim;
use crate::state::contexts::Context;
use crate::state::graphs::{FillNode, Kind, update};
use crate::{Cu, lock};

/// A fill as a program is shown it.
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

/// A host function as a program is shown it.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for a node of another kind, or one from `cuStreamAddCallback`.
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
    /// A launch.
    fn cuGraphAddKernelNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<KernelNodeParams>
    ) {
        add(out, graph, (behind, count), || kernel(&params.get()?))
    }

    /// A launch.
    fn cuGraphAddKernelNode_v2(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<KernelNodeParams2>
    ) {
        add(out, graph, (behind, count), || kernel2(&params.get()?))
    }

    /// A fill.
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

    /// A copy.
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

    /// A function of the program.
    fn cuGraphAddHostNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: In<HostNodeParams>
    ) {
        add(out, graph, (behind, count), || host(&params.get()?))
    }

    /// The launch; its parameters may be looked at while the node is.
    fn cuGraphKernelNodeGetParams(node: u64, out: Out<KernelNodeParams>) {
        let params = shown_kernel(&lock(&shim()?.node(node)?.kind))?;
        out.set(params.base)
    }

    /// The launch; its parameters may be looked at while the node is.
    fn cuGraphKernelNodeGetParams_v2(node: u64, out: Out<KernelNodeParams2>) {
        let params = shown_kernel(&lock(&shim()?.node(node)?.kind))?;
        out.set(params)
    }

    /// Sets the launch.
    fn cuGraphKernelNodeSetParams(node: u64, params: In<KernelNodeParams>) {
        set(live()?, node, kernel(&params.get()?)?)
    }

    /// Sets the launch.
    fn cuGraphKernelNodeSetParams_v2(node: u64, params: In<KernelNodeParams2>) {
        set(live()?, node, kernel2(&params.get()?)?)
    }

    /// The fill.
    fn cuGraphMemsetNodeGetParams(node: u64, out: Out<MemsetNodeParams>) {
        let Kind::Fill(fill) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(shown_fill(&fill))
    }

    /// Sets the fill.
    fn cuGraphMemsetNodeSetParams(node: u64, params: In<MemsetNodeParams>) {
        set(live()?, node, fill(&params.get()?, 0)?)
    }

    /// The copy.
    fn cuGraphMemcpyNodeGetParams(node: u64, out: Out<Copy3D>) {
        let Kind::Copy(copy) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        out.set(copy)
    }

    /// Sets the copy.
    fn cuGraphMemcpyNodeSetParams(node: u64, params: In<Copy3D>) {
        set(live()?, node, copy(&params.get()?, 0)?)
    }

    /// The function.
    fn cuGraphHostNodeGetParams(node: u64, out: Out<HostNodeParams>) {
        let params = shown_host(&lock(&shim()?.node(node)?.kind))?;
        out.set(params)
    }

    /// Sets the function.
    fn cuGraphHostNodeSetParams(node: u64, params: In<HostNodeParams>) {
        set(live()?, node, host(&params.get()?)?)
    }

    /// In what was made of a graph.
    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, params: In<KernelNodeParams>) {
        set_in(live()?, exec, node, kernel(&params.get()?)?)
    }

    /// In what was made of a graph.
    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: In<KernelNodeParams2>) {
        set_in(live()?, exec, node, kernel2(&params.get()?)?)
    }

    /// In what was made of a graph.
    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, params: In<MemsetNodeParams>, ctx: u64) {
        set_in(live()?, exec, node, fill(&params.get()?, ctx)?)
    }

    /// In what was made of a graph.
    fn cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, params: In<Copy3D>, ctx: u64) {
        set_in(live()?, exec, node, copy(&params.get()?, ctx)?)
    }

    /// In what was made of a graph.
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

/// The context that a handle names; null means the current one.
fn context(shim: &Shim, ctx: u64) -> Cu<Arc<Context>> {
    shim.contexts.named(ctx)
}

/// A launch.
fn kernel(params: &KernelNodeParams) -> Cu<Kind> {
    make_kernel(params, params.function, 0)
}

/// A launch, of a kernel or a function.
///
/// # Errors
/// Those of a launch.
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

/// A launch as a program is shown it; its parameters may be looked at while the node is.
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
            // SAFETY: a pointer to each parameter, for as long as the node is.
            params: unsafe { In::new(kernel.pointers.as_ptr().cast()) },
            extra: In::NULL,
        },
        kernel: if is_kernel { kernel.handle } else { 0 },
        context: shim()?.contexts.shown(kernel.function.ctx.0),
    })
}

/// A fill.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for memory that is not the device's, or other elements.
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

/// A copy.
///
/// # Errors
/// Those of a copy.
pub(crate) fn copy(copy: &Copy3D, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    context(shim, ctx)?;
    check(shim, copy)?;
    Ok(Kind::Copy(*copy))
}

/// A call of a function of the program.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE without a function.
pub(crate) fn host(params: &HostNodeParams) -> Cu<Kind> {
    let function = params.function.ok_or(CuResult::INVALID_VALUE)?;
    Ok(Kind::Host(HostFunction::Plain(function, params.data)))
}
