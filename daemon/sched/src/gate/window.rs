//! The window of unfinished work. The documentation of [`super`] has the rules.

use super::flow::{Batch, Flow, Run};
use super::parallel::Parallel;
use super::predict::{Estimate, Predictor};
use super::work::Work;

/// Default window of a session, in predicted ns.
pub const WINDOW_NS: u64 = 500_000;
/// Range of [`Config::window_ns`].
const WINDOW_RANGE: std::ops::RangeInclusive<u64> = 200_000..=500_000;
/// Window of a lease beside an overrunner, in predicted ns: two time slices of 1 ms that a driver
/// gives to each of several contexts. With less, a time slice would end early for lack of work.
pub const BESIDE_NS: u64 = 2_000_000;
/// How long before the device would idle, in ns, the next operation is submitted that must not come
/// earlier: the time that waking for it may take.
pub const AHEAD_NS: u64 = 200_000;
/// Time in ns without progress after which the operations in flight may be waiting for operations
/// that were not submitted.
pub const STALL_NS: u64 = 1_000_000;
/// Most launches behind one marker while another session waits for the lease, or the program for
/// the work.
pub const MARKER_LAUNCHES: u64 = 32;
/// Most unfinished operations, regardless of their predicted time.
const MOST_OPS: u64 = 512;
/// Most unfinished operations when a stall is relieved. Drivers block a launch when 1,024 are
/// queued, and the session's thread must never block.
pub const MAX_IN_FLIGHT: u64 = 1_020;
/// Operations that the first relief of a stall lets in. Each further relief doubles the number.
const RELIEF: u64 = 64;
/// A misprediction takes more than twice the prediction, and more than this beyond it, in ns:
/// threads that see a completion must first wake up.
const SURPRISE_NS: u64 = 250_000;
const SURPRISE_TIMES: u64 = 2;
/// The same beside an overrunner, with twice the factor: more than the driver's time slices may
/// add.
const SURPRISE_BESIDE_NS: u64 = 4 * BESIDE_NS;
/// Operations that are allowed before any prediction was kept or broken.
const TRUST: u64 = 32;

/// The window, clamped to its range.
fn sane(window_ns: u64) -> u64 {
    window_ns.clamp(*WINDOW_RANGE.start(), *WINDOW_RANGE.end())
}

/// Settings of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Unfinished work in predicted ns, from 200 to 500 µs.
    pub window_ns: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window_ns: WINDOW_NS,
        }
    }
}

/// The properties of the lease that the gate needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseView {
    /// The lease was revoked, or its slice is over. Nothing new is submitted, except to relieve a
    /// stall.
    pub closing: bool,
    /// End of the slice in ns, while another session waits for the lease.
    pub slice_end_ns: Option<u64>,
    /// A declared overrunner shares the GPU, and the driver divides the time.
    pub beside: bool,
}

/// Whether an operation may be submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Yes. Pass the estimate to [`Gate::submitted`]. `None`: the time is unknown.
    Submit(Option<Estimate>),
    /// Not now. Ask again after a completion, a relief, a change of the lease, or at the given
    /// time.
    Wait(Wait),
}

/// The largest variation, in ns, of unfinished work whose end is announced, plus a sixteenth of its
/// time: at most this long the next holder finds the device busy, as far as known.
const VARIES_NS: u64 = 250_000;

/// Why an operation waits, and how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The reason.
    pub why: WaitFor,
    /// When the answer changes without any event, in ns.
    pub until_ns: Option<u64>,
}

impl Wait {
    /// Whether nothing more is submitted before the slice and all work in flight are over.
    #[must_use]
    pub fn ends_slice(&self) -> bool {
        self.why == WaitFor::SliceEnd && self.until_ns.is_none()
    }
}

/// Why an operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The lease is being given back.
    Lease,
    /// An operation of unknown time goes alone.
    Alone,
    /// The window is full.
    Window,
    /// The operation would end after the slice.
    SliceEnd,
}

/// An operation that waits in the queue, for [`Gate::relieve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Place in the queue.
    pub place: u64,
    /// The stream has nothing unfinished.
    pub idle: bool,
}

/// A report of completed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    /// Number of completed gated operations.
    pub ops: u64,
    /// The operations took far more than predicted.
    pub surprise: bool,
}

/// The gate of one session.
#[derive(Debug, Clone)]
pub struct Gate {
    window_ns: u64,
    predictor: Predictor,
    /// Times learned beside an overrunner for otherwise unknown operations. Dropped when the
    /// session is alone.
    guesses: Option<Box<Predictor>>,
    ops: u64,
    /// Unfinished waits for a value in memory. They take no GPU time, and only the program may be
    /// able to end them.
    waits: u64,
    /// Sum of the weights of unfinished operations, in ns.
    unfinished_ns: u64,
    /// Sum of their recent longest times, in ns.
    longest_ns: u64,
    /// Number of unfinished operations of unknown time.
    unknown: u64,
    /// Streams with unfinished work.
    streams: u64,
    /// Operations in flight that the trust allows: doubled by each prediction kept at that depth, 1
    /// after a broken prediction.
    trust: u64,
    /// When an operation last completed, or the first of a busy time was submitted.
    progressed: u64,
    /// When a stall was last relieved.
    relieved: u64,
    /// Reliefs since the last progress.
    reliefs: u32,
    /// Operations up to this place are submitted in any case.
    exempt: u64,
    /// Whether the lease was beside an overrunner at the last check.
    beside: bool,
    parallel: Parallel,
}

impl Gate {
    /// A gate without history. A window out of range is clamped.
    #[must_use]
    pub fn new(config: Config) -> Gate {
        Gate {
            window_ns: sane(config.window_ns),
            predictor: Predictor::default(),
            guesses: None,
            ops: 0,
            waits: 0,
            unfinished_ns: 0,
            longest_ns: 0,
            unknown: 0,
            streams: 0,
            trust: TRUST,
            progressed: 0,
            relieved: 0,
            reliefs: 0,
            exempt: 0,
            beside: false,
            parallel: Parallel::default(),
        }
    }

    /// Sets the window in ns, clamped to its range. Work that is already unfinished stays.
    pub fn set_window(&mut self, window_ns: u64) {
        self.window_ns = sane(window_ns);
    }

    /// The predictions.
    #[must_use]
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// Unfinished operations.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.ops
    }

    /// Predicted time of the unfinished operations, in ns.
    #[must_use]
    pub fn unfinished_ns(&self) -> u64 {
        self.unfinished_ns
    }

    /// Predicted ns until all unfinished work is complete. `None` unless the work is known, does
    /// not vary, is in one stream, is not late and does not share the device with an overrunner.
    #[must_use]
    pub fn ends_in(&self, now: u64) -> Option<u64> {
        let more = self.longest_ns.saturating_sub(self.unfinished_ns);
        let varies = more > VARIES_NS + self.unfinished_ns / 16;
        let known = self.ops > 0 && self.unknown == 0 && !varies;
        let sure = known && self.streams == 1 && !self.beside;
        let elapsed = now.saturating_sub(self.progressed);
        self.unfinished_ns.checked_sub(elapsed).filter(|_| sure)
    }

    /// Whether the operation at this place of the queue may be submitted to this stream now.
    pub fn may_submit(
        &mut self,
        now: u64,
        place: u64,
        work: Work,
        flow: &Flow,
        lease: &LeaseView,
    ) -> Verdict {
        self.beside = lease.beside;
        if !lease.beside {
            self.guesses = None;
        }
        if self.exempted(place) {
            return Verdict::Submit(self.predict(work));
        }
        if lease.closing {
            return wait(WaitFor::Lease, None);
        }
        if self.ops == 0 {
            return Verdict::Submit(self.predict(work));
        }
        if self.unknown > 0 {
            return wait(WaitFor::Alone, None);
        }
        let Some(estimate) = self.predict(work) else {
            return wait(WaitFor::Alone, None);
        };
        if let Err(held) = self.room(now, estimate, flow, lease) {
            return Verdict::Wait(held);
        }
        if let Err(held) = self.in_time(now, estimate, lease) {
            return Verdict::Wait(held);
        }
        Verdict::Submit(Some(estimate))
    }

    fn predict(&mut self, work: Work) -> Option<Estimate> {
        let known = self.predictor.predict(work);
        known.or_else(|| self.guesses.as_mut()?.predict(work))
    }

    /// Checks that the operation ends within the slice, or that the device would idle before the
    /// end of the slice. In that case one operation may pass the end: to wait for the completion of
    /// the others would only add idle time.
    fn in_time(&self, now: u64, estimate: Estimate, lease: &LeaseView) -> Result<(), Wait> {
        let Some(end) = lease.slice_end_ns else {
            return Ok(());
        };
        let elapsed = now.saturating_sub(self.progressed);
        let idle_at = now.saturating_add(self.unfinished_ns.saturating_sub(elapsed));
        let ends = idle_at.saturating_add(estimate.mean_ns.max(estimate.high_ns / 2));
        // Beside an overrunner the driver's time slice is used to its end.
        let late = if lease.beside { BESIDE_NS / 2 } else { 0 };
        if ends <= end.saturating_add(late) {
            return Ok(());
        }
        let until = (idle_at < end).then(|| idle_at.saturating_sub(AHEAD_NS));
        if until.is_some_and(|at| at <= now) {
            return Ok(());
        }
        Err(Wait {
            why: WaitFor::SliceEnd,
            until_ns: until,
        })
    }

    /// Checks that the window has room.
    fn room(
        &self,
        now: u64,
        estimate: Estimate,
        flow: &Flow,
        lease: &LeaseView,
    ) -> Result<(), Wait> {
        let full = |until_ns| Wait {
            why: WaitFor::Window,
            until_ns,
        };
        if self.ops >= self.trust.min(MOST_OPS) {
            return Err(full(None));
        }
        let parallel = self.parallel.streams();
        let one = if lease.beside {
            BESIDE_NS
        } else {
            self.window_ns
        };
        let window = one * parallel;
        if self.unfinished_ns.saturating_add(estimate.weight_ns()) <= window {
            return Ok(());
        }
        if flow.ops == 0 {
            // Streams that run side by side have at least one operation each. Now and then one more
            // stream is tried, if no other session waits.
            let more = self.parallel.trying() && lease.slice_end_ns.is_none();
            if self.streams < parallel + u64::from(more) {
                return Ok(());
            }
        }
        if self.ops > 1 {
            return Err(full(None));
        }
        // A second operation follows when the first is nearly over, so that the device does not
        // idle.
        let weight = self.unfinished_ns;
        let elapsed = now.saturating_sub(self.progressed);
        let late = elapsed > weight.saturating_mul(2).saturating_add(SURPRISE_NS);
        // Beside an overrunner it may be the time slice of the overrunner.
        if late && !lease.beside {
            return Err(full(None));
        }
        let ahead = if lease.beside { one } else { AHEAD_NS };
        if weight.saturating_sub(elapsed) <= ahead {
            return Ok(());
        }
        let until = self.progressed.saturating_add(weight - ahead);
        Err(full(Some(until)))
    }

    /// The operation was submitted as number `number` of its stream.
    pub fn submitted(
        &mut self,
        now: u64,
        flow: &mut Flow,
        number: u64,
        work: Work,
        estimate: Option<Estimate>,
    ) {
        if self.ops == 0 {
            self.progressed = now;
        }
        if flow.ops == 0 {
            self.streams += 1;
        }
        let weight = estimate.map_or(0, |e| e.weight_ns());
        let mean = estimate.map_or(0, |e| e.mean_ns);
        let (begins, idle_ns) = if flow.ops == 0 {
            (now, 0)
        } else if self.beside {
            // The overrunner's time slices make the work take longer than predicted.
            (flow.finishes.max(now), 0)
        } else {
            (flow.finishes.max(now), now.saturating_sub(flow.finishes))
        };
        flow.finishes = begins.saturating_add(mean);
        self.ops += 1;
        self.unknown += u64::from(estimate.is_none());
        self.unfinished_ns = self.unfinished_ns.saturating_add(weight);
        let longest = estimate.map_or(0, |e| e.high_ns.max(weight));
        self.longest_ns = self.longest_ns.saturating_add(longest);
        flow.ops += 1;
        flow.unmarked_ops += 1;
        flow.unmarked_ns = flow.unmarked_ns.saturating_add(weight);
        let beside = self.beside;
        let like = |run: &Run| {
            (run.last + 1, run.work, run.estimate, run.beside) == (number, work, estimate, beside)
        };
        match flow.runs.back_mut() {
            Some(run) if like(run) => {
                run.last = number;
                run.idle_ns += idle_ns;
            }
            _ => flow.runs.push_back(Run {
                work,
                estimate,
                first: number,
                last: number,
                since: now,
                beside,
                idle_ns,
            }),
        }
    }

    /// A wait for a value in memory was submitted as number `number` of its stream. It takes no GPU
    /// time and holds nothing back, but work that was not submitted may have to end it.
    pub fn submitted_wait(&mut self, now: u64, flow: &mut Flow, number: u64) {
        if !self.busy() {
            self.progressed = now;
        }
        flow.waits.push_back(number);
        self.waits += 1;
    }

    /// Whether anything is unfinished.
    fn busy(&self) -> bool {
        self.ops > 0 || self.waits > 0
    }

    /// Whether a marker is due behind the stream's last operation. `awaited`: another session waits
    /// for the lease, or the program for the work, so that completion should be seen soon.
    #[must_use]
    pub fn marker_due(&self, flow: &Flow, awaited: bool) -> bool {
        let ops = if awaited {
            MARKER_LAUNCHES
        } else {
            MOST_OPS / 4
        };
        flow.unmarked_ops >= ops.min(self.trust / 2).max(1)
            || flow.unmarked_ops > 0 && flow.unmarked_ns >= self.window_ns / 4
    }

    /// A marker stands behind the stream's last operation. `late`: it was set long after the
    /// operation was submitted, because nobody had asked; its time says little about the operation.
    pub fn marked(&self, flow: &mut Flow, late: bool) {
        if late && flow.unmarked_ops > 0 {
            flow.late = flow.runs.back().map_or(0, |run| run.last);
        }
        flow.unmarked_ops = 0;
        flow.unmarked_ns = 0;
    }

    /// The stream is complete up to operation `upto`. Call it once for all markers that are seen
    /// together.
    pub fn completed(&mut self, now: u64, flow: &mut Flow, upto: u64) -> Completion {
        self.waited(now, flow, upto);
        let batch = Batch::of(flow, upto);
        if batch.ops == 0 {
            return Completion::default();
        }
        let begun = flow.runs.front().map_or(now, |run| run.since);
        // The batch took at most the time since the stream's last completion, and exactly that if
        // no other work of the session ran meanwhile.
        let took_from = |at: u64| {
            let busy = now.saturating_sub(begun.max(at));
            busy.saturating_sub(batch.idle_ns).max(1)
        };
        let longest = took_from(flow.completed_at);
        let shortest = if upto <= flow.late {
            1
        } else {
            took_from(self.progressed)
        };
        let (times, more) = if batch.beside {
            (SURPRISE_TIMES * 2, SURPRISE_BESIDE_NS)
        } else {
            (SURPRISE_TIMES, SURPRISE_NS)
        };
        let surprise = batch.unknown == 0
            && shortest > batch.weight_ns.saturating_mul(times)
            && shortest - batch.weight_ns > more;
        let took = if batch.unknown > 0 {
            longest
        } else {
            batch.mean_ns.clamp(shortest.min(longest), longest)
        };
        let exact = shortest >= longest;
        let lesson = (exact || took != batch.mean_ns).then_some(took);
        self.learn(flow, upto, &batch, lesson, surprise);
        let busy = now.saturating_sub(self.progressed).max(1);
        if !batch.beside {
            self.parallel
                .completed(took, busy, self.streams > 1 || longest > shortest);
        }
        self.note_kept(&batch, surprise);
        self.ops -= batch.ops.min(self.ops);
        self.unknown -= batch.unknown.min(self.unknown);
        self.unfinished_ns = self.unfinished_ns.saturating_sub(batch.weight_ns);
        self.longest_ns = self.longest_ns.saturating_sub(batch.longest_ns);
        flow.ops -= batch.ops.min(flow.ops);
        flow.unmarked_ops = flow.unmarked_ops.min(flow.ops);
        flow.completed_at = now;
        self.progressed = now;
        self.reliefs = 0;
        if flow.ops == 0 {
            self.streams -= 1;
            flow.unmarked_ns = 0;
        }
        if self.ops == 0 {
            self.unfinished_ns = 0;
            self.longest_ns = 0;
        }
        if !self.busy() {
            self.exempt = 0;
        }
        Completion {
            ops: batch.ops,
            surprise,
        }
    }

    /// The stream's waits up to operation `upto` are over. That is progress, but it measures no
    /// operation.
    fn waited(&mut self, now: u64, flow: &mut Flow, upto: u64) {
        let over = flow.waits.partition_point(|number| *number <= upto);
        if over == 0 {
            return;
        }
        flow.waits.drain(..over);
        self.waits -= over as u64;
        self.relieved = now;
        self.reliefs = 0;
        if !self.busy() {
            self.exempt = 0;
        }
    }

    /// Notes a kept or a broken prediction. An unknown operation adds no depth. After a broken
    /// prediction, neither does a kept one with fewer operations in flight than allowed.
    fn note_kept(&mut self, batch: &Batch, surprise: bool) {
        let deep = self.trust >= TRUST || self.ops > self.trust / 2;
        if surprise {
            self.trust = 1;
        } else if batch.unknown == 0 && deep {
            self.trust = (self.trust * 2).min(MOST_OPS);
        }
    }

    /// Removes the batch from the stream and teaches the predictor: each operation in proportion to
    /// its prediction or, if some were unknown, these with the time that the others leave.
    fn learn(
        &mut self,
        flow: &mut Flow,
        upto: u64,
        batch: &Batch,
        took: Option<u64>,
        surprise: bool,
    ) {
        while let Some(run) = flow.runs.front_mut() {
            let n = run.upto(upto);
            if n == 0 {
                break;
            }
            let done = *run;
            if done.last > upto {
                run.first = upto + 1;
                run.idle_ns = 0;
            } else {
                flow.runs.pop_front();
            }
            let Some(took) = took else { continue };
            match done.estimate {
                None => {
                    let rest = took.saturating_sub(batch.mean_ns) / batch.unknown.max(1);
                    self.note(batch, done.work, rest.max(1), n, false);
                }
                Some(_) if batch.unknown > 0 => {}
                Some(estimate) => {
                    let share = u128::from(estimate.mean_ns) * u128::from(took)
                        / u128::from(batch.mean_ns.max(1));
                    let share = u64::try_from(share).unwrap_or(u64::MAX);
                    self.note(batch, done.work, share, n, surprise);
                }
            }
        }
    }

    /// `n` operations of a batch took `ns` each. If the batch ran beside an overrunner, which had
    /// half of the time, the time is only a guess for operations without a prediction.
    fn note(&mut self, batch: &Batch, work: Work, ns: u64, n: u64, surprise: bool) {
        if !batch.beside || surprise && self.predictor.peek(work).is_some() {
            self.predictor.learn(work, ns, n, surprise);
        } else if self.beside && self.predictor.peek(work).is_none() {
            let guesses = self.guesses.get_or_insert_default();
            guesses.learn(work, ns / 2, n, surprise);
        }
    }

    /// Time in ns until the unfinished work counts as stalled; `None`: nothing is unfinished.
    #[must_use]
    pub fn stall_in(&self, now: u64) -> Option<u64> {
        let since = self.progressed.max(self.relieved);
        // Beside an overrunner nothing completes during its time slice.
        let stall = if self.beside {
            STALL_NS + BESIDE_NS
        } else {
            STALL_NS
        };
        self.busy()
            .then(|| stall.saturating_sub(now.saturating_sub(since)))
    }

    /// Whether the unfinished work made no progress for 1 ms (beside an overrunner: 3 ms). It may
    /// then be waiting for operations that were not submitted: see [`Gate::relieve`].
    #[must_use]
    pub fn stalled(&self, now: u64) -> bool {
        self.stall_in(now) == Some(0)
    }

    /// Relieves a stall: lets in the first waiting operation of an idle stream and all that stands
    /// before it, regardless of window and lease. A relief lets in a bounded number, and each
    /// unsuccessful relief doubles the bound. `waiting`: the queue in order. `backed_up`: the
    /// program can send no more until the queue is shorter; then the first operations are let in
    /// even if none is of an idle stream, as many as a driver takes. Returns the last place let in;
    /// `None`: no operation to let in, or no stall. The next relief comes a millisecond later.
    pub fn relieve(
        &mut self,
        now: u64,
        waiting: impl IntoIterator<Item = Waiting>,
        backed_up: bool,
    ) -> Option<u64> {
        if !self.stalled(now) {
            return None;
        }
        self.relieved = now;
        let most = (RELIEF << self.reliefs.min(4)).min(MAX_IN_FLIGHT.saturating_sub(self.ops));
        let mut place = None;
        let mut found = false;
        let mut waiting = waiting.into_iter();
        for next in waiting.by_ref().take(usize::try_from(most).unwrap_or(0)) {
            place = Some(next.place);
            if next.idle {
                found = true;
                break;
            }
        }
        // Beyond the bound of this relief: it helps only if an idle stream is behind it.
        if !found && !backed_up && !waiting.any(|w| w.idle) {
            return None;
        }
        if let Some(place) = place {
            self.reliefs += 1;
            self.exempt = self.exempt.max(place);
        }
        place
    }

    /// Whether the operation at this place is let in to relieve a stall.
    #[must_use]
    pub fn exempted(&self, place: u64) -> bool {
        self.busy() && place <= self.exempt
    }

    /// The device has failed: nothing is unfinished any more. The caller drops or replaces the
    /// flows.
    pub fn abandon(&mut self) {
        self.ops = 0;
        self.waits = 0;
        self.unfinished_ns = 0;
        self.longest_ns = 0;
        self.unknown = 0;
        self.streams = 0;
        self.exempt = 0;
    }
}

fn wait(why: WaitFor, until_ns: Option<u64>) -> Verdict {
    Verdict::Wait(Wait { why, until_ns })
}
