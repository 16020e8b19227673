//! Graphs: creation, nodes and dependencies.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{In, Out, Text};
use vgpu_cuda_abi::structs::{EdgeData, HostFn};

use crate::driver::callback::HostCall;
use crate::driver::error::Result;
use crate::driver::graph::node::Dependency;
use crate::driver::graph::{self, Edge, block, conditional, dot, object};
use crate::driver::{context, gpu, healthy};

/// Reads an array of nodes as dependencies without edge data.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE: a count without an array.
pub fn dependencies(nodes: In<u64>, count: usize) -> Result<Vec<Dependency>> {
    (0..count)
        .map(|i| Ok(Dependency::on(nodes.at(i)?)))
        .collect()
}

/// Reads an array of nodes as dependencies, with edge data if `data` is not null.
///
/// # Errors
/// As [`dependencies`].
pub fn dependencies_with(
    nodes: In<u64>,
    data: In<EdgeData>,
    count: usize,
) -> Result<Vec<Dependency>> {
    let mut all = dependencies(nodes, count)?;
    if !data.is_null() {
        for (i, d) in all.iter_mut().enumerate() {
            d.data = data.at(i)?;
        }
    }
    Ok(all)
}

fn edges(from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) -> Result<Vec<Edge>> {
    let one = |i| {
        Ok(Edge {
            from: from.at(i)?,
            to: to.at(i)?,
            data: if data.is_null() {
                EdgeData::default()
            } else {
                data.at(i)?
            },
        })
    };
    (0..count).map(one).collect()
}

/// Writes a list by CUDA's convention. Without an array, the number of values goes to `count`. With
/// an array, as many values as fit are written, followed by zeros, and their number goes to
/// `count`.
fn list(values: &[u64], out: Out<u64>, count: Out<usize>) -> Result {
    count.check()?;
    if out.is_null() {
        return count.set(values.len());
    }
    let room = count.get()?;
    fill(values, out, room)?;
    count.set(values.len().min(room))
}

/// Writes as many values as fit into `room`, followed by zeros.
fn fill(values: &[u64], out: Out<u64>, room: usize) -> Result {
    let zeros = std::iter::repeat_n(0, room.saturating_sub(values.len()));
    out.set_all(values.iter().copied().take(room).chain(zeros))
}

/// As [`list`], for the edge data of edges whose nodes [`list`] has written.
fn list_data(values: &[EdgeData], out: Out<EdgeData>, room: usize) -> Result {
    if out.is_null() {
        return Ok(());
    }
    let told = values.len().min(room);
    let rest = std::iter::repeat_n(EdgeData::default(), room - told);
    out.set_all(values[..told].iter().copied().chain(rest))
}

/// Fails if the edges have edge data and the function does not return edge data.
fn check_lossy(data: &[EdgeData], forms: Form, out: Out<EdgeData>) -> Result {
    let plain = data.iter().all(|d| *d == EdgeData::default());
    let told = matches!(forms, Form::Full) && !out.is_null();
    if plain || told {
        Ok(())
    } else {
        Err(CuResult::LOSSY_QUERY)
    }
}

/// The two versions of a function: `Full` returns edge data, `Plain` does not.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Full,
}

fn get_edges(
    graph: u64,
    from: Out<u64>,
    to: Out<u64>,
    data: Out<EdgeData>,
    count: Out<usize>,
    form: Form,
) -> Result {
    count.check()?;
    if from.is_null() != to.is_null() {
        return Err(CuResult::INVALID_VALUE);
    }
    let graph = graph::get(graph)?;
    let all = graph.lock().edges.clone();
    if from.is_null() {
        return count.set(all.len());
    }
    let how: Vec<_> = all.iter().map(|e| e.data).collect();
    check_lossy(&how, form, data)?;
    let room = count.get()?;
    fill(&all.iter().map(|e| e.from).collect::<Vec<_>>(), from, room)?;
    fill(&all.iter().map(|e| e.to).collect::<Vec<_>>(), to, room)?;
    list_data(&how, data, room)?;
    count.set(all.len().min(room))
}

/// The direction in which the neighbours of a node are listed.
#[derive(Clone, Copy)]
enum Side {
    Before,
    After,
}

fn neighbours(
    node: u64,
    side: Side,
    out: Out<u64>,
    data: Out<EdgeData>,
    count: Out<usize>,
    form: Form,
) -> Result {
    count.check()?;
    let graph = graph::of_node(node)?;
    let found: Vec<Edge> = {
        let body = graph.lock();
        let wanted = |e: &&Edge| match side {
            Side::Before => e.to == node,
            Side::After => e.from == node,
        };
        body.edges.iter().filter(wanted).copied().collect()
    };
    let other = |e: &Edge| match side {
        Side::Before => e.from,
        Side::After => e.to,
    };
    let nodes: Vec<u64> = found.iter().map(other).collect();
    if out.is_null() {
        return count.set(nodes.len());
    }
    let how: Vec<_> = found.iter().map(|e| e.data).collect();
    check_lossy(&how, form, data)?;
    let room = count.get()?;
    list_data(&how, data, room)?;
    list(&nodes, out, count)
}

const NONE: Out<EdgeData> = Out::NULL;
const NO_DATA: In<EdgeData> = In::NULL;

fn connect(graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) -> Result {
    graph::get(graph)?.connect(&edges(from, to, data, count)?)
}

fn disconnect(graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize) -> Result {
    graph::get(graph)?.disconnect(&edges(from, to, data, count)?)
}

exports! {
    fn cuGraphCreate(out: Out<u64>, flags: u32) {
        out.check()?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        out.set(graph::create()?.handle)
    }

    fn cuGraphDestroy(graph: u64) {
        graph::destroy(graph)
    }

    fn cuGraphClone(out: Out<u64>, graph: u64) {
        out.check()?;
        out.set(graph::get(graph)?.duplicate(false)?.handle)
    }

    fn cuGraphNodeFindInClone(out: Out<u64>, node: u64, clone: u64) {
        out.check()?;
        let found = graph::get(clone)?.find_clone_of(node);
        out.set(found.ok_or(CuResult::INVALID_VALUE)?)
    }

    fn cuGraphDestroyNode(node: u64) {
        graph::destroy_node(node)
    }

    fn cuGraphGetNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let all: Vec<u64> = graph::get(graph)?.lock().nodes.keys().copied().collect();
        list(&all, nodes, count)
    }

    fn cuGraphGetRootNodes(graph: u64, nodes: Out<u64>, count: Out<usize>) {
        let roots = graph::get(graph)?.lock().roots();
        list(&roots, nodes, count)
    }

    fn cuGraphGetEdges(graph: u64, from: Out<u64>, to: Out<u64>, count: Out<usize>) {
        get_edges(graph, from, to, NONE, count, Form::Plain)
    }

    fn cuGraphGetEdges_v2(
        graph: u64, from: Out<u64>, to: Out<u64>, data: Out<EdgeData>, count: Out<usize>,
    ) {
        get_edges(graph, from, to, data, count, Form::Full)
    }

    fn cuGraphNodeGetDependencies(node: u64, out: Out<u64>, count: Out<usize>) {
        neighbours(node, Side::Before, out, NONE, count, Form::Plain)
    }

    fn cuGraphNodeGetDependencies_v2(
        node: u64, out: Out<u64>, data: Out<EdgeData>, count: Out<usize>,
    ) {
        neighbours(node, Side::Before, out, data, count, Form::Full)
    }

    fn cuGraphNodeGetDependentNodes(node: u64, out: Out<u64>, count: Out<usize>) {
        neighbours(node, Side::After, out, NONE, count, Form::Plain)
    }

    fn cuGraphNodeGetDependentNodes_v2(
        node: u64, out: Out<u64>, data: Out<EdgeData>, count: Out<usize>,
    ) {
        neighbours(node, Side::After, out, data, count, Form::Full)
    }

    fn cuGraphAddDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        connect(graph, from, to, NO_DATA, count)
    }

    fn cuGraphAddDependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize,
    ) {
        connect(graph, from, to, data, count)
    }

    fn cuGraphRemoveDependencies(graph: u64, from: In<u64>, to: In<u64>, count: usize) {
        disconnect(graph, from, to, NO_DATA, count)
    }

    fn cuGraphRemoveDependencies_v2(
        graph: u64, from: In<u64>, to: In<u64>, data: In<EdgeData>, count: usize,
    ) {
        disconnect(graph, from, to, data, count)
    }

    fn cuGraphGetId(graph: u64, id: Out<u32>) {
        id.set(graph::get(graph)?.id)
    }

    fn cuGraphDebugDotPrint(graph: u64, path: Text, flags: u32) {
        let (graph, path) = (graph::get(graph)?, path.lossy()?);
        std::fs::write(path, dot::text(&graph, flags)).map_err(|_| CuResult::OPERATING_SYSTEM)
    }

    fn cuUserObjectCreate(
        out: Out<u64>, data: *mut c_void, destroy: Option<HostFn>, references: u32, flags: u32,
    ) {
        out.check()?;
        // 1 is CU_USER_OBJECT_NO_DESTRUCTOR_SYNC, which CUDA requires.
        if flags != 1 {
            return Err(CuResult::INVALID_VALUE);
        }
        out.set(object::create(HostCall::new(destroy, data)?, references)?)
    }

    fn cuUserObjectRetain(object: u64, count: u32) {
        object::retain(object, count)
    }

    fn cuUserObjectRelease(object: u64, count: u32) {
        object::release(object, count)
    }

    fn cuGraphRetainUserObject(graph: u64, object: u64, count: u32, flags: u32) {
        if flags & !1 != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        object::retain_by(&*graph::get(graph)?, object, count, flags == 1)
    }

    fn cuGraphReleaseUserObject(graph: u64, object: u64, count: u32) {
        object::release_by(&*graph::get(graph)?, object, count)
    }

    fn cuGraphConditionalHandleCreate(
        out: Out<u64>, graph: u64, context: u64, default: u32, flags: u32,
    ) {
        out.check()?;
        let graph = graph::get(graph)?;
        let context = match context {
            0 => context::current()?,
            given => context::get(given)?,
        };
        out.set(conditional::create(&graph, &context, default, flags)?)
    }

    fn cuDeviceGraphMemTrim(device: i32) {
        healthy()?;
        block::trim(gpu(device)?);
        Ok(())
    }

    fn cuDeviceGetGraphMemAttribute(device: i32, attribute: u32, value: Out<u64>) {
        value.set(block::attribute(device, attribute)?)
    }

    fn cuDeviceSetGraphMemAttribute(device: i32, attribute: u32, value: In<u64>) {
        block::set_attribute(device, attribute, value.get()?)
    }
}
