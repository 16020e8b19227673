//! The window of unfinished work. See the module's description for the rules.

use super::flow::{Batch, Flow, Run};
use super::parallel::Parallel;
use super::predict::{Estimate, Predictor};
use super::work::Work;

/// Unfinished work of a session, in predicted ns, unless configured otherwise.
pub const WINDOW_NS: u64 = 500_000;
/// What [`Config::window_ns`] may be.
const WINDOW_RANGE: std::ops::RangeInclusive<u64> = 200_000..=500_000;
/// The window, in predicted ns, of a lease beside an overrunner: two turns of 1 ms that a driver gives to
/// each of several contexts. With less, a turn ends for want of work before it is over.
pub const BESIDE_NS: u64 = 2_000_000;
/// How long before the device would have nothing to do the next operation follows that must not come
/// earlier: as much as waking for it may take.
pub const AHEAD_NS: u64 = 200_000;
/// Without progress for so long, operations may be waiting for what was not submitted.
pub const STALL_NS: u64 = 1_000_000;
/// Most launches behind one marker while somebody waits for the lease or for the work.
pub const MARKER_LAUNCHES: u64 = 32;
/// Most unfinished operations, whatever they are predicted to take.
const MOST_OPS: u64 = 512;
/// Most unfinished operations when a stall is relieved. Drivers block a launch when 1,024 are queued, and
/// the session's thread must never block.
pub const MAX_IN_FLIGHT: u64 = 1_020;
/// Operations that the first relief of a stall lets in; each further one doubles it.
const RELIEF: u64 = 64;
/// A misprediction is more than twice the prediction, and more than this beyond it: completion is seen
/// by threads that were woken for it.
const SURPRISE_NS: u64 = 250_000;
const SURPRISE_TIMES: u64 = 2;
/// Beside an overrunner it is twice as much, and more than what the driver's turns may add.
const SURPRISE_BESIDE_NS: u64 = 4 * BESIDE_NS;
/// Operations allowed before any prediction has been kept or broken.
const TRUST: u64 = 32;

/// A window, held within what it may be.
fn sane(window_ns: u64) -> u64 {
    window_ns.clamp(*WINDOW_RANGE.start(), *WINDOW_RANGE.end())
}

/// Settings of a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Config {
    /// Unfinished work in predicted ns; 200 to 500 µs.
    pub window_ns: u64,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            window_ns: WINDOW_NS,
        }
    }
}

/// What the gate is told of the lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LeaseView {
    /// It was asked back, or its slice is over: nothing new goes in, except what relieves a stall.
    pub closing: bool,
    /// The end of the slice, while somebody else waits for the lease.
    pub slice_end_ns: Option<u64>,
    /// A declared overrunner is on the GPU too, and the driver divides it between the two.
    pub beside: bool,
}

/// May an operation be submitted?
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Yes; to be handed to [`Gate::submitted`]. `None`: nothing is known of it.
    Submit(Option<Estimate>),
    /// Not now. Ask again after a completion, a relief, a change of the lease, or at a time.
    Wait(Wait),
}

/// So much more than predicted, and a sixteenth of that, what is unfinished may take where it is said when it
/// will be over: the next holder finds the device busy for so long at most, as far as is known.
const VARIES_NS: u64 = 250_000;

/// What an operation waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Wait {
    /// The reason.
    pub why: WaitFor,
    /// When the answer will be another though nothing happens.
    pub until_ns: Option<u64>,
}

impl Wait {
    /// Does nothing more go in before the slice is over, and all that is in flight?
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
    /// An operation of which nothing is known goes alone.
    Alone,
    /// Enough is unfinished.
    Window,
    /// It would end after the slice.
    SliceEnd,
}

/// An operation that waits in the queue, for [`Gate::relieve`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Waiting {
    /// Its place in the queue.
    pub place: u64,
    /// Nothing of its stream is unfinished.
    pub idle: bool,
}

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Completion {
    /// Gated operations.
    pub ops: u64,
    /// They took far more than was predicted.
    pub surprise: bool,
}

/// The gate of one session.
#[derive(Debug, Clone)]
pub struct Gate {
    window_ns: u64,
    predictor: Predictor,
    /// What was learned beside an overrunner, of what is not known otherwise: forgotten when alone.
    guesses: Option<Box<Predictor>>,
    ops: u64,
    /// Unfinished waits for a value in memory. They take no GPU time, and perhaps only the program can end them.
    waits: u64,
    /// Weights of the unfinished operations.
    unfinished_ns: u64,
    /// What they take at most, as far as was seen lately.
    longest_ns: u64,
    /// Those of which nothing is known.
    unknown: u64,
    /// Streams with unfinished work.
    streams: u64,
    /// Operations that trust allows: doubled by each prediction kept at that depth, one after a broken one.
    trust: u64,
    /// When something last completed, or the first of a busy time was submitted.
    progressed: u64,
    /// When a stall was last relieved.
    relieved: u64,
    /// Reliefs since the last progress.
    reliefs: u32,
    /// Operations up to this place are submitted in any case.
    exempt: u64,
    /// As the lease was when it was last looked at.
    beside: bool,
    parallel: Parallel,
}

impl Gate {
    /// A gate that has seen nothing. A window out of range is moved into it.
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

    /// From now on so much may be unfinished; moved into the range that a window may have. What is
    /// unfinished already stays.
    pub fn set_window(&mut self, window_ns: u64) {
        self.window_ns = sane(window_ns);
    }

    /// What is known of how long operations take.
    #[must_use]
    pub fn predictor(&self) -> &Predictor {
        &self.predictor
    }

    /// Unfinished operations.
    #[must_use]
    pub fn in_flight(&self) -> u64 {
        self.ops
    }

    /// Their predicted time in ns.
    #[must_use]
    pub fn unfinished_ns(&self) -> u64 {
        self.unfinished_ns
    }

    /// In how long what is unfinished will be over, where that can be said: all of it known and not given to
    /// vary, in one stream, not late and not beside an overrunner.
    #[must_use]
    pub fn ends_in(&self, now: u64) -> Option<u64> {
        let more = self.longest_ns.saturating_sub(self.unfinished_ns);
        let varies = more > VARIES_NS + self.unfinished_ns / 16;
        let known = self.ops > 0 && self.unknown == 0 && !varies;
        let sure = known && self.streams == 1 && !self.beside;
        let elapsed = now.saturating_sub(self.progressed);
        self.unfinished_ns.checked_sub(elapsed).filter(|_| sure)
    }

    /// May the operation at this place of the queue be submitted to this stream now?
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

    /// Does the operation end within the slice, or would the device have nothing to do before its end? Then
    /// one may pass it: waiting for the others' completion first would change nothing but idle time.
    fn in_time(&self, now: u64, estimate: Estimate, lease: &LeaseView) -> Result<(), Wait> {
        let Some(end) = lease.slice_end_ns else {
            return Ok(());
        };
        let elapsed = now.saturating_sub(self.progressed);
        let idle_at = now.saturating_add(self.unfinished_ns.saturating_sub(elapsed));
        let ends = idle_at.saturating_add(estimate.mean_ns.max(estimate.high_ns / 2));
        // Beside an overrunner a turn of the driver is used to its end.
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

    /// Is there room in the window?
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
            // Streams that run side by side have at least one operation each; now and then one more is
            // tried, where it keeps nobody waiting.
            let more = self.parallel.trying() && lease.slice_end_ns.is_none();
            if self.streams < parallel + u64::from(more) {
                return Ok(());
            }
        }
        if self.ops > 1 {
            return Err(full(None));
        }
        // A second one follows when the first is nearly over, so that the device does not idle.
        let weight = self.unfinished_ns;
        let elapsed = now.saturating_sub(self.progressed);
        let late = elapsed > weight.saturating_mul(2).saturating_add(SURPRISE_NS);
        // Beside an overrunner it may just be the other's turn.
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

    /// The operation was given to the device, as number `number` of its stream.
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
            // By the other's turns it has longer to do than predicted.
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

    /// A wait for a value in memory was given to the device, as number `number` of its stream. It takes no GPU
    /// time and holds nothing else back, but what ends it may be work that was not submitted.
    pub fn submitted_wait(&mut self, now: u64, flow: &mut Flow, number: u64) {
        if !self.busy() {
            self.progressed = now;
        }
        flow.waits.push_back(number);
        self.waits += 1;
    }

    /// Is anything unfinished?
    fn busy(&self) -> bool {
        self.ops > 0 || self.waits > 0
    }

    /// Is a marker due behind the stream's last operation? `awaited`: somebody waits for the lease or
    /// for the work, so that completion should be seen soon.
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

    /// A marker stands behind the stream's last operation. `late`: it was set long after the operation
    /// was submitted, because nobody had asked; when it fires tells little about how long that took.
    pub fn marked(&self, flow: &mut Flow, late: bool) {
        if late && flow.unmarked_ops > 0 {
            flow.late = flow.runs.back().map_or(0, |run| run.last);
        }
        flow.unmarked_ops = 0;
        flow.unmarked_ns = 0;
    }

    /// Everything of the stream up to operation `upto` is complete. To be called once for all markers
    /// that are seen at a time.
    pub fn completed(&mut self, now: u64, flow: &mut Flow, upto: u64) -> Completion {
        self.waited(now, flow, upto);
        let batch = Batch::of(flow, upto);
        if batch.ops == 0 {
            return Completion::default();
        }
        let begun = flow.runs.front().map_or(now, |run| run.since);
        // The batch took at most the time since the stream's last completion; if nothing else of the
        // session ran meanwhile, exactly that.
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

    /// The stream's waits up to operation `upto` are over. That is progress; what others took is not measured by it.
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

    /// A prediction was broken, or kept. One that was none (the operation was unknown) makes nothing
    /// deeper; nor, after a broken one, does one that says nothing about depth because there was less in
    /// flight than is allowed.
    fn note_kept(&mut self, batch: &Batch, surprise: bool) {
        let deep = self.trust >= TRUST || self.ops > self.trust / 2;
        if surprise {
            self.trust = 1;
        } else if batch.unknown == 0 && deep {
            self.trust = (self.trust * 2).min(MOST_OPS);
        }
    }

    /// Takes the batch out of the stream and teaches the predictor: in proportion to what each
    /// operation was believed to take, or, where some were unknown, what the others leave to them.
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

    /// `n` operations of a batch took `ns` each. Of a batch that ran beside an overrunner, which had half
    /// of that time, it is a guess, for what is not known better.
    fn note(&mut self, batch: &Batch, work: Work, ns: u64, n: u64, surprise: bool) {
        if !batch.beside || surprise && self.predictor.peek(work).is_some() {
            self.predictor.learn(work, ns, n, surprise);
        } else if self.beside && self.predictor.peek(work).is_none() {
            let guesses = self.guesses.get_or_insert_default();
            guesses.learn(work, ns / 2, n, surprise);
        }
    }

    /// How long until the unfinished work counts as stalled; `None`: nothing is unfinished.
    #[must_use]
    pub fn stall_in(&self, now: u64) -> Option<u64> {
        let since = self.progressed.max(self.relieved);
        // Beside an overrunner nothing completes during the other's turns.
        let stall = if self.beside {
            STALL_NS + BESIDE_NS
        } else {
            STALL_NS
        };
        self.busy()
            .then(|| stall.saturating_sub(now.saturating_sub(since)))
    }

    /// Has the unfinished work made no progress for a millisecond (beside an overrunner: three)? Then
    /// what is unfinished may be waiting for what was not submitted: [`Gate::relieve`].
    #[must_use]
    pub fn stalled(&self, now: u64) -> bool {
        self.stall_in(now) == Some(0)
    }

    /// Relieves a stall: the first waiting operation of an idle stream, and what stands before it in the
    /// queue, is let in whatever window and lease say; as many as a relief may let in, twice as many
    /// each time that it does not help. `waiting`: what waits, in order. `backed_up`: the program cannot
    /// send more before something is taken off the queue; then the first ones go in even where none is of
    /// an idle stream, as far as a driver would take them. Returns up to which place; `None`: there is
    /// nothing to let in (or no stall). It is tried again a millisecond later.
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
        // Further than this relief reaches: worth the way only if there is one at the end of it.
        if !found && !backed_up && !waiting.any(|w| w.idle) {
            return None;
        }
        if let Some(place) = place {
            self.reliefs += 1;
            self.exempt = self.exempt.max(place);
        }
        place
    }

    /// Is the operation at this place let in to relieve a stall?
    #[must_use]
    pub fn exempted(&self, place: u64) -> bool {
        self.busy() && place <= self.exempt
    }

    /// The device is of no more use: nothing is unfinished any more. The flows are to be dropped, or
    /// replaced by fresh ones.
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
