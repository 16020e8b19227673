//! Graphs: nodes with dependencies, built by calls or by capture, then instantiated and launched.
//!
//! A graph exists as long as its handle. A node keeps alive the objects that it uses (functions,
//! events, blocks of memory). The graph of a child graph node is *embedded*: it exists as long as
//! the node.

pub mod block;
pub mod capture;
pub mod conditional;
pub mod dot;
pub mod exec;
pub mod node;
pub mod object;
pub mod update;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use super::error::Result;
use super::handle::{Kind, Table};
use super::healthy;
use super::sync::lock;
use exec::Exec;
use node::{Action, Attributes, Dependency, Node};
use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::EdgeData;

/// Whether edge data is valid.
fn valid(data: EdgeData) -> bool {
    data.from_port <= 2 && data.to_port == 0 && data.kind <= 1 && data.reserved == [0; 5]
}

/// A dependency.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Edge {
    /// The node that runs first.
    pub from: u64,
    /// The node that runs after `from`.
    pub to: u64,
    /// Edge data.
    pub data: EdgeData,
}

/// A graph: nodes and dependencies.
pub struct Graph {
    /// CUgraph.
    pub handle: u64,
    /// cuGraphGetId.
    pub id: u32,
    /// Whether the graph belongs to a node of another graph, and ends with that node.
    pub embedded: bool,
    /// Handle of the graph in which this graph is embedded.
    parent: AtomicU64,
    body: Mutex<Body>,
}

/// Contents of a graph.
#[derive(Default)]
pub struct Body {
    /// Nodes by handle, which is the order of creation.
    pub nodes: BTreeMap<u64, Node>,
    /// Dependencies in the order of their creation.
    pub edges: Vec<Edge>,
    /// User objects that live as long as the graph.
    pub objects: Vec<object::Held>,
    /// Values that conditional nodes read.
    pub cells: Vec<Arc<conditional::Cell>>,
    /// In a clone: the clone's node for each node of the original.
    origins: HashMap<u64, u64>,
    /// A graph with memory nodes may have one instance only: this one.
    instance: Weak<Exec>,
    next_local: u32,
}

static GRAPHS: Table<Graph> = Table::new(Kind::Graph);
/// The graph of each node, by the node's handle.
static NODES: Table<Weak<Graph>> = Table::new(Kind::GraphNode);
static IDS: AtomicU32 = AtomicU32::new(1);

fn make(embedded: bool) -> Arc<Graph> {
    GRAPHS.insert(|handle| {
        Arc::new(Graph {
            handle,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            embedded,
            parent: AtomicU64::new(0),
            body: Mutex::default(),
        })
    })
}

/// cuGraphCreate.
///
/// # Errors
/// The sticky error.
pub fn create() -> Result<Arc<Graph>> {
    healthy()?;
    Ok(make(false))
}

/// The graph that a handle names.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE (strict mode aborts on a stale or forged handle).
pub fn get(handle: u64) -> Result<Arc<Graph>> {
    healthy()?;
    GRAPHS.get(handle).map_err(|_| CuResult::INVALID_VALUE)
}

/// The graph that contains a node.
///
/// # Errors
/// As [`get`].
pub fn of_node(node: u64) -> Result<Arc<Graph>> {
    healthy()?;
    NODES
        .get(node)
        .ok()
        .and_then(|g| g.upgrade())
        .ok_or(CuResult::INVALID_VALUE)
}

/// cuGraphDestroy.
///
/// # Errors
/// As [`get`]; CUDA_ERROR_INVALID_VALUE for the graph of a child node.
pub fn destroy(handle: u64) -> Result {
    let graph = get(handle)?;
    if graph.embedded || capture::uses(&graph) {
        return Err(CuResult::INVALID_VALUE);
    }
    graph.forget();
    Ok(())
}

/// cuGraphDestroyNode: also removes the dependencies of the node.
///
/// # Errors
/// As [`of_node`]; nodes of a graph with memory nodes cannot be destroyed.
pub fn destroy_node(node: u64) -> Result {
    let graph = of_node(node)?;
    if graph.owns_memory() {
        return Err(CuResult::NOT_SUPPORTED);
    }
    let removed = {
        let mut body = graph.lock();
        body.edges.retain(|e| e.from != node && e.to != node);
        body.nodes.remove(&node)
    };
    let _ = NODES.remove(node);
    if let Some(node) = removed {
        node.action.graphs().iter().for_each(|g| g.forget());
    }
    Ok(())
}

/// Calls `f` with a node, and returns the result.
///
/// # Errors
/// As [`of_node`].
pub fn with_node<T>(node: u64, f: impl FnOnce(&mut Node) -> Result<T>) -> Result<T> {
    let graph = of_node(node)?;
    let mut body = graph.lock();
    f(body.nodes.get_mut(&node).ok_or(CuResult::INVALID_VALUE)?)
}

impl Graph {
    /// Locks the contents of the graph.
    pub fn lock(&self) -> MutexGuard<'_, Body> {
        lock(&self.body)
    }

    /// Removes the handles of the graph and its nodes.
    fn forget(&self) {
        let _ = GRAPHS.remove(self.handle);
        let body = std::mem::take(&mut *self.lock());
        for (handle, node) in &body.nodes {
            let _ = NODES.remove(*handle);
            node.action.graphs().iter().for_each(|g| g.forget());
        }
    }

    /// Whether `outer` is the handle of this graph, or of a graph in which this graph is embedded
    /// at any depth.
    pub fn is_within(self: &Arc<Self>, outer: u64) -> bool {
        let mut graph = Some(Arc::clone(self));
        while let Some(g) = graph {
            if g.handle == outer {
                return true;
            }
            graph = GRAPHS.find(g.parent.load(Ordering::Relaxed));
        }
        false
    }

    /// Whether the graph has memory nodes.
    pub fn owns_memory(&self) -> bool {
        self.lock().nodes.values().any(|n| n.action.owns_memory())
    }

    /// Adds a node.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: a dependency on a node of another graph, or twice on the same
    /// node.
    pub fn add(
        self: &Arc<Self>,
        action: Action,
        attributes: Attributes,
        after: &[Dependency],
    ) -> Result<u64> {
        let mut body = self.lock();
        let mut seen = BTreeSet::new();
        for d in after {
            if !body.nodes.contains_key(&d.node) || !valid(d.data) || !seen.insert(d.node) {
                return Err(CuResult::INVALID_VALUE);
            }
        }
        if let Action::Free(block) = &action {
            body.check_free(block.addr)?;
        }
        for inner in action.graphs() {
            inner.parent.store(self.handle, Ordering::Relaxed);
        }
        let handle = NODES.mint();
        NODES.put(handle, Arc::new(Arc::downgrade(self)));
        let local = body.next_local;
        body.next_local += 1;
        body.nodes.insert(
            handle,
            Node {
                handle,
                local,
                action,
                attributes,
            },
        );
        body.edges.extend(after.iter().map(|d| Edge {
            from: d.node,
            to: handle,
            data: d.data,
        }));
        Ok(handle)
    }

    /// cuGraphAddDependencies: adds all edges or, after an error, none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE: a node of another graph, a node that depends on itself, or an
    /// existing dependency.
    pub fn connect(&self, edges: &[Edge]) -> Result {
        let mut body = self.lock();
        let mut all = body.edges.clone();
        for e in edges {
            let known = [e.from, e.to].iter().all(|n| body.nodes.contains_key(n));
            let there = all.iter().any(|o| o.from == e.from && o.to == e.to);
            if !known || there || e.from == e.to || !valid(e.data) {
                return Err(CuResult::INVALID_VALUE);
            }
            all.push(*e);
        }
        body.edges = all;
        Ok(())
    }

    /// cuGraphRemoveDependencies: removes all edges or, after an error, none.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for a missing dependency; CUDA_ERROR_NOT_SUPPORTED for a graph with
    /// memory nodes.
    pub fn disconnect(&self, edges: &[Edge]) -> Result {
        if !edges.is_empty() && self.owns_memory() {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let mut body = self.lock();
        let mut all = body.edges.clone();
        for e in edges {
            let at = all.iter().position(|o| o == e);
            all.remove(at.ok_or(CuResult::INVALID_VALUE)?);
        }
        body.edges = all;
        Ok(())
    }

    /// A copy of the graph with equal nodes and dependencies; nodes keep their order.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED: graphs with memory nodes cannot be cloned.
    pub fn duplicate(&self, embedded: bool) -> Result<Arc<Graph>> {
        if self.owns_memory() {
            return Err(CuResult::NOT_SUPPORTED);
        }
        let copy = make(embedded);
        let body = self.lock();
        let mut origins = HashMap::new();
        for (old, node) in &body.nodes {
            let new = copy.add(node.action.duplicate()?, node.attributes.clone(), &[])?;
            origins.insert(*old, new);
        }
        let edges = body.edges.iter().filter_map(|e| {
            Some(Edge {
                from: *origins.get(&e.from)?,
                to: *origins.get(&e.to)?,
                data: e.data,
            })
        });
        let mut theirs = copy.lock();
        theirs.edges = edges.collect();
        theirs.origins = origins;
        theirs.objects = body.objects.iter().map(object::Held::share).collect();
        theirs.next_local = body.next_local;
        theirs.cells.clone_from(&body.cells);
        drop(theirs);
        Ok(copy)
    }

    /// cuGraphNodeFindInClone. Nodes of child graphs are searched, too.
    pub fn find_clone_of(&self, original: u64) -> Option<u64> {
        let body = self.lock();
        if let Some(n) = body.origins.get(&original) {
            return body.nodes.contains_key(n).then_some(*n);
        }
        let inner = body.nodes.values().flat_map(|n| n.action.graphs());
        inner.into_iter().find_map(|g| g.find_clone_of(original))
    }
}

impl Body {
    /// Nodes without dependencies.
    pub fn roots(&self) -> Vec<u64> {
        let has_before: BTreeSet<u64> = self.edges.iter().map(|e| e.to).collect();
        let all = self.nodes.keys().copied();
        all.filter(|n| !has_before.contains(n)).collect()
    }

    /// The nodes, each after all nodes on which it depends. Among nodes that are ready, the oldest
    /// is first.
    ///
    /// # Errors
    /// The first node of a cycle.
    pub fn ordered(&self) -> std::result::Result<Vec<u64>, u64> {
        let mut waits: HashMap<u64, usize> = HashMap::new();
        let mut after: HashMap<u64, Vec<u64>> = HashMap::new();
        for e in &self.edges {
            *waits.entry(e.to).or_default() += 1;
            after.entry(e.from).or_default().push(e.to);
        }
        let mut ready: BTreeSet<u64> = self.roots().into_iter().collect();
        let mut order = Vec::with_capacity(self.nodes.len());
        while let Some(n) = ready.pop_first() {
            order.push(n);
            for next in after.get(&n).into_iter().flatten() {
                let left = waits.entry(*next).or_default();
                *left = left.saturating_sub(1);
                if *left == 0 {
                    ready.insert(*next);
                }
            }
        }
        if order.len() == self.nodes.len() {
            return Ok(order);
        }
        let done: BTreeSet<u64> = order.into_iter().collect();
        Err(self
            .nodes
            .keys()
            .find(|n| !done.contains(n))
            .copied()
            .unwrap_or(0))
    }

    /// The nodes `ends` and all nodes on which they depend, directly or indirectly.
    pub fn up_to(&self, ends: impl IntoIterator<Item = u64>) -> BTreeSet<u64> {
        let mut before: HashMap<u64, Vec<u64>> = HashMap::new();
        for e in &self.edges {
            before.entry(e.to).or_default().push(e.from);
        }
        let mut seen = BTreeSet::new();
        let mut open: Vec<u64> = ends.into_iter().collect();
        while let Some(n) = open.pop() {
            if seen.insert(n) {
                open.extend(before.get(&n).into_iter().flatten());
            }
        }
        seen
    }

    /// Refuses a second free of an allocation of the graph.
    fn check_free(&self, addr: u64) -> Result {
        let freed = self
            .nodes
            .values()
            .any(|n| matches!(&n.action, Action::Free(b) if b.addr == addr));
        if freed {
            return Err(CuResult::INVALID_VALUE);
        }
        Ok(())
    }
}
