//! Stream capture.

use std::cell::RefCell;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out};

use crate::Cu;
use crate::ffi::exports;
use crate::state::capture::{self, GLOBAL};
use crate::state::current::{live, shim};
use crate::state::streams::resolve;

/// The destinations of the results of `cuStreamGetCaptureInfo`.
struct Results {
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    tips: Out<*const u64>,
    edges: Out<*const u64>,
    count: Out<usize>,
}

exports! {
    /// Begins a capture. The first form of this function has only the global mode.
    fn cuStreamBeginCapture / cuStreamBeginCapture_ptsz [mode] (stream: u64) {
        let shim = live()?;
        capture::begin(shim, &resolve(shim, stream, mode)?, GLOBAL, None)
    }

    /// Begins a capture: work that is put into the stream becomes nodes of a graph.
    fn cuStreamBeginCapture_v2 / cuStreamBeginCapture_v2_ptsz [mode] (stream: u64, how: u32) {
        let shim = live()?;
        capture::begin(shim, &resolve(shim, stream, mode)?, how, None)
    }

    /// Begins a capture into an existing graph, after some of its nodes.
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

    /// Ends a capture and returns the graph.
    fn cuStreamEndCapture / cuStreamEndCapture_ptsz [mode] (stream: u64, out: Out<u64>) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let ended = capture::end(shim, &target);
        let handle = ended.as_ref().map_or(0, |graph| graph.handle);
        out.set_if_wanted(handle);
        ended.map(|_| ())
    }

    /// Whether the stream is captured, and whether the capture is still valid.
    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz [mode] (stream: u64, out: Out<u32>) {
        let shim = shim()?;
        let status = capture::info(shim, &resolve(shim, stream, mode)?)?.status;
        out.set(status)
    }

    /// The status and the ID of a capture.
    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz [mode] (
        stream: u64,
        status: Out<u32>,
        id: Out<u64>
    ) {
        let (graph, tips) = (Out::NULL, Out::NULL);
        let (edges, count) = (Out::NULL, Out::NULL);
        info(stream, mode, &Results { status, id, graph, tips, edges, count })
    }

    /// The status of a capture, with the graph and the dependencies of the next node.
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

    /// The status of a capture, also with the edge data, which is always zero.
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

    /// Adds or replaces dependencies of the next node.
    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz [mode] (
        stream: u64,
        nodes: In<u64>,
        count: usize,
        flags: u32
    ) {
        update(stream, mode, (nodes, count), flags)
    }

    /// Adds or replaces dependencies of the next node. The edge data is ignored.
    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz [mode] (
        stream: u64,
        nodes: In<u64>,
        _edges: In<u64>,
        count: usize,
        flags: u32
    ) {
        update(stream, mode, (nodes, count), flags)
    }

    /// Exchanges the capture mode of the calling thread for another.
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
    /// The edge data that this thread got last: all zero.
    static EDGES: RefCell<Vec<u64>> = const { RefCell::new(Vec::new()) };
}

/// Zero data for `count` edges, valid until the calling thread calls this function again. The list
/// has as many words as there are nodes, because programs read that much.
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
        // The program may read the list until its next query of the stream.
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
