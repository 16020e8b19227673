//! A worker: the queue of its guest, the production lease machine on the real shared pages, the
//! window, and markers. Messages and simulated time replace sockets and clocks.

use vgpu_proto::lease::{HintPage, LeasePage, WorkerEnd};
use vgpu_sched::gate::lease::{Lease, Offer, Refused, head_cost, publish};
use vgpu_sched::gate::{
    Config as GateConfig, Direction, Estimate, Flow, FunctionId, Gate, Key, LeaseView, Verdict,
    Waiting, Work,
};
use vgpu_sched::{Depth, HeadCost};

use crate::device::Batch;
use crate::guest::{Guest, Op, What};
use crate::setup::Conduct;
use crate::world::{Happening, World};

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

/// Why the queue stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// No operation waits.
    Empty,
    /// No lease, or no credit.
    Turn,
    /// The window is full; at this time that may change.
    Window(Option<u64>),
    /// The operation would end after the slice.
    SliceEnd,
}

/// State of the process.
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
    /// Submitted operations without a marker.
    open: Option<Batch>,
}

/// One worker with its guest.
#[derive(Debug)]
pub struct Worker {
    pub(crate) vm: u32,
    /// GPU of the worker; of a gang, the first.
    pub(crate) gpu: u32,
    /// The other GPUs of a gang: each batch runs on all.
    pub(crate) also: Vec<u32>,
    /// Of a gang's batches in flight, in order of submission: the number of GPUs on which each
    /// still runs.
    parts: std::collections::VecDeque<usize>,
    /// Of a gang's batches in `parts`: the number that is done, per GPU (the first, then the
    /// others).
    done: Vec<usize>,
    /// The guest.
    pub guest: Guest,
    pub(crate) conduct: Conduct,
    pub(crate) life: Life,
    lease: Lease,
    gate: Gate,
    function: FunctionId,
    streams: Vec<Stream>,
    /// Next wake-up of the worker, in ns.
    wakes_ns: u64,
    /// Operations given to the device.
    pub submitted: u64,
    /// Operations that are known to be complete.
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
            lease: Lease::default(),
            gate: Gate::new(GateConfig::default()),
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

    /// Whether the lease is being given back.
    fn closing(&self) -> bool {
        self.conduct != Conduct::Deaf && self.lease.closing()
    }

    /// The waiting work, and the predicted cost of its first operation.
    fn waiting(&mut self) -> (Depth, HeadCost) {
        let calls = self.guest.waiting();
        let head = self.guest.peek().map(|(_, op)| op);
        let work = head.as_ref().map(|op| self.work(op));
        let head = head_cost(&self.gate, work, head.as_ref().map_or(0, |op| op.bytes));
        let bytes = calls.saturating_mul(head.bytes);
        (Depth { calls, bytes }, head)
    }

    /// GPUs of the worker: several for a gang.
    pub(crate) fn gpus(&self) -> impl Iterator<Item = u32> + use<> {
        [self.gpu].into_iter().chain(self.also.clone())
    }

    /// The operation as the gate sees it.
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
    /// A change for a worker: it does all that it can do now.
    pub(crate) fn pump(&mut self, id: u32) {
        if self.workers[id as usize].life != Life::Live {
            return;
        }
        let stop = self.run_queue(id);
        self.mark_all(id);
        self.settle(id, stop);
        let (depth, head) = self.workers[id as usize].waiting();
        publish(self.pages[id as usize].end(), depth, head);
        self.send(id);
    }

    /// No more operations can be submitted now: gives the lease back, or schedules a wake-up.
    fn settle(&mut self, id: u32, stop: Stop) {
        let now = self.now;
        let end = self.pages[id as usize].end();
        let worker = &mut self.workers[id as usize];
        if worker.gate.in_flight() == 0 {
            if worker.closing() {
                let (left, head) = worker.waiting();
                worker.lease.release(end, now, left, head);
            } else if stop == Stop::Empty {
                self.rest(id);
            }
            return;
        }
        let ends = worker.closing() || stop == Stop::SliceEnd;
        if ends
            && worker.conduct != Conduct::Deaf
            && let Some(in_ns) = worker.gate.ends_in(now)
        {
            worker.lease.announce_end(end, in_ns);
        }
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

    /// Sends the messages of the lease machine to vgpud.
    fn send(&mut self, id: u32) {
        let messages: Vec<_> = self.workers[id as usize].lease.messages().collect();
        for message in messages {
            self.say(id, message);
        }
    }

    /// Schedules a wake-up of the worker at `at`, unless one is earlier.
    fn wake_at(&mut self, id: u32, at: u64) {
        let worker = &mut self.workers[id as usize];
        if at < worker.wakes_ns {
            worker.wakes_ns = at;
            self.at(at, Happening::Wake(id));
        }
    }

    /// A scheduled wake-up of a worker.
    pub(crate) fn woke(&mut self, id: u32) {
        let now = self.now;
        let worker = &mut self.workers[id as usize];
        if worker.life != Life::Live || worker.wakes_ns > now {
            return;
        }
        worker.wakes_ns = u64::MAX;
        if worker.gate.stalled(now) && worker.lease.held() {
            let streams = &worker.streams;
            let waiting = worker.guest.look_ahead().map(|(place, stream)| Waiting {
                place,
                idle: streams[usize::from(stream)].flow.ops() == 0,
            });
            // The simulated programs send more whenever the queue has room.
            worker.gate.relieve(now, waiting, false);
        }
        self.pump(id);
    }

    fn run_queue(&mut self, id: u32) -> Stop {
        let index = id as usize;
        loop {
            let now = self.now;
            let end = self.pages[index].end();
            let worker = &mut self.workers[index];
            let Some((place, op)) = worker.guest.peek() else {
                return Stop::Empty;
            };
            let (work, conduct) = (worker.work(&op), worker.conduct);
            let depth = worker.waiting().0;
            let Worker {
                lease,
                gate,
                streams,
                ..
            } = worker;
            let offer = Offer {
                place,
                work: Some((work, &streams[usize::from(op.stream)].flow)),
                bytes: op.bytes,
                paid: false,
                depth,
            };
            let admitted = match conduct {
                Conduct::Deaf if lease.held() => admit_deaf(end, lease, gate, now, &offer),
                _ => lease.admit(end, gate, now, &offer),
            };
            let estimate = match admitted {
                Ok(estimate) => estimate,
                Err(Refused::Turn) => return Stop::Turn,
                Err(Refused::Gate(wait)) if wait.ends_slice() => return Stop::SliceEnd,
                Err(Refused::Gate(wait)) => return Stop::Window(wait.until_ns),
            };
            worker.guest.take();
            let stream = &mut worker.streams[usize::from(op.stream)];
            stream.submitted += 1;
            let (flow, number) = (&mut stream.flow, stream.submitted);
            worker.gate.submitted(now, flow, number, work, estimate);
            self.submit(id, &op);
        }
    }

    /// vgpud granted or revoked a lease.
    pub(crate) fn refresh(&mut self, id: u32) {
        let end = self.pages[id as usize].end();
        self.workers[id as usize].lease.refresh(end);
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

    /// Puts a marker behind the submitted work of a stream.
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

    /// Puts a marker behind the submitted work of every stream.
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

    /// A batch of a gang (which has one stream) is complete on one of its GPUs. Returns true if it
    /// is complete on all.
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

    /// A marker has fired, and the worker has noticed it.
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

    /// No work waits, and none is in flight.
    pub(crate) fn rest(&mut self, id: u32) {
        let now = self.now;
        let end = self.pages[id as usize].end();
        let worker = &mut self.workers[id as usize];
        if worker.conduct == Conduct::Hoarder {
            return;
        }
        if let Some(at) = worker.lease.rest(end, now) {
            self.wake_at(id, at);
        }
    }

    /// More operations of the guest arrive.
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

/// A deaf worker submits as if its lease had not been revoked.
fn admit_deaf(
    end: WorkerEnd<'_>,
    lease: &Lease,
    gate: &mut Gate,
    now: u64,
    offer: &Offer<'_>,
) -> Result<Option<Estimate>, Refused> {
    let view = LeaseView {
        closing: false,
        ..lease.view(end)
    };
    let Some((work, flow)) = offer.work else {
        return Ok(None);
    };
    gate.set_window(end.window_ns());
    match gate.may_submit(now, offer.place, work, flow, &view) {
        Verdict::Wait(wait) => Err(Refused::Gate(wait)),
        Verdict::Submit(_) if !end.take(1, offer.bytes) => Err(Refused::Turn),
        Verdict::Submit(estimate) => Ok(estimate),
    }
}
