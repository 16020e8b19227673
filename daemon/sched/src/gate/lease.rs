//! The worker's half of the GPU lease.
//!
//! [`Lease`] is a state machine without I/O: time and the shared pages are arguments, and what the
//! worker has to tell vgpud is collected until [`Lease::messages`] takes it. The worker and the
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

/// Time in ns after a pause began at which vgpud is told of a parked lease, if the session's pauses
/// are always short. Longer than the kernel's tick, so that such a pause sets no timer.
const TELL_LATE_NS: u64 = 5_000_000;

/// How often vgpud is asked for the credit that a waiting guest needs, in ns.
const ASK_AGAIN_NS: u64 = 10_000_000;

/// The cost of an operation that copies `bytes`, with the GPU time that `gate` predicts for `work`.
#[must_use]
pub fn head_cost(gate: &Gate, work: Option<Work>, bytes: u64) -> HeadCost {
    let known = work.and_then(|work| gate.predictor().peek(work));
    HeadCost {
        gpu_ns: known.map_or(0, |estimate| estimate.mean_ns),
        bytes,
    }
}

/// The first operation of the queue, which asks to be submitted.
#[derive(Debug)]
pub struct Offer<'a> {
    /// Place of the operation in the session's queue.
    pub place: u64,
    /// The operation as the gate times it, and its stream. `None`: the operation takes no GPU time.
    pub work: Option<(Work, &'a Flow)>,
    /// Bytes of credit that the operation takes, besides one call.
    pub bytes: u64,
    /// Credit was taken already, as for the later pieces of a copy.
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
    /// Nothing waits any more. `epoch`: the parked lease; 0: there was no lease.
    Idle {
        /// The parked lease.
        epoch: u64,
    },
    /// Nothing more is submitted in this slice, and the work in flight ends soon.
    Ending {
        /// The lease.
        epoch: u64,
        /// End of the slice as the page gave it, in ns. An extended slice makes this message void.
        slice_end_ns: u64,
        /// Predicted ns until the work in flight is complete.
        in_ns: u64,
    },
    /// The lease is given back: nothing is in flight.
    Released {
        /// The lease.
        epoch: u64,
        /// Work that still waits.
        left: Depth,
    },
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum State {
    /// No lease, and none asked for.
    #[default]
    None,
    /// vgpud knows that work waits.
    Asked,
    /// The lease is in use.
    Held,
    /// The lease is unused, and either side may take it.
    Parked {
        /// vgpud knows that the lease lies parked.
        told: bool,
    },
}

/// The lease of one worker.
#[derive(Debug, Default)]
pub struct Lease {
    state: State,
    epoch: u64,
    /// vgpud asked this epoch back: nothing more may be submitted.
    revoked: bool,
    /// The slice was over at the last look. vgpud may still extend the slice.
    over: bool,
    /// End of the slice for which [`Message::Ending`] was sent: nothing more is submitted, unless
    /// vgpud extends the slice.
    ending: Option<u64>,
    /// An operation was admitted under this epoch.
    used: bool,
    /// vgpud was told that the credit is used up.
    spent: bool,
    hold: Hold,
    /// Calls and bytes that moved without a turn and are not paid for.
    moved: Depth,
    /// When vgpud was last asked for credit for `moved`, while there is no credit.
    asked_ns: Option<u64>,
    messages: Vec<Message>,
}

impl Lease {
    /// Takes the messages for vgpud, in order.
    pub fn messages(&mut self) -> impl Iterator<Item = Message> {
        self.messages.drain(..)
    }

    /// Whether the first operation of the queue may be submitted now. Takes a parked lease back, or
    /// asks vgpud for a lease.
    /// An operation that relieves a stall is admitted even while the lease is being given back: the
    /// kernels in flight may wait for that operation and would otherwise keep the lease forever. No
    /// more credit comes under such a lease, so the cost is owed.
    ///
    /// # Errors
    /// [`Refused`]: ask again after a message of vgpud, a completion, or at the time named.
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

    /// Whether work may be submitted under the lease. Takes a parked lease back, or asks for one.
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
        // A slice that ended before it was used still serves one operation. Otherwise a session
        // whose grants arrive late would never get anything done.
        let slice_end = pages.slice_end_ns();
        self.over = self.used
            && pages.wanted(self.epoch)
            && (self.ending == Some(slice_end) || now >= slice_end);
        !self.closing()
    }

    fn ask(&mut self, pages: WorkerEnd<'_>, depth: Depth) -> bool {
        self.state = State::Asked;
        self.messages.push(Message::Runnable(depth));
        // vgpud may have granted a lease just now. The message of that grant would bring the worker
        // back here anyway.
        self.accept(pages)
    }

    /// Accepts a lease that vgpud has granted on the page. Returns whether there was one.
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

    /// Reads from the page whether vgpud granted a lease, revoked a lease or gave credit.
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

    /// Announces that nothing more is submitted under this lease and that the work in flight is
    /// predicted to complete in `in_ns`. Sends one message a slice, and only while another session
    /// waits.
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

    /// Whether the lease is being given back: it is released as soon as nothing is in flight.
    #[must_use]
    pub fn closing(&self) -> bool {
        self.held() && (self.revoked || self.over)
    }

    /// Whether another session waits for the lease that this worker holds.
    #[must_use]
    pub fn wanted(&self, pages: WorkerEnd<'_>) -> bool {
        self.held() && pages.wanted(self.epoch)
    }

    /// Whether the lease is in use.
    #[must_use]
    pub fn held(&self) -> bool {
        self.state == State::Held
    }

    /// The lease as the gate sees it.
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

    /// Takes credit for an operation and for the unpaid moves before it. If no credit is left,
    /// tells vgpud once; vgpud gives more or revokes the lease.
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

    /// Counts bytes that moved to the worker's copy of page-locked memory, or (`out`) from it, in a
    /// frame that needs no turn. They are paid for afterwards ([`Lease::pay`]), as a large copy is;
    /// a frame without bytes costs one call.
    pub fn moved(&mut self, pages: WorkerEnd<'_>, bytes: u64, out: bool) {
        let calls = u64::from(bytes == 0);
        self.moved.calls += calls;
        self.moved.bytes = self.moved.bytes.saturating_add(bytes);
        pages.owe(calls, bytes);
        if out {
            pages.count_out(bytes);
        }
    }

    /// Pays for what moved without a turn. Returns false if there is no credit: the guest may move
    /// nothing more, and vgpud knows. Only a lease has credit, so without a lease this asks for
    /// one.
    ///
    /// A lease that is being given back can stay for long, because its kernels may wait for data
    /// that the guest sends next. So vgpud is asked again and again, and gives credit under such a
    /// lease, too.
    pub fn pay(&mut self, pages: WorkerEnd<'_>, now: u64, depth: Depth) -> bool {
        if self.is_paid(pages) {
            if self.moved != Depth::default() {
                // The moves may have used the credit that an operation was promised: that operation
                // asks again.
                self.spent = false;
            }
            self.moved = Depth::default();
            self.asked_ns = None;
            return true;
        }
        // Asks for a lease, unless there is one.
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

    /// When vgpud has to be asked for credit again, in ns, while [`Lease::pay`] finds none.
    #[must_use]
    pub fn asks_again_at(&self) -> Option<u64> {
        let asked = self.asked_ns.filter(|_| self.held())?;
        Some(asked + ASK_AGAIN_NS)
    }

    /// Gives the lease back; nothing may be in flight. `left` is the waiting work, and `head` the
    /// cost of its first operation.
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

    /// Nothing waits and nothing is in flight. While another session waits, the lease is kept for
    /// the hold time and then given back. Otherwise the lease is parked, and after the hold time
    /// vgpud is told. Returns when this must be called again, in ns.
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

    /// The waiting work is gone (after a fault of the device, say), and no lease was granted for
    /// it.
    pub fn withdraw(&mut self) {
        if self.state == State::Asked {
            self.state = State::None;
            self.messages.push(Message::Idle { epoch: 0 });
        }
    }
}

/// Writes on the page the waiting work and the cost of its first operation.
pub fn publish(pages: WorkerEnd<'_>, depth: Depth, head: HeadCost) {
    pages.publish_queue(depth.calls, depth.bytes, head.gpu_ns, head.bytes);
}
