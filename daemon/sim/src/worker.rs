//! A worker: the queue of its guest, the lease protocol on the real shared pages, the window, markers.
//!
//! The lease's states and steps are those of `daemon/worker/src/lease.rs`; what that file does with
//! sockets and clocks is done here with messages and simulated time.

use vgpu_proto::lease::{HintPage, LeasePage, Parked, WorkerEnd};
use vgpu_sched::gate::{
    Config as GateConfig, Direction, Flow, FunctionId, Gate, Hold, Key, LeaseView, Verdict, Wait,
    WaitFor, Waiting, Work,
};

use crate::device::Batch;
use crate::guest::{Guest, Op, What};
use crate::setup::Conduct;
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
    Parked {
        /// vgpud knows that it is.
        told: bool,
    },
}

/// After how long vgpud is told of a parked lease where pauses are always short.
const TELL_LATE_NS: u64 = 5_000_000;

/// Why the queue stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// Nothing waits.
    Empty,
    /// No lease, or no credit.
    Turn,
    /// Too much is unfinished; at this time that may be different.
    Window(Option<u64>),
    /// It goes in only after the slice.
    SliceEnd,
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

/// One stream of a worker.
#[derive(Debug, Default)]
struct Stream {
    flow: Flow,
    /// Number of the last operation submitted.
    submitted: u64,
    completed: u64,
    /// What is submitted and not yet marked.
    open: Option<Batch>,
}

/// One worker with its guest.
#[derive(Debug)]
pub struct Worker {
    pub(crate) vm: u32,
    /// Its GPU; of a gang, the first.
    pub(crate) gpu: u32,
    /// The other GPUs of a gang: each batch runs on all.
    pub(crate) also: Vec<u32>,
    /// Of a gang's batches under way: on how many GPUs they still run, in order of submission.
    parts: std::collections::VecDeque<usize>,
    /// Batches of a gang that are done, by GPU (the first, then the others), of those in `parts`.
    done: Vec<usize>,
    /// The guest.
    pub guest: Guest,
    conduct: Conduct,
    pub(crate) life: Life,
    state: State,
    epoch: u64,
    revoked: bool,
    /// Its slice was over when it was last looked at. It may be extended.
    over: bool,
    /// The end of the slice for which vgpud was told when the work in flight will be over.
    ending: Option<u64>,
    used: bool,
    spent: bool,
    gate: Gate,
    hold: Hold,
    function: FunctionId,
    streams: Vec<Stream>,
    /// When it looks by itself next.
    wakes_ns: u64,
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
        let streams = (0..guest.streams()).map(|_| Stream::default()).collect();
        Self {
            vm,
            gpu: 0,
            also: Vec::new(),
            parts: std::collections::VecDeque::new(),
            done: Vec::new(),
            guest,
            conduct,
            life: Life::Absent,
            state: State::None,
            epoch: 0,
            revoked: false,
            over: false,
            ending: None,
            used: false,
            spent: false,
            gate: Gate::new(GateConfig::default()),
            hold: Hold::default(),
            function: FunctionId::new(b"simulated", "kernel"),
            streams,
            wakes_ns: u64::MAX,
            submitted: 0,
            completed: 0,
            bytes: 0,
            up_at_ns: 0,
            down_at_ns: 0,
        }
    }

    /// Is its lease being given back?
    fn closing(&self) -> bool {
        self.state == State::Held && (self.revoked || self.over)
    }

    /// Its GPUs: more than one for a gang.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = u32> + use<> {
        [self.gpu].into_iter().chain(self.also.clone())
    }

    /// What the gate may know of an operation.
    fn work(&self, op: &Op) -> Work {
        match op.what {
            What::Kernel => {
                Work::Kernel(Key::kernel(self.function, [op.key, 1, 1], [256, 1, 1], 0))
            }
            What::Graph => Work::Graph(Key::graph(u64::from(op.key))),
            What::Copy => Work::Bytes {
                direction: Direction::ToDevice,
                bytes: op.bytes,
            },
        }
    }
}

impl World {
    /// Something changed for a worker: it does all that it can do now.
    pub(crate) fn pump(&mut self, id: u32) {
        if self.workers[id as usize].life != Life::Live {
            return;
        }
        let stop = self.run_queue(id);
        self.mark_all(id);
        let now = self.now;
        let worker = &self.workers[id as usize];
        if worker.gate.in_flight() == 0 {
            if worker.closing() {
                self.release(id);
            } else if stop == Stop::Empty {
                self.rest(id);
            }
            return;
        }
        if worker.closing() || stop == Stop::SliceEnd {
            self.foretell_end(id);
        }
        let worker = &self.workers[id as usize];
        if stop != Stop::Empty {
            let stalls = worker.gate.stall_in(now).map(|ns| now + ns.max(1));
            let opens = match stop {
                Stop::Window(until) => until,
                _ => None,
            };
            if let Some(at) = [stalls, opens].into_iter().flatten().min() {
                self.wake_at(id, at);
            }
        }
    }

    /// Nothing more goes in under the lease: says when what is in flight will be over, once in a slice.
    fn foretell_end(&mut self, id: u32) {
        let end = self.pages[id as usize].end();
        let worker = &mut self.workers[id as usize];
        let (epoch, slice_end_ns) = (worker.epoch, end.slice_end_ns());
        let told = worker.ending == Some(slice_end_ns) || worker.conduct == Conduct::Deaf;
        if worker.state != State::Held || told || !end.wanted(epoch) {
            return;
        }
        let Some(in_ns) = worker.gate.ends_in(self.now) else {
            return;
        };
        worker.ending = Some(slice_end_ns);
        worker.over = true;
        self.say(
            id,
            Said::Ending {
                epoch,
                slice_end_ns,
                in_ns,
            },
        );
    }

    /// Sees to it that the worker looks again by then.
    fn wake_at(&mut self, id: u32, at: u64) {
        let worker = &mut self.workers[id as usize];
        if at < worker.wakes_ns {
            worker.wakes_ns = at;
            self.at(at, Happening::Wake(id));
        }
    }

    /// The time for which a worker has set its alarm has come.
    pub(crate) fn woke(&mut self, id: u32) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        if worker.life != Life::Live || worker.wakes_ns > now {
            return;
        }
        worker.wakes_ns = u64::MAX;
        if worker.gate.stalled(now) && matches!(worker.state, State::Held) {
            let streams = &worker.streams;
            let waiting = worker.guest.look_ahead().map(|(place, stream)| Waiting {
                place,
                idle: streams[usize::from(stream)].flow.ops() == 0,
            });
            // The simulated programs send more whenever there is room.
            worker.gate.relieve(now, waiting, false);
        }
        self.pump(id);
    }

    fn run_queue(&mut self, id: u32) -> Stop {
        let index = id as usize;
        loop {
            let now = self.now;
            let Some((place, op)) = self.workers[index].guest.peek() else {
                return Stop::Empty;
            };
            if !self.enter(id) {
                return Stop::Turn;
            }
            let end = self.pages[index].end();
            let worker = &mut self.workers[index];
            let view = LeaseView {
                closing: worker.closing(),
                slice_end_ns: end.wanted(worker.epoch).then(|| end.slice_end_ns()),
                beside: end.beside(worker.epoch),
            };
            let work = worker.work(&op);
            let flow = &worker.streams[usize::from(op.stream)].flow;
            worker.gate.set_window(end.window_ns());
            let estimate = match worker.gate.may_submit(now, place, work, flow, &view) {
                Verdict::Submit(estimate) => estimate,
                Verdict::Wait(Wait {
                    why: WaitFor::Lease,
                    ..
                }) => return Stop::Turn,
                Verdict::Wait(wait) if wait.ends_slice() => return Stop::SliceEnd,
                Verdict::Wait(Wait { until_ns, .. }) => return Stop::Window(until_ns),
            };
            if !end.take(1, op.bytes) {
                if !worker.spent {
                    worker.spent = true;
                    self.say_runnable(id);
                }
                return Stop::Turn;
            }
            worker.spent = false;
            worker.used = true;
            worker.guest.take();
            let stream = &mut worker.streams[usize::from(op.stream)];
            stream.submitted += 1;
            let (flow, number) = (&mut stream.flow, stream.submitted);
            worker.gate.submitted(now, flow, number, work, estimate);
            self.submit(id, &op);
        }
    }

    /// Is there a lease under which something might be submitted? Takes a parked one back, or asks for
    /// one.
    fn enter(&mut self, id: u32) -> bool {
        let (index, now) = (id as usize, self.now);
        let end = self.pages[index].end();
        let worker = &mut self.workers[index];
        worker.hold.work(now);
        match worker.state {
            State::Held => {}
            State::Parked { told } => {
                let retaken = end.retake(worker.epoch);
                worker.state = if retaken { State::Held } else { State::Asked };
                if told || !retaken {
                    self.say_runnable(id);
                }
                if !retaken {
                    return self.granted(id);
                }
            }
            State::None => {
                worker.state = State::Asked;
                self.say_runnable(id);
                return self.granted(id);
            }
            State::Asked => return false,
        }
        let end = self.pages[index].end();
        let worker = &mut self.workers[index];
        if worker.conduct != Conduct::Deaf {
            worker.revoked |= !end.may_submit(worker.epoch);
            let slice_end = end.slice_end_ns();
            let ends = worker.ending == Some(slice_end) || now >= slice_end;
            worker.over = worker.used && end.wanted(worker.epoch) && ends;
        }
        true
    }

    /// Tells vgpud what waits, and what the first of it is expected to cost.
    fn say_runnable(&mut self, id: u32) {
        let (calls, bytes) = self.publish(id);
        self.say(id, Said::Runnable { calls, bytes });
    }

    /// Writes on the page what waits.
    fn publish(&mut self, id: u32) -> (u64, u64) {
        let worker = &mut self.workers[id as usize];
        let calls = worker.guest.waiting();
        let head = worker.guest.peek().map(|(_, op)| op);
        let head_bytes = head.map_or(0, |op| op.bytes);
        let known = head.and_then(|op| worker.gate.predictor().peek(worker.work(&op)));
        let head_ns = known.map_or(0, |estimate| estimate.mean_ns);
        let bytes = calls.saturating_mul(head_bytes);
        let end = self.pages[id as usize].end();
        end.publish_queue(calls, bytes, head_ns, head_bytes);
        (calls, bytes)
    }

    /// Looks for a grant on the page. True: a lease is ours now that was not before.
    pub(crate) fn granted(&mut self, id: u32) -> bool {
        let worker = &mut self.workers[id as usize];
        if matches!(worker.state, State::Held | State::Parked { .. }) {
            return false;
        }
        let Some(epoch) = self.pages[id as usize].end().accept(worker.epoch) else {
            return false;
        };
        worker.epoch = epoch;
        worker.state = State::Held;
        worker.revoked = false;
        worker.over = false;
        worker.ending = None;
        worker.used = false;
        worker.spent = false;
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
            State::Held => worker.revoked = true,
            State::Parked { .. } => {
                if end.retake(epoch) {
                    worker.state = State::Held;
                    worker.revoked = true;
                } else {
                    worker.state = State::None;
                }
            }
            State::None | State::Asked => {}
        }
    }

    fn submit(&mut self, id: u32, op: &Op) {
        self.operations += 1;
        let worker = &mut self.workers[id as usize];
        worker.submitted += 1;
        worker.bytes += op.bytes;
        self.books.use_up(worker.vm, self.now, op.bytes);
        let stream = &worker.streams[usize::from(op.stream)];
        let joins = |open: &Batch| open.until.is_none() && op.until.is_none();
        if !stream.open.as_ref().is_none_or(joins) {
            self.mark(id, op.stream);
        }
        let worker = &mut self.workers[id as usize];
        let stream = &mut worker.streams[usize::from(op.stream)];
        match &mut stream.open {
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
        if worker.gate.marker_due(&stream.flow, true) {
            self.mark(id, op.stream);
        }
    }

    /// Puts a marker behind what was submitted to a stream.
    fn mark(&mut self, id: u32, stream: u16) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        let stream = &mut worker.streams[usize::from(stream)];
        let Some(batch) = stream.open.take() else {
            return;
        };
        worker.gate.marked(&mut stream.flow, false);
        let (gpu, submitted) = (worker.gpu, worker.submitted);
        if !worker.also.is_empty() {
            worker.parts.push_back(worker.also.len() + 1);
            worker.done.resize(worker.also.len() + 1, 0);
        }
        self.pages[id as usize].end().publish_submitted(submitted);
        self.devices[gpu as usize].submit(now, id, batch);
        for index in 0..self.workers[id as usize].also.len() {
            let gpu = self.workers[id as usize].also[index];
            self.devices[gpu as usize].submit(now, id, batch);
        }
    }

    /// Puts a marker behind everything that was submitted.
    fn mark_all(&mut self, id: u32) {
        let worker = &self.workers[id as usize];
        let gpu = worker.gpu;
        for stream in 0..worker.streams.len() as u16 {
            self.mark(id, stream);
        }
        self.step_device(gpu);
        for index in 0..self.workers[id as usize].also.len() {
            let gpu = self.workers[id as usize].also[index];
            self.step_device(gpu);
        }
    }

    /// A batch of a gang (which has one stream) is complete on one of its GPUs: true, if on all.
    pub(crate) fn gang_done(&mut self, id: u32, gpu: u32) -> bool {
        let worker = &mut self.workers[id as usize];
        let index = worker.also.iter().position(|&other| other == gpu);
        let index = index.map_or(0, |index| index + 1);
        let Some(nth) = worker.done.get_mut(index) else {
            return true;
        };
        *nth += 1;
        if let Some(left) = worker.parts.get_mut(*nth - 1) {
            *left -= 1;
        }
        if worker.parts.front() != Some(&0) {
            return false;
        }
        worker.parts.pop_front();
        worker.done.iter_mut().for_each(|done| *done -= 1);
        true
    }

    /// A marker has fired, and the worker has noticed.
    pub(crate) fn marker(&mut self, id: u32, stream: u16, ops: u32) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        if worker.life != Life::Live {
            return;
        }
        let stream = &mut worker.streams[usize::from(stream)];
        stream.completed += u64::from(ops);
        worker
            .gate
            .completed(now, &mut stream.flow, stream.completed);
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
        let (calls, bytes) = self.publish(id);
        let worker = &mut self.workers[id as usize];
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

    /// Nothing waits for the lease, and nothing is in flight. Where somebody else waits it is kept for the
    /// hold time and then given back; else it is parked, and vgpud is told after the hold time.
    pub(crate) fn rest(&mut self, id: u32) {
        let now = self.now;
        let end = self.pages[id as usize].end();
        let worker = &mut self.workers[id as usize];
        let resting = matches!(worker.state, State::Held | State::Parked { told: false });
        if !resting || worker.conduct == Conduct::Hoarder {
            return;
        }
        worker.hold.idle(now);
        let since = worker.hold.idle_since().unwrap_or(now);
        let granted = end.hold_ns();
        let until = since + worker.hold.hold_ns(granted);
        let epoch = worker.epoch;
        if worker.state == State::Held && (now >= until || !end.wanted(epoch)) {
            match end.park(epoch) {
                Parked::Kept => worker.state = State::Parked { told: false },
                Parked::GiveBack => {}
                Parked::Taken => worker.state = State::None,
            }
        }
        let worker = &mut self.workers[id as usize];
        match worker.state {
            State::Held if now < until && end.may_submit(epoch) => self.wake_at(id, until),
            State::Held => self.release(id),
            State::Parked { .. } => {
                let steady = worker.hold.is_steady(granted);
                let due = until.max(if steady { since + TELL_LATE_NS } else { 0 });
                if now < due {
                    self.wake_at(id, due);
                } else {
                    worker.state = State::Parked { told: true };
                    self.say(id, Said::Idle { epoch });
                }
            }
            State::None | State::Asked => {}
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
