//! CUgraphNodeParams: one structure for nodes of all types, with one function each to add, read and
//! change nodes.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out};
use vgpu_cuda_abi::numbers::node as kind;
use vgpu_cuda_abi::structs::{
    AllocNodeParams, BatchNodeParams, ChildNodeParams, ConditionalNodeParams, CopyNodeParams,
    EdgeData, HostNodeParams, HostNodeParams2, KernelNodeParams2, MemsetNodeParams2, NodeParams,
};

use crate::capi::graph::graphs::{dependencies, dependencies_with};
use crate::capi::graph::nodes::{Params as _, child, get};
use crate::driver::error::Result;
use crate::driver::graph::conditional::Conditional;
use crate::driver::graph::node::{Action, Attributes, Dependency};
use crate::driver::graph::{self, update};
use crate::driver::{context, event};

/// The operation of a node with these parameters. If `adding` is true, the node is being added to a
/// graph, and the operation of a child graph node holds a copy of the child graph.
///
/// # Errors
/// As the function that adds a node of this type.
pub fn action(params: &NodeParams, adding: bool) -> Result<Action> {
    match params.kind {
        kind::KERNEL => params.view::<KernelNodeParams2>().action(),
        kind::MEMCPY => {
            let c: CopyNodeParams = params.view();
            if c.flags != 0 {
                return Err(CuResult::INVALID_VALUE);
            }
            Action::memcpy(&c.copy, c.context)
        }
        kind::MEMSET => {
            let m: MemsetNodeParams2 = params.view();
            Action::memset(&m.base, m.context)
        }
        kind::HOST => params.view::<HostNodeParams2>().base.action(),
        kind::GRAPH => {
            let c: ChildNodeParams = params.view();
            child(c.graph, adding, c.ownership)
        }
        kind::EMPTY => Ok(Action::Empty),
        kind::WAIT_EVENT => event::get(params.room[0]).map(Action::EventWait),
        kind::EVENT_RECORD => event::get(params.room[0]).map(Action::EventRecord),
        kind::MEM_ALLOC => params.view::<AllocNodeParams>().action(),
        kind::MEM_FREE => Action::free(params.room[0]),
        kind::BATCH_MEM_OP => params.view::<BatchNodeParams>().action(),
        kind::CONDITIONAL if adding => {
            let c: ConditionalNodeParams = params.view();
            let context = match c.context {
                0 => context::current()?.handle,
                given => context::get(given)?.handle,
            };
            Conditional::new(c.handle, c.rule, c.size, context).map(Action::Conditional)
        }
        kind::EXT_SEMAS_SIGNAL | kind::EXT_SEMAS_WAIT | kind::CONDITIONAL | 14 | 17 | 18 => {
            Err(CuResult::NOT_SUPPORTED)
        }
        _ => Err(CuResult::INVALID_VALUE),
    }
}

fn of(action: &Action) -> Result<NodeParams> {
    let mut params = NodeParams::empty(action.kind());
    match action {
        Action::Kernel(_) => params.put(KernelNodeParams2::of(action)?),
        Action::Memcpy(copy, context) => params.put(CopyNodeParams {
            flags: 0,
            reserved: 0,
            context: *context,
            copy: *copy,
        }),
        Action::Memset(base, context) => params.put(MemsetNodeParams2 {
            base: *base,
            context: *context,
        }),
        Action::Host(_) => params.put(HostNodeParams2 {
            base: HostNodeParams::of(action)?,
            sync_mode: 0,
            context: 0,
        }),
        Action::Child(g) => params.put(ChildNodeParams {
            graph: g.handle,
            ownership: 0,
        }),
        Action::Empty => {}
        Action::EventWait(e) | Action::EventRecord(e) => params.put(e.handle),
        Action::Alloc(_) => params.put(AllocNodeParams::of(action)?),
        Action::Free(b) => params.put(b.addr),
        Action::MemOps(..) => params.put(BatchNodeParams::of(action)?),
        Action::Conditional(c) => params.put(ConditionalNodeParams {
            handle: c.cell.addr,
            rule: c.kind as u32,
            size: c.handles.len() as u32,
            graphs: bodies(c),
            context: c.context,
        }),
    }
    Ok(params)
}

/// The handles of the bodies of a conditional node, as an array that the program reads.
fn bodies(conditional: &Conditional) -> In<u64> {
    // SAFETY: the list lives as long as the node.
    unsafe { In::new(conditional.handles.as_ptr()) }
}

fn add_any(
    out: Out<u64>,
    graph: u64,
    after: Result<Vec<Dependency>>,
    any: Out<NodeParams>,
) -> Result {
    out.check()?;
    let mut given = any.get()?;
    let graph = graph::get(graph)?;
    let action = action(&given, true)?;
    if let Action::Conditional(c) = &action
        && !c.belongs_to(&graph)
    {
        return Err(CuResult::INVALID_VALUE);
    }
    // The address of an allocation or the bodies of a conditional node are returned in the
    // structure. All other fields are unchanged.
    let told = match &action {
        Action::Alloc(_) => {
            let mut alloc: AllocNodeParams = given.view();
            alloc.address = AllocNodeParams::of(&action)?.address;
            given.put(alloc);
            true
        }
        Action::Conditional(c) => {
            let mut node: ConditionalNodeParams = given.view();
            node.graphs = bodies(c);
            given.put(node);
            true
        }
        _ => false,
    };
    let node = graph.add(action, Attributes::new(), &after?)?;
    if told {
        any.set(given)?;
    }
    out.set(node)
}

exports! {
    fn cuGraphAddNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: Out<NodeParams>) {
        add_any(out, graph, dependencies(after, count), params)
    }

    fn cuGraphAddNode_v2(
        out: Out<u64>, graph: u64, after: In<u64>, how: In<EdgeData>, count: usize, params: Out<NodeParams>,
    ) {
        add_any(out, graph, dependencies_with(after, how, count), params)
    }

    fn cuGraphAddNode_v3(
        out: Out<u64>, graph: u64, after: In<u64>, how: In<EdgeData>, count: usize, params: Out<NodeParams>,
    ) {
        add_any(out, graph, dependencies_with(after, how, count), params)
    }

    fn cuGraphNodeSetParams(node: u64, params: In<NodeParams>) {
        update::set_node(node, action(&params.get()?, false)?)
    }

    fn cuGraphNodeSetParams_v2(node: u64, params: In<NodeParams>) {
        update::set_node(node, action(&params.get()?, false)?)
    }

    fn cuGraphNodeGetParams(node: u64, out: Out<NodeParams>) {
        get(node, out, of)
    }
}
