//! System calls of the session, each a safe function that retries when interrupted.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{FromRawFd as _, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A place in memory that belongs to the guest program and may change or vanish at any time: only
/// the kernel reads or writes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserMemory {
    /// First byte.
    pub(crate) at: *mut u8,
    /// Bytes.
    pub(crate) len: usize,
}

// SAFETY: an address is only a number here; whoever passes it to the kernel takes what comes.
unsafe impl Send for UserMemory {}
// SAFETY: as above.
unsafe impl Sync for UserMemory {}

impl UserMemory {
    /// The rest after `n` bytes.
    pub(crate) fn skip(self, n: usize) -> UserMemory {
        let n = n.min(self.len);
        UserMemory {
            at: self.at.wrapping_add(n),
            len: self.len - n,
        }
    }

    /// The bytes as they are now.
    ///
    /// # Safety
    /// They are readable, and nobody changes them meanwhile.
    pub(crate) unsafe fn copied(self) -> Vec<u8> {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts(self.at.cast_const(), self.len) }.to_vec()
    }

    /// The first `n` bytes.
    pub(crate) fn first(self, n: usize) -> UserMemory {
        UserMemory {
            at: self.at,
            len: self.len.min(n),
        }
    }
}

unsafe extern "C" {
    fn pthread_setcancelstate(state: libc::c_int, before: *mut libc::c_int) -> libc::c_int;
}

/// `PTHREAD_CANCEL_DISABLE`.
const CANCEL_DISABLE: libc::c_int = 1;

/// Makes a system call until no signal interrupts it. The thread is not cancelled in it
/// (`pthread_cancel`): its stack would be unwound through functions that hold locks, which ends the
/// process.
fn retry(mut call: impl FnMut() -> isize) -> Result<usize> {
    let mut before = 0;
    // SAFETY: of the calling thread, with room for its state.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
    let result = uninterrupted(&mut call);
    // SAFETY: as it was.
    unsafe { pthread_setcancelstate(before, std::ptr::null_mut()) };
    result
}

fn uninterrupted(call: &mut impl FnMut() -> isize) -> Result<usize> {
    loop {
        match call() {
            n if n >= 0 => return Ok(n as usize),
            _ => {
                let e = Error::last_os_error();
                if e.kind() != ErrorKind::Interrupted {
                    return Err(e);
                }
            }
        }
    }
}

fn iovec(bytes: &[u8]) -> libc::iovec {
    libc::iovec {
        iov_base: bytes.as_ptr() as *mut libc::c_void,
        iov_len: bytes.len(),
    }
}

fn user_iovec(memory: UserMemory) -> libc::iovec {
    libc::iovec {
        iov_base: memory.at.cast(),
        iov_len: memory.len,
    }
}

fn message(parts: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: all-zero is a valid msghdr: no name, no parts, no control data.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = parts.as_mut_ptr();
    message.msg_iovlen = parts.len();
    message
}

/// Sends what the socket takes now: `head`, then `tail`. Never blocks, never raises SIGPIPE.
pub(crate) fn send(fd: RawFd, head: &[u8], tail: UserMemory) -> Result<usize> {
    let flags = libc::MSG_DONTWAIT | libc::MSG_NOSIGNAL;
    if tail.len == 0 {
        // SAFETY: a live slice.
        return retry(|| unsafe { libc::send(fd, head.as_ptr().cast(), head.len(), flags) });
    }
    let mut parts = [iovec(head), user_iovec(tail)];
    let message = message(&mut parts);
    // SAFETY: the parts describe a live slice and memory that the kernel checks itself.
    retry(|| unsafe { libc::sendmsg(fd, &message, flags) })
}

/// Receives into `user`, then `rest`; 0 means end of stream.
pub(crate) fn receive(fd: RawFd, user: UserMemory, rest: &mut [u8], wait: bool) -> Result<usize> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    if user.len == 0 {
        // SAFETY: `rest` is a live slice that we may write.
        return retry(|| unsafe { libc::recv(fd, rest.as_mut_ptr().cast(), rest.len(), flags) });
    }
    let mut parts = [user_iovec(user), iovec(rest)];
    let mut message = message(&mut parts);
    // SAFETY: the parts describe memory that the kernel checks itself and a slice that we may
    // write.
    retry(|| unsafe { libc::recvmsg(fd, &mut message, flags) })
}

/// Pieces that [`write_own`] takes at once (`IOV_MAX`).
pub(crate) const MOST_PIECES: usize = 1024;

/// Reads memory of this process. Returns how much of it there is, or EFAULT when that is nothing.
pub(crate) fn read_own(from: UserMemory, into: &mut [u8]) -> Result<usize> {
    let (local, remote) = (iovec(into), user_iovec(from.first(into.len())));
    let thread = this_thread();
    // SAFETY: a live slice that we may write, and memory that the kernel checks itself.
    retry(|| unsafe { libc::process_vm_readv(thread, &local, 1, &remote, 1, 0) })
}

/// Writes each slice to its place in memory of this process, which is as long. Returns how much
/// there was room for, or EFAULT when that is none.
pub(crate) fn write_own(pieces: &[(UserMemory, &[u8])]) -> Result<usize> {
    let local: Vec<_> = pieces.iter().map(|(_, bytes)| iovec(bytes)).collect();
    let remote: Vec<_> = pieces.iter().map(|(to, _)| user_iovec(*to)).collect();
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let (thread, count) = (this_thread(), pieces.len() as libc::c_ulong);
    // SAFETY: live slices, and memory that the kernel checks itself.
    retry(|| unsafe { libc::process_vm_writev(thread, local, count, remote, count, 0) })
}

/// The number of the calling thread. (That of the process names no memory when its first thread has
/// ended.)
fn this_thread() -> libc::pid_t {
    // SAFETY: no arguments, and it cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Is this a Unix socket?
pub(crate) fn is_unix(fd: RawFd) -> bool {
    option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
}

/// Has the socket hold about `bytes` that the peer has not read. Returns what it holds then, by the
/// kernel's books, which count its own structures; 0 if it does not say.
pub(crate) fn set_send_buffer(fd: RawFd, bytes: usize) -> usize {
    let value = bytes.min(i32::MAX as usize) as libc::c_int;
    // SAFETY: the option takes an int, live for the call. The system may grant less, or nothing.
    unsafe {
        libc::setsockopt(
            fd,
            libc::SOL_SOCKET,
            libc::SO_SNDBUF,
            (&raw const value).cast(),
            size_of::<libc::c_int>() as libc::socklen_t,
        )
    };
    option(fd, libc::SO_SNDBUF).map_or(0, |n| n.max(0) as usize)
}

/// Bytes that the peer of a Unix socket has not read, by the same books.
pub(crate) fn unread(fd: RawFd) -> Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int.
    retry(|| unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) } as isize)?;
    Ok(bytes.max(0) as usize)
}

fn option(fd: RawFd, name: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is an int, and there is room for one.
    let rc = unsafe {
        libc::getsockopt(
            fd,
            libc::SOL_SOCKET,
            name,
            (&raw mut value).cast(),
            &raw mut len,
        )
    };
    (rc == 0).then_some(value)
}

/// A new descriptor, under a number that the program does not take for its input or output.
fn kept(fd: RawFd) -> Result<RawFd> {
    // SAFETY: new, and nobody else's.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    vgpu_door::beyond_standard(fd).map(IntoRawFd::into_raw_fd)
}

/// A pipe that holds about `bytes`: its reading and its writing end, and what it holds.
pub(crate) fn pipe(bytes: usize) -> Result<([RawFd; 2], usize)> {
    let mut ends = [-1; 2];
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: room for two descriptors.
    retry(|| unsafe { libc::pipe2(ends.as_mut_ptr(), flags) } as isize)?;
    // Both numbers are taken before one is given up, or the next descriptor would get it.
    let ends = [kept(ends[0]), kept(ends[1])];
    let [Ok(reading), Ok(writing)] = ends else {
        ends.into_iter().flatten().for_each(close);
        return Err(Error::from_raw_os_error(libc::EMFILE));
    };
    let ends = [reading, writing];
    // SAFETY: plain numbers. It stays smaller if the system does not allow that much.
    unsafe { libc::fcntl(ends[1], libc::F_SETPIPE_SZ, bytes as libc::c_int) };
    // SAFETY: plain numbers.
    let holds = unsafe { libc::fcntl(ends[1], libc::F_GETPIPE_SZ) };
    Ok((ends, holds.max(0) as usize))
}

/// Puts references to the pages of `memory` into a pipe, as many as fit.
pub(crate) fn vmsplice(pipe: RawFd, memory: UserMemory) -> Result<usize> {
    let part = user_iovec(memory);
    // SAFETY: one iovec, live for the call; the kernel checks the memory itself.
    retry(|| unsafe { libc::vmsplice(pipe, &part, 1, 0) })
}

/// Moves what a pipe holds into a socket. Never raises SIGPIPE.
pub(crate) fn splice(pipe: RawFd, socket: RawFd, bytes: usize) -> Result<usize> {
    let none = std::ptr::null_mut();
    // SAFETY: descriptors and a length; the null pointers mean "no offset".
    without_sigpipe(|| retry(|| unsafe { libc::splice(pipe, none, socket, none, bytes, 0) }))
}

/// Runs a system call that has no flag for not raising SIGPIPE, which would end the program.
fn without_sigpipe(call: impl FnOnce() -> Result<usize>) -> Result<usize> {
    // SAFETY: sets on the stack, each filled before use. The thread's mask is put back as it was,
    // and a signal is taken only if this call brought it.
    unsafe {
        let mut sigpipe: libc::sigset_t = std::mem::zeroed();
        let mut pending: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut sigpipe);
        libc::sigaddset(&mut sigpipe, libc::SIGPIPE);
        libc::sigpending(&mut pending);
        libc::pthread_sigmask(libc::SIG_BLOCK, &sigpipe, &mut before);
        let result = call();
        let broken = |e: &Error| e.raw_os_error() == Some(libc::EPIPE);
        if result.as_ref().is_err_and(broken) && libc::sigismember(&pending, libc::SIGPIPE) == 0 {
            let now: libc::timespec = std::mem::zeroed();
            let _ = retry(|| libc::sigtimedwait(&sigpipe, std::ptr::null_mut(), &now) as isize);
        }
        libc::pthread_sigmask(libc::SIG_SETMASK, &before, std::ptr::null_mut());
        result
    }
}

/// Waits until one of `events` holds; false when the time is over.
pub(crate) fn poll(fd: RawFd, events: libc::c_short, timeout: Duration) -> Result<bool> {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let ms = timeout.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: one entry, live for the call.
    retry(|| unsafe { libc::poll(&mut entry, 1, ms) } as isize).map(|n| n > 0)
}

/// Ends both directions, waking whoever is blocked on the socket.
pub(crate) fn shutdown(fd: RawFd) {
    // SAFETY: takes a number; a bad one is an error that does not matter here.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Closes a descriptor. Safe in the child of a fork (async-signal-safe).
pub(crate) fn close(fd: RawFd) {
    // SAFETY: closing is the owner's decision; the callers own what they close.
    unsafe { libc::close(fd) };
}

/// Writes all bytes to a descriptor of the guest program, as far as it takes them.
pub(crate) fn write_fd(fd: RawFd, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        // SAFETY: a live slice.
        match retry(|| unsafe { libc::write(fd, bytes.as_ptr().cast(), bytes.len()) }) {
            Ok(n) if n > 0 => bytes = &bytes[n..],
            Err(e) if e.kind() == ErrorKind::WouldBlock => {
                if poll(fd, libc::POLLOUT, Duration::from_secs(1)).is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

/// A one-shot timer as a descriptor. Setting it wakes nobody; its expiry wakes the pump. (The
/// timeout of a poll would be late by the thread's timer slack, 50 µs by default.)
pub(crate) fn timer() -> Result<RawFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: plain numbers.
    let fd = retry(|| unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) } as isize)?;
    kept(fd as RawFd)
}

/// Sets the timer; zero stops it.
pub(crate) fn set_timer(fd: RawFd, after: Duration) {
    let zero = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    let value = libc::timespec {
        tv_sec: after.as_secs() as libc::time_t,
        tv_nsec: after.subsec_nanos().into(),
    };
    let spec = libc::itimerspec {
        it_interval: zero,
        it_value: value,
    };
    // SAFETY: a live itimerspec. It cannot fail: the descriptor is a timer, the times are in range.
    unsafe { libc::timerfd_settime(fd, 0, &spec, std::ptr::null_mut()) };
}

/// Takes the expiry off a timer that fired.
pub(crate) fn clear_timer(fd: RawFd) {
    let mut count = [0_u8; 8];
    // SAFETY: eight bytes, as a timer gives. Nothing to take is no error here.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}

/// An epoll set.
pub(crate) fn epoll() -> Result<RawFd> {
    // SAFETY: plain numbers.
    let fd = retry(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } as isize)?;
    kept(fd as RawFd)
}

/// Adds (or changes) what the set waits for on `fd`; `token` comes back with the event.
pub(crate) fn epoll_set(epoll: RawFd, add: bool, fd: RawFd, events: i32, token: u64) -> Result<()> {
    let mut event = libc::epoll_event {
        events: events as u32,
        u64: token,
    };
    let op = if add {
        libc::EPOLL_CTL_ADD
    } else {
        libc::EPOLL_CTL_MOD
    };
    // SAFETY: one event, live for the call.
    retry(|| unsafe { libc::epoll_ctl(epoll, op, fd, &mut event) } as isize).map(|_| ())
}

/// Waits for events without limit and returns their tokens.
pub(crate) fn epoll_wait(epoll: RawFd) -> Result<impl Iterator<Item = u64>> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: four events, live for the call.
    let n = retry(|| unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 4, -1) } as isize)?;
    Ok(events.into_iter().take(n).map(|e| e.u64))
}

/// Keeps the guest program's signal handlers off the calling thread.
pub(crate) fn block_signals() {
    // SAFETY: a set on the stack, filled before use.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}
