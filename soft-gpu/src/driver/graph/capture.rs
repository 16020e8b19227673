//! Capture: operations on streams become nodes of a graph instead of running.
//!
//! A capture begins in one stream and extends to other streams through events. Each stream in the
//! capture has a set of nodes on which its next node will depend. The rules, and the errors for
//! breaking them, are those of the driver API's documentation (cuStreamBeginCapture,
//! cuThreadExchangeStreamCaptureMode, the CUDA_ERROR_STREAM_CAPTURE_* codes). A call that breaks a
//! rule also invalidates the capture, and cuStreamEndCapture then returns an error.

use std::cell::Cell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::EdgeData;

use super::Graph;
use super::node::{Action, Attributes, Dependency};
use crate::driver::context::Context;
use crate::driver::error::Result;
use crate::driver::stream::{Class, Stream};
use crate::driver::sync::lock;

/// CUstreamCaptureMode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// While the capture is open, no thread may make unsafe calls.
    Global,
    /// While the capture is open, the thread that began it may not make unsafe calls.
    ThreadLocal,
    /// Unsafe calls are allowed.
    Relaxed,
}

impl Mode {
    /// The mode with this number.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE.
    pub fn of(number: u32) -> Result<Mode> {
        match number {
            0 => Ok(Mode::Global),
            1 => Ok(Mode::ThreadLocal),
            2 => Ok(Mode::Relaxed),
            _ => Err(CuResult::INVALID_VALUE),
        }
    }
}

/// CUstreamCaptureStatus.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u32)]
pub enum Status {
    /// Not capturing.
    None = 0,
    /// Capturing.
    Active = 1,
    /// Capturing, but a rule was broken.
    Invalidated = 2,
}

/// The state of a capture at the time when an event was recorded in it.
#[derive(Debug, Clone)]
pub struct Fork {
    /// Number of the capture.
    pub capture: u64,
    tips: Vec<Dependency>,
}

/// A stream that takes part in a capture.
struct Member {
    /// cuStreamGetId.
    stream: u64,
    /// The context, and whether the stream synchronises with the NULL stream of the context.
    context: u64,
    blocking: bool,
    /// Nodes on which the next node depends. Programs read these arrays in place.
    tips: Vec<u64>,
    data: Vec<EdgeData>,
}

impl Member {
    fn new(stream: &Stream, tips: &[Dependency]) -> Member {
        let mut made = Member {
            stream: stream.id,
            context: stream.context.upgrade().map_or(0, |c| c.handle),
            blocking: stream.class == Class::Blocking,
            tips: Vec::new(),
            data: Vec::new(),
        };
        made.set(tips);
        made
    }

    fn set(&mut self, tips: &[Dependency]) {
        self.tips.clear();
        self.data.clear();
        self.extend(tips);
    }

    fn extend(&mut self, tips: &[Dependency]) {
        for t in tips {
            if !self.tips.contains(&t.node) {
                self.tips.push(t.node);
                self.data.push(t.data);
            }
        }
    }

    fn tips(&self) -> Vec<Dependency> {
        let pairs = self.tips.iter().zip(&self.data);
        pairs
            .map(|(node, data)| Dependency {
                node: *node,
                data: *data,
            })
            .collect()
    }
}

/// A capture that has not ended.
struct Session {
    id: u64,
    graph: Arc<Graph>,
    mode: Mode,
    thread: ThreadId,
    /// cuStreamGetId of the stream in which the capture began.
    origin: u64,
    valid: bool,
    /// Whether the graph was made for this capture. If the capture fails, its own graph is
    /// destroyed.
    own: bool,
    members: Vec<Member>,
}

#[derive(Default)]
struct Sessions {
    open: Vec<Session>,
    last_id: u64,
}

static SESSIONS: Mutex<Sessions> = Mutex::new(Sessions {
    open: Vec::new(),
    last_id: 0,
});
/// Number of open captures. Most calls find 0 here and skip all checks.
static OPEN: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static THREAD_MODE: Cell<Mode> = const { Cell::new(Mode::Global) };
}

impl Sessions {
    fn of(&mut self, stream: &Stream) -> Option<&mut Session> {
        self.open
            .iter_mut()
            .find(|s| s.members.iter().any(|m| m.stream == stream.id))
    }

    fn by_id(&mut self, id: u64) -> Option<&mut Session> {
        self.open.iter_mut().find(|s| s.id == id)
    }

    fn close(&mut self, id: u64) {
        self.open.retain(|s| s.id != id);
        OPEN.store(self.open.len(), Ordering::SeqCst);
    }

    /// Captures in which a stream of `context` takes part that synchronises with the NULL stream.
    fn beside_legacy(&mut self, context: u64) -> impl Iterator<Item = &mut Session> {
        self.open
            .iter_mut()
            .filter(move |s| s.members.iter().any(|m| m.blocking && m.context == context))
    }

    /// Refuses use of the NULL stream while a stream that synchronises with it captures.
    fn check_legacy(&mut self, context: u64) -> Result {
        let mut outcome = Ok(());
        for s in self.beside_legacy(context) {
            outcome = s.breaks(CuResult::STREAM_CAPTURE_IMPLICIT);
        }
        outcome
    }
}

impl Session {
    fn check(&self) -> Result {
        if self.valid {
            Ok(())
        } else {
            Err(CuResult::STREAM_CAPTURE_INVALIDATED)
        }
    }

    fn member(&mut self, stream: &Stream) -> Result<&mut Member> {
        let found = self.members.iter_mut().find(|m| m.stream == stream.id);
        found.ok_or(CuResult::ILLEGAL_STATE)
    }

    fn breaks<T>(&mut self, code: CuResult) -> Result<T> {
        self.valid = false;
        Err(code)
    }
}

fn none_open() -> bool {
    OPEN.load(Ordering::SeqCst) == 0
}

fn context_of(stream: &Stream) -> u64 {
    stream.context.upgrade().map_or(0, |c| c.handle)
}

/// cuThreadExchangeStreamCaptureMode: returns the former mode.
///
/// # Errors
/// CUDA_ERROR_INVALID_VALUE for an unknown mode.
pub fn exchange_mode(wanted: u32) -> Result<u32> {
    Ok(THREAD_MODE.replace(Mode::of(wanted)?) as u32)
}

/// cuStreamBeginCapture, into a new graph.
///
/// # Errors
/// As [`begin_to_graph`].
pub fn begin(stream: &Stream, mode: Mode) -> Result {
    let graph = super::create()?;
    let begun = start(stream, mode, Arc::clone(&graph), &[], true);
    if begun.is_err() {
        graph.forget();
    }
    begun
}

/// cuStreamBeginCaptureToGraph: the first node depends on `tips`.
///
/// # Errors
/// CUDA_ERROR_ILLEGAL_STATE if the stream already captures, or another capture adds to the graph;
/// CUDA_ERROR_INVALID_VALUE for nodes of other graphs; CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED for
/// the NULL stream.
pub fn begin_to_graph(
    stream: &Stream,
    mode: Mode,
    graph: Arc<Graph>,
    tips: &[Dependency],
) -> Result {
    start(stream, mode, graph, tips, false)
}

fn start(stream: &Stream, mode: Mode, graph: Arc<Graph>, tips: &[Dependency], own: bool) -> Result {
    if stream.class == Class::Legacy {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    let mut all = lock(&SESSIONS);
    if all.of(stream).is_some() || all.open.iter().any(|s| s.graph.handle == graph.handle) {
        return Err(CuResult::ILLEGAL_STATE);
    }
    {
        let body = graph.lock();
        if tips.iter().any(|t| !body.nodes.contains_key(&t.node)) {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    all.last_id += 1;
    let session = Session {
        id: all.last_id,
        graph,
        mode,
        thread: std::thread::current().id(),
        origin: stream.id,
        valid: true,
        own,
        members: vec![Member::new(stream, tips)],
    };
    all.open.push(session);
    OPEN.store(all.open.len(), Ordering::SeqCst);
    Ok(())
}

/// cuStreamEndCapture: returns the graph.
///
/// # Errors
/// CUDA_ERROR_ILLEGAL_STATE without a capture; CUDA_ERROR_STREAM_CAPTURE_UNMATCHED if the capture
/// began in another stream; _WRONG_THREAD; _INVALIDATED; _UNJOINED. The last two end the capture.
pub fn end(stream: &Stream) -> Result<Arc<Graph>> {
    let mut all = lock(&SESSIONS);
    let s = all.of(stream).ok_or(CuResult::ILLEGAL_STATE)?;
    if s.origin != stream.id {
        return s.breaks(CuResult::STREAM_CAPTURE_UNMATCHED);
    }
    if s.mode != Mode::Relaxed && s.thread != std::thread::current().id() {
        return Err(CuResult::STREAM_CAPTURE_WRONG_THREAD);
    }
    let (id, graph) = (s.id, Arc::clone(&s.graph));
    let own = s.own;
    let outcome = s.check().and_then(|()| {
        let joined = graph.lock().up_to(s.member(stream)?.tips.iter().copied());
        let mut tips = s.members.iter().flat_map(|m| &m.tips);
        if tips.all(|t| joined.contains(t)) {
            Ok(())
        } else {
            Err(CuResult::STREAM_CAPTURE_UNJOINED)
        }
    });
    all.close(id);
    drop(all);
    if outcome.is_err() && own {
        graph.forget();
    }
    outcome.map(|()| graph)
}

/// Whether `stream` captures, so that the operation becomes a node ([`add`]).
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED; CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the NULL stream
/// while a blocking stream captures.
pub fn recording(stream: &Stream) -> Result<bool> {
    if none_open() {
        return Ok(false);
    }
    let mut all = lock(&SESSIONS);
    if stream.class == Class::Legacy {
        all.check_legacy(context_of(stream))?;
        return Ok(false);
    }
    match all.of(stream) {
        Some(s) => s.check().map(|()| true),
        None => Ok(false),
    }
}

/// Adds a node to the graph into which `stream` captures. The next node will depend on this node.
///
/// # Errors
/// Errors of `action`, which leave the capture valid. CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for an
/// invalid or ended capture.
pub fn add(stream: &Stream, action: impl FnOnce() -> Result<Action>) -> Result {
    add_node(stream, Attributes::new(), action).map(|_| ())
}

/// As [`add`], with launch attributes; returns the node.
///
/// # Errors
/// As [`add`].
pub fn add_node(
    stream: &Stream,
    attributes: Attributes,
    action: impl FnOnce() -> Result<Action>,
) -> Result<u64> {
    let action = action()?;
    let mut all = lock(&SESSIONS);
    let s = all.of(stream).ok_or(CuResult::STREAM_CAPTURE_INVALIDATED)?;
    s.check()?;
    let graph = Arc::clone(&s.graph);
    let member = s.member(stream)?;
    let node = graph.add(action, attributes, &member.tips())?;
    member.set(&[Dependency::on(node)]);
    Ok(node)
}

/// The capture of `stream` and the nodes on which its next node depends, for a recorded event.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_INVALIDATED for an invalid or ended capture.
pub fn fork(stream: &Stream) -> Result<Fork> {
    let mut all = lock(&SESSIONS);
    let s = all.of(stream).ok_or(CuResult::STREAM_CAPTURE_INVALIDATED)?;
    s.check()?;
    Ok(Fork {
        capture: s.id,
        tips: s.member(stream)?.tips(),
    })
}

/// Handles a wait of `stream` for an event that a capture recorded: adds the stream to that
/// capture.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_MERGE for a stream of another capture; _IMPLICIT for the NULL stream.
/// After the end of the event's capture: _ISOLATION for a capturing stream,
/// CUDA_ERROR_CAPTURED_EVENT for any other. If the event's capture is invalid: _INVALIDATED for a
/// stream of the capture, CUDA_ERROR_INVALID_VALUE for any other.
pub fn join(stream: &Stream, fork: &Fork) -> Result {
    let mut all = lock(&SESSIONS);
    let own = all.of(stream).map(|s| s.id);
    if all.by_id(fork.capture).is_none() {
        return match own.and_then(|id| all.by_id(id)) {
            Some(s) => s.breaks(CuResult::STREAM_CAPTURE_ISOLATION),
            None => Err(CuResult::CAPTURED_EVENT),
        };
    }
    if let Some(id) = own.filter(|id| *id != fork.capture) {
        for broken in [id, fork.capture] {
            if let Some(s) = all.by_id(broken) {
                s.valid = false;
            }
        }
        return Err(CuResult::STREAM_CAPTURE_MERGE);
    }
    let s = all.by_id(fork.capture).ok_or(CuResult::CAPTURED_EVENT)?;
    if !s.valid {
        // A stream of the capture gets the error of an invalid capture. For any other stream, only
        // the event is unusable.
        return Err(if own.is_some() {
            CuResult::STREAM_CAPTURE_INVALIDATED
        } else {
            CuResult::INVALID_VALUE
        });
    }
    if stream.class == Class::Legacy {
        return s.breaks(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
    match s.members.iter_mut().find(|m| m.stream == stream.id) {
        Some(m) => m.extend(&fork.tips),
        None => s.members.push(Member::new(stream, &fork.tips)),
    }
    Ok(())
}

/// Refuses that a capturing stream depends on work outside its capture.
///
/// # Errors
/// Always: CUDA_ERROR_STREAM_CAPTURE_ISOLATION.
pub fn isolated(stream: &Stream) -> Result {
    match lock(&SESSIONS).of(stream) {
        Some(s) => s.breaks(CuResult::STREAM_CAPTURE_ISOLATION),
        None => Err(CuResult::STREAM_CAPTURE_ISOLATION),
    }
}

/// Invalidates a capture, if it is still open.
pub fn invalidate(id: u64) {
    if let Some(s) = lock(&SESSIONS).by_id(id) {
        s.valid = false;
    }
}

/// Refuses a wait for a capturing stream, a query of it, or another operation that no capture
/// accepts.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, or as [`recording`].
pub fn forbid(stream: &Stream) -> Result {
    if none_open() || !recording(stream)? {
        return Ok(());
    }
    match lock(&SESSIONS).of(stream) {
        Some(s) => s.breaks(CuResult::STREAM_CAPTURE_UNSUPPORTED),
        None => Ok(()),
    }
}

/// As [`forbid`], for synchronous operations. They are also unsafe calls.
///
/// # Errors
/// As [`forbid`] and [`unsafe_call`].
pub fn forbid_sync(stream: &Stream) -> Result {
    if none_open() {
        return Ok(());
    }
    forbid(stream)?;
    unsafe_call()
}

/// Refuses a wait for a whole context while one of its streams captures.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
pub fn forbid_context(context: &Context) -> Result {
    if none_open() {
        return Ok(());
    }
    let mut broken = false;
    for s in &mut lock(&SESSIONS).open {
        if s.members.iter().any(|m| m.context == context.handle) {
            s.valid = false;
            broken = true;
        }
    }
    if broken {
        return Err(CuResult::STREAM_CAPTURE_UNSUPPORTED);
    }
    unsafe_call()
}

/// Checks an unsafe call: a call, such as an allocation, that a capture cannot record although the
/// program may mean it to be part of the graph.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED if this thread's mode and the open captures forbid it.
pub fn unsafe_call() -> Result {
    if none_open() {
        return Ok(());
    }
    let mode = THREAD_MODE.get();
    let here = std::thread::current().id();
    let mut broken = false;
    for s in &mut lock(&SESSIONS).open {
        let forbidden = match mode {
            Mode::Relaxed => false,
            _ if s.thread == here => s.mode != Mode::Relaxed,
            Mode::ThreadLocal => false,
            Mode::Global => s.mode == Mode::Global,
        };
        if forbidden {
            s.valid = false;
            broken = true;
        }
    }
    if broken {
        Err(CuResult::STREAM_CAPTURE_UNSUPPORTED)
    } else {
        Ok(())
    }
}

/// cuStreamIsCapturing.
///
/// # Errors
/// CUDA_ERROR_STREAM_CAPTURE_IMPLICIT for the NULL stream while a blocking stream captures.
pub fn status(stream: &Stream) -> Result<Status> {
    info(stream).map(|i| i.status)
}

/// Results of cuStreamGetCaptureInfo.
pub struct Info {
    /// Status of the stream.
    pub status: Status,
    /// The capture's number.
    pub id: u64,
    /// CUgraph.
    pub graph: u64,
    /// Nodes on which the next node depends; valid until the next operation on the stream.
    pub tips: *const u64,
    /// Edge data of each dependency; valid as long as `tips`.
    pub data: *const EdgeData,
    /// Whether an edge has edge data other than the default.
    pub annotated: bool,
    /// Number of dependencies.
    pub count: usize,
}

/// cuStreamGetCaptureInfo.
///
/// # Errors
/// As [`status`].
pub fn info(stream: &Stream) -> Result<Info> {
    let mut all = lock(&SESSIONS);
    // A query does not invalidate the capture.
    let legacy = stream.class == Class::Legacy;
    if legacy && all.beside_legacy(context_of(stream)).next().is_some() {
        return Err(CuResult::STREAM_CAPTURE_IMPLICIT);
    }
    let none = Info {
        status: Status::None,
        id: 0,
        graph: 0,
        tips: std::ptr::null(),
        data: std::ptr::null(),
        annotated: false,
        count: 0,
    };
    let Some(s) = all.of(stream) else {
        return Ok(none);
    };
    if !s.valid {
        return Ok(Info {
            status: Status::Invalidated,
            id: s.id,
            ..none
        });
    }
    let (id, graph) = (s.id, s.graph.handle);
    let member = s.member(stream)?;
    Ok(Info {
        status: Status::Active,
        id,
        graph,
        tips: member.tips.as_ptr(),
        data: member.data.as_ptr(),
        annotated: member.data.iter().any(|d| *d != EdgeData::default()),
        count: member.tips.len(),
    })
}

/// cuStreamUpdateCaptureDependencies: replaces the dependencies of the next node, or adds to them.
///
/// # Errors
/// CUDA_ERROR_ILLEGAL_STATE without a capture; CUDA_ERROR_INVALID_VALUE for nodes of other graphs.
pub fn update_tips(stream: &Stream, tips: &[Dependency], replace: bool) -> Result {
    let mut all = lock(&SESSIONS);
    let s = all.of(stream).ok_or(CuResult::ILLEGAL_STATE)?;
    s.check()?;
    {
        let body = s.graph.lock();
        if tips.iter().any(|t| !body.nodes.contains_key(&t.node)) {
            return Err(CuResult::INVALID_VALUE);
        }
    }
    let member = s.member(stream)?;
    if replace {
        member.set(tips);
    } else {
        member.extend(tips);
    }
    Ok(())
}

/// Whether an open capture adds to this graph.
pub fn uses(graph: &Graph) -> bool {
    !none_open()
        && lock(&SESSIONS)
            .open
            .iter()
            .any(|s| s.graph.handle == graph.handle)
}

/// Handles the destruction of a capturing stream. If the capture began in this stream, the capture
/// ends. Otherwise the stream's nodes stay in the graph, and the capture fails as unjoined unless
/// another stream joins them.
pub fn forget_stream(stream: &Stream) {
    if none_open() {
        return;
    }
    let mut all = lock(&SESSIONS);
    let Some(s) = all.of(stream) else { return };
    if s.origin == stream.id {
        let id = s.id;
        all.close(id);
    }
}
