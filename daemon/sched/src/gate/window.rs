//! The window of unfinished work. The documentation of [`super`] has the rules.

use super::estimate::Estimate;
use super::flow::{Batch, Flow, Run};
use super::parallel::Parallel;
use super::predict::Predictor;
use super::work::Work;

/// Default window of a session, in predicted ns.
pub const WINDOW_NS: u64 = 500_000;
/// Range of [`Config::window_ns`].
const WINDOW_RANGE: std::ops::RangeInclusive<u64> = 200_000..=500_000;
/// Window in predicted ns of a lease beside an overrunner: two time slices of 1 ms, which the
/// driver gives to each context in turn. With a smaller window, a time slice would end early for
/// lack of work.
pub const BESIDE_NS: u64 = 2_000_000;
/// An operation that must not be submitted earlier is submitted this time, in ns, before the device
/// would idle. The time covers the wake-up of the worker's thread.
pub const AHEAD_NS: u64 = 200_000;
/// Time in ns without progress after which the gate assumes that the operations in flight wait for
/// operations that are not submitted yet.
pub const STALL_NS: u64 = 1_000_000;
/// Maximum number of launches before a marker, while another session waits for the lease or the
/// program waits for the work.
pub const MARKER_LAUNCHES: u64 = 32;
/// Maximum number of unfinished operations, regardless of their predicted time.
const MOST_OPS: u64 = 512;
/// Maximum number of unfinished operations when a stall is relieved. A driver blocks a launch when
/// 1,024 are queued, and the session's thread must never block.
pub const MAX_IN_FLIGHT: u64 = 1_020;
/// Number of operations that the first relief of a stall submits. Each further relief doubles the
/// number.
const RELIEF: u64 = 64;
/// An operation counts as mispredicted if it takes more than twice its prediction and exceeds the
/// prediction by more than this, in ns. The margin covers the wake-up of the thread that sees the
/// completion.
const SURPRISE_NS: u64 = 250_000;
const SURPRISE_TIMES: u64 = 2;
/// The same margin beside an overrunner, where the factor is twice as large: more than the time
/// slices of the overrunner can add.
const SURPRISE_BESIDE_NS: u64 = 4 * BESIDE_NS;
/// Number of unfinished operations that a new session may have, before predictions have proved
/// right or wrong.
const TRUST: u64 = 32;

/// Clamps a window in ns to its range.
fn sane(window_ns: u64) -> u64 {
    window_ns.clamp(*WINDOW_RANGE.start(), *WINDOW_RANGE.end())
}

/// Settings of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Predicted time in ns of unfinished work that the gate allows, from 200 to 500 µs.
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
    /// The lease was revoked, or its slice is over. Nothing more is submitted, except to relieve a
    /// stall.
    pub closing: bool,
    /// End of the slice in ns; `None` while no other session waits for the lease.
    pub slice_end_ns: Option<u64>,
    /// A declared overrunner shares the GPU: the driver divides the time between both sessions.
    pub beside: bool,
}

/// Whether an operation may be submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Yes. The caller passes the estimate to [`Gate::submitted`]. `None`: the time is unknown.
    Submit(Option<Estimate>),
    /// Not now. The caller asks again after a completion, after a stall was relieved
    /// ([`Gate::relieve`](super::Gate::relieve)), after a change of the lease, or at the time in
    /// [`Wait::until_ns`].
    Wait(Wait),
}

/// The worker announces the end of its work only if the work's largest known time exceeds the
/// prediction by at most this, in ns, plus a sixteenth of the prediction. So the next holder finds
/// the device busy for at most this time.
const VARIES_NS: u64 = 250_000;

/// Why an operation waits, and until when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The reason.
    pub why: WaitFor,
    /// Time in ns at which the answer changes without any event; `None`: only an event changes it.
    pub until_ns: Option<u64>,
}

impl Wait {
    /// Whether nothing more is submitted before both the slice and all work in flight have ended.
    #[must_use]
    pub fn ends_slice(&self) -> bool {
        self.why == WaitFor::SliceEnd && self.until_ns.is_none()
    }
}

/// Why an operation waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WaitFor {
    /// The lease is being returned to vgpud.
    Lease,
    /// The time of this operation or of the operation in flight is unknown. Such an operation runs
    /// alone.
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
    /// Whether the operation's stream has no unfinished work.
    pub idle: bool,
}

/// A report of completed work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    /// Number of completed gated operations.
    pub ops: u64,
    /// Whether the operations took far more time than predicted.
    pub surprise: bool,
}

/// The gate of one session.
#[derive(Debug, Clone)]
pub struct Gate {
    window_ns: u64,
    predictor: Predictor,
    /// Times measured beside an overrunner, for operations without other prediction. They are
    /// dropped when the session is alone on the GPU.
    guesses: Option<Box<Predictor>>,
    ops: u64,
    /// Number of unfinished waits for a value in memory. They take no GPU time, and some end only
    /// when the program writes the value.
    waits: u64,
    /// Sum of the weights ([`Estimate::weight_ns`]) of the unfinished operations, in ns.
    unfinished_ns: u64,
    /// Sum of the longest recent times of the unfinished operations, in ns.
    longest_ns: u64,
    /// Number of unfinished operations of unknown time.
    unknown: u64,
    /// Streams with unfinished work.
    streams: u64,
    /// Number of unfinished operations that the past predictions justify. A prediction that proves
    /// right at this depth doubles the number; a wrong prediction sets it to 1.
    trust: u64,
    /// Time in ns of the last completion, or of the first submission to an idle device.
    progressed: u64,
    /// Time in ns at which a stall was last relieved.
    relieved: u64,
    /// Reliefs since the last progress.
    reliefs: u32,
    /// Operations up to this place in the queue are submitted regardless of window and lease.
    exempt: u64,
    /// Whether the lease was beside an overrunner at the last check.
    beside: bool,
    parallel: Parallel,
}

impl Gate {
    /// A gate without history. A window outside the range is clamped.
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

    /// Sets the window in ns, clamped to its range. Submitted work is not affected.
    pub fn set_window(&mut self, window_ns: u64) {
        self.window_ns = sane(window_ns);
    }

    /// The predictions.
    #[must_use]
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// Number of unfinished operations.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.ops
    }

    /// Predicted time of the unfinished operations, in ns.
    #[must_use]
    pub fn unfinished_ns(&self) -> u64 {
        self.unfinished_ns
    }

    /// Predicted time in ns until all unfinished work is complete. `None` if a time is unknown or
    /// varies much, if several streams have work, if the work is later than predicted, or beside an
    /// overrunner.
    #[must_use]
    pub fn ends_in(&self, now: u64) -> Option<u64> {
        let more = self.longest_ns.saturating_sub(self.unfinished_ns);
        let varies = more > VARIES_NS + self.unfinished_ns / 16;
        let known = self.ops > 0 && self.unknown == 0 && !varies;
        let sure = known && self.streams == 1 && !self.beside;
        let elapsed = now.saturating_sub(self.progressed);
        self.unfinished_ns.checked_sub(elapsed).filter(|_| sure)
    }

    /// Whether the operation at `place` in the queue may be submitted to the stream `flow` now.
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

    /// Checks that the operation would end within the slice, or that the device would soon idle
    /// before the end of the slice. In the second case one operation may exceed the slice: waiting
    /// for the other operations would only add idle time.
    fn in_time(&self, now: u64, estimate: Estimate, lease: &LeaseView) -> Result<(), Wait> {
        let Some(end) = lease.slice_end_ns else {
            return Ok(());
        };
        let elapsed = now.saturating_sub(self.progressed);
        let idle_at = now.saturating_add(self.unfinished_ns.saturating_sub(elapsed));
        let ends = idle_at.saturating_add(estimate.mean_ns.max(estimate.high_ns / 2));
        // Beside an overrunner, the session may use its time slice of the driver to the end.
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

    /// Checks that the operation fits into the window.
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
            // Each of the streams that run at the same time may have one operation. In some phases,
            // one more stream is tried, if no other session waits.
            let more = self.parallel.trying() && lease.slice_end_ns.is_none();
            if self.streams < parallel + u64::from(more) {
                return Ok(());
            }
        }
        if self.ops > 1 {
            return Err(full(None));
        }
        // A second operation is submitted shortly before the first ends, so that the device does
        // not idle.
        let weight = self.unfinished_ns;
        let elapsed = now.saturating_sub(self.progressed);
        let late = elapsed > weight.saturating_mul(2).saturating_add(SURPRISE_NS);
        // Beside an overrunner, the delay may be the overrunner's time slice.
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

    /// Records the submission of an operation, which is number `number` of its stream.
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
            // The predicted end is too early here: the overrunner's time slices delay the work.
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

    /// Records the submission of a wait for a value in memory, which is number `number` of its
    /// stream. The wait takes no GPU time and does not fill the window. But it can stall the
    /// session: an operation that is not submitted yet may have to write the value.
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

    /// Whether the caller should record a marker after the stream's last operation. `awaited`:
    /// another session waits for the lease, or the program waits for the work, so the worker should
    /// see the completion soon.
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

    /// Records that a marker follows the stream's last operation. `late`: the marker was recorded
    /// long after that operation was submitted, so the marker's time says little about the
    /// operation.
    pub fn marked(&self, flow: &mut Flow, late: bool) {
        if late && flow.unmarked_ops > 0 {
            flow.late = flow.runs.back().map_or(0, |run| run.last);
        }
        flow.unmarked_ops = 0;
        flow.unmarked_ns = 0;
    }

    /// Records that the stream is complete up to operation `upto`. If several markers are seen
    /// complete together, call this function once, with the last.
    pub fn completed(&mut self, now: u64, flow: &mut Flow, upto: u64) -> Completion {
        self.waited(now, flow, upto);
        let batch = Batch::of(flow, upto);
        if batch.ops == 0 {
            return Completion::default();
        }
        let begun = flow.runs.front().map_or(now, |run| run.since);
        // The batch took at most the time since the stream's last completion. It took exactly that
        // time if no other work of the session ran meanwhile.
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

    /// Removes the stream's waits up to number `upto`. Their end counts as progress but gives no
    /// time of an operation.
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

    /// Updates the trust after a right or wrong prediction. Unknown operations leave it unchanged.
    /// Below [`TRUST`], a right prediction doubles it only if more than half of the allowed
    /// operations were in flight.
    fn note_kept(&mut self, batch: &Batch, surprise: bool) {
        let deep = self.trust >= TRUST || self.ops > self.trust / 2;
        if surprise {
            self.trust = 1;
        } else if batch.unknown == 0 && deep {
            self.trust = (self.trust * 2).min(MOST_OPS);
        }
    }

    /// Removes the batch from the stream and updates the predictor. Each operation gets a part of
    /// the batch's time in proportion to its prediction. Operations without a prediction get the
    /// time that remains after the predictions of the other operations.
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

    /// Learns that `n` operations of a batch took `ns` each. For a batch that ran beside an
    /// overrunner, which had half of the device's time, the result is only a guess, stored for
    /// operations without prediction.
    fn note(&mut self, batch: &Batch, work: Work, ns: u64, n: u64, surprise: bool) {
        if !batch.beside || surprise && self.predictor.peek(work).is_some() {
            self.predictor.learn(work, ns, n, surprise);
        } else if self.beside && self.predictor.peek(work).is_none() {
            let guesses = self.guesses.get_or_insert_default();
            guesses.learn(work, ns / 2, n, surprise);
        }
    }

    /// Time in ns until the unfinished work counts as stalled; `None` if nothing is unfinished.
    #[must_use]
    pub fn stall_in(&self, now: u64) -> Option<u64> {
        let since = self.progressed.max(self.relieved);
        // Beside an overrunner, nothing completes during the overrunner's time slice.
        let stall = if self.beside {
            STALL_NS + BESIDE_NS
        } else {
            STALL_NS
        };
        self.busy()
            .then(|| stall.saturating_sub(now.saturating_sub(since)))
    }

    /// Whether the unfinished work made no progress for 1 ms (beside an overrunner: 3 ms). The work
    /// may then wait for operations that are not submitted yet: see [`Gate::relieve`].
    #[must_use]
    pub fn stalled(&self, now: u64) -> bool {
        self.stall_in(now) == Some(0)
    }

    /// Relieves a stall: allows the submission of the first waiting operation of an idle stream and
    /// of all operations before it, regardless of window and lease. One relief allows a bounded
    /// number of operations, and each relief without success doubles the bound.
    ///
    /// `waiting`: the queue in order. `backed_up`: the program can send no more until the queue is
    /// shorter. Then the first operations of the queue are allowed even if no stream is idle, as
    /// many as the driver takes. Returns the last allowed place. `None`: no stall, or no operation
    /// to allow. The next relief is possible a millisecond later.
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
        // The bound of this relief is reached. The relief helps only if a later operation is of an
        // idle stream.
        if !found && !backed_up && !waiting.any(|w| w.idle) {
            return None;
        }
        if let Some(place) = place {
            self.reliefs += 1;
            self.exempt = self.exempt.max(place);
        }
        place
    }

    /// Whether a relief allows the operation at this place of the queue.
    #[must_use]
    pub fn exempted(&self, place: u64) -> bool {
        self.busy() && place <= self.exempt
    }

    /// Forgets all unfinished work after a device failure. The caller drops or replaces the flows.
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
