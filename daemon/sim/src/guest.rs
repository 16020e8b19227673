//! Guest programs: their operations, and when these arrive.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::dist::{Length, SHORTEST_NS};
use crate::op::{Op, Until, What};
use crate::rng::Rng;
use crate::trace::TraceOp;

/// A kind of operation that a guest submits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kind {
    /// Kind of operation.
    pub what: What,
    /// Distribution of the run time.
    pub length: Length,
    /// Number of copied bytes.
    pub bytes: u64,
}

/// Speed of the bus in bytes per ns: 25 GB/s.
const BUS: u64 = 25;

impl Kind {
    /// A kernel.
    #[must_use]
    pub fn kernel(length: Length) -> Self {
        Self {
            what: What::Kernel,
            length,
            bytes: 0,
        }
    }

    /// A graph launch. `length` is the run time of the whole graph.
    #[must_use]
    pub fn graph(length: Length) -> Self {
        Self {
            what: What::Graph,
            length,
            bytes: 0,
        }
    }

    /// A copy that takes the time that the bus needs for the bytes.
    #[must_use]
    pub fn copy(bytes: u64) -> Self {
        Self {
            what: What::Copy,
            length: Length::Const(2_000 + bytes / BUS),
            bytes,
        }
    }
}

/// How the operations of a guest arrive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Pattern {
    /// Work always waits.
    Backlog,
    /// Some operations, then a synchronise, then a pause, again and again: a synchronising loop, or
    /// with long pauses a program that works from time to time.
    Loop {
        /// Number of operations before each synchronise.
        ops: u64,
        /// Time from the end of the synchronise to the next operation.
        pause: Length,
    },
    /// Requests of several operations arrive at their times, even if earlier requests are not
    /// complete.
    Requests {
        /// Number of operations in a request.
        ops: u64,
        /// Time from one request to the next.
        gap: Length,
    },
    /// A recorded trace, repeated with a fixed period.
    Trace {
        /// The operations in the order of arrival.
        ops: Arc<[TraceOp]>,
        /// Time from the start of a repetition to the start of the next, in ns.
        period_ns: u64,
    },
}

/// The load of one guest process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// How operations arrive.
    pub pattern: Pattern,
    /// Kinds of the operations, used in turn.
    pub kinds: Vec<Kind>,
    /// Number of streams, used in turn.
    pub streams: u16,
    /// Every second operation spins until the next operation, which is in the other stream, is
    /// complete.
    pub spins: bool,
    /// Number of new kernels in a group (0: none). Each kernel of a group is launched once with the
    /// shortest time and then once with the time of `kinds`, so that its prediction is wrong.
    pub poison: u32,
    /// Number of the operation that never ends, if any.
    pub hangs_at: Option<u64>,
    /// Time in ns at which the guest starts.
    pub from_ns: u64,
    /// Time in ns after which no more operations arrive.
    pub until_ns: u64,
}

impl Load {
    /// A load of these kinds of operations, without end.
    #[must_use]
    pub fn new(pattern: Pattern, kinds: Vec<Kind>) -> Self {
        Self {
            pattern,
            kinds,
            streams: 1,
            spins: false,
            poison: 0,
            hangs_at: None,
            from_ns: 0,
            until_ns: u64::MAX,
        }
    }

    /// A load of kernels that always has work.
    #[must_use]
    pub fn backlog(length: Length) -> Self {
        Self::new(Pattern::Backlog, vec![Kind::kernel(length)])
    }

    /// A load of `ops` kernels, a synchronise and a pause, again and again.
    #[must_use]
    pub fn looping(ops: u64, length: Length, pause: Length) -> Self {
        Self::new(Pattern::Loop { ops, pause }, vec![Kind::kernel(length)])
    }

    /// A load of requests with `ops` kernels each.
    #[must_use]
    pub fn requests(ops: u64, length: Length, gap: Length) -> Self {
        Self::new(Pattern::Requests { ops, gap }, vec![Kind::kernel(length)])
    }

    /// Longest run time of an operation in ns, without operations that never end.
    #[must_use]
    pub fn longest_ns(&self) -> u64 {
        let traced = match &self.pattern {
            Pattern::Trace { ops, .. } => ops.iter().map(|op| op.ns).max().unwrap_or(0),
            _ => 0,
        };
        let drawn = self.kinds.iter().map(|kind| kind.length.longest()).max();
        drawn.unwrap_or(0).max(traced)
    }
}

/// Run time in ns of an operation that never ends.
pub const FOREVER_NS: u64 = u64::MAX / 8;

/// Maximum number of operations in the queue: the worker's depth credits hold the guest back.
const MOST_QUEUED: u64 = 1024;

/// A running guest process.
#[derive(Debug)]
pub struct Guest {
    load: Load,
    rng: Rng,
    /// Number of operations that have arrived and are not taken.
    available: u64,
    /// The first of these operations, as far as they are generated already.
    ahead: VecDeque<Op>,
    /// Number of operations taken.
    taken: u64,
    /// Number of operations generated.
    made: u64,
    arrived: u64,
    /// Number of operations generated, per stream.
    per_stream: Vec<u64>,
    /// Number of the last operation, and arrival time in ns, of each request that is not complete.
    open: VecDeque<(u64, u64)>,
    /// Position in the trace, and start of the present repetition in ns.
    traced: (usize, u64),
    /// Times in ns from a request's arrival to its completion.
    pub latency: Vec<u64>,
}

impl Guest {
    /// A guest that has not started.
    #[must_use]
    pub fn new(load: Load, rng: Rng) -> Self {
        let streams = if load.spins { 2 } else { load.streams.max(1) };
        let traced = match &load.pattern {
            Pattern::Trace { ops, .. } => ops.iter().map(|op| op.stream + 1).max().unwrap_or(1),
            _ => 1,
        };
        Self {
            per_stream: vec![0; usize::from(streams.max(traced))],
            traced: (0, load.from_ns),
            load,
            rng,
            available: 0,
            ahead: VecDeque::new(),
            taken: 0,
            made: 0,
            arrived: 0,
            open: VecDeque::new(),
            latency: Vec::new(),
        }
    }

    /// The load of the guest.
    #[must_use]
    pub fn load(&self) -> &Load {
        &self.load
    }

    /// Number of streams.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.per_stream.len()
    }

    /// Number of waiting operations in the queue.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.available.min(MOST_QUEUED)
    }

    /// Adds the operations that arrive now. Returns the time in ns of the next arrival if that time
    /// does not depend on completions.
    pub fn arrive(&mut self, now: u64) -> Option<u64> {
        if now >= self.load.until_ns {
            if matches!(self.load.pattern, Pattern::Backlog) {
                self.available = 0;
                self.ahead.clear();
            }
            return None;
        }
        let (ops, next) = match &self.load.pattern {
            Pattern::Backlog => {
                self.available = u64::MAX;
                let until = self.load.until_ns;
                return (until != u64::MAX).then_some(until);
            }
            Pattern::Loop { ops, .. } => (*ops, None),
            Pattern::Requests { ops, gap } => {
                let gap = gap.draw(&mut self.rng, self.arrived);
                (*ops, Some(now + gap))
            }
            Pattern::Trace { ops, period_ns } => {
                let (index, begun) = self.traced;
                self.traced = if index + 1 < ops.len() {
                    (index + 1, begun)
                } else {
                    (0, begun + period_ns)
                };
                let at = ops.get(self.traced.0).map(|op| self.traced.1 + op.at_ns);
                (1, at.map(|at| at.max(now)))
            }
        };
        self.available += ops;
        self.arrived += ops;
        self.open.push_back((self.arrived, now));
        next
    }

    /// The first waiting operation, with its number among all operations (1, 2, …).
    pub fn peek(&mut self) -> Option<(u64, Op)> {
        if self.ahead.is_empty() {
            if self.available == 0 {
                return None;
            }
            let op = self.make();
            self.ahead.push_back(op);
        }
        self.ahead.front().map(|&op| (self.taken + 1, op))
    }

    /// Removes the first waiting operation from the queue.
    pub fn take(&mut self) {
        if self.ahead.pop_front().is_some() {
            self.available -= u64::from(self.available != u64::MAX);
            self.taken += 1;
        }
    }

    /// Numbers and streams of the waiting operations in the queue, in order.
    pub fn look_ahead(&mut self) -> impl Iterator<Item = (u64, u16)> + '_ {
        while (self.ahead.len() as u64) < self.waiting() {
            let op = self.make();
            self.ahead.push_back(op);
        }
        let first = self.taken + 1;
        (first..).zip(self.ahead.iter().map(|op| op.stream))
    }

    /// Records that all operations up to number `total` are complete. Returns the time in ns of the
    /// next arrival if this completion causes an arrival.
    pub fn completed(&mut self, total: u64, now: u64) -> Option<u64> {
        let mut next = None;
        while let Some(&(last, since)) = self.open.front() {
            if last > total {
                break;
            }
            self.open.pop_front();
            self.latency.push(now - since);
            if let Pattern::Loop { pause, .. } = &self.load.pattern {
                next = Some(now + pause.draw(&mut self.rng, self.arrived));
            }
        }
        next
    }

    fn make(&mut self) -> Op {
        let n = self.made;
        self.made += 1;
        let op = self.make_nth(n);
        self.per_stream[usize::from(op.stream)] += 1;
        op
    }

    fn make_nth(&mut self, n: u64) -> Op {
        if let Pattern::Trace { ops, .. } = &self.load.pattern {
            return ops[(n % ops.len() as u64) as usize].op();
        }
        let index = (n % self.load.kinds.len() as u64) as usize;
        let kind = self.load.kinds[index];
        let mut ns = kind
            .length
            .draw(&mut self.rng, n / self.load.kinds.len() as u64);
        if self.load.hangs_at == Some(n) {
            ns = FOREVER_NS;
        }
        let mut key = index as u32;
        if self.load.poison > 0 {
            let new = u64::from(self.load.poison);
            let (round, nth) = (n / (2 * new), n % (2 * new));
            // These keys are larger than all other keys.
            key = (1 << 20) + (round * new + nth % new) as u32;
            if nth < new {
                ns = SHORTEST_NS;
            }
        }
        let streams = self.per_stream.len() as u64;
        let stream = (n % streams) as u16;
        let spins = self.load.spins && stream == 0;
        Op {
            what: kind.what,
            key: key + if spins { 1 << 16 } else { 0 },
            stream,
            ns,
            bytes: kind.bytes,
            until: spins.then(|| Until {
                stream: 1,
                completed: self.per_stream[1] + 1,
            }),
        }
    }
}
