//! Host functions: the program's, called on a stream's thread.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::{HostFn, StreamCallback};

use super::error::Result;
use super::fault;
use super::graph::capture;
use super::graph::node::Action;
use super::stream::{Running, Stream};

/// A CUhostFn with its argument, on its way to another thread.
#[derive(Debug, Clone, Copy)]
pub struct HostCall {
    /// The function.
    pub call: HostFn,
    /// Its argument.
    pub data: *mut c_void,
}

// SAFETY: the API's contract: the function is called with this pointer on a thread of the driver.
unsafe impl Send for HostCall {}
// SAFETY: as above; the pointer is only handed on.
unsafe impl Sync for HostCall {}

impl HostCall {
    /// The function of the program, if there is one.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE for null.
    pub fn new(call: Option<HostFn>, data: *mut c_void) -> Result<HostCall> {
        let call = call.ok_or(CuResult::INVALID_VALUE)?;
        Ok(HostCall { call, data })
    }

    /// Calls it.
    pub fn run(&self) {
        // SAFETY: the API's contract for host functions.
        unsafe { (self.call)(self.data) };
    }
}

/// cuLaunchHostFunc.
///
/// # Errors
/// The stream's context is gone; a capture that is over.
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

// SAFETY: as of `HostCall`.
unsafe impl Send for Callback {}

/// cuStreamAddCallback; `named` is the handle that the program used.
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
        // SAFETY: the API's contract for cuStreamAddCallback.
        unsafe { call(stream, status, data) };
    };
    stream.submit(Vec::new(), Some(Box::new(work))).map(|_| ())
}
