//! Functions that `cuGetProcAddress` finds but that return an error. Programs handle
//! CUDA_ERROR_NOT_SUPPORTED from these functions, but do not handle a missing function.

use std::ffi::{c_int, c_uint, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Out;
use vgpu_cuda_abi::numbers::green_context;

use crate::ffi::exports;
use crate::state::current::live;
use crate::{Cu, unserved};

exports! {
    /// Always "running", because processes of guests are not checkpointed.
    fn cuCheckpointProcessGetState(pid: c_int, state: Out<c_int>) {
        const RUNNING: c_int = 0;
        state.check()?;
        own(pid, "cuCheckpointProcessGetState")?;
        state.set(RUNNING)
    }

    /// The thread on which a checkpoint would be restored: the first thread of the process.
    fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, thread: Out<c_int>) {
        thread.check()?;
        own(pid, "cuCheckpointProcessGetRestoreThreadId")?;
        thread.set(pid)
    }

    /// Always an error: processes of guests are not checkpointed.
    fn cuCheckpointProcessLock(_pid: c_int, _args: Out<c_void>) {
        Err(checkpoint("cuCheckpointProcessLock"))
    }

    /// Always an error: the process is never locked.
    fn cuCheckpointProcessUnlock(pid: c_int, _args: Out<c_void>) {
        not_locked(pid, "cuCheckpointProcessUnlock")
    }

    /// Always an error: the process is never locked.
    fn cuCheckpointProcessCheckpoint(pid: c_int, _args: Out<c_void>) {
        not_locked(pid, "cuCheckpointProcessCheckpoint")
    }

    /// Always an error: the process is never locked.
    fn cuCheckpointProcessRestore(pid: c_int, _args: Out<c_void>) {
        not_locked(pid, "cuCheckpointProcessRestore")
    }

    /// Always an error: there are no contexts on a part of a device.
    fn cuDevResourceGenerateDesc(out: Out<u64>, resources: Out<c_void>, count: c_uint) {
        live()?;
        out.check()?;
        resources.check()?;
        green("cuDevResourceGenerateDesc", count > 0)
    }

    /// Always an error: there are no contexts on a part of a device.
    fn cuGreenCtxCreate(out: Out<u64>, desc: u64, device: c_int, flags: c_uint) {
        let shim = live()?;
        out.check()?;
        shim.devices.get(device)?;
        green("cuGreenCtxCreate", desc != 0 && flags == green_context::DEFAULT_STREAM)
    }
}

/// Refuses a checkpoint. Works before cuInit, because the call may concern another process.
fn checkpoint(symbol: &'static str) -> CuResult {
    let way_out =
        "processes with GPU work are not checkpointed; have the program save what it needs itself";
    unserved::refuse(symbol, way_out)
}

/// Refuses other processes, because the library knows only the CUDA state of its own process.
fn own(pid: c_int, symbol: &'static str) -> Cu {
    match u32::try_from(pid) {
        Ok(pid) if pid == std::process::id() => Ok(()),
        Ok(1..) => Err(checkpoint(symbol)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// The error of calls that require a locked process: the process is running.
fn not_locked(pid: c_int, symbol: &'static str) -> Cu {
    own(pid, symbol)?;
    Err(CuResult::ILLEGAL_STATE)
}

/// The error of a call about a green context. `right`: whether the arguments are valid.
fn green(symbol: &'static str, right: bool) -> Cu {
    match right {
        true => Err(unserved::refuse(symbol, unserved::GREEN)),
        false => Err(CuResult::INVALID_VALUE),
    }
}
