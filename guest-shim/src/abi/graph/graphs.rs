//! Graphs and their edges. The module `nodes` has the kinds of nodes, and `exec` the instances.

use std::collections::HashSet;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::structs::EdgeData;

use crate::ffi::exports;
use crate::state::current::{live, shim};
use crate::state::graphs::{self, Kind};
use crate::{Cu, lock};

exports! {
    /// Creates an empty graph.
    fn cuGraphCreate(out: Out<u64>, flags: u32) {
        let shim = live()?;
        out.check()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let graph = shim.create_graph()?;
        out.set(graph.handle)
    }

    /// Destroys a graph. Its instances stay valid.
    fn cuGraphDestroy(graph: u64) {
        live()?.destroy_graph(graph)
    }

    /// Copies a graph in its present state.
    fn cuGraphClone(out: Out<u64>, original: u64) {
        let shim = live()?;
        out.check()?;
        let copy = shim.clone_graph(&*shim.graph(original)?, false)?;
        out.set(copy.handle)
    }

    /// The node of a copied graph that is a copy of the given node.
    fn cuGraphNodeFindInClone(out: Out<u64>, original: u64, copy: u64) {
        let shim = shim()?;
        let copy = shim.graph(copy)?;
        let found = Some(original).filter(|n| *n != 0).and_then(|n| graphs::copy_of(&copy, n));
        out.set(found.ok_or(CuResult::INVALID_VALUE)?)
    }

    /// Destroys a node and its edges.
    fn cuGraphDestroyNode(node: u64) {
        live()?.destroy_node(node)
    }

    /// The `CUgraphNodeType` of a node.
    fn cuGraphNodeGetType(node: u64, out: Out<u32>) {
        let number = lock(&shim()?.node(node)?.kind).number();
        out.set(number)
    }

    /// All nodes.
    fn cuGraphGetNodes(graph: u64, out: Out<u64>, count: Out<usize>) {
        let nodes: Vec<u64> = shim()?.graph(graph)?.nodes().iter().map(|n| n.handle).collect();
        give(&nodes, out, count)
    }

    /// Nodes without dependencies.
    fn cuGraphGetRootNodes(graph: u64, out: Out<u64>, count: Out<usize>) {
        let nodes: Vec<u64> = shim()?
            .graph(graph)?
            .nodes()
            .iter()
            .filter(|n| lock(&n.dependencies).is_empty())
            .map(|n| n.handle)
            .collect();
        give(&nodes, out, count)
    }

    /// Adds edges.
    fn cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        edges(graph, (from, to, count), true)
    }

    /// Removes edges.
    fn cuGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        edges(graph, (from, to, count), false)
    }

    /// All edges.
    fn cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) {
        give_edges(graph, (from, to), Out::NULL, count)
    }

    /// Dependencies of a node.
    fn cuGraphNodeGetDependencies(node: u64, out: Out<u64>, count: Out<usize>) {
        let before = lock(&shim()?.node(node)?.dependencies).clone();
        give(&before, out, count)
    }

    /// Nodes that depend on a node.
    fn cuGraphNodeGetDependentNodes(node: u64, out: Out<u64>, count: Out<usize>) {
        let behind = dependents(node)?;
        give(&behind, out, count)
    }

    /// Adds edges. The edge data is ignored, because it is always zero.
    fn cuGraphAddDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, _data: In<EdgeData>, count: usize) {
        edges(graph, (from, to, count), true)
    }

    /// Removes edges. The edge data is ignored, because it is always zero.
    fn cuGraphRemoveDependencies_v2(graph: u64, from: In<u64>, to: In<u64>, _data: In<EdgeData>, count: usize) {
        edges(graph, (from, to, count), false)
    }

    /// All edges. The edge data is always zero.
    fn cuGraphGetEdges_v2(graph: u64, from: Out<u64>, to: Out<u64>, data: Out<EdgeData>, count: Out<usize>) {
        give_edges(graph, (from, to), data, count)
    }

    /// Dependencies of a node. The edge data is always zero.
    fn cuGraphNodeGetDependencies_v2(node: u64, out: Out<u64>, data: Out<EdgeData>, count: Out<usize>) {
        let before = lock(&shim()?.node(node)?.dependencies).clone();
        clear_within(data, &before, out, count);
        give(&before, out, count)
    }

    /// Nodes that depend on a node. The edge data is always zero.
    fn cuGraphNodeGetDependentNodes_v2(node: u64, out: Out<u64>, data: Out<EdgeData>, count: Out<usize>) {
        let behind = dependents(node)?;
        clear_within(data, &behind, out, count);
        give(&behind, out, count)
    }

    /// Adds a node without work.
    fn cuGraphAddEmptyNode(out: Out<u64>, graph: u64, behind: In<u64>, count: usize) {
        add(out, graph, (behind, count), || Ok(Kind::Empty))
    }

    /// Adds a copy of a graph as a node.
    fn cuGraphAddChildGraphNode(
        out: Out<u64>,
        graph: u64,
        behind: In<u64>,
        count: usize,
        child: u64
    ) {
        let make = || {
            let shim = live()?;
            if child == graph {
                return Err(CuResult::INVALID_VALUE);
            }
            Ok(Kind::Child(shim.clone_graph(&*shim.graph(child)?, true)?))
        };
        add(out, graph, (behind, count), make)
    }

    /// The graph of a child graph node.
    fn cuGraphChildGraphNodeGetGraph(node: u64, out: Out<u64>) {
        match &*lock(&shim()?.node(node)?.kind) {
            Kind::Child(child) => out.set(child.handle),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Writes nodes and edges to a file of the guest, in the language of Graphviz.
    fn cuGraphDebugDotPrint(graph: u64, path: Text, flags: u32) {
        let shim = shim()?;
        let graph = shim.graph(graph)?;
        std::fs::write(path.symbol()?, graphs::dot::text(&graph, flags)).map_err(|_| CuResult::OPERATING_SYSTEM)
    }

    /// The ID of the graph, unique among all graphs.
    fn cuGraphGetId(graph: u64, out: Out<u32>) {
        let id = shim()?.graph(graph)?.id;
        out.set(id)
    }

    /// The graph that a node is in.
    fn cuGraphNodeGetContainingGraph(node: u64, out: Out<u64>) {
        let graph = shim()?.node(node)?.graph;
        out.set(graph)
    }

    /// The ID of the node, unique in its graph.
    fn cuGraphNodeGetLocalId(node: u64, out: Out<u32>) {
        let local = shim()?.node(node)?.local;
        out.set(local)
    }

    /// A number that is unique among the nodes of all graphs.
    fn cuGraphNodeGetToolsId(node: u64, out: Out<u64>) {
        let shim = shim()?;
        let node = shim.node(node)?;
        let graph = shim.graph(node.graph)?;
        out.set(u64::from(graph.id) << 32 | u64::from(node.local))
    }

    /// Creates a condition value, which conditional nodes read and kernels set.
    fn cuGraphConditionalHandleCreate(
        out: Out<u64>,
        graph: u64,
        ctx: u64,
        default: u32,
        flags: u32
    ) {
        let shim = live()?;
        out.check()?;
        let graph = shim.graph(graph)?;
        let ctx = shim.contexts.named(ctx)?;
        let handle = graphs::conditional::create(shim, &graph, ctx, default, flags)?;
        out.set(handle)
    }
}

/// Adds a node, whose work `make` returns.
pub(crate) fn add(
    out: Out<u64>,
    graph: u64,
    (behind, count): (In<u64>, usize),
    make: impl FnOnce() -> Cu<Kind>,
) -> Cu {
    let shim = live()?;
    out.check()?;
    let graph = shim.graph(graph)?;
    let behind = behind.list(count)?;
    let node = shim.add_node(&graph, make()?, behind)?;
    out.set(node)
}

/// Writes the handles that fit, then zeros, and the number of handles.
fn give(all: &[u64], out: Out<u64>, count: Out<usize>) -> Cu {
    if out.is_null() {
        return count.set(all.len());
    }
    let room = count.get()?;
    fill(all, out, room)?;
    count.set(all.len().min(room))
}

/// Writes the handles that fit, then zeros.
fn fill(all: &[u64], out: Out<u64>, room: usize) -> Cu {
    let zeros = std::iter::repeat_n(0, room.saturating_sub(all.len()));
    out.set_all(all.iter().copied().take(room).chain(zeros))
}

/// Writes zero data for `count` edges.
fn clear(data: Out<EdgeData>, count: usize) {
    for i in 0..count {
        data.element(i).set_if_wanted(EdgeData::default());
    }
}

/// As [`clear`], for the edges of the nodes that [`give`] writes.
fn clear_within(data: Out<EdgeData>, all: &[u64], out: Out<u64>, count: Out<usize>) {
    if let (false, Ok(room)) = (out.is_null(), count.get()) {
        clear(data, all.len().min(room));
    }
}

/// The nodes that directly depend on a node.
fn dependents(node: u64) -> Result<Vec<u64>, CuResult> {
    let shim = shim()?;
    let graph = shim.graph(shim.node(node)?.graph)?;
    let nodes = graph.nodes();
    let behind = nodes
        .iter()
        .filter(|n| lock(&n.dependencies).contains(&node));
    Ok(behind.map(|n| n.handle).collect())
}

/// Writes the edges that fit. The edge data is always zero.
fn give_edges(
    graph: u64,
    (from, to): (Out<u64>, Out<u64>),
    data: Out<EdgeData>,
    count: Out<usize>,
) -> Cu {
    let graph = shim()?.graph(graph)?;
    let mut all = Vec::new();
    for node in graph.nodes() {
        all.extend(lock(&node.dependencies).iter().map(|d| (*d, node.handle)));
    }
    let (ones, others): (Vec<u64>, Vec<u64>) = all.into_iter().unzip();
    if let (false, false, Ok(room)) = (from.is_null(), to.is_null(), count.get()) {
        clear(data, others.len().min(room));
        fill(&others, to, room)?;
    }
    give(&ones, from, count)
}

fn edges(graph: u64, (from, to, count): (In<u64>, In<u64>, usize), there: bool) -> Cu {
    let shim = live()?;
    let graph = shim.graph(graph)?;
    let (from, to) = (from.list(count)?, to.list(count)?);
    if !there && count > 0 && graph.owns_memory() {
        // The edges of a graph with memory nodes cannot change.
        return Err(CuResult::NOT_SUPPORTED);
    }
    let mut seen = HashSet::new();
    let pairs: Vec<(u64, u64)> = from.into_iter().zip(to).collect();
    for (from, to) in &pairs {
        let (before, behind) = (shim.node(*from)?, shim.node(*to)?);
        let of_it = before.graph == graph.handle && behind.graph == graph.handle;
        let known = lock(&behind.dependencies).contains(from);
        if !of_it || from == to || known == there || !seen.insert((*from, *to)) {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    for (from, to) in pairs {
        let behind = shim.node(to)?;
        let mut dependencies = lock(&behind.dependencies);
        match there {
            true => dependencies.push(from),
            false => dependencies.retain(|d| *d != from),
        }
    }
    Ok(())
}
