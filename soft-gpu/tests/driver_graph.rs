//! Graphs made by hand: nodes, dependencies, instances, updates, memory, user objects.

mod driver_support;

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};

use driver_support::*;
use soft_gpu::capi::types::{In, Out, Text};
use soft_gpu::capi::{
    event::*, graph::*, graph_exec::*, graph_node::*, memory::*, memset::*, module::*, pool::*,
    stream::*,
};

/// CUDA_KERNEL_NODE_PARAMS_v2.
#[derive(Clone, Copy)]
#[repr(C)]
struct Kernel {
    func: u64,
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    params: *const *const u8,
    extra: u64,
    kern: u64,
    context: u64,
}

/// CUDA_MEMSET_NODE_PARAMS.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C)]
struct Set {
    addr: u64,
    pitch: usize,
    value: u32,
    size: u32,
    width: usize,
    height: usize,
}

fn set(addr: u64, value: u32, width: usize) -> Set {
    Set {
        addr,
        pitch: 0,
        value,
        size: 4,
        width,
        height: 1,
    }
}

/// CUDA_MEMCPY3D of contiguous device memory.
fn copy(dst: u64, src: u64, bytes: usize) -> [u64; 25] {
    let mut c = [0; 25];
    (c[4], c[6]) = (2, src);
    (c[15], c[17]) = (2, dst);
    (c[22], c[23], c[24]) = (bytes as u64, 1, 1);
    c
}

/// CUDA_HOST_NODE_PARAMS.
#[repr(C)]
struct Host {
    call: extern "C" fn(*mut c_void),
    data: *const c_void,
}

extern "C" fn count(data: *mut c_void) {
    // SAFETY: the tests pass a counter that outlives the graph.
    unsafe { &*data.cast::<AtomicU32>() }.fetch_add(1, Ordering::SeqCst);
}

fn graph() -> u64 {
    let mut g = 0;
    ok(cuGraphCreate(out(&mut g), 0));
    g
}

fn list(nodes: &[u64]) -> In<u64> {
    In(nodes.as_ptr())
}

fn memset_node(g: u64, after: &[u64], s: &Set) -> u64 {
    let mut n = 0;
    ok(cuGraphAddMemsetNode(
        out(&mut n),
        g,
        list(after),
        after.len(),
        at(s),
        0,
    ));
    n
}

fn copy_node(g: u64, after: &[u64], c: &[u64; 25]) -> u64 {
    let mut n = 0;
    ok(cuGraphAddMemcpyNode(
        out(&mut n),
        g,
        list(after),
        after.len(),
        at(c),
        0,
    ));
    n
}

fn empty_node(g: u64, after: &[u64]) -> u64 {
    let mut n = 0;
    ok(cuGraphAddEmptyNode(
        out(&mut n),
        g,
        list(after),
        after.len(),
    ));
    n
}

/// Calls `f` with the parameters of a launch of `func(p, n)` with 8 threads.
fn with_kernel<T>(func: u64, p: u64, n: u32, f: impl FnOnce(&Kernel) -> T) -> T {
    let params = [
        std::ptr::from_ref(&p).cast::<u8>(),
        std::ptr::from_ref(&n).cast(),
    ];
    f(&Kernel {
        func,
        grid: [1; 3],
        block: [8, 1, 1],
        shared: 0,
        params: params.as_ptr(),
        extra: 0,
        kern: 0,
        context: 0,
    })
}

fn kernel_node(g: u64, after: &[u64], func: u64, p: u64, n: u32) -> u64 {
    let mut node = 0;
    with_kernel(func, p, n, |k| {
        ok(cuGraphAddKernelNode_v2(
            out(&mut node),
            g,
            list(after),
            after.len(),
            at(k),
        ));
    });
    node
}

fn instance(g: u64) -> u64 {
    let mut exec = 0;
    ok(cuGraphInstantiateWithFlags(out(&mut exec), g, 0));
    exec
}

fn run(exec: u64) {
    ok(cuGraphLaunch(exec, NULL));
    ok(cuStreamSynchronize(NULL));
}

#[test]
fn a_diamond_runs_in_order() {
    start();
    let m = module(KERNELS);
    let (inc, mul) = (function(m, "inc"), function(m, "mul"));
    let (p, q) = (upload(&[0u32; 8]), upload(&[0u32; 8]));
    let calls = AtomicU32::new(0);
    let g = graph();
    // Added in another order than they run in.
    let top = memset_node(g, &[], &set(p, 2, 8));
    let bottom = copy_node(g, &[], &copy(q + 16, p, 16));
    let left = kernel_node(g, &[top], inc, p, 3);
    let right = memset_node(g, &[top], &set(q, 9, 8));
    let square = kernel_node(g, &[left], mul, p, 10);
    let host = Host {
        call: count,
        data: std::ptr::from_ref(&calls).cast(),
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
    assert_eq!(again, INVALID, "one is there already: none is added");
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
    assert_eq!(n, 0, "its dependencies went with it");
    ok(cuGraphGetNodes(g, nowhere(), out(&mut n)));
    assert_eq!(n, 2);
    assert_eq!(cuGraphGetNodes(g, nowhere(), nowhere()), INVALID);
    let (mut of, mut id) = (0, 9);
    ok(cuGraphNodeGetContainingGraph(b, out(&mut of)));
    ok(cuGraphNodeGetLocalId(c, out(&mut id)));
    assert_eq!((of, id), (g, 2));
}

#[test]
fn dependencies_with_data_are_not_told_by_functions_without() {
    start();
    let f = function(module(KERNELS), "inc");
    let p = upload(&[0u32; 8]);
    let g = graph();
    let (a, b) = (kernel_node(g, &[], f, p, 1), kernel_node(g, &[], f, p, 1));
    // CUgraphEdgeData: from the launch-order port, programmatic.
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
        log.as_mut_ptr().cast(),
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
    assert_eq!((got.func, got.block, got.extra), (inc, [8, 1, 1], 0));
    // SAFETY: the node's own array of two parameters.
    let (address, number) = unsafe {
        (
            (*got.params).cast::<u64>().read_unaligned(),
            (*got.params.add(1)).cast::<u32>().read_unaligned(),
        )
    };
    assert_eq!((address, number), (p, 41));
    with_kernel(mul, p, 6, |new| {
        ok(cuGraphKernelNodeSetParams_v2(k, at(new)))
    });
    let mut told = set(0, 0, 0);
    ok(cuGraphMemsetNodeGetParams(s, inout(&mut told)));
    assert_eq!(told, set(p, 1, 2));
    ok(cuGraphMemsetNodeSetParams(s, at(&set(p, 7, 1))));
    // What does not fit the node, or anything.
    assert_eq!(cuGraphKernelNodeGetParams_v2(s, inout(&mut got)), INVALID);
    assert_eq!(cuGraphMemsetNodeSetParams(k, at(&set(p, 7, 1))), INVALID);
    let mut odd = set(p, 7, 1);
    odd.size = 3;
    assert_eq!(cuGraphMemsetNodeSetParams(s, at(&odd)), INVALID);
    assert_eq!(cuGraphMemsetNodeSetParams(s, at(&set(64, 7, 1))), INVALID);
    run(instance(g));
    assert_eq!(download::<u32>(p, 8), [7, 6, 6, 6, 6, 6, 6, 6]);
    // Attributes: the cooperative one is real, priority is remembered.
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
    let mut any = [0u64; 32];
    // CUgraphNodeParams: kind, then the kind's own from byte 16.
    any[0] = 2;
    let s = set(p, 4, 8);
    // SAFETY: both are plain bytes, and there is room for 232.
    unsafe {
        any.as_mut_ptr()
            .add(2)
            .cast::<u8>()
            .copy_from_nonoverlapping(std::ptr::from_ref(&s).cast(), size_of::<Set>());
    }
    ok(cuGraphAddNode(
        out(&mut node),
        g,
        none(),
        0,
        inout(&mut any),
    ));
    let first = [node];
    with_kernel(f, p, 3, |k| {
        any = [0; 32];
        // SAFETY: as above.
        unsafe {
            any.as_mut_ptr()
                .add(2)
                .cast::<u8>()
                .copy_from_nonoverlapping(std::ptr::from_ref(k).cast(), size_of::<Kernel>());
        }
        ok(cuGraphAddNode_v2(
            out(&mut node),
            g,
            list(&first),
            none(),
            1,
            inout(&mut any),
        ));
    });
    run(instance(g));
    assert_eq!(download::<u32>(p, 8), [7; 8]);
    let mut told = [9u64; 32];
    ok(cuGraphNodeGetParams(node, inout(&mut told)));
    assert_eq!((told[0], told[2]), (0, f));
    // An allocation's address comes back in its parameters.
    any = [0; 32];
    any[0] = 10;
    any[2] = 1; // pinned
    any[3] = 1; // on device 0
    any[15] = 4096;
    ok(cuGraphAddNode(
        out(&mut node),
        g,
        none(),
        0,
        inout(&mut any),
    ));
    assert_ne!(any[16], 0);
    for unserved in [8, 9, 14] {
        any = [0; 32];
        any[0] = unserved;
        let code = cuGraphAddNode(out(&mut node), g, none(), 0, inout(&mut any));
        assert_eq!(code, UNSUPPORTED);
    }
    any[0] = 77;
    let code = cuGraphAddNode(out(&mut node), g, none(), 0, inout(&mut any));
    assert_eq!(code, INVALID);
}

#[test]
fn instances_change_without_their_graph() {
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

/// CUgraphExecUpdateResultInfo.
#[derive(Debug, Default, PartialEq)]
#[repr(C)]
struct Info {
    result: u32,
    node: u64,
    from: u64,
}

fn update(exec: u64, g: u64) -> (u32, Info) {
    let mut info = Info {
        result: 99,
        node: 99,
        from: 99,
    };
    (cuGraphExecUpdate_v2(exec, g, inout(&mut info)), info)
}

#[test]
fn an_instance_takes_over_what_differs_in_a_graph_of_its_shape() {
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
    assert_eq!(update(exec, new), (0, Info::default()));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [36; 8]);
    // Refused: nothing changes.
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
    assert_eq!((code, info.result, info.node), (failure, 3, b));
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
        ok(cuGraphKernelNodeSetParams_v2(k, at(new)))
    });
    let mut embedded = 0;
    ok(cuGraphChildGraphNodeGetGraph(two, out(&mut embedded)));
    assert_ne!(embedded, inner);
    assert_eq!(cuGraphDestroy(embedded), INVALID, "it ends with its node");
    let (mut node, mut n) = (0, 1);
    ok(cuGraphGetNodes(embedded, out(&mut node), out(&mut n)));
    with_kernel(f, p, 10, |new| {
        ok(cuGraphKernelNodeSetParams_v2(node, at(new)))
    });
    let exec = instance(outer);
    ok(cuGraphDestroy(inner));
    run(exec);
    assert_eq!(download::<u32>(p, 8), [11; 8]);
    // The instance's copy of a node inside a child graph.
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
        ok(cuGraphKernelNodeSetParams_v2(found, at(new)))
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
fn events_inside_order_other_streams() {
    start();
    let f = function(module(KERNELS), "inc");
    let (p, q) = (upload(&[0u32; 8]), upload(&[0u32; 8]));
    let (first, second) = (event(0), event(0));
    let g = graph();
    let k = kernel_node(g, &[], f, p, 1);
    let (mut record, mut wait) = (0, 0);
    ok(cuGraphAddEventRecordNode(
        out(&mut record),
        g,
        list(&[k]),
        1,
        first,
    ));
    ok(cuGraphAddEventWaitNode(
        out(&mut wait),
        g,
        list(&[record]),
        1,
        second,
    ));
    copy_node(g, &[wait], &copy(p, q, 32));
    let exec = instance(g);
    let (main, side) = (stream(1), stream(1));
    let gate = Gate::close(main);
    // The graph records the first event in the middle, the side stream answers with the second.
    ok(cuGraphLaunch(exec, main));
    ok(cuStreamWaitEvent(side, first, 0));
    ok(cuMemsetD32Async(q, 77, 8, side));
    ok(cuEventRecord(second, side));
    gate.open();
    ok(cuStreamSynchronize(main));
    // The wait was for what the event had been when the graph was launched: nothing.
    ok(cuStreamSynchronize(side));
    assert_eq!(download::<u32>(q, 8), [77; 8]);
    ok(cuGraphLaunch(exec, main));
    ok(cuStreamSynchronize(main));
    assert_eq!(download::<u32>(p, 8), [77; 8]);
    let (mut e, third) = (0, event(0));
    ok(cuGraphEventRecordNodeGetEvent(record, out(&mut e)));
    assert_eq!(e, first);
    ok(cuGraphEventRecordNodeSetEvent(record, third));
    ok(cuGraphEventRecordNodeGetEvent(record, out(&mut e)));
    assert_eq!(e, third);
    ok(cuGraphExecEventRecordNodeSetEvent(exec, record, third));
    assert_eq!(cuGraphEventWaitNodeGetEvent(record, out(&mut e)), INVALID);
    assert_eq!(cuGraphEventRecordNodeSetEvent(record, 5), BAD_HANDLE);
    run(exec);
    ok(cuEventSynchronize(third));
}

/// CUDA_MEM_ALLOC_NODE_PARAMS on device 0.
fn alloc_params(bytes: u64) -> [u64; 15] {
    let mut a = [0; 15];
    (a[0], a[1], a[13]) = (1, 1, bytes);
    a
}

fn alloc_node(g: u64, bytes: u64) -> (u64, u64) {
    let (mut node, mut a) = (0, alloc_params(bytes));
    ok(cuGraphAddMemAllocNode(
        out(&mut node),
        g,
        none(),
        0,
        inout(&mut a),
    ));
    (node, a[14])
}

fn used() -> u64 {
    let mut bytes = 9;
    ok(cuDeviceGetGraphMemAttribute(0, 0, out(&mut bytes)));
    bytes
}

#[test]
fn graphs_allocate_and_free() {
    start();
    let f = function(module(KERNELS), "inc");
    let result = upload(&[0u32; 8]);
    let g = graph();
    let (node, p) = alloc_node(g, 32);
    let s = memset_node(g, &[node], &set(p, 5, 8));
    let k = kernel_node(g, &[s], f, p, 1);
    let c = copy_node(g, &[k], &copy(result, p, 32));
    let mut freed = 0;
    ok(cuGraphAddMemFreeNode(out(&mut freed), g, list(&[c]), 1, p));
    assert_eq!(
        cuGraphAddMemFreeNode(out(&mut freed), g, none(), 0, p),
        INVALID,
        "twice"
    );
    assert_eq!(
        cuGraphAddMemFreeNode(out(&mut freed), g, none(), 0, result),
        INVALID,
        "not a graph's"
    );
    // Until a launch there is only an address.
    assert_eq!(cuMemsetD32_v2(p, 1, 8), INVALID);
    let exec = instance(g);
    let mut second = 0;
    assert_eq!(cuGraphInstantiateWithFlags(out(&mut second), g, 0), INVALID);
    assert_eq!(cuGraphClone(out(&mut second), g), UNSUPPORTED);
    assert_eq!(cuGraphDestroyNode(k), UNSUPPORTED);
    assert_eq!(
        cuGraphAddChildGraphNode(out(&mut second), graph(), none(), 0, g),
        UNSUPPORTED
    );
    let s = stream(1);
    for _ in 0..3 {
        ok(cuGraphLaunch(exec, s));
    }
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(result, 8), [6; 8]);
    assert_eq!(used(), 0);
    ok(cuGraphExecDestroy(exec));
    instance(g);
}

#[test]
fn what_a_graph_leaves_allocated_is_the_programs() {
    start();
    let g = graph();
    let (node, p) = alloc_node(g, 64);
    memset_node(g, &[node], &set(p, 8, 16));
    let exec = instance(g);
    run(exec);
    assert_eq!(download::<u32>(p, 16), [8; 16]);
    assert_eq!(used(), 512);
    assert_eq!(cuGraphLaunch(exec, NULL), INVALID, "still allocated");
    let s = stream(1);
    ok(cuMemFreeAsync(p, s));
    ok(cuGraphLaunch(exec, s));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(p, 16), [8; 16]);
    // The memory outlives graph and instance, and its address is not given to others meanwhile.
    ok(cuGraphExecDestroy(exec));
    ok(cuGraphDestroy(g));
    assert_ne!(alloc_node(graph(), 64).1, p);
    assert_eq!(download::<u32>(p, 16), [8; 16]);
    ok(cuMemFree_v2(p));
    assert_eq!(cuMemsetD32_v2(p, 1, 1), INVALID);
    assert_eq!(used(), 0);

    let g = graph();
    let (node, p) = alloc_node(g, 64);
    memset_node(g, &[node], &set(p, 9, 16));
    let mut exec = 0;
    ok(cuGraphInstantiateWithFlags(out(&mut exec), g, 1));
    for _ in 0..3 {
        run(exec);
    }
    assert_eq!(download::<u32>(p, 16), [9; 16]);
    assert_eq!(used(), 512);
}

#[test]
fn memory_that_went_while_a_graph_uses_it_is_a_fault_not_a_crash() {
    let (_, err) = passes("role_launch_after_free", &[]);
    assert!(err.contains("graph's copy"), "{err}");
}

#[test]
#[ignore = "a role"]
fn role_launch_after_free() {
    start();
    let (p, q) = (upload(&[0u32; 8]), upload(&[0u32; 8]));
    let g = graph();
    copy_node(g, &[], &copy(q, p, 32));
    let exec = instance(g);
    run(exec);
    let s = stream(1);
    let gate = Gate::close(s);
    ok(cuGraphLaunch(exec, s));
    let other = stream(1);
    ok(cuMemFreeAsync(p, other));
    ok(cuStreamSynchronize(other));
    gate.open();
    assert_eq!(cuStreamSynchronize(s), 700);
    assert_eq!(cuGraphLaunch(exec, s), 700, "sticky");
}

#[test]
fn a_fault_in_a_graph_is_sticky() {
    passes("role_graph_fault", &[]);
}

#[test]
#[ignore = "a role"]
fn role_graph_fault() {
    start();
    let f = function(module(KERNELS), "bad");
    let p = upload(&[3u32; 4]);
    let g = graph();
    let k = kernel_node(g, &[], f, 0, 0);
    memset_node(g, &[k], &set(p, 9, 4));
    ok(cuGraphLaunch(instance(g), NULL));
    assert_eq!(cuStreamSynchronize(NULL), 700);
    let mut other = 0;
    assert_eq!(cuGraphCreate(out(&mut other), 0), 700);
}

#[test]
fn values_in_memory_are_waited_for_and_written() {
    start();
    let flags = upload(&[0u32; 8]);
    // CUstreamBatchMemOpParams: wait for 1 at [0], write 2 at [1].
    let ops = [[1u64, flags, 1, 1, 0, 0], [2, flags + 4, 2, 0, 0, 0]];
    // CUDA_BATCH_MEM_OP_NODE_PARAMS.
    let params = [0u64, 2, ops.as_ptr() as u64, 0];
    let g = graph();
    let mut node = 0;
    ok(cuGraphAddBatchMemOpNode(
        out(&mut node),
        g,
        none(),
        0,
        at(&params),
    ));
    let exec = instance(g);
    let s = stream(1);
    ok(cuGraphLaunch(exec, s));
    assert_eq!(cuStreamQuery(s), 600);
    ok(cuMemsetD32_v2(flags, 1, 1));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(flags, 2), [1, 2]);
    let mut told = [9u64; 4];
    ok(cuGraphBatchMemOpNodeGetParams(node, inout(&mut told)));
    assert_eq!(told[1] as u32, 2);
    let bad = [0u64, 0, ops.as_ptr() as u64, 0];
    let code = cuGraphAddBatchMemOpNode(out(&mut node), g, none(), 0, at(&bad));
    assert_eq!(code, INVALID);
}

#[test]
fn user_objects_live_as_long_as_who_holds_them() {
    start();
    let gone = Box::leak(Box::new(AtomicU32::new(0)));
    let data = std::ptr::from_mut(gone).cast::<c_void>();
    let gone = || {
        // SAFETY: the leaked counter.
        unsafe { &*data.cast::<AtomicU32>() }.load(Ordering::SeqCst)
    };
    let mut object = 0;
    assert_eq!(
        cuUserObjectCreate(out(&mut object), data, None, 1, 1),
        INVALID
    );
    assert_eq!(
        cuUserObjectCreate(out(&mut object), data, Some(count), 1, 0),
        INVALID
    );
    ok(cuUserObjectCreate(
        out(&mut object),
        data,
        Some(count),
        1,
        1,
    ));
    let g = graph();
    empty_node(g, &[]);
    ok(cuGraphRetainUserObject(g, object, 2, 0));
    ok(cuGraphReleaseUserObject(g, object, 1));
    assert_eq!(cuGraphReleaseUserObject(g, object, 2), INVALID);
    ok(cuUserObjectRetain(object, 1));
    ok(cuUserObjectRelease(object, 2));
    let exec = instance(g);
    let mut clone = 0;
    ok(cuGraphClone(out(&mut clone), g));
    ok(cuGraphDestroy(g));
    ok(cuGraphDestroy(clone));
    run(exec);
    assert_eq!(gone(), 0);
    ok(cuGraphExecDestroy(exec));
    within("the object is destroyed", || gone() == 1);
    assert_eq!(cuUserObjectRetain(object, 1), INVALID);
    // The caller's reference moved to the graph.
    ok(cuUserObjectCreate(
        out(&mut object),
        data,
        Some(count),
        1,
        1,
    ));
    let g = graph();
    ok(cuGraphRetainUserObject(g, object, 1, 1));
    ok(cuGraphDestroy(g));
    within("the second is destroyed", || gone() == 2);
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
fn wrong_arguments_have_their_codes() {
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
    assert_eq!(
        cuGraphLaunch(instance(g), soft_gpu::capi::types::StreamArg(0x99)),
        BAD_HANDLE
    );
    ok(cuGraphDestroy(g));
    assert_eq!(cuGraphDestroy(g), INVALID);
    assert_eq!(cuGraphNodeGetType(n, out(&mut 0)), INVALID);
}

/// A kernel that sets a condition: `set(handle, counter, limit)` counts up in memory and says whether
/// the limit is not reached.
const SETTER: &str = "
.version 7.0
.target sm_80
.address_size 64
.extern .func cudaGraphSetConditional(.param .b64 h, .param .b32 v);
.visible .entry set(.param .u64 handle, .param .u64 counter, .param .u32 limit) {
  .reg .b64 %h, %c; .reg .b32 %n, %l, %v; .reg .pred %p;
  .param .b64 a; .param .b32 b;
  ld.param.u64 %h, [handle]; ld.param.u64 %c, [counter]; ld.param.u32 %l, [limit];
  ld.global.u32 %n, [%c]; add.u32 %n, %n, 1; st.global.u32 [%c], %n;
  setp.lt.u32 %p, %n, %l; selp.u32 %v, 1, 0, %p;
  st.param.b64 [a], %h; st.param.b32 [b], %v;
  call cudaGraphSetConditional, (a, b);
  ret;
}
";

/// A conditional node; its bodies.
fn conditional_node(g: u64, after: &[u64], handle: u64, kind: u64, size: u64) -> (u64, Vec<u64>) {
    let mut any = [0u64; 32];
    (any[0], any[2], any[3]) = (13, handle, kind | size << 32);
    let mut node = 0;
    ok(cuGraphAddNode_v2(
        out(&mut node),
        g,
        list(after),
        none(),
        after.len(),
        inout(&mut any),
    ));
    // SAFETY: the driver's array of the bodies.
    let bodies = unsafe { std::slice::from_raw_parts(any[4] as *const u64, size as usize) };
    (node, bodies.to_vec())
}

fn condition(g: u64, default: u32) -> u64 {
    let mut handle = 0;
    ok(cuGraphConditionalHandleCreate(
        out(&mut handle),
        g,
        0,
        default,
        1,
    ));
    handle
}

#[test]
fn conditions_decide_which_bodies_run() {
    start();
    let set_value = function(module(SETTER), "set");
    let inc = function(module(KERNELS), "inc");
    let (counter, p) = (upload(&[0u32; 8]), upload(&[0u32; 8]));
    let g = graph();
    let handle = condition(g, 1);
    let mut exec = 0;
    // CUDA_GRAPH_INSTANTIATE_CONDITIONAL_HANDLE_UNUSED.
    let mut params = [0u64; 4];
    assert_eq!(
        cuGraphInstantiateWithParams(out(&mut exec), g, inout(&mut params)),
        INVALID
    );
    assert_eq!(params[3] as u32, 5);
    let clear = memset_node(g, &[], &set(counter, 0, 8));
    let (_, bodies) = conditional_node(g, &[clear], handle, 1, 1);
    // While: five rounds, as the kernel in the body says.
    let limit = 5u32;
    let arguments = [
        std::ptr::from_ref(&handle).cast::<u8>(),
        std::ptr::from_ref(&counter).cast(),
        std::ptr::from_ref(&limit).cast(),
    ];
    let k = Kernel {
        func: set_value,
        grid: [1; 3],
        block: [1; 3],
        shared: 0,
        params: arguments.as_ptr(),
        extra: 0,
        kern: 0,
        context: 0,
    };
    let mut inside = 0;
    ok(cuGraphAddKernelNode_v2(
        out(&mut inside),
        bodies[0],
        none(),
        0,
        at(&k),
    ));
    kernel_node(bodies[0], &[inside], inc, p, 10);
    let exec = instance(g);
    run(exec);
    assert_eq!(download::<u32>(counter, 1), [5]);
    assert_eq!(download::<u32>(p, 8), [50; 8]);
    run(exec);
    assert_eq!(download::<u32>(p, 8), [100; 8], "the default is set again");

    // If with an else, and a choice, by the default alone.
    for (default, kind, size, wanted) in [
        (1, 0, 2, 1),
        (0, 0, 2, 2),
        (0, 0, 1, 0),
        (2, 2, 3, 3),
        (9, 2, 3, 0),
    ] {
        let g = graph();
        let handle = condition(g, default);
        ok(cuMemsetD32_v2(p, 0, 8));
        let (node, bodies) = conditional_node(g, &[], handle, kind, size);
        for (i, body) in bodies.iter().enumerate() {
            memset_node(*body, &[], &set(p, i as u32 + 1, 8));
        }
        run(instance(g));
        assert_eq!(
            download::<u32>(p, 8),
            [wanted; 8],
            "{default} {kind} {size}"
        );
        let mut clone = 0;
        ok(cuGraphClone(out(&mut clone), g));
        let mut told = [0u64; 32];
        ok(cuGraphNodeGetParams(node, inout(&mut told)));
        assert_eq!((told[0], told[2], told[3]), (13, handle, kind | size << 32));
        assert_eq!(cuGraphDestroy(bodies[0]), INVALID);
        ok(cuGraphDestroy(g));
        assert_eq!(cuGraphNodeGetType(node, out(&mut 0)), INVALID);
    }
    let mut any = [0u64; 32];
    (any[0], any[2], any[3]) = (13, 0x1234, 1 << 32);
    let mut node = 0;
    let code = cuGraphAddNode(out(&mut node), graph(), none(), 0, inout(&mut any));
    assert_eq!(code, INVALID, "no such handle");
}
