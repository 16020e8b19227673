//! Passes the library's messages to the program through CUDA's log functions (`cuLogs…`).

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Mutex;

use vgpu_cuda_abi::structs::LogsCallback;

use super::Level;
use crate::{callback, lock};

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

static STATE: Mutex<State> = Mutex::new(State {
    said: 0,
    kept: VecDeque::new(),
    listeners: Vec::new(),
    handles: 0,
});

/// Keeps an error message and calls the callbacks that the program registered.
pub(super) fn say(level: Level, text: &str) {
    /// `CU_LOG_LEVEL_ERROR`.
    const NUMBER: u32 = 0;
    if level != Level::Error {
        return;
    }
    let listeners = {
        let mut state = lock(&STATE);
        state.said = state.said.wrapping_add(1);
        if state.kept.len() == MOST {
            state.kept.pop_front();
        }
        state.kept.push_back(text.to_owned());
        state.listeners.clone()
    };
    for listener in listeners {
        let mut message: Vec<u8> = text.bytes().chain([0]).collect();
        let (at, len) = (message.as_mut_ptr().cast(), text.len());
        // CUDA calls are not allowed in the callback, because they could wait for the call in
        // progress.
        callback::without_calls(|| {
            // SAFETY: the program registered function and data together; the message ends with NUL.
            unsafe { (listener.callback)(listener.data as *mut c_void, NUMBER, at, len) };
        });
    }
}

/// Registers a callback that gets each message from now on. Returns its handle.
pub(crate) fn listen(callback: LogsCallback, data: *mut c_void) -> u64 {
    let mut state = lock(&STATE);
    state.handles += 1;
    let handle = state.handles;
    let data = data as usize;
    state.listeners.push(Listener {
        handle,
        callback,
        data,
    });
    handle
}

/// Removes a callback. False: no callback has this handle.
pub(crate) fn stop_listening(handle: u64) -> bool {
    let mut state = lock(&STATE);
    let before = state.listeners.len();
    state.listeners.retain(|l| l.handle != handle);
    state.listeners.len() < before
}

/// The position after the last message, for [`since`].
pub(crate) fn end() -> u32 {
    lock(&STATE).said
}

/// The kept messages after a position (`None`: all), and the position after the last message.
pub(crate) fn since(place: Option<u32>) -> (Vec<String>, u32) {
    let state = lock(&STATE);
    let missed = place.map_or(usize::MAX, |place| state.said.wrapping_sub(place) as usize);
    let known = state.kept.len();
    let messages = state.kept.iter().skip(known - missed.min(known)).cloned();
    (messages.collect(), state.said)
}
