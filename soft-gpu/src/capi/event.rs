//! Events.

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, Out, StreamArg};

use crate::capi::StreamOf as _;
use crate::driver::error::Result;
use crate::driver::event;

fn record(handle: u64, stream: StreamArg, default: DefaultStream) -> Result {
    let stream = stream.get(default)?;
    event::get(handle)?.record(&stream, false)
}

fn record_with_flags(handle: u64, stream: StreamArg, flags: u32, default: DefaultStream) -> Result {
    if flags & !1 != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let stream = stream.get(default)?;
    event::get(handle)?.record(&stream, flags == 1)
}

exports! {
    fn cuEventRecord / cuEventRecord_ptsz [default] (event: u64, stream: StreamArg) {
        record(event, stream, default)
    }

    fn cuEventRecordWithFlags / cuEventRecordWithFlags_ptsz [default] (event: u64, stream: StreamArg, flags: u32) {
        record_with_flags(event, stream, flags, default)
    }
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
