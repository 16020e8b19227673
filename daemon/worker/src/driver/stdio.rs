//! The C library's output buffers, and leaving without running the driver's exit handlers.

/// Writes out what the driver left in the C library's buffers (device `printf` goes through them).
pub fn flush_stdio() {
    // SAFETY: NULL means every output stream; the C library locks each.
    unsafe { libc::fflush(std::ptr::null_mut()) };
}

/// Ends the process at once. The driver's exit handlers can wait for the GPU; the kernel gives
/// everything back without them.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: does not return; nothing of ours needs an orderly end.
    unsafe { libc::_exit(code) }
}
