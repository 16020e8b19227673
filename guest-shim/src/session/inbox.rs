//! Reading: whoever waits reads.
//!
//! A thread that waits for a reply becomes the *leader* and reads the socket itself, so that no
//! other thread has to be woken on the way (waking is what a synchronous call costs). Frames that
//! are not its own it hands to their waiters. A thread that finds a leader at work parks; a leader
//! that has what it wanted wakes one parked thread to lead on. When nobody waits, the pump reads.

use std::cell::UnsafeCell;
use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use vgpu_cuda_abi::CuResult;

use super::Session;
use super::frames::{FrameReader, Step};
use super::sys::UserMemory;
use crate::state::handles::HandleHasher;
use crate::{Cu, lock};

/// A place where one thread sleeps. A wake before the sleep is not lost.
#[derive(Debug, Default)]
pub(crate) struct Parker {
    woken: Mutex<bool>,
    bell: Condvar,
}

impl Parker {
    fn park(&self) {
        let mut woken = lock(&self.woken);
        while !*woken {
            woken = self
                .bell
                .wait(woken)
                .unwrap_or_else(std::sync::PoisonError::into_inner);
        }
        *woken = false;
    }

    fn unpark(&self) {
        *lock(&self.woken) = true;
        self.bell.notify_one();
    }
}

/// What a reply brought.
#[derive(Debug)]
pub(crate) struct Answer {
    /// Its result.
    pub(crate) status: CuResult,
    /// Its encoded results.
    pub(crate) args: Vec<u8>,
    /// Bulk bytes that came.
    pub(crate) filled: usize,
}

/// How many bulk bytes a reply must have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Length {
    /// As many as there is room for.
    Exact,
    /// At most.
    Any,
}

/// One thread's interest in one reply.
#[derive(Debug, Default)]
pub(crate) struct Waiter {
    answer: Mutex<Option<Answer>>,
    parker: Arc<Parker>,
}

/// Who gets a reply.
#[derive(Debug)]
pub(crate) enum For {
    /// A thread that waits for it.
    Waiter(Arc<Waiter>),
    /// Nobody waits: an asynchronous copy into memory of the program.
    AsyncCopy,
}

/// A request whose reply has not come.
#[derive(Debug)]
pub(crate) struct Pending {
    /// Who gets it.
    pub(crate) to: For,
    /// Where its bulk bytes go.
    pub(crate) into: UserMemory,
    /// How many there must be.
    pub(crate) length: Length,
    /// How many have come.
    pub(crate) filled: usize,
}

#[derive(Debug, Default)]
struct Parked {
    /// Leads next, or waits for something that no single reply brings (credit, quiet).
    list: Vec<(Arc<Parker>, bool)>,
    leading: bool,
    pending: HashMap<u64, Pending, BuildHasherDefault<HandleHasher>>,
}

/// The reading side of a session.
#[derive(Debug)]
pub(crate) struct Inbox {
    state: Mutex<Parked>,
    /// Only the leader touches it.
    reader: UnsafeCell<FrameReader>,
    /// Replies that come while nobody waits.
    unattended: AtomicUsize,
    /// How many of these have come.
    arrived: AtomicUsize,
    /// Notices that are to be looked for.
    notices: AtomicUsize,
}

// SAFETY: `reader` is touched only between setting `leading` and clearing it, under the mutex.
unsafe impl Sync for Inbox {}

/// Leadership; stepping down on drop, also when a panic passes through.
struct Lead<'a> {
    inbox: &'a Inbox,
    session: &'a Session,
}

impl Lead<'_> {
    fn step(&mut self, wait: bool) -> Step {
        // SAFETY: this value exists once at a time (`leading`), and `&mut self` is its only use.
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
    /// Nothing pending.
    pub(crate) fn new() -> Inbox {
        Inbox {
            state: Mutex::default(),
            reader: UnsafeCell::new(FrameReader::new()),
            unattended: AtomicUsize::new(0),
            arrived: AtomicUsize::new(0),
            notices: AtomicUsize::new(0),
        }
    }

    /// Replies on their way that nobody waits for.
    pub(crate) fn unattended(&self) -> usize {
        self.unattended.load(Ordering::Acquire)
    }

    /// How many such replies have come so far.
    pub(crate) fn arrived(&self) -> usize {
        self.arrived.load(Ordering::Acquire)
    }

    /// Is a copy that nobody waits for on its way to some of this memory?
    pub(crate) fn is_filling(&self, memory: UserMemory) -> bool {
        let (at, end) = (memory.at as usize, memory.at as usize + memory.len);
        let into = |p: &Pending| p.into.at as usize..p.into.at as usize + p.into.len;
        let pending = &lock(&self.state).pending;
        let mut copies = pending.values().filter(|p| matches!(p.to, For::AsyncCopy));
        copies.any(|p| into(p).start < end && at < into(p).end)
    }

    /// Must somebody read although nobody waits?
    pub(crate) fn is_restless(&self) -> bool {
        self.unattended() > 0 || self.notices.load(Ordering::Acquire) > 0
    }

    /// A notice will come that must be seen soon.
    pub(crate) fn expect_notice(&self) {
        self.notices.fetch_add(1, Ordering::AcqRel);
    }

    /// It has come, or will not.
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

    /// Where the next `len` bulk bytes of reply `id` go; `None` if that is more than was asked for.
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

    /// Delivers the last frame of reply `id`; false if nobody asked, or bytes are missing.
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
                    session.failed_later(answer.status);
                }
                self.unattended.fetch_sub(1, Ordering::AcqRel);
                self.arrived.fetch_add(1, Ordering::AcqRel);
                self.wake_general();
            }
        }
        whole
    }

    /// Wakes those who wait for credit or quiet, to look again.
    pub(crate) fn wake_general(&self) {
        for (parker, general) in &lock(&self.state).list {
            if *general {
                parker.unpark();
            }
        }
    }

    /// Wakes everybody: the session has ended. The flag that says so is already set.
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
        self.wait(session, &waiter.parker, false, || {
            lock(&waiter.answer).take()
        })
    }

    /// Waits until `ready`, which other frames than one reply bring about.
    ///
    /// # Errors
    /// The code with which the session ended.
    pub(crate) fn wait_until(&self, session: &Session, mut ready: impl FnMut() -> bool) -> Cu {
        if ready() {
            return Ok(());
        }
        self.wait(session, &Arc::new(Parker::default()), true, || {
            ready().then_some(())
        })
    }

    fn wait<T>(
        &self,
        session: &Session,
        parker: &Arc<Parker>,
        general: bool,
        mut ready: impl FnMut() -> Option<T>,
    ) -> Cu<T> {
        loop {
            let mut state = lock(&self.state);
            state.list.retain(|(p, _)| !Arc::ptr_eq(p, parker));
            // Both checks under the lock: whoever changes the answer takes the lock afterwards to
            // wake those in the list, and finds us there.
            if let Some(value) = ready() {
                // A wake meant "lead on": pass it to another.
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
                return Ok(value);
            }
            session.not_ended()?;
            if state.leading {
                state.list.push((parker.clone(), general));
                drop(state);
                parker.park();
                continue;
            }
            state.leading = true;
            drop(state);
            let mut lead = Lead {
                inbox: self,
                session,
            };
            loop {
                if let Step::Closed(why) = lead.step(true) {
                    session.data_lost(&why);
                }
                if let Some(value) = ready() {
                    return Ok(value);
                }
                session.not_ended()?;
            }
        }
    }

    /// Reads what is there without waiting; false if another thread is reading.
    pub(crate) fn drain(&self, session: &Session) -> bool {
        {
            let mut state = lock(&self.state);
            if state.leading {
                return false;
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
