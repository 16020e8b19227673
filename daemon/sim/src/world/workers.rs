//! The actions of workers on arrivals, grants, revocations, completed work and time. Simulated
//! messages and time replace sockets and clocks.

use vgpu_proto::lease::WorkerEnd;
use vgpu_sched::gate::lease::{Lease, Offer, Refused, publish};
use vgpu_sched::gate::{Estimate, Gate, LeaseView, Verdict, Waiting};

use super::World;
use super::worker::Worker;
use crate::device::Batch;
use crate::op::Op;
use crate::parts::{Happening, Life};
use crate::setup::Conduct;

/// Why no more operations of the queue are submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stop {
    /// No operation waits.
    Empty,
    /// There is no lease or no credit.
    Turn,
    /// The window is full. At the given time in ns, the window may have room.
    Window(Option<u64>),
    /// The operation would end after the slice.
    SliceEnd,
}

impl World {
    /// Makes a worker act on a change: the worker does everything that it can do now.
    pub(super) fn pump(&mut self, id: u32) {
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

    /// Acts when no more operations can be submitted: returns or parks the lease, or schedules a
    /// wake-up.
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

    /// Sends the collected messages of the lease to vgpud.
    fn send(&mut self, id: u32) {
        let messages: Vec<_> = self.workers[id as usize].lease.messages().collect();
        for message in messages {
            self.say(id, message);
        }
    }

    /// Schedules a wake-up of the worker at `at`, unless an earlier wake-up is scheduled.
    fn wake_at(&mut self, id: u32, at: u64) {
        let worker = &mut self.workers[id as usize];
        if at < worker.wakes_ns {
            worker.wakes_ns = at;
            self.at(at, Happening::Wake(id));
        }
    }

    /// Handles a scheduled wake-up of a worker.
    pub(super) fn woke(&mut self, id: u32) {
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
            // Simulated programs send more whenever the queue has room, so `backed_up` is false.
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

    /// Reads from the lease page that vgpud granted or revoked a lease.
    pub(super) fn refresh(&mut self, id: u32) {
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

    /// Records a marker after the submitted work of a stream.
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

    /// Records a marker after the submitted work of every stream.
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

    /// Records that a batch of a gang (which has one stream) is complete on one of its GPUs.
    /// Returns true if the batch is complete on all GPUs.
    pub(super) fn gang_done(&mut self, id: u32, gpu: u32) -> bool {
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

    /// Handles a marker that has fired.
    pub(super) fn marker(&mut self, id: u32, stream: u16, ops: u32) {
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

    /// Handles a worker with no waiting work and nothing in flight.
    fn rest(&mut self, id: u32) {
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

    /// Handles the arrival of operations of the guest.
    pub(super) fn arrive(&mut self, id: u32) {
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

/// Admits an operation as [`Lease::admit`] does, without asking whether the lease is being
/// returned: the production machine cannot do this, a worker that its guest has taken over can. The
/// gate still counts, because vgpud's kill, not the depth, is what the proofs examine.
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
