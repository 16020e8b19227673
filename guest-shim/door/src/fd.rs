//! Descriptors that the libraries open in a program's process.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Number of standard error; standard input and output have smaller numbers.
const STDERR: i32 = 2;

/// Moves a descriptor to a number above those of standard input, output and error (0 to 2). If the
/// program was started with one of these closed, the kernel gives its number to the next new
/// descriptor. The program's output would then go into this descriptor.
///
/// # Errors
/// The system's error if the process has no free descriptor.
pub fn beyond_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > STDERR {
        return Ok(fd);
    }
    // `try_clone` returns a descriptor number of at least 3.
    fd.try_clone()
}
