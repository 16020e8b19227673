//! The writing side: the frames of all threads in one buffer, in one order.

use std::io::ErrorKind;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::ops::Call;
use vgpu_proto::codec;
use vgpu_proto::frame::{HEADER_LEN, Header};
use vgpu_proto::limits::FLUSH_BYTES;

use super::timing::{Act, Timing};
use super::{NO_BULK, Session};
use crate::sys::{self, UserMemory};
use crate::{Cu, callback, lock, observe};

/// Memory of the program up to this size, in bytes, is copied into the buffer; larger memory is
/// written directly. For smaller memory, the copy is cheaper than a system call.
const COPY_LIMIT: usize = 8 * 1024;

/// Capacity of the buffer, in bytes.
const ROOM: usize = 4 * FLUSH_BYTES;

/// The shared buffer and its counters.
#[derive(Debug)]
pub(crate) struct Outbox {
    buffer: Vec<u8>,
    /// Whether the buffer begins within a frame, because the socket took only a part.
    cut: bool,
    /// Number of requests begun, which is also the number of the last request.
    calls: u64,
    bytes: u64,
    /// The thread that made the last calls, and the number of these calls.
    run: (usize, u64),
    timing: Timing,
}

/// Takes the lock for a request with `len` bulk bytes. Returns the lock and the number of the
/// request. Blocks the calling thread while the worker has too many untaken calls. Other threads go
/// on, because the worker may be waiting for their calls.
///
/// # Errors
/// The code with which the session ended.
#[inline]
pub(crate) fn begin(session: &Session, len: usize) -> Cu<(MutexGuard<'_, Outbox>, u64)> {
    let (thread, forbidden) = callback::this_thread();
    if forbidden {
        // The driver returns the same code in a host function.
        return Err(CuResult::NOT_PERMITTED);
    }
    loop {
        session.not_ended()?;
        let mut out = lock(&session.outbox);
        let (calls, bytes) = (out.calls + 1, out.bytes + len as u64);
        let flooding = out.flooding(thread);
        let fits = || {
            let untaken_calls = calls.saturating_sub(session.taken_calls.load(Ordering::Acquire));
            let untaken_bytes = bytes.saturating_sub(session.taken_bytes.load(Ordering::Acquire));
            // A call that is larger than the whole credit is sent when nothing else is untaken.
            untaken_calls <= calls_limit(session, flooding)
                && (untaken_bytes <= session.depth_bytes.load(Ordering::Acquire)
                    || untaken_bytes == len as u64)
        };
        if fits() {
            (out.calls, out.bytes) = (calls, bytes);
            if out.cut {
                // Changes cannot precede a frame that is partly written.
                out.tell(session);
            }
            return Ok((out, calls));
        }
        out.flush(session)?;
        drop(out);
        session.inbox.wait_until(session, fits)?;
    }
}

/// Limit of untaken calls for a thread that has made `in_a_row` calls in succession. A flooding
/// thread leaves a part of the credit to other threads: the kernel that blocks the queue may be
/// waiting for their copies.
fn calls_limit(session: &Session, in_a_row: u64) -> u64 {
    let depth = session.depth_calls.load(Ordering::Acquire);
    if in_a_row > depth / 8 {
        (depth - depth / 8).max(1)
    } else {
        depth
    }
}

impl Outbox {
    /// An empty outbox.
    pub(crate) fn new() -> Outbox {
        Outbox {
            buffer: Vec::with_capacity(ROOM),
            cut: false,
            calls: 0,
            bytes: 0,
            run: (0, 0),
            timing: Timing::new(Instant::now()),
        }
    }

    /// Puts requests with the program's changes before all unwritten requests, if changes are due.
    pub(crate) fn tell(&mut self, session: &Session) {
        let told = session.mirrors.told();
        if !told.is_empty() {
            observe::sent(told.len());
            let place = if self.cut { self.buffer.len() } else { 0 };
            self.buffer.splice(place..place, told);
        }
    }

    /// Empties the buffer after everything was written.
    fn clear(&mut self) {
        self.buffer.clear();
        // The buffer may have held changes of large blocks.
        self.buffer.shrink_to(ROOM);
        self.cut = false;
    }

    /// Number of successive calls of the calling thread.
    fn flooding(&mut self, thread: usize) -> u64 {
        self.run = if self.run.0 == thread {
            (thread, self.run.1 + 1)
        } else {
            (thread, 1)
        };
        self.run.1
    }

    /// Appends header and arguments, and `len` zero bytes of bulk for the caller to fill.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the arguments exceed a frame; the counters are then restored.
    pub(crate) fn append<C: Call>(&mut self, call: &C, id: u64, len: usize) -> Cu {
        self.append_frame(call, id, len)?;
        self.buffer.resize(self.buffer.len() + len, 0);
        Ok(())
    }

    fn append_frame<C: Call>(&mut self, call: &C, id: u64, len: usize) -> Cu {
        let start = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER_LEN]);
        if codec::encode_into(call, &mut self.buffer).is_err() {
            self.buffer.truncate(start);
            (self.calls, self.bytes) = (self.calls - 1, self.bytes - len as u64);
            return Err(CuResult::INVALID_VALUE);
        }
        let args = self.buffer.len() - start - HEADER_LEN;
        observe::sent(HEADER_LEN + args + len);
        let header = Header::request(C::OP as u16, id, args, len).to_bytes();
        self.buffer[start..start + HEADER_LEN].copy_from_slice(&header);
        Ok(())
    }

    /// The bulk bytes of the frame just appended.
    pub(crate) fn bulk(&mut self, len: usize) -> &mut [u8] {
        let start = self.buffer.len() - len;
        &mut self.buffer[start..]
    }

    /// Appends a frame whose bulk is the program's memory; a large frame is written at once. With
    /// `lend`, the memory may be read at any time until the worker has received the frame.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the memory is not readable; the code with which the session
    /// ended.
    pub(crate) fn append_user<C: Call>(
        &mut self,
        session: &Session,
        call: &C,
        id: u64,
        memory: UserMemory,
        lend: bool,
    ) -> Cu {
        if memory.len > COPY_LIMIT {
            self.append_frame(call, id, memory.len)?;
            return self.write_out(session, memory, lend);
        }
        self.append(call, id, memory.len)?;
        // SAFETY: the contract of the CUDA call makes the memory readable; the destination has just
        // been resized to that length.
        unsafe {
            self.bulk(memory.len)
                .as_mut_ptr()
                .copy_from(memory.at, memory.len);
        };
        self.flush_when_due(session)
    }

    /// Writes if a write is due, otherwise makes sure that the pump will write.
    ///
    /// # Errors
    /// The code with which the session ended.
    #[inline]
    pub(crate) fn flush_when_due(&mut self, session: &Session) -> Cu {
        match self
            .timing
            .posted(self.buffer.len() >= FLUSH_BYTES, Instant::now)
        {
            Act::Write => return self.write_out(session, NO_BULK, false),
            Act::Arm(after) => sys::set_timer(session.timer, after),
            Act::Wait => {}
        }
        Ok(())
    }

    /// Writes the whole buffer now.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn flush(&mut self, session: &Session) -> Cu {
        if self.timing.synchronous() {
            sys::set_timer(session.timer, Duration::ZERO);
        }
        self.write_out(session, NO_BULK, false)
    }

    /// Writes the bytes that the socket takes now, for the pump and at the end of the process; true
    /// if the buffer is empty then.
    pub(crate) fn flush_some(&mut self, session: &Session) -> bool {
        self.timing.fired();
        self.timing.wrote(Instant::now());
        if !self.buffer.is_empty() && !self.cut {
            self.tell(session);
        }
        while !self.buffer.is_empty() {
            match sys::send(session.data, &self.buffer, NO_BULK) {
                Ok(n) => {
                    self.buffer.drain(..n);
                    self.cut = true;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return false,
                Err(_) => {
                    // The reading side finds the cause.
                    break;
                }
            }
        }
        self.clear();
        true
    }

    /// Writes the buffer, then `tail`, which may be lent.
    fn write_out(&mut self, session: &Session, mut tail: UserMemory, mut lend: bool) -> Cu {
        if !self.cut {
            self.tell(session);
        }
        let mut sent = 0;
        let mut unreadable = false;
        while sent < self.buffer.len() || tail.len > 0 {
            let head = &self.buffer[sent.min(self.buffer.len())..];
            let written = match (lend, head) {
                (true, []) => session.lender.lend(session.data, tail),
                (true, head) => sys::send(session.data, head, NO_BULK),
                (false, head) => sys::send(session.data, head, tail),
            };
            match written {
                Ok(n) => {
                    let of_head = n.min(head.len());
                    sent += of_head;
                    tail = tail.skip(n - of_head);
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => {
                    if let Err(code) = wait_writable(session) {
                        self.clear();
                        return Err(code);
                    }
                }
                // Written as usual; the write also reports a broken socket.
                Err(_) if lend && head.is_empty() => lend = false,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) && tail.len > 0 => {
                    // The header has announced these bytes: zeros keep the stream in step.
                    unreadable = true;
                    self.buffer.resize(self.buffer.len() + tail.len, 0);
                    tail = NO_BULK;
                }
                Err(e) => {
                    self.clear();
                    session.data_lost(&format!("writing failed ({e})"));
                    return session.not_ended();
                }
            }
        }
        self.clear();
        self.timing.wrote(Instant::now());
        if unreadable {
            Err(CuResult::INVALID_VALUE)
        } else {
            Ok(())
        }
    }
}

/// Waits until the socket takes bytes, and reads meanwhile: the worker may take no more before its
/// replies are read.
fn wait_writable(session: &Session) -> Cu {
    loop {
        session.not_ended()?;
        let reading = session.inbox.drain(session);
        // A thread that is not the reader waits only for the socket to become writable, and only
        // briefly, because the reader may stop.
        let (events, limit) = match reading {
            true => (libc::POLLOUT | libc::POLLIN, Duration::from_millis(50)),
            false => (libc::POLLOUT, Duration::from_millis(1)),
        };
        let ready = sys::poll(session.data, events, limit).unwrap_or(true);
        if ready && sys::poll(session.data, libc::POLLOUT, Duration::ZERO).unwrap_or(true) {
            return session.not_ended();
        }
    }
}
