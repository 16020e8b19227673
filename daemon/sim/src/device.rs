//! A simulated GPU: contexts with streams, one context on the device at a time, and the true record
//! of the time that each context used.
//!
//! The operations of one context run in the order of submission, one at a time (each fills the
//! device). Exception: a kernel that spins until another stream makes progress does not block that
//! stream. Loading another context costs a switch. If several contexts have work, the driver runs
//! them in turns.

use std::collections::VecDeque;

use crate::op::Until;

/// Operations of one stream that were submitted together, followed by one marker.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Batch {
    /// Stream of the operations.
    pub stream: u16,
    /// Number of operations.
    pub ops: u32,
    /// Total run time in ns.
    pub ns: u64,
    /// If set, the batch is one kernel that spins until this condition holds.
    pub until: Option<Until>,
}

/// A report that a batch is complete: its marker has fired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fired {
    /// Context of the batch.
    pub context: u32,
    /// Stream of the batch.
    pub stream: u16,
    /// Number of operations.
    pub ops: u32,
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    batch: Batch,
    left_ns: u64,
    serial: u64,
}

#[derive(Debug, Default)]
struct Context {
    streams: Vec<VecDeque<Pending>>,
    completed: Vec<u64>,
    batches: usize,
    busy_ns: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    /// A context is being loaded.
    Switching {
        until_ns: u64,
    },
    /// The first active context is on the device, and this stream of the context runs (`None`: all
    /// its streams spin).
    Running {
        stream: Option<u16>,
    },
}

/// The true use of a GPU's time, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Truth {
    /// Time in which work of a context was on the device.
    pub busy_ns: u64,
    /// Time for loading contexts.
    pub switch_ns: u64,
    /// Idle time.
    pub idle_ns: u64,
    /// Number of times a context was loaded.
    pub switches: u64,
}

/// One GPU.
#[derive(Debug)]
pub struct Device {
    switch_ns: u64,
    turn_ns: u64,
    contexts: Vec<Context>,
    /// Contexts with work; the first of them is on the device.
    active: VecDeque<u32>,
    loaded: Option<u32>,
    phase: Phase,
    /// Time in ns at which the present turn of the first context began.
    turn_from_ns: u64,
    at_ns: u64,
    next_ns: u64,
    serial: u64,
    truth: Truth,
    /// Time in ns at which the device became idle, or of the last call of [`Device::watch_idle`] if
    /// that is later.
    idle_from_ns: u64,
    longest_idle_ns: u64,
}

impl Device {
    /// An idle device. `switch_ns`: time in ns to load another context. `turn_ns`: time in ns of a
    /// context's turn, if several contexts have work.
    #[must_use]
    pub fn new(switch_ns: u64, turn_ns: u64) -> Self {
        Self {
            switch_ns,
            turn_ns: turn_ns.max(1),
            contexts: Vec::new(),
            active: VecDeque::new(),
            loaded: None,
            phase: Phase::Idle,
            turn_from_ns: 0,
            at_ns: 0,
            next_ns: u64::MAX,
            serial: 0,
            truth: Truth::default(),
            idle_from_ns: 0,
            longest_idle_ns: 0,
        }
    }

    /// Time in ns of the next change if no new work comes; `u64::MAX`: never.
    #[must_use]
    pub fn next_ns(&self) -> u64 {
        self.next_ns
    }

    /// The use of the device's time, up to the last step.
    #[must_use]
    pub fn truth(&self) -> Truth {
        self.truth
    }

    /// Sets the longest idle time to 0.
    pub fn watch_idle(&mut self) {
        self.idle_from_ns = self.at_ns;
        self.longest_idle_ns = 0;
    }

    /// Longest uninterrupted idle time in ns since [`Device::watch_idle`].
    #[must_use]
    pub fn longest_idle_ns(&self) -> u64 {
        self.longest_idle_ns
    }

    /// Time in ns for which a context was on the device, up to the last step.
    #[must_use]
    pub fn busy_ns(&self, context: u32) -> u64 {
        self.contexts
            .get(context as usize)
            .map_or(0, |context| context.busy_ns)
    }

    /// Unfinished work of a context on the device, as run time in ns.
    #[must_use]
    pub fn left_ns(&self, context: u32) -> u64 {
        let Some(context) = self.contexts.get(context as usize) else {
            return 0;
        };
        let pending = context.streams.iter().flatten();
        pending.fold(0, |sum, pending| sum.saturating_add(pending.left_ns))
    }

    /// Whether this context has work on the device.
    #[must_use]
    pub fn is_active(&self, context: u32) -> bool {
        self.contexts
            .get(context as usize)
            .is_some_and(|context| context.batches > 0)
    }

    /// Submits a batch to its stream.
    pub fn submit(&mut self, now: u64, context: u32, batch: Batch) {
        self.advance(now);
        let index = context as usize;
        if self.contexts.len() <= index {
            self.contexts.resize_with(index + 1, Context::default);
        }
        let state = &mut self.contexts[index];
        let stream = usize::from(batch.stream);
        if state.streams.len() <= stream {
            state.streams.resize_with(stream + 1, VecDeque::new);
            state.completed.resize(stream + 1, 0);
        }
        self.serial += 1;
        state.streams[stream].push_back(Pending {
            batch,
            left_ns: batch.ns,
            serial: self.serial,
        });
        state.batches += 1;
        if state.batches == 1 {
            if self.active.len() == 1 {
                // From now on the first context shares the device, and its turn begins.
                self.turn_from_ns = now;
            }
            self.active.push_back(context);
        }
    }

    /// Removes all work of a process that has ended.
    pub fn remove(&mut self, now: u64, context: u32) {
        self.advance(now);
        if let Some(state) = self.contexts.get_mut(context as usize) {
            state.streams.iter_mut().for_each(VecDeque::clear);
            state.batches = 0;
        }
        let first = self.active.front() == Some(&context);
        self.active.retain(|&other| other != context);
        if first {
            self.phase = Phase::Idle;
            self.idle_from_ns = now;
        }
        if self.loaded == Some(context) {
            self.loaded = None;
        }
    }

    /// Advances the device to `now` and adds the completed batches to `fired`.
    pub fn step(&mut self, now: u64, fired: &mut Vec<Fired>) {
        self.advance(now);
        self.next_ns = self.settle(now, fired);
    }

    /// Adds the time since the last call to the accounts.
    fn advance(&mut self, now: u64) {
        let passed = now - self.at_ns;
        if passed == 0 {
            return;
        }
        self.at_ns = now;
        match self.phase {
            Phase::Idle => {
                self.truth.idle_ns += passed;
                let idle = now - self.idle_from_ns;
                self.longest_idle_ns = self.longest_idle_ns.max(idle);
            }
            Phase::Switching { .. } => self.truth.switch_ns += passed,
            Phase::Running { stream } => {
                self.truth.busy_ns += passed;
                let Some(&first) = self.active.front() else {
                    return;
                };
                let context = &mut self.contexts[first as usize];
                context.busy_ns += passed;
                if let Some(stream) = stream
                    && let Some(pending) = context.streams[usize::from(stream)].front_mut()
                {
                    pending.left_ns = pending.left_ns.saturating_sub(passed);
                }
            }
        }
    }

    /// Decides which work runs from `now` on, and adds completed batches to `fired`. Returns the
    /// time in ns of the next change.
    fn settle(&mut self, now: u64, fired: &mut Vec<Fired>) -> u64 {
        loop {
            let Some(&first) = self.active.front() else {
                if self.phase != Phase::Idle {
                    self.phase = Phase::Idle;
                    self.idle_from_ns = now;
                }
                return u64::MAX;
            };
            if let Some(until) = self.load(first, now) {
                return until;
            }
            let shared = self.active.len() > 1;
            let turn_end = self.turn_from_ns.saturating_add(self.turn_ns);
            if shared && now >= turn_end {
                self.active.rotate_left(1);
                continue;
            }
            let context = &mut self.contexts[first as usize];
            let Some(stream) = context.runs() else {
                self.phase = Phase::Running { stream: None };
                return if shared { turn_end } else { u64::MAX };
            };
            let left = context.streams[stream].front().map_or(0, |p| p.left_ns);
            if left > 0 {
                self.phase = Phase::Running {
                    stream: Some(stream as u16),
                };
                let end = now.saturating_add(left);
                return if shared { end.min(turn_end) } else { end };
            }
            let Some(done) = context.streams[stream].pop_front() else {
                continue;
            };
            context.batches -= 1;
            context.completed[stream] += u64::from(done.batch.ops);
            fired.push(Fired {
                context: first,
                stream: stream as u16,
                ops: done.batch.ops,
            });
            if context.batches == 0 {
                self.active.pop_front();
            }
        }
    }

    /// Makes the context resident. Returns the time in ns at which the load ends, or `None` if the
    /// context is already resident.
    fn load(&mut self, context: u32, now: u64) -> Option<u64> {
        if self.loaded != Some(context) {
            self.loaded = Some(context);
            self.truth.switches += 1;
            self.phase = Phase::Switching {
                until_ns: now + self.switch_ns,
            };
            self.turn_from_ns = now + self.switch_ns;
        }
        match self.phase {
            Phase::Switching { until_ns } if until_ns > now => Some(until_ns),
            _ => None,
        }
    }
}

impl Context {
    /// The stream that runs: of the streams' first batches that do not spin, the batch that was
    /// submitted first.
    fn runs(&self) -> Option<usize> {
        if let [only] = self.streams.as_slice() {
            return only.front().is_some_and(|p| self.may_run(p)).then_some(0);
        }
        let heads = self.streams.iter().enumerate();
        heads
            .filter_map(|(index, stream)| Some((stream.front()?, index)))
            .filter(|(head, _)| self.may_run(head))
            .min_by_key(|(head, _)| head.serial)
            .map(|(_, index)| index)
    }

    fn may_run(&self, head: &Pending) -> bool {
        head.batch.until.is_none_or(|until| {
            let completed = self.completed.get(usize::from(until.stream));
            completed.is_some_and(|&completed| completed >= until.completed)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn batch(stream: u16, ns: u64) -> Batch {
        Batch {
            stream,
            ops: 1,
            ns,
            until: None,
        }
    }

    /// Runs the device until it is idle, or until `end`. Returns the completed batches as (time in
    /// ns, context, stream).
    fn run(device: &mut Device, end: u64) -> Vec<(u64, u32, u16)> {
        let mut done = Vec::new();
        let mut fired = Vec::new();
        device.step(device.at_ns, &mut fired);
        while device.next_ns() <= end {
            let now = device.next_ns();
            device.step(now, &mut fired);
            done.extend(fired.drain(..).map(|f| (now, f.context, f.stream)));
        }
        device.step(end, &mut fired);
        done
    }

    #[test]
    fn batches_run_in_order_and_a_context_is_loaded_once() {
        let mut device = Device::new(10, 1000);
        device.submit(5, 0, batch(0, 100));
        device.submit(5, 0, batch(1, 50));
        assert_eq!(run(&mut device, 500), [(115, 0, 0), (165, 0, 1)]);
        device.submit(500, 0, batch(0, 7));
        assert_eq!(run(&mut device, 600), [(507, 0, 0)]);
        let truth = device.truth();
        assert_eq!((truth.busy_ns, truth.switch_ns), (157, 10));
        assert_eq!(truth.busy_ns + truth.switch_ns + truth.idle_ns, 600);
    }

    #[test]
    fn contexts_take_turns_and_each_turn_costs_a_switch() {
        let mut device = Device::new(10, 100);
        device.submit(0, 0, batch(0, 250));
        device.submit(0, 1, batch(0, 120));
        // 0: 10..110, 1: 120..220, 0: 230..330, 1: 340..360, 0: 370..420.
        assert_eq!(run(&mut device, 1000), [(360, 1, 0), (420, 0, 0)]);
        assert_eq!((device.busy_ns(0), device.busy_ns(1)), (250, 120));
        assert_eq!(device.truth().switches, 5);
    }

    #[test]
    fn a_spinning_kernel_waits_for_the_other_stream() {
        let mut device = Device::new(0, 1000);
        let until = Some(Until {
            stream: 1,
            completed: 1,
        });
        device.submit(
            0,
            0,
            Batch {
                until,
                ..batch(0, 20)
            },
        );
        assert_eq!(run(&mut device, 500), []);
        assert_eq!(
            device.truth().busy_ns,
            500,
            "the spinning kernel occupies the device"
        );
        device.submit(500, 0, batch(1, 30));
        assert_eq!(run(&mut device, 1000), [(530, 0, 1), (550, 0, 0)]);
    }

    #[test]
    fn a_dead_process_leaves_nothing() {
        let mut device = Device::new(10, 100);
        device.submit(0, 0, batch(0, u64::MAX / 8));
        device.submit(0, 1, batch(0, 50));
        run(&mut device, 60);
        device.remove(60, 0);
        assert_eq!(run(&mut device, 500), [(120, 1, 0)]);
        assert!(!device.is_active(0));
    }
}
