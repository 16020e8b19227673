//! Graphs: nodes of work with dependencies, defined once and launched many times.
//!
//! Graphs, their nodes and their instances ([`exec`]) exist in the guest. At the first launch of an
//! instance in a context, the worker records the instance's runs: consecutive kernels, fills,
//! copies within the device and conditional nodes. After that, a launch sends one request for each
//! run, and each run is one unit of work. Between the runs, the guest does the work that needs this
//! program's memory or functions (copies from and to the host, host functions, events). All nodes
//! of a launch form one sequence, which satisfies every dependency.

pub(crate) mod block;
pub(crate) mod conditional;
pub(crate) mod dot;
pub(crate) mod exec;
pub(crate) mod kernel;
pub(crate) mod object;
pub(crate) mod order;
mod physical;
pub(crate) mod plan;
pub(crate) mod update;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, Weak};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::node;
use vgpu_cuda_abi::structs::Copy3D;

pub(crate) use self::exec::Exec;
pub(crate) use self::kernel::{FillNode, KernelNode};
pub(crate) use self::object::{NamedObject, UserObject};

use self::block::Block;
use self::conditional::{Condition, Conditional, Home};
use self::kernel::Attributes;
use super::words::Word;
use super::{Shim, capture};
use crate::session::host::HostFunction;
use crate::{Cu, lock};

/// Largest number of nodes in a graph.
const MAX_NODES: usize = 1 << 16;

/// The work of a node.
#[derive(Debug, Clone)]
pub(crate) enum Kind {
    Empty,
    Kernel(Arc<KernelNode>),
    Fill(FillNode),
    Copy(Copy3D),
    Host(HostFunction),
    /// A copy of another graph, which runs as one node.
    Child(Arc<Graph>),
    /// Records an event.
    Record(u64),
    /// Waits for an event.
    Wait(u64),
    /// Allocates memory.
    Alloc(Arc<Block>),
    /// Frees memory.
    Free(Arc<Block>),
    /// Writes words or waits for words.
    Words(Arc<[Word]>),
    /// Runs its bodies as a condition value says.
    Conditional(Arc<Conditional>),
}

impl Kind {
    /// `CUgraphNodeType`.
    pub(crate) fn number(&self) -> u32 {
        match self {
            Kind::Kernel(_) => node::KERNEL,
            Kind::Copy(_) => node::MEMCPY,
            Kind::Fill(_) => node::MEMSET,
            Kind::Host(_) => node::HOST,
            Kind::Child(_) => node::GRAPH,
            Kind::Empty => node::EMPTY,
            Kind::Wait(_) => node::WAIT_EVENT,
            Kind::Record(_) => node::EVENT_RECORD,
            Kind::Alloc(_) => node::MEM_ALLOC,
            Kind::Free(_) => node::MEM_FREE,
            Kind::Words(_) => node::BATCH_MEM_OP,
            Kind::Conditional(_) => node::CONDITIONAL,
        }
    }

    /// The graphs that belong to the node.
    pub(crate) fn graphs(&self) -> &[Arc<Graph>] {
        match self {
            Kind::Child(graph) => std::slice::from_ref(graph),
            Kind::Conditional(node) => &node.bodies,
            _ => &[],
        }
    }

    /// Whether the node allocates or frees memory. A graph with such a node has only one instance
    /// and fixed edges.
    pub(crate) fn owns_memory(&self) -> bool {
        matches!(self, Kind::Alloc(_) | Kind::Free(_))
    }
}

/// A node.
#[derive(Debug)]
pub(crate) struct Node {
    pub(crate) handle: u64,
    /// Handle of the graph.
    pub(crate) graph: u64,
    /// `cuGraphNodeGetLocalId`.
    pub(crate) local: u32,
    /// In a cloned graph: the handle of the node that was cloned.
    pub(crate) original: u64,
    pub(crate) kind: Mutex<Kind>,
    pub(crate) dependencies: Mutex<Vec<u64>>,
    /// Launch attributes that the program set; only for kernel nodes.
    pub(crate) attributes: Mutex<Attributes>,
}

/// A graph.
#[derive(Debug, Default)]
pub(crate) struct Graph {
    pub(crate) handle: u64,
    /// `cuGraphGetId`.
    pub(crate) id: u32,
    /// Whether the graph belongs to a node.
    pub(crate) embedded: bool,
    /// If the graph belongs to a node: handle of the graph that contains the node. Otherwise 0.
    parent: AtomicU64,
    /// The user objects that the graph holds, by handle.
    pub(crate) objects: Mutex<Vec<(u64, Arc<UserObject>)>>,
    /// Condition values of the conditional nodes in this graph and in graphs of its nodes.
    pub(crate) conditions: Mutex<Vec<Arc<Condition>>>,
    /// The host's graph of these condition values.
    pub(crate) home: Mutex<Option<Arc<Home>>>,
    /// For a graph with memory nodes: the only instance that may exist.
    pub(crate) instance: Mutex<Weak<Exec>>,
    /// Nodes in order of creation.
    nodes: Mutex<Vec<Arc<Node>>>,
    next_local: AtomicU32,
}

/// The next graph ID.
static IDS: AtomicU32 = AtomicU32::new(1);

impl Graph {
    /// All nodes, in order of creation.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        lock(&self.nodes).clone()
    }

    /// Whether the graph has memory nodes.
    pub(crate) fn owns_memory(&self) -> bool {
        self.any(Kind::owns_memory)
    }

    /// Whether the work of any node satisfies `what`.
    pub(crate) fn any(&self, what: impl Fn(&Kind) -> bool) -> bool {
        lock(&self.nodes).iter().any(|n| what(&lock(&n.kind)))
    }
}

impl Shim {
    fn make_graph(&self, embedded: bool) -> Cu<Arc<Graph>> {
        let graph = Arc::new(Graph {
            handle: self.mint(),
            id: IDS.fetch_add(1, Ordering::Relaxed),
            embedded,
            ..Graph::default()
        });
        self.graphs.insert(graph.handle, graph.clone())?;
        Ok(graph)
    }

    /// `cuGraphCreate`.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY at the limit of graphs.
    pub(crate) fn create_graph(&self) -> Cu<Arc<Graph>> {
        self.make_graph(false)
    }

    /// Creates a graph that will belong to a node.
    ///
    /// # Errors
    /// As [`Shim::create_graph`].
    pub(crate) fn create_embedded(&self) -> Cu<Arc<Graph>> {
        self.make_graph(true)
    }

    /// `cuGraphDestroy`.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for an unknown graph, as in the driver; also for a graph that
    /// belongs to a node or into which a stream is captured.
    pub(crate) fn destroy_graph(&self, handle: u64) -> Cu {
        let graph = self.graph(handle)?;
        if graph.embedded || capture::uses(self, handle) {
            return Err(CuResult::INVALID_VALUE);
        }
        self.forget_graph(&graph);
        Ok(())
    }

    /// Removes the handles of a graph, its nodes and their graphs.
    pub(crate) fn forget_graph(&self, graph: &Graph) {
        let _ = self.graphs.remove(graph.handle);
        let nodes: Vec<_> = lock(&graph.nodes).drain(..).collect();
        for node in nodes {
            self.forget_node(&node);
        }
    }

    fn forget_node(&self, node: &Node) {
        let _ = self.nodes.remove(node.handle);
        // Only the handle of the node becomes invalid now. The last owner of the node's content
        // frees the content.
        let kind = lock(&node.kind).clone();
        for inner in kind.graphs() {
            self.forget_graph(inner);
        }
    }

    /// The graph with this handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn graph(&self, handle: u64) -> Cu<Arc<Graph>> {
        self.graphs.get(handle).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// The node with this handle.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub(crate) fn node(&self, handle: u64) -> Cu<Arc<Node>> {
        self.nodes.get(handle).map_err(|_| CuResult::INVALID_VALUE)
    }

    /// The outermost graph that contains a graph.
    pub(crate) fn root_of(&self, graph: &Arc<Graph>) -> Arc<Graph> {
        let mut root = graph.clone();
        while let Ok(parent) = self.graphs.get(root.parent.load(Ordering::Relaxed)) {
            root = parent;
        }
        root
    }

    /// Whether the graph has the handle `outer`, or is inside the graph with that handle at any
    /// depth.
    pub(crate) fn is_within(&self, graph: &Arc<Graph>, outer: u64) -> bool {
        let mut at = Ok(graph.clone());
        while let Ok(graph) = at {
            if graph.handle == outer {
                return true;
            }
            at = self.graphs.get(graph.parent.load(Ordering::Relaxed));
        }
        false
    }

    /// Adds a node that depends on nodes of the same graph.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a node of another graph or a duplicate;
    /// CUDA_ERROR_OUT_OF_MEMORY at the limit of nodes.
    pub(crate) fn add_node(&self, graph: &Graph, kind: Kind, dependencies: Vec<u64>) -> Cu<u64> {
        for (i, dependency) in dependencies.iter().enumerate() {
            let of_it = self.node(*dependency)?.graph == graph.handle;
            if !of_it || dependencies[..i].contains(dependency) {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        if let Kind::Free(block) = &kind
            && graph.any(|k| matches!(k, Kind::Free(b) if b.address == block.address))
        {
            return Err(CuResult::INVALID_VALUE);
        }
        self.add_copy(graph, kind, dependencies, (0, Attributes::new()))
    }

    fn add_copy(
        &self,
        graph: &Graph,
        kind: Kind,
        behind: Vec<u64>,
        (original, attributes): (u64, Attributes),
    ) -> Cu<u64> {
        let mut nodes = lock(&graph.nodes);
        if nodes.len() >= MAX_NODES {
            return Err(CuResult::OUT_OF_MEMORY);
        }
        for inner in kind.graphs() {
            inner.parent.store(graph.handle, Ordering::Relaxed);
        }
        let node = Arc::new(Node {
            handle: self.mint(),
            graph: graph.handle,
            local: graph.next_local.fetch_add(1, Ordering::Relaxed),
            original,
            kind: Mutex::new(kind),
            dependencies: Mutex::new(behind),
            attributes: Mutex::new(attributes),
        });
        self.nodes.insert(node.handle, node.clone())?;
        let handle = node.handle;
        nodes.push(node);
        Ok(handle)
    }

    /// `cuGraphDestroyNode`: also removes the edges of the node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE; CUDA_ERROR_NOT_SUPPORTED in a graph with memory nodes, whose edges
    /// are fixed.
    pub(crate) fn destroy_node(&self, handle: u64) -> Cu {
        let node = self.node(handle)?;
        let graph = self.graph(node.graph)?;
        if graph.owns_memory() {
            return Err(CuResult::NOT_SUPPORTED);
        }
        {
            let mut nodes = lock(&graph.nodes);
            nodes.retain(|n| n.handle != handle);
            for other in nodes.iter() {
                lock(&other.dependencies).retain(|d| *d != handle);
            }
        }
        self.forget_node(&node);
        Ok(())
    }

    /// `cuGraphClone`. With `embedded`, the copy will belong to a node.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for graphs with memory or conditional nodes, as in the driver;
    /// CUDA_ERROR_OUT_OF_MEMORY at the limit of graphs or nodes.
    pub(crate) fn clone_graph(&self, graph: &Graph, embedded: bool) -> Cu<Arc<Graph>> {
        let bound = |k: &Kind| k.owns_memory() || matches!(k, Kind::Conditional(_));
        if graph.any(bound) {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let copy = self.make_graph(embedded)?;
        *lock(&copy.objects) = lock(&graph.objects).clone();
        let made = self.copy_nodes(graph, &copy);
        if made.is_err() {
            self.forget_graph(&copy);
        }
        made.map(|()| copy)
    }

    fn copy_nodes(&self, graph: &Graph, copy: &Graph) -> Cu {
        let mut names = HashMap::new();
        let nodes = graph.nodes();
        for node in &nodes {
            let kind = match &*lock(&node.kind) {
                Kind::Child(child) => Kind::Child(self.clone_graph(child, true)?),
                kind => kind.clone(),
            };
            let extra = (node.handle, lock(&node.attributes).clone());
            let made = self.add_copy(copy, kind, Vec::new(), extra)?;
            names.insert(node.handle, made);
        }
        for (node, made) in nodes.iter().zip(copy.nodes()) {
            let behind = lock(&node.dependencies);
            let behind = behind.iter().filter_map(|d| names.get(d).copied());
            *lock(&made.dependencies) = behind.collect();
        }
        Ok(())
    }
}

/// `cuGraphNodeFindInClone`, including the nodes of child graphs.
pub(crate) fn copy_of(graph: &Graph, original: u64) -> Option<u64> {
    let nodes = graph.nodes();
    if let Some(found) = nodes.iter().find(|n| n.original == original) {
        return Some(found.handle);
    }
    nodes.iter().find_map(|node| {
        let kind = lock(&node.kind).clone();
        kind.graphs().iter().find_map(|g| copy_of(g, original))
    })
}
