//! The control socket, on which worker and vgpud exchange messages.
//!
//! The session's thread reads the messages: if another thread read them, a grant would cost one
//! more wake-up. The control thread only watches for the close of vgpud's end. It never calls the
//! driver, so it can end the process even while the driver hangs.

use std::collections::VecDeque;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nix::cmsg_space;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg, sendmsg};
use vgpu_proto::codec;
use vgpu_proto::limits::MAX_WORKER_MESSAGE;
use vgpu_proto::worker::{FromWorker, ToWorker};

use crate::driver::exit_now;

/// The descriptor number of a worker's control socket.
pub const CONTROL_FD: RawFd = 3;

/// Maximum number of descriptors in one message.
const MAX_FDS: usize = 2;

/// A message of vgpud with its descriptors.
#[derive(Debug)]
pub struct Received {
    /// The message.
    pub message: ToWorker,
    /// The descriptors that came with the message.
    pub fds: Vec<OwnedFd>,
}

/// Why a message could not be received.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// vgpud closed its end or has exited.
    #[error("vgpud closed the control socket")]
    Closed,
    /// The bytes are not a message of this protocol.
    #[error(
        "vgpud sent bytes that are not a message of this protocol ({0}): vgpud and vgpu-worker are of \
         different versions"
    )]
    Malformed(String),
    /// A system call failed.
    #[error("control socket: {0}")]
    Os(#[from] Errno),
}

/// Takes ownership of the control socket, which vgpud left on descriptor 3. `None`: the descriptor
/// is not open, because vgpud did not start this program.
pub fn inherited() -> Option<OwnedFd> {
    // SAFETY: the call only reads the flags of a descriptor number, which may be closed.
    if unsafe { libc::fcntl(CONTROL_FD, libc::F_GETFD) } < 0 {
        return None;
    }
    // SAFETY: the descriptor is open. vgpud starts a worker with its control socket on this
    // descriptor, and nothing else in this program has opened or used the descriptor. If it is not
    // a socket, the first receive fails.
    Some(unsafe { OwnedFd::from_raw_fd(CONTROL_FD) })
}

/// Wakes the session's thread, which waits for this eventfd.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// A new eventfd.
    ///
    /// # Errors
    /// If the process has no free descriptor.
    pub fn new() -> Result<Waker, Errno> {
        EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map(|fd| Waker(Arc::new(fd)))
    }

    /// Wakes the thread.
    pub fn wake(&self) {
        // A full counter means that a wake-up is already pending.
        let _ = self.0.write(1);
    }

    /// Clears all wake-ups so far.
    pub fn clear(&self) {
        let _ = self.0.read();
    }

    /// The descriptor to wait for.
    pub fn fd(&self) -> &EventFd {
        &self.0
    }
}

/// Receives the messages of vgpud. One thread at a time uses this.
#[derive(Debug)]
pub struct Messages {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    space: Vec<u8>,
}

impl Messages {
    /// Receives from this control socket.
    pub fn new(socket: Arc<OwnedFd>) -> Messages {
        Messages {
            socket,
            buffer: vec![0; MAX_WORKER_MESSAGE],
            space: cmsg_space!([RawFd; MAX_FDS]),
        }
    }

    /// The descriptor to wait for.
    pub fn fd(&self) -> &OwnedFd {
        &self.socket
    }

    /// Whether a message waits.
    pub fn waiting(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Waits for the next message.
    ///
    /// # Errors
    /// [`ControlError`]: vgpud closed its end, the bytes are not a message, or a system call
    /// failed.
    pub fn wait(&mut self) -> Result<Received, ControlError> {
        self.receive(MsgFlags::empty())
    }

    /// Receives the next message without waiting; `None` if no message waits.
    ///
    /// # Errors
    /// [`ControlError`], as for [`Messages::wait`].
    pub fn take(&mut self) -> Result<Option<Received>, ControlError> {
        match self.receive(MsgFlags::MSG_DONTWAIT) {
            Ok(received) => Ok(Some(received)),
            Err(ControlError::Os(Errno::EAGAIN)) => Ok(None),
            Err(e) => Err(e),
        }
    }

    fn receive(&mut self, flags: MsgFlags) -> Result<Received, ControlError> {
        let (bytes, fds, seen) = loop {
            let mut iov = [IoSliceMut::new(&mut self.buffer)];
            let received = recvmsg::<()>(
                self.socket.as_raw_fd(),
                &mut iov,
                Some(&mut self.space),
                flags | MsgFlags::MSG_CMSG_CLOEXEC,
            );
            match received {
                Ok(message) => {
                    let mut fds = Vec::new();
                    for cmsg in message.cmsgs()? {
                        if let ControlMessageOwned::ScmRights(raw) = cmsg {
                            // SAFETY: the kernel has just created these descriptors for this
                            // process.
                            fds.extend(
                                raw.into_iter()
                                    .map(|fd| unsafe { OwnedFd::from_raw_fd(fd) }),
                            );
                        }
                    }
                    break (message.bytes, fds, message.flags);
                }
                Err(Errno::EINTR) => {}
                Err(Errno::ECONNRESET) => return Err(ControlError::Closed),
                Err(e) => return Err(e.into()),
            }
        };
        if bytes == 0 {
            return Err(ControlError::Closed);
        }
        if seen.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
            return Err(ControlError::Malformed("it is too long".to_owned()));
        }
        let message = codec::decode(&self.buffer[..bytes])
            .map_err(|e| ControlError::Malformed(e.to_string()))?;
        Ok(Received { message, fds })
    }
}

/// Sends messages to vgpud without ever waiting: while vgpud is stopped, a guest that is alone on
/// its GPU must go on. Messages for which the socket has no room are kept here and sent later, in
/// order.
#[derive(Debug, Clone)]
pub struct Vgpud {
    socket: Arc<OwnedFd>,
    unsent: Arc<Mutex<VecDeque<FromWorker>>>,
}

impl Vgpud {
    /// Sends over this control socket.
    pub fn new(socket: Arc<OwnedFd>) -> Vgpud {
        Vgpud {
            socket,
            unsent: Arc::default(),
        }
    }

    fn unsent(&self) -> MutexGuard<'_, VecDeque<FromWorker>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a message now, or as soon as the socket has room.
    pub fn send(&self, message: FromWorker) {
        let mut unsent = self.unsent();
        keep(&mut unsent, message);
        self.send_these(&mut unsent);
    }

    /// Sends kept messages as far as the socket has room. Returns true if messages are still kept,
    /// so that the caller must wait for room.
    pub fn send_kept(&self) -> bool {
        let mut unsent = self.unsent();
        self.send_these(&mut unsent);
        !unsent.is_empty()
    }

    fn send_these(&self, unsent: &mut VecDeque<FromWorker>) {
        while let Some(message) = unsent.front() {
            // A stopped vgpud reads all messages when it continues. If `Idle` filled the socket,
            // the `Runnable` after it would have no room, and vgpud would take the worker for idle
            // and not charge it. Therefore `Idle` is sent only while ample room is left for later
            // messages.
            let pause = matches!(message, FromWorker::Idle { .. });
            if pause && !self.has_ample_room() || !self.put(message, MsgFlags::MSG_DONTWAIT) {
                return;
            }
            unsent.pop_front();
        }
    }

    /// The kernel reports a Unix socket as writable while at most a quarter of its room is used,
    /// but accepts packets until all room is used.
    fn has_ample_room(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Sends the last message before this process ends. Waits until this message and all kept
    /// messages are sent.
    pub fn send_last(&self, message: FromWorker) {
        let mut unsent = self.unsent();
        unsent.push_back(message);
        for message in unsent.drain(..) {
            self.put(&message, MsgFlags::empty());
        }
    }

    /// Sends one message. Returns false if the socket has no room. Other failures are ignored: if
    /// vgpud has exited, the control thread ends the process.
    fn put(&self, message: &FromWorker, flags: MsgFlags) -> bool {
        let bytes = match codec::encode(message) {
            Ok(bytes) => bytes,
            Err(e) => {
                tracing::error!("a message for vgpud does not encode: {e}");
                return true;
            }
        };
        let iov = [IoSlice::new(&bytes)];
        let flags = flags | MsgFlags::MSG_NOSIGNAL;
        loop {
            match sendmsg::<()>(self.socket.as_raw_fd(), &iov, &[], flags, None) {
                Err(Errno::EINTR) => {}
                sent => return sent != Err(Errno::EAGAIN),
            }
        }
    }
}

/// Appends a message to the kept messages. A guest can cause some messages again and again while
/// vgpud is stopped, so they are merged to keep the list short: an `Idle` followed by a `Runnable`
/// is dropped, a repeated state replaces the state before, and releases of memory are added up.
fn keep(unsent: &mut VecDeque<FromWorker>, message: FromWorker) {
    if let FromWorker::Runnable { .. } = message
        && let Some(FromWorker::Idle { .. }) = unsent.back()
    {
        unsent.pop_back();
    }
    match (unsent.back_mut(), message) {
        (
            Some(FromWorker::Runnable { calls, bytes, .. }),
            FromWorker::Runnable {
                calls: more_calls,
                bytes: more_bytes,
                ..
            },
        ) => (*calls, *bytes) = (more_calls, more_bytes),
        (Some(idle @ FromWorker::Idle { .. }), message @ FromWorker::Idle { .. }) => {
            *idle = message;
        }
        (_, FromWorker::MemRelease { device, bytes }) => {
            let same = unsent.iter_mut().find_map(|kept| match kept {
                FromWorker::MemRelease {
                    device: of,
                    bytes: sum,
                } if *of == device => Some(sum),
                _ => None,
            });
            match same {
                Some(sum) => *sum = sum.saturating_add(bytes),
                None => unsent.push_back(FromWorker::MemRelease { device, bytes }),
            }
        }
        (_, message) => unsent.push_back(message),
    }
}

/// Starts the control thread, which ends the process when vgpud's end of the socket closes.
///
/// # Errors
/// If the system cannot start a thread.
pub fn watch(socket: Arc<OwnedFd>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            loop {
                // No events are requested; poll always reports the close of the other end.
                let mut fds = [PollFd::new(socket.as_fd(), PollFlags::empty())];
                match poll(&mut fds, PollTimeout::NONE) {
                    Ok(0) | Err(Errno::EINTR) => {}
                    Ok(_) => exit_now(0),
                    Err(e) => {
                        tracing::error!("waiting for the end of vgpud: {e}");
                        exit_now(1);
                    }
                }
            }
        })
        .map(|_| ())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::{AddressFamily, SockFlag, SockType, recv, socketpair};

    fn pair() -> (Vgpud, OwnedFd) {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )
        .unwrap();
        (Vgpud::new(Arc::new(ours)), theirs)
    }

    fn runnable(at_ns: u64) -> FromWorker {
        FromWorker::Runnable {
            calls: 1,
            bytes: 0,
            at_ns,
        }
    }

    fn idle(at_ns: u64) -> FromWorker {
        FromWorker::Idle { epoch: 1, at_ns }
    }

    fn release(bytes: u64) -> FromWorker {
        FromWorker::MemRelease {
            device: None,
            bytes,
        }
    }

    /// The messages that vgpud reads when it continues.
    fn found(socket: &OwnedFd) -> Vec<FromWorker> {
        let mut buffer = [0; MAX_WORKER_MESSAGE];
        let next = || {
            let n = recv(socket.as_raw_fd(), &mut buffer, MsgFlags::MSG_DONTWAIT).ok()?;
            codec::decode(&buffer[..n]).ok()
        };
        std::iter::from_fn(next).collect()
    }

    #[test]
    fn a_worker_never_waits_for_vgpud_and_keeps_little() {
        let (vgpud, theirs) = pair();
        for at in 0..100_000 {
            vgpud.send(runnable(2 * at));
            vgpud.send(idle(2 * at + 1));
            vgpud.send(release(1));
        }
        assert!(vgpud.unsent().len() <= 4, "{:?}", vgpud.unsent());
        assert!(vgpud.send_kept(), "there is no room");
        let mut heard = found(&theirs);
        // The last state that vgpud reads when it continues must not be `Idle`.
        let states = |m: &&FromWorker| !matches!(m, FromWorker::MemRelease { .. });
        let last = heard.iter().rev().find(states);
        assert!(
            matches!(last, Some(FromWorker::Runnable { .. })),
            "{last:?}"
        );
        assert!(!vgpud.send_kept());
        heard.extend(found(&theirs));
        let last = heard.iter().rev().find(states);
        assert_eq!(last, Some(&idle(199_999)), "then it is told what is so now");
        let released = heard.iter().map(|message| match message {
            FromWorker::MemRelease { bytes, .. } => *bytes,
            _ => 0,
        });
        assert_eq!(
            released.sum::<u64>(),
            100_000,
            "and nothing of memory is lost"
        );
    }

    #[test]
    fn work_that_could_not_be_told_began_when_it_began() {
        let mut unsent = VecDeque::new();
        for at in 0..10 {
            keep(&mut unsent, runnable(2 * at + 5));
            keep(&mut unsent, idle(2 * at + 6));
        }
        assert_eq!(unsent, [runnable(5), idle(24)]);
    }
}
