//! CUDA's log functions (`cuLogs…`): a program gets the library's messages when they are written,
//! or later.

use std::collections::VecDeque;
use std::ffi::{c_char, c_uint, c_void};
use std::io::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::args::{Out, Text};
use vgpu_cuda_abi::structs::LogsCallback;

type Result = std::result::Result<(), CuResult>;

/// Number of messages that the library keeps, as in CUDA.
const MOST: usize = 100;

#[derive(Debug, Clone, Copy)]
struct Listener {
    handle: u64,
    callback: LogsCallback,
    data: usize,
}

#[derive(Debug)]
struct State {
    /// Number of messages since the process began.
    said: u32,
    /// The last messages.
    kept: VecDeque<String>,
    listeners: Vec<Listener>,
    handles: u64,
}

/// The log of the process.
static STATE: Mutex<State> = Mutex::new(State {
    said: 0,
    kept: VecDeque::new(),
    listeners: Vec::new(),
    handles: 0,
});

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Keeps an error message and passes it to the callbacks that the program registered. `within` runs
/// each callback: CUDA calls are not allowed in a callback, because they could wait for the call in
/// progress.
pub fn say(text: &str, within: impl Fn(&dyn Fn())) {
    /// `CU_LOG_LEVEL_ERROR`.
    const NUMBER: u32 = 0;
    let listeners = {
        let mut state = state();
        state.said = state.said.wrapping_add(1);
        if state.kept.len() == MOST {
            state.kept.pop_front();
        }
        state.kept.push_back(text.to_owned());
        state.listeners.clone()
    };
    for listener in listeners {
        let message: Vec<u8> = text.bytes().chain([0]).collect();
        within(&|| {
            // The callback may write to its message.
            let mut message = message.clone();
            let at = message.as_mut_ptr().cast();
            // SAFETY: the program registered function and data together; the message ends with NUL.
            unsafe { (listener.callback)(listener.data as *mut c_void, NUMBER, at, text.len()) };
        });
    }
}

/// `cuLogsRegisterCallback`: registers a callback that gets each message from now on.
///
/// # Errors
/// INVALID_VALUE without a callback.
pub fn register(callback: Option<LogsCallback>, data: *mut c_void, out: Out<u64>) -> Result {
    let callback = callback.ok_or(CuResult::INVALID_VALUE)?;
    let mut state = state();
    state.handles += 1;
    let handle = state.handles;
    let data = data as usize;
    state.listeners.push(Listener {
        handle,
        callback,
        data,
    });
    out.set_if_wanted(handle);
    Ok(())
}

/// `cuLogsUnregisterCallback`: removes a callback.
///
/// # Errors
/// INVALID_VALUE if no callback has this handle.
pub fn unregister(handle: u64) -> Result {
    let mut state = state();
    let before = state.listeners.len();
    state.listeners.retain(|l| l.handle != handle);
    match state.listeners.len() < before {
        true => Ok(()),
        false => Err(CuResult::INVALID_VALUE),
    }
}

/// `cuLogsCurrent`: the position after the last message.
///
/// # Errors
/// INVALID_VALUE without a place for the position, or with flags.
pub fn current(iterator: Out<c_uint>, flags: c_uint) -> Result {
    iterator.check()?;
    no(flags)?;
    iterator.set(state().said)
}

/// `cuLogsDumpToFile`: appends the messages after a position to a file, one line per message.
///
/// # Errors
/// INVALID_VALUE if the file cannot be written, or with flags.
pub fn dump_to_file(iterator: Out<c_uint>, path: Text, flags: c_uint) -> Result {
    path.check()?;
    no(flags)?;
    let (messages, end) = since(iterator.input().given());
    let mut file = std::fs::OpenOptions::new();
    let file = file.append(true).create(true).open(path.path()?);
    let text: String = messages.iter().map(|m| format!("{m}\n")).collect();
    let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|_| CuResult::INVALID_VALUE)?;
    iterator.set_if_wanted(end);
    Ok(())
}

/// `cuLogsDumpToMemory`: writes the messages after a position to memory. If the memory is too
/// small, drops the oldest messages.
///
/// # Errors
/// INVALID_VALUE without memory, or with flags.
pub fn dump_to_memory(
    iterator: Out<c_uint>,
    buffer: Out<c_char>,
    size: Out<usize>,
    flags: c_uint,
) -> Result {
    buffer.check()?;
    size.check()?;
    no(flags)?;
    let room = size.get()?;
    if room == 0 {
        return Err(CuResult::INVALID_VALUE);
    }
    let (messages, end) = since(iterator.input().given());
    let text = last(&messages, room - 1);
    buffer.set_text(room, text.as_bytes())?;
    size.set(text.len())?;
    iterator.set_if_wanted(end);
    Ok(())
}

/// Refuses flags, because CUDA defines none.
fn no(flags: c_uint) -> Result {
    match flags {
        0 => Ok(()),
        _ => Err(CuResult::INVALID_VALUE),
    }
}

/// The kept messages after a position (`None`: all), and the position after the last message.
fn since(place: Option<u32>) -> (Vec<String>, u32) {
    let state = state();
    let missed = place.map_or(usize::MAX, |place| state.said.wrapping_sub(place) as usize);
    let known = state.kept.len();
    let messages = state.kept.iter().skip(known - missed.min(known)).cloned();
    (messages.collect(), state.said)
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
