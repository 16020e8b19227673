//! A worker: the queue of its guest, the production state machine of the lease, and the gate.

use std::collections::VecDeque;

use vgpu_sched::gate::lease::{Lease, head_cost};
use vgpu_sched::gate::{Config as GateConfig, Direction, Flow, FunctionId, Gate, Key, Work};
use vgpu_sched::{Depth, HeadCost};

use crate::device::Batch;
use crate::guest::Guest;
use crate::op::{Op, What};
use crate::parts::Life;
use crate::setup::Conduct;

/// One stream of a worker.
#[derive(Debug, Default)]
pub(super) struct Stream {
    pub(super) flow: Flow,
    /// Number of the last operation submitted.
    pub(super) submitted: u64,
    pub(super) completed: u64,
    /// Submitted operations that no marker follows yet.
    pub(super) open: Option<Batch>,
}

/// One worker with its guest.
#[derive(Debug)]
pub struct Worker {
    pub(super) vm: u32,
    /// GPU of the worker; for a gang, the first of its GPUs.
    pub(super) gpu: u32,
    /// The other GPUs of a gang. Each batch of operations runs on all GPUs of the gang.
    pub(super) also: Vec<u32>,
    /// For each batch of a gang that is in flight, in order of submission: the number of GPUs on
    /// which the batch still runs.
    pub(super) parts: VecDeque<usize>,
    /// For each GPU of a gang (the first, then the others): the number of batches in `parts` that
    /// are complete there.
    pub(super) done: Vec<usize>,
    /// The guest.
    pub guest: Guest,
    pub(super) conduct: Conduct,
    pub(super) life: Life,
    pub(super) lease: Lease,
    pub(super) gate: Gate,
    function: FunctionId,
    pub(super) streams: Vec<Stream>,
    /// Time in ns of the worker's next wake-up.
    pub(super) wakes_ns: u64,
    /// Number of operations submitted to the device.
    pub submitted: u64,
    /// Number of operations that the worker knows to be complete.
    pub completed: u64,
    /// Number of bytes that submitted operations copy.
    pub bytes: u64,
    pub(super) up_at_ns: u64,
    pub(super) down_at_ns: u64,
}

impl Worker {
    pub(super) fn new(vm: u32, guest: Guest, conduct: Conduct) -> Self {
        let streams = (0..guest.streams()).map(|_| Stream::default()).collect();
        Self {
            vm,
            gpu: 0,
            also: Vec::new(),
            parts: VecDeque::new(),
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

    /// Whether the worker is returning the lease.
    pub(super) fn closing(&self) -> bool {
        self.conduct != Conduct::Deaf && self.lease.closing()
    }

    /// The waiting work, and the predicted cost of its first operation.
    pub(super) fn waiting(&mut self) -> (Depth, HeadCost) {
        let calls = self.guest.waiting();
        let head = self.guest.peek().map(|(_, op)| op);
        let work = head.as_ref().map(|op| self.work(op));
        let mut head = head_cost(&self.gate, work, head.as_ref().map_or(0, |op| op.bytes));
        if let Conduct::Claims(ns) = self.conduct {
            head.gpu_ns = ns;
        }
        let bytes = calls.saturating_mul(head.bytes);
        (Depth { calls, bytes }, head)
    }

    /// GPUs of the worker: several for a gang.
    pub(super) fn gpus(&self) -> impl Iterator<Item = u32> + use<> {
        [self.gpu].into_iter().chain(self.also.clone())
    }

    /// The operation in the gate's terms.
    pub(super) fn work(&self, op: &Op) -> Work {
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
