//! A session and a simulated device whose streams run one after the other or at the same time.

use std::collections::VecDeque;

use vgpu_sched::gate::{Config, Flow, FunctionId, Gate, Key, LeaseView, Verdict, Work};

pub(crate) const US: u64 = 1_000;
pub(crate) const MS: u64 = 1_000_000;
pub(crate) const OPEN: LeaseView = LeaseView {
    closing: false,
    slice_end_ns: None,
    beside: false,
};
pub(crate) const CLOSING: LeaseView = LeaseView {
    closing: true,
    slice_end_ns: None,
    beside: false,
};

pub(crate) fn kernel(n: u32) -> Work {
    let function = FunctionId::new(&[1; 32], "f");
    Work::Kernel(Key::kernel(function, [n, 1, 1], [64, 1, 1], 0))
}

/// A session on a device whose streams run one after the other (`serial`) or all at the same time.
/// The session sees each completion at its exact time.
pub(crate) struct Bench {
    pub(crate) gate: Gate,
    pub(crate) now: u64,
    pub(crate) serial: bool,
    pub(crate) flows: Vec<Flow>,
    pub(crate) numbers: Vec<u64>,
    /// Operations on the device: (stream, number in the stream, time of the end in ns).
    pub(crate) running: VecDeque<(usize, u64, u64)>,
    /// Number of each stream's last unfinished wait for a value in memory.
    pub(crate) waits: Vec<Option<u64>>,
    pub(crate) free_at: Vec<u64>,
    pub(crate) place: u64,
}

impl Bench {
    pub(crate) fn new(streams: usize) -> Bench {
        Bench {
            gate: Gate::new(Config::default()),
            now: 0,
            serial: true,
            flows: vec![Flow::default(); streams],
            numbers: vec![0; streams],
            running: VecDeque::new(),
            waits: vec![None; streams],
            free_at: vec![0; streams],
            place: 1,
        }
    }

    pub(crate) fn verdict(&mut self, stream: usize, work: Work, lease: &LeaseView) -> Verdict {
        self.gate
            .may_submit(self.now, self.place, work, &self.flows[stream], lease)
    }

    /// Submits the operation if the gate allows it. The operation takes `ns` on the device.
    pub(crate) fn try_submit(
        &mut self,
        stream: usize,
        work: Work,
        ns: u64,
        lease: &LeaseView,
    ) -> bool {
        let Verdict::Submit(estimate) = self.verdict(stream, work, lease) else {
            return false;
        };
        self.place += 1;
        self.numbers[stream] += 1;
        let number = self.numbers[stream];
        self.gate
            .submitted(self.now, &mut self.flows[stream], number, work, estimate);
        let free = if self.serial {
            self.free_at.iter().copied().max().unwrap_or(0)
        } else {
            self.free_at[stream]
        };
        let ends = free.max(self.now) + ns;
        self.free_at[stream] = ends;
        self.running.push_back((stream, number, ends));
        true
    }

    /// Submits a wait for a value in memory.
    pub(crate) fn submit_wait(&mut self, stream: usize) {
        self.numbers[stream] += 1;
        let number = self.numbers[stream];
        self.gate
            .submitted_wait(self.now, &mut self.flows[stream], number);
        self.waits[stream] = Some(number);
    }

    /// Writes the values for which a stream waits, after the operations before these waits have
    /// completed.
    pub(crate) fn end_waits(&mut self, stream: usize) {
        let Some(last) = self.waits[stream] else {
            return;
        };
        while self.running.iter().any(|r| r.0 == stream && r.1 < last) {
            self.complete_one();
        }
        self.completed(stream, last);
    }

    fn completed(&mut self, stream: usize, number: u64) {
        self.waits[stream] = self.waits[stream].filter(|wait| *wait > number);
        self.gate
            .completed(self.now, &mut self.flows[stream], number);
    }

    /// Advances the clock to the next completion and reports it to the gate.
    pub(crate) fn complete_one(&mut self) -> bool {
        let next = self.running.iter().enumerate().min_by_key(|(_, r)| r.2);
        let Some((at, &(stream, number, ends))) = next else {
            return false;
        };
        self.running.remove(at);
        self.now = self.now.max(ends);
        self.completed(stream, number);
        true
    }

    pub(crate) fn drain(&mut self) {
        while self.complete_one() {}
    }

    /// Runs an operation `n` times, one after the other, so that the gate learns its time.
    pub(crate) fn teach(&mut self, work: Work, ns: u64, n: usize) {
        for _ in 0..n {
            self.drain();
            assert!(self.try_submit(0, work, ns, &OPEN));
        }
        self.drain();
    }

    /// Submits operations to a stream until the gate refuses. Returns their number.
    pub(crate) fn fill(&mut self, stream: usize, work: Work, ns: u64, lease: &LeaseView) -> u64 {
        let before = self.gate.in_flight();
        while self.try_submit(stream, work, ns, lease) {}
        self.gate.in_flight() - before
    }
}
