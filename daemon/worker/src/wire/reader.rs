//! Frames from the guest. Every length is checked before memory is allocated for it.

use std::fs::File;
use std::io::{self, IoSliceMut, Read};
use std::os::fd::{AsFd, BorrowedFd};

use vgpu_proto::call::{Op, Request, RequestError};
use vgpu_proto::frame::{FrameError, HEADER_LEN, Header};
use vgpu_proto::limits::MAX_ARGS;

/// Number of bytes of one read; enough for a header with the largest arguments.
const BUFFER: usize = 256 * 1024;
const _: () = assert!(BUFFER >= HEADER_LEN + MAX_ARGS);

/// Number of bytes read into the buffer after a bulk part: the next header, and small requests.
/// More bytes would usually be the next bulk part, which would then have to be copied.
const BEHIND_BULK: usize = 4 * 1024;

/// Memory for the bulk bytes of a frame. The default value has no bytes.
pub trait Landing: AsRef<[u8]> + AsMut<[u8]> + Default {}

impl<B: AsRef<[u8]> + AsMut<[u8]> + Default> Landing for B {}

/// A whole frame.
#[derive(Debug)]
pub struct Frame<B> {
    /// Number of the request.
    pub id: u64,
    /// The request.
    pub request: Request,
    /// Bulk bytes of the request.
    pub bulk: B,
}

/// Result of one read from the socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filled {
    /// Bytes were read, and there may be more.
    More,
    /// Bytes were read, and the socket is now empty.
    Drained,
    /// There were no bytes.
    Nothing,
    /// The guest closed its end.
    Closed,
}

/// The guest broke the protocol; the session ends with the sentence.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// A bad header.
    #[error(transparent)]
    Frame(#[from] FrameError),
    /// A bad request.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// A request number is not the next number (1, 2, 3, …).
    #[error("request {found} arrived where {expected} was due")]
    Order {
        /// The expected number.
        expected: u64,
        /// The number that arrived.
        found: u64,
    },
}

#[derive(Debug)]
struct Partial<B> {
    frame: Frame<B>,
    filled: usize,
}

impl<B> AsFd for Reader<B> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Reads frames from a nonblocking socket.
#[derive(Debug)]
pub struct Reader<B> {
    socket: File,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    partial: Option<Partial<B>>,
    next_id: u64,
}

impl<B: Landing> Reader<B> {
    /// Reads from the guest's socket, which must be nonblocking.
    pub fn new(socket: File) -> Reader<B> {
        Reader {
            socket,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            partial: None,
            next_id: 1,
        }
    }

    /// Reads once.
    ///
    /// # Errors
    /// The error of the socket.
    pub fn fill(&mut self) -> io::Result<Filled> {
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.buffer.len() - self.end < HEADER_LEN + MAX_ARGS {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let space = &mut self.buffer[self.end..];
        let mut direct = 0;
        let room;
        let read = match &mut self.partial {
            // The rest of a bulk part is read directly into its memory, the bytes after it into the
            // buffer.
            Some(partial) => {
                let rest = &mut partial.frame.bulk.as_mut()[partial.filled..];
                let space = &mut space[..BEHIND_BULK];
                direct = rest.len();
                room = direct + space.len();
                self.socket
                    .read_vectored(&mut [IoSliceMut::new(rest), IoSliceMut::new(space)])
            }
            None => {
                room = space.len();
                self.socket.read(space)
            }
        };
        let n = match read {
            Ok(0) => return Ok(Filled::Closed),
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(Filled::Nothing),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => return Ok(Filled::More),
            Err(e) if e.kind() == io::ErrorKind::ConnectionReset => return Ok(Filled::Closed),
            Err(e) => return Err(e),
        };
        if let Some(partial) = &mut self.partial {
            partial.filled += n.min(direct);
        }
        self.end += n.saturating_sub(direct);
        // Fewer bytes were read than there was room for: the socket is empty, and the next read can
        // wait for poll.
        Ok(if n == room {
            Filled::More
        } else {
            Filled::Drained
        })
    }

    /// The next complete frame, if there is one. `place` gets a request and the length of its bulk
    /// part, and returns memory of exactly that length.
    ///
    /// # Errors
    /// If the guest broke the protocol.
    pub fn next_frame(
        &mut self,
        place: impl FnOnce(&Request, usize) -> B,
    ) -> Result<Option<Frame<B>>, WireError> {
        if let Some(partial) = self.partial.take() {
            if partial.filled < partial.frame.bulk.as_ref().len() {
                self.partial = Some(partial);
                return Ok(None);
            }
            return Ok(Some(partial.frame));
        }
        let Some(header) = self.buffer[self.start..self.end].first_chunk::<HEADER_LEN>() else {
            return Ok(None);
        };
        let header = Header::parse(header)?;
        let args_at = self.start + HEADER_LEN;
        let bulk_at = args_at + header.args_len();
        if bulk_at > self.end {
            return Ok(None);
        }
        // A push of memory changes has no number, because it belongs to the request that follows.
        let unnumbered = header.id() == 0 && header.op() == Op::HostPush as u16;
        if header.id() != self.next_id && !unnumbered {
            return Err(WireError::Order {
                expected: self.next_id,
                found: header.id(),
            });
        }
        self.next_id += u64::from(!unnumbered);
        let len = header.bulk_len();
        let request = Request::decode(header.op(), &self.buffer[args_at..bulk_at], len)?;
        let mut bulk = if len == 0 {
            B::default()
        } else {
            place(&request, len)
        };
        let room = bulk.as_mut();
        debug_assert_eq!(room.len(), len);
        let here = room.len().min(self.end - bulk_at);
        room[..here].copy_from_slice(&self.buffer[bulk_at..bulk_at + here]);
        self.start = bulk_at + here;
        let frame = Frame {
            id: header.id(),
            request,
            bulk,
        };
        if here < len {
            self.partial = Some(Partial {
                frame,
                filled: here,
            });
            return Ok(None);
        }
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use vgpu_proto::call::req;
    use vgpu_proto::codec::encode;
    use vgpu_proto::cuda::{Ctx, DevPtr, Stream};
    use vgpu_proto::limits::MAX_BULK;

    fn pair() -> (UnixStream, Reader<Vec<u8>>) {
        let (ours, theirs) = UnixStream::pair().expect("a socket pair");
        theirs.set_nonblocking(true).expect("nonblocking");
        (ours, Reader::new(File::from(OwnedFd::from(theirs))))
    }

    fn heap(_: &Request, len: usize) -> Vec<u8> {
        vec![0; len]
    }

    fn copy(id: u64, bulk: &[u8]) -> Vec<u8> {
        let args = encode(&req::MemcpyHtoD {
            ctx: Ctx(1),
            stream: Stream(0),
            dst: DevPtr(2),
        })
        .expect("encodes");
        let header = Header::request(Op::MemcpyHtoD as u16, id, args.len(), bulk.len());
        [&header.to_bytes()[..], &args, bulk].concat()
    }

    #[test]
    fn frames_come_whole_however_they_are_cut() {
        let payload: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        let wire = [copy(1, &payload), copy(2, &[7; 3]), copy(3, &[])].concat();
        for step in [1usize, 31, 4096, 100_000] {
            let (mut guest, mut reader) = pair();
            let mut frames = Vec::new();
            // One byte at a time only near the edges, because the whole would take too long.
            let cuts: Vec<&[u8]> = if step == 1 {
                let (head, tail) = wire.split_at(64);
                let (middle, end) = tail.split_at(tail.len() - 200);
                head.chunks(1)
                    .chain(middle.chunks(50_000))
                    .chain(end.chunks(1))
                    .collect()
            } else {
                wire.chunks(step).collect()
            };
            for cut in cuts {
                guest.write_all(cut).expect("write");
                while let Filled::More = reader.fill().expect("read") {}
                while let Some(frame) = reader.next_frame(heap).expect("valid") {
                    frames.push((frame.id, frame.bulk));
                }
            }
            assert_eq!(frames.len(), 3, "step {step}");
            assert!(frames[0].1 == payload, "step {step}");
            assert_eq!(frames[1], (2, vec![7; 3]));
            assert_eq!(frames[2], (3, vec![]));
            drop(guest);
            assert_eq!(reader.fill().expect("read"), Filled::Closed);
        }
    }

    #[test]
    fn pushes_of_changes_may_go_without_a_number_and_nothing_else_may() {
        let push = |id: u64| {
            let header = Header::request(Op::HostPush as u16, id, 0, 3);
            [&header.to_bytes()[..], &[7; 3]].concat()
        };
        let (mut guest, mut reader) = pair();
        let wire = [push(0), copy(1, &[]), push(0), push(2), copy(3, &[])].concat();
        guest.write_all(&wire).expect("write");
        reader.fill().expect("read");
        let ids = std::iter::from_fn(|| reader.next_frame(heap).expect("valid").map(|f| f.id));
        assert_eq!(ids.collect::<Vec<_>>(), [0, 1, 0, 2, 3]);
        for wrong in [copy(0, &[]), push(5)] {
            guest.write_all(&wrong).expect("write");
            reader.fill().expect("read");
            let error = reader.next_frame(heap).expect_err("no number");
            assert!(error.to_string().contains("was due"), "{error}");
            (guest, reader) = pair();
        }
    }

    #[test]
    fn a_broken_protocol_is_an_error_and_takes_no_memory() {
        let over = |bulk_len: u32| {
            let mut wire = copy(1, &[]);
            wire[16..20].copy_from_slice(&bulk_len.to_le_bytes());
            wire
        };
        let mut unknown = copy(1, &[]);
        unknown[2..4].copy_from_slice(&0x7777u16.to_le_bytes());
        let mut trailing = copy(1, &[]);
        trailing[8..12].copy_from_slice(&25u32.to_le_bytes());
        trailing.push(0);
        let cases = [
            (vec![0u8; HEADER_LEN], "magic"),
            (over(MAX_BULK as u32 + 1), "at most"),
            (unknown, "unknown operation"),
            (copy(2, &[]), "was due"),
            (trailing, "trailing"),
        ];
        for (wire, sentence) in cases {
            let (mut guest, mut reader) = pair();
            guest.write_all(&wire).expect("write");
            reader.fill().expect("read");
            let error = reader
                .next_frame(|_, _| panic!("took memory for a refused frame"))
                .expect_err(sentence);
            assert!(error.to_string().contains(sentence), "{error}");
        }
    }
}
