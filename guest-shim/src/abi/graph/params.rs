//! `CUgraphNodeParams`: one structure with the parameters of nodes of all kinds, and the functions
//! that use it to add, read and change a node.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::node;
use vgpu_cuda_abi::structs::{
    AllocNodeParams, BatchNodeParams, ChildNodeParams, ConditionalNodeParams, CopyNodeParams,
    EdgeData, HostNodeParams2, KernelNodeParams2, MemsetNodeParams2, NodeParams,
};

use crate::abi::graph::events::{batch, record, wait};
use crate::abi::graph::exec::find;
use crate::abi::graph::graphs::add;
use crate::abi::graph::memory::{allocate, free};
use crate::abi::graph::nodes::{copy, fill, host, kernel2, shown_fill, shown_host, shown_kernel};
use crate::abi::graph::{events as graph_events, memory as graph_memory};
use crate::ffi::exports;
use crate::state::Shim;
use crate::state::current::{live, shim};
use crate::state::graphs::conditional::Conditional;
use crate::state::graphs::{Kind, conditional, update};
use crate::{Cu, lock, unserved};

/// Kinds of nodes that are not served: semaphores of other APIs, and kinds that are newer.
const UNSERVED: [u32; 5] = [8, 9, 14, 17, 18];

exports! {
    /// Adds a node of any kind.
    fn cuGraphAddNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        params: Out<NodeParams>
    ) {
        add_any(out, graph, (behind, count), params)
    }

    /// Adds a node of any kind. The edge data is ignored, because it is always zero.
    fn cuGraphAddNode_v2(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        _data: In<EdgeData>,
        count: usize,
        params: Out<NodeParams>
    ) {
        add_any(out, graph, (behind, count), params)
    }

    /// Adds a node of any kind. The edge data is ignored, because it is always zero.
    fn cuGraphAddNode_v3(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        _data: In<EdgeData>,
        count: usize,
        params: Out<NodeParams>
    ) {
        add_any(out, graph, (behind, count), params)
    }

    /// The parameters of a node.
    fn cuGraphNodeGetParams(node: u64, out: Out<NodeParams>) {
        let shim = shim()?;
        out.check()?;
        let params = shown(shim, &lock(&shim.node(node)?.kind))?;
        out.set(params)
    }

    /// Sets the parameters of a node.
    fn cuGraphNodeSetParams(node: u64, params: In<NodeParams>) {
        set_any(node, params)
    }

    /// Sets the parameters of a node.
    fn cuGraphNodeSetParams_v2(node: u64, params: In<NodeParams>) {
        set_any(node, params)
    }

    /// Sets the parameters of a node in an instance.
    fn cuGraphExecNodeSetParams(exec: u64, node: u64, params: In<NodeParams>) {
        let shim = live()?;
        let params = params.get()?;
        let exec = find(shim, exec)?;
        if params.kind == node::GRAPH {
            let child = params.view::<ChildNodeParams>();
            return exec.set_child(shim, node, &*shim.graph(child.graph)?);
        }
        exec.set(shim, node, kind_of(&params, "cuGraphExecNodeSetParams")?)
    }
}

fn set_any(node: u64, params: In<NodeParams>) -> Cu {
    let shim = live()?;
    let kind = kind_of(&params.get()?, "cuGraphNodeSetParams")?;
    update::set_node(shim, node, kind)
}

fn add_any(out: Out<u64>, graph: u64, behind: (In<u64>, usize), params: Out<NodeParams>) -> Cu {
    let shim = live()?;
    out.check()?;
    let mut given = params.get()?;
    let mut told = false;
    let make = || {
        let kind = new_kind(&given, shim, graph)?;
        told = tell(&mut given, &kind);
        Ok(kind)
    };
    add(out, graph, behind, make)?;
    if told {
        params.set(given)?;
    }
    Ok(())
}

/// The work of a new node, from its parameters.
fn new_kind(params: &NodeParams, shim: &Shim, graph: u64) -> Cu<Kind> {
    match params.kind {
        node::GRAPH => {
            let child: ChildNodeParams = params.view();
            match child.ownership {
                0 if child.graph != graph => {
                    let copy = shim.clone_graph(&*shim.graph(child.graph)?, true)?;
                    Ok(Kind::Child(copy))
                }
                // With this ownership, the node would take over the program's graph and its handle.
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
        node::CONDITIONAL => {
            let c: ConditionalNodeParams = params.view();
            shim.contexts.named(c.context)?;
            let graph = shim.graph(graph)?;
            conditional::node(shim, &graph, c.handle, c.rule, c.size).map(Kind::Conditional)
        }
        _ => kind_of(params, "cuGraphAddNode"),
    }
}

/// The work of a node without graphs of its own, from its parameters. `symbol` is the function that
/// got the parameters.
fn kind_of(params: &NodeParams, symbol: &str) -> Cu<Kind> {
    match params.kind {
        node::KERNEL => kernel2(&params.view::<KernelNodeParams2>()),
        node::MEMCPY => {
            let c: CopyNodeParams = params.view();
            match c.flags {
                0 => copy(&c.copy, c.context),
                _ => Err(CuResult::INVALID_VALUE),
            }
        }
        node::MEMSET => {
            let f: MemsetNodeParams2 = params.view();
            fill(&f.base, f.context)
        }
        node::HOST => host(&params.view::<HostNodeParams2>().base),
        node::EMPTY => Ok(Kind::Empty),
        node::WAIT_EVENT => wait(params.room[0]),
        node::EVENT_RECORD => record(params.room[0]),
        node::MEM_ALLOC => allocate(symbol, &params.view::<AllocNodeParams>()).map(Kind::Alloc),
        node::MEM_FREE => free(params.room[0]),
        node::BATCH_MEM_OP => batch(&params.view::<BatchNodeParams>()),
        node::GRAPH | node::CONDITIONAL => Err(CuResult::NOT_SUPPORTED),
        kind if UNSERVED.contains(&kind) => {
            let form = format!("{symbol} of external semaphores and batches of other engines");
            Err(unserved::refuse(form, "do it between two graphs"))
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// Writes the results of adding a node to the caller's parameters: an address, or the bodies.
/// `false`: this kind of node has no results.
fn tell(params: &mut NodeParams, kind: &Kind) -> bool {
    match kind {
        Kind::Alloc(block) => {
            let mut alloc: AllocNodeParams = params.view();
            alloc.address = block.address;
            params.put(alloc);
            true
        }
        Kind::Conditional(node) => {
            let mut condition: ConditionalNodeParams = params.view();
            condition.graphs = bodies(node);
            params.put(condition);
            true
        }
        _ => false,
    }
}

/// The list of bodies that programs see.
fn bodies(node: &Conditional) -> In<u64> {
    // SAFETY: the list exists as long as the node.
    unsafe { In::new(node.handles.as_ptr()) }
}

/// The parameters as the structure that programs see.
fn shown(shim: &Shim, kind: &Kind) -> Cu<NodeParams> {
    let mut any = NodeParams::empty(kind.number());
    let context = shim.contexts.current().map_or(0, |c| c.shown);
    match kind {
        Kind::Kernel(_) => any.put(shown_kernel(kind)?),
        Kind::Copy(copy) => any.put(CopyNodeParams {
            flags: 0,
            reserved: 0,
            context,
            copy: *copy,
        }),
        Kind::Fill(fill) => any.put(MemsetNodeParams2 {
            base: shown_fill(fill),
            context,
        }),
        Kind::Host(_) => any.put(HostNodeParams2 {
            base: shown_host(kind)?,
            sync_mode: 0,
            context,
        }),
        Kind::Child(graph) => any.put(ChildNodeParams {
            graph: graph.handle,
            ownership: 0,
        }),
        Kind::Empty => {}
        Kind::Wait(event) | Kind::Record(event) => any.put(*event),
        Kind::Alloc(_) => any.put(graph_memory::shown(kind)?),
        Kind::Free(block) => any.put(block.address),
        Kind::Words(_) => any.put(graph_events::shown(kind)?),
        Kind::Conditional(node) => any.put(ConditionalNodeParams {
            handle: node.condition.handle,
            rule: node.rule,
            size: node.bodies.len() as u32,
            graphs: bodies(node),
            context: node.condition.ctx.shown,
        }),
    }
    Ok(any)
}
