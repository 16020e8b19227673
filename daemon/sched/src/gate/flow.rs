//! The unfinished operations of one stream, stored as runs of equal operations, and the batch of
//! operations that one report of completion covers.

use std::collections::VecDeque;

use super::estimate::Estimate;
use super::work::Work;

/// Consecutive equal operations.
#[derive(Debug, Clone, Copy)]
pub(super) struct Run {
    pub(super) work: Work,
    pub(super) estimate: Option<Estimate>,
    /// Stream numbers of the first and the last operation; the run contains all numbers between.
    pub(super) first: u64,
    pub(super) last: u64,
    /// Time in ns at which the first operation was submitted.
    pub(super) since: u64,
    /// Whether the run was submitted while this session ran beside an overrunner.
    pub(super) beside: bool,
    /// Predicted time in ns for which the stream had no work before operations of this run were
    /// submitted.
    pub(super) idle_ns: u64,
}

impl Run {
    pub(super) fn mean(&self) -> u64 {
        self.estimate.map_or(0, |e| e.mean_ns)
    }

    pub(super) fn weight(&self) -> u64 {
        self.estimate.map_or(0, |e| e.weight_ns())
    }

    pub(super) fn longest(&self) -> u64 {
        self.estimate.map_or(0, |e| e.high_ns.max(e.weight_ns()))
    }

    /// Number of operations of the run whose number is at most `upto`.
    pub(super) fn upto(&self, upto: u64) -> u64 {
        (self.last.min(upto) + 1).saturating_sub(self.first)
    }
}

/// The unfinished work of one stream.
#[derive(Debug, Clone, Default)]
pub struct Flow {
    pub(super) runs: VecDeque<Run>,
    pub(super) ops: u64,
    /// Numbers of the unfinished waits ([`super::Gate::submitted_wait`]).
    pub(super) waits: VecDeque<u64>,
    /// Time in ns at which an operation of the stream was last seen complete.
    pub(super) completed_at: u64,
    /// Predicted time in ns at which all work of the stream is complete.
    pub(super) finishes: u64,
    /// Operations up to this number are followed by a marker that was recorded long after they were
    /// submitted.
    pub(super) late: u64,
    /// Number of operations after the last marker, and their predicted time in ns.
    pub(super) unmarked_ops: u64,
    pub(super) unmarked_ns: u64,
}

impl Flow {
    /// Unfinished operations.
    #[must_use]
    pub fn ops(&self) -> u64 {
        self.ops
    }

    /// Whether an operation or a wait is unfinished.
    #[must_use]
    pub fn busy(&self) -> bool {
        self.ops > 0 || !self.waits.is_empty()
    }
}

/// The operations of a stream that one report of completion covers.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub(super) ops: u64,
    pub(super) unknown: u64,
    pub(super) mean_ns: u64,
    pub(super) weight_ns: u64,
    pub(super) longest_ns: u64,
    pub(super) idle_ns: u64,
    /// Whether a part of the batch was submitted beside an overrunner.
    pub(super) beside: bool,
}

impl Batch {
    pub(super) fn of(flow: &Flow, upto: u64) -> Batch {
        let mut batch = Batch::default();
        for run in &flow.runs {
            let n = run.upto(upto);
            if n == 0 {
                break;
            }
            batch.ops += n;
            batch.beside |= run.beside;
            batch.idle_ns = batch.idle_ns.saturating_add(run.idle_ns);
            batch.unknown += if run.estimate.is_none() { n } else { 0 };
            batch.mean_ns = batch.mean_ns.saturating_add(run.mean().saturating_mul(n));
            batch.weight_ns = batch
                .weight_ns
                .saturating_add(run.weight().saturating_mul(n));
            batch.longest_ns = batch
                .longest_ns
                .saturating_add(run.longest().saturating_mul(n));
        }
        batch
    }
}
