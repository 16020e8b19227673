//! Requests that wait for earlier work: first until it has been submitted, then until it is complete.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vgpu_proto::call::Op;
use vgpu_proto::cuda::CuResult;

use super::Session;
use super::contexts::Garbage;
use super::streams::{Action, StreamState};
use crate::driver::Event;

/// Whose earlier work.
#[derive(Debug, Clone, Copy)]
pub(super) enum Target {
    /// A stream's.
    Stream(u64),
    /// A context's.
    Context(u64),
    /// What an event recorded last.
    Event(u64),
    /// The session's.
    Everything,
}

/// Where the driver may still hold output of device `printf` that is now due.
#[derive(Debug, Clone)]
pub(super) enum Flush {
    /// In this stream.
    Stream(u64),
    /// In this context.
    Context(u64),
    /// Before this event.
    Event(Arc<Event>),
}

/// What happens then.
#[derive(Debug)]
pub(super) enum After {
    /// The request is answered.
    Reply {
        /// Its operation.
        op: Op,
        /// Its number.
        id: u64,
        /// What to forward first.
        flush: Flush,
    },
    /// Things are given back to the driver, then the request (if it waits) is answered.
    Release {
        /// What.
        garbage: Box<Garbage>,
        /// Bytes that the VM's ledger gets back.
        charge: u64,
        /// (operation, number).
        reply: Option<(Op, u64)>,
    },
}

#[derive(Debug)]
struct Drain {
    after: After,
    /// Streams that are not yet past the point.
    missing: usize,
}

/// What is given back, its charge, and the request that is answered then.
type Release = (Garbage, u64, Option<(Op, u64)>);

/// All that wait.
#[derive(Debug, Default)]
pub(super) struct Drains {
    next: u64,
    list: HashMap<u64, Drain>,
    /// Those whose work is still in the queue: (place of the last of it, drain).
    later: BTreeMap<(u64, u64), Target>,
    /// Those of whose work some is parked: likewise.
    parked: Vec<((u64, u64), Target)>,
    /// What may be given back when no graph is being built any more.
    late: Vec<Release>,
}

impl Drains {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

impl Session {
    /// Does `after` when the target's work received so far is complete.
    pub(super) fn drain(&mut self, target: Target, after: After) {
        self.flow.drains.next += 1;
        let id = self.flow.drains.next;
        self.flow
            .drains
            .list
            .insert(id, Drain { after, missing: 1 });
        let last = self.last_queued(target);
        self.arm_when_due((last, id), target);
    }

    /// Arms a drain, unless some of the target's work up to its place is still in the queue or parked.
    fn arm_when_due(&mut self, (last, id): (u64, u64), target: Target) {
        if last > self.flow.queue.executed() {
            self.flow.drains.later.insert((last, id), target);
        } else if self.is_parked(target, last) {
            self.flow.drains.parked.push(((last, id), target));
        } else {
            self.arm(id, target);
        }
    }

    /// Parked work is back in the queue.
    pub(super) fn resume_drains(&mut self) {
        for (place, target) in std::mem::take(&mut self.flow.drains.parked) {
            self.arm_when_due(place, target);
        }
    }

    /// The place in the queue of the target's last operation; 0: it has none there.
    fn last_queued(&self, target: Target) -> u64 {
        let latest = |pick: &dyn Fn(u64, &StreamState) -> bool| {
            let queued = self.flow.streams.table.iter().filter(|(_, s)| s.queued > 0);
            let picked = queued.filter(|(id, s)| pick(*id, s));
            picked.map(|(_, s)| s.last_queued).max().unwrap_or(0)
        };
        match target {
            Target::Everything => self.flow.queue.last(),
            Target::Context(context) => latest(&|_, s| s.context == context),
            Target::Event(event) => self
                .flow
                .events
                .table
                .get(event)
                .map_or(0, |e| if e.queued > 0 { e.last_queued } else { 0 }),
            Target::Stream(stream) => match self.flow.streams.table.get(stream) {
                // The NULL stream comes after the blocking streams' earlier work.
                Some(s) if s.name == 0 => {
                    let context = s.context;
                    latest(&|id, s| id == stream || (s.context == context && s.blocking))
                }
                Some(s) if s.queued > 0 => s.last_queued,
                _ => 0,
            },
        }
    }

    /// Arms the drains whose work has now been submitted.
    pub(super) fn arm_drains(&mut self) {
        while let Some(entry) = self.flow.drains.later.first_entry() {
            let (last, id) = *entry.key();
            if last > self.flow.queue.executed() {
                return;
            }
            let target = entry.remove();
            self.arm_when_due((last, id), target);
        }
    }

    /// The target's work has been submitted: waits for its completion.
    fn arm(&mut self, id: u64, target: Target) {
        match target {
            Target::Event(event) => self.await_event(id, event),
            Target::Stream(stream) => {
                self.join_null(stream);
                self.await_stream(id, stream);
            }
            Target::Context(context) => {
                let active = self.active_streams(|c| c == context);
                active
                    .into_iter()
                    .for_each(|stream| self.await_stream(id, stream));
            }
            Target::Everything => {
                let active = self.active_streams(|_| true);
                active
                    .into_iter()
                    .for_each(|stream| self.await_stream(id, stream));
            }
        }
        // The one that `drain` counted for itself.
        self.flow.due.push_back(Action::Drain(id));
    }

    fn active_streams(&self, pick: impl Fn(u64) -> bool) -> Vec<u64> {
        let active = self.flow.streams.active().iter().copied();
        active
            .filter(|id| {
                self.flow
                    .streams
                    .table
                    .get(*id)
                    .is_some_and(|s| pick(s.context))
            })
            .collect()
    }

    /// A marker in the NULL stream comes after all that the blocking streams were given before it,
    /// even if the NULL stream itself is empty.
    fn join_null(&mut self, stream: u64) {
        let empty = self
            .flow
            .streams
            .table
            .get(stream)
            .is_some_and(|s| s.drained());
        if empty && self.joins_others(stream) {
            self.mark_before(stream);
            self.submitted(stream);
        }
    }

    /// Is this a NULL stream with work in blocking streams beside it?
    pub(super) fn joins_others(&self, stream: u64) -> bool {
        let Some(state) = self.flow.streams.table.get(stream) else {
            return false;
        };
        state.name == 0
            && self.flow.streams.active().iter().any(|id| {
                let other = self.flow.streams.table.get(*id);
                other.is_some_and(|s| s.context == state.context && s.blocking)
            })
    }

    fn await_stream(&mut self, drain: u64, stream: u64) {
        let Some(state) = self.flow.streams.table.get(stream) else {
            return;
        };
        if state.drained() {
            return;
        }
        self.wait_one_more(drain);
        self.after_tip(stream, Action::Drain(drain));
        // Most often it is the stream's only work and done by now.
        self.harvest(stream);
    }

    fn await_event(&mut self, drain: u64, event: u64) {
        let Some(state) = self.flow.events.table.get(event) else {
            return;
        };
        let Some((stream, seq)) = state.recorded else {
            return;
        };
        if self
            .flow
            .streams
            .table
            .get(stream)
            .is_none_or(|s| s.past(seq))
        {
            return;
        }
        let driver = Arc::clone(&state.driver);
        self.mark_with(stream, seq, &driver);
        self.wait_one_more(drain);
        self.after(stream, seq, Action::Drain(drain));
        self.harvest(stream);
    }

    fn wait_one_more(&mut self, drain: u64) {
        if let Some(drain) = self.flow.drains.list.get_mut(&drain) {
            drain.missing += 1;
        }
    }

    /// One of the things that a drain waits for has come. True: it was the last.
    pub(super) fn drain_step(&mut self, id: u64) -> bool {
        let Some(drain) = self.flow.drains.list.get_mut(&id) else {
            return false;
        };
        drain.missing -= 1;
        drain.missing == 0
    }

    /// All that a drain waited for has come.
    pub(super) fn drained(&mut self, id: u64) {
        let Some(drain) = self.flow.drains.list.remove(&id) else {
            return;
        };
        match drain.after {
            After::Reply { op, id, flush } => {
                self.print(&flush);
                self.link.out.status(op, id, CuResult::SUCCESS);
            }
            After::Release {
                garbage,
                charge,
                reply,
            } => self.release(*garbage, charge, reply),
        }
    }

    /// Gives things back to the driver on a thread that may wait.
    pub(super) fn release(&mut self, garbage: Garbage, charge: u64, reply: Option<(Op, u64)>) {
        if self.objects.graphs.building > 0 {
            return self.flow.drains.late.push((garbage, charge, reply));
        }
        let garbage = self.collect_garbage(garbage);
        let device = garbage.device;
        self.objects.helpers.run(move || {
            drop(garbage);
            Box::new(move |session: &mut Session| session.released(device, charge, reply))
        });
    }

    /// A graph was built: what had to stay for that is given back with the last.
    pub(super) fn release_late(&mut self) {
        if self.objects.graphs.building == 0 {
            for (garbage, charge, reply) in std::mem::take(&mut self.flow.drains.late) {
                self.release(garbage, charge, reply);
            }
        }
    }

    fn released(&mut self, device: usize, charge: u64, reply: Option<(Op, u64)>) {
        self.freed(device, charge);
        match reply {
            Some((op, id)) => {
                self.print_all();
                self.link
                    .out
                    .status(op, id, self.link.poison.unwrap_or(CuResult::SUCCESS));
            }
            None => self.objects.allocs.answered -= 1,
        }
    }

    /// The device is of no more use: answers everybody who waits.
    pub(super) fn abandon_drains(&mut self, code: CuResult) {
        self.flow.drains.later.clear();
        self.flow.drains.parked.clear();
        for (_, drain) in std::mem::take(&mut self.flow.drains.list) {
            match drain.after {
                After::Reply { op, id, .. } => self.link.out.status(op, id, code),
                After::Release {
                    garbage,
                    charge,
                    reply,
                } => {
                    self.release(*garbage, charge, reply);
                }
            }
        }
    }

    /// Forwards what device `printf` wrote, as far as it is certain to be there.
    pub(super) fn print(&mut self, flush: &Flush) {
        if !self.link.printf.due() {
            return;
        }
        // The driver hands output over in its synchronising calls; here nothing is left to wait for.
        match flush {
            Flush::Event(event) => drop(event.synchronize()),
            Flush::Stream(stream) => self.touch(|id, _| id == *stream),
            Flush::Context(context) => self.touch(|_, c| c == *context),
        }
        self.forward_print();
    }

    /// As [`Session::print`], for everything that is complete.
    pub(super) fn print_all(&mut self) {
        if self.link.printf.due() {
            self.touch(|_, _| true);
            self.forward_print();
        }
    }

    fn touch(&self, pick: impl Fn(u64, u64) -> bool) {
        let idle = |c: u64| {
            !self.flow.streams.active().iter().any(|id| {
                self.flow
                    .streams
                    .table
                    .get(*id)
                    .is_some_and(|s| s.context == c)
            })
        };
        for (id, stream) in self.flow.streams.table.iter() {
            // Synchronising the NULL stream would wait for the blocking ones too.
            let still = stream.drained() && (stream.name != 0 || idle(stream.context));
            if still
                && pick(id, stream.context)
                && let Some(driver) = &stream.driver
            {
                let _ = driver.synchronize();
            }
        }
    }

    fn forward_print(&mut self) {
        let text = self.link.printf.collect(self.link.out.queued());
        self.link.out.stdout(&text);
    }
}
