//! Reads frames from the data socket. The reader can stop at any byte and continue later.
//!
//! Bulk bytes of a reply are received directly into the memory of the program; all other bytes pass
//! through one buffer. The reader checks each announced length against the request before it stores
//! a byte.

use std::io::ErrorKind;
use std::os::fd::RawFd;

use vgpu_proto::call::Notice;
use vgpu_proto::frame::{HEADER_LEN, Header};
use vgpu_proto::limits::MAX_ARGS;

use crate::sys::{self, UserMemory};

/// Size of the buffer in bytes: the largest header and arguments fit, or many small frames.
const BUFFER: usize = 2 * (HEADER_LEN + MAX_ARGS);

/// Number of bytes that are received into the buffer after a bulk part: the next header, and small
/// frames. More bytes would usually belong to the next bulk part, and would have to be copied out
/// of the buffer.
const BEHIND_BULK: usize = 4 * 1024;

/// The result of one step of reading.
#[derive(Debug)]
pub(crate) enum Step {
    /// A frame or bytes were read or handled; there may be more.
    Frame,
    /// No bytes are available now.
    Nothing,
    /// The connection cannot be used any more, for this reason.
    Closed(String),
}

/// Receives the frames that a [`FrameReader`] reads. All calls are made under the reader's lock and
/// must not block.
pub(crate) trait Sink {
    /// Takes the place of the next `len` bulk bytes of reply `id`; the next call continues behind
    /// them. `None`: the request has no room for so many.
    fn room(&self, id: u64, len: usize) -> Option<UserMemory>;

    /// The program has unmapped the place of bulk bytes, which are dropped.
    fn unmapped(&self);

    /// Output of device `printf`.
    fn printed(&self, text: &[u8]);

    /// A frame whose bulk bytes are in their place.
    ///
    /// # Errors
    /// Why the connection cannot be used any more.
    fn frame(&self, header: Header, args: Vec<u8>) -> Result<(), String>;
}

/// Destination of the bulk bytes of the current frame.
#[derive(Debug)]
enum Into {
    Program(UserMemory),
    Stdout(Vec<u8>),
    /// The program has unmapped its memory. The bytes are read from the socket and dropped.
    Nowhere,
}

#[derive(Debug)]
struct Bulk {
    header: Header,
    args: Vec<u8>,
    into: Into,
    left: usize,
}

/// The state of reading between socket and frames.
#[derive(Debug)]
pub(crate) struct FrameReader {
    socket: RawFd,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    bulk: Option<Bulk>,
}

const NO_MEMORY: UserMemory = UserMemory {
    at: std::ptr::null_mut(),
    len: 0,
};

impl FrameReader {
    /// The state before the first byte of a socket, which must stay open.
    pub(crate) fn new(socket: RawFd) -> FrameReader {
        FrameReader {
            socket,
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            bulk: None,
        }
    }

    /// Handles one frame of the buffer, or receives once.
    pub(crate) fn step(&mut self, sink: &impl Sink, wait: bool) -> Step {
        match self.try_step(sink, wait) {
            Ok(step) => step,
            Err(why) => Step::Closed(why),
        }
    }

    fn try_step(&mut self, sink: &impl Sink, wait: bool) -> Result<Step, String> {
        if let Some(bulk) = self.bulk.take() {
            return self.take_bulk(sink, bulk, wait);
        }
        let there = &self.buffer[self.start..self.end];
        let Some(head) = there.first_chunk::<HEADER_LEN>() else {
            return self.fill(wait);
        };
        let header = Header::parse(head).map_err(|e| e.to_string())?;
        let whole = HEADER_LEN + header.args_len();
        if there.len() < whole {
            return self.fill(wait);
        }
        let args = there[HEADER_LEN..whole].to_vec();
        self.start += whole;
        if header.bulk_len() == 0 {
            return sink.frame(header, args).map(|()| Step::Frame);
        }
        let into = match Notice::from_wire(header.op()) {
            Some(Notice::Stdout) => Into::Stdout(Vec::with_capacity(header.bulk_len())),
            Some(_) => return Err("a notice carries data it should not".to_owned()),
            None => Into::Program(
                sink.room(header.id(), header.bulk_len())
                    .ok_or("a reply brings more data than was asked for")?,
            ),
        };
        self.bulk = Some(Bulk {
            header,
            args,
            into,
            left: header.bulk_len(),
        });
        Ok(Step::Frame)
    }

    /// Receives more bytes into the buffer.
    fn fill(&mut self, wait: bool) -> Result<Step, String> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let got = sys::receive(self.socket, NO_MEMORY, &mut self.buffer[self.end..], wait);
        received(got).map(|n| match n {
            Some(n) => {
                self.end += n;
                Step::Frame
            }
            None => Step::Nothing,
        })
    }

    /// Takes bulk bytes from the buffer or, if the buffer is empty, from the socket.
    fn take_bulk(&mut self, sink: &impl Sink, mut bulk: Bulk, wait: bool) -> Result<Step, String> {
        let buffered = &self.buffer[self.start..self.end];
        if !buffered.is_empty() {
            let n = buffered.len().min(bulk.left);
            bulk.store(&buffered[..n]);
            self.start += n;
        } else {
            let (direct, room) = match bulk.into {
                Into::Program(memory) => (memory, BEHIND_BULK),
                _ => (NO_MEMORY, BUFFER),
            };
            (self.start, self.end) = (0, 0);
            match sys::receive(self.socket, direct, &mut self.buffer[..room], wait) {
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
                    sink.unmapped();
                    bulk.into = Into::Nowhere;
                }
                got => match received(got)? {
                    None => {
                        self.bulk = Some(bulk);
                        return Ok(Step::Nothing);
                    }
                    Some(n) => {
                        let stored = n.min(direct.len);
                        if let Into::Program(memory) = bulk.into {
                            bulk.into = Into::Program(memory.skip(stored));
                            bulk.left -= stored;
                        }
                        self.end = n - stored;
                    }
                },
            }
        }
        if bulk.left > 0 {
            self.bulk = Some(bulk);
            return Ok(Step::Frame);
        }
        if let Into::Stdout(bytes) = bulk.into {
            sink.printed(&bytes);
            return Ok(Step::Frame);
        }
        sink.frame(bulk.header, bulk.args).map(|()| Step::Frame)
    }
}

impl Bulk {
    fn store(&mut self, bytes: &[u8]) {
        match &mut self.into {
            Into::Program(memory) => {
                // SAFETY: `room` has checked that the request expects these bytes at this place.
                // The contract of the CUDA call makes the place valid.
                unsafe { memory.at.copy_from(bytes.as_ptr(), bytes.len()) };
                *memory = memory.skip(bytes.len());
            }
            Into::Stdout(text) => text.extend_from_slice(bytes),
            Into::Nowhere => {}
        }
        self.left -= bytes.len();
    }
}

/// The number of bytes received; `None` if no bytes are available now.
fn received(got: std::io::Result<usize>) -> Result<Option<usize>, String> {
    match got {
        Ok(0) => Err("the connection was closed".to_owned()),
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(format!("the connection failed ({e})")),
    }
}
