//! Streams.

use std::ffi::c_int;

use vgpu_proto::call::req;
use vgpu_proto::cuda::CuResult;

use crate::Cu;
use crate::ffi::{exports, put, required};
use crate::process::{live, shim};
use crate::state::streams::{self, NON_BLOCKING, resolve};

/// `CU_STREAM_CAPTURE_STATUS_NONE`.
const NOT_CAPTURING: u32 = 0;

exports! {
    /// Creates a stream, without a round trip.
    fn cuStreamCreate(out: *mut u64, flags: u32) {
        // SAFETY: by the contract of the function.
        unsafe { create(out, flags, 0) }
    }

    /// Creates a stream; the priority is brought into the device's range.
    fn cuStreamCreateWithPriority(out: *mut u64, flags: u32, priority: c_int) {
        // SAFETY: by the contract of the function.
        unsafe { create(out, flags, priority) }
    }

    /// Destroys a stream; its work still completes.
    fn cuStreamDestroy_v2(stream: u64) {
        let shim = live()?;
        let info = shim.streams.remove(stream)?;
        shim.session.post(&req::StreamDestroy { stream: info.handle })
    }

    /// Priority, 0 for default streams.
    fn cuStreamGetPriority / cuStreamGetPriority_ptsz [mode] (stream: u64, out: *mut c_int) {
        let target = resolve(shim()?, stream, mode)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, target.info.map_or(0, |i| i.priority)) }
    }

    /// Flags, 0 for default streams.
    fn cuStreamGetFlags / cuStreamGetFlags_ptsz [mode] (stream: u64, out: *mut u32) {
        let target = resolve(shim()?, stream, mode)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, target.info.map_or(0, |i| i.flags)) }
    }

    /// A number unique in the process; of the NULL stream, its context's handle.
    fn cuStreamGetId / cuStreamGetId_ptsz [mode] (stream: u64, out: *mut u64) {
        let target = resolve(shim()?, stream, mode)?;
        let id = target.info.as_ref().map_or(target.ctx().0, |i| i.handle.0);
        // SAFETY: by the contract of the function.
        unsafe { put(out, id) }
    }

    /// The stream's context.
    fn cuStreamGetCtx / cuStreamGetCtx_ptsz [mode] (stream: u64, out: *mut u64) {
        let target = resolve(shim()?, stream, mode)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, target.ctx().0) }
    }

    /// Waits for the stream's work.
    fn cuStreamSynchronize / cuStreamSynchronize_ptsz [mode] (stream: u64) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        shim.session
            .synchronize(&req::StreamSynchronize { ctx: target.ctx(), stream: target.stream })
    }

    /// Success if the stream's work is done, else CUDA_ERROR_NOT_READY.
    fn cuStreamQuery / cuStreamQuery_ptsz [mode] (stream: u64) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        shim.session.synchronize(&req::StreamQuery { ctx: target.ctx(), stream: target.stream })
    }

    /// Has the stream wait for the last record of an event.
    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz [mode] (stream: u64, event: u64, flags: u32) {
        const EXTERNAL: u32 = 1;
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let event = shim.events.get(event)?;
        if flags & !EXTERNAL != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        if event.is_complete() {
            // Never recorded, or known to have completed: nothing to wait for.
            return Ok(());
        }
        let (ctx, stream) = (target.ctx(), target.stream);
        shim.session.post(&req::StreamWaitEvent { ctx, stream, event: event.handle, flags })
    }

    /// Capture is not served, so none is going on.
    fn cuStreamIsCapturing / cuStreamIsCapturing_ptsz [mode] (stream: u64, out: *mut u32) {
        resolve(shim()?, stream, mode)?;
        // SAFETY: by the contract of the function.
        unsafe { put(out, NOT_CAPTURING) }
    }
}

/// # Safety
/// `out` is null or valid for a write.
unsafe fn create(out: *mut u64, flags: u32, priority: c_int) -> Cu {
    let shim = live()?;
    required(out)?;
    let context = shim.contexts.current()?;
    if flags & !NON_BLOCKING != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    // Lower numbers are greater priorities.
    let (least, greatest) = shim.devices.get(context.device)?.info.stream_priorities;
    let priority = priority.min(least).max(greatest);
    let info = streams::create(shim, &context, flags, priority)?;
    // SAFETY: by this function's contract.
    unsafe { put(out, info.handle.0) }
}
