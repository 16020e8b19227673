//! A worker: the queue of its guest, the lease protocol on the real shared pages, the window, markers.
//!
//! The lease's states and steps are those of `daemon/worker/src/lease.rs`; what that file does with
//! sockets and clocks is done here with messages and simulated time.

use vgpu_proto::lease::{HintPage, LeasePage, Parked, WorkerEnd};

use crate::device::Batch;
use crate::guest::{Guest, Op};
use crate::setup::Conduct;
use crate::window::{Admit, Window};
use crate::world::{Happening, Said, World};

/// The two pages that a worker shares with vgpud.
#[derive(Debug, Default)]
pub(crate) struct Pages {
    pub(crate) lease: LeasePage,
    pub(crate) hint: HintPage,
}

impl Pages {
    fn end(&self) -> WorkerEnd<'_> {
        WorkerEnd::new(&self.lease, &self.hint)
    }
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
    Parked,
}

/// Why the queue stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    Empty,
    Turn,
    Window,
}

/// Does the process live?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    Absent,
    Live,
    /// Killed; the kernel still cleans up.
    Dying,
    Gone,
}

/// One worker with its guest.
#[derive(Debug)]
pub struct Worker {
    pub(crate) vm: u32,
    pub(crate) gpu: u32,
    /// The guest.
    pub guest: Guest,
    conduct: Conduct,
    pub(crate) life: Life,
    state: State,
    epoch: u64,
    closing: bool,
    used: bool,
    spent: bool,
    idle_since: Option<u64>,
    window: Window,
    /// What is submitted and not yet marked.
    open: Option<Batch>,
    /// Operations given to the device.
    pub submitted: u64,
    /// Those known to be complete.
    pub completed: u64,
    /// Bytes of the operations submitted.
    pub bytes: u64,
    pub(crate) up_at_ns: u64,
    pub(crate) down_at_ns: u64,
}

impl Worker {
    pub(crate) fn new(vm: u32, guest: Guest, conduct: Conduct) -> Self {
        Self {
            vm,
            gpu: 0,
            guest,
            conduct,
            life: Life::Absent,
            state: State::None,
            epoch: 0,
            closing: false,
            used: false,
            spent: false,
            idle_since: None,
            window: Window::default(),
            open: None,
            submitted: 0,
            completed: 0,
            bytes: 0,
            up_at_ns: 0,
            down_at_ns: 0,
        }
    }

    fn waiting(&self) -> (u64, u64) {
        (self.guest.waiting(), 0)
    }
}

impl World {
    /// Something changed for a worker: it does all that it can do now.
    pub(crate) fn pump(&mut self, id: u32) {
        if self.workers[id as usize].life != Life::Live {
            return;
        }
        let stop = self.run_queue(id);
        self.mark(id);
        let worker = &self.workers[id as usize];
        if worker.window.in_flight() > 0 {
            return;
        }
        if worker.closing && worker.state == State::Held {
            self.release(id);
        } else if stop == Stop::Empty {
            self.rest(id);
        }
    }

    fn run_queue(&mut self, id: u32) -> Stop {
        let index = id as usize;
        loop {
            let Some(op) = self.workers[index].guest.peek() else {
                return Stop::Empty;
            };
            if !self.enter(id) {
                return Stop::Turn;
            }
            let end = self.pages[index].end();
            let worker = &mut self.workers[index];
            let slice_end = end.wanted(worker.epoch).then(|| end.slice_end_ns());
            if worker.window.admit(self.now, &op, slice_end) == Admit::Wait {
                return Stop::Window;
            }
            if !end.take(1, op.bytes) {
                if !worker.spent {
                    worker.spent = true;
                    let (calls, bytes) = worker.waiting();
                    self.say(id, Said::Runnable { calls, bytes });
                }
                return Stop::Turn;
            }
            worker.spent = false;
            worker.used = true;
            worker.guest.take();
            self.submit(id, &op);
        }
    }

    /// May an operation be submitted now? Takes a parked lease back, or asks for one.
    fn enter(&mut self, id: u32) -> bool {
        let index = id as usize;
        let end = self.pages[index].end();
        let worker = &mut self.workers[index];
        worker.idle_since = None;
        match worker.state {
            State::Held => {}
            State::Parked => {
                worker.state = if end.retake(worker.epoch) {
                    State::Held
                } else {
                    State::Asked
                };
                let (calls, bytes) = worker.waiting();
                let asked = worker.state == State::Asked;
                self.say(id, Said::Runnable { calls, bytes });
                if asked {
                    return self.granted(id);
                }
            }
            State::None => {
                worker.state = State::Asked;
                let (calls, bytes) = worker.waiting();
                self.say(id, Said::Runnable { calls, bytes });
                return self.granted(id);
            }
            State::Asked => return false,
        }
        let end = self.pages[index].end();
        let worker = &mut self.workers[index];
        if worker.conduct == Conduct::Deaf {
            return true;
        }
        if worker.closing {
            return false;
        }
        let revoked = !end.may_submit(worker.epoch);
        let over = worker.used && end.wanted(worker.epoch) && self.now >= end.slice_end_ns();
        worker.closing = revoked || over;
        !worker.closing
    }

    /// Looks for a grant on the page. True: a lease is ours now that was not before.
    pub(crate) fn granted(&mut self, id: u32) -> bool {
        let worker = &mut self.workers[id as usize];
        if matches!(worker.state, State::Held | State::Parked) {
            return false;
        }
        let Some(epoch) = self.pages[id as usize].end().accept(worker.epoch) else {
            return false;
        };
        worker.epoch = epoch;
        worker.state = State::Held;
        worker.closing = false;
        worker.used = false;
        worker.spent = false;
        worker.idle_since = None;
        true
    }

    /// vgpud asks back what it granted as `epoch`.
    pub(crate) fn revoked(&mut self, id: u32, epoch: u64) {
        self.granted(id);
        let end = self.pages[id as usize].end();
        let worker = &mut self.workers[id as usize];
        if epoch != worker.epoch || worker.conduct == Conduct::Deaf {
            return;
        }
        match worker.state {
            State::Held => worker.closing = true,
            State::Parked => {
                if end.retake(epoch) {
                    worker.state = State::Held;
                    worker.closing = true;
                } else {
                    worker.state = State::None;
                }
            }
            State::None | State::Asked => {}
        }
    }

    fn submit(&mut self, id: u32, op: &Op) {
        let worker = &mut self.workers[id as usize];
        worker.submitted += 1;
        worker.bytes += op.bytes;
        self.operations += 1;
        let joins = worker.open.as_ref().is_some_and(|open| {
            open.stream == op.stream && open.until.is_none() && op.until.is_none()
        });
        if !joins {
            self.mark(id);
        }
        let worker = &mut self.workers[id as usize];
        match &mut worker.open {
            Some(open) => {
                open.ops += 1;
                open.ns += op.ns;
            }
            none => {
                *none = Some(Batch {
                    stream: op.stream,
                    ops: 1,
                    ns: op.ns,
                    until: op.until,
                });
            }
        }
        if worker.window.submitted(op) {
            self.mark(id);
        }
    }

    /// Puts a marker behind what was submitted.
    fn mark(&mut self, id: u32) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        let Some(batch) = worker.open.take() else {
            return;
        };
        worker.window.marked();
        let (gpu, submitted) = (worker.gpu, worker.submitted);
        self.pages[id as usize].end().publish_submitted(submitted);
        self.devices[gpu as usize].submit(now, id, batch);
        self.step_device(gpu);
    }

    /// A marker has fired, and the worker has noticed.
    pub(crate) fn marker(&mut self, id: u32, ops: u32) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        if worker.life != Life::Live {
            return;
        }
        worker.window.fired();
        worker.completed += u64::from(ops);
        let completed = worker.completed;
        let claimed = match worker.conduct {
            Conduct::Boaster => worker.submitted,
            _ => completed,
        };
        let next = worker.guest.completed(completed, now);
        self.pages[id as usize].end().publish_completed(claimed);
        if let Some(at) = next {
            self.at(at + self.host.guest_ns, Happening::Arrive(id));
        }
        self.pump(id);
    }

    /// Gives a drained lease back.
    fn release(&mut self, id: u32) {
        let worker = &mut self.workers[id as usize];
        let (calls, bytes) = worker.waiting();
        worker.closing = false;
        worker.state = if calls > 0 { State::Asked } else { State::None };
        let epoch = worker.epoch;
        self.say(
            id,
            Said::Released {
                epoch,
                calls,
                bytes,
            },
        );
    }

    /// The lease is held, nothing waits for it and nothing is in flight: keeps it for the hold time,
    /// then parks it.
    pub(crate) fn rest(&mut self, id: u32) {
        let now = self.now;
        let end = self.pages[id as usize].end();
        let worker = &mut self.workers[id as usize];
        if worker.state != State::Held || worker.conduct == Conduct::Hoarder {
            return;
        }
        let fresh = worker.idle_since.is_none();
        let since = *worker.idle_since.get_or_insert(now);
        let until = since + end.hold_ns();
        let epoch = worker.epoch;
        if now < until && end.may_submit(epoch) {
            if fresh {
                self.at(until, Happening::Hold(id, epoch));
            }
            return;
        }
        worker.idle_since = None;
        match end.park(epoch) {
            Parked::Kept => {
                worker.state = State::Parked;
                self.say(id, Said::Idle { epoch });
            }
            Parked::GiveBack => self.release(id),
            Parked::Taken => worker.state = State::None,
        }
    }

    /// The hold may be over.
    pub(crate) fn hold_over(&mut self, id: u32, epoch: u64) {
        let worker = &self.workers[id as usize];
        let still =
            worker.life == Life::Live && worker.epoch == epoch && worker.idle_since.is_some();
        if still && worker.window.in_flight() == 0 {
            self.rest(id);
            // Work came and went meanwhile: a new hold began.
            let worker = &self.workers[id as usize];
            if let Some(since) = worker.idle_since {
                let until = since + self.pages[id as usize].end().hold_ns();
                if until > self.now {
                    self.at(until, Happening::Hold(id, epoch));
                }
            }
        }
    }

    /// The guest has more to do.
    pub(crate) fn arrive(&mut self, id: u32) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        if worker.life != Life::Live {
            return;
        }
        if let Some(at) = worker.guest.arrive(now) {
            self.at(at, Happening::Arrive(id));
        }
        self.pump(id);
    }
}
