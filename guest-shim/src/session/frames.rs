//! Frames from bytes: a reader that can stop anywhere and go on later.
//!
//! Bulk bytes of a reply are received straight into the memory of the program; everything else
//! passes through one buffer. What the worker announces is checked against what was asked for
//! before a byte is stored.

use std::io::ErrorKind;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::ops::Progress;
use vgpu_proto::call::{Notice, Op};
use vgpu_proto::codec;
use vgpu_proto::frame::{FLAG_MORE, HEADER_LEN, Header};
use vgpu_proto::limits::MAX_ARGS;

use super::inbox::Answer;
use super::{PRINTED, Session};
use crate::log::{self, Level};
use crate::sys::{self, UserMemory};

/// Room for the largest header and arguments, and for many small frames at once.
const BUFFER: usize = 2 * (HEADER_LEN + MAX_ARGS);

/// Bytes read into the buffer behind a bulk part: the next header, and small frames. More would
/// most often be the next bulk part, which had to be copied out of the buffer again.
const BEHIND_BULK: usize = 4 * 1024;

/// What one step of reading did.
#[derive(Debug)]
pub(crate) enum Step {
    /// Something was read or handled; there may be more.
    Frame,
    /// Nothing is there now.
    Nothing,
    /// The connection is of no more use, and why.
    Closed(String),
}

/// Where the bulk bytes of the current frame go.
#[derive(Debug)]
enum Into {
    Program(UserMemory),
    Stdout(Vec<u8>),
    /// The program's memory is gone (it was unmapped); the bytes must still be taken off the wire.
    Nowhere,
}

#[derive(Debug)]
struct Bulk {
    header: Header,
    args: Vec<u8>,
    into: Into,
    left: usize,
}

/// The bytes between socket and frames.
#[derive(Debug)]
pub(crate) struct FrameReader {
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
    /// Nothing read yet.
    pub(crate) fn new() -> FrameReader {
        FrameReader {
            buffer: vec![0; BUFFER],
            start: 0,
            end: 0,
            bulk: None,
        }
    }

    /// Handles one frame that is in the buffer, or reads once.
    pub(crate) fn step(&mut self, session: &Session, wait: bool) -> Step {
        match self.try_step(session, wait) {
            Ok(step) => step,
            Err(why) => Step::Closed(why),
        }
    }

    fn try_step(&mut self, session: &Session, wait: bool) -> Result<Step, String> {
        if let Some(bulk) = self.bulk.take() {
            return self.take_bulk(session, bulk, wait);
        }
        let there = &self.buffer[self.start..self.end];
        let Some(head) = there.first_chunk::<HEADER_LEN>() else {
            return self.fill(session, wait);
        };
        let header = Header::parse(head).map_err(|e| e.to_string())?;
        let whole = HEADER_LEN + header.args_len();
        if there.len() < whole {
            return self.fill(session, wait);
        }
        let args = there[HEADER_LEN..whole].to_vec();
        self.start += whole;
        if header.bulk_len() == 0 {
            return dispatch(session, header, args).map(|()| Step::Frame);
        }
        let into = match Notice::from_wire(header.op()) {
            Some(Notice::Stdout) => Into::Stdout(Vec::with_capacity(header.bulk_len())),
            Some(_) => return Err("a notice carries data it should not".to_owned()),
            None => Into::Program(
                session
                    .inbox
                    .room(header.id(), header.bulk_len())
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

    /// Receives more into the buffer.
    fn fill(&mut self, session: &Session, wait: bool) -> Result<Step, String> {
        self.buffer.copy_within(self.start..self.end, 0);
        (self.start, self.end) = (0, self.end - self.start);
        let got = sys::receive(session.data, NO_MEMORY, &mut self.buffer[self.end..], wait);
        received(got).map(|n| match n {
            Some(n) => {
                self.end += n;
                Step::Frame
            }
            None => Step::Nothing,
        })
    }

    /// Takes bulk bytes, first from the buffer, then from the socket.
    fn take_bulk(&mut self, session: &Session, mut bulk: Bulk, wait: bool) -> Result<Step, String> {
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
            match sys::receive(session.data, direct, &mut self.buffer[..room], wait) {
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) => {
                    session.failed_later(CuResult::INVALID_VALUE);
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
            // The reader's lock is held here.
            PRINTED.add(&bytes);
            return Ok(Step::Frame);
        }
        dispatch(session, bulk.header, bulk.args).map(|()| Step::Frame)
    }
}

impl Bulk {
    fn store(&mut self, bytes: &[u8]) {
        match &mut self.into {
            Into::Program(memory) => {
                // SAFETY: `room` made sure that the request asked for these bytes at this place;
                // that the place is valid is the contract of the call that asked.
                unsafe { memory.at.copy_from(bytes.as_ptr(), bytes.len()) };
                *memory = memory.skip(bytes.len());
            }
            Into::Stdout(text) => text.extend_from_slice(bytes),
            Into::Nowhere => {}
        }
        self.left -= bytes.len();
    }
}

/// Bytes received, `None` when nothing is there now.
fn received(got: std::io::Result<usize>) -> Result<Option<usize>, String> {
    match got {
        Ok(0) => Err("the connection was closed".to_owned()),
        Ok(n) => Ok(Some(n)),
        Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
        Err(e) => Err(format!("the connection failed ({e})")),
    }
}

/// The host kept no more of what kernels printed.
fn printf_dropped(bytes: u64) {
    let text =
        format!("{bytes} bytes of device printf were dropped: wait for the device more often");
    log::line(Level::Error, &text);
}

fn dispatch(session: &Session, header: Header, args: Vec<u8>) -> Result<(), String> {
    match Notice::from_wire(header.op()) {
        Some(Notice::Progress) => {
            let progress: Progress = codec::decode(&args).map_err(|e| e.to_string())?;
            session.progress(progress);
        }
        Some(Notice::Depth) => session.depth(codec::decode(&args).map_err(|e| e.to_string())?),
        Some(Notice::AsyncError) => session.failed_later(header.status()),
        Some(Notice::Stdout) => printf_dropped(header.id()),
        Some(Notice::HostFunc) => session.host_function(header.id()),
        None if Op::from_wire(header.op()).is_none() => {
            return Err(format!(
                "a reply has the unknown operation {:#06x}",
                header.op()
            ));
        }
        None if header.flags() & FLAG_MORE != 0 => {}
        None => {
            let answer = Answer {
                status: header.status(),
                args,
                filled: 0,
            };
            if !session.inbox.complete(session, header.id(), answer) {
                return Err(
                    "a reply answers nothing that was asked, or brings too little".to_owned(),
                );
            }
        }
    }
    Ok(())
}
