//! Stream capture.

use std::cell::RefCell;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out};

use crate::Cu;
use crate::ffi::exports;
use crate::process::{live, shim};
use crate::state::capture::{self, GLOBAL};
use crate::state::streams::resolve;

/// Where `cuStreamGetCaptureInfo` puts its results.
struct Results {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    tips: Out<*const u64>,
    edges: Out<*const u64>,
    count: Out<usize>,
}

exports! {
    /// Begins, in the mode before there were others.
    fn cuStreamBeginCapture / cuStreamBeginCapture_ptsz [mode] (stream: u64) {
        let shim = live()?;
        capture::begin(shim, &resolve(shim, stream, mode)?, GLOBAL, None)
    }

    /// Begins: what is put into the stream goes into a graph.
    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz [mode] (stream: u64, how: u32) {
        let shim = live()?;
        capture::begin(shim, &resolve(shim, stream, mode)?, how, None)
    }

    /// Begins, behind nodes of a graph that there is.
    fn cuStreamBeginCaptureToGraph / cuStreamBeginCaptureToGraph_ptsz [mode] (
        stream: u64,
        graph: u64,
        nodes: In<u64>,
        _edges: In<u64>,
        count: usize,
        how: u32
    ) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let graph = shim.graph(graph)?;
        let nodes = nodes.list(count)?;
        capture::begin(shim, &target, how, Some((graph, nodes)))
    }

    /// Ends, and gives the graph.
    fn cuStreamEndCapture / cuStreamEndCapture_ptsz [mode] (stream: u64, out: Out<u64>) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let ended = capture::end(shim, &target);
        let handle = ended.as_ref().map_or(0, |graph| graph.handle);
        out.set_if_wanted(handle);
        ended.map(|_| ())
    }

    /// Whether, and whether it can still succeed.
    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz [mode] (stream: u64, out: Out<u32>) {
        let shim = shim()?;
        let status = capture::info(shim, &resolve(shim, stream, mode)?)?.status;
        out.set(status)
    }

    /// The first form.
    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz [mode] (
        stream: u64,
        status: Out<u32>,
        id: Out<u64>
    ) {
        let (graph, tips) = (Out::NULL, Out::NULL);
        let (edges, count) = (Out::NULL, Out::NULL);
        info(stream, mode, &Results { status, id, graph, tips, edges, count })
    }

    /// With the graph and what the next node comes behind.
    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz [mode] (
        stream: u64,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<u64>,
        tips: Out<*const u64>,
        count: Out<usize>
    ) {
        let edges = Out::NULL;
        info(stream, mode, &Results { status, id, graph, tips, edges, count })
    }

    /// With data of edges, which is always zero.
    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz [mode] (
        stream: u64,
        status: Out<u32>,
        id: Out<u64>,
        graph: Out<u64>,
        tips: Out<*const u64>,
        edges: Out<*const u64>,
        count: Out<usize>
    ) {
        info(stream, mode, &Results { status, id, graph, tips, edges, count })
    }

    /// Adds to, or sets, what the next node comes behind.
    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz [mode] (
        stream: u64,
        nodes: In<u64>,
        count: usize,
        flags: u32
    ) {
        update(stream, mode, (nodes, count), flags)
    }

    /// The same; data of edges is not looked at.
    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz [mode] (
        stream: u64,
        nodes: In<u64>,
        _edges: In<u64>,
        count: usize,
        flags: u32
    ) {
        update(stream, mode, (nodes, count), flags)
    }

    /// The calling thread's mode.
    fn cuThreadExchangeStreamCaptureMode(how: Out<u32>) {
        shim()?;
        let wanted = how.get()?;
        if wanted > capture::RELAXED {
            return Err(CuResult::INVALID_VALUE);
        }
        how.set(capture::exchange_mode(wanted))
    }
}

thread_local! {
    /// Data of edges as a thread was shown it last: all zero.
    static EDGES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Data of so many plain edges, which may be looked at until the calling thread's next such call. Programs
/// read as much of it as there are nodes.
fn plain_edges(count: usize) -> Cu<*const u64> {
    let shown = EDGES.try_with(|edges| {
        let mut edges = edges.borrow_mut();
        edges.resize(count, 0);
        edges.as_ptr()
    });
    shown.map_err(|_| CuResult::DEINITIALIZED)
}

fn info(stream: u64, mode: DefaultStream, to: &Results) -> Cu {
    let shim = shim()?;
    let target = resolve(shim, stream, mode)?;
    to.status.check()?;
    let info = capture::info(shim, &target)?;
    let (mut at, count) = (std::ptr::null(), info.tips.len());
    let edges = match count {
        0 => std::ptr::null(),
        count => plain_edges(count)?,
    };
    if let Some(stream) = &target.info {
        // The program may look at it until its next call about the stream.
        let mut shown = crate::lock(&stream.shown);
        *shown = info.tips;
        at = shown.as_ptr();
    }
    to.status.set(info.status)?;
    to.id.set_if_wanted(info.id);
    to.graph.set_if_wanted(info.graph);
    to.tips.set_if_wanted(at);
    to.edges.set_if_wanted(edges);
    to.count.set_if_wanted(count);
    Ok(())
}

fn update(stream: u64, mode: DefaultStream, (nodes, count): (In<u64>, usize), flags: u32) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    let nodes = nodes.list(count)?;
    match flags {
        0 | 1 => capture::update(shim, &target, &nodes, flags == 1),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
