//! CUgraphNodeParams: one structure, and one function each to add, read and change, for nodes of all
//! kinds.

use super::copy::Copy3;
use super::graph::{dependencies, dependencies_with};
use super::graph_node::{Alloc, Batch, Host, Kernel2, child, get};
use super::types::{In, Out};
use crate::driver::copy::Memset;
use crate::driver::error::{CuError, Result};
use crate::driver::graph::conditional::Conditional;
use crate::driver::graph::node::{Action, Attributes, Dependency, kind};
use crate::driver::graph::{self, EdgeData, update};
use crate::driver::{context, event};

/// CUgraphNodeParams: the kind, and room for the parameters of any.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Any {
    kind: u32,
    reserved: [u32; 3],
    room: [u64; 29],
    reserved_2: u64,
}

/// CUDA_MEMCPY_NODE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
struct CopyNode {
    flags: u32,
    reserved: u32,
    context: u64,
    copy: Copy3,
}

/// CUDA_MEMSET_NODE_PARAMS_v2.
#[derive(Clone, Copy)]
#[repr(C)]
struct MemsetNode {
    set: Memset,
    context: u64,
}

/// CUDA_HOST_NODE_PARAMS_v2.
#[derive(Clone, Copy)]
#[repr(C)]
struct HostNode {
    host: Host,
    sync_mode: u32,
    context: u64,
}

/// CUDA_CHILD_GRAPH_NODE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
struct ChildNode {
    graph: u64,
    ownership: i32,
}

/// CUDA_CONDITIONAL_NODE_PARAMS.
#[derive(Clone, Copy)]
#[repr(C)]
struct ConditionalNode {
    handle: u64,
    kind: u32,
    size: u32,
    /// Out: the bodies.
    graphs: *const u64,
    context: u64,
}

const _: () = assert!(size_of::<Any>() == 256);
const _: () = assert!(size_of::<CopyNode>() == 216 && size_of::<Alloc>() == 120);

impl Any {
    /// Reads the parameters as what the kind says they are.
    fn view<T: Copy>(&self) -> Result<T> {
        In(self.room.as_ptr().cast::<T>()).get()
    }

    fn with<T: Copy>(kind: u32, value: T) -> Result<Any> {
        let mut any = Any {
            kind,
            reserved: [0; 3],
            room: [0; 29],
            reserved_2: 0,
        };
        if size_of::<T>() > size_of_val(&any.room) {
            return Err(CuError::INVALID_VALUE);
        }
        Out(any.room.as_mut_ptr().cast::<T>()).set(value)?;
        Ok(any)
    }

    /// What a node with these parameters does. `adding` one to a graph: a child graph is copied.
    ///
    /// # Errors
    /// As the function that adds such a node.
    pub fn action(&self, adding: bool) -> Result<Action> {
        match self.kind {
            kind::KERNEL => self.view::<Kernel2>()?.action(),
            kind::MEMCPY => {
                let c: CopyNode = self.view()?;
                if c.flags != 0 {
                    return Err(CuError::INVALID_VALUE);
                }
                Action::memcpy(&c.copy, c.context)
            }
            kind::MEMSET => {
                let m: MemsetNode = self.view()?;
                Action::memset(&m.set, m.context)
            }
            kind::HOST => self.view::<HostNode>()?.host.action(),
            kind::GRAPH => {
                let c: ChildNode = self.view()?;
                child(c.graph, adding, c.ownership)
            }
            kind::EMPTY => Ok(Action::Empty),
            kind::WAIT_EVENT => event::get(self.room[0]).map(Action::EventWait),
            kind::EVENT_RECORD => event::get(self.room[0]).map(Action::EventRecord),
            kind::MEM_ALLOC => self.view::<Alloc>()?.action(),
            kind::MEM_FREE => Action::free(self.room[0]),
            kind::BATCH_MEM_OP => self.view::<Batch>()?.action(),
            kind::CONDITIONAL if adding => {
                let c: ConditionalNode = self.view()?;
                let context = match c.context {
                    0 => context::current()?.handle,
                    given => context::get(given)?.handle,
                };
                Conditional::new(c.handle, c.kind, c.size, context).map(Action::Conditional)
            }
            8 | 9 | 13 | 14 | 17 | 18 => Err(CuError::NOT_SUPPORTED),
            _ => Err(CuError::INVALID_VALUE),
        }
    }

    fn of(action: &Action) -> Result<Any> {
        let kind = action.kind();
        match action {
            Action::Kernel(_) => Any::with(kind, Kernel2::of(action)?),
            Action::Memcpy(copy, context) => Any::with(
                kind,
                CopyNode {
                    flags: 0,
                    reserved: 0,
                    context: *context,
                    copy: *copy,
                },
            ),
            Action::Memset(set, context) => Any::with(
                kind,
                MemsetNode {
                    set: *set,
                    context: *context,
                },
            ),
            Action::Host(_) => Any::with(
                kind,
                HostNode {
                    host: Host::of(action)?,
                    sync_mode: 0,
                    context: 0,
                },
            ),
            Action::Child(g) => Any::with(
                kind,
                ChildNode {
                    graph: g.handle,
                    ownership: 0,
                },
            ),
            Action::Empty => Any::with(kind, ()),
            Action::EventWait(e) | Action::EventRecord(e) => Any::with(kind, e.handle),
            Action::Alloc(_) => Any::with(kind, Alloc::of(action)?),
            Action::Free(b) => Any::with(kind, b.addr),
            Action::MemOps(..) => Any::with(kind, Batch::of(action)?),
            Action::Conditional(c) => Any::with(
                kind,
                ConditionalNode {
                    handle: c.cell.addr,
                    kind: c.kind as u32,
                    size: c.handles.len() as u32,
                    graphs: c.handles.as_ptr(),
                    context: c.context,
                },
            ),
        }
    }
}

fn add_any(out: Out<u64>, graph: u64, after: Result<Vec<Dependency>>, any: Out<Any>) -> Result {
    out.check()?;
    let given = In(any.0.cast_const()).get()?;
    let graph = graph::get(graph)?;
    let action = given.action(true)?;
    if let Action::Conditional(c) = &action
        && !c.belongs_to(&graph)
    {
        return Err(CuError::INVALID_VALUE);
    }
    let told = match &action {
        Action::Alloc(_) | Action::Conditional(_) => Some(Any::of(&action)?),
        _ => None,
    };
    let node = graph.add(action, Attributes::new(), &after?)?;
    if let Some(told) = told {
        // The address, or the bodies, go back to the caller; what it gave stays as it was.
        let mut mine = given;
        let room = mine.room.as_mut_ptr();
        if told.kind == kind::MEM_ALLOC {
            let mut alloc: Alloc = mine.view()?;
            alloc.addr = told.view::<Alloc>()?.addr;
            Out(room.cast::<Alloc>()).set(alloc)?;
        } else {
            let mut node: ConditionalNode = mine.view()?;
            node.graphs = told.view::<ConditionalNode>()?.graphs;
            Out(room.cast::<ConditionalNode>()).set(node)?;
        }
        any.set(mine)?;
    }
    out.set(node)
}

exports! {
    fn cuGraphAddNode(out: Out<u64>, graph: u64, after: In<u64>, count: usize, params: Out<Any>) {
        add_any(out, graph, dependencies(after, count), params)
    }

    fn cuGraphAddNode_v2(
        out: Out<u64>, graph: u64, after: In<u64>, how: In<EdgeData>, count: usize, params: Out<Any>,
    ) {
        add_any(out, graph, dependencies_with(after, how, count), params)
    }

    fn cuGraphAddNode_v3(
        out: Out<u64>, graph: u64, after: In<u64>, how: In<EdgeData>, count: usize, params: Out<Any>,
    ) {
        add_any(out, graph, dependencies_with(after, how, count), params)
    }

    fn cuGraphNodeSetParams(node: u64, params: In<Any>) {
        update::set_node(node, params.get()?.action(false)?)
    }

    fn cuGraphNodeSetParams_v2(node: u64, params: In<Any>) {
        update::set_node(node, params.get()?.action(false)?)
    }

    fn cuGraphNodeGetParams(node: u64, out: Out<Any>) {
        get(node, out, Any::of)
    }
}
