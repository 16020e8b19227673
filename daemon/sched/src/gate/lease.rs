//! The worker's half of the GPU lease.
//!
//! [`Lease`] is a state machine without I/O: time and the shared pages are arguments. Messages for
//! vgpud are collected until the caller takes them with [`Lease::messages`]. The worker and the
//! simulator drive this same type, so the simulator's proofs hold for the code that runs.
//!
//! ```text
//!           work arrives            vgpud grants              no work, nobody waits
//!   None ─────────────────► Asked ───────────────► Held ─────────────────────────► Parked
//!    ▲      (Runnable)        ▲                    │  ▲ ▲                             │ │
//!    │                        └────────────────────┘  │ └─────────────────────────────┘ │
//!    │                          drained, work left    │     work arrives: retake        │
//!    └────────────────────────────────────────────────┘                                 │
//!    ▲        drained, no work left (Released)                                          │
//!    └──────────────────────────────────────────────────────────────────────────────────┘
//!                               vgpud takes the parked lease
//! ```

use vgpu_proto::lease::{Parked, WorkerEnd};

use super::{Estimate, Flow, Gate, Hold, LeaseView, Verdict, Wait, Work};
use crate::depth::{Depth, HeadCost};

/// Time in ns from the start of a pause to the report of a parked lease, for sessions whose pauses
/// are always short. It is longer than the kernel's timer tick, so that short pauses need no timer.
const TELL_LATE_NS: u64 = 5_000_000;

/// Interval in ns at which the worker asks vgpud again for credit that a waiting guest needs.
const ASK_AGAIN_NS: u64 = 10_000_000;

/// Expected cost of an operation: the GPU time that `gate` predicts for `work`, and the `bytes`
/// that the operation copies.
#[must_use]
pub fn head_cost(gate: &Gate, work: Option<Work>, bytes: u64) -> HeadCost {
    let known = work.and_then(|work| gate.predictor().peek(work));
    HeadCost {
        gpu_ns: known.map_or(0, |estimate| estimate.mean_ns),
        bytes,
    }
}

/// The first operation of the queue, offered for submission.
#[derive(Debug)]
pub struct Offer<'a> {
    /// Place of the operation in the session's queue.
    pub place: u64,
    /// The operation in the gate's terms, and its stream. `None`: the operation takes no GPU time.
    pub work: Option<(Work, &'a Flow)>,
    /// Bytes of credit that the operation costs, besides one call.
    pub bytes: u64,
    /// The credit was paid already (the later pieces of a copy, say).
    pub paid: bool,
    /// All waiting work, this operation included.
    pub depth: Depth,
}

/// Why an operation may not be submitted now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// The worker holds no lease, gives the lease back, or lacks credit.
    Turn,
    /// The gate holds the operation back.
    Gate(Wait),
}

/// A message to vgpud about the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Message {
    /// Work waits for a lease or for credit.
    Runnable(Depth),
    /// No work waits any more.
    Idle {
        /// Epoch of the parked lease; 0 if there is no lease.
        epoch: u64,
    },
    /// The worker submits nothing more in this slice, and the work in flight ends soon.
    Ending {
        /// Epoch of the lease.
        epoch: u64,
        /// End of the slice in ns, as read from the lease page. If vgpud extends the slice, this
        /// message is void.
        slice_end_ns: u64,
        /// Predicted ns until the work in flight is complete.
        in_ns: u64,
    },
    /// The worker returns the lease: nothing is in flight.
    Released {
        /// Epoch of the lease.
        epoch: u64,
        /// Work that still waits.
        left: Depth,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// The worker has no lease and has not asked for a lease.
    #[default]
    None,
    /// The worker has no lease and has told vgpud that work waits.
    Asked,
    /// The lease is in use.
    Held,
    /// The lease is unused: the worker may take it back, and vgpud may take it away.
    Parked {
        /// Whether vgpud was told that the lease is parked.
        told: bool,
    },
}

/// The lease of one worker.
#[derive(Debug, Default)]
pub struct Lease {
    state: State,
    epoch: u64,
    /// vgpud revoked this epoch: nothing more may be submitted.
    revoked: bool,
    /// At the last check, the slice was over. vgpud may still extend the slice.
    over: bool,
    /// End in ns of the slice for which [`Message::Ending`] was sent. The worker submits nothing
    /// more in that slice.
    ending: Option<u64>,
    /// Whether an operation was admitted under this epoch.
    used: bool,
    /// Whether vgpud was told that the credit is used up.
    spent: bool,
    hold: Hold,
    /// Calls and bytes of data frames that needed no lease. The worker has not yet paid for these
    /// frames from its credit.
    moved: Depth,
    /// Time in ns of the last request for credit for `moved`; `None` if no credit is missing.
    asked_ns: Option<u64>,
    messages: Vec<Message>,
}

impl Lease {
    /// Removes and returns the collected messages for vgpud, in order.
    pub fn messages(&mut self) -> impl Iterator<Item = Message> {
        self.messages.drain(..)
    }

    /// Whether the first operation of the queue may be submitted now. Takes a parked lease back, or
    /// asks vgpud for a lease.
    ///
    /// An operation that relieves a stall is admitted even under a revoked or ended lease: kernels
    /// in flight may wait for that operation and would otherwise keep the lease forever. vgpud
    /// gives no more credit under this lease, so the cost becomes a debt.
    ///
    /// # Errors
    /// [`Refused`]: the caller asks again after a message of vgpud, after a completion, or at the
    /// time that [`Wait`] names.
    pub fn admit(
        &mut self,
        pages: WorkerEnd<'_>,
        gate: &mut Gate,
        now: u64,
        offer: &Offer<'_>,
    ) -> Result<Option<Estimate>, Refused> {
        if self.asks() {
            let head = head_cost(gate, offer.work.map(|(work, _)| work), offer.bytes);
            publish(pages, offer.depth, head);
        }
        let entered = self.enter(pages, now, offer.depth);
        let relieves = self.closing() && gate.exempted(offer.place);
        if !entered && !relieves {
            return Err(Refused::Turn);
        }
        let mut estimate = None;
        if let Some((work, flow)) = offer.work {
            gate.set_window(pages.window_ns());
            match gate.may_submit(now, offer.place, work, flow, &self.view(pages)) {
                Verdict::Submit(known) => estimate = known,
                Verdict::Wait(wait) => return Err(Refused::Gate(wait)),
            }
        }
        if !offer.paid && !self.take(pages, offer) {
            if !relieves {
                return Err(Refused::Turn);
            }
            pages.owe(1, offer.bytes);
        }
        self.used = true;
        Ok(estimate)
    }

    /// Whether work may be submitted under the lease. Takes a parked lease back, or asks vgpud for
    /// a lease.
    fn enter(&mut self, pages: WorkerEnd<'_>, now: u64, depth: Depth) -> bool {
        self.hold.work(now);
        match self.state {
            State::Held => {}
            State::Parked { told } => {
                if !pages.retake(self.epoch) {
                    return self.ask(pages, depth);
                }
                self.state = State::Held;
                if told {
                    self.messages.push(Message::Runnable(depth));
                }
            }
            State::None => return self.ask(pages, depth),
            State::Asked => return false,
        }
        self.revoked |= !pages.may_submit(self.epoch);
        // A slice that is over before its first operation still admits one operation. Otherwise a
        // session whose grants arrive late would never run anything.
        let slice_end = pages.slice_end_ns();
        self.over = self.used
            && pages.wanted(self.epoch)
            && (self.ending == Some(slice_end) || now >= slice_end);
        !self.closing()
    }

    fn ask(&mut self, pages: WorkerEnd<'_>, depth: Depth) -> bool {
        self.state = State::Asked;
        self.messages.push(Message::Runnable(depth));
        // vgpud may have granted a lease in the meantime. Checking here saves the wait for the
        // message of that grant.
        self.accept(pages)
    }

    /// Accepts a lease that vgpud has granted on the lease page. Returns whether there was a new
    /// lease.
    fn accept(&mut self, pages: WorkerEnd<'_>) -> bool {
        if matches!(self.state, State::Held | State::Parked { .. }) {
            return false;
        }
        let Some(epoch) = pages.accept(self.epoch) else {
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

    /// Reads from the lease page whether vgpud granted a lease or revoked the lease.
    pub fn refresh(&mut self, pages: WorkerEnd<'_>) {
        self.accept(pages);
        if pages.may_submit(self.epoch) {
            return;
        }
        match self.state {
            State::Held => self.revoked = true,
            State::Parked { .. } => {
                self.revoked = pages.retake(self.epoch);
                self.state = if self.revoked {
                    State::Held
                } else {
                    State::None
                };
            }
            State::None | State::Asked => {}
        }
    }

    /// Announces to vgpud that nothing more is submitted under this lease and that the work in
    /// flight is predicted to complete in `in_ns`. Sends at most one message per slice, and only
    /// while another session waits.
    pub fn announce_end(&mut self, pages: WorkerEnd<'_>, in_ns: u64) {
        let slice_end = pages.slice_end_ns();
        if !self.wanted(pages) || self.ending == Some(slice_end) {
            return;
        }
        self.ending = Some(slice_end);
        self.over = true;
        self.messages.push(Message::Ending {
            epoch: self.epoch,
            slice_end_ns: slice_end,
            in_ns,
        });
    }

    /// Whether the worker is returning the lease, which ends as soon as nothing is in flight.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.held() && (self.revoked || self.over)
    }

    /// Whether another session waits for the lease that this worker holds.
    #[must_use]
    pub fn wanted(&self, pages: WorkerEnd<'_>) -> bool {
        self.held() && pages.wanted(self.epoch)
    }

    /// Whether the worker holds the lease and the lease is not parked.
    #[must_use]
    pub fn held(&self) -> bool {
        self.state == State::Held
    }

    /// The facts about the lease that the gate needs.
    #[must_use]
    pub fn view(&self, pages: WorkerEnd<'_>) -> LeaseView {
        LeaseView {
            closing: self.closing(),
            slice_end_ns: self.wanted(pages).then(|| pages.slice_end_ns()),
            beside: self.held() && pages.beside(self.epoch),
        }
    }

    /// Whether admitting an operation would send a message to vgpud.
    fn asks(&self) -> bool {
        matches!(self.state, State::None | State::Parked { told: true })
    }

    /// Pays credit for an operation and for the unpaid data frames before the operation. If the
    /// credit does not suffice, reports this to vgpud once; vgpud then gives more credit or revokes
    /// the lease.
    fn take(&mut self, pages: WorkerEnd<'_>, offer: &Offer<'_>) -> bool {
        let paid = pages.in_credit(self.moved.calls, self.moved.bytes);
        if paid && pages.take(1, offer.bytes) {
            self.moved = Depth::default();
            self.spent = false;
            return true;
        }
        if !self.spent {
            self.spent = true;
            self.messages.push(Message::Runnable(offer.depth));
        }
        false
    }

    /// Records bytes of a frame that needs no lease: data for the worker's copy of page-locked
    /// memory, a piece of an image, or (`out`) data for the guest: of that copy, of device
    /// `printf`, the result of a link. [`Lease::pay`] pays for these bytes afterwards. A frame
    /// without bytes costs one call.
    pub fn moved(&mut self, pages: WorkerEnd<'_>, bytes: u64, out: bool) {
        let calls = u64::from(bytes == 0);
        self.moved.calls += calls;
        self.moved.bytes = self.moved.bytes.saturating_add(bytes);
        pages.owe(calls, bytes);
        if out {
            pages.count_out(bytes);
        }
    }

    /// Pays for the data frames recorded by [`Lease::moved`]. Returns false if there is no credit:
    /// the guest may then send no more data frames, and vgpud is asked for credit. Only a lease has
    /// credit, so without a lease this function asks for a lease.
    ///
    /// A revoked lease can stay with the worker for long, because its kernels may wait for data
    /// that the guest sends next. Therefore the worker repeats the request for credit every
    /// 10 ms, and vgpud gives credit even under a revoked lease.
    pub fn pay(&mut self, pages: WorkerEnd<'_>, now: u64, depth: Depth) -> bool {
        if self.is_paid(pages) {
            if self.moved != Depth::default() {
                // These frames may have used the credit that vgpud gave for a waiting operation: if
                // so, the operation must report missing credit again.
                self.spent = false;
            }
            self.moved = Depth::default();
            self.asked_ns = None;
            return true;
        }
        self.enter(pages, now, depth);
        let due = self.asked_ns.is_none_or(|at| now >= at + ASK_AGAIN_NS);
        if self.held() && due {
            self.asked_ns = Some(now);
            self.messages.push(Message::Runnable(depth));
        }
        false
    }

    fn is_paid(&self, pages: WorkerEnd<'_>) -> bool {
        let Depth { calls, bytes } = self.moved;
        let ours = || match self.state {
            State::Held => true,
            State::Parked { .. } => pages.lies_parked(self.epoch),
            State::None | State::Asked => false,
        };
        !pages.limits(calls, bytes) || pages.in_credit(calls, bytes) && ours()
    }

    /// Time in ns at which the caller must call [`Lease::pay`], which then repeats the request for
    /// credit to vgpud. `None` if [`Lease::pay`] has asked for no credit, or if the worker does not
    /// hold the lease.
    #[must_use]
    pub fn asks_again_at(&self) -> Option<u64> {
        let asked = self.asked_ns.filter(|_| self.held())?;
        Some(asked + ASK_AGAIN_NS)
    }

    /// Returns the lease to vgpud; nothing may be in flight. `left` is the waiting work, and `head`
    /// the cost of its first operation.
    pub fn release(&mut self, pages: WorkerEnd<'_>, now: u64, left: Depth, head: HeadCost) {
        if !self.held() {
            return;
        }
        let more = left.calls > 0;
        if !more {
            self.hold.idle(now);
        }
        publish(pages, left, head);
        self.messages.push(Message::Released {
            epoch: self.epoch,
            left,
        });
        self.state = if more { State::Asked } else { State::None };
    }

    /// Handles a session with nothing waiting and nothing in flight. If another session waits, the
    /// worker keeps the lease for the hold time and then releases it. Otherwise the worker parks
    /// the lease and reports this to vgpud after the hold time. Returns the time in ns at which
    /// this function must be called again.
    pub fn rest(&mut self, pages: WorkerEnd<'_>, now: u64) -> Option<u64> {
        if !matches!(self.state, State::Held | State::Parked { told: false }) {
            return None;
        }
        self.hold.idle(now);
        let since = self.hold.idle_since().unwrap_or(now);
        let granted = pages.hold_ns();
        let until = since.saturating_add(self.hold.hold_ns(granted));
        if self.held() && (now >= until || !pages.wanted(self.epoch)) {
            publish(pages, Depth::default(), HeadCost::default());
            match pages.park(self.epoch) {
                Parked::Kept => self.state = State::Parked { told: false },
                Parked::GiveBack => {}
                Parked::Taken => self.state = State::None,
            }
        }
        match self.state {
            State::Held if now < until && pages.may_submit(self.epoch) => Some(until),
            State::Held => {
                self.release(pages, now, Depth::default(), HeadCost::default());
                None
            }
            State::Parked { .. } => {
                let steady = self.hold.is_steady(granted);
                let due = until.max(if steady { since + TELL_LATE_NS } else { 0 });
                if now < due {
                    return Some(due);
                }
                self.state = State::Parked { told: true };
                self.messages.push(Message::Idle { epoch: self.epoch });
                None
            }
            State::None | State::Asked => None,
        }
    }

    /// Withdraws a request for a lease: the waiting work is gone (after a device fault, say) before
    /// vgpud granted a lease.
    pub fn withdraw(&mut self) {
        if self.state == State::Asked {
            self.state = State::None;
            self.messages.push(Message::Idle { epoch: 0 });
        }
    }
}

/// Writes the waiting work and the cost of its first operation on the hint page.
pub fn publish(pages: WorkerEnd<'_>, depth: Depth, head: HeadCost) {
    pages.publish_queue(depth.calls, depth.bytes, head.gpu_ns, head.bytes);
}
