//! `libcuda.so.1` for guests without a GPU.
//!
//! An unmodified CUDA program loads this library in place of NVIDIA's. The library answers a call
//! itself where it can, and sends the other calls as frames on one socket to a worker process on
//! the host (`vgpu_proto` describes the wire, `docs/guest.md` is for users).
//!
//! | module | what it holds |
//! |---|---|
//! | `abi` | the C functions: arguments in, result out |
//! | `ops` | operations: copies, fills, launches, replay of graphs |
//! | `process` | the life of the library in a process: cuInit, fork, exit |
//! | `session` | the connection: handshake, ordered sending, reading, the pump thread, host functions |
//! | `mirror` | memory that the program and kernels reach: what each side changed |
//! | `sys` | system calls |
//! | `state` | what the guest knows without asking: contexts, streams, events, memory, modules |
//! | `cudart` | what NVIDIA's runtime asks beyond `cuda.h` |
//! | `proc_address` | what `cuGetProcAddress` answers |
//! | `observe` | `VGPU_STATS` and `VGPU_TRACE` |
//! | `image`, `jit`, `ptx`, `direct` | module images: their size from a pointer, JIT options, their PTX, what kernels reach |
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod abi;
mod callback;
mod cudart;
mod direct;
mod ffi;
mod hash;
mod image;
mod jit;
mod log;
mod mirror;
mod observe;
mod ops;
mod proc_address;
mod process;
mod ptx;
mod session;
mod state;
mod sys;
mod unserved;

/// A CUDA result: the value, or the code that the function returns.
pub(crate) type Cu<T = ()> = Result<T, vgpu_cuda_abi::CuResult>;

/// Locks a mutex and ignores poisoning: the C boundary catches panics, and state that a panic left
/// incomplete is no worse than the error that the call returned.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
