//! Events.

use std::sync::Arc;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, Out};
use vgpu_cuda_abi::numbers::event_flag::{
    BLOCKING_SYNC, DISABLE_TIMING, INTERPROCESS, RECORD_EXTERNAL,
};
use vgpu_proto::call::req;
use vgpu_proto::cuda::Event;

use crate::ffi::exports;
use crate::ops::event::record_now;
use crate::state::Shim;
use crate::state::capture;
use crate::state::current::live;
use crate::state::events::EventInfo;
use crate::state::streams::resolve;
use crate::{Cu, unserved};

/// All flags of events.
const FLAGS: u32 = BLOCKING_SYNC | DISABLE_TIMING | INTERPROCESS;

exports! {
    /// Creates an event, without a round trip.
    fn cuEventCreate(out: Out<u64>, flags: u32) {
        let shim = live()?;
        out.check()?;
        let ctx = shim.contexts.current()?.handle;
        if flags & !FLAGS != 0 || (flags & INTERPROCESS != 0 && flags & DISABLE_TIMING == 0) {
            return Err(CuResult::INVALID_VALUE);
        }
        if flags & INTERPROCESS != 0 {
            return Err(unserved::refuse("cuEventCreate with CU_EVENT_INTERPROCESS", unserved::APART));
        }
        let event = Event(shim.mint());
        shim.events.insert(event.0, Arc::new(EventInfo::new(event, ctx, flags)))?;
        shim.session.post(&req::EventCreate { ctx, event, flags })?;
        out.set(event.0)
    }

    /// Destroys an event. A record in flight still completes.
    fn cuEventDestroy_v2(event: u64) {
        let shim = live()?;
        let event = shim.events.remove(event)?;
        shim.session.post(&req::EventDestroy { event: event.handle })
    }

    /// Records an event in a stream.
    fn cuEventRecord / cuEventRecord_ptsz [mode] (event: u64, stream: u64) {
        record(event, stream, 0, mode)
    }

    /// Records an event in a stream.
    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz [mode] (event: u64, stream: u64, flags: u32) {
        record(event, stream, flags, mode)
    }

    /// Success if the last record has completed or if the event was never recorded; otherwise
    /// CUDA_ERROR_NOT_READY.
    fn cuEventQuery(event: u64) {
        let shim = live()?;
        let event = shim.events.get(event)?;
        capture::not_captured(shim, &event)?;
        capture::unsafe_call(shim)?;
        if event.is_complete() {
            return Ok(());
        }
        let (record, behind) = (event.last_record(), event.behind());
        shim.session.ask(&req::EventQuery { event: event.handle })?;
        event.complete(record);
        shim.session.over(behind.0, behind.1);
        shim.session.usable()
    }

    /// Waits until the last record has completed.
    fn cuEventSynchronize(event: u64) {
        let shim = live()?;
        let event = shim.events.get(event)?;
        capture::not_captured(shim, &event)?;
        capture::unsafe_call(shim)?;
        if event.is_complete() {
            return Ok(());
        }
        let (record, behind) = (event.last_record(), event.behind());
        shim.session.synchronize(&req::EventSynchronize { event: event.handle })?;
        event.complete(record);
        shim.session.over(behind.0, behind.1);
        Ok(())
    }

    /// The time between two records, in ms.
    fn cuEventElapsedTime(out: Out<f32>, start: u64, end: u64) {
        elapsed(out, start, end)
    }

    /// The time between two records, in ms.
    fn cuEventElapsedTime_v2(out: Out<f32>, start: u64, end: u64) {
        elapsed(out, start, end)
    }
}

fn record(event: u64, stream: u64, flags: u32, mode: DefaultStream) -> Cu {
    let shim = live()?;
    let event = shim.events.get(event)?;
    let target = resolve(shim, stream, mode)?;
    if flags & !RECORD_EXTERNAL != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    if event.ctx != target.ctx() {
        return Err(CuResult::INVALID_HANDLE);
    }
    if capture::record(shim, &target, &event)? {
        return Ok(());
    }
    record_now(shim, &target, &event, flags)
}

fn elapsed(out: Out<f32>, start: u64, end: u64) -> Cu {
    let shim: &Shim = live()?;
    out.check()?;
    let (start, end) = (shim.events.get(start)?, shim.events.get(end)?);
    for event in [&start, &end] {
        capture::not_captured(shim, event)?;
        if event.flags & DISABLE_TIMING != 0 || event.last_record() == 0 {
            return Err(CuResult::INVALID_HANDLE);
        }
    }
    let call = req::EventElapsedTime {
        start: start.handle,
        end: end.handle,
    };
    let (first, second) = (start.behind(), end.behind());
    let bits = shim.session.call(&call)?.milliseconds_bits;
    // Both records have completed, so the work before them is complete.
    shim.session.pull()?;
    for (over, sent) in [first, second] {
        shim.session.over(over, sent);
    }
    out.set(f32::from_bits(bits))
}
