//! Host functions in streams.

use std::ffi::c_void;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::DefaultStream;
use vgpu_cuda_abi::structs::{HostFn, StreamCallback};

use crate::Cu;
use crate::ffi::exports;
use crate::mirror::Reach;
use crate::session::host::HostFunction;
use crate::state::capture;
use crate::state::current::live;
use crate::state::graphs::Kind;
use crate::state::streams::resolve;

exports! {
    /// Runs a function of the program after the stream's earlier work. The stream continues when
    /// the function returns.
    fn cuLaunchHostFunc / cuLaunchHostFunc_ptsz [mode] (
        stream: u64,
        function: Option<HostFn>,
        data: *mut c_void
    ) {
        launch(stream, mode, function, data)
    }

    /// As cuLaunchHostFunc. The host chooses how the stream waits for the function (blocking or
    /// spinning). If the function is null, the call has no effect.
    fn cuLaunchHostFunc_v2 / cuLaunchHostFunc_v2_ptsz [mode] (
        stream: u64,
        function: Option<HostFn>,
        data: *mut c_void,
        wait: u32
    ) {
        const SPIN: u32 = 1;
        let shim = live()?;
        if wait > SPIN {
            return Err(CuResult::INVALID_VALUE);
        }
        match function {
            Some(_) => launch(stream, mode, function, data),
            None => resolve(shim, stream, mode).map(|_| ()),
        }
    }

    /// As cuLaunchHostFunc, but the function gets the stream and its status, and is also called
    /// after an error.
    fn cuStreamAddCallback / cuStreamAddCallback_ptsz [mode] (
        stream: u64,
        function: Option<StreamCallback>,
        data: *mut c_void,
        flags: u32
    ) {
        let shim = live()?;
        let target = resolve(shim, stream, mode)?;
        let function = function.ok_or(CuResult::INVALID_VALUE)?;
        if flags != 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let function = HostFunction::Callback(function, stream, data as usize);
        if capture::take(shim, &target, || Ok(Kind::Host(function)))? {
            return Ok(());
        }
        let _work = target.order(shim, Reach::Named(&[]))?;
        shim.session.launch_host(target.ctx(), target.stream, function)
    }
}

fn launch(stream: u64, mode: DefaultStream, function: Option<HostFn>, data: *mut c_void) -> Cu {
    let shim = live()?;
    let target = resolve(shim, stream, mode)?;
    let function = function.ok_or(CuResult::INVALID_VALUE)?;
    let function = HostFunction::Plain(function, data as usize);
    if capture::take(shim, &target, || Ok(Kind::Host(function)))? {
        return Ok(());
    }
    let _work = target.order(shim, Reach::Named(&[]))?;
    shim.session
        .launch_host(target.ctx(), target.stream, function)
}
