//! Descriptors of the libraries in a program's process.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};

/// Standard error's number; standard input and output have those below.
const STDERR: i32 = 2;

/// The descriptor under a number that is not standard input's, output's or error's. The system gives theirs to the next
/// descriptor where the program was started without them, and the program would write into it.
///
/// # Errors
/// The system's, when the process has no number left.
pub fn beyond_standard(fd: OwnedFd) -> io::Result<OwnedFd> {
    if fd.as_raw_fd() > STDERR {
        return Ok(fd);
    }
    // The standard library duplicates to numbers from 3 on.
    fd.try_clone()
}
