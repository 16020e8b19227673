//! Functions that are found and refused: programs look them up without a way to go on where they are
//! missing, and have one where they are not supported.

use std::ffi::{c_int, c_uint, c_void};
use std::sync::atomic::AtomicBool;

use vgpu_proto::cuda::CuResult;

use crate::ffi::exports;
use crate::process::live;
use crate::{Cu, log};

exports! {
    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessGetState(_pid: c_int, _state: *mut c_void) {
        checkpoint()
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessGetRestoreThreadId(_pid: c_int, _thread: *mut c_int) {
        checkpoint()
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessLock(_pid: c_int, _args: *mut c_void) {
        checkpoint()
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessUnlock(_pid: c_int, _args: *mut c_void) {
        checkpoint()
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessCheckpoint(_pid: c_int, _args: *mut c_void) {
        checkpoint()
    }

    /// Processes of guests are not checkpointed.
    fn cuCheckpointProcessRestore(_pid: c_int, _args: *mut c_void) {
        checkpoint()
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
