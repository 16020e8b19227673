//! What nodes of graphs do: kernels, fills, copies, host functions. Others are in `graph_events`,
//! `graph_memory` and `graph_params`.

use std::ffi::c_void;
use std::sync::Arc;

use vgpu_proto::cuda::CuResult;

use super::area::{Copy3D, check};
use super::graph::add;
use super::launch;
use super::memset::Area;
use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::session::host::{HostFn, HostFunction};
use crate::state::Shim;
use crate::state::contexts::Context;
use crate::state::graphs::{FillNode, Kind, update};
use crate::{Cu, lock};

/// `CUDA_KERNEL_NODE_PARAMS` of the first form.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParams {
    function: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *const *const c_void,
    extra: *const *const c_void,
}

/// Of the second: a kernel instead of a function, and a context.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct KernelParams2 {
    first: KernelParams,
    kernel: u64,
    ctx: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct FillParams {
    dst: u64,
    pitch: usize,
    value: u32,
    element: u32,
    width: usize,
    height: usize,
}

impl FillParams {
    /// As a program is shown it.
    pub(super) fn of(fill: &FillNode) -> FillParams {
        FillParams {
            dst: fill.dst,
            pitch: fill.pitch as usize,
            value: fill.value,
            element: fill.width.into(),
            width: fill.columns as usize,
            height: fill.rows as usize,
        }
    }
}

/// `CUDA_HOST_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct HostParams {
    function: Option<HostFn>,
    data: *mut c_void,
}

impl HostParams {
    /// As a program is shown it.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind, or one from `cuStreamAddCallback`.
    pub(super) fn of(kind: &Kind) -> Cu<HostParams> {
        match kind {
            Kind::Host(HostFunction::Plain(function, data)) => Ok(HostParams {
                function: Some(*function),
                data: *data as *mut c_void,
            }),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

exports! {
    /// A launch.
    fn cuGraphAddKernelNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *const KernelParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || kernel(params)) }
    }

    /// A launch.
    fn cuGraphAddKernelNode_v2(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *const KernelParams2
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || kernel2(params)) }
    }

    /// A fill.
    fn cuGraphAddMemsetNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *const FillParams,
        ctx: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || fill(params, ctx)) }
    }

    /// A copy.
    fn cuGraphAddMemcpyNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *const Copy3D,
        ctx: u64
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || copy(params, ctx)) }
    }

    /// A function of the program.
    fn cuGraphAddHostNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *const HostParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || host(params)) }
    }

    /// The launch; its parameters may be looked at while the node is.
    fn cuGraphKernelNodeGetParams(node: u64, out: *mut KernelParams) {
        let params = KernelParams2::of(&lock(&shim()?.node(node)?.kind))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, params.first) }
    }

    /// The launch; its parameters may be looked at while the node is.
    fn cuGraphKernelNodeGetParams_v2(node: u64, out: *mut KernelParams2) {
        let params = KernelParams2::of(&lock(&shim()?.node(node)?.kind))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, params) }
    }

    /// Sets the launch.
    fn cuGraphKernelNodeSetParams(node: u64, params: *const KernelParams) {
        // SAFETY: by the contract of the function.
        set(live()?, node, unsafe { kernel(params) }?)
    }

    /// Sets the launch.
    fn cuGraphKernelNodeSetParams_v2(node: u64, params: *const KernelParams2) {
        // SAFETY: by the contract of the function.
        set(live()?, node, unsafe { kernel2(params) }?)
    }

    /// The fill.
    fn cuGraphMemsetNodeGetParams(node: u64, out: *mut FillParams) {
        let Kind::Fill(fill) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, FillParams::of(&fill)) }
    }

    /// Sets the fill.
    fn cuGraphMemsetNodeSetParams(node: u64, params: *const FillParams) {
        // SAFETY: by the contract of the function.
        set(live()?, node, unsafe { fill(params, 0) }?)
    }

    /// The copy.
    fn cuGraphMemcpyNodeGetParams(node: u64, out: *mut Copy3D) {
        let Kind::Copy(copy) = *lock(&shim()?.node(node)?.kind) else {
            return Err(CuResult::INVALID_VALUE);
        };
        // SAFETY: by the contract of the function.
        unsafe { put(out, copy) }
    }

    /// Sets the copy.
    fn cuGraphMemcpyNodeSetParams(node: u64, params: *const Copy3D) {
        // SAFETY: by the contract of the function.
        set(live()?, node, unsafe { copy(params, 0) }?)
    }

    /// The function.
    fn cuGraphHostNodeGetParams(node: u64, out: *mut HostParams) {
        let params = HostParams::of(&lock(&shim()?.node(node)?.kind))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, params) }
    }

    /// Sets the function.
    fn cuGraphHostNodeSetParams(node: u64, params: *const HostParams) {
        // SAFETY: by the contract of the function.
        set(live()?, node, unsafe { host(params) }?)
    }

    /// In what was made of a graph.
    fn cuGraphExecKernelNodeSetParams(exec: u64, node: u64, params: *const KernelParams) {
        // SAFETY: by the contract of the function.
        set_in(live()?, exec, node, unsafe { kernel(params) }?)
    }

    /// In what was made of a graph.
    fn cuGraphExecKernelNodeSetParams_v2(exec: u64, node: u64, params: *const KernelParams2) {
        // SAFETY: by the contract of the function.
        set_in(live()?, exec, node, unsafe { kernel2(params) }?)
    }

    /// In what was made of a graph.
    fn cuGraphExecMemsetNodeSetParams(exec: u64, node: u64, params: *const FillParams, ctx: u64) {
        // SAFETY: by the contract of the function.
        set_in(live()?, exec, node, unsafe { fill(params, ctx) }?)
    }

    /// In what was made of a graph.
    fn cuGraphExecMemcpyNodeSetParams(exec: u64, node: u64, params: *const Copy3D, ctx: u64) {
        // SAFETY: by the contract of the function.
        set_in(live()?, exec, node, unsafe { copy(params, ctx) }?)
    }

    /// In what was made of a graph.
    fn cuGraphExecHostNodeSetParams(exec: u64, node: u64, params: *const HostParams) {
        // SAFETY: by the contract of the function.
        set_in(live()?, exec, node, unsafe { host(params) }?)
    }
}

fn set(shim: &Shim, node: u64, kind: Kind) -> Cu {
    update::set_node(shim, node, kind)
}

fn set_in(shim: &Shim, exec: u64, node: u64, kind: Kind) -> Cu {
    super::graph_exec::find(shim, exec)?.set(shim, node, kind)
}

/// The context that a handle names; null means the current one.
fn context(shim: &Shim, ctx: u64) -> Cu<Arc<Context>> {
    shim.contexts.named(ctx)
}

/// # Safety
/// `params` is null or readable, and what it points to is as the function's layout asks.
unsafe fn kernel(params: *const KernelParams) -> Cu<Kind> {
    // SAFETY: by this function's contract.
    let params = unsafe { params.as_ref() }.ok_or(CuResult::INVALID_VALUE)?;
    // SAFETY: by this function's contract.
    unsafe { make_kernel(params, params.function, 0) }
}

/// # Safety
/// As [`kernel`].
pub(super) unsafe fn kernel2(params: *const KernelParams2) -> Cu<Kind> {
    // SAFETY: by this function's contract.
    let params = unsafe { params.as_ref() }.ok_or(CuResult::INVALID_VALUE)?;
    let handle = match params.first.function {
        0 => params.kernel,
        function => function,
    };
    // SAFETY: by this function's contract.
    unsafe { make_kernel(&params.first, handle, params.ctx) }
}

/// # Safety
/// As [`kernel`].
unsafe fn make_kernel(params: &KernelParams, handle: u64, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    let context = context(shim, ctx)?;
    let shape = (params.grid, params.block, params.shared);
    let lists = (params.params, params.extra);
    // SAFETY: by this function's contract.
    let node = unsafe { launch::node(shim, &context, handle, shape, lists) }?;
    Ok(Kind::Kernel(Arc::new(node)))
}

impl KernelParams2 {
    /// As a program is shown it; its parameters may be looked at while the node is.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another kind.
    pub(super) fn of(kind: &Kind) -> Cu<KernelParams2> {
        let Kind::Kernel(kernel) = kind else {
            return Err(CuResult::INVALID_VALUE);
        };
        let is_kernel = crate::state::libraries::is_kernel(kernel.handle);
        Ok(KernelParams2 {
            first: KernelParams {
                function: if is_kernel { 0 } else { kernel.handle },
                grid: kernel.grid,
                block: kernel.block,
                shared: kernel.shared,
                params: kernel.pointers.as_ptr().cast(),
                extra: std::ptr::null(),
            },
            kernel: if is_kernel { kernel.handle } else { 0 },
            ctx: shim()?.contexts.shown(kernel.function.ctx.0),
        })
    }
}

/// # Safety
/// `params` is null or readable.
pub(super) unsafe fn fill(params: *const FillParams, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    context(shim, ctx)?;
    required(params)?;
    // SAFETY: by this function's contract.
    let params = unsafe { params.read_unaligned() };
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

/// # Safety
/// `params` is null or readable.
pub(super) unsafe fn copy(params: *const Copy3D, ctx: u64) -> Cu<Kind> {
    let shim = live()?;
    context(shim, ctx)?;
    required(params)?;
    // SAFETY: by this function's contract.
    let copy = unsafe { params.read_unaligned() };
    check(shim, &copy)?;
    Ok(Kind::Copy(copy))
}

/// # Safety
/// `params` is null or readable.
pub(super) unsafe fn host(params: *const HostParams) -> Cu<Kind> {
    required(params)?;
    // SAFETY: by this function's contract.
    let params = unsafe { params.read_unaligned() };
    let function = params.function.ok_or(CuResult::INVALID_VALUE)?;
    Ok(Kind::Host(HostFunction::Plain(
        function,
        params.data as usize,
    )))
}
