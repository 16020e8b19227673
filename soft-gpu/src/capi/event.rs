//! Events.

use super::types::{Default, Out, StreamArg};
use crate::driver::error::{CuError, Result};
use crate::driver::event;

fn record(handle: u64, stream: StreamArg, default: Default) -> Result {
    let stream = stream.get(default)?;
    event::get(handle)?.record(&stream, false)
}

fn record_with_flags(handle: u64, stream: StreamArg, flags: u32, default: Default) -> Result {
    if flags & !1 != 0 {
        return Err(CuError::INVALID_VALUE);
    }
    let stream = stream.get(default)?;
    event::get(handle)?.record(&stream, flags == 1)
}

stream_exports! {
    fn cuEventRecord | cuEventRecord_ptsz(event: u64, stream: StreamArg) => record;
    fn cuEventRecordWithFlags | cuEventRecordWithFlags_ptsz(event: u64, stream: StreamArg, flags: u32) => record_with_flags;
}

exports! {
    fn cuEventCreate(out: Out<u64>, flags: u32) {
        out.check()?;
        out.set(event::create(flags)?)
    }

    fn cuEventDestroy(handle: u64) {
        event::destroy(handle)
    }

    fn cuEventDestroy_v2(handle: u64) {
        event::destroy(handle)
    }

    fn cuEventQuery(handle: u64) {
        event::get(handle)?.query()
    }

    fn cuEventSynchronize(handle: u64) {
        event::get(handle)?.synchronize()
    }

    fn cuEventElapsedTime(ms: Out<f32>, start: u64, end: u64) {
        ms.check()?;
        ms.set(event::elapsed_ms(start, end)?)
    }

    fn cuEventElapsedTime_v2(ms: Out<f32>, start: u64, end: u64) {
        ms.check()?;
        ms.set(event::elapsed_ms(start, end)?)
    }
}
