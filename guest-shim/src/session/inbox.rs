//! The reading side of a session: a thread that waits for a reply reads the socket itself.
//!
//! A thread that waits for a reply becomes the *leader* and reads the socket itself: waking another
//! thread is the main cost of a synchronous call. The leader delivers other frames to the threads
//! that wait for them. While there is a leader, other threads park. A leader that has its reply
//! wakes one parked thread, which becomes the next leader. If no thread waits, the pump reads.

use std::cell::UnsafeCell;
use std::os::fd::RawFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use vgpu_cuda_abi::CuResult;
use vgpu_proto::cuda::HandleMap;

use super::Session;
use super::answer::Answer;
use super::frames::{FrameReader, Step};
use crate::sys::UserMemory;
use crate::{Cu, lock, sys};

/// A place where one thread sleeps. A wakeup before the sleep is not lost.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Parker {
    /// Sleeps until the wakeup or the deadline.
    fn park(&self, deadline: Option<Instant>) {
        let mut woken = lock(&self.woken);
        while !*woken {
            let bell = &self.bell;
            woken = match deadline {
                None => bell.wait(woken).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        break;
                    }
                    let woken = bell.wait_timeout(woken, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        *woken = false;
    }

    fn unpark(&self) {
        *lock(&self.woken) = true;
        self.bell.notify_one();
    }
}

/// The number of bulk bytes that a reply must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// Exactly the size of the destination.
    Exact,
    /// At most the size of the destination.
    Any,
}

/// A thread that waits for one reply.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    answer: Mutex<Option<Answer>>,
    parker: Arc<Parker>,
}

/// Who gets a reply.
#[derive(Debug)]
pub(crate) enum For {
    /// A waiting thread.
    Waiter(Arc<Waiter>),
    /// No thread: an asynchronous copy into the program's memory.
    AsyncCopy,
}

/// A request whose reply has not arrived.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Recipient of the reply.
    pub(crate) to: For,
    /// Destination of the bulk bytes.
    pub(crate) into: UserMemory,
    /// Required number of bulk bytes.
    pub(crate) length: Length,
    /// Number of bulk bytes that have arrived.
    pub(crate) filled: usize,
}

#[derive(Debug, Default)]
struct Parked {
    /// Parked threads. `true`: the thread waits for a condition that depends on several frames:
    /// credit, or that no copies are pending.
    list: Vec<(Arc<Parker>, bool)>,
    leading: bool,
    pending: HandleMap<Pending>,
}

/// The reading side of a session.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<Parked>,
    /// Accessed by the leader only.
    reader: UnsafeCell<FrameReader>,
    /// Number of expected replies to asynchronous copies, for which no thread waits.
    unattended: AtomicUsize,
    /// Number of replies to asynchronous copies that have arrived so far.
    arrived: AtomicUsize,
    /// Number of notices that must be read soon.
    notices: AtomicUsize,
}

// SAFETY: only the leader accesses `reader`, between setting and clearing `leading`, which the
// mutex guards.
unsafe impl Sync for Inbox {}

/// The role of the leader. The role ends on drop, also during a panic.
struct Lead<'a> {
    inbox: &'a Inbox,
    session: &'a Session,
}

impl Lead<'_> {
    /// As [`FrameReader::step`], but waits until the deadline at most.
    fn step_until(&mut self, deadline: Option<Instant>) -> Step {
        let Some(deadline) = deadline else {
            return self.step(true);
        };
        let step = self.step(false);
        if matches!(step, Step::Nothing) {
            let left = deadline.saturating_duration_since(Instant::now());
            // An error of the socket is reported by the next read.
            let _ = sys::poll(self.session.data, libc::POLLIN, left);
        }
        step
    }

    fn step(&mut self, wait: bool) -> Step {
        // SAFETY: only one `Lead` exists at a time (`leading`), and `&mut self` makes this access
        // exclusive.
        let reader = unsafe { &mut *self.inbox.reader.get() };
        reader.step(self.session, wait)
    }
}

impl Drop for Lead<'_> {
    fn drop(&mut self) {
        let mut state = lock(&self.inbox.state);
        state.leading = false;
        let next = state.list.pop();
        drop(state);
        match next {
            Some((parker, _)) => parker.unpark(),
            None if self.inbox.is_restless() => self.session.watch_data(),
            None => {}
        }
    }
}

impl Inbox {
    /// An inbox without pending requests, for a data socket that stays open.
    pub(crate) fn new(data: RawFd) -> Inbox {
        Inbox {
            state: Mutex::default(),
            reader: UnsafeCell::new(FrameReader::new(data)),
            unattended: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            notices: AtomicUsize::new(0),
        }
    }

    /// Number of expected replies that no thread waits for.
    pub(crate) fn unattended(&self) -> usize {
        self.unattended.load(Ordering::Acquire)
    }

    /// Number of replies that no thread waits for and that have arrived so far.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Acquire)
    }

    /// Whether an asynchronous copy into part of this memory is pending.
    pub(crate) fn is_filling(&self, memory: UserMemory) -> bool {
        let (at, end) = (memory.at as usize, memory.at as usize + memory.len);
        let into = |p: &Pending| p.into.at as usize..p.into.at as usize + p.into.len;
        let pending = &lock(&self.state).pending;
        let mut copies = pending.values().filter(|p| matches!(p.to, For::AsyncCopy));
        copies.any(|p| into(p).start < end && at < into(p).end)
    }

    /// Whether the pump must read if no thread waits.
    pub(crate) fn is_restless(&self) -> bool {
        self.unattended() > 0 || self.notices.load(Ordering::Acquire) > 0
    }

    /// Announces a notice that must be read soon.
    pub(crate) fn expect_notice(&self) {
        self.notices.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts off an announced notice: the notice has arrived, or will not arrive.
    pub(crate) fn noticed(&self) {
        self.notices.fetch_sub(1, Ordering::AcqRel);
    }

    /// Announces request `id` before it is sent.
    pub(crate) fn expect(&self, id: u64, to: For, into: UserMemory, length: Length) {
        if matches!(to, For::AsyncCopy) {
            self.unattended.fetch_add(1, Ordering::AcqRel);
        }
        lock(&self.state).pending.insert(
            id,
            Pending {
                to,
                into,
                length,
                filled: 0,
            },
        );
    }

    /// Destination of the next `len` bulk bytes of reply `id`; `None` if the call requested fewer.
    pub(crate) fn room(&self, id: u64, len: usize) -> Option<UserMemory> {
        let mut state = lock(&self.state);
        let pending = state.pending.get_mut(&id)?;
        let rest = pending.into.skip(pending.filled);
        if rest.len < len {
            return None;
        }
        pending.filled += len;
        Some(rest.first(len))
    }

    /// Delivers the last frame of reply `id`; false if no request is pending, or bytes are missing.
    pub(crate) fn complete(&self, session: &Session, id: u64, mut answer: Answer) -> bool {
        let Some(pending) = lock(&self.state).pending.remove(&id) else {
            return false;
        };
        let any = pending.length == Length::Any || !answer.status.is_ok();
        let whole = any || pending.filled == pending.into.len;
        answer.filled = pending.filled;
        match pending.to {
            For::Waiter(waiter) => {
                *lock(&waiter.answer) = Some(answer);
                waiter.parker.unpark();
            }
            For::AsyncCopy => {
                if !answer.status.is_ok() {
                    session.failed_later(answer.status, "");
                }
                self.unattended.fetch_sub(1, Ordering::AcqRel);
                self.arrived.fetch_add(1, Ordering::AcqRel);
                self.wake_general();
            }
        }
        whole
    }

    /// Wakes the threads that wait for a condition, so that they check the condition again.
    pub(crate) fn wake_general(&self) {
        for (parker, general) in &lock(&self.state).list {
            if *general {
                parker.unpark();
            }
        }
    }

    /// Wakes all threads after the session has ended. The caller has set `ended` before.
    pub(crate) fn wake_all(&self) {
        let state = lock(&self.state);
        for (parker, _) in &state.list {
            parker.unpark();
        }
        for pending in state.pending.values() {
            if let For::Waiter(waiter) = &pending.to {
                waiter.parker.unpark();
            }
        }
    }

    /// Waits for a reply.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn wait_for(&self, session: &Session, waiter: &Waiter) -> Cu<Answer> {
        let answer = self.wait_for_until(session, waiter, None)?;
        // Without a deadline, the wait ends only with an answer.
        answer.ok_or(CuResult::UNKNOWN)
    }

    /// As [`Inbox::wait_for`]; `None` if there is no reply until the deadline.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn wait_for_until(
        &self,
        session: &Session,
        waiter: &Waiter,
        deadline: Option<Instant>,
    ) -> Cu<Option<Answer>> {
        self.wait(session, (&waiter.parker, false), deadline, || {
            lock(&waiter.answer).take()
        })
    }

    /// Waits until `ready` returns true. `ready` is checked again when frames have arrived, because
    /// the condition does not depend on a single reply.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn wait_until(&self, session: &Session, mut ready: impl FnMut() -> bool) -> Cu {
        if ready() {
            return Ok(());
        }
        let parker = Arc::new(Parker::default());
        self.wait(session, (&parker, true), None, || ready().then_some(()))
            .map(|_| ())
    }

    /// Waits until `ready` returns a value, or until the deadline. `general`: as in [`Parked`].
    fn wait<T>(
        &self,
        session: &Session,
        (parker, general): (&Arc<Parker>, bool),
        deadline: Option<Instant>,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Cu<Option<T>> {
        let is_over = || deadline.is_some_and(|deadline| Instant::now() >= deadline);
        loop {
            let mut state = lock(&self.state);
            state.list.retain(|(p, _)| !Arc::ptr_eq(p, parker));
            // This thread makes both checks while it holds the lock of the list of parked threads.
            // A thread that has delivered an answer takes the lock to wake the threads in the list,
            // and then finds this thread in the list.
            let value = ready();
            let ended = session.not_ended();
            if value.is_some() || is_over() || ended.is_err() && !state.leading {
                // This thread may have been woken to lead: wake another thread instead.
                let next = if state.leading {
                    None
                } else {
                    state.list.pop()
                };
                drop(state);
                if let Some((next, _)) = next {
                    next.unpark();
                } else if self.is_restless() {
                    session.watch_data();
                }
                return match value {
                    None => ended.map(|()| None),
                    value => Ok(value),
                };
            }
            // After the end of the session, a leader may still receive into the memory of this
            // thread's call, and the program may free that memory once the call returns. The end
            // has shut the socket down, so the leader soon stops.
            if state.leading {
                state.list.push((parker.clone(), general));
                drop(state);
                parker.park(deadline);
                continue;
            }
            state.leading = true;
            drop(state);
            let mut lead = Lead {
                inbox: self,
                session,
            };
            loop {
                if let Step::Closed(why) = lead.step_until(deadline) {
                    session.data_lost(&why);
                }
                let value = ready();
                if value.is_some() || is_over() {
                    return Ok(value);
                }
                session.not_ended()?;
            }
        }
    }

    /// Reads the available frames without waiting; false if another thread is reading. Reads
    /// nothing after the end of the session: the calls whose memory the frames are for may have
    /// returned.
    pub(crate) fn drain(&self, session: &Session) -> bool {
        {
            let mut state = lock(&self.state);
            if state.leading {
                return false;
            }
            if session.not_ended().is_err() {
                return true;
            }
            state.leading = true;
        }
        let mut lead = Lead {
            inbox: self,
            session,
        };
        loop {
            match lead.step(false) {
                Step::Frame => {}
                Step::Nothing => return true,
                Step::Closed(why) => {
                    session.data_lost(&why);
                    return true;
                }
            }
        }
    }
}
