//! A discrete-event simulator of workers, valid or hanging, that drives the real scheduler. After
//! every step it checks the invariants: one holder per GPU, no idle GPU while a session could run,
//! and every nanosecond accounted for.

use std::collections::{BTreeMap, BTreeSet};

use vgpu_sched::{
    Action, Depth, Epoch, Event, GpuId, HeadCost, SessionId, SessionState, Usage, VmId, WaitReason,
};

use super::Rig;

/// The load of one session.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// Length of each operation in ns.
    pub(crate) kernel_ns: u64,
    /// Bytes of each operation.
    pub(crate) bytes: u64,
    /// Number of operations that arrive at the same time.
    pub(crate) burst: u64,
    /// Time in ns from the end of a burst to the next burst; `None`: the next burst arrives at
    /// once, forever.
    pub(crate) pause_ns: Option<u64>,
    /// Time of the first arrival in ns.
    pub(crate) from_ns: u64,
    /// Number of the operation that never ends.
    pub(crate) hangs_at: Option<u64>,
    /// A false cost of an operation in ns that the worker reports; `None`: the worker reports the
    /// true cost.
    pub(crate) claims_ns: Option<u64>,
}

impl Load {
    /// Work without end.
    pub(crate) fn backlog(kernel_ns: u64) -> Self {
        Self {
            kernel_ns,
            bytes: 0,
            burst: 1,
            pause_ns: None,
            from_ns: 0,
            hangs_at: None,
            claims_ns: None,
        }
    }

    /// Bursts of operations, with pauses between.
    pub(crate) fn bursts(kernel_ns: u64, burst: u64, pause_ns: u64) -> Self {
        Self {
            burst,
            pause_ns: Some(pause_ns),
            ..Self::backlog(kernel_ns)
        }
    }
}

#[derive(Debug)]
struct Lease {
    gpus: Vec<GpuId>,
    epoch: Epoch,
    slice_end: u64,
    wanted: bool,
    revoked: bool,
    calls: u64,
    bytes: u64,
    fresh: bool,
    told_idle: bool,
    told_spent: bool,
}

#[derive(Debug)]
struct Worker {
    vm: VmId,
    load: Load,
    queue: u64,
    lease: Option<Lease>,
    in_flight: bool,
    submitted: u64,
    completed: u64,
    used: Usage,
    dead: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum What {
    Done(SessionId),
    Arrive(SessionId),
    Exit(SessionId),
    Verified(GpuId),
}

/// The simulator.
pub(crate) struct Sim {
    pub(crate) rig: Rig,
    /// Time in ns from a grant to the start of its first operation.
    pub(crate) switch_ns: u64,
    /// Time in ns from a kill to the end of the process.
    pub(crate) kill_ns: u64,
    workers: BTreeMap<SessionId, Worker>,
    events: BTreeSet<(u64, u64, What)>,
    serial: u64,
    /// Time and session of every kill.
    pub(crate) kills: Vec<(u64, SessionId)>,
    /// Time, session and length in ns of every completed operation.
    pub(crate) done: Vec<(u64, SessionId, u64)>,
    /// Sessions with a declared overrun that still hold a lease.
    overrun: BTreeSet<SessionId>,
    /// Time and session of every declared overrun.
    pub(crate) overruns: Vec<(u64, SessionId)>,
    /// Time and session of every turn that was revoked or extended.
    pub(crate) turns: Vec<(u64, SessionId)>,
    /// Number of events fed so far.
    pub(crate) steps: u64,
}

impl Sim {
    pub(crate) fn new(rig: Rig, switch_ns: u64) -> Self {
        Self {
            rig,
            switch_ns,
            kill_ns: 1_000_000,
            workers: BTreeMap::new(),
            events: BTreeSet::new(),
            serial: 0,
            kills: Vec::new(),
            done: Vec::new(),
            overrun: BTreeSet::new(),
            overruns: Vec::new(),
            turns: Vec::new(),
            steps: 0,
        }
    }

    /// Adds a session of a VM with this load.
    pub(crate) fn start(&mut self, session: u64, vm: u32, load: Load) {
        self.rig.add_session(session, vm);
        let id = SessionId(session);
        let from = load.from_ns.max(self.rig.now);
        let worker = Worker {
            vm: VmId(vm),
            load,
            queue: 0,
            lease: None,
            in_flight: false,
            submitted: 0,
            completed: 0,
            used: Usage::default(),
            dead: false,
        };
        self.workers.insert(id, worker);
        self.at(from, What::Arrive(id));
    }

    /// Runs up to a time.
    pub(crate) fn run_until(&mut self, end: u64) {
        loop {
            let timer = self.rig.sched.next_timer_ns();
            let next = self.events.first().map_or(u64::MAX, |&(at, _, _)| at);
            if timer.min(next) > end {
                break;
            }
            self.rig.now = self.rig.now.max(timer.min(next));
            if next <= timer {
                let Some((_, _, what)) = self.events.pop_first() else {
                    break;
                };
                self.happen(what);
            } else {
                self.sample();
                self.feed(Event::Timer);
            }
            self.check();
        }
        self.rig.now = end;
        self.sample();
        self.feed(Event::Timer);
        self.check();
    }

    /// Reports the counters of all holders, as vgpud does before a timer.
    fn sample(&mut self) {
        let holders: Vec<(SessionId, u64, u64)> = self
            .workers
            .iter()
            .filter(|(_, worker)| worker.lease.is_some() && !worker.dead)
            .map(|(&id, worker)| (id, worker.submitted, worker.completed))
            .collect();
        for (session, submitted, completed) in holders {
            self.feed(Event::Progress {
                session,
                submitted,
                completed,
            });
        }
    }

    fn at(&mut self, time: u64, what: What) {
        self.serial += 1;
        self.events.insert((time, self.serial, what));
    }

    fn happen(&mut self, what: What) {
        match what {
            What::Arrive(id) => {
                let Some(worker) = self.workers.get_mut(&id).filter(|w| !w.dead) else {
                    return;
                };
                worker.queue += worker.load.burst;
                if let Some(lease) = &mut worker.lease {
                    lease.told_idle = false;
                }
                self.tell_runnable(id);
                self.pump(id);
            }
            What::Done(id) => {
                let now = self.rig.now;
                let Some(worker) = self.workers.get_mut(&id).filter(|w| !w.dead) else {
                    return;
                };
                worker.in_flight = false;
                worker.completed += 1;
                self.done.push((now, id, worker.load.kernel_ns));
                if worker.queue == 0 {
                    match worker.load.pause_ns {
                        None => worker.queue = worker.load.burst,
                        Some(pause) => self.at(now + pause, What::Arrive(id)),
                    }
                }
                self.pump(id);
            }
            What::Exit(session) => {
                self.overrun.remove(&session);
                self.feed(Event::WorkerExited { session });
            }
            What::Verified(gpu) => self.feed(Event::Verified { gpu, ok: true }),
        }
    }

    fn tell_runnable(&mut self, id: SessionId) {
        let worker = &self.workers[&id];
        let depth = Depth {
            calls: worker.queue,
            bytes: worker.queue * worker.load.bytes,
        };
        let head = HeadCost {
            gpu_ns: worker.load.claims_ns.unwrap_or(worker.load.kernel_ns),
            bytes: worker.load.bytes,
        };
        self.feed(Event::Runnable {
            session: id,
            depth,
            head,
        });
    }

    /// Makes a worker act on a change: submits the next operation, or reports its state.
    fn pump(&mut self, id: SessionId) {
        let now = self.rig.now;
        let switch = self.switch_ns;
        let Some(worker) = self.workers.get_mut(&id) else {
            return;
        };
        let Some(lease) = &mut worker.lease else {
            return;
        };
        if worker.in_flight || worker.dead {
            return;
        }
        if lease.revoked {
            let epoch = lease.epoch;
            worker.lease = None;
            self.overrun.remove(&id);
            let worker = &self.workers[&id];
            let depth = Depth {
                calls: worker.queue,
                bytes: worker.queue * worker.load.bytes,
            };
            let used = worker.used;
            self.feed(Event::Released {
                session: id,
                epoch,
                used,
                depth,
            });
            return;
        }
        if worker.queue == 0 {
            if !lease.told_idle {
                lease.told_idle = true;
                self.feed(Event::Idle {
                    session: id,
                    idle_for_ns: 0,
                });
            }
            return;
        }
        let bytes = worker.load.bytes;
        if worker.used.calls >= lease.calls || bytes > 0 && worker.used.bytes >= lease.bytes {
            if !lease.told_spent {
                lease.told_spent = true;
                let (epoch, used) = (lease.epoch, worker.used);
                self.feed(Event::CreditsSpent {
                    session: id,
                    epoch,
                    used,
                });
            }
            return;
        }
        let start = if lease.fresh { now + switch } else { now };
        lease.fresh = false;
        worker.queue -= 1;
        worker.used.calls += 1;
        worker.used.bytes += bytes;
        worker.submitted += 1;
        worker.in_flight = true;
        let end = start + worker.load.kernel_ns;
        if worker.load.hangs_at != Some(worker.submitted) {
            self.at(end, What::Done(id));
        }
    }

    /// Feeds one event to the scheduler and carries out all resulting actions.
    pub(crate) fn feed(&mut self, event: Event) {
        let actions = self.rig.feed(event);
        self.steps += 1;
        for action in &actions {
            self.act(action);
        }
    }

    fn act(&mut self, action: &Action) {
        let now = self.rig.now;
        match *action {
            Action::Grant(ref terms) | Action::GrantBeside(ref terms) => {
                let worker = self
                    .workers
                    .get_mut(&terms.session)
                    .expect("granted to a session");
                assert!(worker.lease.is_none() && !worker.dead, "granted twice");
                worker.lease = Some(Lease {
                    gpus: [terms.gpu].iter().chain(&terms.also).copied().collect(),
                    epoch: terms.epoch,
                    slice_end: terms.slice_end_ns,
                    wanted: terms.wanted,
                    revoked: false,
                    calls: terms.credits.calls,
                    bytes: terms.credits.bytes,
                    fresh: true,
                    told_idle: false,
                    told_spent: false,
                });
                self.pump(terms.session);
            }
            Action::Extend {
                session,
                epoch,
                slice_end_ns,
                ..
            } => {
                self.turns.push((now, session));
                self.with_lease(session, epoch, |lease| lease.slice_end = slice_end_ns);
            }
            Action::Want {
                session,
                epoch,
                wanted,
                ..
            } => {
                self.with_lease(session, epoch, |lease| lease.wanted = wanted);
            }
            Action::Revoke { session, epoch, .. } => {
                self.turns.push((now, session));
                self.with_lease(session, epoch, |lease| lease.revoked = true);
                self.pump(session);
            }
            Action::Credit {
                session,
                epoch,
                credits,
            } => {
                self.with_lease(session, epoch, |lease| {
                    (lease.calls, lease.bytes) = (credits.calls, credits.bytes);
                    lease.told_spent = false;
                });
                self.pump(session);
            }
            Action::Kill { session, .. } => {
                self.kills.push((now, session));
                if let Some(worker) = self.workers.get_mut(&session) {
                    worker.dead = true;
                    worker.lease = None;
                    self.at(now + self.kill_ns, What::Exit(session));
                }
            }
            Action::Canary { gpu } => self.at(now + 1_000_000, What::Verified(gpu)),
            Action::Overrun { session, .. } => {
                self.overrun.insert(session);
                self.overruns.push((now, session));
            }
            Action::Ignored { reason } => panic!("a valid event was ignored: {reason:?}"),
            _ => {}
        }
    }

    fn with_lease(&mut self, session: SessionId, epoch: Epoch, change: impl FnOnce(&mut Lease)) {
        let lease = self
            .workers
            .get_mut(&session)
            .and_then(|worker| worker.lease.as_mut());
        if let Some(lease) = lease
            && lease.epoch == epoch
        {
            change(lease);
        }
    }

    /// Checks the invariants after a step.
    fn check(&mut self) {
        let gpus: Vec<GpuId> = self.rig.sched.gpus().collect();
        for gpu in gpus {
            let running = self.workers.iter().filter(|(id, worker)| {
                worker.lease.as_ref().is_some_and(|l| l.gpus.contains(&gpu))
                    && !self.overrun.contains(*id)
            });
            assert!(
                running.count() <= 1,
                "two holders without a declared overrun"
            );
            let stats = self.rig.sched.gpu_stats(gpu).expect("listed");
            assert!(stats.holders.len() <= 2);
            let idle = stats.holders.is_empty() && stats.reserved.is_none();
            if idle && stats.health.grants() && stats.waiting > 0 {
                self.check_nobody_could_run(gpu);
            }
        }
    }

    fn check_nobody_could_run(&self, gpu: GpuId) {
        for &id in self.workers.keys() {
            let Some(stats) = self.rig.sched.session_stats(id) else {
                continue;
            };
            let held_back = matches!(
                stats.waiting,
                Some(WaitReason::RateLimit { .. } | WaitReason::Quarantine)
            );
            assert!(
                stats.gpu != gpu || stats.state != SessionState::Waiting || held_back,
                "{id} waits on an idle {gpu}: {stats:?}"
            );
        }
    }

    /// Charged time of a VM in ns.
    pub(crate) fn gpu_ns(&self, vm: u32) -> u64 {
        self.rig.gpu_ns(vm)
    }

    /// Checks that Σ charged + idle + switch = wall, and that the sum over VMs is the charged time,
    /// over all GPUs.
    pub(crate) fn check_accounts(&self, since: u64) {
        let (mut charged, mut gpus) = (0, 0);
        for gpu in self.rig.sched.gpus() {
            let account = self.rig.sched.gpu_stats(gpu).expect("listed").account;
            assert_eq!(
                account.charged_ns + account.idle_ns + account.switch_ns,
                self.rig.now - since,
                "{gpu}: {account:?}"
            );
            charged += account.charged_ns;
            gpus += 1;
        }
        let by_vm: u64 = self
            .rig
            .sched
            .vms()
            .map(|vm| self.rig.sched.vm_stats(vm).expect("listed").gpu_ns)
            .sum();
        assert_eq!(by_vm, charged, "over {gpus} GPUs");
    }
}

impl Sim {
    /// Time in ns for which the VM has been waiting; 0 if it does not wait.
    pub(crate) fn waits_since(&self, vm: VmId) -> u64 {
        let explained = self.rig.sched.explain(vm).expect("the VM is known");
        let since = explained.waiting_since_ns;
        since.map_or(0, |since| self.rig.now - since)
    }
}
