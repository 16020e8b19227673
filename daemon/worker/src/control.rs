//! The control socket: vgpud's end of this worker's life.
//!
//! The session's thread receives: a grant that went through another thread would cost one more
//! wake-up. Another thread only watches for vgpud's end to close. It never enters the driver, so
//! that it ends the process even while the driver hangs.

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

/// The descriptor on which a worker finds its control socket.
pub const CONTROL_FD: RawFd = 3;

/// Descriptors that one message may carry.
const MAX_FDS: usize = 2;

/// A message of vgpud with its descriptors.
#[derive(Debug)]
pub struct Received {
    /// What vgpud says.
    pub message: ToWorker,
    /// What came along.
    pub fds: Vec<OwnedFd>,
}

/// Why a message could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// vgpud closed its end, or is gone.
    #[error("vgpud closed the control socket")]
    Closed,
    /// Not a message.
    #[error("vgpud sent what is no message: {0}")]
    Malformed(String),
    /// The system's.
    #[error("control socket: {0}")]
    Os(#[from] Errno),
}

/// Takes the control socket that vgpud left on descriptor 3.
pub fn inherited() -> OwnedFd {
    // SAFETY: vgpud starts a worker with its control socket on this descriptor and nothing else of
    // this program has opened or used it; whether it is a socket shows with the first receive.
    unsafe { OwnedFd::from_raw_fd(CONTROL_FD) }
}

/// Wakes the session's thread.
#[derive(Debug, Clone)]
pub struct Waker(Arc<EventFd>);

impl Waker {
    /// A new eventfd.
    ///
    /// # Errors
    /// When the process is out of descriptors.
    pub fn new() -> Result<Waker, Errno> {
        EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)
            .map(|fd| Waker(Arc::new(fd)))
    }

    /// Wakes.
    pub fn wake(&self) {
        // Full means that a wake is pending already.
        let _ = self.0.write(1);
    }

    /// Forgets the wakes so far.
    pub fn clear(&self) {
        let _ = self.0.read();
    }

    /// The descriptor to wait for.
    pub fn fd(&self) -> &EventFd {
        &self.0
    }
}

/// What vgpud says. Read by one thread at a time.
#[derive(Debug)]
pub struct Messages {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    space: Vec<u8>,
}

impl Messages {
    /// From the control socket.
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

    /// Is there one?
    pub fn waiting(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Waits for one.
    ///
    /// # Errors
    /// [`ControlError`].
    pub fn wait(&mut self) -> Result<Received, ControlError> {
        self.receive(MsgFlags::empty())
    }

    /// Takes one, if there is one.
    ///
    /// # Errors
    /// [`ControlError`].
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
                            // SAFETY: the kernel has just made these descriptors for us.
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

/// Says something to vgpud, without ever waiting for it: vgpud may be stopped, and a guest that is
/// alone on its GPU goes on all the same. What finds no room in the socket is kept, in order.
#[derive(Debug, Clone)]
pub struct Vgpud {
    socket: Arc<OwnedFd>,
    unsent: Arc<Mutex<VecDeque<FromWorker>>>,
}

impl Vgpud {
    /// Over the control socket.
    pub fn new(socket: Arc<OwnedFd>) -> Vgpud {
        Vgpud {
            socket,
            unsent: Arc::default(),
        }
    }

    fn unsent(&self) -> MutexGuard<'_, VecDeque<FromWorker>> {
        self.unsent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says one message, now or as soon as there is room.
    pub fn send(&self, message: FromWorker) {
        let mut unsent = self.unsent();
        keep(&mut unsent, message);
        self.send_these(&mut unsent);
    }

    /// Sends what was kept, as far as there is room. True: something is still kept, and room in the
    /// socket is to be waited for.
    pub fn send_kept(&self) -> bool {
        let mut unsent = self.unsent();
        self.send_these(&mut unsent);
        !unsent.is_empty()
    }

    fn send_these(&self, unsent: &mut VecDeque<FromWorker>) {
        while let Some(message) = unsent.front() {
            // After the last that a stopped vgpud finds, work may have gone on: that must not be a
            // pause, which costs nothing. So a pause is told only while there is ample room for
            // what comes after it.
            let pause = matches!(message, FromWorker::Idle { .. });
            if pause && !self.has_ample_room() || !self.put(message, MsgFlags::MSG_DONTWAIT) {
                return;
            }
            unsent.pop_front();
        }
    }

    /// The kernel says that a Unix socket can be written to while a quarter of its room is used,
    /// and takes packets up to all of it.
    fn has_ample_room(&self) -> bool {
        let mut fds = [PollFd::new(self.socket.as_fd(), PollFlags::POLLOUT)];
        poll(&mut fds, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
    }

    /// Says the last message before this process ends, and waits until it and all before it are
    /// sent.
    pub fn send_last(&self, message: FromWorker) {
        let mut unsent = self.unsent();
        unsent.push_back(message);
        for message in unsent.drain(..) {
            self.put(&message, MsgFlags::empty());
        }
    }

    /// False: there is no room. If vgpud is gone the control thread ends the process, so another
    /// failure needs no answer here.
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

/// Keeps a message behind the others. Of those that a guest can repeat while vgpud is stopped, what
/// a later one makes needless is dropped, so that they stay few: pauses between work, which are
/// then not told, and the number of releases of memory.
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

/// Starts the thread that ends the process when vgpud's end closes.
///
/// # Errors
/// When the system gives no thread.
pub fn watch(socket: Arc<OwnedFd>) -> std::io::Result<()> {
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            loop {
                // Nothing is asked for but what is always told: that the other end is closed.
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

    /// What a vgpud that goes on finds in its socket.
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
        // Whatever is found last when vgpud goes on, it is not that the worker pauses.
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
