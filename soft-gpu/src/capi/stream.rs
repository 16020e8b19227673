//! Streams.

use std::ffi::c_void;

use super::types::{Default, Out, StreamArg};
use crate::driver::error::{CuError, Result};
use crate::driver::stream::{self, Running};
use crate::driver::{event, fault, healthy};

fn synchronize(stream: StreamArg, default: Default) -> Result {
    stream.get(default)?.synchronize()
}

fn query(stream: StreamArg, default: Default) -> Result {
    stream.get(default)?.query()
}

fn wait_event(stream: StreamArg, handle: u64, flags: u32, default: Default) -> Result {
    if flags & !1 != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let stream = stream.get(default)?;
    event::wait(&stream, &*event::get(handle)?)
}

fn priority(stream: StreamArg, out: Out<i32>, default: Default) -> Result {
    out.set(stream.get(default)?.priority)
}

fn flags(stream: StreamArg, out: Out<u32>, default: Default) -> Result {
    out.set(stream.get(default)?.flags)
}

fn id(stream: StreamArg, out: Out<u64>, default: Default) -> Result {
    out.set(stream.get(default)?.id)
}

fn device(stream: StreamArg, out: Out<i32>, default: Default) -> Result {
    let context = stream
        .get(default)?
        .context
        .upgrade()
        .ok_or(CuError::CONTEXT_IS_DESTROYED)?;
    out.set(context.gpu.ordinal as i32)
}

fn context(stream: StreamArg, out: Out<u64>, default: Default) -> Result {
    let context = stream
        .get(default)?
        .context
        .upgrade()
        .ok_or(CuError::CONTEXT_IS_DESTROYED)?;
    out.set(context.handle)
}

fn context_v2(stream: StreamArg, out: Out<u64>, green: Out<u64>, default: Default) -> Result {
    context(stream, out, default)?;
    green.set_if_wanted(0);
    Ok(())
}

/// Capture is not served: no stream is ever capturing (CU_STREAM_CAPTURE_STATUS_NONE).
fn capturing(stream: StreamArg, status: Out<u32>, default: Default) -> Result {
    stream.get(default)?;
    status.set(0)
}

fn capture_info(stream: StreamArg, status: Out<u32>, id: Out<u64>, default: Default) -> Result {
    id.set_if_wanted(0);
    capturing(stream, status, default)
}

#[allow(clippy::too_many_arguments)]
fn capture_info_v2(
    stream: StreamArg,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    dependencies: Out<u64>,
    count: Out<usize>,
    default: Default,
) -> Result {
    graph.set_if_wanted(0);
    dependencies.set_if_wanted(0);
    count.set_if_wanted(0);
    capture_info(stream, status, id, default)
}

#[allow(clippy::too_many_arguments)]
fn capture_info_v3(
    stream: StreamArg,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    dependencies: Out<u64>,
    edges: Out<u64>,
    count: Out<usize>,
    default: Default,
) -> Result {
    edges.set_if_wanted(0);
    capture_info_v2(stream, status, id, graph, dependencies, count, default)
}

/// CUhostFn with its argument, on its way to the stream's thread.
struct HostCall {
    call: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
}

// SAFETY: the API's contract: the function is called with this pointer on a thread of the driver.
unsafe impl Send for HostCall {}

fn host_function(
    stream: StreamArg,
    call: Option<unsafe extern "C" fn(*mut c_void)>,
    data: *mut c_void,
    default: Default,
) -> Result {
    let call = HostCall {
        call: call.ok_or(CuError::INVALID_VALUE)?,
        data,
    };
    let work = move |_: &Running<'_>| {
        let HostCall { call, data } = { call };
        // SAFETY: the API's contract for cuLaunchHostFunc.
        unsafe { call(data) };
    };
    stream
        .get(default)?
        .submit(Vec::new(), Some(Box::new(work)))
        .map(|_| ())
}

/// CUstreamCallback with its arguments.
struct Callback {
    call: unsafe extern "C" fn(u64, u32, *mut c_void),
    stream: u64,
    data: *mut c_void,
}

// SAFETY: as of `HostCall`.
unsafe impl Send for Callback {}

fn add_callback(
    stream: StreamArg,
    call: Option<unsafe extern "C" fn(u64, u32, *mut c_void)>,
    data: *mut c_void,
    flags: u32,
    default: Default,
) -> Result {
    if flags != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let call = Callback {
        call: call.ok_or(CuError::INVALID_VALUE)?,
        stream: stream.0,
        data,
    };
    let work = move |_: &Running<'_>| {
        let Callback { call, stream, data } = { call };
        let status = fault::sticky().map_or(0, |e| e.0);
        // SAFETY: the API's contract for cuStreamAddCallback.
        unsafe { call(stream, status, data) };
    };
    stream
        .get(default)?
        .submit(Vec::new(), Some(Box::new(work)))
        .map(|_| ())
}

fn attach(stream: StreamArg, addr: u64, _len: usize, flags: u32, default: Default) -> Result {
    if !matches!(flags, 1 | 2 | 4) {
        return Err(CuError::INVALID_VALUE);
    }
    stream.get(default)?;
    healthy()?.memory.device_range(addr, 1).map(|_| ())
}

stream_exports! {
    fn cuStreamSynchronize | cuStreamSynchronize_ptsz(stream: StreamArg) => synchronize;
    fn cuStreamQuery | cuStreamQuery_ptsz(stream: StreamArg) => query;
    fn cuStreamWaitEvent | cuStreamWaitEvent_ptsz(stream: StreamArg, event: u64, flags: u32) => wait_event;
    fn cuStreamGetPriority | cuStreamGetPriority_ptsz(stream: StreamArg, out: Out<i32>) => priority;
    fn cuStreamGetFlags | cuStreamGetFlags_ptsz(stream: StreamArg, out: Out<u32>) => flags;
    fn cuStreamGetId | cuStreamGetId_ptsz(stream: StreamArg, out: Out<u64>) => id;
    fn cuStreamGetDevice | cuStreamGetDevice_ptsz(stream: StreamArg, out: Out<i32>) => device;
    fn cuStreamGetCtx | cuStreamGetCtx_ptsz(stream: StreamArg, out: Out<u64>) => context;
    fn cuStreamGetCtx_v2 | cuStreamGetCtx_v2_ptsz(stream: StreamArg, out: Out<u64>, green: Out<u64>) => context_v2;
    fn cuStreamIsCapturing | cuStreamIsCapturing_ptsz(stream: StreamArg, status: Out<u32>) => capturing;
    fn cuStreamGetCaptureInfo | cuStreamGetCaptureInfo_ptsz(stream: StreamArg, status: Out<u32>, id: Out<u64>) => capture_info;
    fn cuStreamGetCaptureInfo_v2 | cuStreamGetCaptureInfo_v2_ptsz(stream: StreamArg, status: Out<u32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, count: Out<usize>) => capture_info_v2;
    fn cuStreamGetCaptureInfo_v3 | cuStreamGetCaptureInfo_v3_ptsz(stream: StreamArg, status: Out<u32>, id: Out<u64>, graph: Out<u64>, dependencies: Out<u64>, edges: Out<u64>, count: Out<usize>) => capture_info_v3;
    fn cuLaunchHostFunc | cuLaunchHostFunc_ptsz(stream: StreamArg, call: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) => host_function;
    fn cuStreamAddCallback | cuStreamAddCallback_ptsz(stream: StreamArg, call: Option<unsafe extern "C" fn(u64, u32, *mut c_void)>, data: *mut c_void, flags: u32) => add_callback;
    fn cuStreamAttachMemAsync | cuStreamAttachMemAsync_ptsz(stream: StreamArg, addr: u64, len: usize, flags: u32) => attach;
}

exports! {
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        out.check()?;
        out.set(stream::create(flags, 0)?)
    }

    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        out.check()?;
        out.set(stream::create(flags, priority)?)
    }

    fn cuStreamDestroy(handle: u64) {
        stream::destroy(handle)
    }

    fn cuStreamDestroy_v2(handle: u64) {
        stream::destroy(handle)
    }

    fn cuStreamGetGreenCtx(stream: StreamArg, out: Out<u64>) {
        stream.get(Default::Legacy)?;
        out.set(0)
    }
}
