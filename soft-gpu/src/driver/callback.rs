//! Host functions: functions of the program that run on the thread of a stream.

use std::cell::Cell;
use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::{HostFn, StreamCallback};

use super::error::Result;
use super::fault;
use super::graph::capture;
use super::graph::node::Action;
use super::stream::{Running, Stream};

thread_local! {
    /// Whether this thread runs a function of the program.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Runs a function of the program on this thread.
fn inside(function: impl FnOnce()) {
    let before = INSIDE.replace(true);
    function();
    INSIDE.set(before);
}

/// Refuses what a function of the program may not do: work for the device, and waits, which would
/// wait for the stream whose thread runs the function.
///
/// # Errors
/// CUDA_ERROR_NOT_PERMITTED within a function of the program.
pub fn check() -> Result {
    match INSIDE.get() {
        true => Err(CuResult::NOT_PERMITTED),
        false => Ok(()),
    }
}

/// A CUhostFn with its argument, to be called on another thread.
#[derive(Debug, Clone, Copy)]
pub struct HostCall {
    /// The function.
    pub call: HostFn,
    /// The argument.
    pub data: *mut c_void,
}

// SAFETY: CUDA's contract: the driver may call the function with this pointer on any thread.
unsafe impl Send for HostCall {}
// SAFETY: as above; the pointer is only passed on.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// Makes a call from the function and the argument that a program passed.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn new(call: Option<HostFn>, data: *mut c_void) -> Result<HostCall> {
        let call = call.ok_or(CuResult::INVALID_VALUE)?;
        Ok(HostCall { call, data })
    }

    /// Calls the function.
    pub fn run(&self) {
        // SAFETY: the API's contract for host functions: the function may be called with this
        // argument.
        inside(|| unsafe { (self.call)(self.data) });
    }
}

/// cuLaunchHostFunc.
///
/// # Errors
/// CUDA_ERROR_CONTEXT_IS_DESTROYED; errors of an invalid capture.
pub fn launch(stream: &Stream, call: HostCall) -> Result {
    if capture::recording(stream)? {
        return capture::add(stream, || Ok(Action::Host(call)));
    }
    let work = move |_: &Running<'_>| call.run();
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}

/// A CUstreamCallback with its arguments.
struct Callback {
    call: StreamCallback,
    stream: u64,
    data: *mut c_void,
}

// SAFETY: as for `HostCall`.
unsafe impl Send for Callback {}

/// cuStreamAddCallback. The callback gets `named`, the stream handle that the program passed.
///
/// # Errors
/// Callbacks cannot be captured: CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED.
pub fn add(stream: &Stream, named: u64, call: StreamCallback, data: *mut c_void) -> Result {
    capture::forbid(stream)?;
    let call = Callback {
        call,
        stream: named,
        data,
    };
    let work = move |_: &Running<'_>| {
        let Callback { call, stream, data } = { call };
        let status = fault::sticky().map_or(0, |e| e.0);
        // SAFETY: the API's contract for cuStreamAddCallback: the function may be called with these
        // arguments.
        inside(|| unsafe { call(stream, status, data) });
    };
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}
