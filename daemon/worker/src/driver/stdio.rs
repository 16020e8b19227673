//! The C library's output buffers, and process exit without the driver's exit handlers.

/// Flushes the C library's buffers, which the driver uses for the output of device `printf`.
pub fn flush_stdio() {
    // SAFETY: NULL means every output stream; the C library locks each.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Ends the process at once. The driver's exit handlers could wait for the GPU, and the kernel
/// frees everything without these handlers.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return; no part of this process needs an orderly end.
    unsafe { libc::_exit(code) }
}
