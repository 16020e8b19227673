//! The writing side of a session: the frames of all threads in one buffer, in one order.

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
    /// Whether the buffer begins in the middle of a frame, because the socket accepted only a part
    /// of it.
    cut: bool,
    /// Number of requests so far, which is also the number of the last request.
    calls: u64,
    bytes: u64,
    /// The thread that made the last calls, and the number of its successive calls.
    run: (usize, u64),
    timing: Timing,
}

/// Locks the outbox for a request with `len` bulk bytes. Returns the locked outbox and the number
/// of the request. Blocks while too many calls are untaken by the worker. Other threads can still
/// make calls meanwhile, because the worker may be waiting for their calls.
///
/// # Errors
/// The code with which the session ended. For a call with data, also the code of a device fault:
/// the fault may come in the middle of a copy, whose rest is then useless.
#[inline]
pub(crate) fn begin(session: &Session, len: usize) -> Cu<(MutexGuard<'_, Outbox>, u64)> {
    let (thread, forbidden) = callback::this_thread();
    if forbidden {
        // NVIDIA's driver returns the same code in a host function.
        return Err(CuResult::NOT_PERMITTED);
    }
    loop {
        match len {
            0 => session.not_ended()?,
            _ => session.usable()?,
        }
        let mut out = lock(&session.outbox);
        let (calls, bytes) = (out.calls + 1, out.bytes + len as u64);
        let flooding = out.flooding(thread);
        let fits = || {
            let untaken_calls = calls.saturating_sub(session.taken_calls.load(Ordering::Acquire));
            let untaken_bytes = bytes.saturating_sub(session.taken_bytes.load(Ordering::Acquire));
            // A call that is larger than the whole limit is sent when no other bytes are untaken.
            untaken_calls <= calls_limit(session, flooding)
                && (untaken_bytes <= session.depth_bytes.load(Ordering::Acquire)
                    || untaken_bytes == len as u64)
        };
        if fits() {
            (out.calls, out.bytes) = (calls, bytes);
            if out.cut {
                // The buffer begins in the middle of a frame, so changes cannot be inserted at the
                // beginning of the buffer. The changes are appended now, before this request.
                out.tell(session);
            }
            return Ok((out, calls));
        }
        out.flush(session)?;
        drop(out);
        session.inbox.wait_until(session, fits)?;
    }
}

/// Limit of untaken calls for a thread that has made `in_a_row` calls in succession. A thread that
/// floods the queue leaves a part of the limit to other threads, because the kernel that blocks the
/// queue may wait for their copies.
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

    /// Inserts requests with the program's changes of shared memory before all unwritten requests,
    /// if changes are due.
    pub(crate) fn tell(&mut self, session: &Session) {
        if session.usable().is_err() {
            return;
        }
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
        // Changes of large blocks may have enlarged the buffer.
        self.buffer.shrink_to(ROOM);
        self.cut = false;
    }

    /// Counts a call of the calling thread. Returns the number of its successive calls.
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

    /// The bulk bytes of the frame that was appended last.
    pub(crate) fn bulk(&mut self, len: usize) -> &mut [u8] {
        let start = self.buffer.len() - len;
        &mut self.buffer[start..]
    }

    /// Appends a frame whose bulk bytes are memory of the program. A large frame is written at
    /// once. With `lend`, the memory may be read until the worker has received the frame.
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

    /// Writes the buffer if a write is due. Otherwise makes sure that the pump writes the buffer
    /// later.
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

    /// Writes the bytes that the socket accepts now: for the pump, and at the end of the process.
    /// True: the buffer is empty.
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
                    // The reading side detects the broken socket and its cause.
                    break;
                }
            }
        }
        self.clear();
        true
    }

    /// Writes the buffer, then `tail`. With `lend`, pages of `tail` are lent to the socket.
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
                // The memory is written as usual instead; that write also reports a broken socket.
                Err(_) if lend && head.is_empty() => lend = false,
                Err(e) if e.raw_os_error() == Some(libc::EFAULT) && tail.len > 0 => {
                    // The header has announced these bytes: zeros are sent instead, so that the
                    // next frame begins where the worker expects it.
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

/// Waits until the socket accepts bytes. Reads meanwhile, because the worker may accept no more
/// before the guest has read its replies.
fn wait_writable(session: &Session) -> Cu {
    loop {
        session.not_ended()?;
        let reading = session.inbox.drain(session);
        // A thread that is not the reader only waits for the socket to become writable, and only
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
