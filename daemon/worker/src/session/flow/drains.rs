//! Drains: requests that wait for earlier work, first for its submission, then for its completion.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use vgpu_proto::call::Op;
use vgpu_proto::cuda::CuResult;

use super::Flow;
use super::print::Flush;
use super::streams::{Action, StreamState, Target};
use crate::session::link::Link;
use crate::session::objects::{Objects, Over, Release};

/// The action after a drain.
#[derive(Debug)]
pub(crate) enum After {
    /// Answer the request.
    Reply {
        /// Operation of the request.
        op: Op,
        /// Number of the request.
        id: u64,
        /// Output of device `printf` to forward before the answer.
        flush: Flush,
    },
    /// Release objects to the driver, then answer the request, if there is one.
    Release(Release),
}

#[derive(Debug)]
struct Drain {
    after: After,
    /// Number of streams and other conditions that the drain still waits for.
    missing: usize,
}

/// All drains.
#[derive(Debug, Default)]
pub(crate) struct Drains {
    next: u64,
    list: HashMap<u64, Drain>,
    /// Drains whose work is still in the queue, by (place of the last operation, number of the
    /// drain).
    later: BTreeMap<(u64, u64), Target>,
    /// Drains that have parked work, with the same key.
    parked: Vec<((u64, u64), Target)>,
    /// Objects that may be released only when no helper thread builds a graph.
    late: Vec<Release>,
}

impl Drains {
    /// Number of drains.
    pub(crate) fn len(&self) -> usize {
        self.list.len()
    }
}

impl Flow {
    /// Performs `after` when the target's work received so far is complete.
    pub(crate) fn drain(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        target: Target,
        after: After,
    ) {
        self.drains.next += 1;
        let id = self.drains.next;
        self.drains.list.insert(id, Drain { after, missing: 1 });
        let last = self.last_queued(target);
        self.arm_when_due(objects, link, (last, id), target);
    }

    /// Arms a drain, unless some of the target's work up to place `last` is still in the queue or
    /// parked.
    fn arm_when_due(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (last, id): (u64, u64),
        target: Target,
    ) {
        if last > self.queue.executed() {
            self.drains.later.insert((last, id), target);
        } else if self.parking.is_parked(&self.streams, target, last) {
            self.drains.parked.push(((last, id), target));
        } else {
            self.arm(objects, link, id, target);
        }
    }

    /// Checks the drains again after parked operations returned to the queue.
    pub(crate) fn resume_drains(&mut self, objects: &mut Objects, link: &mut Link) {
        for (place, target) in std::mem::take(&mut self.drains.parked) {
            self.arm_when_due(objects, link, place, target);
        }
    }

    /// The place in the queue of the target's last operation; 0 if the target has no operation in
    /// the queue.
    fn last_queued(&self, target: Target) -> u64 {
        let latest = |pick: &dyn Fn(u64, &StreamState) -> bool| {
            let queued = self.streams.table.iter().filter(|(_, s)| s.queued > 0);
            let picked = queued.filter(|(id, s)| pick(*id, s));
            picked.map(|(_, s)| s.last_queued).max().unwrap_or(0)
        };
        match target {
            Target::Everything => self.queue.last(),
            Target::Context(context) => latest(&|_, s| s.context == context),
            Target::Event(event) => self
                .events
                .table
                .get(event)
                .map_or(0, |e| if e.queued > 0 { e.last_queued } else { 0 }),
            Target::Stream(stream) => match self.streams.table.get(stream) {
                // Work of the NULL stream comes after the earlier work of the context's blocking
                // streams.
                Some(s) if s.name == 0 => {
                    let context = s.context;
                    latest(&|id, s| id == stream || (s.context == context && s.blocking))
                }
                Some(s) if s.queued > 0 => s.last_queued,
                _ => 0,
            },
        }
    }

    /// Arms the drains whose work has been submitted.
    pub(crate) fn arm_drains(&mut self, objects: &mut Objects, link: &mut Link) {
        while let Some(entry) = self.drains.later.first_entry() {
            let (last, id) = *entry.key();
            if last > self.queue.executed() {
                return;
            }
            let target = entry.remove();
            self.arm_when_due(objects, link, (last, id), target);
        }
    }

    /// Waits for the completion of the target's work, which has been submitted.
    fn arm(&mut self, objects: &mut Objects, link: &mut Link, id: u64, target: Target) {
        match target {
            Target::Event(event) => self.await_event(objects, link, id, event),
            Target::Stream(stream) => {
                self.join_null(objects, link, stream);
                self.await_stream(objects, link, id, stream);
            }
            Target::Context(context) => {
                let active = self.active_streams(|c| c == context);
                active
                    .into_iter()
                    .for_each(|stream| self.await_stream(objects, link, id, stream));
            }
            Target::Everything => {
                let active = self.active_streams(|_| true);
                active
                    .into_iter()
                    .for_each(|stream| self.await_stream(objects, link, id, stream));
            }
        }
        // `drain` counted this step as missing from the start.
        self.streams.due.push_back(Action::Drain(id));
    }

    fn active_streams(&self, pick: impl Fn(u64) -> bool) -> Vec<u64> {
        let active = self.streams.active.iter().copied();
        active
            .filter(|id| self.streams.table.get(*id).is_some_and(|s| pick(s.context)))
            .collect()
    }

    /// Records a marker in an empty NULL stream. The marker fires after the earlier work of the
    /// blocking streams, as the completion of the NULL stream must.
    fn join_null(&mut self, objects: &mut Objects, link: &mut Link, stream: u64) {
        let empty = self.streams.table.get(stream).is_some_and(|s| s.drained());
        if empty && self.streams.joins_others(stream) {
            self.mark_before(objects, link, stream);
            self.streams.submitted(stream);
        }
    }

    fn await_stream(&mut self, objects: &mut Objects, link: &mut Link, drain: u64, stream: u64) {
        let Some(state) = self.streams.table.get(stream) else {
            return;
        };
        if state.drained() {
            return;
        }
        self.wait_one_more(drain);
        self.streams.after_tip(stream, Action::Drain(drain));
        // Often this is the stream's only work and has completed already.
        self.harvest(objects, link, stream);
    }

    fn await_event(&mut self, objects: &mut Objects, link: &mut Link, drain: u64, event: u64) {
        let Some(state) = self.events.table.get(event) else {
            return;
        };
        let Some((stream, seq)) = state.recorded else {
            return;
        };
        if self.streams.table.get(stream).is_none_or(|s| s.past(seq)) {
            return;
        }
        let driver = Arc::clone(&state.driver);
        self.streams.mark_with(stream, seq, &driver);
        self.wait_one_more(drain);
        self.streams.after(stream, seq, Action::Drain(drain));
        self.harvest(objects, link, stream);
    }

    fn wait_one_more(&mut self, drain: u64) {
        if let Some(drain) = self.drains.list.get_mut(&drain) {
            drain.missing += 1;
        }
    }

    /// Counts one step of a drain as done. Returns true if that was the last step.
    pub(crate) fn drain_step(&mut self, id: u64) -> bool {
        let Some(drain) = self.drains.list.get_mut(&id) else {
            return false;
        };
        drain.missing -= 1;
        drain.missing == 0
    }

    /// Performs the action of a drain whose last step is done.
    pub(crate) fn drained(&mut self, objects: &mut Objects, link: &mut Link, id: u64) {
        let Some(drain) = self.drains.list.remove(&id) else {
            return;
        };
        match drain.after {
            After::Reply { op, id, flush } => {
                self.streams.print(link, &flush);
                link.out.status(op, id, CuResult::SUCCESS);
            }
            After::Release(release) => self.release(objects, release),
        }
    }

    /// Releases objects to the driver on a helper thread, which may wait for the GPU.
    pub(crate) fn release(&mut self, objects: &mut Objects, release: Release) {
        if objects.graphs.building > 0 {
            return self.drains.late.push(release);
        }
        let Release {
            mut garbage,
            charge,
            reply,
        } = release;
        objects.lose(&garbage);
        for id in std::mem::take(&mut garbage.event_ids) {
            let event = self.events.table.remove(id);
            garbage.events.extend(event.map(|e| e.driver));
        }
        for id in std::mem::take(&mut garbage.stream_ids) {
            let stream = self.streams.table.remove(id);
            garbage.streams.extend(stream.and_then(|s| s.driver));
        }
        objects.helpers.run(move || {
            let device = garbage.device;
            drop(garbage);
            Over::Released {
                device,
                charge,
                reply,
            }
        });
    }

    /// Releases the objects that had to stay while graphs were built, when the last graph is built.
    pub(crate) fn release_late(&mut self, objects: &mut Objects) {
        if objects.graphs.building == 0 {
            for release in std::mem::take(&mut self.drains.late) {
                self.release(objects, release);
            }
        }
    }

    /// Handles the report of a helper thread that objects were released: updates the ledger and
    /// answers the request, if there is one.
    pub(crate) fn released(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        (device, charge): (usize, u64),
        reply: Option<(Op, u64)>,
    ) {
        self.freed(objects, link, device, charge);
        match reply {
            Some((op, id)) => {
                self.streams.print_all(link);
                let status = link.poison.unwrap_or(CuResult::SUCCESS);
                link.out.status(op, id, status);
            }
            None => objects.allocs.answered -= 1,
        }
    }

    /// After a device fault: answers all requests that wait for a drain.
    pub(crate) fn abandon_drains(
        &mut self,
        objects: &mut Objects,
        link: &mut Link,
        code: CuResult,
    ) {
        self.drains.later.clear();
        self.drains.parked.clear();
        for (_, drain) in std::mem::take(&mut self.drains.list) {
            match drain.after {
                After::Reply { op, id, .. } => link.out.status(op, id, code),
                After::Release(release) => self.release(objects, release),
            }
        }
    }
}
