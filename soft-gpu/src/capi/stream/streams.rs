//! Streams.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{DefaultStream, In, Out, StreamArg};
use vgpu_cuda_abi::structs::{HostFn, StreamCallback};

use crate::capi::StreamOf as _;
use crate::capi::device::resource::Resource;
use crate::driver::callback::{self, HostCall};
use crate::driver::error::Result;
use crate::driver::graph::capture;
use crate::driver::{event, healthy, stream_table};

fn wait_event(stream: StreamArg, handle: u64, flags: u32, default: DefaultStream) -> Result {
    if flags & !1 != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let stream = stream.get(default)?;
    event::wait(&stream, &event::get(handle)?, flags == 1)
}

/// Returns the context of a stream, and its green context or 0.
fn context_v2(stream: StreamArg, out: Out<u64>, green: Out<u64>, default: DefaultStream) -> Result {
    let stream = stream.get(default)?;
    out.set(stream.owner()?.handle)?;
    green.set_if_wanted(stream.green()?.map_or(0, |g| g.handle));
    Ok(())
}

fn get_attribute(
    stream: StreamArg,
    id: u32,
    out: Out<[u32; 16]>,
    default: DefaultStream,
) -> Result {
    out.check()?;
    out.set(stream.get(default)?.attribute(id)?)
}

fn set_attribute(
    stream: StreamArg,
    id: u32,
    value: In<[u32; 16]>,
    default: DefaultStream,
) -> Result {
    stream.get(default)?.set_attribute(id, value.get()?)
}

fn copy_attributes(stream: StreamArg, from: StreamArg, default: DefaultStream) -> Result {
    let (to, from) = (stream.get(default)?, from.get(default)?);
    if to.id != from.id {
        to.copy_attributes(&from);
    }
    Ok(())
}

fn resource(stream: StreamArg, out: Out<Resource>, kind: u32, default: DefaultStream) -> Result {
    let stream = stream.get(default)?;
    Resource::tell(out, kind, &stream.owner()?.gpu, stream.part())
}

/// cuLaunchHostFunc_v2. The mode of waiting has no effect here. The function may be null.
fn host_function_v2(
    stream: StreamArg,
    call: Option<HostFn>,
    data: *mut c_void,
    mode: u32,
    default: DefaultStream,
) -> Result {
    if mode > 1 {
        return Err(CuResult::INVALID_VALUE);
    }
    if call.is_none() {
        return stream.get(default).map(|_| ());
    }
    host_function(stream, call, data, default)
}

fn host_function(
    stream: StreamArg,
    call: Option<HostFn>,
    data: *mut c_void,
    default: DefaultStream,
) -> Result {
    let call = HostCall::new(call, data)?;
    callback::launch(&*stream.get(default)?, call)
}

fn add_callback(
    stream: StreamArg,
    call: Option<StreamCallback>,
    data: *mut c_void,
    flags: u32,
    default: DefaultStream,
) -> Result {
    if flags != 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let call = call.ok_or(CuResult::INVALID_VALUE)?;
    callback::add(&*stream.get(default)?, stream.0, call, data)
}

fn attach(stream: StreamArg, addr: u64, _len: usize, flags: u32, default: DefaultStream) -> Result {
    if !matches!(flags, 1 | 2 | 4) {
        return Err(CuResult::INVALID_VALUE);
    }
    capture::forbid(&*stream.get(default)?)?;
    healthy()?.memory.device_range(addr, 1).map(|_| ())
}

exports! {
    fn cuStreamSynchronize / cuStreamSynchronize_ptsz [default] (stream: StreamArg) {
        stream.get(default)?.synchronize()
    }

    fn cuStreamQuery / cuStreamQuery_ptsz [default] (stream: StreamArg) {
        stream.get(default)?.query()
    }

    fn cuStreamWaitEvent / cuStreamWaitEvent_ptsz [default] (stream: StreamArg, event: u64, flags: u32) {
        wait_event(stream, event, flags, default)
    }

    fn cuStreamGetPriority / cuStreamGetPriority_ptsz [default] (stream: StreamArg, out: Out<i32>) {
        out.set(stream.get(default)?.priority)
    }

    fn cuStreamGetFlags / cuStreamGetFlags_ptsz [default] (stream: StreamArg, out: Out<u32>) {
        out.set(stream.get(default)?.flags)
    }

    fn cuStreamGetId / cuStreamGetId_ptsz [default] (stream: StreamArg, out: Out<u64>) {
        out.set(stream.get(default)?.id)
    }

    fn cuStreamGetDevice / cuStreamGetDevice_ptsz [default] (stream: StreamArg, out: Out<i32>) {
        let context = stream
            .get(default)?
            .context
            .upgrade()
            .ok_or(CuResult::CONTEXT_IS_DESTROYED)?;
        out.set(context.gpu.ordinal as i32)
    }

    fn cuStreamGetCtx / cuStreamGetCtx_ptsz [default] (stream: StreamArg, out: Out<u64>) {
        let stream = stream.get(default)?;
        match stream.green()? {
            Some(green) => out.set(green.context),
            None => out.set(stream.owner()?.handle),
        }
    }

    fn cuStreamGetCtx_v2 / cuStreamGetCtx_v2_ptsz [default] (stream: StreamArg, out: Out<u64>, green: Out<u64>) {
        context_v2(stream, out, green, default)
    }

    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz [default] (stream: StreamArg, call: Option<HostFn>, data: *mut c_void) {
        host_function(stream, call, data, default)
    }

    fn cuLaunchHostFunc_v2 / cuLaunchHostFunc_v2_ptsz [default] (stream: StreamArg, call: Option<HostFn>, data: *mut c_void, mode: u32) {
        host_function_v2(stream, call, data, mode, default)
    }

    fn cuStreamGetAttribute / cuStreamGetAttribute_ptsz [default] (stream: StreamArg, id: u32, out: Out<[u32; 16]>) {
        get_attribute(stream, id, out, default)
    }

    fn cuStreamSetAttribute / cuStreamSetAttribute_ptsz [default] (stream: StreamArg, id: u32, value: In<[u32; 16]>) {
        set_attribute(stream, id, value, default)
    }

    fn cuStreamCopyAttributes / cuStreamCopyAttributes_ptsz [default] (stream: StreamArg, from: StreamArg) {
        copy_attributes(stream, from, default)
    }

    fn cuStreamGetDevResource / cuStreamGetDevResource_ptsz [default] (stream: StreamArg, out: Out<Resource>, kind: u32) {
        resource(stream, out, kind, default)
    }

    fn cuStreamAddCallback / cuStreamAddCallback_ptsz [default] (stream: StreamArg, call: Option<StreamCallback>, data: *mut c_void, flags: u32) {
        add_callback(stream, call, data, flags, default)
    }

    fn cuStreamAttachMemAsync / cuStreamAttachMemAsync_ptsz [default] (stream: StreamArg, addr: u64, len: usize, flags: u32) {
        attach(stream, addr, len, flags, default)
    }
}

exports! {
    fn cuStreamCreate(out: Out<u64>, flags: u32) {
        out.check()?;
        out.set(stream_table::create(flags, 0)?)
    }

    fn cuStreamCreateWithPriority(out: Out<u64>, flags: u32, priority: i32) {
        out.check()?;
        out.set(stream_table::create(flags, priority)?)
    }

    fn cuStreamDestroy(handle: u64) {
        stream_table::destroy(handle)
    }

    fn cuStreamDestroy_v2(handle: u64) {
        stream_table::destroy(handle)
    }

    fn cuStreamGetGreenCtx(stream: StreamArg, out: Out<u64>) {
        let stream = stream.get(DefaultStream::Legacy)?;
        // A client passes a null pointer for the result, and expects success.
        out.set_if_wanted(stream.green()?.map_or(0, |g| g.handle));
        Ok(())
    }
}
