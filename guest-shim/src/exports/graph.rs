//! Graphs and their nodes. What nodes do is in `graph_nodes`, what becomes of graphs in `graph_exec`.

use std::collections::HashSet;
use std::ffi::c_char;

use vgpu_proto::cuda::CuResult;

use super::capture::list;
use crate::ffi::{exports, put, put_optional, required};
use crate::process::{live, shim};
use crate::state::graphs::{self, Kind};
use crate::{Cu, lock};

exports! {
    /// An empty graph.
    fn cuGraphCreate(out: *mut u64, flags: u32) {
        let shim = live()?;
        required(out)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let graph = shim.create_graph()?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, graph.handle) }
    }

    /// What was made of it stays.
    fn cuGraphDestroy(graph: u64) {
        live()?.destroy_graph(graph)
    }

    /// A copy as it is now.
    fn cuGraphClone(out: *mut u64, original: u64) {
        let shim = live()?;
        required(out)?;
        let copy = shim.clone_graph(&*shim.graph(original)?, false)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, copy.handle) }
    }

    /// The node of a copy that is a copy of this one.
    fn cuGraphNodeFindInClone(out: *mut u64, original: u64, copy: u64) {
        let shim = shim()?;
        let copy = shim.graph(copy)?;
        let found = Some(original).filter(|n| *n != 0).and_then(|n| graphs::copy_of(&copy, n));
        // SAFETY: by the contract of the function.
        unsafe { put(out, found.ok_or(CuResult::INVALID_VALUE)?) }
    }

    /// What depended on it depends on it no more.
    fn cuGraphDestroyNode(node: u64) {
        live()?.destroy_node(node)
    }

    /// `CUgraphNodeType`.
    fn cuGraphNodeGetType(node: u64, out: *mut u32) {
        let number = lock(&shim()?.node(node)?.kind).number();
        // SAFETY: by the contract of the function.
        unsafe { put(out, number) }
    }

    /// All nodes.
    fn cuGraphGetNodes(graph: u64, out: *mut u64, count: *mut usize) {
        let nodes: Vec<u64> = shim()?.graph(graph)?.nodes().iter().map(|n| n.handle).collect();
        // SAFETY: by the contract of the function.
        unsafe { give(&nodes, out, count) }
    }

    /// Nodes that come behind nothing.
    fn cuGraphGetRootNodes(graph: u64, out: *mut u64, count: *mut usize) {
        let nodes: Vec<u64> = shim()?
            .graph(graph)?
            .nodes()
            .iter()
            .filter(|n| lock(&n.dependencies).is_empty())
            .map(|n| n.handle)
            .collect();
        // SAFETY: by the contract of the function.
        unsafe { give(&nodes, out, count) }
    }

    /// Adds edges.
    fn cuGraphAddDependencies(graph: u64, from: *const u64, to: *const u64, count: usize) {
        // SAFETY: by the contract of the function.
        unsafe { edges(graph, (from, to, count), true) }
    }

    /// Removes edges.
    fn cuGraphRemoveDependencies(graph: u64, from: *const u64, to: *const u64, count: usize) {
        // SAFETY: by the contract of the function.
        unsafe { edges(graph, (from, to, count), false) }
    }

    /// All edges.
    fn cuGraphGetEdges(graph: u64, from: *mut u64, to: *mut u64, count: *mut usize) {
        // SAFETY: by the contract of the function.
        unsafe { give_edges(graph, (from, to), std::ptr::null_mut(), count) }
    }

    /// What a node comes behind.
    fn cuGraphNodeGetDependencies(node: u64, out: *mut u64, count: *mut usize) {
        let before = lock(&shim()?.node(node)?.dependencies).clone();
        // SAFETY: by the contract of the function.
        unsafe {
            give(&before, out, count)
        }
    }

    /// What comes behind a node.
    fn cuGraphNodeGetDependentNodes(node: u64, out: *mut u64, count: *mut usize) {
        let behind = dependents(node)?;
        // SAFETY: by the contract of the function.
        unsafe {
            give(&behind, out, count)
        }
    }

    /// Adds edges; data of edges is always zero.
    fn cuGraphAddDependencies_v2(graph: u64, from: *const u64, to: *const u64, _data: *const u64, count: usize) {
        // SAFETY: by the contract of the function.
        unsafe { edges(graph, (from, to, count), true) }
    }

    /// Removes edges; data of edges is always zero.
    fn cuGraphRemoveDependencies_v2(graph: u64, from: *const u64, to: *const u64, _data: *const u64, count: usize) {
        // SAFETY: by the contract of the function.
        unsafe { edges(graph, (from, to, count), false) }
    }

    /// All edges; data of edges is always zero.
    fn cuGraphGetEdges_v2(graph: u64, from: *mut u64, to: *mut u64, data: *mut u64, count: *mut usize) {
        // SAFETY: by the contract of the function.
        unsafe { give_edges(graph, (from, to), data, count) }
    }

    /// What a node comes behind; data of edges is always zero.
    fn cuGraphNodeGetDependencies_v2(node: u64, out: *mut u64, data: *mut u64, count: *mut usize) {
        let before = lock(&shim()?.node(node)?.dependencies).clone();
        // SAFETY: by the contract of the function.
        unsafe {
            clear_within(data, &before, out, count);
            give(&before, out, count)
        }
    }

    /// What comes behind a node; data of edges is always zero.
    fn cuGraphNodeGetDependentNodes_v2(node: u64, out: *mut u64, data: *mut u64, count: *mut usize) {
        let behind = dependents(node)?;
        // SAFETY: by the contract of the function.
        unsafe {
            clear_within(data, &behind, out, count);
            give(&behind, out, count)
        }
    }

    /// A node that does nothing.
    fn cuGraphAddEmptyNode(out: *mut u64, graph: u64, behind: *const u64, count: usize) {
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), || Ok(Kind::Empty)) }
    }

    /// A graph as a node, as it is now.
    fn cuGraphAddChildGraphNode(
        out: *mut u64,
        graph: u64,
        behind: *const u64,
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
        // SAFETY: by the contract of the function.
        unsafe { add(out, graph, (behind, count), make) }
    }

    /// The graph of such a node.
    fn cuGraphChildGraphNodeGetGraph(node: u64, out: *mut u64) {
        match &*lock(&shim()?.node(node)?.kind) {
            // SAFETY: by the contract of the function.
            Kind::Child(child) => unsafe { put(out, child.handle) },
            _ => Err(CuResult::INVALID_VALUE),
        }
    }

    /// Nodes and edges in the language of Graphviz, in a file of the guest.
    fn cuGraphDebugDotPrint(graph: u64, path: *const c_char, flags: u32) {
        let shim = shim()?;
        let graph = shim.graph(graph)?;
        required(path)?;
        // SAFETY: by the contract of the function.
        let path = unsafe { crate::ffi::text(path) }?;
        std::fs::write(path, graphs::dot::text(&graph, flags)).map_err(|_| CuResult::OPERATING_SYSTEM)
    }

    /// Its number among graphs.
    fn cuGraphGetId(graph: u64, out: *mut u32) {
        let id = shim()?.graph(graph)?.id;
        // SAFETY: by the contract of the function.
        unsafe { put(out, id) }
    }

    /// The graph that a node is in.
    fn cuGraphNodeGetContainingGraph(node: u64, out: *mut u64) {
        let graph = shim()?.node(node)?.graph;
        // SAFETY: by the contract of the function.
        unsafe { put(out, graph) }
    }

    /// Its number among the nodes of its graph.
    fn cuGraphNodeGetLocalId(node: u64, out: *mut u32) {
        let local = shim()?.node(node)?.local;
        // SAFETY: by the contract of the function.
        unsafe { put(out, local) }
    }

    /// A number that no other node has.
    fn cuGraphNodeGetToolsId(node: u64, out: *mut u64) {
        let shim = shim()?;
        let node = shim.node(node)?;
        let graph = shim.graph(node.graph)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, u64::from(graph.id) << 32 | u64::from(node.local)) }
    }

    /// A value that conditional nodes read and kernels set.
    fn cuGraphConditionalHandleCreate(
        out: *mut u64,
        graph: u64,
        ctx: u64,
        default: u32,
        flags: u32
    ) {
        let shim = live()?;
        required(out)?;
        let graph = shim.graph(graph)?;
        let ctx = shim.contexts.named(ctx)?;
        let handle = graphs::conditional::create(shim, &graph, ctx, default, flags)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, handle) }
    }
}

/// Adds a node.
///
/// # Safety
/// `out` is null or valid for a write, the list as long as its count says.
pub(super) unsafe fn add(
    out: *mut u64,
    graph: u64,
    (behind, count): (*const u64, usize),
    make: impl FnOnce() -> Cu<Kind>,
) -> Cu {
    let shim = live()?;
    required(out)?;
    let graph = shim.graph(graph)?;
    // SAFETY: by this function's contract.
    let behind = unsafe { list(behind, count) }?;
    let node = shim.add_node(&graph, make()?, behind)?;
    // SAFETY: by this function's contract.
    unsafe { put(out, node) }
}

/// Writes as many handles as there is room for, zeros behind them, and how many there are.
///
/// # Safety
/// `out` is null or has room for `*count` handles.
unsafe fn give(all: &[u64], out: *mut u64, count: *mut usize) -> Cu {
    required(count)?;
    if !out.is_null() {
        // SAFETY: by this function's contract.
        let room = unsafe { count.read_unaligned() };
        for i in 0..room {
            // SAFETY: by this function's contract.
            unsafe { put(out.add(i), all.get(i).copied().unwrap_or(0))? };
        }
        // SAFETY: by this function's contract.
        return unsafe { put(count, all.len().min(room)) };
    }
    // SAFETY: by this function's contract.
    unsafe { put(count, all.len()) }
}

/// Clears data of edges: 8 bytes each.
///
/// # Safety
/// `data` is null or has room for so many.
unsafe fn clear(data: *mut u64, count: usize) {
    for i in 0..count {
        if !data.is_null() {
            // SAFETY: by this function's contract.
            unsafe { put_optional(data.add(i), 0) };
        }
    }
}

/// As [`clear`], for a list that is about to be given.
///
/// # Safety
/// As [`give`].
unsafe fn clear_within(data: *mut u64, all: &[u64], out: *mut u64, count: *mut usize) {
    if !out.is_null() && !count.is_null() {
        // SAFETY: by this function's contract.
        unsafe { clear(data, all.len().min(count.read_unaligned())) };
    }
}

/// The nodes that come right behind a node.
fn dependents(node: u64) -> Result<Vec<u64>, CuResult> {
    let shim = shim()?;
    let graph = shim.graph(shim.node(node)?.graph)?;
    let nodes = graph.nodes();
    let behind = nodes
        .iter()
        .filter(|n| lock(&n.dependencies).contains(&node));
    Ok(behind.map(|n| n.handle).collect())
}

/// Writes all edges of a graph, as far as there is room; data of edges is always zero.
///
/// # Safety
/// Each list is null or has room for `count`.
unsafe fn give_edges(
    graph: u64,
    (from, to): (*mut u64, *mut u64),
    data: *mut u64,
    count: *mut usize,
) -> Cu {
    let graph = shim()?.graph(graph)?;
    let mut all = Vec::new();
    for node in graph.nodes() {
        all.extend(lock(&node.dependencies).iter().map(|d| (*d, node.handle)));
    }
    let (ones, others): (Vec<u64>, Vec<u64>) = all.into_iter().unzip();
    // SAFETY: by this function's contract.
    unsafe {
        if !from.is_null() && !to.is_null() && !count.is_null() {
            let mut room = count.read_unaligned();
            clear(data, others.len().min(room));
            give(&others, to, &mut room)?;
        }
        give(&ones, from, count)
    }
}

/// # Safety
/// The lists are null or as long as their count says.
unsafe fn edges(graph: u64, (from, to, count): (*const u64, *const u64, usize), there: bool) -> Cu {
    let shim = live()?;
    let graph = shim.graph(graph)?;
    // SAFETY: by this function's contract.
    let (from, to) = unsafe { (list(from, count)?, list(to, count)?) };
    if !there && count > 0 && graph.owns_memory() {
        // Graphs with memory nodes keep their shape.
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
