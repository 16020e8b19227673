//! The pump: a thread that writes and reads if no thread of the program does so in time.
//!
//! The pump writes the buffer when its oldest call is 50 µs old (400 µs during a backlog), because
//! a program may launch and then only sleep. The pump reads replies that no thread waits for,
//! because an asynchronous copy must arrive even if the program makes no calls. The pump also reads
//! the control connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vgpu_cudart::last_thread::LibraryThread;

use super::{Session, sys};

const TIMER: u64 = 0;
const DATA: u64 = 1;
const CONTROL: u64 = 2;

/// Time after which the pump tries again if another thread used the buffer or the socket was full.
const AGAIN: Duration = Duration::from_micros(200);

/// Starts the thread of the pump.
///
/// # Errors
/// The system's error if it refuses a thread or an epoll entry.
pub(crate) fn start(session: &'static Session) -> std::io::Result<()> {
    sys::epoll_set(session.epoll, true, session.timer, libc::EPOLLIN, TIMER)?;
    sys::epoll_set(
        session.epoll,
        true,
        session.control.fd(),
        libc::EPOLLIN,
        CONTROL,
    )?;
    // Only the end of the connection wakes the pump, and once: threads that wait read the data.
    sys::epoll_set(
        session.epoll,
        true,
        session.data,
        libc::EPOLLRDHUP | libc::EPOLLONESHOT,
        DATA,
    )?;
    std::thread::Builder::new()
        .name("vgpu-pump".to_owned())
        .stack_size(256 * 1024)
        .spawn(move || {
            let _own = LibraryThread::begin();
            sys::block_signals();
            run(session);
        })
        .map(|_| ())
}

/// Wakes the pump once when data arrives.
pub(crate) fn watch_data(session: &Session) {
    let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT;
    // The call cannot fail, because the entry exists. After a failure, the next synchronising call
    // would read.
    let _ = sys::epoll_set(session.epoll, false, session.data, events, DATA);
}

fn run(session: &Session) {
    while session.not_ended().is_ok() {
        let Ok(tokens) = sys::epoll_wait(session.epoll) else {
            return;
        };
        for token in tokens {
            match token {
                TIMER => on_timer(session),
                DATA => on_data(session),
                _ => {
                    session.control.read(session);
                }
            }
        }
    }
}

fn on_timer(session: &Session) {
    sys::clear_timer(session.timer);
    // Never waits for the lock of the outbox: the thread that holds this lock may wait for the
    // worker, and the pump must read the control connection meanwhile.
    let written = session
        .outbox
        .try_lock()
        .is_ok_and(|mut out| out.flush_some(session));
    if !written {
        sys::set_timer(session.timer, AGAIN);
    }
    // Reads notices for a program that launches and never synchronises.
    session.inbox.drain(session);
}

fn on_data(session: &Session) {
    session.watching.store(false, Ordering::Release);
    // A thread that is reading now calls `watch_data` when it stops.
    if session.inbox.drain(session) && session.inbox.is_restless() {
        session.watch_data();
    }
}
