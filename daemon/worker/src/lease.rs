//! The worker's side of the GPU lease: when it may submit, when it must give back, what it tells
//! vgpud. The steps on the shared pages are [`vgpu_proto::lease`]'s.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use vgpu_proto::lease::{Parked, WorkerEnd};
use vgpu_proto::worker::FromWorker;
use vgpu_sched::gate::{self, Hold, LeaseView};

use crate::control::Vgpud;

/// What waits in the session's queue.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Waiting {
    /// Operations.
    pub calls: u64,
    /// Their bulk bytes.
    pub bytes: u64,
}

/// What the first operation of the queue is expected to cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Head {
    /// GPU time in ns; 0: unknown.
    pub ns: u64,
    /// Bytes between host and device.
    pub bytes: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No lease, none asked for.
    None,
    /// vgpud knows that there is work.
    Asked,
    /// Ours.
    Held,
    /// Ours while nobody wants it.
    Parked {
        /// vgpud knows that it is.
        told: bool,
    },
}

/// After how long vgpud is told of a parked lease where pauses are always short: longer than the kernel's
/// tick, so that no timer has to be set for it anew at each pause.
const TELL_LATE_NS: u64 = 5_000_000;

/// How often vgpud is asked for the credit that a held guest needs.
const ASK_AGAIN_NS: u64 = 10_000_000;

/// The lease of this worker.
#[derive(Debug)]
pub struct Lease {
    pages: WorkerEnd<'static>,
    vgpud: Vgpud,
    state: State,
    epoch: u64,
    /// It was asked back: nothing more may be submitted under this epoch.
    revoked: bool,
    /// Its slice was over when it was last looked at. It may be extended.
    over: bool,
    /// The end of the slice for which vgpud was told when the work in flight will be over: nothing more is
    /// submitted, unless it is extended.
    ending: Option<u64>,
    /// An operation was let through under this epoch.
    used: bool,
    /// vgpud was told that the credit is used up.
    spent: bool,
    /// How long it is kept without work.
    hold: Hold,
    submitted: u64,
    completed: u64,
    /// Calls and bytes that needed no turn and were not paid for when they were moved.
    moved: (u64, u64),
    /// When vgpud was last asked for credit for them, while there is none.
    asked_ns: Option<u64>,
    /// Nobody is asked and nothing is counted: see [`Lease::unasked`].
    unasked: bool,
}

impl Lease {
    /// Holds nothing.
    pub fn new(pages: WorkerEnd<'static>, vgpud: Vgpud) -> Lease {
        Lease {
            pages,
            vgpud,
            state: State::None,
            epoch: 0,
            revoked: false,
            over: false,
            ending: None,
            used: false,
            spent: false,
            hold: Hold::default(),
            submitted: 0,
            completed: 0,
            moved: (0, 0),
            asked_ns: None,
            unasked: false,
        }
    }

    /// A lease that lets everything through without asking vgpud: what the benchmarks compare the lease
    /// with. `vgpu-worker` has no way to it.
    pub fn unasked(pages: WorkerEnd<'static>, vgpud: Vgpud) -> Lease {
        Lease {
            unasked: true,
            ..Lease::new(pages, vgpud)
        }
    }

    /// May an operation be submitted now? Takes a parked lease back, or asks for one.
    pub fn enter(&mut self, waiting: Waiting) -> bool {
        if self.unasked {
            return true;
        }
        if self.hold.idle_since().is_some() {
            self.hold.work(now_ns());
        }
        match self.state {
            State::Held => {}
            State::Parked { told } => {
                if !self.pages.retake(self.epoch) {
                    self.state = State::None;
                    return self.ask(waiting);
                }
                self.state = State::Held;
                if told {
                    self.tell_runnable(waiting);
                }
            }
            State::None => return self.ask(waiting),
            State::Asked => return false,
        }
        self.revoked |= !self.pages.may_submit(self.epoch);
        // A slice that ended before it was used still serves one operation: else a session whose
        // grants arrive late would never get anything done.
        let slice_end = self.pages.slice_end_ns();
        self.over = self.used
            && self.pages.wanted(self.epoch)
            && (self.ending == Some(slice_end) || now_ns() >= slice_end);
        self.used = true;
        !self.closing()
    }

    fn ask(&mut self, waiting: Waiting) -> bool {
        self.state = State::Asked;
        self.tell_runnable(waiting);
        // A grant may have been written just now; its packet would bring us back here anyway.
        self.granted()
    }

    fn tell_runnable(&self, waiting: Waiting) {
        self.vgpud.send(FromWorker::Runnable {
            calls: waiting.calls,
            bytes: waiting.bytes,
            at_ns: now_ns(),
        });
    }

    /// Looks for a grant on the page. True: a lease is ours now that was not before.
    fn granted(&mut self) -> bool {
        if matches!(self.state, State::Held | State::Parked { .. }) {
            return false;
        }
        let Some(epoch) = self.pages.accept(self.epoch) else {
            return false;
        };
        self.epoch = epoch;
        self.state = State::Held;
        self.revoked = false;
        self.over = false;
        self.ending = None;
        self.used = false;
        self.spent = false;
        true
    }

    /// Nothing more goes in under this lease, and what is in flight will be over so soon: says so, once in a
    /// slice, where somebody waits for it.
    pub fn tell_ending(&mut self, in_ns: u64) {
        let slice_end = self.pages.slice_end_ns();
        if self.unasked || !self.wanted() || self.ending == Some(slice_end) {
            return;
        }
        self.ending = Some(slice_end);
        self.over = true;
        let epoch = self.epoch;
        self.vgpud.send(FromWorker::Ending {
            epoch,
            slice_end_ns: slice_end,
            in_ns,
        });
    }

    /// Looks on the page for what vgpud has granted, and whether it asks it back.
    pub fn look(&mut self) {
        self.granted();
        if self.pages.may_submit(self.epoch) {
            return;
        }
        match self.state {
            State::Held => self.revoked = true,
            State::Parked { .. } => {
                if self.pages.retake(self.epoch) {
                    self.state = State::Held;
                    self.revoked = true;
                } else {
                    self.state = State::None;
                }
            }
            State::None | State::Asked => {}
        }
    }

    /// Is the lease ours and being given back?
    pub fn closing(&self) -> bool {
        self.state == State::Held && (self.revoked || self.over)
    }

    /// Does somebody else wait for the lease that is ours?
    pub fn wanted(&self) -> bool {
        self.state == State::Held && self.pages.wanted(self.epoch)
    }

    /// The lease as the gate sees it.
    pub fn view(&self) -> LeaseView {
        LeaseView {
            closing: self.closing(),
            slice_end_ns: self.wanted().then(|| self.pages.slice_end_ns()),
            beside: self.state == State::Held && self.pages.beside(self.epoch),
        }
    }

    /// How much work may be unfinished under this lease, in predicted ns.
    pub fn window_ns(&self) -> u64 {
        if self.unasked {
            gate::WINDOW_NS
        } else {
            self.pages.window_ns()
        }
    }

    /// Would entering ask vgpud for something?
    pub fn asks(&self) -> bool {
        matches!(self.state, State::None | State::Parked { told: true }) && !self.unasked
    }

    /// Is the lease in use?
    pub fn held(&self) -> bool {
        self.state == State::Held
    }

    /// Takes credit for an operation. False: none is left; vgpud, which has been told, extends it or
    /// asks the lease back.
    pub fn take(&mut self, waiting: Waiting, calls: u64, bytes: u64) -> bool {
        let paid = || self.pages.in_credit(self.moved.0, self.moved.1);
        if self.unasked || paid() && self.pages.take(calls, bytes) {
            self.moved = (0, 0);
            self.spent = false;
            return true;
        }
        if !self.spent {
            self.spent = true;
            self.tell_runnable(waiting);
        }
        false
    }

    /// Takes credit that there is not: what relieves a stall under a lease that is being given back, and
    /// will get no more.
    pub fn owe(&mut self, calls: u64, bytes: u64) {
        self.pages.owe(calls, bytes);
    }

    /// Bytes to the worker's copy of page-locked memory, or (`out`) from it, in a frame that needs no turn. They are
    /// paid for afterwards ([`Lease::pay`]), as a large copy is; a frame without any costs a call.
    pub fn moved(&mut self, bytes: u64, out: bool) {
        let calls = u64::from(bytes == 0);
        self.moved = (self.moved.0 + calls, self.moved.1.saturating_add(bytes));
        self.pages.owe(calls, bytes);
        if out {
            self.pages.count_out(bytes);
        }
    }

    /// Pays for what moved without a turn. False: there is no credit for it, which vgpud knows, and the guest may
    /// move nothing more. Only a lease has credit: without one, it is asked for as for an operation.
    ///
    /// A lease that is being given back can stay for long: its kernels may wait for what the guest sends next. So
    /// vgpud is asked again and again, and gives credit under such a lease too.
    pub fn pay(&mut self, waiting: Waiting) -> bool {
        if self.is_paid() {
            if self.moved != (0, 0) {
                // It may have used the credit that an operation was promised, which asks anew.
                self.spent = false;
            }
            self.moved = (0, 0);
            self.asked_ns = None;
            return true;
        }
        // A lease that was not ours before asks by itself.
        self.enter(waiting);
        let now = now_ns();
        let due = self.asked_ns.is_none_or(|at| now >= at + ASK_AGAIN_NS);
        if self.state == State::Held && due {
            self.asked_ns = Some(now);
            self.tell_runnable(waiting);
        }
        false
    }

    fn is_paid(&self) -> bool {
        let (calls, bytes) = self.moved;
        let ours = || match self.state {
            State::Held => true,
            State::Parked { .. } => self.pages.lies_parked(self.epoch),
            State::None | State::Asked => false,
        };
        self.unasked
            || !self.pages.limits(calls, bytes)
            || self.pages.in_credit(calls, bytes) && ours()
    }

    /// When vgpud is to be asked for credit again, while [`Lease::pay`] finds none.
    pub fn ask_again_in(&self) -> Option<Duration> {
        let asked = self.asked_ns.filter(|_| self.state == State::Held)?;
        let left = (asked + ASK_AGAIN_NS).saturating_sub(now_ns());
        Some(Duration::from_nanos(left))
    }

    /// Gives a drained lease back. `waiting` is what remains, `head` what the first of it costs.
    pub fn release(&mut self, waiting: Waiting, head: Head) {
        if self.state != State::Held {
            return;
        }
        if waiting.calls == 0 {
            self.hold.idle(now_ns());
        }
        self.publish(waiting, head);
        self.vgpud.send(FromWorker::Released {
            epoch: self.epoch,
            calls: waiting.calls,
            bytes: waiting.bytes,
        });
        self.state = if waiting.calls > 0 {
            State::Asked
        } else {
            State::None
        };
    }

    /// Nothing waits for the lease that is ours, and nothing is in flight. Where somebody else waits it is kept
    /// for the hold time and then given back. Else it is parked, for vgpud to take if somebody comes; that
    /// nothing is done with it vgpud is told after the hold time. Returns how long until the next look;
    /// `None` when there is nothing to look for.
    pub fn rest(&mut self) -> Option<Duration> {
        if !matches!(self.state, State::Held | State::Parked { told: false }) {
            return None;
        }
        let now = now_ns();
        self.hold.idle(now);
        let granted = self.pages.hold_ns();
        let hold = self.hold.hold_ns(granted);
        let idle = now.saturating_sub(self.hold.idle_since().unwrap_or(now));
        if self.state == State::Held && (idle >= hold || !self.pages.wanted(self.epoch)) {
            self.publish(Waiting::default(), Head::default());
            match self.pages.park(self.epoch) {
                Parked::Kept => self.state = State::Parked { told: false },
                Parked::GiveBack => {}
                Parked::Taken => self.state = State::None,
            }
        }
        match self.state {
            State::Held if idle < hold && self.pages.may_submit(self.epoch) => {
                Some(Duration::from_nanos(hold - idle))
            }
            State::Held => {
                self.release(Waiting::default(), Head::default());
                None
            }
            State::Parked { .. } => self.tell_parked(idle, granted, hold),
            State::None | State::Asked => None,
        }
    }

    /// Tells vgpud of the parked lease when that is due, or returns how long until then.
    fn tell_parked(&mut self, idle: u64, granted: u64, hold: u64) -> Option<Duration> {
        let due = if self.hold.is_steady(granted) {
            hold.max(TELL_LATE_NS)
        } else {
            hold
        };
        if idle < due {
            return Some(Duration::from_nanos(due - idle));
        }
        self.state = State::Parked { told: true };
        self.vgpud.send(FromWorker::Idle {
            epoch: self.epoch,
            at_ns: now_ns(),
        });
        None
    }

    /// Work waited, but does no longer (the device faulted, say), and no lease was had.
    pub fn withdraw(&mut self) {
        if self.state == State::Asked {
            self.state = State::None;
            self.vgpud.send(FromWorker::Idle {
                epoch: 0,
                at_ns: now_ns(),
            });
        }
    }

    /// Counts bytes that go to the guest, after credit was taken for them.
    pub fn count_out(&self, bytes: u64) {
        if !self.unasked {
            self.pages.count_out(bytes);
        }
    }

    /// Counts operations given to the device.
    pub fn count_submitted(&mut self, n: u64) {
        self.submitted += n;
        self.pages.publish_submitted(self.submitted);
    }

    /// Counts operations that completed.
    pub fn count_completed(&mut self, n: u64) {
        self.completed += n;
        self.pages.publish_completed(self.completed);
    }

    /// Publishes what waits, and what the first of it costs.
    pub fn publish(&self, waiting: Waiting, head: Head) {
        self.pages
            .publish_queue(waiting.calls, waiting.bytes, head.ns, head.bytes);
    }
}

/// The host's CLOCK_MONOTONIC in ns: the clock of the lease pages and of the gate.
pub(crate) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}
