//! Stream capture.

use std::cell::RefCell;

use vgpu_proto::cuda::CuResult;

use crate::Cu;
use crate::ffi::{DefaultStream, exports, put, put_optional, required};
use crate::process::{live, shim};
use crate::state::capture::{self, GLOBAL};
use crate::state::streams::resolve;

/// Where `cuStreamGetCaptureInfo` puts its results.
struct Results {
    status: *mut u32,
    id: *mut u64,
    graph: *mut u64,
    tips: *mut *const u64,
    edges: *mut *const u64,
    count: *mut usize,
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
        nodes: *const u64,
        _edges: *const u64,
        count: usize,
        how: u32
    ) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let graph = shim.graph(graph)?;
        // SAFETY: by the contract of the function.
        let nodes = unsafe { list(nodes, count) }?;
        capture::begin(shim, &target, how, Some((graph, nodes)))
    }

    /// Ends, and gives the graph.
    fn cuStreamEndCapture / cuStreamEndCapture_ptsz [mode] (stream: u64, out: *mut u64) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let ended = capture::end(shim, &target);
        let handle = ended.as_ref().map_or(0, |graph| graph.handle);
        // SAFETY: by the contract of the function.
        unsafe { put_optional(out, handle) };
        ended.map(|_| ())
    }

    /// Whether, and whether it can still succeed.
    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz [mode] (stream: u64, out: *mut u32) {
        let shim = shim()?;
        let status = capture::info(shim, &resolve(shim, stream, mode)?)?.status;
        // SAFETY: by the contract of the function.
        unsafe { put(out, status) }
    }

    /// The first form.
    fn cuStreamGetCaptureInfo / cuStreamGetCaptureInfo_ptsz [mode] (
        stream: u64,
        status: *mut u32,
        id: *mut u64
    ) {
        let (graph, tips) = (std::ptr::null_mut(), std::ptr::null_mut());
        let (edges, count) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: by the contract of the function.
        unsafe { info(stream, mode, &Results { status, id, graph, tips, edges, count }) }
    }

    /// With the graph and what the next node comes behind.
    fn cuStreamGetCaptureInfo_v2 / cuStreamGetCaptureInfo_v2_ptsz [mode] (
        stream: u64,
        status: *mut u32,
        id: *mut u64,
        graph: *mut u64,
        tips: *mut *const u64,
        count: *mut usize
    ) {
        let edges = std::ptr::null_mut();
        // SAFETY: by the contract of the function.
        unsafe { info(stream, mode, &Results { status, id, graph, tips, edges, count }) }
    }

    /// With data of edges, which is always zero.
    fn cuStreamGetCaptureInfo_v3 / cuStreamGetCaptureInfo_v3_ptsz [mode] (
        stream: u64,
        status: *mut u32,
        id: *mut u64,
        graph: *mut u64,
        tips: *mut *const u64,
        edges: *mut *const u64,
        count: *mut usize
    ) {
        // SAFETY: by the contract of the function.
        unsafe { info(stream, mode, &Results { status, id, graph, tips, edges, count }) }
    }

    /// Adds to, or sets, what the next node comes behind.
    fn cuStreamUpdateCaptureDependencies / cuStreamUpdateCaptureDependencies_ptsz [mode] (
        stream: u64,
        nodes: *mut u64,
        count: usize,
        flags: u32
    ) {
        // SAFETY: by the contract of the function.
        unsafe { update(stream, mode, (nodes, count), flags) }
    }

    /// The same; data of edges is not looked at.
    fn cuStreamUpdateCaptureDependencies_v2 / cuStreamUpdateCaptureDependencies_v2_ptsz [mode] (
        stream: u64,
        nodes: *mut u64,
        _edges: *const u64,
        count: usize,
        flags: u32
    ) {
        // SAFETY: by the contract of the function.
        unsafe { update(stream, mode, (nodes, count), flags) }
    }

    /// The calling thread's mode.
    fn cuThreadExchangeStreamCaptureMode(how: *mut u32) {
        shim()?;
        required(how)?;
        // SAFETY: by the contract of the function.
        unsafe {
            let wanted = how.read_unaligned();
            if wanted > capture::RELAXED {
                return Err(CuResult::INVALID_VALUE);
            }
            put(how, capture::exchange_mode(wanted))
        }
    }
}

/// # Safety
/// The list is null or as long as its count says.
pub(super) unsafe fn list(nodes: *const u64, count: usize) -> Cu<Vec<u64>> {
    if count == 0 {
        return Ok(Vec::new());
    }
    required(nodes)?;
    // SAFETY: by this function's contract.
    Ok(unsafe { std::slice::from_raw_parts(nodes, count) }.to_vec())
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

/// # Safety
/// The results are null or valid for a write.
unsafe fn info(stream: u64, mode: DefaultStream, to: &Results) -> Cu {
    let shim = shim()?;
    let target = resolve(shim, stream, mode)?;
    required(to.status)?;
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
    // SAFETY: by this function's contract.
    unsafe {
        put(to.status, info.status)?;
        put_optional(to.id, info.id);
        put_optional(to.graph, info.graph);
        put_optional(to.tips, at);
        put_optional(to.edges, edges);
        put_optional(to.count, count);
    }
    Ok(())
}

/// # Safety
/// The list is null or as long as its count says.
unsafe fn update(
    stream: u64,
    mode: DefaultStream,
    (nodes, count): (*const u64, usize),
    flags: u32,
) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    // SAFETY: by this function's contract.
    let nodes = unsafe { list(nodes, count) }?;
    match flags {
        0 | 1 => capture::update(shim, &target, &nodes, flags == 1),
        _ => Err(CuResult::INVALID_VALUE),
    }
}
