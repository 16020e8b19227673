//! Descriptors that the libraries open in a program's process.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Number of standard error; standard input and output have smaller numbers.
const STDERR: i32 = 2;

/// Moves a descriptor to a number above standard input, output and error. If the program was
/// started without these, the system gives their numbers to new descriptors, and the program would
/// write into the descriptor.
///
/// # Errors
/// The system's error if the process has no free descriptor.
pub fn beyond_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > STDERR {
        return Ok(fd);
    }
    // `try_clone` duplicates to numbers from 3 on.
    fd.try_clone()
}
