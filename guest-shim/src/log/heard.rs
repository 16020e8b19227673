//! Who else hears what the library says: the program, by CUDA's log functions.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Mutex;

use vgpu_cuda_abi::structs::LogsCallback;

use super::Level;
use crate::lock;
use crate::session;

/// Messages that are kept, as many as CUDA keeps.
const MOST: usize = 100;

#[derive(Debug, Clone, Copy)]
struct Listener {
    handle: u64,
    callback: LogsCallback,
    data: usize,
}

#[derive(Debug)]
struct State {
    /// Messages ever.
    said: u32,
    /// The last of them.
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

/// Keeps an error, and calls who listens.
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
        // It may make no calls, which could wait for what is going on here.
        session::without_calls(|| {
            // SAFETY: the program gave function and data for this; the message ends with NUL.
            unsafe { (listener.callback)(listener.data as *mut c_void, NUMBER, at, len) };
        });
    }
}

/// Has a function of the program called with each message from now on. Its handle.
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

/// No longer. False: there is none of this handle.
pub(crate) fn stop_listening(handle: u64) -> bool {
    let mut state = lock(&STATE);
    let before = state.listeners.len();
    state.listeners.retain(|l| l.handle != handle);
    state.listeners.len() < before
}

/// The place behind the last message.
pub(crate) fn end() -> u32 {
    lock(&STATE).said
}

/// What is kept of the messages since a place (all, without one), and the place behind them.
pub(crate) fn since(place: Option<u32>) -> (Vec<String>, u32) {
    let state = lock(&STATE);
    let missed = place.map_or(usize::MAX, |place| state.said.wrapping_sub(place) as usize);
    let known = state.kept.len();
    let messages = state.kept.iter().skip(known - missed.min(known)).cloned();
    (messages.collect(), state.said)
}
