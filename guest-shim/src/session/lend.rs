//! Lending of pages: sends large bulk data without copying the data into the socket.
//!
//! `vmsplice` puts references to the program's pages into a pipe, and `splice` moves the references
//! into the socket. The worker's receive then makes the only copy. The pages must not change before
//! the worker has received their bytes: either the program does not change the pages, or the caller
//! waits until the worker has received the bytes.
//!
//! Only Unix sockets accept pages (several at once since Linux 6.5, one by one before). For other
//! sockets, and if the system refuses, nothing is lent and the caller writes as usual.

use std::io::{Error, ErrorKind, Result};
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::sys::{self, UserMemory};

/// Requested size of the socket's send buffer, in bytes. A larger buffer runs empty less often, and
/// each time costs a wakeup.
const SEND_BUFFER: usize = 1024 * 1024;
/// Size of the pipe, in bytes: the limit of an unprivileged process.
const PIPE: usize = 1024 * 1024;
/// Smallest free space for lending, in bytes, in the pipe (the kernel limits all pipes of a user
/// together) and in the socket. With less space, the system calls cost more time than lending
/// saves.
const LEAST: usize = 64 * 1024;
/// Upper bound, in bytes, of the kernel's bookkeeping for one call of `lend`, which counts against
/// the socket's buffer.
const BOOKS: usize = 32 * 1024;

/// The pipe between the program's memory and the socket. Used only under the outbox's lock.
#[derive(Debug)]
pub(super) struct Lender {
    /// Reading and writing end; -1 if there is no pipe.
    pipe: [RawFd; 2],
    /// Capacity of the pipe, in bytes.
    holds: usize,
    /// Capacity of the socket, in bytes.
    room: usize,
    refused: AtomicBool,
}

impl Lender {
    /// Creates a lender for a connected socket.
    pub(super) fn new(socket: RawFd) -> Lender {
        let none = Lender {
            pipe: [-1; 2],
            holds: 0,
            room: 0,
            refused: AtomicBool::new(true),
        };
        if !sys::is_unix(socket) {
            return none;
        }
        let room = sys::set_send_buffer(socket, SEND_BUFFER);
        let Ok((pipe, holds)) = sys::pipe(PIPE) else {
            return none;
        };
        Lender {
            pipe,
            holds,
            room,
            refused: AtomicBool::new(holds < LEAST || room < 2 * LEAST + BOOKS),
        }
    }

    /// The descriptors, -1 for none.
    pub(super) fn descriptors(&self) -> [RawFd; 2] {
        self.pipe
    }

    /// Whether memory can be lent.
    pub(super) fn willing(&self) -> bool {
        !self.refused.load(Ordering::Relaxed)
    }

    /// Moves the first pages of `memory` into the socket and returns the number of bytes. Never
    /// blocks.
    ///
    /// # Errors
    /// `WouldBlock` when the socket is full. Any other error: this memory cannot be lent, or the
    /// socket is broken, which the next write reports.
    pub(super) fn lend(&self, socket: RawFd, memory: UserMemory) -> Result<usize> {
        // A splice into a full socket blocks, and no flag prevents that. Therefore only as many
        // bytes are moved as the socket has space for. No other thread writes to the socket
        // meanwhile.
        let room = self.room.saturating_sub(sys::unread(socket)? + BOOKS);
        if room < memory.len.min(LEAST) {
            return Err(ErrorKind::WouldBlock.into());
        }
        let held = match sys::vmsplice(self.pipe[1], memory.first(room.min(self.holds))) {
            Ok(0) => return Err(Error::from_raw_os_error(libc::EFAULT)),
            Ok(n) => n,
            Err(e) => {
                if e.raw_os_error() != Some(libc::EFAULT) {
                    self.refused.store(true, Ordering::Relaxed);
                }
                return Err(e);
            }
        };
        let mut moved = 0;
        while moved < held {
            match sys::splice(self.pipe[0], socket, held - moved) {
                Ok(n) if n > 0 => moved += n,
                stopped => {
                    // The bytes that the socket did not take stay in the pipe, which is not used
                    // again.
                    self.refused.store(true, Ordering::Relaxed);
                    if moved > 0 {
                        break;
                    }
                    return Err(stopped.err().unwrap_or(ErrorKind::WriteZero.into()));
                }
            }
        }
        Ok(moved)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read as _;
    use std::os::fd::AsRawFd as _;
    use std::os::unix::net::UnixStream;

    fn memory(bytes: &mut [u8]) -> UserMemory {
        UserMemory {
            at: bytes.as_mut_ptr(),
            len: bytes.len(),
        }
    }

    #[test]
    fn a_full_socket_refuses_and_all_bytes_arrive_in_order() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let lender = Lender::new(ours.as_raw_fd());
        if !lender.willing() {
            return;
        }
        let mut bytes: Vec<u8> = (0..8 * SEND_BUFFER as u32)
            .map(|i| (i * 31 % 251) as u8)
            .collect();
        let mut rest = memory(&mut bytes).skip(5);
        let mut got = vec![bytes[0]; 5];
        got.copy_from_slice(&bytes[..5]);
        while rest.len > 0 {
            match lender.lend(ours.as_raw_fd(), rest) {
                Ok(n) => rest = rest.skip(n),
                Err(e) => {
                    // The call did not block: no other thread reads the socket.
                    assert_eq!(e.kind(), ErrorKind::WouldBlock);
                    let mut some = vec![0; SEND_BUFFER];
                    let n = theirs.read(&mut some).expect("bytes");
                    got.extend_from_slice(&some[..n]);
                }
            }
        }
        drop(ours);
        theirs.read_to_end(&mut got).expect("the rest");
        assert!(got == bytes);
    }

    #[test]
    fn what_cannot_be_lent_is_refused_and_other_memory_still_is() {
        let (ours, mut theirs) = UnixStream::pair().expect("a socket pair");
        let lender = Lender::new(ours.as_raw_fd());
        if !lender.willing() {
            return;
        }
        let nowhere = UserMemory {
            at: std::ptr::without_provenance_mut(4096),
            len: LEAST,
        };
        let refused = lender
            .lend(ours.as_raw_fd(), nowhere)
            .map_err(|e| e.raw_os_error());
        assert_eq!(refused, Err(Some(libc::EFAULT)));
        let mut bytes = vec![7; LEAST];
        assert_eq!(
            lender.lend(ours.as_raw_fd(), memory(&mut bytes)).ok(),
            Some(LEAST)
        );
        let mut got = vec![0; LEAST];
        theirs.read_exact(&mut got).expect("bytes");
        assert!(got == bytes);
    }

    #[test]
    fn other_sockets_borrow_nothing() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
        assert!(!Lender::new(socket.as_raw_fd()).willing());
    }
}
