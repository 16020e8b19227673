//! CUDA's log functions: the program hears, or reads later, why something failed. What is told is what this
//! library says on standard error. They work before cuInit, too, so that why that failed can be heard.

use std::ffi::{CStr, OsStr, c_char, c_uint, c_void};
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;

use vgpu_proto::cuda::CuResult;

use crate::Cu;
use crate::ffi::{exports, put, required};
use crate::log::heard::{self, Callback};

exports! {
    /// Has a function called with each message.
    fn cuLogsRegisterCallback(callback: Option<Callback>, data: *mut c_void, out: *mut u64) {
        let callback = callback.ok_or(CuResult::INVALID_VALUE)?;
        let handle = heard::listen(callback, data);
        if out.is_null() {
            return Ok(());
        }
        // SAFETY: by the contract of the function.
        unsafe { put(out, handle) }
    }

    /// Not any more.
    fn cuLogsUnregisterCallback(callback: u64) {
        match heard::stop_listening(callback) {
            true => Ok(()),
            false => Err(CuResult::INVALID_VALUE),
        }
    }

    /// The place behind the last message.
    fn cuLogsCurrent(iterator: *mut c_uint, flags: c_uint) {
        required(iterator)?;
        no(flags)?;
        // SAFETY: by the contract of the function.
        unsafe { put(iterator, heard::end()) }
    }

    /// Appends what was said since a place to a file, a line a message.
    fn cuLogsDumpToFile(iterator: *mut c_uint, path: *const c_char, flags: c_uint) {
        required(path)?;
        no(flags)?;
        // SAFETY: by the contract of the function.
        let path = unsafe { CStr::from_ptr(path) };
        // SAFETY: by the contract of the function.
        let (messages, end) = heard::since(unsafe { iterator.as_ref() }.copied());
        let mut file = std::fs::OpenOptions::new();
        let file = file.append(true).create(true).open(OsStr::from_bytes(path.to_bytes()));
        let text: String = messages.iter().map(|m| format!("{m}\n")).collect();
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|_| CuResult::INVALID_VALUE)?;
        // SAFETY: by the contract of the function.
        unsafe { advance(iterator, end) }
    }

    /// Writes what was said since a place to memory, as far as there is room: then the last of it.
    fn cuLogsDumpToMemory(
        iterator: *mut c_uint,
        buffer: *mut c_char,
        size: *mut usize,
        flags: c_uint
    ) {
        required(buffer)?;
        required(size)?;
        no(flags)?;
        // SAFETY: by the contract of the function.
        let room = unsafe { *size };
        if room == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        // SAFETY: by the contract of the function.
        let (messages, end) = heard::since(unsafe { iterator.as_ref() }.copied());
        let text = last(&messages, room - 1);
        // SAFETY: by the contract of the function there is as much room as it says; NUL included.
        unsafe {
            buffer.cast::<u8>().copy_from(text.as_ptr(), text.len());
            put(buffer.add(text.len()), 0)?;
            put(size, text.len())?;
            advance(iterator, end)
        }
    }
}

/// No flags are defined.
fn no(flags: c_uint) -> Cu {
    match flags {
        0 => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// # Safety
/// `iterator` is null or valid for a write.
unsafe fn advance(iterator: *mut c_uint, end: u32) -> Cu {
    if iterator.is_null() {
        return Ok(());
    }
    // SAFETY: by this function's contract.
    unsafe { put(iterator, end) }
}

/// The last messages that together have room, a line each.
fn last(messages: &[String], room: usize) -> String {
    let mut left = room;
    let fits = messages.iter().rev().take_while(|message| {
        let len = message.len() + 1;
        let fits = len <= left;
        left = left.saturating_sub(if fits { len } else { 0 });
        fits
    });
    let count = fits.count();
    let kept = &messages[messages.len() - count..];
    kept.iter().map(|message| format!("{message}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_the_oldest() {
        let messages = ["one", "two", "four"].map(str::to_owned);
        assert_eq!(last(&messages, 100), "one\ntwo\nfour\n");
        assert_eq!(last(&messages, 9), "two\nfour\n");
        assert_eq!(last(&messages, 8), "four\n");
        assert_eq!(last(&messages, 4), "");
    }
}
