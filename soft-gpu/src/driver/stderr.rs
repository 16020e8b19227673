//! Lines on standard error.

use std::io::Write as _;

/// Writes a line with one system call. Lines of several threads and processes do not mix, and a
/// process that ends leaves no half line.
pub fn line(text: &str) {
    let _ = std::io::stderr().write_all(format!("soft-gpu: {text}\n").as_bytes());
}

macro_rules! say {
    ($($text:tt)*) => {
        $crate::driver::stderr::line(&format!($($text)*))
    };
}
pub(crate) use say;
