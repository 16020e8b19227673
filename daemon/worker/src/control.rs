//! The control socket: vgpud's end of this worker's life.
//!
//! The session's thread receives: a grant that went through another thread would cost one more wake-up.
//! Another thread only watches for vgpud's end to close. It never enters the driver, so that it ends the
//! process even while the driver hangs.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

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

/// Says something to vgpud.
#[derive(Debug, Clone)]
pub struct Vgpud(Arc<OwnedFd>);

impl Vgpud {
    /// Over the control socket.
    pub fn new(socket: Arc<OwnedFd>) -> Vgpud {
        Vgpud(socket)
    }

    /// Sends one message. If vgpud is gone the control thread ends the process, so a failure needs
    /// no answer here.
    pub fn send(&self, message: &FromWorker) {
        let bytes = match codec::encode(message) {
            Ok(bytes) => bytes,
            Err(e) => {
                tracing::error!("a message for vgpud does not encode: {e}");
                return;
            }
        };
        loop {
            let iov = [IoSlice::new(&bytes)];
            match sendmsg::<()>(self.0.as_raw_fd(), &iov, &[], MsgFlags::MSG_NOSIGNAL, None) {
                Err(Errno::EINTR) => {}
                _ => return,
            }
        }
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
