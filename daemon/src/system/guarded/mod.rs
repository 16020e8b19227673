//! Sockets whose peers may attach descriptors (`rights.rs`). No thread that serves other clients
//! drops the last reference of such a descriptor, neither by reading nor by closing.

use std::io::{self, IoSliceMut};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use nix::sys::socket::{MsgFlags, Shutdown, recv, recvmsg, send, shutdown};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::system::closer::Closer;
use crate::system::rights;

/// The peer attached descriptors to the sent bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("descriptors are attached to what was sent, and vgpud takes none")]
pub struct Attached;

impl Attached {
    /// Whether an I/O error is [`Attached`].
    #[must_use]
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Attached>())
    }
}

/// A socket that a [`Closer`] closes, if the close may take long.
#[derive(Debug)]
pub struct Guarded {
    /// `None` only during the drop.
    fd: Option<OwnedFd>,
    closer: Arc<Closer>,
    /// Whether the peer may attach descriptors.
    attached: bool,
    /// Whether an untrusted process shares the socket and may set SO_LINGER.
    shared: bool,
}

impl Guarded {
    /// Wraps a Unix socket. Asks the kernel whether the peer can attach descriptors.
    #[must_use]
    pub fn new(fd: OwnedFd, closer: Arc<Closer>) -> Guarded {
        let attached = !rights::are_refused(&fd);
        if attached {
            rights::show_urgent_bytes(&fd);
        }
        Guarded {
            fd: Some(fd),
            closer,
            attached,
            shared: false,
        }
    }

    /// Wraps a socket of a family that carries no descriptors.
    #[must_use]
    pub fn plain(fd: OwnedFd, closer: Arc<Closer>) -> Guarded {
        Guarded {
            fd: Some(fd),
            closer,
            attached: false,
            shared: false,
        }
    }

    /// Notes that an untrusted process gets a copy of the socket.
    pub fn share(&mut self) {
        self.shared = true;
    }

    /// Duplicates the descriptor.
    ///
    /// # Errors
    /// If vgpud has no descriptor left.
    pub fn try_clone(&self) -> io::Result<Guarded> {
        Ok(Guarded {
            fd: Some(self.as_fd().try_clone_to_owned()?),
            closer: self.closer.clone(),
            ..*self
        })
    }

    /// Reads the available bytes, at most the length of the buffer; 0 at the end of the stream.
    /// Never waits, and releases no descriptor.
    ///
    /// # Errors
    /// [`Attached`], at this and every later read; the socket's errors.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.peek(buffer, MsgFlags::empty())? {
            0 => Ok(0),
            n => self.take(&mut buffer[..n], MsgFlags::empty()),
        }
    }

    /// As [`Guarded::read`], for one packet. Returns the length of the packet, which may exceed the
    /// buffer; the bytes beyond the buffer are lost.
    ///
    /// # Errors
    /// As [`Guarded::read`].
    pub fn read_packet(&self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.peek(buffer, MsgFlags::MSG_TRUNC)? {
            0 => Ok(0),
            _ => self.take(buffer, MsgFlags::MSG_TRUNC),
        }
    }

    /// As [`Guarded::read`], but leaves the bytes in the socket.
    ///
    /// # Errors
    /// As [`Guarded::read`].
    pub fn look(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.attached {
            return self.peek(buffer, MsgFlags::empty());
        }
        self.take(buffer, MsgFlags::MSG_PEEK)
    }

    /// Number of bytes that a read may take without releasing a descriptor: the whole buffer, if
    /// the peer cannot attach descriptors. A peek stops at the first byte with descriptors and
    /// reports that they found no room (MSG_CTRUNC). A peek releases nothing.
    fn peek(&self, buffer: &mut [u8], flags: MsgFlags) -> io::Result<usize> {
        if !self.attached {
            return Ok(buffer.len());
        }
        let flags = flags | MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        let mut room = [IoSliceMut::new(buffer)];
        let seen = recvmsg::<()>(self.as_raw_fd(), &mut room, None, flags)?;
        if seen.flags.contains(MsgFlags::MSG_CTRUNC) {
            return Err(io::Error::other(Attached));
        }
        Ok(seen.bytes)
    }

    fn take(&self, buffer: &mut [u8], flags: MsgFlags) -> io::Result<usize> {
        Ok(recv(
            self.as_raw_fd(),
            buffer,
            flags | MsgFlags::MSG_DONTWAIT,
        )?)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if (self.attached || self.shared)
            && let Some(fd) = self.fd.take()
        {
            self.closer.close(fd);
        }
    }
}

impl From<UnixStream> for Guarded {
    /// Creates a closer for this socket alone.
    fn from(stream: UnixStream) -> Guarded {
        Guarded::new(stream.into(), Arc::default())
    }
}

impl AsFd for Guarded {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.fd {
            Some(fd) => fd.as_fd(),
            None => unreachable!("only while it is dropped"),
        }
    }
}

impl AsRawFd for Guarded {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}

/// Registers a descriptor with the runtime.
///
/// # Errors
/// If the runtime cannot watch the descriptor.
#[allow(deprecated)] // Deprecated for types whose descriptor may change; these keep their own.
pub(crate) fn register<T: AsRawFd>(fd: T) -> io::Result<AsyncFd<T>> {
    AsyncFd::new(fd)
}

/// A Unix listener whose connections are [`Guarded`]. The closer also closes the listener itself,
/// because this closes the connections that wait in the backlog.
#[derive(Debug)]
pub struct Listener {
    /// `None` only during the drop.
    listener: Option<AsyncFd<UnixListener>>,
    closer: Arc<Closer>,
}

impl Listener {
    /// Takes over a listener that does not block. Must be called within the runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the listener.
    pub fn new(listener: UnixListener, closer: Arc<Closer>) -> io::Result<Listener> {
        Ok(Listener {
            listener: Some(register(listener)?),
            closer,
        })
    }

    /// Accepts the next connection. Waits while the closer is full.
    ///
    /// # Errors
    /// An error of accept(2).
    pub async fn accept(&self) -> io::Result<Guarded> {
        let Some(listener) = &self.listener else {
            unreachable!("only while it is dropped")
        };
        loop {
            self.closer.room().await;
            let mut ready = listener.readable().await?;
            match ready.try_io(|listener| listener.get_ref().accept()) {
                Ok(Ok((stream, _))) => return Ok(Guarded::new(stream.into(), self.closer.clone())),
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
    }

    /// The closer of the accepted connections.
    #[must_use]
    pub fn closer(&self) -> &Arc<Closer> {
        &self.closer
    }

    /// Allows attached descriptors, as a kernel before Linux 6.16 does.
    #[cfg(test)]
    pub(crate) fn allow_rights(&self) {
        rights::allow(self.listener.as_ref().unwrap().get_ref());
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(listener) = self.listener.take() {
            drop(Guarded::new(
                listener.into_inner().into(),
                self.closer.clone(),
            ));
        }
    }
}

/// A connection as a stream of bytes.
#[derive(Debug)]
pub struct Stream(AsyncFd<Guarded>);

impl Stream {
    /// Takes over a connected stream socket. Must be called within the runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub fn new(socket: Guarded) -> io::Result<Stream> {
        crate::system::set_nonblocking(&socket, true)?;
        Ok(Stream(register(socket)?))
    }
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        loop {
            let mut ready = ready!(self.0.poll_read_ready(context))?;
            match ready.try_io(|socket| socket.get_ref().read(buffer.initialize_unfilled())) {
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(read) => return Poll::Ready(read.map(|n| buffer.advance(n))),
                Err(_would_block) => {}
            }
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        loop {
            let mut ready = ready!(self.0.poll_write_ready(context))?;
            let sent =
                ready.try_io(|socket| Ok(send(socket.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)?));
            match sent {
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(sent) => return Poll::Ready(sent),
                Err(_would_block) => {}
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(shutdown(self.0.as_raw_fd(), Shutdown::Write)?))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.get_ref().as_fd()
    }
}

#[cfg(test)]
mod tests;
