//! The connection of this process to its worker on the host.
//!
//! One data socket carries all requests in one order. Threads encode requests into a shared buffer
//! under one lock ([`outbox`]). A synchronous call writes the buffer and then reads its reply
//! itself ([`inbox`]). The pump is a thread that writes and reads if no thread of the program does
//! so in time ([`pump`]). The control connection reports the cause of a session's end
//! ([`control`]).

mod answer;
mod connect;
mod control;
mod delivery;
mod frames;
pub(crate) mod host;
mod inbox;
mod lend;
mod outbox;
mod pump;
mod shared;
mod timing;

use std::os::fd::RawFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use answer::Answer;
pub(crate) use connect::{NoSession, Opened, open};
use control::Control;
use host::HostFunctions;
use inbox::{For, Inbox, Length, Waiter};
use lend::Lender;
use outbox::Outbox;
pub(crate) use shared::Work;
use vgpu_cuda_abi::CuResult;
use vgpu_cudart::printed::Printed;
use vgpu_proto::call::ops::{Call, Progress};
use vgpu_proto::call::req;
use vgpu_proto::call::{MemoryLimit, Op, Shortage};
use vgpu_proto::codec;

use crate::mirror::Mirrors;
use crate::mirror::uses::Waits;
use crate::sys::UserMemory;
use crate::{Cu, lock, log, observe, sys};

/// Output of device `printf` that came from the host. Each call writes the output when the call
/// ends.
pub(crate) static PRINTED: Printed = Printed::new();

/// Time limit of the wait for the cause on the control connection after the data connection broke.
const CAUSE_LIMIT: Duration = Duration::from_millis(1000);

/// Time for which a call waits before it exchanges the changes of shared memory.
const SHARE_AFTER: Duration = Duration::from_millis(10);

/// One session. Lives until the process ends.
#[derive(Debug)]
pub(crate) struct Session {
    data: RawFd,
    timer: RawFd,
    epoll: RawFd,
    outbox: Mutex<Outbox>,
    lender: Lender,
    /// Number of the last request with lent memory that the worker may not have received; 0: none.
    lent: AtomicU64,
    inbox: Inbox,
    control: Control,
    host: HostFunctions,
    /// Whether a stream was ever told to wait for a word. The program may write any of its memory
    /// before the program lets that stream go on.
    waits_for_words: AtomicBool,
    mirrors: Mirrors,
    /// Code of the device fault after which every call fails, or 0.
    fault: AtomicU32,
    /// Code of the first other asynchronous error that was not reported yet, or 0.
    deferred: AtomicU32,
    /// Code with which the session ended, or 0.
    ended: AtomicU32,
    taken_calls: AtomicU64,
    taken_bytes: AtomicU64,
    depth_calls: AtomicU64,
    depth_bytes: AtomicU64,
    /// Whether the pump waits for data on the data socket.
    watching: AtomicBool,
    /// Advice for the user after a device fault; an empty text if nothing is known.
    way_out: fn(CuResult) -> &'static str,
    /// A reference to this session, for threads that the session starts.
    itself: OnceLock<&'static Session>,
}

impl Session {
    /// Starts a session and its pump on opened connections. `way_out` gives advice for the user
    /// after a device fault.
    ///
    /// # Errors
    /// [`NoSession`] if the system refuses a timer, an epoll set or a thread.
    pub(crate) fn start(
        opened: &Opened,
        way_out: fn(CuResult) -> &'static str,
    ) -> Result<&'static Session, NoSession> {
        let failed = |e: std::io::Error| NoSession {
            code: CuResult::OPERATING_SYSTEM,
            text: format!(
                "the guest's system refused what the session needs ({e}): raise the limit of descriptors and \
                 threads (ulimit -n, ulimit -u), or end other programs"
            ),
        };
        let session = Session {
            data: opened.data,
            timer: sys::timer().map_err(failed)?,
            epoll: sys::epoll().map_err(failed)?,
            outbox: Mutex::new(Outbox::new()),
            lender: Lender::new(opened.data),
            lent: AtomicU64::new(0),
            inbox: Inbox::new(opened.data),
            control: Control::new(opened.control),
            host: HostFunctions::default(),
            waits_for_words: AtomicBool::new(false),
            mirrors: Mirrors::new(),
            fault: AtomicU32::new(0),
            deferred: AtomicU32::new(0),
            ended: AtomicU32::new(0),
            taken_calls: AtomicU64::new(0),
            taken_bytes: AtomicU64::new(0),
            // A depth of 0 would stop all calls; a depth of one call always works.
            depth_calls: AtomicU64::new(u64::from(opened.welcome.depth_calls).max(1)),
            depth_bytes: AtomicU64::new(opened.welcome.depth_bytes.max(1)),
            watching: AtomicBool::new(false),
            way_out,
            itself: OnceLock::new(),
        };
        // Never freed, because other threads may use the session while the process ends.
        let session: &'static Session = Box::leak(Box::new(session));
        let _ = session.itself.set(session);
        pump::start(session).map_err(failed)?;
        Ok(session)
    }

    /// The descriptors that the child of a fork closes.
    pub(crate) fn descriptors(&self) -> [RawFd; 6] {
        let [from, to] = self.lender.descriptors();
        [
            self.data,
            self.control.fd(),
            self.timer,
            self.epoll,
            from,
            to,
        ]
    }

    /// Checks that the session has not ended.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn not_ended(&self) -> Cu {
        match self.ended.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CuResult(code)),
        }
    }

    /// Checks that the session has not ended and the device has not failed.
    ///
    /// # Errors
    /// The code with which the session ended, or the code of the device fault.
    pub(crate) fn usable(&self) -> Cu {
        self.not_ended()?;
        match self.fault.load(Ordering::Acquire) {
            0 => Ok(()),
            code => Err(CuResult(code)),
        }
    }

    /// Sends a call without waiting for a result.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn post<C: Call>(&self, call: &C) -> Cu {
        self.post_with(call, 0, |_| ())
    }

    /// Sends a call with `len` bulk bytes, which `fill` writes.
    ///
    /// # Errors
    /// The code with which the session ended.
    #[inline]
    pub(crate) fn post_with<C: Call>(
        &self,
        call: &C,
        len: usize,
        fill: impl FnOnce(&mut [u8]),
    ) -> Cu {
        let (mut out, id) = outbox::begin(self, len)?;
        out.append(call, id, len)?;
        fill(out.bulk(len));
        out.flush_when_due(self)
    }

    /// Sends a call whose bulk bytes are memory of the program. The memory was read when the
    /// function returns.
    ///
    /// # Errors
    /// CUDA_ERROR_INVALID_VALUE if the memory is not readable; the code with which the session
    /// ended.
    pub(crate) fn post_user<C: Call>(&self, call: &C, memory: UserMemory) -> Cu {
        let (mut out, id) = outbox::begin(self, memory.len)?;
        out.append_user(self, call, id, memory, false)
    }

    /// As [`Session::post_user`], for memory that the program does not change before the call is
    /// complete. The memory may be read until then, which saves a copy. A call that returns the
    /// memory to the program sooner must first wait with [`Session::take_back`].
    ///
    /// # Errors
    /// As [`Session::post_user`].
    pub(crate) fn post_lent<C: Call>(&self, call: &C, memory: UserMemory) -> Cu {
        let (mut out, id) = outbox::begin(self, memory.len)?;
        if self.lender.willing() {
            self.lent.store(id, Ordering::Release);
        }
        out.append_user(self, call, id, memory, self.lender.willing())
    }

    /// Waits until the worker has received all lent memory. Any answer to a later request proves
    /// that. Sends a request only if no such answer has arrived.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn take_back(&self) -> Cu {
        if self.lent.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        // The worker answers this request on receipt, without the device.
        let any = req::ImageQuery {
            hash: Default::default(),
            len: 0,
        };
        self.exchange(&any, NO_BULK, Length::Exact).map(|_| ())
    }

    /// Sends a call and waits for its results.
    ///
    /// # Errors
    /// The status of the call; the code with which the session ended.
    pub(crate) fn call<C: Call>(&self, call: &C) -> Cu<C::Reply> {
        let answer = self.exchange(call, NO_BULK, Length::Exact)?;
        self.judge(C::OP, answer.status)
            .inspect_err(|code| note_shortage(C::OP, *code, &answer.args))?;
        self.decode::<C>(&answer)
    }

    /// As [`Session::call`], but also returns the results that a failed call sent.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn call_with_failure<C: Call>(&self, call: &C) -> Cu<(CuResult, Option<C::Reply>)> {
        let answer = self.exchange(call, NO_BULK, Length::Exact)?;
        let reply = match answer.args.is_empty() && !answer.status.is_ok() {
            true => None,
            false => Some(self.decode::<C>(&answer)?),
        };
        let _ = self.judge(C::OP, answer.status);
        Ok((answer.status, reply))
    }

    /// Sends a call and waits until its bulk bytes are in the program's memory.
    ///
    /// # Errors
    /// As [`Session::synchronize`].
    pub(crate) fn fetch<C: Call>(&self, call: &C, into: UserMemory) -> Cu {
        let answer = self.exchange_sharing(call, into, Length::Exact)?;
        self.judge(C::OP, answer.status)?;
        self.report()
    }

    /// Sends a call and waits for the results and the bulk bytes, at most the length of `into`.
    ///
    /// # Errors
    /// The status of the call; the code with which the session ended.
    fn fetch_some<C: Call>(&self, call: &C, into: UserMemory) -> Cu<(C::Reply, usize)> {
        let answer = self.exchange(call, into, Length::Any)?;
        self.judge(C::OP, answer.status)?;
        Ok((self.decode::<C>(&answer)?, answer.filled))
    }

    /// Sends a call whose bulk bytes later arrive in the program's memory.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn fetch_later<C: Call>(&self, call: &C, into: UserMemory) -> Cu {
        observe::awaited(into.len, false);
        {
            let (mut out, id) = outbox::begin(self, 0)?;
            self.inbox.expect(id, For::AsyncCopy, into, Length::Exact);
            out.append(call, id, 0)?;
            out.flush_when_due(self)?;
        }
        self.watch_data();
        Ok(())
    }

    /// Writes the buffer, preceded by the program's changes of shared memory if they are due.
    ///
    /// # Errors
    /// The code with which the session ended.
    fn flush(&self) -> Cu {
        let mut out = lock(&self.outbox);
        out.tell(self);
        out.flush(self)
    }

    /// Waits until no asynchronous copy to the host and no lent memory is pending.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn wait_for_copies(&self) -> Cu {
        // The copies may wait for a value that the program has written.
        self.push();
        self.take_back()?;
        if self.inbox.unattended() == 0 {
            return Ok(());
        }
        self.flush()?;
        self.inbox.wait_until(self, || self.inbox.unattended() == 0)
    }

    /// Waits until no asynchronous copy to this memory is pending.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn wait_for_copies_to(&self, memory: UserMemory) -> Cu {
        loop {
            let arrived = self.inbox.arrived();
            if self.inbox.unattended() == 0 || !self.inbox.is_filling(memory) {
                return Ok(());
            }
            self.flush()?;
            let another = || self.inbox.arrived() != arrived;
            self.inbox.wait_until(self, another)?;
        }
    }

    /// Records that a stream waits for a word, see [`Session::may_write`].
    pub(crate) fn note_wait_for_word(&self) {
        self.waits_for_words.store(true, Ordering::Release);
    }

    /// Whether work that was already sent, or the program while that work waits for it, may still
    /// write this memory of the program.
    pub(crate) fn may_write(&self, memory: UserMemory) -> bool {
        self.has_host_functions()
            || self.waits_for_words.load(Ordering::Acquire)
            || self.inbox.unattended() > 0 && self.inbox.is_filling(memory)
    }

    /// Makes a call that waits or queries. At such calls, CUDA reports errors of earlier
    /// asynchronous calls. Sends the program's changes of shared memory first, because the work may
    /// wait for a value that the program has written.
    ///
    /// # Errors
    /// The status of the call, else an earlier asynchronous error; the code with which the session
    /// ended.
    pub(crate) fn synchronize<C: Waits>(&self, call: &C) -> Cu {
        self.ask(call)?;
        self.report()
    }

    /// As [`Session::synchronize`], without reporting errors of earlier calls.
    ///
    /// # Errors
    /// The status of the call; the code with which the session ended.
    pub(crate) fn ask<C: Waits>(&self, call: &C) -> Cu {
        let sent = self.sent_so_far();
        self.push();
        let answer = self.exchange_sharing(call, NO_BULK, Length::Exact)?;
        let done = self.judge(C::OP, answer.status);
        self.pull()?;
        if done.is_ok() {
            self.over(call.over(), sent);
        }
        if done == Err(CuResult::NOT_READY) {
            // Also for unfinished work: a program may query until it sees a flag in shared memory.
            // The first pull may have missed bytes that a kernel wrote before the kernel set the
            // flag.
            self.pull()?;
        }
        done
    }

    fn exchange<C: Call>(&self, call: &C, into: UserMemory, length: Length) -> Cu<Answer> {
        let (waiter, lent) = self.request(call, into, length)?;
        let answer = self.inbox.wait_for(self, &waiter)?;
        self.received_all(lent);
        Ok(answer)
    }

    /// As [`Session::exchange`], for calls that wait for work. While the call waits, other threads
    /// may write memory that the work reads, or wait for the work's writes without a call. So the
    /// changes of shared memory go both ways now and then.
    fn exchange_sharing<C: Call>(&self, call: &C, into: UserMemory, length: Length) -> Cu<Answer> {
        if !self.in_use() {
            return self.exchange(call, into, length);
        }
        let (waiter, lent) = self.request(call, into, length)?;
        let mut pause = SHARE_AFTER;
        let answer = loop {
            let deadline = Instant::now() + pause;
            if let Some(answer) = self.inbox.wait_for_until(self, &waiter, Some(deadline))? {
                break answer;
            }
            let begin = Instant::now();
            self.push();
            self.flush()?;
            self.pull()?;
            // Large blocks are compared rarely.
            pause = SHARE_AFTER.max(10 * begin.elapsed());
        };
        self.received_all(lent);
        Ok(answer)
    }

    /// Sends a request. Returns the waiter for the reply, and the number of the last request with
    /// lent memory.
    fn request<C: Call>(
        &self,
        call: &C,
        into: UserMemory,
        length: Length,
    ) -> Cu<(Arc<Waiter>, u64)> {
        observe::awaited(into.len, true);
        let waiter = Arc::new(Waiter::default());
        let (mut out, id) = outbox::begin(self, 0)?;
        let to = For::Waiter(waiter.clone());
        self.inbox.expect(id, to, into, length);
        out.append(call, id, 0)?;
        out.flush(self)?;
        Ok((waiter, self.lent.load(Ordering::Acquire)))
    }

    /// Notes that the worker has answered a request that was sent after request `lent`: a worker
    /// that answers has received all earlier requests.
    fn received_all(&self, lent: u64) {
        if lent != 0 {
            let _ = self
                .lent
                .compare_exchange(lent, 0, Ordering::AcqRel, Ordering::Acquire);
        }
    }

    fn decode<C: Call>(&self, answer: &Answer) -> Cu<C::Reply> {
        codec::decode(&answer.args).map_err(|e| {
            self.end(
                CuResult::SYSTEM_DRIVER_MISMATCH,
                &format!("{}: {e}", C::OP.name()),
            );
            CuResult::SYSTEM_DRIVER_MISMATCH
        })
    }

    fn judge(&self, op: Op, status: CuResult) -> Cu {
        if status.is_ok() {
            return Ok(());
        }
        // The linker reports undefined references as CUDA_ERROR_UNKNOWN, which is not a device
        // fault.
        let linker = op == Op::Link && status == CuResult::UNKNOWN;
        if status.is_sticky() && !linker {
            self.failed_later(status, "");
        }
        Err(status)
    }

    /// Returns a device fault or an asynchronous error. An asynchronous error is reported once.
    fn report(&self) -> Cu {
        self.usable()?;
        // Loaded first, so that the common case needs no write.
        match self.deferred.load(Ordering::Acquire) {
            0 => Ok(()),
            _ => match self.deferred.swap(0, Ordering::AcqRel) {
                0 => Ok(()),
                code => Err(CuResult(code)),
            },
        }
    }

    /// Records that an asynchronous call failed. `text` describes a device fault, if the host does.
    fn failed_later(&self, status: CuResult, text: &str) {
        let place = if status.is_sticky() {
            &self.fault
        } else {
            &self.deferred
        };
        // The first error is kept, as in CUDA: later errors are often consequences.
        let first = place.compare_exchange(0, status.0, Ordering::AcqRel, Ordering::Acquire);
        if first.is_err() {
            return;
        }
        let described = if text.is_empty() {
            String::new()
        } else {
            format!(": {text}")
        };
        let code = format!("{status:#}");
        // The host driver's words about a fault begin with the code.
        let code = match text.contains(&code) {
            true => String::new(),
            false => format!(" [{code}]"),
        };
        if !status.is_sticky() {
            let line = format!(
                "an asynchronous call failed{described}. The next call that waits returns this error{code}"
            );
            log::line(log::Level::Error, &line);
        } else {
            log::line(
                log::Level::Error,
                &format!(
                    "the device failed{described}. Every later call returns this error: start the program again{}{code}",
                    (self.way_out)(status)
                ),
            );
            self.fail_host_functions(status);
        }
    }

    /// Handles the notice that the worker has taken calls off its queue.
    fn progress(&self, progress: Progress) {
        self.taken_calls.fetch_max(progress.calls, Ordering::AcqRel);
        self.taken_bytes.fetch_max(progress.bytes, Ordering::AcqRel);
        self.inbox.wake_general();
    }

    /// Handles the notice of new limits of untaken calls and bytes.
    fn depth(&self, depth: Progress) {
        self.depth_calls
            .store(depth.calls.max(1), Ordering::Release);
        self.depth_bytes
            .store(depth.bytes.max(1), Ordering::Release);
        self.inbox.wake_general();
    }

    /// Ends the session: every waiting and every later call returns `code`.
    fn end(&self, code: CuResult, why: &str) {
        let code = if code.is_ok() {
            CuResult::DEVICE_UNAVAILABLE
        } else {
            code
        };
        if self
            .ended
            .compare_exchange(0, code.0, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            return;
        }
        log::line(
            log::Level::Error,
            &format!("the session ended: {why}; start the program again [{code:#}]"),
        );
        // Wakes threads that read from the socket or are blocked in a write.
        sys::shutdown(self.data);
        self.inbox.wake_all();
    }

    /// Handles a broken data connection. Waits at most [`CAUSE_LIMIT`] for vgpud's report of the
    /// cause on the control connection, then ends the session.
    fn data_lost(&self, what: &str) {
        if self.not_ended().is_ok() {
            self.control.await_cause(self, CAUSE_LIMIT);
            self.end(
                CuResult::DEVICE_UNAVAILABLE,
                &format!("the worker on the host is gone: {what}"),
            );
        }
    }

    /// Makes the pump read when data arrives. Only needed while no other thread reads.
    fn watch_data(&self) {
        if !self.watching.swap(true, Ordering::AcqRel) {
            pump::watch_data(self);
        }
    }

    /// At the end of the process: writes the bytes that the socket accepts and says goodbye to
    /// vgpud. Never blocks.
    pub(crate) fn goodbye(&self) {
        if let Ok(mut out) = self.outbox.try_lock() {
            out.flush_some(self);
        }
        // From now on, a closed connection is expected and not logged.
        let over = CuResult::DEINITIALIZED.0;
        if self
            .ended
            .compare_exchange(0, over, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
        {
            self.control.goodbye();
        }
    }
}

/// Stores the reason for which the host refused memory, if the answer has one. Logs the reason for
/// page-locked memory at once, because work goes on without that memory and no call fails.
fn note_shortage(op: Op, code: CuResult, args: &[u8]) {
    if code != CuResult::OUT_OF_MEMORY || args.is_empty() {
        return;
    }
    let Ok(shortage) = codec::decode::<Shortage>(args) else {
        return;
    };
    let way_out = match shortage.limit {
        MemoryLimit::Quota if shortage.never_fits() => {
            "ask for less; the host's administrator can raise the limit (vgpu-admin vm set --memory)"
        }
        MemoryLimit::Gpu if shortage.never_fits() => "ask for less",
        MemoryLimit::Quota => {
            "free memory; the host's administrator can raise the limit (vgpu-admin vm set --memory)"
        }
        MemoryLimit::Pinned => {
            "free memory; the host's administrator can raise the limit (vgpu-admin vm set --pinned)"
        }
        MemoryLimit::Gpu => "try again when other programs have freed memory",
        MemoryLimit::Host => {
            "try again when other programs have freed memory; the host's administrator can see the limit \
             (vgpu-admin doctor, pinned-memory)"
        }
    };
    let why = format!("{shortage}; {way_out}");
    if op == Op::HostMap {
        static SAID: AtomicBool = AtomicBool::new(false);
        let lost = "kernels cannot reach this page-locked or managed memory, which takes twice its size on the host";
        log::once(&SAID, &format!("{lost}: {why}"));
    } else {
        log::refusal::keep_first(code, shortage.limit.name(), &why);
    }
}

const NO_BULK: UserMemory = UserMemory {
    at: std::ptr::null_mut(),
    len: 0,
};
