//! Graphs: what to do, and in which order, said once and done often.
//!
//! A graph and its nodes live here, and so does an instantiated one. When it is launched for the first
//! time in a context, its runs of kernels, fills and copies within the device are recorded by the worker,
//! and a launch is then one message and one unit of work each; what concerns this program's memory or its
//! functions (copies from and to the host, host functions, events) is done in its place between them. All
//! of a launch is in one order, which satisfies every dependency.

use std::collections::{HashMap, HashSet};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_proto::cuda::{CuResult, Stream};

use super::Shim;
use super::modules::FunctionInfo;
use crate::exports::area::Copy3D;
use crate::session::host::{HostFn, HostFunction};
use crate::{Cu, lock};

/// Most nodes of a graph.
const MAX_NODES: usize = 1 << 16;

/// A launch of a kernel.
#[derive(Debug, Clone)]
pub(crate) struct KernelNode {
    /// The handle that the program gave: a function's or a kernel's.
    pub(crate) handle: u64,
    /// What it means.
    pub(crate) function: Arc<FunctionInfo>,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) cooperative: bool,
    /// The parameter block.
    pub(crate) params: Vec<u8>,
    /// Where each parameter is in it: what a program is shown.
    pub(crate) pointers: Vec<usize>,
}

impl KernelNode {
    /// Points at the parameters, which must not move afterwards.
    pub(crate) fn point(mut self) -> KernelNode {
        let base = self.params.as_ptr() as usize;
        let offsets = self.function.params.iter();
        self.pointers = offsets.map(|(at, _)| base + *at as usize).collect();
        self
    }
}

/// A fill.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FillNode {
    pub(crate) dst: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    pub(crate) width: u8,
    pub(crate) columns: u64,
    pub(crate) rows: u64,
}

/// What a node does.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Empty,
    Kernel(Arc<KernelNode>),
    Fill(FillNode),
    Copy(Copy3D),
    Host(HostFunction),
    /// Another graph, as it was.
    Child(Arc<Graph>),
    /// Records an event.
    Record(u64),
    /// Waits for an event.
    Wait(u64),
}

impl Kind {
    /// `CUgraphNodeType`.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Kind::Kernel(_) => 0,
            Kind::Copy(_) => 1,
            Kind::Fill(_) => 2,
            Kind::Host(_) => 3,
            Kind::Child(_) => 4,
            Kind::Empty => 5,
            Kind::Wait(_) => 6,
            Kind::Record(_) => 7,
        }
    }
}

/// One node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    /// Its graph's handle.
    pub(crate) graph: u64,
    /// The node that it is a copy of, in a cloned graph.
    pub(crate) original: u64,
    pub(crate) kind: Mutex<Kind>,
    pub(crate) dependencies: Mutex<Vec<u64>>,
}

/// Something of the program; it is destroyed when nobody holds it any more.
#[derive(Debug)]
pub(crate) struct UserObject {
    destroy: HostFn,
    data: usize,
    /// Of the program.
    references: AtomicU32,
}

impl UserObject {
    /// With so many references of the program.
    pub(crate) fn new(destroy: HostFn, data: usize, references: u32) -> UserObject {
        UserObject {
            destroy,
            data,
            references: AtomicU32::new(references),
        }
    }

    /// The program has more.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for too many.
    pub(crate) fn retain(&self, count: u32) -> Cu {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let more = |n: u32| n.checked_add(count);
        let changed = self.references.fetch_update(order.0, order.1, more);
        changed.map(|_| ()).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// It has fewer. True: none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for more than there are.
    pub(crate) fn release(&self, count: u32) -> Cu<bool> {
        let order = (Ordering::AcqRel, Ordering::Relaxed);
        let fewer = |n: u32| n.checked_sub(count);
        let changed = self.references.fetch_update(order.0, order.1, fewer);
        let before = changed.map_err(|_| CuResult::INVALID_VALUE)?;
        Ok(before == count)
    }
}

impl Drop for UserObject {
    fn drop(&mut self) {
        // SAFETY: the program gave function and argument for exactly this call.
        unsafe { (self.destroy)(self.data as *mut c_void) };
    }
}

/// One graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) handle: u64,
    /// User objects that it holds, by handle.
    pub(crate) objects: Mutex<Vec<(u64, Arc<UserObject>)>>,
    /// In order of creation.
    nodes: Mutex<Vec<Arc<Node>>>,
}

impl Graph {
    /// All nodes, in order of creation.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).clone()
    }

    /// Nodes in an order that satisfies every dependency.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a circle.
    pub(crate) fn sorted(&self) -> Cu<Vec<Arc<Node>>> {
        let mut left = self.nodes();
        let (mut done, mut sorted) = (HashSet::new(), Vec::with_capacity(left.len()));
        while !left.is_empty() {
            let before = left.len();
            // Most often the order of creation will do, and this is one round.
            left.retain(|node| {
                let ready = lock(&node.dependencies).iter().all(|d| done.contains(d));
                if ready {
                    done.insert(node.handle);
                    sorted.push(node.clone());
                }
                !ready
            });
            if left.len() == before {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        Ok(sorted)
    }
}

impl Shim {
    /// `cuGraphCreate`.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are too many.
    pub(crate) fn create_graph(&self) -> Cu<Arc<Graph>> {
        let graph = Arc::new(Graph {
            handle: self.mint(),
            ..Graph::default()
        });
        self.graphs.insert(graph.handle, graph.clone())?;
        Ok(graph)
    }

    /// `cuGraphDestroy`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE, as the driver says of graphs.
    pub(crate) fn destroy_graph(&self, handle: u64) -> Cu {
        let graph = self
            .graphs
            .remove(handle)
            .map_err(|_| CuResult::INVALID_VALUE)?;
        self.forget_nodes(&graph);
        Ok(())
    }

    fn forget_nodes(&self, graph: &Graph) {
        let nodes: Vec<_> = lock(&graph.nodes).drain(..).collect();
        for node in nodes {
            let _ = self.nodes.remove(node.handle);
            // A child is a copy that nobody else has.
            if let Kind::Child(child) = &*lock(&node.kind) {
                let _ = self.destroy_graph(child.handle);
            }
        }
    }

    /// The graph of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn graph(&self, handle: u64) -> Cu<Arc<Graph>> {
        self.graphs.get(handle).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// The node of a handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn node(&self, handle: u64) -> Cu<Arc<Node>> {
        self.nodes.get(handle).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// Adds a node behind nodes of the same graph.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for others; CUDA_ERROR_OUT_OF_MEMORY when there are too many.
    pub(crate) fn add_node(&self, graph: &Graph, kind: Kind, dependencies: Vec<u64>) -> Cu<u64> {
        self.add_copy(graph, kind, dependencies, 0)
    }

    fn add_copy(&self, graph: &Graph, kind: Kind, behind: Vec<u64>, original: u64) -> Cu<u64> {
        for dependency in &behind {
            if self.node(*dependency)?.graph != graph.handle {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        let mut nodes = lock(&graph.nodes);
        if nodes.len() >= MAX_NODES {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        let node = Arc::new(Node {
            handle: self.mint(),
            graph: graph.handle,
            original,
            kind: Mutex::new(kind),
            dependencies: Mutex::new(behind),
        });
        self.nodes.insert(node.handle, node.clone())?;
        let handle = node.handle;
        nodes.push(node);
        Ok(handle)
    }

    /// `cuGraphDestroyNode`: what depended on it depends on it no more.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn destroy_node(&self, handle: u64) -> Cu {
        let node = self.node(handle)?;
        let graph = self.graph(node.graph)?;
        let mut nodes = lock(&graph.nodes);
        nodes.retain(|n| n.handle != handle);
        for other in nodes.iter() {
            lock(&other.dependencies).retain(|d| *d != handle);
        }
        self.nodes
            .remove(handle)
            .map(|_| ())
            .map_err(|_| CuResult::INVALID_VALUE)
    }

    /// `cuGraphClone`.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY when there are too many graphs or nodes.
    pub(crate) fn clone_graph(&self, graph: &Graph) -> Cu<Arc<Graph>> {
        let copy = self.create_graph()?;
        *lock(&copy.objects) = lock(&graph.objects).clone();
        let mut names = HashMap::new();
        let sorted = graph.sorted()?;
        for node in &sorted {
            let behind = lock(&node.dependencies).clone();
            let behind = behind
                .iter()
                .filter_map(|d| names.get(d).copied())
                .collect();
            let kind = lock(&node.kind).clone();
            let made = self.add_copy(&copy, kind, behind, node.handle)?;
            names.insert(node.handle, made);
        }
        Ok(copy)
    }
}

/// A part of a launch.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Step {
    /// Nodes that the worker has recorded under this name.
    Recorded(Stream),
    /// The node of this place, done from here.
    Here(usize),
}

#[derive(Debug, Default)]
pub(crate) struct ExecState {
    /// (node, what it does), in the order in which they are done; nodes of child graphs are among them.
    pub(crate) nodes: Vec<(u64, Kind)>,
    /// Nodes that are left out.
    pub(crate) disabled: HashSet<u64>,
    /// By context.
    pub(crate) recorded: Vec<(u64, Vec<Step>)>,
}

/// An instantiated graph.
#[derive(Debug)]
pub(crate) struct Exec {
    pub(crate) handle: u64,
    pub(crate) flags: u64,
    /// User objects of its graph, held only to be dropped.
    #[allow(dead_code)]
    pub(crate) objects: Vec<(u64, Arc<UserObject>)>,
    pub(crate) state: Mutex<ExecState>,
}

/// All that a graph does, in order, children included.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for circles and for graphs within themselves.
pub(crate) fn flatten(graph: &Graph, depth: u32, out: &mut Vec<(u64, Kind)>) -> Cu {
    const DEEPEST: u32 = 32;
    if depth > DEEPEST {
        return Err(CuResult::INVALID_VALUE);
    }
    for node in graph.sorted()? {
        let kind = lock(&node.kind).clone();
        match kind {
            Kind::Child(child) => flatten(&child, depth + 1, out)?,
            Kind::Empty => {}
            kind => out.push((node.handle, kind)),
        }
        if out.len() > MAX_NODES {
            return Err(CuResult::OUT_OF_MEMORY);
        }
    }
    Ok(())
}
