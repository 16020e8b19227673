//! Stream capture: calls become nodes of a graph instead of work in a stream.
//!
//! Captures exist only in the guest. A capture stores, for each of its streams, the nodes on which
//! the stream's next node depends. An event that is recorded in a captured stream stores these
//! nodes; a stream that waits for the event depends on the nodes that the event stores.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::numbers::stream_flag::NON_BLOCKING;
use vgpu_proto::cuda::Ctx;

use super::Shim;
use super::events::EventInfo;
use super::graphs::{Graph, Kind};
use super::streams::Target;
use crate::{Cu, lock};

pub(crate) use vgpu_cuda_abi::numbers::capture_mode::{GLOBAL, RELAXED};
/// `CU_STREAM_CAPTURE_STATUS_NONE`, `ACTIVE`, `INVALIDATED`.
pub(crate) const NONE: u32 = 0;
const ACTIVE: u32 = 1;
const INVALIDATED: u32 = 2;

#[derive(Debug, Default)]
struct State {
    invalid: bool,
    /// The nodes on which the next node depends, by stream.
    tips: HashMap<u64, Vec<u64>>,
}

/// One capture.
#[derive(Debug)]
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: Arc<Graph>,
    /// Whether the graph was created for this capture. Such a graph is destroyed if the capture
    /// fails.
    own: bool,
    origin: u64,
    mode: u32,
    thread: u64,
    /// Context of the first stream. While a blocking stream of a context is captured, the context's
    /// NULL stream may not be used.
    ctx: u64,
    blocking: bool,
    state: Mutex<State>,
}

/// All active captures.
#[derive(Debug, Default)]
pub(crate) struct Captures {
    active: AtomicUsize,
    streams: Mutex<HashMap<u64, Arc<Capture>>>,
}

thread_local!(static MODE: Cell<u32> = const { Cell::new(GLOBAL) });

/// `cuThreadExchangeStreamCaptureMode`.
pub(crate) fn exchange_mode(mode: u32) -> u32 {
    MODE.try_with(|m| m.replace(mode)).unwrap_or(GLOBAL)
}

fn this_thread() -> u64 {
    // SAFETY: the system call has no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as u64 }
}

impl Captures {
    /// Whether any capture is active.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.active.load(Ordering::Acquire) > 0
    }

    fn of(&self, stream: u64) -> Option<Arc<Capture>> {
        lock(&self.streams).get(&stream).cloned()
    }

    fn join(&self, stream: u64, capture: &Arc<Capture>) {
        let before = lock(&self.streams).insert(stream, capture.clone());
        if before.is_none() {
            self.active.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// Ends a capture on all its streams.
    fn leave(&self, capture: &Capture) {
        lock(&self.streams).retain(|_, c| {
            let stays = c.id != capture.id;
            if !stays {
                self.active.fetch_sub(1, Ordering::AcqRel);
            }
            stays
        });
    }

    /// Whether an active capture adds nodes to this graph.
    fn uses(&self, graph: u64) -> bool {
        let streams = lock(&self.streams);
        streams.values().any(|c| c.graph.handle == graph)
    }

    /// Invalidates the captures with which a call is incompatible.
    fn break_those(&self, meant: impl Fn(&Capture) -> bool) -> Cu {
        let streams = lock(&self.streams);
        let mut broken = false;
        for capture in streams.values().filter(|c| meant(c)) {
            capture.invalidate();
            broken = true;
        }
        match broken {
            true => Err(CuResult::STREAM_CAPTURE_UNSUPPORTED),
            false => Ok(()),
        }
    }

    /// Whether the capture is still active.
    fn knows(&self, capture: &Capture) -> bool {
        let streams = lock(&self.streams);
        streams.values().any(|c| c.id == capture.id)
    }
}

/// Whether an active capture adds nodes to this graph.
pub(crate) fn uses(shim: &Shim, graph: u64) -> bool {
    shim.captures.any() && shim.captures.uses(graph)
}

/// Ends the capture of a stream that is destroyed, if the capture began on this stream. Nodes of
/// other streams remain in the graph, and must still be joined.
pub(crate) fn abandon(shim: &Shim, stream: u64) {
    if !shim.captures.any() {
        return;
    }
    if let Some(capture) = shim.captures.of(stream)
        && capture.origin == stream
    {
        capture.invalidate();
        shim.captures.leave(&capture);
        capture.fail(shim);
    }
}

impl Capture {
    /// Ends the capture without a graph.
    fn fail(&self, shim: &Shim) {
        if self.own {
            shim.forget_graph(&self.graph);
        }
    }

    /// Invalidates the capture; the call that ends the capture reports this.
    fn invalidate(&self) {
        lock(&self.state).invalid = true;
    }

    fn is_valid(&self) -> Cu {
        match lock(&self.state).invalid {
            true => Err(CuResult::STREAM_CAPTURE_INVALIDATED),
            false => Ok(()),
        }
    }

    fn tips(&self, stream: u64) -> Vec<u64> {
        let state = lock(&self.state);
        state.tips.get(&stream).cloned().unwrap_or_default()
    }
}

/// The capture that work of a target belongs to; `None` if the target is not captured.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the NULL stream
/// while a blocking stream is captured.
pub(crate) fn of(shim: &Shim, target: &Target) -> Cu<Option<Arc<Capture>>> {
    if !shim.captures.any() {
        return Ok(None);
    }
    let Some(info) = &target.info else {
        let streams = lock(&shim.captures.streams);
        let beside = |c: &&Arc<Capture>| c.blocking && c.ctx == target.ctx().0;
        return match streams.values().find(beside) {
            Some(capture) => {
                capture.invalidate();
                Err(CuResult::STREAM_CAPTURE_IMPLICIT)
            }
            None => Ok(None),
        };
    };
    match shim.captures.of(info.handle.0) {
        Some(capture) => capture.is_valid().map(|()| Some(capture)),
        None => Ok(None),
    }
}

/// Adds a node to the capture of the target's stream; `false` if there is no capture.
///
/// # Errors
/// As [`of`]; the errors of `make`.
pub(crate) fn take(shim: &Shim, target: &Target, make: impl FnOnce() -> Cu<Kind>) -> Cu<bool> {
    let Some(capture) = of(shim, target)? else {
        return Ok(false);
    };
    let kind = make()?;
    let stream = target.stream.0;
    let behind = capture.tips(stream);
    let node = shim.add_node(&capture.graph, kind, behind)?;
    lock(&capture.state).tips.insert(stream, vec![node]);
    Ok(true)
}

/// Refuses a call that cannot become a node of a graph, and invalidates the capture.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED while the target's stream is captured; as [`of`].
#[inline]
pub(crate) fn forbid(shim: &Shim, target: &Target) -> Cu {
    if shim.captures.any()
        && let Some(capture) = of(shim, target)?
    {
        capture.invalidate();
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    Ok(())
}

/// Refuses a call that a capture cannot record but that might be meant for the graph, such as an
/// allocation.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if the mode of this thread and of a capture forbid the
/// call.
#[inline]
pub(crate) fn unsafe_call(shim: &Shim) -> Cu {
    if !shim.captures.any() {
        return Ok(());
    }
    let mode = MODE.try_with(Cell::get).unwrap_or(GLOBAL);
    let here = this_thread();
    shim.captures.break_those(|capture| match mode {
        RELAXED => false,
        _ if capture.thread == here => capture.mode != RELAXED,
        GLOBAL => capture.mode == GLOBAL,
        _ => false,
    })
}

/// As [`forbid`], for a call that waits for all streams of a context.
///
/// # Errors
/// As [`unsafe_call`].
pub(crate) fn forbid_context(shim: &Shim, ctx: Ctx) -> Cu {
    if !shim.captures.any() {
        return Ok(());
    }
    shim.captures.break_those(|capture| capture.ctx == ctx.0)?;
    unsafe_call(shim)
}

/// `cuEventRecord` in a captured stream: the event then represents the nodes that the stream has at
/// this time. `false`: the stream is not captured.
///
/// # Errors
/// As [`of`].
pub(crate) fn record(shim: &Shim, target: &Target, event: &EventInfo) -> Cu<bool> {
    let captured = match of(shim, target)? {
        Some(capture) => {
            let tips = capture.tips(target.stream.0);
            Some((capture, tips))
        }
        None => None,
    };
    let is = captured.is_some();
    *lock(&event.captured) = captured;
    Ok(is)
}

/// Refuses a call about an event whose last record was in a capture.
///
/// # Errors
/// CUDA_ERROR_CAPTURED_EVENT.
pub(crate) fn not_captured(shim: &Shim, event: &EventInfo) -> Cu {
    if lock(&event.captured).is_none() {
        return Ok(());
    }
    if let Some((capture, _)) = &*lock(&event.captured)
        && shim.captures.knows(capture)
    {
        capture.invalidate();
    }
    Err(CuResult::CAPTURED_EVENT)
}

/// `cuStreamWaitEvent`: a stream that waits for a captured event joins the capture. `false`:
/// neither the stream nor the event is captured.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_ISOLATION if only the stream is captured, `MERGE` if their captures
/// differ, CUDA_ERROR_CAPTURED_EVENT if the event's capture has ended; as [`of`].
pub(crate) fn wait(shim: &Shim, target: &Target, event: &EventInfo) -> Cu<bool> {
    let own = of(shim, target)?;
    let other = lock(&event.captured).clone();
    let (capture, behind) = match (own, other) {
        (None, None) => return Ok(false),
        (Some(own), None) => {
            own.invalidate();
            return Err(CuResult::STREAM_CAPTURE_ISOLATION);
        }
        (own, Some((capture, behind))) => {
            if !shim.captures.knows(&capture) {
                return Err(CuResult::CAPTURED_EVENT);
            }
            capture.is_valid()?;
            if let Some(own) = own
                && own.id != capture.id
            {
                own.invalidate();
                capture.invalidate();
                return Err(CuResult::STREAM_CAPTURE_MERGE);
            }
            (capture, behind)
        }
    };
    if target.info.is_none() {
        capture.invalidate();
        return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
    let stream = target.stream.0;
    shim.captures.join(stream, &capture);
    let mut state = lock(&capture.state);
    let tips = state.tips.entry(stream).or_default();
    for node in behind {
        if !tips.contains(&node) {
            tips.push(node);
        }
    }
    Ok(true)
}

/// `cuStreamBeginCapture`, into a new graph or after nodes of an existing graph.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for the NULL stream; CUDA_ERROR_ILLEGAL_STATE if the
/// stream is already captured; CUDA_ERROR_INVALID_VALUE.
pub(crate) fn begin(
    shim: &Shim,
    target: &Target,
    mode: u32,
    into: Option<(Arc<Graph>, Vec<u64>)>,
) -> Cu {
    if mode > RELAXED {
        return Err(CuResult::INVALID_VALUE);
    }
    let info = target
        .info
        .as_ref()
        .ok_or(CuResult::STREAM_CAPTURE_UNSUPPORTED)?;
    let stream = info.handle.0;
    if shim.captures.of(stream).is_some() {
        return Err(CuResult::ILLEGAL_STATE);
    }
    let own = into.is_none();
    let (graph, behind) = match into {
        Some((graph, _)) if shim.captures.uses(graph.handle) => {
            return Err(CuResult::ILLEGAL_STATE);
        }
        Some((graph, behind)) => {
            for node in &behind {
                if shim.node(*node)?.graph != graph.handle {
                    return Err(CuResult::INVALID_VALUE);
                }
            }
            (graph, behind)
        }
        None => (shim.create_graph()?, Vec::new()),
    };
    let capture = Arc::new(Capture {
        id: shim.mint(),
        graph,
        own,
        origin: stream,
        mode,
        thread: this_thread(),
        ctx: target.ctx().0,
        blocking: info.flags & NON_BLOCKING == 0,
        state: Mutex::default(),
    });
    lock(&capture.state).tips.insert(stream, behind);
    shim.captures.join(stream, &capture);
    Ok(())
}

/// `cuStreamEndCapture`.
///
/// # Errors
/// CUDA_ERROR_ILLEGAL_STATE if the stream is not captured; the error of the capture. The capture
/// also ends after an error, except if another stream or thread began the capture.
pub(crate) fn end(shim: &Shim, target: &Target) -> Cu<Arc<Graph>> {
    let info = target.info.as_ref().ok_or(CuResult::ILLEGAL_STATE)?;
    let capture = shim.captures.of(info.handle.0);
    let capture = capture.ok_or(CuResult::ILLEGAL_STATE)?;
    if capture.origin != info.handle.0 {
        capture.invalidate();
        return Err(CuResult::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != this_thread() {
        return Err(CuResult::STREAM_CAPTURE_WRONG_THREAD);
    }
    shim.captures.leave(&capture);
    let failed = match capture.is_valid() {
        Err(code) => Some(code),
        Ok(()) if !is_joined(shim, &capture) => Some(CuResult::STREAM_CAPTURE_UNJOINED),
        Ok(()) => None,
    };
    match failed {
        Some(code) => {
            capture.fail(shim);
            Err(code)
        }
        None => Ok(capture.graph.clone()),
    }
}

/// Whether the last nodes of the first stream depend on all nodes of the other streams.
fn is_joined(shim: &Shim, capture: &Capture) -> bool {
    let state = lock(&capture.state);
    let mut seen = HashSet::new();
    let mut left = state.tips.get(&capture.origin).cloned().unwrap_or_default();
    while let Some(node) = left.pop() {
        if seen.insert(node)
            && let Ok(node) = shim.node(node)
        {
            left.extend(lock(&node.dependencies).iter());
        }
    }
    state.tips.values().flatten().all(|n| seen.contains(n))
}

/// The state of a stream's capture.
pub(crate) struct Info {
    pub(crate) status: u32,
    pub(crate) id: u64,
    pub(crate) graph: u64,
    pub(crate) tips: Vec<u64>,
}

/// `cuStreamGetCaptureInfo`, `cuStreamIsCapturing`.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, as [`of`].
pub(crate) fn info(shim: &Shim, target: &Target) -> Cu<Info> {
    let none = Info {
        status: NONE,
        id: 0,
        graph: 0,
        tips: Vec::new(),
    };
    if !shim.captures.any() {
        return Ok(none);
    }
    let Some(stream) = &target.info else {
        let streams = lock(&shim.captures.streams);
        let implicit = streams
            .values()
            .any(|c| c.blocking && c.ctx == target.ctx().0);
        return if implicit {
            Err(CuResult::STREAM_CAPTURE_IMPLICIT)
        } else {
            Ok(none)
        };
    };
    let Some(capture) = shim.captures.of(stream.handle.0) else {
        return Ok(none);
    };
    if capture.is_valid().is_err() {
        return Ok(Info {
            status: INVALIDATED,
            ..none
        });
    }
    Ok(Info {
        status: ACTIVE,
        id: capture.id,
        graph: capture.graph.handle,
        tips: capture.tips(stream.handle.0),
    })
}

/// `cuStreamUpdateCaptureDependencies`: adds or replaces dependencies of the stream's next node.
///
/// # Errors
/// CUDA_ERROR_ILLEGAL_STATE if the stream is not captured; CUDA_ERROR_INVALID_VALUE for nodes of
/// other graphs.
pub(crate) fn update(shim: &Shim, target: &Target, nodes: &[u64], instead: bool) -> Cu {
    let capture = of(shim, target)?.ok_or(CuResult::ILLEGAL_STATE)?;
    for node in nodes {
        if shim.node(*node)?.graph != capture.graph.handle {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    let mut state = lock(&capture.state);
    let tips = state.tips.entry(target.stream.0).or_default();
    if instead {
        tips.clear();
    }
    for node in nodes {
        if !tips.contains(node) {
            tips.push(*node);
        }
    }
    Ok(())
}
