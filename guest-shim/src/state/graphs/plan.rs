//! The plan of an instance: a snapshot of the graph at instantiation.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use vgpu_cuda_abi::CuResult;

use super::block::Block;
use super::conditional::Condition;
use super::{Graph, Kind, MAX_NODES};
use crate::state::Shim;
use crate::{Cu, lock};

/// Largest depth of nested graphs.
const DEEPEST: usize = 32;

/// `CUDA_GRAPH_INSTANTIATE_ERROR`, `INVALID_STRUCTURE`, `NODE_OPERATION_NOT_SUPPORTED`,
/// `CONDITIONAL_HANDLE_UNUSED`.
pub(crate) mod result {
    pub(crate) const ERROR: u32 = 1;
    pub(crate) const INVALID_STRUCTURE: u32 = 2;
    pub(crate) const NOT_SUPPORTED: u32 = 3;
    pub(crate) const HANDLE_UNUSED: u32 = 5;
}

/// The reason for a failed instantiation: result code, `CUgraphInstantiateResult` and node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Refusal {
    pub(crate) code: CuResult,
    pub(crate) result: u32,
    pub(crate) node: u64,
}

impl Refusal {
    pub(crate) fn new(code: CuResult, result: u32, node: u64) -> Refusal {
        Refusal { code, result, node }
    }
}

impl From<CuResult> for Refusal {
    fn from(code: CuResult) -> Refusal {
        Refusal::new(code, result::ERROR, 0)
    }
}

/// A node of a plan.
#[derive(Debug, Clone)]
pub(crate) struct Planned {
    /// Handle of the node in the graph.
    pub(crate) node: u64,
    pub(crate) kind: Kind,
    pub(crate) enabled: bool,
    /// The plans of the node's graphs: of the child graph, or of the bodies.
    pub(crate) children: Vec<Plan>,
}

/// The nodes and edges of an instance.
#[derive(Debug, Clone, Default)]
pub(crate) struct Plan {
    /// Nodes in order of creation.
    pub(crate) nodes: Vec<Planned>,
    /// Edges (from, to), as indices of nodes.
    pub(crate) edges: Vec<(usize, usize)>,
    /// The condition values that were created for the graph.
    pub(crate) conditions: Vec<Arc<Condition>>,
}

impl Plan {
    /// Takes a snapshot of a graph.
    ///
    /// # Errors
    /// A cycle, graphs nested too deeply, too many nodes, memory nodes in conditional bodies.
    pub(crate) fn of(graph: &Graph) -> Result<Plan, Refusal> {
        Plan::at(graph, 0, &mut 0)
    }

    fn at(graph: &Graph, depth: usize, count: &mut usize) -> Result<Plan, Refusal> {
        if depth > DEEPEST {
            return Err(CuResult::INVALID_VALUE.into());
        }
        let nodes = graph.nodes();
        *count += nodes.len();
        if *count > MAX_NODES {
            return Err(CuResult::OUT_OF_MEMORY.into());
        }
        let places: HashMap<u64, usize> = nodes.iter().map(|n| n.handle).zip(0..).collect();
        let mut plan = Plan {
            conditions: lock(&graph.conditions).clone(),
            ..Plan::default()
        };
        for (to, node) in nodes.iter().enumerate() {
            let before = lock(&node.dependencies).clone();
            let before = before.iter().filter_map(|d| places.get(d));
            plan.edges.extend(before.map(|from| (*from, to)));
            let mut kind = lock(&node.kind).clone();
            if depth > 0 && kind.owns_memory() {
                let code = CuResult::NOT_SUPPORTED;
                return Err(Refusal::new(code, result::NOT_SUPPORTED, node.handle));
            }
            if let Kind::Kernel(kernel) = &kind {
                kind = Kind::Kernel(kernel.with(&lock(&node.attributes)));
            }
            let inner = kind.graphs().iter();
            let children = inner.map(|g| Plan::at(g, depth + 1, count));
            let children = children.collect::<Result<_, _>>()?;
            plan.nodes.push(Planned {
                node: node.handle,
                kind,
                enabled: true,
                children,
            });
        }
        match plan.circle() {
            Some(at) => {
                let (code, node) = (CuResult::INVALID_VALUE, plan.nodes[at].node);
                Err(Refusal::new(code, result::INVALID_STRUCTURE, node))
            }
            None => Ok(plan),
        }
    }

    /// A node on a cycle of dependencies, if there is a cycle.
    fn circle(&self) -> Option<usize> {
        let mut waits = vec![0_usize; self.nodes.len()];
        let mut after = vec![Vec::new(); self.nodes.len()];
        for (from, to) in &self.edges {
            waits[*to] += 1;
            after[*from].push(*to);
        }
        let mut ready: Vec<usize> = (0..waits.len()).filter(|i| waits[*i] == 0).collect();
        while let Some(node) = ready.pop() {
            for next in &after[node] {
                waits[*next] -= 1;
                if waits[*next] == 0 {
                    ready.push(*next);
                }
            }
        }
        waits.iter().position(|n| *n > 0)
    }

    /// The planned node of a graph's node, in this plan or in a child graph.
    pub(crate) fn find(&mut self, node: u64) -> Option<&mut Planned> {
        if let Some(at) = self.nodes.iter().position(|n| n.node == node) {
            return self.nodes.get_mut(at);
        }
        self.nodes
            .iter_mut()
            .flat_map(|n| &mut n.children)
            .find_map(|child| child.find(node))
    }

    /// As [`Plan::find`], without mutable access.
    pub(crate) fn look(&self, node: u64) -> Option<&Planned> {
        self.nodes.iter().find_map(|n| {
            if n.node == node {
                return Some(n);
            }
            n.children.iter().find_map(|child| child.look(node))
        })
    }

    /// Whether a condition value exists that no conditional node reads.
    pub(crate) fn has_unused_condition(&self) -> bool {
        let mut read = BTreeSet::new();
        self.each(&mut |n| {
            if let Kind::Conditional(node) = &n.kind {
                read.insert(node.condition.handle);
            }
        });
        self.conditions.iter().any(|c| !read.contains(&c.handle))
    }

    /// The condition value of some conditional node, if there is one.
    pub(crate) fn condition(&self) -> Option<Arc<Condition>> {
        let mut found = None;
        self.each(&mut |n| {
            if let Kind::Conditional(node) = &n.kind {
                found.get_or_insert_with(|| node.condition.clone());
            }
        });
        found
    }

    fn each(&self, look: &mut impl FnMut(&Planned)) {
        for node in &self.nodes {
            look(node);
            node.children.iter().for_each(|child| child.each(look));
        }
    }

    /// The blocks that a launch allocates and frees.
    pub(crate) fn memory(&self) -> (Vec<Arc<Block>>, Vec<Arc<Block>>) {
        let (mut allocs, mut frees) = (Vec::new(), Vec::new());
        for node in &self.nodes {
            match &node.kind {
                Kind::Alloc(block) => allocs.push(block.clone()),
                Kind::Free(block) => frees.push(block.clone()),
                _ => {}
            }
        }
        (allocs, frees)
    }

    /// Makes a graph with the content of this plan, for a launch in a captured stream.
    ///
    /// # Errors
    /// CUDA_ERROR_NOT_SUPPORTED for memory and conditional nodes, which a child graph cannot
    /// contain.
    pub(crate) fn thaw(&self, shim: &Shim) -> Cu<Arc<Graph>> {
        let graph = shim.create_embedded()?;
        let made = self.thaw_into(shim, &graph);
        if made.is_err() {
            shim.forget_graph(&graph);
        }
        made.map(|()| graph)
    }

    fn thaw_into(&self, shim: &Shim, graph: &Graph) -> Cu {
        let mut handles = Vec::with_capacity(self.nodes.len());
        for node in &self.nodes {
            let kind = match (&node.kind, node.children.first()) {
                (Kind::Alloc(_) | Kind::Free(_) | Kind::Conditional(_), _) => {
                    return Err(CuResult::NOT_SUPPORTED);
                }
                (Kind::Child(_), Some(plan)) => Kind::Child(plan.thaw(shim)?),
                _ if !node.enabled => Kind::Empty,
                (kind, _) => kind.clone(),
            };
            handles.push(shim.add_node(graph, kind, Vec::new())?);
        }
        for (from, to) in &self.edges {
            lock(&shim.node(handles[*to])?.dependencies).push(handles[*from]);
        }
        Ok(())
    }
}
