//! Capture of streams into graphs: recorded nodes, and the errors for broken rules.

mod driver_support;

use std::ffi::c_void;

use driver_support::*;
use soft_gpu::capi::{
    context::contexts::*, event::*, graph::exec::*, graph::graphs::*, graph::nodes::*,
    memory::alloc::*, memory::copy::*, memory::fill::*, pool::*, stream::capture::*,
    stream::streams::*,
};

const GLOBAL: u32 = 0;
const THREAD_LOCAL: u32 = 1;
const RELAXED: u32 = 2;

const ILLEGAL_STATE: u32 = 401;
const CAPTURE_UNSUPPORTED: u32 = 900;
const INVALIDATED: u32 = 901;
const MERGE: u32 = 902;
const UNMATCHED: u32 = 903;
const UNJOINED: u32 = 904;
const ISOLATION: u32 = 905;
const IMPLICIT: u32 = 906;
const CAPTURED_EVENT: u32 = 907;
const WRONG_THREAD: u32 = 908;

fn begin(s: StreamArg, mode: u32) {
    ok(cuStreamBeginCapture_v2(s, mode));
}

fn end(s: StreamArg) -> Result<u64, u32> {
    let mut graph = 7;
    match cuStreamEndCapture(s, out(&mut graph)) {
        0 => Ok(graph),
        code => {
            assert_eq!(graph, 0, "a failed capture returns no graph");
            Err(code)
        }
    }
}

fn status(s: StreamArg) -> u32 {
    let mut status = 9;
    ok(cuStreamIsCapturing(s, out(&mut status)));
    status
}

fn instance(graph: u64) -> u64 {
    let mut exec = 0;
    ok(cuGraphInstantiateWithFlags(out(&mut exec), graph, 0));
    exec
}

fn kinds(graph: u64) -> Vec<u32> {
    let mut n = 0;
    ok(cuGraphGetNodes(graph, nowhere(), out(&mut n)));
    let mut nodes = vec![0; n];
    ok(cuGraphGetNodes(graph, Out(nodes.as_mut_ptr()), out(&mut n)));
    let kind = |node: &u64| {
        let mut kind = 99;
        ok(cuGraphNodeGetType(*node, out(&mut kind)));
        kind
    };
    nodes.iter().map(kind).collect()
}

fn edges(graph: u64) -> usize {
    let mut n = 0;
    ok(cuGraphGetEdges(graph, nowhere(), nowhere(), out(&mut n)));
    n
}

#[test]
fn captured_operations_run_at_launch_and_not_before() {
    start();
    let f = function(module(KERNELS), "inc");
    let s = stream(1);
    let p = upload(&[1u32; 32]);
    let mut host = vec![0u32; 32];
    assert_eq!(status(s), 0);
    begin(s, GLOBAL);
    assert_eq!(status(s), 1);
    ok(cuMemsetD32Async(p, 10, 32, s));
    ok(launch(f, 1, 32, s, &[&p, &5u32]));
    ok(cuMemcpyDtoHAsync_v2(host.as_mut_ptr() as u64, p, 128, s));
    let graph = end(s).expect("a graph");
    assert_eq!(status(s), 0);
    assert_eq!(kinds(graph), [2, 0, 1]);
    assert_eq!(edges(graph), 2);
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(p, 32), [1; 32], "nothing ran yet");
    let exec = instance(graph);
    for _ in 0..3 {
        host.fill(0);
        ok(cuGraphLaunch(exec, s));
        ok(cuStreamSynchronize(s));
        assert_eq!(host, [15; 32]);
    }
    ok(cuGraphDestroy(graph));
    ok(cuGraphLaunch(exec, s));
    ok(cuStreamSynchronize(s));
    ok(cuGraphExecDestroy(exec));
}

#[test]
fn parameters_are_those_of_the_capture_and_memory_that_of_the_launch() {
    start();
    let f = function(module(KERNELS), "inc");
    let s = stream(1);
    let p = upload(&[0u32; 4]);
    let mut source = [3u32; 4];
    begin(s, RELAXED);
    ok(cuMemcpyHtoDAsync_v2(p, source.as_ptr() as u64, 16, s));
    let mut n = 4u32;
    ok(launch(f, 1, 4, s, &[&p, &n]));
    n = 100;
    let exec = instance(end(s).expect("a graph"));
    source.fill(20);
    ok(cuGraphLaunch(exec, s));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(p, 4), [24; 4], "{n}");
}

#[test]
fn capture_spreads_and_comes_back_by_events() {
    start();
    let m = module(KERNELS);
    let (inc, mul) = (function(m, "inc"), function(m, "mul"));
    let (a, b) = (stream(1), stream(1));
    let (fork, join) = (event(2), event(2));
    let (p, q) = (upload(&[1u32; 8]), upload(&[1u32; 8]));
    begin(a, GLOBAL);
    ok(cuMemsetD32Async(p, 3, 8, a));
    ok(cuEventRecord(fork, a));
    assert_eq!(status(b), 0);
    ok(cuStreamWaitEvent(b, fork, 0));
    assert_eq!(status(b), 1);
    ok(launch(inc, 1, 8, b, &[&q, &1u32]));
    ok(launch(mul, 1, 8, a, &[&p, &2u32]));
    ok(cuEventRecord(join, b));
    ok(cuStreamWaitEvent(a, join, 0));
    ok(cuMemcpyDtoDAsync_v2(q + 16, p, 16, a));
    let graph = end(a).expect("joined");
    assert_eq!((status(a), status(b)), (0, 0));
    assert_eq!(kinds(graph), [2, 0, 0, 1]);
    assert_eq!(edges(graph), 4);
    ok(cuGraphLaunch(instance(graph), b));
    ok(cuStreamSynchronize(b));
    assert_eq!(download::<u32>(q, 8), [2, 2, 2, 2, 6, 6, 6, 6]);
}

#[test]
fn an_unjoined_fork_fails_the_capture() {
    start();
    let (a, b) = (stream(1), stream(1));
    let e = event(2);
    let p = upload(&[0u32; 8]);
    begin(a, GLOBAL);
    ok(cuEventRecord(e, a));
    ok(cuStreamWaitEvent(b, e, 0));
    // As long as the forked stream gets no work, the capture can end.
    begin_is_refused(a);
    ok(cuMemsetD32Async(p, 1, 8, b));
    let mut graph = 1;
    assert_eq!(cuStreamEndCapture(b, out(&mut graph)), UNMATCHED);
    assert_eq!(end(a), Err(INVALIDATED));

    begin(a, GLOBAL);
    ok(cuEventRecord(e, a));
    ok(cuStreamWaitEvent(b, e, 0));
    ok(cuMemsetD32Async(p, 1, 8, b));
    assert_eq!(end(a), Err(UNJOINED));
    assert_eq!((status(a), status(b)), (0, 0));
    ok(cuMemsetD32Async(p, 1, 8, b));
    ok(cuStreamSynchronize(b));
    assert_eq!(download::<u32>(p, 8), [1; 8]);

    begin(a, GLOBAL);
    ok(cuEventRecord(e, a));
    ok(cuStreamWaitEvent(b, e, 0));
    assert!(end(a).is_ok(), "a fork without work needs no join");
}

#[track_caller]
fn begin_is_refused(s: StreamArg) {
    assert_eq!(cuStreamBeginCapture_v2(s, GLOBAL), ILLEGAL_STATE);
}

#[test]
fn captures_begin_and_end_by_the_rules() {
    start();
    let s = stream(1);
    assert_eq!(end(s), Err(ILLEGAL_STATE));
    assert_eq!(cuStreamBeginCapture_v2(s, 3), INVALID);
    assert_eq!(cuStreamBeginCapture_v2(NULL, GLOBAL), CAPTURE_UNSUPPORTED);
    assert_eq!(
        cuStreamBeginCapture_v2(StreamArg(0x1234), GLOBAL),
        BAD_HANDLE
    );
    begin(s, THREAD_LOCAL);
    begin_is_refused(s);
    let other = s.0;
    let code = std::thread::spawn(move || {
        start();
        end(StreamArg(other))
    });
    assert_eq!(code.join().expect("no panic"), Err(WRONG_THREAD));
    assert_eq!(status(s), 1, "still capturing");
    ok(cuGraphDestroy(end(s).expect("empty, but a graph")));
    begin(s, RELAXED);
    let code = std::thread::spawn(move || {
        start();
        end(StreamArg(other)).is_ok()
    });
    assert!(code.join().expect("no panic"), "relaxed ends anywhere");
    // The per-thread default stream can capture; the legacy stream cannot.
    ok(cuStreamBeginCapture_v2_ptsz(NULL, GLOBAL));
    ok(cuStreamEndCapture_ptsz(NULL, nowhere()));
}

#[test]
fn waiting_for_a_capture_is_refused_and_ends_it() {
    let context = start();
    let s = stream(1);
    let calls: [&dyn Fn() -> u32; 4] = [
        &|| cuStreamSynchronize(s),
        &|| cuStreamQuery(s),
        &|| cuCtxSynchronize(),
        &|| {
            extern "C" fn called(_: u64, _: u32, _: *mut c_void) {}
            cuStreamAddCallback(s, Some(called), std::ptr::null_mut(), 0)
        },
    ];
    for call in calls {
        begin(s, RELAXED);
        assert_eq!(call(), CAPTURE_UNSUPPORTED);
        assert_eq!(status(s), 2);
        // Until the capture is ended, later calls report that it is invalid.
        assert_eq!(cuMemsetD8Async(upload(&[0u8; 4]), 0, 4, s), INVALIDATED);
        assert_eq!(end(s), Err(INVALIDATED));
        assert_eq!(status(s), 0);
        ok(cuStreamSynchronize(s));
    }
    ok(cuCtxSynchronize_v2(context));
}

#[test]
fn captured_events_cannot_be_used_outside_the_capture() {
    start();
    let (s, t) = (stream(1), stream(1));
    let (e, plain) = (event(0), event(0));
    ok(cuEventRecord(plain, t));
    for ask in [
        cuEventQuery as extern "C" fn(u64) -> u32,
        cuEventSynchronize,
    ] {
        begin(s, RELAXED);
        ok(cuEventRecord(e, s));
        assert_eq!(ask(e), CAPTURED_EVENT);
        assert_eq!(end(s), Err(INVALIDATED));
        assert_eq!(ask(e), CAPTURED_EVENT, "also after the capture");
    }
    let mut ms = 0.0;
    assert_eq!(cuEventElapsedTime(out(&mut ms), plain, e), CAPTURED_EVENT);
    // A capture cannot wait for work outside the capture.
    begin(s, RELAXED);
    assert_eq!(cuStreamWaitEvent(s, plain, 0), ISOLATION);
    assert_eq!(end(s), Err(INVALIDATED));
    // A new record outside a capture makes the event an ordinary event again.
    ok(cuEventRecord(e, t));
    ok(cuEventSynchronize(e));
    ok(cuEventQuery(e));
}

#[test]
fn captures_do_not_merge() {
    start();
    let (a, b) = (stream(1), stream(1));
    let e = event(2);
    begin(a, RELAXED);
    begin(b, RELAXED);
    ok(cuEventRecord(e, a));
    assert_eq!(cuStreamWaitEvent(b, e, 0), MERGE);
    assert_eq!((status(a), status(b)), (2, 2));
    // A stream outside the capture cannot use an event that an invalid capture recorded.
    assert_eq!(cuStreamWaitEvent(stream(1), e, 0), INVALID);
    assert_eq!((end(a), end(b)), (Err(INVALIDATED), Err(INVALIDATED)));
}

#[test]
fn the_null_stream_and_a_capturing_blocking_stream_exclude_each_other() {
    start();
    let (blocking, free) = (stream(0), stream(1));
    let p = upload(&[0u8; 16]);
    begin(blocking, RELAXED);
    let mut status_of_null = 0;
    assert_eq!(
        cuStreamIsCapturing(NULL, out(&mut status_of_null)),
        IMPLICIT
    );
    assert_eq!(status(blocking), 1, "a query does not invalidate");
    assert_eq!(cuMemsetD8Async(p, 1, 16, NULL), IMPLICIT);
    assert_eq!(end(blocking), Err(INVALIDATED));
    begin(blocking, RELAXED);
    assert_eq!(cuMemsetD8_v2(p, 1, 16), IMPLICIT);
    assert_eq!(end(blocking), Err(INVALIDATED));
    begin(free, RELAXED);
    ok(cuMemsetD8Async(p, 2, 16, NULL));
    ok(cuMemsetD8_v2(p, 2, 16));
    let e = event(2);
    ok(cuEventRecord(e, free));
    assert_eq!(cuStreamWaitEvent(NULL, e, 0), IMPLICIT);
    assert_eq!(end(free), Err(INVALIDATED));
}

#[test]
fn unsafe_calls_by_mode_and_thread() {
    start();
    let s = stream(1);
    let elsewhere = |mode: Option<u32>| {
        std::thread::spawn(move || {
            start();
            if let Some(mut mode) = mode {
                ok(cuThreadExchangeStreamCaptureMode(out(&mut mode)));
            }
            alloc(64).err().unwrap_or(0)
        })
        .join()
        .expect("no panic")
    };
    // (mode of the capture, result of an allocation by this thread, result by another thread)
    for (mode, here, there) in [
        (GLOBAL, CAPTURE_UNSUPPORTED, CAPTURE_UNSUPPORTED),
        (THREAD_LOCAL, CAPTURE_UNSUPPORTED, 0),
        (RELAXED, 0, 0),
    ] {
        begin(s, mode);
        assert_eq!(alloc(64).err().unwrap_or(0), here, "mode {mode} here");
        let _ = end(s);
        begin(s, mode);
        assert_eq!(elsewhere(None), there, "mode {mode} there");
        assert_eq!(end(s).is_ok(), there == 0, "mode {mode}");
    }
    // The other thread switches to the mode THREAD_LOCAL, so it may allocate.
    begin(s, GLOBAL);
    assert_eq!(elsewhere(Some(THREAD_LOCAL)), 0);
    assert!(end(s).is_ok());
    // This thread switches to the mode RELAXED, so it may allocate.
    let mut mode = RELAXED;
    ok(cuThreadExchangeStreamCaptureMode(out(&mut mode)));
    assert_eq!(mode, GLOBAL);
    begin(s, GLOBAL);
    let p = alloc(64).expect("allowed");
    ok(cuMemFree_v2(p));
    assert!(end(s).is_ok());
    ok(cuThreadExchangeStreamCaptureMode(out(&mut mode)));
    assert_eq!(mode, RELAXED);
    mode = 3;
    assert_eq!(cuThreadExchangeStreamCaptureMode(out(&mut mode)), INVALID);
    assert_eq!(cuThreadExchangeStreamCaptureMode(nowhere()), INVALID);
}

#[test]
fn a_capture_reports_its_state_and_accepts_other_dependencies() {
    start();
    let s = stream(1);
    let p = upload(&[0u32; 4]);
    let (mut state, mut id, mut graph) = (9, 9, 9);
    let (mut tips, mut count) = (std::ptr::null(), 9);
    ok(cuStreamGetCaptureInfo(s, out(&mut state), out(&mut id)));
    assert_eq!(state, 0);
    begin(s, RELAXED);
    ok(cuMemsetD32Async(p, 1, 4, s));
    ok(cuStreamGetCaptureInfo_v2(
        s,
        out(&mut state),
        out(&mut id),
        out(&mut graph),
        out(&mut tips),
        out(&mut count),
    ));
    assert_eq!((state, count), (1, 1));
    assert_ne!(id, 0);
    // SAFETY: the driver returned the array and its number of elements.
    let first = unsafe { *tips };
    assert_eq!(cuGraphDestroy(graph), INVALID, "still growing");
    // A node that the program adds itself becomes part of the capture.
    let mut own = 0;
    ok(cuGraphAddEmptyNode(out(&mut own), graph, at(&first), 1));
    ok(cuStreamUpdateCaptureDependencies(s, at(&own), 1, 0));
    ok(cuStreamGetCaptureInfo_v3(
        s,
        out(&mut state),
        nowhere(),
        nowhere(),
        nowhere(),
        nowhere(),
        out(&mut count),
    ));
    assert_eq!(count, 2);
    ok(cuStreamUpdateCaptureDependencies(s, at(&own), 1, 1));
    ok(cuMemsetD32Async(p, 2, 4, s));
    let ended = end(s).expect("a graph");
    assert_eq!((ended, edges(ended)), (graph, 2));
    assert_eq!(
        cuStreamUpdateCaptureDependencies(s, at(&own), 1, 0),
        ILLEGAL_STATE
    );
    begin(s, RELAXED);
    assert_eq!(
        cuStreamUpdateCaptureDependencies(s, at(&own), 1, 0),
        INVALID,
        "a node of another graph"
    );
    assert_eq!(cuStreamUpdateCaptureDependencies(s, none(), 0, 2), INVALID);
    assert!(end(s).is_ok());
}

#[test]
fn a_capture_can_add_to_a_graph() {
    start();
    let s = stream(1);
    let p = upload(&[0u32; 4]);
    let (mut graph, mut root) = (0, 0);
    ok(cuGraphCreate(out(&mut graph), 0));
    ok(cuGraphAddEmptyNode(out(&mut root), graph, none(), 0));
    ok(cuStreamBeginCaptureToGraph(
        s,
        graph,
        at(&root),
        none(),
        1,
        RELAXED,
    ));
    ok(cuMemsetD32Async(p, 6, 4, s));
    ok(cuStreamEndCapture(s, nowhere()));
    assert_eq!((kinds(graph), edges(graph)), (vec![5, 2], 1));
    let stranger = 0x0c00_0000u64;
    assert_eq!(
        cuStreamBeginCaptureToGraph(s, graph, at(&stranger), none(), 1, RELAXED),
        INVALID
    );
    assert_eq!(status(s), 0);
    ok(cuGraphLaunch(instance(graph), s));
    ok(cuStreamSynchronize(s));
    assert_eq!(download::<u32>(p, 4), [6; 4]);
    ok(cuGraphDestroy(graph));
}

#[test]
fn allocations_launches_and_events_become_nodes() {
    start();
    let f = function(module(KERNELS), "inc");
    let s = stream(1);
    let result = upload(&[0u32; 8]);
    // A launch of another graph inside the capture becomes a child graph node.
    begin(s, RELAXED);
    ok(launch(f, 1, 8, s, &[&result, &100u32]));
    let inner = instance(end(s).expect("a graph"));

    let (external, mut p) = (event(0), 0);
    begin(s, RELAXED);
    ok(cuMemAllocAsync(out(&mut p), 32, s));
    ok(cuMemsetD32Async(p, 5, 8, s));
    ok(launch(f, 1, 8, s, &[&p, &1u32]));
    ok(cuMemcpyDtoDAsync_v2(result, p, 32, s));
    ok(cuMemFreeAsync(p, s));
    ok(cuGraphLaunch(inner, s));
    ok(cuEventRecordWithFlags(external, s, 1));
    let graph = end(s).expect("a graph");
    assert_eq!(kinds(graph), [10, 2, 0, 1, 11, 4, 7]);
    let exec = instance(graph);
    ok(cuEventQuery(external));
    let gate = Gate::close(s);
    ok(cuGraphLaunch(exec, s));
    ok(cuGraphLaunch(exec, s));
    assert_eq!(cuEventQuery(external), 600);
    gate.open();
    ok(cuEventSynchronize(external));
    assert_eq!(download::<u32>(result, 8), [106; 8]);
    ok(cuStreamSynchronize(s));
    let mut used = 9;
    ok(cuDeviceGraphMemTrim(0));
    ok(cuDeviceGetGraphMemAttribute(0, 0, out(&mut used)));
    assert_eq!(used, 0, "all was freed");
    ok(cuDeviceGetGraphMemAttribute(0, 1, out(&mut used)));
    assert!(used >= 512);
}

#[test]
fn a_stream_that_is_destroyed_ends_its_capture() {
    start();
    let s = stream(1);
    begin(s, GLOBAL);
    ok(cuStreamDestroy_v2(s.0));
    alloc(64).expect("no capture is open any more");
}

#[test]
fn a_refused_operation_does_not_harm_the_capture() {
    start();
    let f = function(module(KERNELS), "inc");
    let s = stream(1);
    let p = upload(&[0u32; 4]);
    begin(s, RELAXED);
    assert_eq!(launch(f, 0, 4, s, &[&p, &1u32]), INVALID);
    assert_eq!(cuMemsetD32Async(p + 1, 1, 1, s), INVALID);
    assert_eq!(cuMemFreeAsync(p, s), INVALID, "not of this graph");
    ok(launch(f, 1, 4, s, &[&p, &1u32]));
    assert_eq!(kinds(end(s).expect("a graph")), [0]);
}
