//! Host functions: functions of the program that run in stream order.
//!
//! The worker reports when a stream reaches a host function, and holds the stream until the guest
//! reports that the function has returned. Host functions run on threads of the library. A thread
//! is added whenever all threads are busy, so that a function that never returns delays only its
//! own stream.

use std::collections::{HashMap, VecDeque};
use std::ffi::c_void;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};

use vgpu_cuda_abi::CuResult;
use vgpu_cuda_abi::structs::{HostFn, StreamCallback};
use vgpu_cudart::last_thread::LibraryThread;
use vgpu_proto::call::req;
use vgpu_proto::cuda::{Ctx, Stream};
use vgpu_proto::limits::MAX_HOST_FUNCTIONS;

use super::Session;
use crate::{Cu, callback, lock, log, sys};

/// Largest number of threads for host functions. Beyond that, functions wait for a free thread.
const THREADS: usize = 64;

/// A host function of the program and its argument.
#[derive(Debug, Clone, Copy)]
pub(crate) enum HostFunction {
    /// From cuLaunchHostFunc; not called if the device has failed.
    Plain(HostFn, usize),
    /// From cuStreamAddCallback, with the stream's handle; called with the error if the device has
    /// failed.
    Callback(StreamCallback, u64, usize),
}

impl HostFunction {
    fn run(self, status: CuResult) {
        // SAFETY: the program passed function and argument for exactly this call.
        unsafe {
            match self {
                HostFunction::Plain(function, data) => function(data as *mut c_void),
                HostFunction::Callback(function, stream, data) => {
                    function(stream, status.0, data as *mut c_void);
                }
            }
        }
    }
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    /// Functions that were sent to the worker and that their stream has not reached, by number.
    pending: HashMap<u64, HostFunction>,
    /// Functions to run: (number, function, status).
    ready: VecDeque<(u64, HostFunction, CuResult)>,
    threads: usize,
    idle: usize,
}

/// The host functions of a session.
#[derive(Debug, Default)]
pub(crate) struct HostFunctions {
    state: Mutex<State>,
    bell: Condvar,
    /// Number of functions that were launched and have not returned.
    unfinished: AtomicUsize,
}

impl Session {
    /// Appends a host function to a stream.
    ///
    /// # Errors
    /// CUDA_ERROR_OUT_OF_MEMORY if too many host functions are pending; the code with which the
    /// session ended.
    pub(crate) fn launch_host(&self, ctx: Ctx, stream: Stream, function: HostFunction) -> Cu {
        let number = {
            let mut state = lock(&self.host.state);
            if state.pending.len() >= MAX_HOST_FUNCTIONS {
                return Err(CuResult::OUT_OF_MEMORY);
            }
            state.last += 1;
            let number = state.last;
            state.pending.insert(number, function);
            number
        };
        self.host.unfinished.fetch_add(1, Ordering::AcqRel);
        // Announced before the request is sent, so that some thread reads the notice that the
        // request causes.
        self.inbox.expect_notice();
        let call = req::HostFunc {
            ctx,
            stream,
            number,
        };
        if let Err(code) = self.post(&call) {
            lock(&self.host.state).pending.remove(&number);
            self.host_function_over();
            return Err(code);
        }
        self.watch_data();
        Ok(())
    }

    /// Handles the notice that a stream has reached host function `number`.
    pub(super) fn host_function(&self, number: u64) {
        let mut state = lock(&self.host.state);
        let Some(function) = state.pending.remove(&number) else {
            return;
        };
        state.ready.push_back((number, function, CuResult::SUCCESS));
        self.hand_out(state);
    }

    /// Handles a device fault: callbacks run with the error, plain functions are dropped.
    pub(super) fn fail_host_functions(&self, code: CuResult) {
        let mut state = lock(&self.host.state);
        let mut pending: Vec<_> = std::mem::take(&mut state.pending).into_iter().collect();
        pending.sort_unstable_by_key(|(number, _)| *number);
        for (number, function) in pending {
            match function {
                HostFunction::Plain(..) => self.host_function_over(),
                HostFunction::Callback(..) => state.ready.push_back((number, function, code)),
            }
        }
        if !state.ready.is_empty() {
            self.hand_out(state);
        }
    }

    /// Wakes a thread for a ready function. First starts a thread if fewer threads are idle than
    /// functions are ready, up to [`THREADS`] threads.
    fn hand_out(&self, mut state: std::sync::MutexGuard<'_, State>) {
        if state.idle < state.ready.len()
            && state.threads < THREADS
            && let Some(session) = self.itself.get().copied()
        {
            let started = std::thread::Builder::new()
                .name("vgpu-host-func".to_owned())
                .spawn(move || {
                    let _own = LibraryThread::begin();
                    sys::block_signals();
                    session.run_host_functions();
                });
            match started {
                Ok(_) => state.threads += 1,
                Err(e) => log::line(
                    log::Level::Error,
                    &format!("no thread for a host function: {e}"),
                ),
            }
        }
        self.host.bell.notify_one();
    }

    fn run_host_functions(&self) {
        loop {
            let (number, function, status) = self.next_host_function();
            // The result is ignored: in an ended session, there are no changes to fetch.
            let _ = self.pull();
            callback::without_calls(|| function.run(status));
            self.push();
            // The result is ignored: in an ended session, no stream waits.
            let _ = self.post(&req::HostFuncDone { number });
            let _ = self.flush();
            self.host_function_over();
        }
    }

    fn host_function_over(&self) {
        self.host.unfinished.fetch_sub(1, Ordering::AcqRel);
        self.inbox.noticed();
    }

    /// Whether host functions were launched that have not returned. They may write any memory of
    /// the program.
    pub(super) fn has_host_functions(&self) -> bool {
        self.host.unfinished.load(Ordering::Acquire) > 0
    }

    fn next_host_function(&self) -> (u64, HostFunction, CuResult) {
        let mut state = lock(&self.host.state);
        loop {
            if let Some(next) = state.ready.pop_front() {
                return next;
            }
            state.idle += 1;
            state = self
                .host
                .bell
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.idle -= 1;
        }
    }
}
