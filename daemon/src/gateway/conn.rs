//! A guest's connection over any kind of socket. Reads never take more than requested, the caller
//! sets the deadline of writes, and the descriptor can be handed on.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{MsgFlags, send};
use tokio::io::unix::AsyncFd;

use crate::system::guarded::{Guarded, register};
use crate::system::{set_nonblocking, shut_down};

/// One connected stream socket.
#[derive(Debug)]
pub struct Conn {
    fd: AsyncFd<Guarded>,
}

impl Conn {
    /// Takes over a connected stream socket. Must be called within the runtime.
    ///
    /// # Errors
    /// If the runtime cannot watch the socket.
    pub fn new(fd: Guarded) -> io::Result<Conn> {
        set_nonblocking(&fd, true)?;
        Ok(Conn { fd: register(fd)? })
    }

    /// Reads the available bytes, at most the length of the buffer; 0 at the end of the stream.
    ///
    /// # Errors
    /// [`Attached`](crate::system::guarded::Attached), or an error of the socket.
    pub async fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            let mut ready = self.fd.readable().await?;
            let got = ready.try_io(|fd| fd.get_ref().read(buffer));
            match got {
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(result) => return result,
                Err(_would_block) => {}
            }
        }
    }

    /// Fills the buffer and reads not one byte more.
    ///
    /// # Errors
    /// [`io::ErrorKind::UnexpectedEof`] if the stream ends before the buffer is full, or an error
    /// of the socket.
    pub async fn read_exact(&self, buffer: &mut [u8]) -> io::Result<()> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.read(&mut buffer[filled..]).await? {
                0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                n => filled += n,
            }
        }
        Ok(())
    }

    /// Writes all bytes.
    ///
    /// # Errors
    /// An error of the socket. A closed peer is an error and raises no SIGPIPE.
    pub async fn write_all(&self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            let mut ready = self.fd.writable().await?;
            let sent = ready.try_io(|fd| Ok(send(fd.as_raw_fd(), bytes, MsgFlags::MSG_NOSIGNAL)?));
            match sent {
                Ok(Ok(n)) => bytes = &bytes[n..],
                Ok(Err(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                Ok(Err(e)) => return Err(e),
                Err(_would_block) => {}
            }
        }
        Ok(())
    }

    /// Returns a function that reports whether the peer still has its end open. Any thread may call
    /// the function, which does not wait.
    ///
    /// # Errors
    /// If vgpud has no descriptor left.
    pub fn presence(&self) -> io::Result<impl FnOnce() -> bool + Send + 'static> {
        let fd = self.fd.get_ref().try_clone()?;
        Ok(move || {
            // poll(2) always reports POLLHUP, without a request and with unread bytes in the
            // socket.
            let mut asked = [PollFd::new(fd.as_fd(), PollFlags::empty())];
            !matches!(poll(&mut asked, PollTimeout::ZERO), Ok(n) if n > 0)
        })
    }

    /// Ends both directions at once, for every process that holds the socket.
    pub fn shutdown(&self) {
        shut_down(self.fd.get_ref());
    }

    /// Returns the descriptor of the socket, in blocking mode, for the next owner.
    ///
    /// # Errors
    /// If the mode cannot be changed.
    pub fn into_fd(self) -> io::Result<Guarded> {
        let fd = self.fd.into_inner();
        set_nonblocking(&fd, false)?;
        Ok(fd)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    #[tokio::test]
    async fn reads_exactly_what_was_asked_and_leaves_the_rest() {
        use std::io::{Read, Write};
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let conn = Conn::new(ours.into()).unwrap();
        guest.write_all(b"headbody").unwrap();
        let mut head = [0; 4];
        conn.read_exact(&mut head).await.unwrap();
        assert_eq!(&head, b"head");
        let rest = conn.into_fd().unwrap();
        let mut rest = UnixStream::from(rest.as_fd().try_clone_to_owned().unwrap());
        let mut body = [0; 4];
        rest.read_exact(&mut body).unwrap();
        assert_eq!(&body, b"body", "nothing was read ahead");
        rest.write_all(b"ok").unwrap();
        let mut ok = [0; 2];
        guest.read_exact(&mut ok).unwrap();
    }

    #[tokio::test]
    async fn a_peer_is_there_until_it_closes_whatever_it_sent() {
        use std::io::Write;
        let (mut guest, ours) = UnixStream::pair().unwrap();
        let conn = Conn::new(ours.into()).unwrap();
        assert!(conn.presence().unwrap()());
        guest.write_all(b"goodbye").unwrap();
        assert!(conn.presence().unwrap()());
        drop(guest);
        assert!(!conn.presence().unwrap()());
    }

    #[tokio::test]
    async fn an_early_end_and_a_closed_peer_are_errors() {
        let (guest, ours) = UnixStream::pair().unwrap();
        let conn = Conn::new(ours.into()).unwrap();
        drop(guest);
        let end = conn.read_exact(&mut [0; 4]).await.unwrap_err();
        assert_eq!(end.kind(), io::ErrorKind::UnexpectedEof);
        assert!(conn.write_all(b"x").await.is_err());
    }
}
