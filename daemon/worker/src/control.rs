//! The control socket: vgpud's end of this worker's life.
//!
//! One thread receives; it never enters the driver, so that it ends the process when vgpud's end
//! closes even while the driver hangs. Messages go to the session's thread through a queue and an
//! eventfd.

use std::io::{IoSlice, IoSliceMut};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use crossbeam::channel::{Receiver, Sender, unbounded};
use nix::cmsg_space;
use nix::errno::Errno;
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

/// Waits for one message.
///
/// # Errors
/// [`ControlError`].
pub fn receive(socket: &OwnedFd) -> Result<Received, ControlError> {
    let mut buffer = vec![0u8; MAX_WORKER_MESSAGE];
    let mut space = cmsg_space!([RawFd; MAX_FDS]);
    let (bytes, fds, flags) = loop {
        let mut iov = [IoSliceMut::new(&mut buffer)];
        let received = recvmsg::<()>(
            socket.as_raw_fd(),
            &mut iov,
            Some(&mut space),
            MsgFlags::MSG_CMSG_CLOEXEC,
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
    if flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        return Err(ControlError::Malformed("it is too long".to_owned()));
    }
    let message =
        codec::decode(&buffer[..bytes]).map_err(|e| ControlError::Malformed(e.to_string()))?;
    Ok(Received { message, fds })
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

/// Starts the thread that receives from now on.
///
/// # Errors
/// When the system gives no thread.
pub fn listen(socket: Arc<OwnedFd>, waker: Waker) -> std::io::Result<Receiver<Received>> {
    let (sender, receiver): (Sender<Received>, _) = unbounded();
    std::thread::Builder::new()
        .name("control".to_owned())
        .spawn(move || {
            loop {
                match receive(&socket) {
                    Ok(received) => {
                        if received.message == ToWorker::Shutdown {
                            exit_now(0);
                        }
                        if sender.send(received).is_err() {
                            exit_now(0);
                        }
                        waker.wake();
                    }
                    Err(ControlError::Closed) => exit_now(0),
                    Err(e) => {
                        tracing::error!("{e}");
                        exit_now(1);
                    }
                }
            }
        })?;
    Ok(receiver)
}
