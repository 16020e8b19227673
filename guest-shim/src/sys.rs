//! System calls of the session. Each function is safe and repeats a call that a signal interrupts.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::{FromRawFd as _, IntoRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Memory of the guest program, which the program may change or unmap at any time. Only the kernel
/// reads or writes this memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UserMemory {
    /// Address of the first byte.
    pub(crate) at: *mut u8,
    /// Size in bytes.
    pub(crate) len: usize,
}

// SAFETY: the address is only a number here. A caller that passes the address to the kernel handles
// the kernel's error.
unsafe impl Send for UserMemory {}
// SAFETY: as above.
unsafe impl Sync for UserMemory {}

impl UserMemory {
    /// The memory without its first `n` bytes.
    pub(crate) fn skip(self, n: usize) -> UserMemory {
        let n = n.min(self.len);
        UserMemory {
            at: self.at.wrapping_add(n),
            len: self.len - n,
        }
    }

    /// Copies the bytes.
    ///
    /// # Safety
    /// The memory is readable, and no thread changes the memory meanwhile.
    pub(crate) unsafe fn copied(self) -> Vec<u8> {
        // SAFETY: by this function's contract.
        unsafe { std::slice::from_raw_parts(self.at.cast_const(), self.len) }.to_vec()
    }

    /// The first `n` bytes of the memory.
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

/// Repeats a system call until no signal interrupts the call. Thread cancellation
/// (`pthread_cancel`) is off during the call: a cancellation would unwind the stack through
/// functions that hold locks, which ends the process.
fn retry(mut call: impl FnMut() -> isize) -> Result<usize> {
    let mut before = 0;
    // SAFETY: changes the calling thread only; `before` has room for the old state.
    unsafe { pthread_setcancelstate(CANCEL_DISABLE, &mut before) };
    let result = uninterrupted(&mut call);
    // SAFETY: restores the state of the calling thread.
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

/// Sends the bytes that the socket accepts now: `head`, then `tail`. Never blocks, never raises
/// SIGPIPE.
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

/// Receives into `user`, then into `rest`. Returns the number of bytes; 0 is the end of the stream.
pub(crate) fn receive(fd: RawFd, user: UserMemory, rest: &mut [u8], wait: bool) -> Result<usize> {
    let flags = if wait { 0 } else { libc::MSG_DONTWAIT };
    if user.len == 0 {
        // SAFETY: `rest` is a live, writable slice.
        return retry(|| unsafe { libc::recv(fd, rest.as_mut_ptr().cast(), rest.len(), flags) });
    }
    let mut parts = [user_iovec(user), iovec(rest)];
    let mut message = message(&mut parts);
    // SAFETY: the parts describe memory that the kernel checks itself, and a live, writable slice.
    retry(|| unsafe { libc::recvmsg(fd, &mut message, flags) })
}

/// Largest number of pieces that [`write_own`] writes in one call (`IOV_MAX`).
pub(crate) const MOST_PIECES: usize = 1024;

/// Reads memory of this process. Returns the number of bytes up to the first unreadable page;
/// EFAULT if there are none.
pub(crate) fn read_own(from: UserMemory, into: &mut [u8]) -> Result<usize> {
    let (local, remote) = (iovec(into), user_iovec(from.first(into.len())));
    let thread = this_thread();
    // SAFETY: a live, writable slice, and memory that the kernel checks itself.
    retry(|| unsafe { libc::process_vm_readv(thread, &local, 1, &remote, 1, 0) })
}

/// Writes each slice to memory of this process of the same length. Returns the number of bytes
/// written before the first unwritable page; EFAULT if there are none.
pub(crate) fn write_own(pieces: &[(UserMemory, &[u8])]) -> Result<usize> {
    let local: Vec<_> = pieces.iter().map(|(_, bytes)| iovec(bytes)).collect();
    let remote: Vec<_> = pieces.iter().map(|(to, _)| user_iovec(*to)).collect();
    let (local, remote) = (local.as_ptr(), remote.as_ptr());
    let (thread, count) = (this_thread(), pieces.len() as libc::c_ulong);
    // SAFETY: live slices, and memory that the kernel checks itself.
    retry(|| unsafe { libc::process_vm_writev(thread, local, count, remote, count, 0) })
}

/// The ID of the calling thread. After the main thread has ended, the ID of the process no longer
/// identifies the memory.
fn this_thread() -> libc::pid_t {
    // SAFETY: the system call has no arguments and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as libc::pid_t }
}

/// Whether the descriptor is a Unix socket.
pub(crate) fn is_unix(fd: RawFd) -> bool {
    option(fd, libc::SO_DOMAIN) == Some(libc::AF_UNIX)
}

/// Sets the size of the send buffer, in bytes that the peer has not read. Returns the actual
/// size, which includes the kernel's bookkeeping; 0 if the size is unknown.
pub(crate) fn set_send_buffer(fd: RawFd, bytes: usize) -> usize {
    let value = bytes.min(i32::MAX as usize) as libc::c_int;
    // SAFETY: the option takes an int, which lives during the call. The kernel may set a smaller
    // size.
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

/// Number of bytes that the peer of a Unix socket has not read, with the kernel's bookkeeping
/// included.
pub(crate) fn unread(fd: RawFd) -> Result<usize> {
    let mut bytes: libc::c_int = 0;
    // SAFETY: the request writes one int.
    retry(|| unsafe { libc::ioctl(fd, libc::TIOCOUTQ, &raw mut bytes) } as isize)?;
    Ok(bytes.max(0) as usize)
}

fn option(fd: RawFd, name: libc::c_int) -> Option<libc::c_int> {
    let mut value: libc::c_int = 0;
    let mut len = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: the option is an int, and `value` has room for an int.
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

/// Moves a new descriptor to a number above those of standard input, output and error.
fn kept(fd: RawFd) -> Result<RawFd> {
    // SAFETY: a new descriptor, which nothing else owns.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    vgpu_door::beyond_standard(fd).map(IntoRawFd::into_raw_fd)
}

/// Creates a pipe for about `bytes`. Returns the reading and the writing end, and the capacity in
/// bytes.
pub(crate) fn pipe(bytes: usize) -> Result<([RawFd; 2], usize)> {
    let mut ends = [-1; 2];
    let flags = libc::O_CLOEXEC | libc::O_NONBLOCK;
    // SAFETY: room for two descriptors.
    retry(|| unsafe { libc::pipe2(ends.as_mut_ptr(), flags) } as isize)?;
    // Both descriptors exist before one is moved: otherwise the second could get the number that
    // the first has left.
    let ends = [kept(ends[0]), kept(ends[1])];
    let [Ok(reading), Ok(writing)] = ends else {
        ends.into_iter().flatten().for_each(close);
        return Err(Error::from_raw_os_error(libc::EMFILE));
    };
    let ends = [reading, writing];
    // SAFETY: plain numbers. The pipe keeps its size if the system does not allow a larger one.
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

/// Moves bytes from a pipe into a socket. Never raises SIGPIPE.
pub(crate) fn splice(pipe: RawFd, socket: RawFd, bytes: usize) -> Result<usize> {
    let none = std::ptr::null_mut();
    // SAFETY: descriptors and a length; the null pointers mean "no offset".
    without_sigpipe(|| retry(|| unsafe { libc::splice(pipe, none, socket, none, bytes, 0) }))
}

/// Runs a system call without SIGPIPE, which would end the program, for calls that have no flag
/// against the signal.
fn without_sigpipe(call: impl FnOnce() -> Result<usize>) -> Result<usize> {
    // SAFETY: the signal sets are on the stack and are filled before use. The thread gets its old
    // mask back, and a pending SIGPIPE is removed only if this call raised the signal.
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

/// Waits until the descriptor has one of `events`; false after the timeout.
pub(crate) fn poll(fd: RawFd, events: libc::c_short, timeout: Duration) -> Result<bool> {
    let mut entry = libc::pollfd {
        fd,
        events,
        revents: 0,
    };
    let ms = timeout.as_millis().min(i32::MAX as u128) as i32;
    // SAFETY: one entry, which lives during the call.
    retry(|| unsafe { libc::poll(&mut entry, 1, ms) } as isize).map(|n| n > 0)
}

/// Shuts down both directions, which wakes every thread that is blocked on the socket.
pub(crate) fn shutdown(fd: RawFd) {
    // SAFETY: takes a number. The error for an invalid descriptor is ignored.
    unsafe { libc::shutdown(fd, libc::SHUT_RDWR) };
}

/// Closes a descriptor. Safe in the child of a fork (async-signal-safe).
pub(crate) fn close(fd: RawFd) {
    // SAFETY: the callers own the descriptors that they close.
    unsafe { libc::close(fd) };
}

/// Writes all bytes to a descriptor of the guest program; stops at an error.
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

/// Creates a one-shot timer as a descriptor. Setting the timer wakes no thread; the expiry wakes
/// the pump. (A timeout of poll would be late by the thread's timer slack, 50 µs by default.)
pub(crate) fn timer() -> Result<RawFd> {
    let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
    // SAFETY: plain numbers.
    let fd = retry(|| unsafe { libc::timerfd_create(libc::CLOCK_MONOTONIC, flags) } as isize)?;
    kept(fd as RawFd)
}

/// Sets the timer; a time of zero stops the timer.
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
    // SAFETY: a live itimerspec. The call cannot fail: the descriptor is a timer and the times are
    // valid.
    unsafe { libc::timerfd_settime(fd, 0, &spec, std::ptr::null_mut()) };
}

/// Reads the expiry of a timer, so that its descriptor is no longer readable.
pub(crate) fn clear_timer(fd: RawFd) {
    let mut count = [0_u8; 8];
    // SAFETY: room for the eight bytes that a timer returns. A timer that has not expired is not an
    // error.
    unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) };
}

/// Creates an epoll set.
pub(crate) fn epoll() -> Result<RawFd> {
    // SAFETY: plain numbers.
    let fd = retry(|| unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) } as isize)?;
    kept(fd as RawFd)
}

/// Adds `fd` to the set or changes its events. epoll returns `token` with each event of `fd`.
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
    // SAFETY: one event, which lives during the call.
    retry(|| unsafe { libc::epoll_ctl(epoll, op, fd, &mut event) } as isize).map(|_| ())
}

/// Waits for events without a time limit. Returns the tokens of the events.
pub(crate) fn epoll_wait(epoll: RawFd) -> Result<impl Iterator<Item = u64>> {
    let mut events = [libc::epoll_event { events: 0, u64: 0 }; 4];
    // SAFETY: room for four events, which live during the call.
    let n = retry(|| unsafe { libc::epoll_wait(epoll, events.as_mut_ptr(), 4, -1) } as isize)?;
    Ok(events.into_iter().take(n).map(|e| e.u64))
}

/// Blocks all signals on the calling thread, so that the guest program's handlers never run there.
pub(crate) fn block_signals() {
    // SAFETY: a signal set on the stack, filled before use.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, std::ptr::null_mut());
    }
}
