//! Any events in any order, honest or not: what must hold holds after each of them.

mod common;

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use proptest::sample::Index;
use proptest::test_runner::FileFailurePersistence;
use vgpu_sched::{
    Action, Aging, Class, ClassWeights, Config, Depth, Epoch, Event, GpuConfig, GpuHealth, GpuId,
    HeadCost, LimitOverride, Limits, MICROS, MILLIS, Memory, Past, Policy, PoolConfig, PoolId,
    Quarantine, Rate, SECONDS, Scheduler, SessionId, SessionState, Usage, VmConfig, VmId,
    WaitReason,
};

/// What a step does; session and epoch are chosen among those that were ever seen.
#[derive(Debug, Clone)]
enum Step {
    Wait(u64),
    ToTimer,
    Event(Box<Event>),
    Start(VmId),
    Session(Index, What),
    Held(Index, bool, Usage, u64),
}

#[derive(Debug, Clone, Copy)]
enum What {
    Close,
    Runnable(u64, u64),
    Idle(u64),
    Progress(u64, u64),
    Release(u64, Usage, u64),
    Spent(u64, Usage),
    Exit,
    Reserve(Memory, u64),
    GiveBack(Memory, u64),
}

fn gpu() -> impl Strategy<Value = GpuId> {
    (0..3_u32).prop_map(GpuId)
}

fn pool() -> impl Strategy<Value = PoolId> {
    (0..3_u32).prop_map(PoolId)
}

fn vm() -> impl Strategy<Value = VmId> {
    (0..5_u32).prop_map(VmId)
}

fn health() -> impl Strategy<Value = GpuHealth> {
    prop_oneof![
        6 => Just(GpuHealth::Healthy),
        1 => Just(GpuHealth::Unverified),
        1 => Just(GpuHealth::Draining),
        1 => Just(GpuHealth::Suspect),
        1 => Just(GpuHealth::Lost),
    ]
}

fn gpu_config() -> impl Strategy<Value = GpuConfig> {
    (
        prop_oneof![Just(1000_u64), Just(u64::MAX)],
        0..100_u64,
        any::<bool>(),
    )
        .prop_map(|(memory_bytes, context_bytes, overcommit)| GpuConfig {
            memory_bytes,
            context_bytes,
            overcommit,
        })
}

fn nanos() -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        Just(1),
        1..10 * MILLIS,
        1..20 * SECONDS,
        Just(u64::MAX)
    ]
}

fn pool_config() -> impl Strategy<Value = PoolConfig> {
    let policy = prop_oneof![
        Just(Policy::Weighted),
        Just(Policy::Strict),
        Just(Policy::Fifo),
        Just(Policy::Sjf)
    ];
    let aging = proptest::option::of((nanos(), nanos()))
        .prop_map(|aging| aging.map(|(after_ns, step_ns)| Aging { after_ns, step_ns }));
    let limits = (
        proptest::option::of(nanos()),
        proptest::option::of(nanos()),
        nanos(),
        proptest::option::of(nanos()),
    );
    let strikes = (
        proptest::option::of(0..4_u32),
        proptest::option::of(nanos()),
        proptest::option::of(nanos()),
        nanos(),
    );
    (
        policy,
        any::<u32>(),
        nanos(),
        nanos(),
        aging,
        limits,
        strikes,
    )
        .prop_map(
            |(policy, weight, slice_ns, hold_ns, aging, limits, strikes)| PoolConfig {
                policy,
                weight,
                slice_ns,
                hold_ns,
                aging,
                class_weights: None,
                soft_limit_ns: limits.0,
                hard_limit_ns: limits.1,
                contended_limit_ns: limits.2,
                overrun_grace_ns: limits.3,
                strike_limit: strikes.0,
                strike_decay_ns: strikes.1,
                quarantine_ns: strikes.2,
                quarantine_max_ns: strikes.3,
                min_run_ns: hold_ns,
            },
        )
}

fn rate() -> impl Strategy<Value = Option<Rate>> {
    let rate = (
        prop_oneof![Just(0), 1..2000_u64, 1..SECONDS, Just(u64::MAX)],
        prop_oneof![Just(0), 1..100_u64, 1..SECONDS, Just(u64::MAX)],
    );
    proptest::option::weighted(
        0.3,
        rate.prop_map(|(per_second, burst)| Rate { per_second, burst }),
    )
}

fn vm_config() -> impl Strategy<Value = VmConfig> {
    let quota = || proptest::option::of(0..500_u64);
    let limits = (rate(), rate(), rate(), quota(), quota()).prop_map(
        |(calls, bytes, gpu_time, memory_bytes, pinned_bytes)| Limits {
            calls,
            bytes,
            gpu_time,
            memory_bytes,
            pinned_bytes,
            sessions: Some(6),
            ..Limits::default()
        },
    );
    let hard = prop_oneof![
        Just(LimitOverride::Inherit),
        Just(LimitOverride::Unlimited),
        nanos().prop_map(LimitOverride::At)
    ];
    let gpus = proptest::option::weighted(0.1, proptest::collection::btree_set(gpu(), 0..3));
    let own = (
        proptest::option::weighted(0.3, nanos()),
        proptest::bool::weighted(0.3),
    );
    (pool(), 0..4_usize, any::<u32>(), limits, hard, gpus, own).prop_map(
        |(pool, class, factor_milli, limits, hard_limit, gpus, (slice_ns, gang))| VmConfig {
            slice_ns,
            gang,
            factor_milli,
            gpus,
            limits,
            soft_limit: hard_limit,
            hard_limit,
            ..VmConfig::new(pool, Class::ALL[class])
        },
    )
}

fn past() -> impl Strategy<Value = Past> {
    let quarantine = proptest::option::weighted(
        0.2,
        prop_oneof![
            Just(Quarantine::UntilReleased),
            nanos().prop_map(|left_ns| Quarantine::For { left_ns })
        ],
    );
    (
        nanos(),
        0..4_u32,
        nanos(),
        quarantine,
        any::<u32>(),
        nanos(),
    )
        .prop_map(
            |(debt_ns, strikes, strikes_age_ns, quarantine, quarantines, quarantines_age_ns)| {
                Past {
                    debt_ns,
                    strikes,
                    strikes_age_ns,
                    quarantine,
                    quarantines,
                    quarantines_age_ns,
                }
            },
        )
}

fn admin() -> impl Strategy<Value = Event> {
    prop_oneof![
        (gpu(), gpu_config(), health()).prop_map(|(gpu, config, health)| Event::AddGpu {
            gpu,
            config,
            health
        }),
        (gpu(), gpu_config()).prop_map(|(gpu, config)| Event::SetGpu { gpu, config }),
        gpu().prop_map(|gpu| Event::RemoveGpu { gpu }),
        (gpu(), health()).prop_map(|(gpu, health)| Event::GpuState { gpu, health }),
        (gpu(), any::<bool>()).prop_map(|(gpu, ok)| Event::Verified { gpu, ok }),
        (pool(), pool_config()).prop_map(|(pool, config)| Event::AddPool { pool, config }),
        (pool(), pool_config()).prop_map(|(pool, config)| Event::SetPool { pool, config }),
        pool().prop_map(|pool| Event::RemovePool { pool }),
        (gpu(), pool()).prop_map(|(gpu, pool)| Event::AssignGpu { gpu, pool }),
        (gpu(), pool()).prop_map(|(gpu, pool)| Event::UnassignGpu { gpu, pool }),
        any::<[u32; 4]>().prop_map(|weights| Event::SetClassWeights {
            weights: ClassWeights { weights }
        }),
        (vm(), vm_config(), past()).prop_map(|(vm, config, past)| Event::AddVm {
            vm,
            config,
            past
        }),
        (vm(), vm_config()).prop_map(|(vm, config)| Event::SetVm { vm, config }),
        vm().prop_map(|vm| Event::RemoveVm { vm }),
        (vm(), any::<bool>()).prop_map(|(vm, on)| Event::SetQuarantine { vm, on }),
        vm().prop_map(|vm| Event::Strike { vm }),
        vm().prop_map(|vm| Event::ResetStats { vm: Some(vm) }),
    ]
}

fn usage() -> impl Strategy<Value = Usage> {
    let any_u64 = || prop_oneof![0..200_u64, any::<u64>()];
    (any_u64(), any_u64()).prop_map(|(calls, bytes)| Usage { calls, bytes })
}

fn memory() -> impl Strategy<Value = Memory> {
    prop_oneof![
        2 => Just(Memory::Device),
        1 => gpu().prop_map(Memory::DeviceOn),
        1 => Just(Memory::Pinned),
    ]
}

fn what() -> impl Strategy<Value = What> {
    prop_oneof![
        1 => Just(What::Close),
        8 => (0..4_u64, any::<u64>()).prop_map(|(calls, bytes)| What::Runnable(calls, bytes)),
        3 => nanos().prop_map(What::Idle),
        4 => (0..9_u64, 0..9_u64).prop_map(|(s, c)| What::Progress(s, c)),
        1 => (any::<u64>(), usage(), 0..3_u64).prop_map(|(e, u, d)| What::Release(e, u, d)),
        1 => (any::<u64>(), usage()).prop_map(|(e, u)| What::Spent(e, u)),
        2 => Just(What::Exit),
        2 => (memory(), prop_oneof![0..400_u64, any::<u64>()]).prop_map(|(of, n)| What::Reserve(of, n)),
        1 => (memory(), any::<u64>()).prop_map(|(of, n)| What::GiveBack(of, n)),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => prop_oneof![0..3 * MILLIS, 0..200 * MICROS, 0..5 * SECONDS].prop_map(Step::Wait),
        6 => Just(Step::ToTimer),
        3 => admin().prop_map(|event| Step::Event(Box::new(event))),
        3 => vm().prop_map(Step::Start),
        12 => (any::<Index>(), what()).prop_map(|(index, what)| Step::Session(index, what)),
        6 => (any::<Index>(), any::<bool>(), usage(), 0..3_u64)
            .prop_map(|(index, spent, used, depth)| Step::Held(index, spent, used, depth)),
    ]
}

/// What the world knows from the actions alone.
#[derive(Default)]
struct Model {
    holders: BTreeMap<GpuId, Vec<(SessionId, Epoch)>>,
    overrun: BTreeSet<SessionId>,
    gone: BTreeSet<SessionId>,
    sessions: Vec<SessionId>,
    last_epoch: u64,
}

impl Model {
    /// What an event says before the scheduler answers.
    fn before(&mut self, event: &Event) {
        match *event {
            Event::Released { session, epoch, .. } => {
                for holders in self.holders.values_mut() {
                    holders.retain(|&holder| holder != (session, epoch));
                }
            }
            Event::WorkerExited { session } => {
                for holders in self.holders.values_mut() {
                    holders.retain(|&(holder, _)| holder != session);
                }
                self.gone.insert(session);
            }
            Event::SessionRemoved { session } => {
                self.gone.insert(session);
            }
            _ => {}
        }
    }

    fn after(&mut self, action: &Action) {
        match action {
            Action::Grant(terms) | Action::GrantBeside(terms) => {
                let mut company = 0;
                for gpu in [terms.gpu].iter().chain(&terms.also) {
                    let holders = self.holders.entry(*gpu).or_default();
                    let overrun = holders.iter().all(|(s, _)| self.overrun.contains(s));
                    assert!(holders.len() <= 1 && overrun, "beside {holders:?}");
                    company += holders.len();
                    holders.push((terms.session, terms.epoch));
                }
                let beside = matches!(action, Action::GrantBeside(_));
                assert_eq!(beside, company > 0, "{terms:?}");
                assert!(
                    !self.gone.contains(&terms.session),
                    "granted to one that is gone"
                );
                assert!(terms.epoch.0 > self.last_epoch, "an epoch was used again");
                self.last_epoch = terms.epoch.0;
                self.overrun.remove(&terms.session);
            }
            Action::Overrun { session, .. } => {
                self.overrun.insert(*session);
            }
            Action::Kill { session, .. } => {
                assert!(!self.gone.contains(session) || self.sessions.contains(session));
                self.gone.insert(*session);
            }
            Action::Admit { session, .. } => self.sessions.push(*session),
            _ => {}
        }
    }
}

struct World {
    sched: Scheduler,
    twin: Scheduler,
    model: Model,
    now: u64,
    since: BTreeMap<GpuId, u64>,
    next_session: u64,
}

impl World {
    fn new() -> Self {
        let sched = Scheduler::new(Config::default());
        let twin = sched.clone();
        let model = Model::default();
        let mut world = Self {
            sched,
            twin,
            model,
            now: 0,
            since: BTreeMap::new(),
            next_session: 0,
        };
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
            });
            world.feed(Event::AddPool {
                pool: PoolId(index),
                config: PoolConfig::default(),
            });
            world.feed(Event::AssignGpu {
                gpu,
                pool: PoolId(index),
            });
        }
        world.feed(Event::AssignGpu {
            gpu: GpuId(0),
            pool: PoolId(1),
        });
        for index in 0..4 {
            let mut config = VmConfig::new(PoolId(index % 2), Class::ALL[index as usize]);
            config.gang = index == 3;
            world.feed(Event::AddVm {
                vm: VmId(index),
                config,
                past: Past::default(),
            });
            world.start(VmId(index));
            world.start(VmId(index));
        }
        world
    }

    fn start(&mut self, vm: VmId) {
        self.next_session += 1;
        self.feed(Event::SessionAdded {
            session: SessionId(self.next_session),
            vm,
        });
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Wait(ns) => self.now += ns,
            Step::ToTimer => {
                let next = self.sched.next_timer_ns();
                if next != u64::MAX && next < self.now + 100 * SECONDS {
                    self.now = self.now.max(next);
                }
                let mut rounds = 0;
                while self.sched.next_timer_ns() <= self.now {
                    self.feed(Event::Timer);
                    rounds += 1;
                    assert!(rounds < 5, "the timer spins");
                }
            }
            Step::Event(event) => self.feed(*event),
            Step::Start(vm) => self.start(vm),
            Step::Session(index, what) => {
                if !self.model.sessions.is_empty() {
                    let session = *index.get(&self.model.sessions);
                    self.feed(say(session, what));
                }
            }
            Step::Held(index, spent, used, calls) => {
                let held: Vec<_> = self.model.holders.values().flatten().copied().collect();
                if held.is_empty() {
                    return;
                }
                let (session, epoch) = *index.get(&held);
                let depth = Depth { calls, bytes: 0 };
                self.feed(if spent {
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
                        depth,
                    }
                });
            }
        }
    }

    fn feed(&mut self, event: Event) {
        self.model.before(&event);
        let known: BTreeSet<GpuId> = self.sched.gpus().collect();
        let (mut actions, mut again) = (vec![], vec![]);
        self.twin.handle(self.now, event.clone(), &mut again);
        self.sched.handle(self.now, event, &mut actions);
        assert_eq!(actions, again, "the same events gave other actions");
        for action in &actions {
            self.model.after(action);
        }
        for gpu in self.sched.gpus() {
            if !known.contains(&gpu) {
                self.since.insert(gpu, self.now);
            }
        }
        self.check();
    }

    fn check(&self) {
        for gpu in self.sched.gpus() {
            let stats = self.sched.gpu_stats(gpu).unwrap();
            let holders: Vec<_> = stats.holders.iter().map(|&(s, _, e)| (s, e)).collect();
            let expected = self.model.holders.get(&gpu).cloned().unwrap_or_default();
            assert_eq!(holders, expected, "{gpu}");
            let account = stats.account;
            let sum = account.charged_ns + account.idle_ns + account.switch_ns;
            assert!(sum <= self.now - self.since[&gpu]);
            let sessions: Vec<_> = self
                .model
                .sessions
                .iter()
                .filter_map(|&id| self.sched.session_stats(id).map(|stats| (id, stats)))
                .filter(|(_, session)| session.gpu == gpu || session.also.contains(&gpu))
                .collect();
            assert_eq!(sessions.len(), stats.sessions as usize);
            let memory: u128 = sessions
                .iter()
                .map(|(_, session)| u128::from(session.memory_bytes))
                .sum();
            let gangs = sessions.iter().any(|(_, session)| !session.also.is_empty());
            assert!(
                memory == stats.memory_bytes.into() || gangs && memory > stats.memory_bytes.into()
            );
            for (id, session) in &sessions {
                let holds = holders.iter().any(|(holder, _)| holder == id);
                let all = session.state != SessionState::Gathering
                    && session.also.iter().chain([&session.gpu]).all(|gpu| {
                        let held = self.model.holders.get(gpu);
                        held.is_some_and(|held| held.iter().any(|(holder, _)| holder == id))
                    });
                assert_eq!(holds, all, "{id}: all of its GPUs or none");
            }
            for (id, session) in &sessions {
                let could_run = session.state == SessionState::Waiting
                    && session.gpu == gpu
                    && stats.reserved.is_none()
                    && matches!(
                        session.waiting,
                        Some(WaitReason::Turn { .. } | WaitReason::Slice)
                    );
                assert!(
                    !(holders.is_empty() && stats.health.grants() && could_run),
                    "{id} waits on an idle {gpu}: {session:?} {stats:?}"
                );
            }
        }
        let booked = |gpu: GpuId| u128::from(self.sched.gpu_stats(gpu).unwrap().memory_bytes);
        let on_gpus: u128 = self.sched.gpus().map(booked).sum();
        let of_vms = |vm: VmId| u128::from(self.sched.vm_stats(vm).unwrap().memory_bytes);
        assert_eq!(on_gpus, self.sched.vms().map(of_vms).sum::<u128>());
        for vm in self.sched.vms() {
            let memory: u64 = self
                .sched
                .sessions_of(vm)
                .map(|id| self.sched.session_stats(id).unwrap().memory_bytes)
                .sum();
            assert_eq!(memory, self.sched.vm_stats(vm).unwrap().memory_bytes);
        }
    }

    /// At the end: all accounts are complete and everybody can leave.
    fn finish(&mut self) {
        self.feed(Event::Timer);
        for gpu in self.sched.gpus() {
            let account = self.sched.gpu_stats(gpu).unwrap().account;
            let sum = account.charged_ns + account.idle_ns + account.switch_ns;
            assert_eq!(sum, self.now - self.since[&gpu], "{gpu}: {account:?}");
        }
        for session in self.model.sessions.clone() {
            self.feed(Event::WorkerExited { session });
        }
        for gpu in self.sched.gpus() {
            let stats = self.sched.gpu_stats(gpu).unwrap();
            assert_eq!((stats.memory_bytes, stats.sessions), (0, 0));
            assert!(stats.holders.is_empty());
        }
    }
}

fn say(session: SessionId, what: What) -> Event {
    match what {
        What::Close => Event::SessionRemoved { session },
        What::Runnable(calls, bytes) => Event::Runnable {
            session,
            depth: Depth { calls, bytes },
            head: HeadCost::default(),
        },
        What::Idle(idle_for_ns) => Event::Idle {
            session,
            idle_for_ns,
        },
        What::Progress(submitted, completed) => Event::Progress {
            session,
            submitted,
            completed,
        },
        What::Release(epoch, used, calls) => Event::Released {
            session,
            epoch: Epoch(epoch),
            used,
            depth: Depth { calls, bytes: 0 },
        },
        What::Spent(epoch, used) => Event::CreditsSpent {
            session,
            epoch: Epoch(epoch),
            used,
        },
        What::Exit => Event::WorkerExited { session },
        What::Reserve(of, bytes) => Event::MemoryReserve {
            session,
            of,
            bytes,
            tag: 0,
        },
        What::GiveBack(of, bytes) => Event::MemoryRelease { session, of, bytes },
    }
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 256,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/any_events.proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    #[test]
    fn whatever_is_said_the_books_are_right(
        steps in proptest::collection::vec(step(), 1..200),
    ) {
        let mut world = World::new();
        for step in steps {
            world.step(step);
        }
        world.finish();
    }
}
