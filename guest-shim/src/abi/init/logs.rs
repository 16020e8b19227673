//! CUDA's log functions: through them, the program gets this library's messages on standard error.
//! The functions also work before cuInit, so that a program can read the reason of a failed cuInit.

use std::ffi::{c_char, c_uint, c_void};

use vgpu_cuda_abi::args::{Out, Text};
use vgpu_cuda_abi::structs::LogsCallback;
use vgpu_cudart::logs;

use crate::ffi::exports;

exports! {
    /// Registers a callback for each message.
    fn cuLogsRegisterCallback(callback: Option<LogsCallback>, data: *mut c_void, out: Out<u64>) {
        logs::register(callback, data, out)
    }

    /// Removes a callback.
    fn cuLogsUnregisterCallback(callback: u64) {
        logs::unregister(callback)
    }

    /// The position after the last message.
    fn cuLogsCurrent(iterator: Out<c_uint>, flags: c_uint) {
        logs::current(iterator, flags)
    }

    /// Appends the messages after a position to a file.
    fn cuLogsDumpToFile(iterator: Out<c_uint>, path: Text, flags: c_uint) {
        logs::dump_to_file(iterator, path, flags)
    }

    /// Writes the messages after a position to memory.
    fn cuLogsDumpToMemory(
        iterator: Out<c_uint>,
        buffer: Out<c_char>,
        size: Out<usize>,
        flags: c_uint
    ) {
        logs::dump_to_memory(iterator, buffer, size, flags)
    }
}
