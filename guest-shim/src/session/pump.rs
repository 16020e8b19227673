//! The pump: a thread that does what no thread of the program is there to do.
//!
//! It writes the buffer when its oldest call is 50 µs old (a program may launch and then only
//! sleep), reads replies that nobody waits for (a copy must arrive while the program does not
//! read), and watches the control connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use vgpu_cudart::last_thread::LibraryThread;

use super::{Session, sys};

const TIMER: u64 = 0;
const DATA: u64 = 1;
const CONTROL: u64 = 2;

/// When the buffer was busy or the socket full, look again after this.
const AGAIN: Duration = Duration::from_micros(200);

/// Starts the thread.
///
/// # Errors
/// The system's, when it gives no thread or epoll entry.
pub(crate) fn start(session: &'static Session) -> std::io::Result<()> {
    sys::epoll_set(session.epoll, true, session.timer, libc::EPOLLIN, TIMER)?;
    sys::epoll_set(
        session.epoll,
        true,
        session.control.fd(),
        libc::EPOLLIN,
        CONTROL,
    )?;
    // One shot and nothing but its end: reading is the business of whoever waits.
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

/// Wakes the pump once when data comes.
pub(crate) fn watch_data(session: &Session) {
    let events = libc::EPOLLIN | libc::EPOLLRDHUP | libc::EPOLLONESHOT;
    // It cannot fail: the entry exists. If it did, the next synchronising call would read.
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
    // Never waits for the lock: its holder may be waiting for the worker, and the control
    // connection must be watched meanwhile.
    let written = session
        .outbox
        .try_lock()
        .is_ok_and(|mut out| out.flush_some(session));
    if !written {
        sys::set_timer(session.timer, AGAIN);
    }
    // Takes notices off the socket of a program that launches and never synchronises.
    session.inbox.drain(session);
}

fn on_data(session: &Session) {
    session.watching.store(false, Ordering::Release);
    // If another thread is reading, it asks for the pump again when it stops.
    if session.inbox.drain(session) && session.inbox.is_restless() {
        session.watch_data();
    }
}
