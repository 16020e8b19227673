//! The driver's log of errors, which says more than a result code.

use std::ptr::null_mut;

use vgpu_proto::text::printable;

use super::raw;

/// Bytes of the log that are read. The driver drops older messages that do not fit.
const MOST: usize = 4 * 1024;

/// Most characters of a message.
const LINE: usize = 300;

/// The last message of the driver's log. If the driver logs nothing about a fault, the message may
/// be of an earlier error. `None` if the driver is older than CUDA 12.9, or has logged nothing.
pub fn last_message() -> Option<String> {
    let mut text = vec![0_u8; MOST];
    let mut size = text.len();
    // SAFETY: the driver writes at most `size` bytes to the buffer, and their number to `size`.
    let dumped =
        unsafe { raw::cuLogsDumpToMemory(null_mut(), text.as_mut_ptr().cast(), &raw mut size, 0) };
    dumped.ok()?;
    text.truncate(size);
    let text = String::from_utf8_lossy(&text);
    let line = text.lines().rfind(|line| !line.trim().is_empty())?;
    Some(printable(line, LINE))
}
