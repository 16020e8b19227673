//! Frames to the guest, which are queued while the socket is full.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, IoSlice, Write};

use nix::sys::socket::{setsockopt, sockopt};
use vgpu_proto::frame::Header;

/// Small frames are gathered in chunks of about this many bytes.
const CHUNK: usize = 64 * 1024;

/// Requested size in bytes of the socket's send buffer.
const SEND_BUFFER: usize = 1024 * 1024;

/// Maximum number of slices in one write.
const SLICES: usize = 16;

#[derive(Debug)]
enum Chunk<B> {
    Bytes(Vec<u8>),
    Block(B),
}

impl<B: AsRef<[u8]>> Chunk<B> {
    fn bytes(&self) -> &[u8] {
        match self {
            Chunk::Bytes(bytes) => bytes,
            Chunk::Block(block) => block.as_ref(),
        }
    }
}

/// Writes frames to a nonblocking socket. Large data is in blocks, which are dropped when they are
/// written.
#[derive(Debug)]
pub struct Writer<B> {
    socket: File,
    queue: VecDeque<Chunk<B>>,
    /// Number of bytes of the first chunk that are written.
    written: usize,
    queued: usize,
    spare: Vec<u8>,
}

impl<B: AsRef<[u8]>> Writer<B> {
    /// Writes to the guest's socket, which must be nonblocking.
    pub fn new(socket: File) -> Writer<B> {
        // A large buffer means few wake-ups; the system may grant less.
        let _ = setsockopt(&socket, sockopt::SndBuf, &SEND_BUFFER);
        Writer {
            socket,
            queue: VecDeque::new(),
            written: 0,
            queued: 0,
            spare: Vec::new(),
        }
    }

    /// Number of bytes that the socket has not accepted yet.
    pub fn queued(&self) -> usize {
        self.queued
    }

    /// Queues a frame with a small bulk part. Large data uses [`Writer::push_block`].
    pub fn push(&mut self, header: Header, args: &[u8], bulk: &[u8]) {
        let header = header.to_bytes();
        let len = header.len() + args.len() + bulk.len();
        let open = matches!(self.queue.back(), Some(Chunk::Bytes(b)) if b.len() + len <= CHUNK);
        if !open {
            let mut fresh = std::mem::take(&mut self.spare);
            fresh.clear();
            self.queue.push_back(Chunk::Bytes(fresh));
        }
        if let Some(Chunk::Bytes(bytes)) = self.queue.back_mut() {
            bytes.extend_from_slice(&header);
            bytes.extend_from_slice(args);
            bytes.extend_from_slice(bulk);
        }
        self.queued += len;
    }

    /// Queues a frame whose bulk part is a block.
    pub fn push_block(&mut self, header: Header, block: B) {
        self.push(header, &[], &[]);
        self.queued += block.as_ref().len();
        self.queue.push_back(Chunk::Block(block));
    }

    /// Writes as much as the socket accepts.
    ///
    /// # Errors
    /// The error of the socket, also if the guest has closed it.
    pub fn flush(&mut self) -> io::Result<()> {
        while !self.queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); SLICES];
            let mut n = 0;
            for (slice, chunk) in slices.iter_mut().zip(&self.queue) {
                let skip = if n == 0 { self.written } else { 0 };
                *slice = IoSlice::new(&chunk.bytes()[skip..]);
                n += 1;
            }
            match self.socket.write_vectored(&slices[..n]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => self.took(written),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn took(&mut self, mut bytes: usize) {
        self.queued -= bytes;
        while let Some(first) = self.queue.front() {
            let rest = first.bytes().len() - self.written;
            if bytes < rest {
                self.written += bytes;
                return;
            }
            bytes -= rest;
            self.written = 0;
            if let Some(Chunk::Bytes(spare)) = self.queue.pop_front() {
                self.spare = spare;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use vgpu_proto::cuda::CuResult;

    #[test]
    fn frames_leave_in_order_through_a_full_socket() {
        let (mut guest, ours) = UnixStream::pair().expect("a socket pair");
        ours.set_nonblocking(true).expect("nonblocking");
        guest.set_nonblocking(true).expect("nonblocking");
        let mut writer = Writer::<Vec<u8>>::new(File::from(OwnedFd::from(ours)));
        let mut expected = Vec::new();
        for id in 0..2_000u64 {
            let bulk = vec![id as u8; (id % 700) as usize];
            let header = Header::reply(1, 0, CuResult::SUCCESS, id, 2, bulk.len());
            writer.push(header, &[1, 2], &bulk);
            expected.extend_from_slice(&header.to_bytes());
            expected.extend_from_slice(&[1, 2]);
            expected.extend_from_slice(&bulk);
        }
        assert_eq!(writer.queued(), expected.len());
        let mut got = Vec::new();
        let mut buffer = [0u8; 10_000];
        while got.len() < expected.len() {
            writer.flush().expect("write");
            match guest.read(&mut buffer) {
                Ok(n) => got.extend_from_slice(&buffer[..n]),
                Err(e) => assert_eq!(e.kind(), io::ErrorKind::WouldBlock),
            }
        }
        assert!(got == expected);
        assert_eq!(writer.queued(), 0);
    }
}
