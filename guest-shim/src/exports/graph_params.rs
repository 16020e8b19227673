//! `CUgraphNodeParams`: one structure, and one function each to add, read and change, for nodes of all
//! kinds.

use vgpu_proto::cuda::CuResult;

use super::area::Copy3D;
use super::graph::add;
use super::graph_events::{BatchParams, batch, record, wait};
use super::graph_exec::find;
use super::graph_memory::{AllocParams, allocate, free};
use super::graph_nodes::{FillParams, HostParams, KernelParams2, copy, fill, host, kernel2};
use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::state::Shim;
use crate::state::graphs::{Kind, conditional, number, update};
use crate::{Cu, lock, unserved};

/// `CUgraphNodeParams`: the kind, and room for the parameters of any.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct AnyParams {
    kind: u32,
    reserved: [u32; 3],
    room: [u64; 29],
    reserved_2: u64,
}

/// `CUDA_MEMCPY_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct CopyParams {
    flags: u32,
    reserved: u32,
    ctx: u64,
    copy: Copy3D,
}

/// `CUDA_MEMSET_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct FillParams2 {
    fill: FillParams,
    ctx: u64,
}

/// `CUDA_HOST_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy)]
struct HostParams2 {
    host: HostParams,
    sync_mode: u32,
    ctx: u64,
}

/// `CUDA_CHILD_GRAPH_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ChildParams {
    graph: u64,
    /// `CUgraphChildGraphNodeOwnership`.
    ownership: u32,
}

/// `CUDA_CONDITIONAL_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ConditionalParams {
    handle: u64,
    rule: u32,
    size: u32,
    /// Out: the bodies.
    graphs: *const u64,
    ctx: u64,
}

const _: () = assert!(size_of::<AnyParams>() == 256 && size_of::<CopyParams>() == 216);

/// Kinds of nodes that are not served: semaphores of other interfaces, and what is newer.
const UNSERVED: [u32; 5] = [8, 9, 14, 17, 18];

exports! {
    /// A node of any kind.
    fn cuGraphAddNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        count: usize,
        params: *mut AnyParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_any(out, graph, (behind, count), params) }
    }

    /// A node of any kind; data of edges is always zero.
    fn cuGraphAddNode_v2(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        _data: *const u64,
        count: usize,
        params: *mut AnyParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_any(out, graph, (behind, count), params) }
    }

    /// A node of any kind; data of edges is always zero.
    fn cuGraphAddNode_v3(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
        _data: *const u64,
        count: usize,
        params: *mut AnyParams
    ) {
        // SAFETY: by the contract of the function.
        unsafe { add_any(out, graph, (behind, count), params) }
    }

    /// What a node does.
    fn cuGraphNodeGetParams(node: u64, out: *mut AnyParams) {
        let shim = shim()?;
        required(out)?;
        let params = AnyParams::of(shim, &lock(&shim.node(node)?.kind))?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, params) }
    }

    /// Sets it.
    fn cuGraphNodeSetParams(node: u64, params: *const AnyParams) {
        // SAFETY: by the contract of the function.
        unsafe { set_any(node, params) }
    }

    /// Sets it.
    fn cuGraphNodeSetParams_v2(node: u64, params: *const AnyParams) {
        // SAFETY: by the contract of the function.
        unsafe { set_any(node, params) }
    }

    /// In what was made of a graph.
    fn cuGraphExecNodeSetParams(exec: u64, node: u64, params: *const AnyParams) {
        let shim = live()?;
        required(params)?;
        // SAFETY: by the contract of the function.
        let params = unsafe { params.read_unaligned() };
        let exec = find(shim, exec)?;
        if params.kind == number::CHILD {
            let child = params.view::<ChildParams>();
            return exec.set_child(shim, node, &*shim.graph(child.graph)?);
        }
        // SAFETY: by the contract of the function.
        exec.set(shim, node, unsafe { params.kind("cuGraphExecNodeSetParams") }?)
    }
}

/// # Safety
/// `params` is null or readable, and what it says is as its kind asks.
unsafe fn set_any(node: u64, params: *const AnyParams) -> Cu {
    let shim = live()?;
    required(params)?;
    // SAFETY: by this function's contract.
    let kind = unsafe { params.read_unaligned().kind("cuGraphNodeSetParams") }?;
    update::set_node(shim, node, kind)
}

/// # Safety
/// `out` and `params` are null or valid, the list is as long as its count says.
unsafe fn add_any(
    out: *mut u64,
    graph: u64,
    behind: (*const u64, usize),
    params: *mut AnyParams,
) -> Cu {
    let shim = live()?;
    required(out)?;
    required(params)?;
    // SAFETY: by this function's contract.
    let mut given = unsafe { params.read_unaligned() };
    let mut told = false;
    let make = || {
        // SAFETY: by this function's contract.
        let kind = unsafe { given.new_kind(shim, graph) }?;
        told = given.tell(&kind);
        Ok(kind)
    };
    // SAFETY: by this function's contract.
    unsafe {
        add(out, graph, behind, make)?;
        if told {
            put(params, given)?;
        }
    }
    Ok(())
}

impl AnyParams {
    /// The parameters as what the kind says they are.
    fn view<T: Copy>(&self) -> T {
        const { assert!(size_of::<T>() <= 29 * 8) };
        // SAFETY: there is room for it, and any bytes are a value of the C structures.
        unsafe { self.room.as_ptr().cast::<T>().read_unaligned() }
    }

    fn put<T: Copy>(&mut self, value: T) {
        const { assert!(size_of::<T>() <= 29 * 8) };
        // SAFETY: there is room for it.
        unsafe { self.room.as_mut_ptr().cast::<T>().write_unaligned(value) };
    }

    /// What a new node with these parameters does.
    ///
    /// # Safety
    /// What the parameters say is as their kind asks.
    unsafe fn new_kind(&self, shim: &Shim, graph: u64) -> Cu<Kind> {
        match self.kind {
            number::CHILD => {
                let child: ChildParams = self.view();
                match child.ownership {
                    0 if child.graph != graph => {
                        let copy = shim.clone_graph(&*shim.graph(child.graph)?, true)?;
                        Ok(Kind::Child(copy))
                    }
                    // Taking the program's graph over, with its handle.
                    1 => {
                        let form = "cuGraphAddNode of a child graph that is taken over";
                        Err(unserved::refuse(
                            form,
                            "have it cloned (CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE)",
                        ))
                    }
                    _ => Err(CuResult::INVALID_VALUE),
                }
            }
            number::CONDITIONAL => {
                let c: ConditionalParams = self.view();
                shim.contexts.named(c.ctx)?;
                let graph = shim.graph(graph)?;
                conditional::node(shim, &graph, c.handle, c.rule, c.size).map(Kind::Conditional)
            }
            // SAFETY: by this function's contract.
            _ => unsafe { self.kind("cuGraphAddNode") },
        }
    }

    /// What a node with these parameters, which `symbol` was given, does, if it has no graphs of its own.
    ///
    /// # Safety
    /// As [`AnyParams::new_kind`].
    unsafe fn kind(&self, symbol: &str) -> Cu<Kind> {
        // SAFETY: by this function's contract.
        unsafe {
            match self.kind {
                number::KERNEL => kernel2(&self.view::<KernelParams2>()),
                number::COPY => {
                    let c: CopyParams = self.view();
                    match c.flags {
                        0 => copy(&c.copy, c.ctx),
                        _ => Err(CuResult::INVALID_VALUE),
                    }
                }
                number::FILL => {
                    let f: FillParams2 = self.view();
                    fill(&f.fill, f.ctx)
                }
                number::HOST => host(&self.view::<HostParams2>().host),
                number::EMPTY => Ok(Kind::Empty),
                number::WAIT => wait(self.room[0]),
                number::RECORD => record(self.room[0]),
                number::ALLOC => allocate(symbol, &self.view::<AllocParams>()).map(Kind::Alloc),
                number::FREE => free(self.room[0]),
                number::WORDS => batch(&self.view::<BatchParams>()),
                number::CHILD | number::CONDITIONAL => Err(CuResult::NOT_SUPPORTED),
                kind if UNSERVED.contains(&kind) => {
                    let form =
                        format!("{symbol} of external semaphores and batches of other engines");
                    Err(unserved::refuse(form, "do it between two graphs"))
                }
                _ => Err(CuResult::INVALID_VALUE),
            }
        }
    }

    /// Fills in what the caller is to learn of its new node: an address, or the bodies. `false`: nothing.
    fn tell(&mut self, kind: &Kind) -> bool {
        match kind {
            Kind::Alloc(block) => {
                let mut params: AllocParams = self.view();
                params.address = block.address;
                self.put(params);
                true
            }
            Kind::Conditional(node) => {
                let mut params: ConditionalParams = self.view();
                params.graphs = node.handles.as_ptr();
                self.put(params);
                true
            }
            _ => false,
        }
    }

    /// As a program is shown it.
    fn of(shim: &Shim, kind: &Kind) -> Cu<AnyParams> {
        let mut any = AnyParams {
            kind: kind.number(),
            reserved: [0; 3],
            room: [0; 29],
            reserved_2: 0,
        };
        let ctx = shim.contexts.current().map_or(0, |c| c.shown);
        match kind {
            Kind::Kernel(_) => any.put(KernelParams2::of(kind)?),
            Kind::Copy(copy) => any.put(CopyParams {
                flags: 0,
                reserved: 0,
                ctx,
                copy: *copy,
            }),
            Kind::Fill(fill) => any.put(FillParams2 {
                fill: FillParams::of(fill),
                ctx,
            }),
            Kind::Host(_) => any.put(HostParams2 {
                host: HostParams::of(kind)?,
                sync_mode: 0,
                ctx,
            }),
            Kind::Child(graph) => any.put(ChildParams {
                graph: graph.handle,
                ownership: 0,
            }),
            Kind::Empty => {}
            Kind::Wait(event) | Kind::Record(event) => any.put(*event),
            Kind::Alloc(_) => any.put(AllocParams::of(kind)?),
            Kind::Free(block) => any.put(block.address),
            Kind::Words(_) => any.put(BatchParams::of(kind)?),
            Kind::Conditional(node) => any.put(ConditionalParams {
                handle: node.condition.handle,
                rule: node.rule,
                size: node.bodies.len() as u32,
                graphs: node.handles.as_ptr(),
                ctx: node.condition.ctx.shown,
            }),
        }
        Ok(any)
    }
}
