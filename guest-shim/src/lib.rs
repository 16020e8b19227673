//! `libcuda.so.1` for guests without a GPU.
//!
//! An unmodified CUDA program loads this library in place of NVIDIA's. The library answers a call
//! itself if it can, and sends the other calls as frames over one socket to a worker process on the
//! host. `vgpu_proto` describes the wire; `docs/guest.md` is for users.
//!
//! | module | content |
//! |---|---|
//! | `abi` | the C functions: arguments in, result out |
//! | `ops` | operations: copies, fills, launches, replay of graphs |
//! | `process` | the states of the library in a process: cuInit, fork, exit |
//! | `session` | the connection: handshake, ordered sending, reading, the pump thread, host functions |
//! | `mirror` | changes of memory that the program and kernels both reach |
//! | `sys` | system calls |
//! | `state` | what the guest knows without a request to the host: contexts, streams, events, memory, modules |
//! | `cudart` | functions beyond `cuda.h` that NVIDIA's runtime calls |
//! | `proc_address` | `cuGetProcAddress` |
//! | `observe` | `VGPU_STATS` and `VGPU_TRACE` |
//! | `image`, `jit`, `ptx`, `direct` | module images: size from a pointer, JIT options, PTX, and the memory that kernels reach |
#![cfg_attr(not(test), deny(clippy::unwrap_used, clippy::expect_used))]

mod abi;
mod callback;
mod cudart;
mod direct;
mod ffi;
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

/// Locks a mutex and ignores poisoning. A panic is caught at the C boundary and returned as an
/// error; state that the panic left incomplete is no worse for the program than that error.
pub(crate) fn lock<T>(mutex: &std::sync::Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}
