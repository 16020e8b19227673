//! Writing: frames of all threads in one buffer, in one order.

use std::cell::Cell;
use std::io::ErrorKind;
use std::sync::MutexGuard;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use vgpu_cuda_abi::CuResult;
use vgpu_proto::call::ops::Call;
use vgpu_proto::codec;
use vgpu_proto::frame::{HEADER_LEN, Header};
use vgpu_proto::limits::FLUSH_BYTES;

use super::sys::{self, UserMemory};
use super::timing::{Act, Timing};
use super::{NO_BULK, Session};
use crate::{Cu, lock, observe};

/// Memory of the program up to this size is copied into the buffer; more is written from where it
/// is. Below, the copy is cheaper than a system call of its own.
const COPY_LIMIT: usize = 8 * 1024;

/// Of the buffer.
const ROOM: usize = 4 * FLUSH_BYTES;

/// The shared buffer and its books.
#[derive(Debug)]
pub(crate) struct Outbox {
    buffer: Vec<u8>,
    /// The buffer begins within a frame: the socket took no more.
    cut: bool,
    /// Requests begun, which is also the last id.
    calls: u64,
    bytes: u64,
    /// The thread that made the last calls, and how many in a row.
    run: (usize, u64),
    timing: Timing,
}

/// Takes the lock for a request with `len` bulk bytes, and its id. Holds the calling thread back
/// while the worker has too much untaken; not the others, for what it waits for may be up to them.
///
/// # Errors
/// Why the session is over.
#[inline]
pub(crate) fn begin(session: &Session, len: usize) -> Cu<(MutexGuard<'_, Outbox>, u64)> {
    let (thread, forbidden) = this_thread();
    if forbidden {
        // As the driver says to a host function.
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
            // A single call larger than the whole credit goes when nothing else is untaken.
            untaken_calls <= calls_limit(session, flooding)
                && (untaken_bytes <= session.depth_bytes.load(Ordering::Acquire)
                    || untaken_bytes == len as u64)
        };
        if fits() {
            (out.calls, out.bytes) = (calls, bytes);
            if out.cut {
                // Changes cannot go before what is being written.
                out.tell(session);
            }
            return Ok((out, calls));
        }
        out.flush(session)?;
        drop(out);
        session.inbox.wait_until(session, fits)?;
    }
}

/// Untaken calls that a thread may bring about that has made so many in a row. One that floods leaves some
/// of the credit to the others: the kernel that blocks its queue may be waiting for their copies.
fn calls_limit(session: &Session, in_a_row: u64) -> u64 {
    let depth = session.depth_calls.load(Ordering::Acquire);
    if in_a_row > depth / 8 {
        (depth - depth / 8).max(1)
    } else {
        depth
    }
}

thread_local!(static HERE: Cell<bool> = const { Cell::new(false) });

/// A number of the calling thread, the address of something that each has; and whether it may not make
/// calls.
fn this_thread() -> (usize, bool) {
    HERE.try_with(|here| (std::ptr::from_ref(here) as usize, here.get()))
        .unwrap_or_default()
}

/// The calling thread may make no calls from now on, or may again: it is in a host function.
/// Returns how it was.
pub(crate) fn forbid(forbidden: bool) -> bool {
    HERE.try_with(|here| here.replace(forbidden))
        .unwrap_or_default()
}

impl Outbox {
    /// Empty.
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

    /// Puts requests that tell what the program changed before all others that are not written yet, if that is due.
    pub(crate) fn tell(&mut self, session: &Session) {
        let told = session.mirrors.told();
        if !told.is_empty() {
            observe::sent(told.len());
            let place = if self.cut { self.buffer.len() } else { 0 };
            self.buffer.splice(place..place, told);
        }
    }

    /// Everything was written.
    fn clear(&mut self) {
        self.buffer.clear();
        // Changes of large blocks may have been in it.
        self.buffer.shrink_to(ROOM);
        self.cut = false;
    }

    /// How many calls in a row the calling thread has made.
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
    /// CUDA_ERROR_INVALID_VALUE if the arguments exceed a frame; the books are put back.
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

    /// Appends a frame whose bulk is the program's memory, writing it out at once when it is large.
    /// With `lend` the memory may be read any time until the worker has received the frame.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the memory is not readable; why the session is over.
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
        // SAFETY: that the memory is readable is the contract of the CUDA call that named it; the
        // destination was just made that long.
        unsafe {
            self.bulk(memory.len)
                .as_mut_ptr()
                .copy_from(memory.at, memory.len);
        };
        self.flush_when_due(session)
    }

    /// Writes when it is time, else makes sure that the pump will.
    ///
    /// # Errors
    /// Why the session is over.
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

    /// Writes everything now.
    ///
    /// # Errors
    /// Why the session is over.
    pub(crate) fn flush(&mut self, session: &Session) -> Cu {
        if self.timing.synchronous() {
            sys::set_timer(session.timer, Duration::ZERO);
        }
        self.write_out(session, NO_BULK, false)
    }

    /// Writes what the socket takes now, for the pump and for the end of the process; true if that
    /// was all.
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
                // Written as usual, which also tells what is wrong, if anything is.
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

/// Waits until the socket takes bytes, reading meanwhile: the worker may be unable to take more
/// before it has got rid of its replies.
fn wait_writable(session: &Session) -> Cu {
    loop {
        session.not_ended()?;
        let reading = session.inbox.drain(session);
        // Without the reading role only the writing side is ours to wait for, and not for long:
        // whoever reads may stop.
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
