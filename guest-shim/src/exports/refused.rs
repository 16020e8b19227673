//! Functions that are found and refused: programs look them up without a way to go on where they are
//! missing, and have one where they are not supported.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

use vgpu_proto::cuda::CuResult;

use crate::ffi::{exports, put, required};
use crate::process::live;
use crate::{Cu, log};

exports! {
    /// Processes of guests are not checkpointed: this one runs.
    fn cuCheckpointProcessGetState(pid: c_int, state: *mut c_int) {
        const RUNNING: c_int = 0;
        required(state)?;
        own(pid)?;
        // SAFETY: by the contract of the function.
        unsafe { put(state, RUNNING) }
    }

    /// The thread that a checkpoint would be restored on: the process's first.
    fn cuCheckpointProcessGetRestoreThreadId(pid: c_int, thread: *mut c_int) {
        required(thread)?;
        own(pid)?;
        // SAFETY: by the contract of the function.
        unsafe { put(thread, pid) }
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessLock(_pid: c_int, _args: *mut c_void) {
        checkpoint()
    }

    /// Never locked.
    fn cuCheckpointProcessUnlock(pid: c_int, _args: *mut c_void) {
        not_locked(pid)
    }

    /// Never locked.
    fn cuCheckpointProcessCheckpoint(pid: c_int, _args: *mut c_void) {
        not_locked(pid)
    }

    /// Never locked.
    fn cuCheckpointProcessRestore(pid: c_int, _args: *mut c_void) {
        not_locked(pid)
    }

    /// There are no contexts on a part of a device.
    fn cuDevResourceGenerateDesc(_out: *mut u64, _resources: *mut c_void, _count: c_uint) {
        green()
    }

    /// There are no contexts on a part of a device.
    fn cuGreenCtxCreate(_out: *mut u64, _desc: u64, _device: c_int, _flags: c_uint) {
        green()
    }
}

/// Also before cuInit: it is one process's question about another.
fn checkpoint() -> Cu {
    static SAID: AtomicBool = AtomicBool::new(false);
    log::once(
        &SAID,
        "checkpoints of processes (cuCheckpoint…) are not served (CUDA_ERROR_NOT_SUPPORTED)",
    );
    Err(CuResult::NOT_SUPPORTED)
}

/// Only what this process does with CUDA is known here.
fn own(pid: c_int) -> Cu {
    match u32::try_from(pid) {
        Ok(pid) if pid == std::process::id() => Ok(()),
        _ => checkpoint(),
    }
}

/// What a process that runs answers to what wants it locked.
fn not_locked(pid: c_int) -> Cu {
    own(pid)?;
    Err(CuResult::ILLEGAL_STATE)
}

fn green() -> Cu {
    static SAID: AtomicBool = AtomicBool::new(false);
    live()?;
    log::once(
        &SAID,
        "contexts on a part of a device (green contexts) are not served \
         (CUDA_ERROR_NOT_SUPPORTED); use an ordinary context",
    );
    Err(CuResult::NOT_SUPPORTED)
}
