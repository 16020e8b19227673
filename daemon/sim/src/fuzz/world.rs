//! One run: genes become events, events go to the scheduler and to the model, and both are compared.

use vgpu_sched::{
    Action, Class, Config, Depth, Epoch, Event, GpuConfig, GpuHealth, GpuId, HeadCost, MICROS,
    MILLIS, Memory, PoolConfig, PoolId, SECONDS, Scheduler, SessionId, Usage, VmConfig, VmId,
};

use super::check::Checker;
use super::coverage::Coverage;
use super::make::{self, odds, pick, weighted};
use super::model::Model;
use super::states;
use super::{Verdict, ensure};
use crate::rng::Rng;

/// Timers that may follow each other at one time before it counts as spinning.
const SPIN: u32 = 5;

/// What kind of run it is.
#[derive(Debug, Clone)]
struct Character {
    /// Weights of [`World::step`]'s kinds of steps.
    steps: [u64; 12],
    /// Longest usual wait.
    scale_ns: u64,
    /// Settings of any size.
    wild: bool,
    /// After so many events a clone of the scheduler begins to run alongside.
    clone_at: u64,
}

impl Character {
    fn new(seed: u64) -> Self {
        let mut r = Rng::new(seed);
        let steps = match r.below(4) {
            //      wait timer late early admin start honest lie held forge reap verify
            0 => [4, 6, 1, 1, 1, 2, 40, 0, 0, 1, 4, 2],
            1 => [4, 6, 1, 1, 2, 3, 15, 8, 5, 3, 3, 1],
            2 => [4, 6, 1, 1, 6, 3, 10, 4, 3, 2, 3, 1],
            _ => [4, 6, 1, 1, 3, 3, 2, 12, 6, 3, 1, 1],
        };
        Self {
            steps,
            scale_ns: *pick(
                &mut r,
                &[
                    &(200 * MICROS),
                    &(3 * MILLIS),
                    &(50 * MILLIS),
                    &(5 * SECONDS),
                ],
            )
            .unwrap_or(&MILLIS),
            wild: odds(&mut r, 1, 2),
            clone_at: if odds(&mut r, 1, 4) {
                r.below(500)
            } else {
                u64::MAX
            },
        }
    }
}

/// A scheduler in a world that is honest, or lies.
pub(super) struct World {
    character: Character,
    sched: Scheduler,
    twin: Option<Scheduler>,
    model: Model,
    checker: Checker,
    next_session: u64,
    /// Events fed.
    pub(super) events: u64,
    /// Actions asked for.
    pub(super) actions: u64,
    pub(super) coverage: Coverage,
    /// What happened, if it is to be told.
    pub(super) story: Option<Vec<String>>,
}

impl World {
    /// The world of a seed, with a few GPUs, pools and VMs.
    pub(super) fn new(seed: u64, tell: bool) -> Result<Self, String> {
        let mut world = Self {
            character: Character::new(seed),
            sched: Scheduler::new(Config::default()),
            twin: None,
            model: Model::default(),
            checker: Checker::default(),
            next_session: 0,
            events: 0,
            actions: 0,
            coverage: Coverage::default(),
            story: tell.then(Vec::new),
        };
        let mut r = Rng::part(seed, 1);
        for index in 0..2 {
            let config = GpuConfig {
                memory_bytes: 1000,
                context_bytes: 10,
                overcommit: index == 1,
            };
            let (gpu, health) = (GpuId(index), GpuHealth::Healthy);
            world.feed(Event::AddGpu {
                gpu,
                config,
                health,
            })?;
            let config = if world.character.wild {
                make::pool(&mut r, odds(&mut Rng::part(seed, 2), 1, 2))
            } else {
                PoolConfig::default()
            };
            let pool = PoolId(index);
            world.feed(Event::AddPool { pool, config })?;
            world.feed(Event::AssignGpu { gpu, pool })?;
        }
        world.feed(Event::AssignGpu {
            gpu: GpuId(0),
            pool: PoolId(1),
        })?;
        for index in 0..4 {
            let vm = VmId(index);
            let config = VmConfig {
                gang: index == 3 && odds(&mut r, 1, 4),
                ..VmConfig::new(PoolId(index % 2), Class::ALL[index as usize])
            };
            world.feed(Event::AddVm {
                vm,
                config,
                past: vgpu_sched::Past::default(),
            })?;
            world.start(vm)?;
            world.start(vm)?;
        }
        Ok(world)
    }

    /// One step, chosen by a gene.
    pub(super) fn step(&mut self, gene: u64) -> Verdict {
        let mut r = Rng::new(gene);
        let r = &mut r;
        match weighted(r, &self.character.steps) {
            0 => {
                self.wait(r);
                Ok(())
            }
            1 => self.to_timer(r, false),
            2 => self.to_timer(r, true),
            3 => self.feed(Event::Timer),
            4 => self.admin(r),
            5 => {
                let vm = VmId(r.below(make::VMS) as u32);
                self.start(vm)
            }
            6 => self.honest(r),
            7 => self.lie(r),
            8 => self.held(r),
            9 => self.forge(r),
            10 => self.reap(r),
            _ => self.verify(r),
        }
    }

    fn wait(&mut self, r: &mut Rng) {
        let most = if odds(r, 1, 8) {
            5 * SECONDS
        } else {
            self.character.scale_ns
        };
        let passed = r.below(most);
        self.model.pass(self.model.now + passed);
    }

    /// Goes to the next timer (or, `late`, beyond it) and feeds timers until none is due.
    fn to_timer(&mut self, r: &mut Rng, late: bool) -> Verdict {
        let next = self.sched.next_timer_ns();
        let now = self.model.now;
        if next != u64::MAX && next < now + 100 * SECONDS {
            let beyond = if late {
                r.below(self.character.scale_ns)
            } else {
                0
            };
            self.model.pass(next.max(now) + beyond);
        }
        let mut rounds = 0;
        while self.sched.next_timer_ns() <= self.model.now {
            self.feed(Event::Timer)?;
            rounds += 1;
            ensure!(rounds < SPIN, "the timer spins");
        }
        Ok(())
    }

    fn start(&mut self, vm: VmId) -> Verdict {
        self.next_session += 1;
        let session = SessionId(self.next_session);
        self.feed(Event::SessionAdded { session, vm })
    }

    /// What the administrator or the probe may do.
    fn admin(&mut self, r: &mut Rng) -> Verdict {
        let gpu = make::any_gpu(r);
        let pool = PoolId(r.below(make::POOLS) as u32);
        let vm = VmId(r.below(make::VMS) as u32);
        let wild = self.character.wild;
        let on = odds(r, 1, 2);
        let event = match weighted(r, &[2, 2, 1, 3, 1, 2, 6, 1, 3, 1, 2, 4, 8, 2, 3, 1, 3, 2]) {
            0 => Event::AddGpu {
                gpu,
                config: make::gpu(r),
                health: make::health(r),
            },
            1 => Event::SetGpu {
                gpu,
                config: make::gpu(r),
            },
            2 => Event::RemoveGpu { gpu },
            3 => Event::GpuState {
                gpu,
                health: make::health(r),
            },
            4 => Event::Verified { gpu, ok: on },
            5 => Event::AddPool {
                pool,
                config: make::pool(r, wild),
            },
            6 => Event::SetPool {
                pool,
                config: make::pool(r, wild),
            },
            7 => Event::RemovePool { pool },
            8 => Event::AssignGpu { gpu, pool },
            9 => Event::UnassignGpu { gpu, pool },
            10 => Event::SetClassWeights {
                weights: make::weights(r),
            },
            11 => Event::AddVm {
                vm,
                config: make::vm(r, wild),
                past: make::past(r),
            },
            12 => Event::SetVm {
                vm,
                config: make::vm(r, wild),
            },
            13 => Event::RemoveVm { vm },
            14 => Event::SetQuarantine {
                vm,
                on: on && odds(r, 1, 2),
            },
            15 => Event::Strike { vm },
            16 => Event::ResetStats {
                vm: on.then_some(vm),
            },
            _ => {
                // A number that was used before.
                let session = pick(r, &self.model.ever).unwrap_or(SessionId(0));
                Event::SessionAdded { session, vm }
            }
        };
        self.feed(event)
    }

    /// What an honest worker does next.
    fn honest(&mut self, r: &mut Rng) -> Verdict {
        let live: Vec<SessionId> = self
            .model
            .sessions
            .iter()
            .filter(|(_, session)| session.served())
            .map(|(&id, _)| id)
            .collect();
        let Some(id) = pick(r, &live) else {
            return Ok(());
        };
        let Some(session) = self.model.sessions.get(&id).cloned() else {
            return Ok(());
        };
        let (in_flight, depth) = (session.in_flight(), session.depth);
        let Some(holder) = self.model.holder(id) else {
            let calls = if depth == 0 || odds(r, 1, 4) {
                r.between(1, 4)
            } else {
                depth
            };
            return self.feed(runnable(id, calls));
        };
        let (epoch, credits, revoked) = (holder.epoch, holder.credits, holder.revoked_ns.is_some());
        let left = credits.calls.saturating_sub(session.used.calls);
        let used = Usage {
            calls: session.used.calls + r.below(left.min(4) + 1),
            bytes: session.used.bytes
                + r.below(credits.bytes.saturating_sub(session.used.bytes).min(99) + 1),
        };
        let event = if in_flight > 0 {
            if odds(r, 1, 8) {
                return Ok(());
            }
            Event::Progress {
                session: id,
                submitted: session.submitted,
                completed: session.completed + r.between(1, in_flight),
            }
        } else if revoked {
            Event::Released {
                session: id,
                epoch,
                used,
                depth: calls(depth),
            }
        } else if depth > 0 && left == 0 {
            Event::CreditsSpent {
                session: id,
                epoch,
                used,
            }
        } else if depth > 0 {
            match r.below(6) {
                0 => Event::Idle {
                    session: id,
                    idle_for_ns: 0,
                },
                1 => Event::CreditsSpent {
                    session: id,
                    epoch,
                    used,
                },
                _ => Event::Progress {
                    session: id,
                    submitted: session.submitted + r.between(1, 3),
                    completed: session.completed,
                },
            }
        } else if session.said_idle && odds(r, 1, 2) {
            runnable(id, r.between(1, 4))
        } else {
            Event::Idle {
                session: id,
                idle_for_ns: make::amount(r, 300 * MICROS),
            }
        };
        self.feed(event)
    }

    /// What a worker may say, true or not.
    fn lie(&mut self, r: &mut Rng) -> Verdict {
        let Some(session) = self.any_session(r) else {
            return Ok(());
        };
        let event = match weighted(r, &[1, 8, 3, 4, 1, 2, 1]) {
            0 => Event::SessionRemoved { session },
            1 => Event::Runnable {
                session,
                depth: Depth {
                    calls: r.below(4),
                    bytes: r.bits(),
                },
                head: HeadCost {
                    gpu_ns: make::nanos(r),
                    bytes: r.bits(),
                },
            },
            2 => Event::Idle {
                session,
                idle_for_ns: make::nanos(r),
            },
            3 => Event::Progress {
                session,
                submitted: make::amount(r, 9),
                completed: make::amount(r, 9),
            },
            4 => Event::WorkerExited { session },
            5 => Event::MemoryReserve {
                session,
                of: make::memory(r),
                bytes: make::amount(r, 400),
                tag: r.below(3),
            },
            _ => Event::MemoryRelease {
                session,
                of: make::memory(r),
                bytes: make::amount(r, 400),
            },
        };
        self.feed(event)
    }

    /// A holder gives its lease back, or wants more credit, whether it was asked or not.
    fn held(&mut self, r: &mut Rng) -> Verdict {
        let all = self.leases();
        let Some((session, epoch)) = pick(r, &all) else {
            return Ok(());
        };
        let used = any_usage(r);
        self.feed(if odds(r, 1, 2) {
            Event::CreditsSpent {
                session,
                epoch,
                used,
            }
        } else {
            Event::Released {
                session,
                epoch,
                used,
                depth: calls(r.below(3)),
            }
        })
    }

    /// A message with the number of somebody else's lease, an old one, or one that never was.
    fn forge(&mut self, r: &mut Rng) -> Verdict {
        let Some(session) = self.any_session(r) else {
            return Ok(());
        };
        let held: Vec<Epoch> = self.leases().into_iter().map(|(_, epoch)| epoch).collect();
        let epoch = match r.below(3) {
            0 => pick(r, &held).unwrap_or(Epoch(0)),
            1 => Epoch(r.below(self.model.last_epoch + 2)),
            _ => Epoch(r.bits()),
        };
        let used = any_usage(r);
        self.feed(if odds(r, 1, 3) {
            Event::CreditsSpent {
                session,
                epoch,
                used,
            }
        } else {
            Event::Released {
                session,
                epoch,
                used,
                depth: calls(r.below(3)),
            }
        })
    }

    /// A worker that was killed or whose guest is gone dies.
    fn reap(&mut self, r: &mut Rng) -> Verdict {
        let over: Vec<SessionId> = self
            .model
            .sessions
            .iter()
            .filter(|(_, session)| !session.served())
            .map(|(&id, _)| id)
            .collect();
        match pick(r, &over) {
            Some(session) => self.feed(Event::WorkerExited { session }),
            None => Ok(()),
        }
    }

    fn verify(&mut self, r: &mut Rng) -> Verdict {
        let asked: Vec<GpuId> = self
            .model
            .gpus
            .iter()
            .filter(|(_, gpu)| gpu.canary || gpu.health == GpuHealth::Unverified)
            .map(|(&id, _)| id)
            .collect();
        match pick(r, &asked) {
            Some(gpu) => self.feed(Event::Verified {
                gpu,
                ok: odds(r, 7, 8),
            }),
            None => Ok(()),
        }
    }

    /// A session that lives (mostly) or lived.
    fn any_session(&self, r: &mut Rng) -> Option<SessionId> {
        let live: Vec<SessionId> = self.model.sessions.keys().copied().collect();
        if odds(r, 1, 8) || live.is_empty() {
            pick(r, &self.model.ever)
        } else {
            pick(r, &live)
        }
    }

    fn leases(&self) -> Vec<(SessionId, Epoch)> {
        let leases = self.model.leases.values();
        leases.map(|lease| (lease.session, lease.epoch)).collect()
    }

    /// Feeds one event and checks everything.
    fn feed(&mut self, event: Event) -> Verdict {
        let (kind, state) = states::of(&self.model, &self.sched, &event);
        self.coverage.count(kind, state);
        if self.events == self.character.clone_at {
            self.twin = Some(self.sched.clone());
        }
        self.events += 1;
        let now = self.model.now;
        let accepted = self.model.accepts(&event);
        let released = gone(&event, accepted);
        if accepted {
            self.model.hear(&event);
        }
        let mut actions = vec![];
        self.sched.handle(now, event.clone(), &mut actions);
        self.actions += actions.len() as u64;
        if let Some(story) = &mut self.story {
            story.push(format!("{now}: {event:?}"));
            story.extend(actions.iter().map(|action| format!("    {action:?}")));
        }
        if let Some(twin) = &mut self.twin {
            let mut again = vec![];
            twin.handle(now, event.clone(), &mut again);
            ensure!(
                actions == again,
                "a clone did {again:?} instead of {actions:?}"
            );
        }
        let ignored = actions
            .iter()
            .any(|action| matches!(action, Action::Ignored { .. }));
        ensure!(
            ignored != accepted,
            "{event:?} was {}",
            if ignored { "ignored" } else { "not ignored" }
        );
        let complete = self.complete();
        for &gpu in &complete {
            self.model.charge(gpu);
        }
        self.answered(&event, &actions)?;
        let reserved = self.reserved();
        for &(gpu, by) in &reserved {
            self.model.note_given_up(gpu, by);
        }
        for action in &actions {
            ensure!(
                released.is_none_or(|session| !names(action, session)),
                "{action:?} for one that is gone"
            );
            self.model.obey(action, &event)?;
        }
        if let Event::Verified { gpu, ok: false } = event
            && let Some(gpu) = self.model.gpus.get_mut(&gpu)
        {
            gpu.canary = actions.iter().any(|a| matches!(a, Action::Canary { .. }));
        }
        self.model.forget();
        for (gpu, by) in reserved {
            self.model.note_reserved(gpu, by);
        }
        self.checker
            .check(&mut self.model, &self.sched, &event, &complete)?;
        self.model.note_payers();
        Ok(())
    }

    /// Which gang keeps which GPU reserved.
    fn reserved(&self) -> Vec<(GpuId, Option<SessionId>)> {
        let reserved = |gpu: &GpuId| {
            let stats = self.sched.gpu_stats(*gpu);
            let by = stats.and_then(|stats| stats.reserved);
            (*gpu, by.map(|(session, _)| session))
        };
        self.model.gpus.keys().map(reserved).collect()
    }

    /// GPUs all of whose time has been accounted for.
    fn complete(&self) -> Vec<GpuId> {
        let complete = |(&id, gpu): (&GpuId, &super::model::GpuModel)| {
            let account = self.sched.gpu_stats(id)?.account;
            let sum = account.charged_ns + account.idle_ns + account.switch_ns;
            (sum == self.model.now - gpu.since_ns).then_some(id)
        };
        self.model.gpus.iter().filter_map(complete).collect()
    }

    /// Questions have exactly one answer, and it is the right one.
    fn answered(&self, event: &Event, actions: &[Action]) -> Verdict {
        match *event {
            Event::SessionAdded { session, .. } => {
                let answers = actions.iter().filter(|action| match action {
                    Action::Admit { session: id, .. } | Action::Refuse { session: id, .. } => {
                        *id == session
                    }
                    _ => false,
                });
                ensure!(answers.count() == 1, "not one answer to {event:?}");
            }
            Event::MemoryReserve {
                session,
                of,
                bytes,
                tag,
            } => {
                let Some(record) = self.model.sessions.get(&session) else {
                    return Ok(());
                };
                let on = match of {
                    Memory::DeviceOn(gpu) => Some(gpu).filter(|&gpu| record.is_on(gpu)),
                    _ => record.places.first().map(|&(gpu, _)| gpu),
                };
                let fits = match of {
                    Memory::Pinned => self.may_pin(record.vm, bytes),
                    _ => on.is_some_and(|gpu| self.fits(record.vm, gpu, bytes)),
                };
                let granted = Action::MemoryGranted {
                    session,
                    tag,
                    bytes,
                };
                let denied = actions
                    .iter()
                    .any(|action| matches!(action, Action::MemoryDenied { .. }));
                ensure!(
                    actions.contains(&granted) == fits && denied != fits,
                    "{event:?} fits: {fits}; {actions:?}"
                );
            }
            _ => {}
        }
        Ok(())
    }

    fn may_pin(&self, vm: VmId, bytes: u64) -> bool {
        let sessions = self.model.sessions.values().filter(|s| s.vm == vm);
        let pinned: u128 = sessions.map(|s| u128::from(s.pinned)).sum();
        let limit = self.model.vms.get(&vm).map(|vm| &vm.config.limits);
        let limit = limit.and_then(|limits| limits.pinned_bytes);
        bytes == 0 || pinned + u128::from(bytes) <= u128::from(limit.unwrap_or(u64::MAX))
    }

    /// Does this much more fit the VM's quota and the GPU?
    fn fits(&self, vm: VmId, gpu: GpuId, bytes: u64) -> bool {
        let (Some(record), Some(card)) = (self.model.vms.get(&vm), self.model.gpus.get(&gpu))
        else {
            return false;
        };
        let sessions = || self.model.sessions.values();
        let of_vm: u128 = sessions().filter(|s| s.vm == vm).map(|s| s.memory()).sum();
        let places = sessions().flat_map(|session| &session.places);
        let on_gpu: u128 = places
            .filter(|(on, _)| *on == gpu)
            .map(|&(_, bytes)| u128::from(bytes))
            .sum();
        let more = u128::from(bytes);
        let quota = u128::from(record.config.limits.memory_bytes.unwrap_or(u64::MAX));
        let room = if card.config.overcommit {
            u128::from(u64::MAX)
        } else {
            u128::from(card.config.memory_bytes)
        };
        // Nothing always fits, also where more is booked than there is.
        bytes == 0 || of_vm + more <= quota && on_gpu + more <= room
    }

    /// The end: all accounts are complete, and when everybody has left nothing is remembered.
    pub(super) fn finish(&mut self) -> Verdict {
        self.feed(Event::Timer)?;
        if let Some(twin) = &self.twin {
            ensure!(*twin == self.sched, "a clone became something else");
        }
        let sessions: Vec<SessionId> = self.model.sessions.keys().copied().collect();
        for session in sessions {
            self.feed(Event::WorkerExited { session })?;
        }
        let vms: Vec<VmId> = self.sched.vms().collect();
        for vm in vms {
            self.feed(Event::RemoveVm { vm })?;
        }
        let gpus: Vec<GpuId> = self.sched.gpus().collect();
        for gpu in gpus {
            self.feed(Event::RemoveGpu { gpu })?;
        }
        let pools: Vec<PoolId> = self.model.pools.keys().copied().collect();
        for pool in pools {
            self.feed(Event::RemovePool { pool })?;
        }
        ensure!(
            self.sched.next_timer_ns() == u64::MAX,
            "a timer outlives everything"
        );
        Ok(())
    }
}

fn calls(calls: u64) -> Depth {
    Depth { calls, bytes: 0 }
}

fn runnable(session: SessionId, depth: u64) -> Event {
    Event::Runnable {
        session,
        depth: calls(depth),
        head: HeadCost::default(),
    }
}

fn any_usage(r: &mut Rng) -> Usage {
    Usage {
        calls: make::amount(r, 200),
        bytes: make::amount(r, 200),
    }
}

/// The session that is gone from this event on.
fn gone(event: &Event, accepted: bool) -> Option<SessionId> {
    match *event {
        Event::WorkerExited { session } if accepted => Some(session),
        _ => None,
    }
}

/// Is the action about this session?
fn names(action: &Action, id: SessionId) -> bool {
    match action {
        Action::Admit { session, .. }
        | Action::Extend { session, .. }
        | Action::Revoke { session, .. }
        | Action::Want { session, .. }
        | Action::Credit { session, .. }
        | Action::Kill { session, .. }
        | Action::SoftLimit { session, .. }
        | Action::Overrun { session, .. }
        | Action::MemoryGranted { session, .. }
        | Action::MemoryDenied { session, .. } => *session == id,
        Action::Grant(terms) | Action::GrantBeside(terms) => terms.session == id,
        _ => false,
    }
}
