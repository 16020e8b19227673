//! The control socket between vgpud and one worker. Carries whole packets; vgpud never waits on it.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, sendmsg, socketpair,
};
use vgpu_proto::codec;
use vgpu_proto::limits::MAX_WORKER_MESSAGE;
use vgpu_proto::worker::{FromWorker, ToWorker};

use crate::system::closer::Closer;
use crate::system::guarded::{Attached, Guarded};
use crate::system::{rights, set_nonblocking};

/// vgpud's end of a worker's control socket.
#[derive(Debug)]
pub struct Channel {
    fd: Guarded,
}

/// The result of a read.
#[derive(Debug)]
pub enum Received {
    /// A message.
    Message(FromWorker),
    /// No message waits.
    Empty,
    /// The worker closed its end, or has ended.
    Closed,
    /// A packet that is not a message: the worker is broken or hostile.
    Malformed(String),
}

/// Why a message did not reach a worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    /// The worker does not read, so its socket is full.
    #[error(
        "the worker did not read what vgpud told it: it was stopped, or the host is overloaded"
    )]
    Full,
    /// The worker closed its end, or has ended.
    #[error("the worker closed its control socket")]
    Closed,
    /// Any other failure, as text.
    #[error("cannot send to the worker: {0}")]
    Other(String),
}

impl Channel {
    /// Creates a socket pair: vgpud's end, and the end that becomes the worker's descriptor 3.
    ///
    /// # Errors
    /// If vgpud has no descriptor left.
    pub fn pair() -> io::Result<(Channel, OwnedFd)> {
        Channel::pair_with(Arc::default())
    }

    /// As [`Channel::pair`]; `closer` closes vgpud's end.
    ///
    /// # Errors
    /// As [`Channel::pair`].
    pub fn pair_with(closer: Arc<Closer>) -> io::Result<(Channel, OwnedFd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::Unix,
            SockType::SeqPacket,
            None,
            SockFlag::SOCK_CLOEXEC,
        )?;
        rights::refuse(&ours);
        Channel::of(Guarded::new(ours, closer), theirs)
    }

    fn of(fd: Guarded, theirs: OwnedFd) -> io::Result<(Channel, OwnedFd)> {
        set_nonblocking(&fd, true)?;
        Ok((Channel { fd }, theirs))
    }

    /// Sends one message with the descriptors that belong to it. Never waits.
    ///
    /// # Errors
    /// [`SendError`]. No part of the message was sent.
    pub fn send(&self, message: &ToWorker, fds: &[BorrowedFd<'_>]) -> Result<(), SendError> {
        let bytes = codec::encode(message).map_err(|e| SendError::Other(e.to_string()))?;
        let raw: Vec<RawFd> = fds.iter().map(AsRawFd::as_raw_fd).collect();
        let rights = [ControlMessage::ScmRights(&raw)];
        let control: &[ControlMessage<'_>] = if raw.is_empty() { &[] } else { &rights };
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        loop {
            let sent = sendmsg::<()>(
                self.fd.as_raw_fd(),
                &[IoSlice::new(&bytes)],
                control,
                flags,
                None,
            );
            return match sent {
                Ok(_) => Ok(()),
                Err(Errno::EINTR) => continue,
                Err(Errno::EAGAIN) => Err(SendError::Full),
                Err(Errno::EPIPE | Errno::ECONNRESET | Errno::ENOTCONN) => Err(SendError::Closed),
                Err(e) => Err(SendError::Other(e.to_string())),
            };
        }
    }

    /// Reads one message, if one waits. The caller keeps `buffer` between calls as scratch space.
    ///
    /// A message with attached descriptors is malformed and stays in the socket, so that no further
    /// message can be read.
    pub fn receive(&self, buffer: &mut Vec<u8>) -> Received {
        use io::ErrorKind::{ConnectionReset, Interrupted, WouldBlock};
        buffer.resize(MAX_WORKER_MESSAGE, 0);
        loop {
            return match self.fd.read_packet(buffer) {
                Ok(0) => Received::Closed,
                Ok(n) if n > MAX_WORKER_MESSAGE => {
                    Received::Malformed(format!("a packet of {n} bytes"))
                }
                Ok(n) => match codec::decode(&buffer[..n]) {
                    Ok(message) => Received::Message(message),
                    Err(e) => Received::Malformed(e.to_string()),
                },
                // The worker ended without reading all messages of vgpud. The kernel reports this
                // once, before it delivers the last messages of the worker.
                Err(e) if matches!(e.kind(), Interrupted | ConnectionReset) => continue,
                Err(e) if e.kind() == WouldBlock => Received::Empty,
                Err(e) if Attached::is(&e) => Received::Malformed(Attached.to_string()),
                Err(_) => Received::Closed,
            };
        }
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::socket::send;

    #[test]
    fn messages_and_descriptors_cross_whole() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut buffer = Vec::new();
        assert!(matches!(ours.receive(&mut buffer), Received::Empty));

        let null = std::fs::File::open("/dev/null").unwrap();
        ours.send(&ToWorker::Data, &[null.as_fd()]).unwrap();

        let wire = codec::encode(&FromWorker::Idle { epoch: 7, at_ns: 9 }).unwrap();
        send(theirs.as_raw_fd(), &wire, MsgFlags::empty()).unwrap();
        match ours.receive(&mut buffer) {
            Received::Message(FromWorker::Idle { epoch, at_ns }) => {
                assert_eq!((epoch, at_ns), (7, 9));
            }
            other => panic!("{other:?}"),
        }
        drop(theirs);
        assert!(matches!(ours.receive(&mut buffer), Received::Closed));
        assert_eq!(ours.send(&ToWorker::Shutdown, &[]), Err(SendError::Closed));
    }

    #[test]
    fn the_last_word_of_a_worker_that_left_messages_unread_is_heard() {
        let (ours, theirs) = Channel::pair().unwrap();
        ours.send(&ToWorker::Shutdown, &[]).unwrap();
        let wire = codec::encode(&FromWorker::Idle { epoch: 7, at_ns: 9 }).unwrap();
        send(theirs.as_raw_fd(), &wire, MsgFlags::empty()).unwrap();
        drop(theirs);
        let mut buffer = Vec::new();
        let last = ours.receive(&mut buffer);
        assert!(matches!(last, Received::Message(_)), "{last:?}");
        assert!(matches!(ours.receive(&mut buffer), Received::Closed));
    }

    #[test]
    fn a_worker_that_attaches_descriptors_holds_up_nobody() {
        use crate::system::attack::{attach, does_not_sleep};
        let idle = codec::encode(&FromWorker::Idle { epoch: 7, at_ns: 9 }).unwrap();
        if rights::can_be_refused() {
            let (_ours, theirs) = Channel::pair().unwrap();
            let refused = attach(&theirs, &idle, MsgFlags::empty()).unwrap_err();
            assert_eq!(refused.kind(), io::ErrorKind::PermissionDenied);
        }
        // As on a kernel that cannot refuse descriptors.
        let (ours, theirs) = Channel::pair().unwrap();
        let ours = ours.as_fd().try_clone_to_owned().unwrap();
        rights::allow(&ours);
        let (ours, theirs) = Channel::of(Guarded::new(ours, Arc::default()), theirs).unwrap();
        send(theirs.as_raw_fd(), &idle, MsgFlags::empty()).unwrap();
        let _peer = attach(&theirs, &idle, MsgFlags::empty()).unwrap();
        does_not_sleep(move || {
            let mut buffer = Vec::new();
            assert!(matches!(ours.receive(&mut buffer), Received::Message(_)));
            for _ in 0..2 {
                match ours.receive(&mut buffer) {
                    Received::Malformed(why) => assert_eq!(why, Attached.to_string()),
                    other => panic!("{other:?}"),
                }
            }
        });
    }

    #[test]
    fn a_packet_that_is_no_message_is_told_apart() {
        let (ours, theirs) = Channel::pair().unwrap();
        let mut buffer = Vec::new();
        send(theirs.as_raw_fd(), &[0xff; 40], MsgFlags::empty()).unwrap();
        assert!(matches!(ours.receive(&mut buffer), Received::Malformed(_)));
        send(
            theirs.as_raw_fd(),
            &vec![0; MAX_WORKER_MESSAGE + 1],
            MsgFlags::empty(),
        )
        .unwrap();
        assert!(matches!(ours.receive(&mut buffer), Received::Malformed(_)));
    }

    #[test]
    fn a_worker_that_does_not_read_never_blocks_the_sender() {
        let (ours, _theirs) = Channel::pair().unwrap();
        let mut sent = 0;
        let refused = loop {
            match ours.send(&ToWorker::Revoke { epoch: sent }, &[]) {
                Ok(()) => sent += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(refused, SendError::Full);
        assert!(sent > 8, "{sent}");
    }
}
