//! Graphs built by calls: nodes, dependencies, instances, updates.

mod driver_support;

use std::sync::atomic::{AtomicU32, Ordering};

use driver_support::graph::run;
use driver_support::graph::*;
use driver_support::*;
use soft_gpu::capi::{
    graph::exec::*, graph::graphs::*, graph::nodes::*, graph::params::*, module::load::*,
};
use vgpu_cuda_abi::structs::{
    AllocNodeParams, ExecUpdateInfo, HostNodeParams, KernelNodeParams2, MemsetNodeParams2,
    NodeParams,
};

#[test]
fn a_diamond_runs_in_order() {
    start();
    let m = module(KERNELS);
    let (inc, mul) = (function(m, "inc"), function(m, "mul"));
    let (p, q) = (upload(&[0u32; 8]), upload(&[0u32; 8]));
    let calls = AtomicU32::new(0);
    let g = graph();
    // The order in which the nodes are added differs from the order in which they run.
    let top = memset_node(g, &[], &set(p, 2, 8));
    let bottom = copy_node(g, &[], &copy(q + 16, p, 16));
    let left = kernel_node(g, &[top], inc, p, 3);
    let right = memset_node(g, &[top], &set(q, 9, 8));
    let square = kernel_node(g, &[left], mul, p, 10);
    let host = HostNodeParams {
        function: Some(count),
        data: (&raw const calls).expose_provenance(),
    };
    let mut called = 0;
    let joined = [bottom];
    ok(cuGraphAddHostNode(
        out(&mut called),
        g,
        list(&joined),
        1,
        at(&host),
    ));
    let (from, to) = ([square, right], [bottom, bottom]);
    ok(cuGraphAddDependencies(g, list(&from), list(&to), 2));
    let exec = instance(g);
    for n in 1..4 {
        run(exec);
        assert_eq!(download::<u32>(q, 8), [9, 9, 9, 9, 50, 50, 50, 50]);
        assert_eq!(calls.load(Ordering::SeqCst), n);
    }
}

#[test]
fn structure_can_be_read_and_changed() {
    start();
    let (g, other) = (graph(), graph());
    let (a, b, c) = (empty_node(g, &[]), empty_node(g, &[]), empty_node(g, &[]));
    let stranger = empty_node(other, &[]);
    ok(cuGraphAddDependencies(g, list(&[a, a]), list(&[b, c]), 2));
    let again = cuGraphAddDependencies(g, list(&[c, a]), list(&[b, b]), 2);
    assert_eq!(again, INVALID, "one exists: none is added");
    assert_eq!(
        cuGraphAddDependencies(g, list(&[a]), list(&[a]), 1),
        INVALID
    );
    assert_eq!(
        cuGraphAddDependencies(g, list(&[a]), list(&[stranger]), 1),
        INVALID
    );
    assert_eq!(cuGraphAddDependencies(g, none(), none(), 1), INVALID);
    let (mut from, mut to, mut n) = ([7; 4], [7; 4], 4);
    ok(cuGraphGetEdges(
        g,
        Out(from.as_mut_ptr()),
        Out(to.as_mut_ptr()),
        out(&mut n),
    ));
    assert_eq!((n, from, to), (2, [a, a, 0, 0], [b, c, 0, 0]));
    n = 1;
    let mut nodes = [7; 4];
    ok(cuGraphGetNodes(g, Out(nodes.as_mut_ptr()), out(&mut n)));
    assert_eq!((n, nodes), (1, [a, 7, 7, 7]));
    n = 4;
    ok(cuGraphGetRootNodes(g, Out(nodes.as_mut_ptr()), out(&mut n)));
    assert_eq!((n, nodes), (1, [a, 0, 0, 0]));
    n = 4;
    ok(cuGraphNodeGetDependentNodes(
        a,
        Out(nodes.as_mut_ptr()),
        out(&mut n),
    ));
    assert_eq!((n, &nodes[..2]), (2, &[b, c][..]));
    ok(cuGraphNodeGetDependencies(b, nowhere(), out(&mut n)));
    assert_eq!(n, 1);
    ok(cuGraphRemoveDependencies(g, list(&[a]), list(&[b]), 1));
    assert_eq!(
        cuGraphRemoveDependencies(g, list(&[a]), list(&[b]), 1),
        INVALID
    );
    ok(cuGraphDestroyNode(a));
    assert_eq!(cuGraphDestroyNode(a), INVALID);
    ok(cuGraphGetEdges(g, nowhere(), nowhere(), out(&mut n)));
    assert_eq!(n, 0, "the dependencies of the node are gone");
    ok(cuGraphGetNodes(g, nowhere(), out(&mut n)));
    assert_eq!(n, 2);
    assert_eq!(cuGraphGetNodes(g, nowhere(), nowhere()), INVALID);
    let (mut of, mut id) = (0, 9);
    ok(cuGraphNodeGetContainingGraph(b, out(&mut of)));
    ok(cuGraphNodeGetLocalId(c, out(&mut id)));
    assert_eq!((of, id), (g, 2));
}

#[test]
fn functions_without_edge_data_refuse_to_omit_it() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 8]);
    let g = graph();
    let (a, b) = (kernel_node(g, &[], f, p, 1), kernel_node(g, &[], f, p, 1));
    // CUgraphEdgeData: from the launch-order port, of the programmatic type.
    let data = [2u8, 0, 1, 0, 0, 0, 0, 0];
    ok(cuGraphAddDependencies_v2(
        g,
        list(&[a]),
        list(&[b]),
        at(&data),
        1,
    ));
    let (mut from, mut to, mut n, mut told) = ([0; 2], [0; 2], 2, [[9u8; 8]; 2]);
    let plain = cuGraphGetEdges(g, Out(from.as_mut_ptr()), Out(to.as_mut_ptr()), out(&mut n));
    assert_eq!(plain, 402);
    n = 2;
    ok(cuGraphGetEdges_v2(
        g,
        Out(from.as_mut_ptr()),
        Out(to.as_mut_ptr()),
        Out(told.as_mut_ptr().cast()),
        out(&mut n),
    ));
    assert_eq!((n, told), (1, [data, [0; 8]]));
    let wrong = [0u8, 0, 2, 0, 0, 0, 0, 0];
    let c = empty_node(g, &[]);
    let refused = cuGraphAddDependencies_v2(g, list(&[a]), list(&[c]), at(&wrong), 1);
    assert_eq!(refused, INVALID);
}

#[test]
fn a_cycle_is_found_when_the_graph_is_instantiated() {
    start();
    let g = graph();
    let (a, b, free) = (empty_node(g, &[]), empty_node(g, &[]), empty_node(g, &[]));
    ok(cuGraphAddDependencies(g, list(&[a, b]), list(&[b, a]), 2));
    let mut exec = 0;
    assert_eq!(cuGraphInstantiateWithFlags(out(&mut exec), g, 0), INVALID);
    // CUDA_GRAPH_INSTANTIATE_PARAMS: flags, stream, node, result.
    let mut params = [0u64, 0, 9, 9];
    let code = cuGraphInstantiateWithParams(out(&mut exec), g, inout(&mut params));
    assert_eq!((code, params[2], params[3] as u32), (INVALID, a, 2));
    let (mut node, mut log) = (0, [1u8; 64]);
    let code = cuGraphInstantiate_v2(
        out(&mut exec),
        g,
        out(&mut node),
        Out(log.as_mut_ptr().cast()),
        64,
    );
    assert_eq!((code, node), (INVALID, a));
    assert!(log.starts_with(b"CUDA_ERROR_INVALID_VALUE"));
    ok(cuGraphRemoveDependencies(g, list(&[b]), list(&[a]), 1));
    ok(cuGraphInstantiateWithParams(
        out(&mut exec),
        g,
        inout(&mut params),
    ));
    assert_eq!(params[3] as u32, 0, "{free}");
    let mut flags = 9;
    ok(cuGraphInstantiateWithFlags(out(&mut exec), g, 1 | 8));
    ok(cuGraphExecGetFlags(exec, out(&mut flags)));
    assert_eq!(flags, 9);
    for bad in [1 | 4, 16] {
        assert_eq!(cuGraphInstantiateWithFlags(out(&mut exec), g, bad), INVALID);
    }
    assert_eq!(
        cuGraphInstantiateWithFlags(out(&mut exec), g, 4),
        UNSUPPORTED
    );
}

#[test]
fn parameters_can_be_read_and_set() {
    start();
    let m = module(KERNELS);
    let (inc, mul) = (function(m, "inc"), function(m, "mul"));
    let p = upload(&[1u32; 8]);
    let g = graph();
    let k = kernel_node(g, &[], inc, p, 41);
    let s = memset_node(g, &[k], &set(p, 1, 2));
    let mut got = with_kernel(0, 0, 0, |k| *k);
    ok(cuGraphKernelNodeGetParams_v2(k, inout(&mut got)));
    assert_eq!((got.base.function, got.base.block), (inc, [8, 1, 1]));
    assert!(got.base.extra.is_null());
    let params = got.base.params.list(2).expect("the node's own array");
    let address = In(params[0].pointer().cast::<u64>()).get();
    let number = In(params[1].pointer().cast::<u32>()).get();
    assert_eq!((address, number), (Ok(p), Ok(41)));
    with_kernel(mul, p, 6, |new| {
        ok(cuGraphKernelNodeSetParams_v2(k, at(new)));
    });
    let mut told = set(0, 0, 0);
    ok(cuGraphMemsetNodeGetParams(s, inout(&mut told)));
    assert_eq!(told, set(p, 1, 2));
    ok(cuGraphMemsetNodeSetParams(s, at(&set(p, 7, 1))));
    // Calls for a node of another type, and calls with invalid parameters.
    assert_eq!(cuGraphKernelNodeGetParams_v2(s, inout(&mut got)), INVALID);
    assert_eq!(cuGraphMemsetNodeSetParams(k, at(&set(p, 7, 1))), INVALID);
    let mut odd = set(p, 7, 1);
    odd.element = 3;
    assert_eq!(cuGraphMemsetNodeSetParams(s, at(&odd)), INVALID);
    assert_eq!(cuGraphMemsetNodeSetParams(s, at(&set(64, 7, 1))), INVALID);
    run(instance(g));
    assert_eq!(download::<u32>(p, 8), [7, 6, 6, 6, 6, 6, 6, 6]);
    // Attribute 2 (cooperative) has an effect. The priority is only stored.
    let mut value = [9u32; 16];
    ok(cuGraphKernelNodeGetAttribute(k, 2, out(&mut value)));
    assert_eq!(value[0], 0);
    value = [0; 16];
    value[0] = 1;
    ok(cuGraphKernelNodeSetAttribute(k, 2, at(&value)));
    value[0] = -3i32 as u32;
    ok(cuGraphKernelNodeSetAttribute(k, 8, at(&value)));
    let second = kernel_node(g, &[], inc, p, 0);
    ok(cuGraphKernelNodeCopyAttributes(second, k));
    ok(cuGraphKernelNodeGetAttribute(second, 8, out(&mut value)));
    assert_eq!(value[0] as i32, -3);
    assert_eq!(
        cuGraphKernelNodeGetAttribute(k, 3, out(&mut value)),
        INVALID
    );
    assert_eq!(
        cuGraphKernelNodeGetAttribute(s, 2, out(&mut value)),
        INVALID
    );
    run(instance(g));
}

#[test]
fn one_function_adds_nodes_of_all_kinds() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 8]);
    let g = graph();
    let mut node = 0;
    let mut any = NodeParams::empty(2);
    any.put(MemsetNodeParams2 {
        base: set(p, 4, 8),
        context: 0,
    });
    ok(cuGraphAddNode(out(&mut node), g, none(), 0, out(&mut any)));
    let first = [node];
    with_kernel(f, p, 3, |k| {
        any = NodeParams::empty(0);
        any.put(*k);
        ok(cuGraphAddNode_v2(
            out(&mut node),
            g,
            list(&first),
            none(),
            1,
            out(&mut any),
        ));
    });
    run(instance(g));
    assert_eq!(download::<u32>(p, 8), [7; 8]);
    let mut told = NodeParams::empty(9);
    ok(cuGraphNodeGetParams(node, out(&mut told)));
    let function = told.view::<KernelNodeParams2>().base.function;
    assert_eq!((told.kind, function), (0, f));
    // The call returns the address of the allocation in its parameters.
    any = NodeParams::empty(10);
    let mut alloc: AllocNodeParams = any.view();
    alloc.pool.kind = 1; // pinned
    alloc.pool.location.kind = 1; // on device 0
    alloc.bytes = 4096;
    any.put(alloc);
    ok(cuGraphAddNode(out(&mut node), g, none(), 0, out(&mut any)));
    assert_ne!(any.view::<AllocNodeParams>().address, 0);
    for unserved in [8, 9, 14] {
        any = NodeParams::empty(unserved);
        let code = cuGraphAddNode(out(&mut node), g, none(), 0, out(&mut any));
        assert_eq!(code, UNSUPPORTED);
    }
    any.kind = 77;
    let code = cuGraphAddNode(out(&mut node), g, none(), 0, out(&mut any));
    assert_eq!(code, INVALID);
}

#[test]
fn an_update_changes_the_instance_and_not_the_graph() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 8]);
    let g = graph();
    let s = memset_node(g, &[], &set(p, 1, 8));
    let k = kernel_node(g, &[s], f, p, 1);
    let e = empty_node(g, &[k]);
    let (exec, untouched) = (instance(g), instance(g));
    with_kernel(f, p, 10, |new| {
        ok(cuGraphExecKernelNodeSetParams_v2(exec, k, at(new)));
    });
    run(exec);
    assert_eq!(download::<u32>(p, 8), [11; 8]);
    run(untouched);
    assert_eq!(download::<u32>(p, 8), [2; 8]);
    ok(cuGraphNodeSetEnabled(exec, k, 0));
    let mut enabled = 9;
    ok(cuGraphNodeGetEnabled(exec, k, out(&mut enabled)));
    assert_eq!(enabled, 0);
    run(exec);
    assert_eq!(download::<u32>(p, 8), [1; 8]);
    ok(cuGraphNodeSetEnabled(exec, k, 1));
    ok(cuGraphExecMemsetNodeSetParams(
        exec,
        s,
        at(&set(p, 5, 4)),
        0,
    ));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [15, 15, 15, 15, 11, 11, 11, 11]);
    assert_eq!(cuGraphNodeSetEnabled(exec, e, 0), INVALID);
    assert_eq!(
        cuGraphExecMemsetNodeSetParams(exec, k, at(&set(p, 5, 4)), 0),
        INVALID
    );
    let stranger = empty_node(graph(), &[]);
    assert_eq!(cuGraphNodeSetEnabled(exec, stranger, 0), INVALID);
    ok(cuGraphExecDestroy(exec));
    assert_eq!(cuGraphExecDestroy(exec), INVALID);
    assert_eq!(cuGraphLaunch(exec, NULL), INVALID);
}

fn update(exec: u64, g: u64) -> (u32, ExecUpdateInfo) {
    let mut info = ExecUpdateInfo {
        result: 99,
        error_node: 99,
        error_from: 99,
    };
    (cuGraphExecUpdate_v2(exec, g, out(&mut info)), info)
}

#[test]
fn an_instance_is_updated_from_a_graph_of_the_same_shape() {
    start();
    let m = module(KERNELS);
    let (inc, mul) = (function(m, "inc"), function(m, "mul"));
    let p = upload(&[0u32; 8]);
    let build = |f: u64, n: u32, joined: bool| {
        let g = graph();
        let s = memset_node(g, &[], &set(p, n, 8));
        let after: &[u64] = if joined { &[s] } else { &[] };
        let k = kernel_node(g, after, f, p, n);
        (g, s, k)
    };
    let (g, ..) = build(inc, 1, true);
    let exec = instance(g);
    let (new, ..) = build(mul, 6, true);
    let nothing = ExecUpdateInfo {
        result: 0,
        error_node: 0,
        error_from: 0,
    };
    assert_eq!(update(exec, new), (0, nothing));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [36; 8]);
    // A refused update changes nothing.
    let (loose, _, k) = build(inc, 3, false);
    let failure = 910;
    let (code, info) = update(exec, loose);
    assert_eq!((code, info.result), (failure, 2), "{k}");
    let (more, s, _) = build(inc, 3, true);
    empty_node(more, &[s]);
    assert_eq!(update(exec, more).1.result, 2);
    let other = graph();
    let a = memset_node(other, &[], &set(p, 3, 8));
    let b = memset_node(other, &[a], &set(p, 3, 8));
    let (code, info) = update(exec, other);
    assert_eq!((code, info.result, info.error_node), (failure, 3, b));
    let (mut node, mut result) = (0, 0);
    let code = cuGraphExecUpdate(exec, other, out(&mut node), out(&mut result));
    assert_eq!((code, node, result), (failure, b, 3));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [36; 8]);
    assert_eq!(cuGraphExecUpdate_v2(exec, other, nowhere()), INVALID);
}

#[test]
fn child_graphs_are_copies_and_clones_keep_track() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 8]);
    let inner = graph();
    let k = kernel_node(inner, &[], f, p, 1);
    let outer = graph();
    let s = memset_node(outer, &[], &set(p, 0, 8));
    let (mut one, mut two) = (0, 0);
    ok(cuGraphAddChildGraphNode(
        out(&mut one),
        outer,
        list(&[s]),
        1,
        inner,
    ));
    ok(cuGraphAddChildGraphNode(
        out(&mut two),
        outer,
        list(&[one]),
        1,
        inner,
    ));
    with_kernel(f, p, 1000, |new| {
        ok(cuGraphKernelNodeSetParams_v2(k, at(new)));
    });
    let mut embedded = 0;
    ok(cuGraphChildGraphNodeGetGraph(two, out(&mut embedded)));
    assert_ne!(embedded, inner);
    assert_eq!(cuGraphDestroy(embedded), INVALID, "the graph of a node");
    let (mut node, mut n) = (0, 1);
    ok(cuGraphGetNodes(embedded, out(&mut node), out(&mut n)));
    with_kernel(f, p, 10, |new| {
        ok(cuGraphKernelNodeSetParams_v2(node, at(new)));
    });
    let exec = instance(outer);
    ok(cuGraphDestroy(inner));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [11; 8]);
    // The update addresses the node inside the child graph of the instance.
    with_kernel(f, p, 20, |new| {
        ok(cuGraphExecKernelNodeSetParams_v2(exec, node, at(new)));
    });
    run(exec);
    assert_eq!(download::<u32>(p, 8), [21; 8]);

    let (mut clone, mut found) = (0, 0);
    ok(cuGraphClone(out(&mut clone), outer));
    ok(cuGraphNodeFindInClone(out(&mut found), s, clone));
    assert!(found != s && found != 0);
    ok(cuGraphMemsetNodeSetParams(found, at(&set(p, 100, 8))));
    ok(cuGraphNodeFindInClone(out(&mut found), node, clone));
    with_kernel(f, p, 0, |new| {
        ok(cuGraphKernelNodeSetParams_v2(found, at(new)));
    });
    assert_eq!(cuGraphNodeFindInClone(out(&mut found), s, outer), INVALID);
    let cloned = instance(clone);
    ok(cuGraphDestroy(outer));
    assert_eq!(cuGraphNodeGetLocalId(s, out(&mut 0)), INVALID);
    assert_eq!(cuGraphNodeGetLocalId(node, out(&mut 0)), INVALID);
    run(cloned);
    assert_eq!(download::<u32>(p, 8), [101; 8]);
    run(exec);
    assert_eq!(download::<u32>(p, 8), [21; 8]);
}

#[test]
fn a_graph_can_be_drawn() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 8]);
    let g = graph();
    let s = memset_node(g, &[], &set(p, 1, 8));
    kernel_node(g, &[s], f, p, 1);
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("graph.dot");
    let name = std::ffi::CString::new(path.to_str().expect("UTF-8")).expect("no NUL");
    ok(cuGraphDebugDotPrint(g, Text(name.as_ptr()), 1));
    let text = std::fs::read_to_string(&path).expect("written");
    assert!(text.starts_with("digraph dot {"), "{text}");
    assert!(
        text.contains("KERNEL\\ninc") && text.contains("MEMSET"),
        "{text}"
    );
    assert_eq!(text.matches(" -> ").count(), 1);
    assert_eq!(cuGraphDebugDotPrint(g, Text(std::ptr::null()), 0), INVALID);
    assert_eq!(cuGraphDebugDotPrint(g, Text(c"/no/where".as_ptr()), 0), 304);
}

#[test]
fn kernels_of_a_destroyed_module_or_context_do_not_crash_a_launch() {
    start();
    let m = module(KERNELS);
    let f = function(m, "inc");
    let p = upload(&[0u32; 8]);
    let g = graph();
    kernel_node(g, &[], f, p, 1);
    let exec = instance(g);
    ok(cuModuleUnload(m));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [1; 8], "the node keeps its code");
    let mut node = 0;
    let code = with_kernel(f, p, 1, |k| {
        cuGraphAddKernelNode_v2(out(&mut node), g, none(), 0, at(k))
    });
    assert_eq!(code, BAD_HANDLE);
}

#[test]
fn invalid_arguments_return_the_documented_codes() {
    start();
    let g = graph();
    let mut x = 0;
    assert_eq!(cuGraphCreate(nowhere(), 0), INVALID);
    assert_eq!(cuGraphCreate(out(&mut x), 1), INVALID);
    for bad in [0, 7, 0x050c_0000_0000_fff0] {
        assert_eq!(cuGraphDestroy(bad), INVALID);
        assert_eq!(cuGraphDestroyNode(bad), INVALID);
        assert_eq!(cuGraphInstantiateWithFlags(out(&mut x), bad, 0), INVALID);
        assert_eq!(cuGraphAddEmptyNode(out(&mut x), bad, none(), 0), INVALID);
        assert_eq!(cuGraphLaunch(bad, NULL), INVALID);
        assert_eq!(cuGraphExecDestroy(bad), INVALID);
        assert_eq!(cuUserObjectRelease(bad, 1), INVALID);
    }
    let n = empty_node(g, &[]);
    assert_eq!(cuGraphAddEmptyNode(nowhere(), g, none(), 0), INVALID);
    assert_eq!(cuGraphAddEmptyNode(out(&mut x), g, none(), 1), INVALID);
    let twice = [n, n];
    assert_eq!(
        cuGraphAddEmptyNode(out(&mut x), g, list(&twice), 2),
        INVALID
    );
    assert_eq!(
        cuGraphAddKernelNode_v2(out(&mut x), g, none(), 0, none()),
        INVALID
    );
    let code = with_kernel(0, 0, 0, |k| {
        cuGraphAddKernelNode_v2(out(&mut x), g, none(), 0, at(k))
    });
    assert_eq!(code, INVALID);
    let host = [0u64; 2];
    assert_eq!(
        cuGraphAddHostNode(out(&mut x), g, none(), 0, at(&host)),
        INVALID
    );
    assert_eq!(
        cuGraphAddEventRecordNode(out(&mut x), g, none(), 0, 3),
        BAD_HANDLE
    );
    let mut too_large = alloc_params(1 << 50);
    let code = cuGraphAddMemAllocNode(out(&mut x), g, none(), 0, inout(&mut too_large));
    assert_eq!(code, 2);
    assert_eq!(cuGraphLaunch(instance(g), StreamArg(0x99)), BAD_HANDLE);
    ok(cuGraphDestroy(g));
    assert_eq!(cuGraphDestroy(g), INVALID);
    assert_eq!(cuGraphNodeGetType(n, out(&mut 0)), INVALID);
}
