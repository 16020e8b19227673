//! The mediator's thread: passes events to the scheduler in order and carries out the decisions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam::channel::{Receiver, unbounded};
use vgpu_proto::limits::MAX_WORKER_MESSAGE;
use vgpu_sched::log::DecisionLog;
use vgpu_sched::{Action, Event, GpuId, Scheduler, SessionId, StrikeCause, VmId};

use super::crashes::Crashes;
use super::freeing::Freeing;
use super::handle::{Command, MediatorHandle, Pong};
use super::images::ImageAccounts;
use super::message_rate::MessageRates;
use super::meter::Meter;
use super::reactor::{Due, Reactor, Source, now_ns};
use super::registry::Registry;
use super::session::{Reading, Session};
use crate::config::Config;
use crate::events::EventSink;
use crate::mediation::GpuCheck;
use crate::model::{GpuRecord, Histogram, VmIdentity};
use crate::system::priority;
use crate::worker::images::ImageKeeper;
use crate::worker::records::WorkerRecords;

/// Runs a canary on a GPU, in a process with a deadline, and checks whether the memory of the given
/// killed processes was freed.
pub type Canary = Arc<
    dyn Fn(GpuRecord, Vec<u32>) -> Pin<Box<dyn Future<Output = GpuCheck> + Send>> + Send + Sync,
>;

/// Most messages that the mediator reads from one worker before other workers and calls have their
/// turn.
const MESSAGES_AT_ONCE: usize = 64;

/// Number of messages for reading a worker's socket empty: more than fit into the socket.
const ALL_MESSAGES: usize = 1_024;

/// Commands handled before the workers have their turn.
const COMMANDS_AT_ONCE: usize = 256;

const TICK_NS: u64 = vgpu_sched::SECONDS;

/// Interval at which the progress of lease holders is read, in ns.
const PROGRESS_NS: u64 = 5 * vgpu_sched::MILLIS;

/// Settings and parts of a mediator.
pub struct MediatorSettings {
    /// The configuration.
    pub config: Arc<Config>,
    /// Receives the events.
    pub events: EventSink,
    /// Records of workers on disk.
    pub records: WorkerRecords,
    /// Checks a GPU after a kill.
    pub canary: Canary,
    /// Runtime of the canaries.
    pub runtime: tokio::runtime::Handle,
    /// UUIDs of GPUs on which a worker of an earlier vgpud may still run.
    pub unverified: BTreeSet<String>,
    /// Number of workers of an earlier vgpud that still run.
    pub orphans: u32,
    /// Keeper of module images.
    pub images: ImageKeeper,
    /// First session number, larger than every session number of earlier runs.
    pub first_session: u64,
    /// First lease epoch, larger than every epoch of earlier runs.
    pub first_epoch: u64,
}

/// The running mediator.
#[derive(Debug)]
pub struct Mediator {
    handle: MediatorHandle,
    thread: Option<JoinHandle<()>>,
}

impl Mediator {
    /// Starts the mediator's thread.
    ///
    /// # Errors
    /// If the thread or the descriptors on which it waits cannot be created.
    pub fn start(settings: MediatorSettings) -> io::Result<Mediator> {
        let reactor = Reactor::new()?;
        let (commands, inbox) = unbounded();
        let handle = MediatorHandle::new(commands, reactor.waker());
        let actor = Actor::new(settings, reactor, inbox, handle.clone());
        let thread = std::thread::Builder::new()
            .name("vgpud-mediator".into())
            .spawn(move || {
                priority::raise();
                let lived = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| actor.run()));
                if lived.is_err() {
                    // Without the mediator no lease is granted, ended or watched. Workers end with
                    // vgpud, and the supervisor of vgpud starts it again.
                    tracing::error!("the mediator failed; vgpud ends");
                    std::process::abort();
                }
            })?;
        Ok(Mediator {
            handle,
            thread: Some(thread),
        })
    }

    /// Returns a handle to send commands to the mediator.
    #[must_use]
    pub fn handle(&self) -> MediatorHandle {
        self.handle.clone()
    }

    /// Ends the thread. Workers that still run end because their control sockets close.
    pub fn stop(mut self) {
        let _ = self.handle.send(Command::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the mediator's thread panicked");
        }
    }
}

/// An event that the scheduler has not seen yet.
#[derive(Debug)]
struct Pending {
    /// Time of the event on the scheduler's clock; `None`: the time at which the scheduler handles
    /// the event, as for a time in the future.
    at_ns: Option<u64>,
    event: Event,
    /// The offence, for [`Event::Strike`]. The scheduler keeps no texts.
    breach: Option<String>,
}

pub(super) struct Actor {
    pub(super) scheduler: Scheduler,
    /// The log of events and decisions. All events reach the scheduler through this log.
    pub(super) log: DecisionLog,
    pub(super) registry: Registry,
    pub(super) sessions: BTreeMap<u64, Session>,
    pub(super) reactor: Reactor,
    pub(super) events: EventSink,
    pub(super) records: WorkerRecords,
    pub(super) canary: Canary,
    pub(super) runtime: tokio::runtime::Handle,
    pub(super) images: ImageKeeper,
    pub(super) freeing: Freeing,
    pub(super) image_accounts: ImageAccounts,
    pub(super) handle: MediatorHandle,
    pub(super) meter: Meter,
    pub(super) crashes: Crashes,
    pub(super) message_rates: MessageRates,
    pub(super) next_session: u64,
    /// Reason why no session is admitted any more.
    pub(super) draining: Option<String>,
    /// Whether the configuration has been applied.
    pub(super) serving: bool,
    /// Workers of an earlier vgpud that still run.
    pub(super) orphans: u32,
    /// Error of the last canary of a GPU, if it failed.
    pub(super) canary_said: BTreeMap<GpuId, String>,
    /// GPUs that are checked again, because the check found no memory although no program held it.
    pub(super) full: BTreeSet<GpuId>,
    /// Killed workers that have ended and whose memory is not yet seen to be free.
    pub(super) killed: BTreeMap<GpuId, BTreeSet<u32>>,
    /// Reason why a GPU is suspect, for the guests that are refused.
    pub(super) suspects: BTreeMap<GpuId, String>,
    /// VMs that got a strike because a worker of theirs did not end, with the GPU of the worker,
    /// until the GPU passes a check.
    pub(super) struck_stuck: BTreeSet<(VmIdentity, GpuId)>,
    pub(super) decisions: u64,
    pub(super) decision_time: Histogram,
    inbox: Receiver<Command>,
    /// Events that the scheduler has not seen yet, in order.
    queue: VecDeque<Pending>,
    actions: Vec<Action>,
    /// Whether an event or one of its actions is being handled.
    deciding: bool,
    progress_due: bool,
    timer_ns: u64,
    /// Time since which this thread works or should work. A long time since then means that vgpud
    /// was stopped.
    awake_ns: u64,
    buffer: Vec<u8>,
    running: bool,
}

impl Actor {
    pub(super) fn new(
        settings: MediatorSettings,
        mut reactor: Reactor,
        inbox: Receiver<Command>,
        handle: MediatorHandle,
    ) -> Actor {
        let worker = &settings.config.worker;
        let scheduler = Scheduler::new(vgpu_sched::Config {
            first_epoch: settings.first_epoch,
            verify_ns: worker.kill_verify_ms.saturating_mul(vgpu_sched::MILLIS),
            pinned_bytes: Some(crate::memory::pinned_most()),
            ..vgpu_sched::Config::default()
        });
        let log = DecisionLog::new(&scheduler, settings.config.daemon.sched_log());
        reactor.at(now_ns() + TICK_NS, Due::Tick);
        Actor {
            log,
            scheduler,
            registry: Registry::new(settings.config, settings.unverified),
            sessions: BTreeMap::new(),
            reactor,
            events: settings.events,
            records: settings.records,
            canary: settings.canary,
            freeing: Freeing::new(settings.runtime.clone()),
            image_accounts: ImageAccounts::new(),
            runtime: settings.runtime,
            images: settings.images,
            handle,
            meter: Meter::default(),
            next_session: settings.first_session.max(1),
            draining: None,
            orphans: settings.orphans,
            serving: false,
            canary_said: BTreeMap::new(),
            full: BTreeSet::new(),
            crashes: Crashes::default(),
            message_rates: MessageRates::default(),
            killed: BTreeMap::new(),
            suspects: BTreeMap::new(),
            struck_stuck: BTreeSet::new(),
            decisions: 0,
            decision_time: Histogram::default(),
            inbox,
            queue: VecDeque::new(),
            actions: Vec::new(),
            deciding: false,
            progress_due: false,
            timer_ns: u64::MAX,
            awake_ns: now_ns(),
            buffer: Vec::with_capacity(MAX_WORKER_MESSAGE),
            running: true,
        }
    }

    fn run(mut self) {
        // Wake-ups within a microsecond instead of the default 50 (prctl PR_SET_TIMERSLACK).
        if let Err(e) = nix::sys::prctl::set_timerslack(1) {
            tracing::debug!("the timer slack stays: {e}");
        }
        let mut found = Vec::new();
        while self.running {
            self.log.rest(&self.scheduler);
            self.reactor.arm(self.timer_ns);
            self.reactor.ready(false, &mut found);
            self.awake_ns = self.reactor.awake_since(now_ns());
            self.take(&found, MESSAGES_AT_ONCE);
            self.catch_up(&mut found);
            self.take_commands();
            self.catch_up(&mut found);
            self.take_due();
        }
    }

    /// After a time in which vgpud did not run: reads all messages of that time before the
    /// scheduler gets the present time. So the work of the workers is charged from the time at
    /// which it happened.
    fn catch_up(&mut self, found: &mut Vec<Source>) {
        if self.away_ns(now_ns()).is_some() {
            self.reactor.ready(true, found);
            self.take(found, ALL_MESSAGES);
        }
    }

    /// Time in ns for which this thread did not run, if that is longer than on a busy host: vgpud
    /// was stopped.
    pub(super) fn away_ns(&self, now_ns: u64) -> Option<u64> {
        const LATE_NS: u64 = 100 * vgpu_sched::MILLIS;
        let away = now_ns.saturating_sub(self.awake_ns);
        (away > LATE_NS).then_some(away)
    }

    /// Reads messages of workers, then handles their deaths. Deaths come last, because messages
    /// sent before the death still count.
    fn take(&mut self, found: &[Source], most: usize) {
        for source in found {
            match *source {
                Source::Worker(session) => self.read_worker(session, most),
                Source::Timer => self.reactor.fired(),
                Source::Wake | Source::Death(_) => {}
            }
        }
        for source in found {
            if let Source::Death(session) = *source {
                self.died(session);
            }
        }
    }

    fn take_commands(&mut self) {
        for _ in 0..COMMANDS_AT_ONCE {
            match self.inbox.try_recv() {
                Ok(Command::Stop) => self.running = false,
                Ok(command) => self.handle_command(command),
                Err(_) => return,
            }
        }
        // Further commands may wait, and the counter was already read.
        if !self.inbox.is_empty() {
            let _ = self.reactor.waker().write(1);
        }
    }

    fn take_due(&mut self) {
        let now = now_ns();
        while let Some(due) = self.reactor.take_due(now) {
            match due {
                Due::Kill(session) => self.kill_now(session),
                Due::CheckExit(session) => self.check_exit(session),
                Due::Clear(session) => self.clear(session),
                Due::ResumeReading(session) => self.resume_reading(session),
                Due::Progress => self.poll_progress(),
                Due::Tick => {
                    self.tick();
                    self.reactor.at(now + TICK_NS, Due::Tick);
                }
            }
        }
        if self.timer_ns > now {
            return;
        }
        self.timer_ns = u64::MAX;
        self.bring_up_to_date();
    }

    /// Reports the progress of lease holders and the time to the scheduler. Safe at any time;
    /// brings all accounts up to now.
    pub(super) fn bring_up_to_date(&mut self) {
        // The scheduler needs all waiting reports before its timer. Otherwise a limit might fire
        // although an unread report prevents it, or for a time in which vgpud read no worker.
        let mut found = Vec::new();
        self.reactor.ready(true, &mut found);
        self.take(&found, MESSAGES_AT_ONCE);
        let now = now_ns();
        if let Some(for_ns) = self.away_ns(now) {
            self.awake_ns = now;
            tracing::warn!(
                "vgpud got no processor for {} ms",
                for_ns / vgpu_sched::MILLIS
            );
            self.feed_of(now, Event::Away { for_ns });
        }
        self.report_progress();
        self.feed(Event::Timer);
    }

    /// Polls the progress of lease holders periodically while there are any. The scheduler learns
    /// only from these polls that work is in flight, and counts its time limits from then on.
    pub(super) fn schedule_progress(&mut self) {
        if !self.progress_due {
            self.progress_due = true;
            self.reactor.at(now_ns() + PROGRESS_NS, Due::Progress);
        }
    }

    fn poll_progress(&mut self) {
        self.progress_due = false;
        self.report_progress();
        // The lease page is not read here: a worker that has parked its lease without reporting the
        // parking may take the lease back without a message.
        let in_use = |session: &Session| session.lease.is_some_and(|lease| !lease.parked);
        if self.sessions.values().any(in_use) {
            self.schedule_progress();
        }
    }

    fn report_progress(&mut self) {
        let holders: Vec<(u64, u64, u64)> = self
            .sessions
            .values()
            .filter(|session| session.lease.is_some())
            .map(|session| {
                let hints = session.hints();
                (session.id, hints.submitted, hints.completed)
            })
            .collect();
        for (session, submitted, completed) in holders {
            self.feed(Event::Progress {
                session: SessionId(session),
                submitted,
                completed,
            });
        }
    }

    /// Passes an event to the scheduler and carries out the actions that follow. An event that
    /// comes from within an action waits until all actions of the present event are carried out.
    pub(super) fn feed(&mut self, event: Event) {
        self.feed_pending(None, event);
    }

    /// Passes an event of an earlier time to the scheduler. The scheduler's clock does not go back.
    pub(super) fn feed_of(&mut self, at_ns: u64, event: Event) {
        self.feed_pending(Some(at_ns), event);
    }

    fn feed_pending(&mut self, at_ns: Option<u64>, event: Event) {
        self.queue.push_back(Pending {
            at_ns,
            event,
            breach: None,
        });
        self.handle_pending();
    }

    /// Has the scheduler count a strike against a VM, for the given reason.
    pub(super) fn feed_strike(&mut self, vm: VmId, breach: String) {
        self.queue.push_back(Pending {
            at_ns: None,
            event: Event::Strike { vm },
            breach: Some(breach),
        });
        self.handle_pending();
    }

    /// Passes an event to the scheduler that it answers at once. Carries out the other actions and
    /// returns the answer that `answer` finds among the actions. Never called from within an
    /// action, where events wait and no answer would come.
    pub(super) fn ask<T>(
        &mut self,
        event: Event,
        answer: impl Fn(&Action) -> Option<T>,
    ) -> Option<T> {
        if self.deciding {
            tracing::error!(?event, "the scheduler was asked from within an action");
            return None;
        }
        let pending = Pending {
            at_ns: None,
            event,
            breach: None,
        };
        let mut answered = None;
        self.deciding = true;
        self.decide(pending, |action| {
            let found = answer(action);
            let is_answer = found.is_some();
            answered = answered.take().or(found);
            is_answer
        });
        self.deciding = false;
        self.handle_pending();
        answered
    }

    fn handle_pending(&mut self) {
        if self.deciding {
            return;
        }
        self.deciding = true;
        while let Some(pending) = self.queue.pop_front() {
            self.decide(pending, |_| false);
        }
        self.deciding = false;
    }

    /// Has the scheduler handle one event, and carries out its actions, except those that
    /// `is_answer` takes.
    fn decide(&mut self, pending: Pending, mut is_answer: impl FnMut(&Action) -> bool) {
        let begun = now_ns();
        let at_ns = pending.at_ns.map_or(begun, |at_ns| at_ns.min(begun));
        let mut actions = std::mem::take(&mut self.actions);
        self.log
            .handle(&mut self.scheduler, at_ns, pending.event, &mut actions);
        self.decisions += 1;
        self.decision_time.record(now_ns().saturating_sub(begun));
        let mut breach = pending.breach;
        // VM and reason of the last strike. A quarantine follows from a strike of the same event.
        let mut struck: Option<(VmId, String)> = None;
        for action in actions.drain(..) {
            if is_answer(&action) {
                continue;
            }
            match action {
                Action::Struck { vm, strikes, cause } => {
                    let breach = breach.take_if(|_| cause == StrikeCause::Breach);
                    let reason = breach.unwrap_or_else(|| cause.to_string());
                    self.struck(vm, strikes, &reason);
                    struck = Some((vm, reason));
                }
                Action::Quarantine {
                    vm,
                    strikes,
                    for_ns,
                } => {
                    let last = struck.take_if(|(of, _)| *of == vm);
                    self.quarantined(vm, strikes, for_ns, last.map(|(_, reason)| reason));
                }
                action => self.carry_out(action),
            }
        }
        self.actions = actions;
    }

    pub(super) fn set_timer(&mut self, at_ns: u64) {
        self.timer_ns = at_ns;
    }

    /// Reads up to `most` messages of a worker.
    pub(super) fn read_worker(&mut self, id: u64, most: usize) {
        let mut buffer = std::mem::take(&mut self.buffer);
        for _ in 0..most {
            let Some(session) = self.sessions.get_mut(&id) else {
                break;
            };
            let Some(worker) = &session.worker else { break };
            if session.reading == Reading::Paused {
                break;
            }
            let received = worker.channel.receive(&mut buffer);
            if session.reading == Reading::Counted
                && self.registry.vm(session.vm).is_some()
                && let Some(until) = self.message_rates.count(session.vm, now_ns())
            {
                self.pause_reading(id, until);
            }
            if !self.received(id, received) {
                break;
            }
        }
        self.buffer = buffer;
    }

    fn pause_reading(&mut self, id: u64, until_ns: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(worker) = &session.worker {
            self.reactor.forget(&worker.channel);
            session.reading = Reading::Paused;
            self.reactor.at(until_ns, Due::ResumeReading(id));
            tracing::debug!(
                session = id,
                "the workers of its VM send too many messages; no more are read for a while"
            );
        }
    }

    fn resume_reading(&mut self, id: u64) {
        let Some(session) = self.sessions.get_mut(&id) else {
            return;
        };
        if let Some(worker) = session
            .worker
            .as_ref()
            .filter(|_| session.reading == Reading::Paused)
        {
            session.reading = Reading::Counted;
            if let Err(e) = self.reactor.watch(&worker.channel, Source::Worker(id)) {
                tracing::warn!(session = id, "the worker's messages cannot be read: {e}");
            }
        }
    }

    /// The answer to a ping: proves that the mediator runs, and carries the numbers that
    /// housekeeping needs.
    pub(super) fn pong(&self) -> Pong {
        let open = self.sessions.values().filter(|s| !s.is_ending()).count();
        Pong {
            open,
            known: self.sessions.len(),
            next_session: self.next_session,
        }
    }
}
