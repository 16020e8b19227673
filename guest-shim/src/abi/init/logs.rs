//! CUDA's log functions: through them, the program gets this library's messages on standard error,
//! when they are written or later. The functions also work before cuInit, so that a program can
//! read the reason of a failed cuInit.

use std::ffi::{c_char, c_uint, c_void};
use std::io::Write as _;

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{Out, Text};
use vgpu_cuda_abi::structs::LogsCallback;

use crate::Cu;
use crate::ffi::exports;
use crate::log::heard;

exports! {
    /// Registers a callback for each message.
    fn cuLogsRegisterCallback(callback: Option<LogsCallback>, data: *mut c_void, out: Out<u64>) {
        let callback = callback.ok_or(CuResult::INVALID_VALUE)?;
        let handle = heard::listen(callback, data);
        out.set_if_wanted(handle);
        Ok(())
    }

    /// Removes a callback.
    fn cuLogsUnregisterCallback(callback: u64) {
        match heard::stop_listening(callback) {
            true => Ok(()),
            false => Err(CuResult::INVALID_VALUE),
        }
    }

    /// The position after the last message.
    fn cuLogsCurrent(iterator: Out<c_uint>, flags: c_uint) {
        iterator.check()?;
        no(flags)?;
        iterator.set(heard::end())
    }

    /// Appends the messages after a position to a file, one line per message.
    fn cuLogsDumpToFile(iterator: Out<c_uint>, path: Text, flags: c_uint) {
        path.check()?;
        no(flags)?;
        let (messages, end) = heard::since(iterator.input().given());
        let mut file = std::fs::OpenOptions::new();
        let file = file.append(true).create(true).open(path.path()?);
        let text: String = messages.iter().map(|m| format!("{m}\n")).collect();
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.map_err(|_| CuResult::INVALID_VALUE)?;
        iterator.set_if_wanted(end);
        Ok(())
    }

    /// Writes the messages after a position to memory. If the memory is too small, drops the oldest
    /// messages.
    fn cuLogsDumpToMemory(
        iterator: Out<c_uint>,
        buffer: Out<c_char>,
        size: Out<usize>,
        flags: c_uint
    ) {
        buffer.check()?;
        size.check()?;
        no(flags)?;
        let room = size.get()?;
        if room == 0 {
            return Err(CuResult::INVALID_VALUE);
        }
        let (messages, end) = heard::since(iterator.input().given());
        let text = last(&messages, room - 1);
        buffer.set_text(room, text.as_bytes())?;
        size.set(text.len())?;
        iterator.set_if_wanted(end);
        Ok(())
    }
}

/// Refuses flags, because CUDA defines none.
fn no(flags: c_uint) -> Cu {
    match flags {
        0 => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// The last messages that fit into `room` bytes together, one line each.
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
