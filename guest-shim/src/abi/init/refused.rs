//! Functions that `cuGetProcAddress` finds and that return an error: programs handle CUDA_ERROR_NOT_SUPPORTED from them,
//! but not their absence.

use std::ffi::{c_int, c_uint, c_void};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::Out;

use crate::ffi::exports;
use crate::process::live;
use crate::{Cu, unserved};

exports! {
    /// Processes of guests are not checkpointed: this one runs.
    fn cuCheckpointProcessGetState(pid: c_int, state: Out<c_int>) {
        const RUNNING: c_int = 0;
        state.check()?;
        own(pid, "cuCheckpointProcessGetState")?;
        state.set(RUNNING)
    }

    /// The thread that a checkpoint would be restored on: the process's first.
    fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, thread: Out<c_int>) {
        thread.check()?;
        own(pid, "cuCheckpointProcessGetRestoreThreadId")?;
        thread.set(pid)
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessLock(_pid: c_int, _args: Out<c_void>) {
        Err(checkpoint("cuCheckpointProcessLock"))
    }

    /// Never locked.
    fn cuCheckpointProcessUnlock(pid: c_int, _args: Out<c_void>) {
        not_locked(pid, "cuCheckpointProcessUnlock")
    }

    /// Never locked.
    fn cuCheckpointProcessCheckpoint(pid: c_int, _args: Out<c_void>) {
        not_locked(pid, "cuCheckpointProcessCheckpoint")
    }

    /// Never locked.
    fn cuCheckpointProcessRestore(pid: c_int, _args: Out<c_void>) {
        not_locked(pid, "cuCheckpointProcessRestore")
    }

    /// There are no contexts on a part of a device.
    fn cuDevResourceGenerateDesc(out: Out<u64>, resources: Out<c_void>, count: c_uint) {
        live()?;
        out.check()?;
        resources.check()?;
        green("cuDevResourceGenerateDesc", count > 0)
    }

    /// There are no contexts on a part of a device.
    fn cuGreenCtxCreate(out: Out<u64>, desc: u64, device: c_int, flags: c_uint) {
        /// `CU_GREEN_CTX_DEFAULT_STREAM`, without which none is made.
        const DEFAULT_STREAM: c_uint = 1;
        let shim = live()?;
        out.check()?;
        shim.devices.get(device)?;
        green("cuGreenCtxCreate", desc != 0 && flags == DEFAULT_STREAM)
    }
}

/// Also before cuInit: it is one process's question about another.
fn checkpoint(symbol: &'static str) -> CuResult {
    let way_out =
        "processes with GPU work are not checkpointed; have the program save what it needs itself";
    unserved::refuse(symbol, way_out)
}

/// Only what this process does with CUDA is known here.
fn own(pid: c_int, symbol: &'static str) -> Cu {
    match u32::try_from(pid) {
        Ok(pid) if pid == std::process::id() => Ok(()),
        Ok(1..) => Err(checkpoint(symbol)),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// What a process that runs answers to what wants it locked.
fn not_locked(pid: c_int, symbol: &'static str) -> Cu {
    own(pid, symbol)?;
    Err(CuResult::ILLEGAL_STATE)
}

/// What a call with such arguments is told.
fn green(symbol: &'static str, right: bool) -> Cu {
    match right {
        true => Err(unserved::refuse(symbol, unserved::GREEN)),
        false => Err(CuResult::INVALID_VALUE),
    }
}
