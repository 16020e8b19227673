use super::*;
use crate::{
    Action, Aging, Config, Depth, Event, GpuConfig, HeadCost, Limits, MILLIS, Memory, Past,
    PoolConfig, Rate, SECONDS, Usage, VmConfig,
};

mod holders;

const GPU: GpuId = GpuId(0);
const POOL: PoolId = PoolId(1);
const SLICE: u64 = 2 * MILLIS;

struct Rig {
    scheduler: Scheduler,
    now: u64,
}

impl Rig {
    fn new(pool: PoolConfig) -> Self {
        let mut rig = Self {
            scheduler: Scheduler::new(Config::default()),
            now: 0,
        };
        rig.feed(Event::AddGpu {
            gpu: GPU,
            config: GpuConfig {
                memory_bytes: 1_000,
                ..GpuConfig::default()
            },
            health: GpuHealth::Healthy,
        });
        rig.add_pool(POOL, pool);
        rig
    }

    fn add_pool(&mut self, pool: PoolId, config: PoolConfig) {
        self.feed(Event::AddPool { pool, config });
        self.feed(Event::AssignGpu { gpu: GPU, pool });
    }

    /// Adds a VM and a session with the same number.
    fn add_vm(&mut self, vm: u32, config: VmConfig) {
        let (session, vm) = (SessionId(u64::from(vm)), VmId(vm));
        self.feed(Event::AddVm {
            vm,
            config,
            past: Past::default(),
        });
        self.feed(Event::SessionAdded { session, vm });
    }

    fn feed(&mut self, event: Event) -> Vec<Action> {
        let mut actions = Vec::new();
        self.scheduler.handle(self.now, event, &mut actions);
        actions
    }

    fn pass(&mut self, ns: u64) {
        self.pass_and_collect(ns);
    }

    fn pass_and_collect(&mut self, ns: u64) -> Vec<Action> {
        self.now += ns;
        self.feed(Event::Timer)
    }

    /// VMs of class medium, numbered from 1, in a pool with the defaults.
    fn with_vms(vms: u32) -> Rig {
        let mut rig = Rig::new(PoolConfig::default());
        (1..=vms).for_each(|vm| rig.add_vm(vm, class(Class::Medium)));
        rig
    }

    /// The work of a session does not end.
    fn hangs(&mut self, session: u64) {
        self.feed(Event::Progress {
            session: SessionId(session),
            submitted: 1,
            completed: 0,
        });
    }

    fn works(&mut self, vm: u32) -> Vec<Action> {
        self.feed(Event::Runnable {
            session: SessionId(u64::from(vm)),
            depth: Depth { calls: 3, bytes: 9 },
            head: HeadCost::default(),
        })
    }

    fn why(&self, vm: u32) -> Explanation {
        self.scheduler.explain(VmId(vm)).unwrap()
    }
}

fn class(class: Class) -> VmConfig {
    VmConfig::new(POOL, class)
}

fn limited(limits: Limits) -> VmConfig {
    VmConfig {
        limits,
        ..class(Class::Medium)
    }
}

fn bounds(explanation: &Explanation) -> (u64, u64) {
    match explanation.wait {
        WaitBound::Within { usual_ns, worst_ns } => (usual_ns, worst_ns),
        other => panic!("{other:?}"),
    }
}

/// Worst C with the default settings: slice, contended limit and kill grace.
const WORST: u64 = SLICE + 10 * SECONDS + 1_500 * MILLIS;

#[test]
fn one_that_runs_and_one_that_waits_for_its_turn() {
    let mut rig = Rig::new(PoolConfig {
        min_run_ns: SLICE,
        ..PoolConfig::default()
    });
    for vm in 1..=3 {
        rig.add_vm(vm, class(Class::Medium));
    }
    rig.add_vm(4, class(Class::High));
    for vm in [1, 2, 4] {
        rig.works(vm);
    }
    rig.pass(MILLIS);
    assert_eq!(rig.scheduler.explain(VmId(99)), None);
    let runs = rig.why(1);
    assert_eq!((runs.reason, runs.wait), (Reason::Running, WaitBound::Now));

    let waits = rig.why(2);
    assert_eq!(
        waits.reason,
        Reason::Waits(WaitReason::Turn { rivals: 2 }),
        "{waits:?}"
    );
    assert_eq!(waits.waiting_since_ns, Some(0));
    let holder = waits.holders[0];
    assert_eq!((holder.vm, holder.session), (VmId(1), SessionId(1)));
    assert_eq!((holder.held_ns, holder.slice_left_ns), (MILLIS, MILLIS));
    assert_eq!((holder.asked_ns, holder.overrun), (None, false));
    assert_eq!(
        waits.before,
        [VmId(4)],
        "the higher class has the earlier deadline"
    );
    assert_eq!(waits.competing, 3);
    assert_eq!(
        (waits.weight_milli, waits.competing_weight_milli),
        (4_000, 24_000)
    );
    assert_eq!(waits.share_permille, 166);
    assert!(waits.lag_ns > 0, "{}", waits.lag_ns);
    // The bound is C·Σw/w + 2C, because no switch was measured yet.
    assert_eq!(
        bounds(&waits),
        (SLICE * 6 + 2 * SLICE, WORST * 6 + 2 * WORST)
    );
    assert_eq!(rig.why(4).before, []);

    let idle = rig.why(3);
    assert_eq!(idle.reason, Reason::Idle);
    assert_eq!(idle.waiting_since_ns, None);
    assert_eq!(idle.competing, 4, "counted as if the VM had work");
    assert_eq!(bounds(&idle).0, SLICE * 7 + 2 * SLICE);
}

#[test]
fn the_bound_holds_while_rivals_use_the_gpu_as_usual() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_vm(1, class(Class::Low));
    for vm in 2..=5 {
        rig.add_vm(vm, class(Class::High));
    }
    for vm in 1..=5 {
        rig.works(vm);
    }
    // All VMs always have work and return the GPU 0.3 ms after a revoke.
    let mut bound_until = u64::MAX;
    let mut served = 0;
    let mut revoked: Option<(u64, SessionId, Epoch)> = None;
    let mut actions: Vec<Action> = Vec::new();
    while rig.now < 3 * SECONDS {
        let due = rig.scheduler.next_timer_ns();
        let release = revoked.map_or(u64::MAX, |(at, ..)| at);
        rig.now = rig.now.max(due.min(release));
        if release <= due {
            let (_, session, epoch) = revoked.take().unwrap();
            actions = rig.feed(Event::Released {
                session,
                epoch,
                used: Usage::default(),
                depth: Depth { calls: 1, bytes: 0 },
            });
        } else {
            actions.extend(rig.feed(Event::Timer));
        }
        for action in actions.drain(..) {
            match action {
                Action::Revoke { session, epoch, .. } => {
                    revoked = Some((rig.now + 300_000, session, epoch));
                }
                Action::Grant(terms) if terms.session == SessionId(1) => {
                    assert!(rig.now <= bound_until, "{} > {bound_until}", rig.now);
                    bound_until = u64::MAX;
                    served += 1;
                }
                _ => {}
            }
        }
        let low = rig.why(1);
        if low.wait != WaitBound::Now && rig.now > SECONDS {
            bound_until = bound_until.min(rig.now + bounds(&low).0);
        }
    }
    assert!(served > 3, "{served}");
}

#[test]
fn what_is_owed_is_waited_for() {
    let mut rig = Rig::new(PoolConfig {
        overrun_grace_ns: None,
        ..PoolConfig::default()
    });
    rig.add_vm(1, class(Class::Medium));
    rig.add_vm(2, class(Class::Medium));
    rig.works(1);
    rig.works(2);
    rig.pass(102 * MILLIS);
    let epoch = rig.why(2).holders[0].epoch;
    assert_eq!(
        rig.why(2).holders[0].asked_ns,
        Some(0),
        "revoked when the timer fired"
    );
    rig.pass(MILLIS);
    rig.feed(Event::Released {
        session: SessionId(1),
        epoch,
        used: Usage::default(),
        depth: Depth { calls: 1, bytes: 0 },
    });
    let owes = rig.why(1);
    assert_eq!(owes.reason, Reason::Waits(WaitReason::Slice));
    assert!(owes.lag_ns < -(50 * i128::from(MILLIS)), "{}", owes.lag_ns);
    let (usual, worst) = bounds(&owes);
    let debt = owes.lag_ns.unsigned_abs() as u64;
    assert!(usual >= 2 * (debt - 2 * SLICE), "{usual}");
    assert!(worst > usual);
}

#[test]
fn a_cap_says_which_and_until_when() {
    let mut rig = Rig::new(PoolConfig::default());
    let rate = Rate {
        per_second: 10_000_000,
        burst: MILLIS,
    };
    rig.add_vm(
        1,
        limited(Limits {
            gpu_time: Some(rate),
            ..Limits::default()
        }),
    );
    let granted = rig.works(1);
    let epoch = granted
        .iter()
        .find_map(|action| match action {
            Action::Grant(terms) => Some(terms.epoch),
            _ => None,
        })
        .unwrap();
    rig.pass(5 * MILLIS);
    rig.feed(Event::Released {
        session: SessionId(1),
        epoch,
        used: Usage::default(),
        depth: Depth { calls: 1, bytes: 0 },
    });
    let capped = rig.why(1);
    let Reason::Waits(WaitReason::RateLimit { cap, until_ns }) = capped.reason else {
        panic!("{capped:?}");
    };
    assert_eq!(cap, Cap::GpuTime);
    let left = until_ns - rig.now;
    assert!(left > 100 * MILLIS, "{left}");
    assert_eq!(bounds(&capped), (left, left), "no other VM waits");
    assert_eq!(capped.holders, []);

    // A rate of zero: no bound.
    let none = Rate {
        per_second: 0,
        burst: 1,
    };
    rig.feed(Event::SetVm {
        vm: VmId(1),
        config: limited(Limits {
            gpu_time: Some(none),
            ..Limits::default()
        }),
    });
    assert_eq!(
        rig.why(1).wait,
        WaitBound::Never(NoBound::ZeroRate(Cap::GpuTime))
    );
}

#[test]
fn depth_and_quota_are_named() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_vm(1, class(Class::Medium));
    rig.add_vm(
        2,
        limited(Limits {
            depth_calls: Some(3),
            memory_bytes: Some(100),
            ..Limits::default()
        }),
    );
    rig.works(1);
    rig.works(2);
    // The turn is reported before the full queue, whose callers wait in the guest.
    assert!(matches!(
        rig.why(2).reason,
        Reason::Waits(WaitReason::Turn { .. })
    ));
    rig.feed(Event::Idle {
        session: SessionId(2),
        idle_for_ns: 0,
    });
    let over = |rig: &mut Rig, bytes: u64| {
        rig.feed(Event::MemoryReserve {
            session: SessionId(2),
            of: Memory::Device,
            bytes,
            tag: 1,
        });
    };
    over(&mut rig, 60);
    over(&mut rig, 101);
    assert_eq!(rig.why(2).reason, Reason::Waits(WaitReason::Quota));
    // Freed memory, and the end of the last session, end the reason.
    rig.feed(Event::MemoryRelease {
        session: SessionId(2),
        of: Memory::Device,
        bytes: 60,
    });
    assert_eq!(rig.why(2).reason, Reason::Idle);
    over(&mut rig, 101);
    assert_eq!(rig.why(2).reason, Reason::Waits(WaitReason::Quota));
    rig.feed(Event::WorkerExited {
        session: SessionId(2),
    });
    assert_eq!(rig.why(2).reason, Reason::NoProgram);
}

#[test]
fn quarantine_and_missing_gpus_have_no_bound() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_vm(1, class(Class::Medium));
    rig.feed(Event::SetQuarantine {
        vm: VmId(1),
        on: true,
    });
    let why = rig.why(1);
    assert_eq!(why.reason, Reason::Waits(WaitReason::Quarantine));
    assert_eq!(why.wait, WaitBound::Never(NoBound::Quarantined));

    rig.feed(Event::AddPool {
        pool: PoolId(2),
        config: PoolConfig::default(),
    });
    rig.add_vm(2, VmConfig::new(PoolId(2), Class::High));
    let why = rig.why(2);
    assert_eq!(why.reason, Reason::Refused(Refusal::NoGpu));
    assert_eq!(why.wait, WaitBound::Never(NoBound::NoGpu));

    rig.add_vm(3, class(Class::Medium));
    rig.works(3);
    rig.feed(Event::GpuState {
        gpu: GPU,
        health: GpuHealth::Unverified,
    });
    rig.add_vm(4, class(Class::Medium));
    rig.works(4);
    for (health, has_bound) in [(GpuHealth::Unverified, false), (GpuHealth::Suspect, true)] {
        rig.feed(Event::GpuState { gpu: GPU, health });
        let why = rig.why(4);
        assert_eq!(
            why.wait != WaitBound::Never(NoBound::GpuUnavailable(health)),
            has_bound
        );
    }
    // A suspect GPU keeps its sessions and refuses new ones.
    rig.feed(Event::AddVm {
        vm: VmId(5),
        config: class(Class::Medium),
        past: Past::default(),
    });
    assert_eq!(rig.why(5).reason, Reason::Refused(Refusal::GpuUnavailable));
}

#[test]
fn without_a_program_the_answer_is_about_the_next_one() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_vm(1, class(Class::Medium));
    rig.works(1);
    rig.feed(Event::AddVm {
        vm: VmId(2),
        config: class(Class::Medium),
        past: Past::default(),
    });
    let why = rig.why(2);
    assert_eq!((why.reason, why.gpu), (Reason::NoProgram, None));
    assert!(matches!(why.wait, WaitBound::Within { .. }), "{why:?}");
}

#[test]
fn alone_it_waits_for_nobody() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_vm(1, class(Class::Medium));
    assert_eq!(bounds(&rig.why(1)), (0, 0));
    rig.works(1);
    rig.feed(Event::Idle {
        session: SessionId(1),
        idle_for_ns: SECONDS,
    });
    let why = rig.why(1);
    assert_eq!((why.reason, why.wait), (Reason::Parked, WaitBound::Now));
    assert_eq!(why.share_permille, 1000);
}

#[test]
fn strict_waits_for_its_rise_and_then_for_the_others() {
    let aging = Aging {
        after_ns: 300 * MILLIS,
        step_ns: 100 * MILLIS,
    };
    let mut rig = Rig::new(PoolConfig {
        policy: Policy::Strict,
        aging: Some(aging),
        ..PoolConfig::default()
    });
    rig.add_vm(1, class(Class::Critical));
    rig.add_vm(2, class(Class::High));
    rig.add_vm(3, class(Class::Low));
    for vm in 1..=3 {
        rig.works(vm);
    }
    rig.pass(40 * MILLIS);
    let why = rig.why(3);
    assert_eq!(why.before, [VmId(2)]);
    let (usual, worst) = bounds(&why);
    assert_eq!(usual, 460 * MILLIS + 3 * SLICE);
    assert_eq!(worst, 460 * MILLIS + 3 * WORST);
    rig.feed(Event::SetPool {
        pool: POOL,
        config: PoolConfig {
            policy: Policy::Strict,
            aging: None,
            ..PoolConfig::default()
        },
    });
    assert_eq!(rig.why(3).wait, WaitBound::Never(NoBound::AgingOff));
}

#[test]
fn fifo_waits_for_those_before_it() {
    let mut rig = Rig::new(PoolConfig {
        policy: Policy::Fifo,
        ..PoolConfig::default()
    });
    for vm in 1..=4 {
        rig.add_vm(vm, class(Class::Medium));
    }
    for vm in [2, 4, 1, 3] {
        rig.works(vm);
    }
    let why = rig.why(1);
    assert_eq!(why.before, [VmId(4)]);
    assert_eq!(bounds(&why), (2 * SLICE, 2 * WORST));
    assert_eq!(bounds(&rig.why(3)).0, 3 * SLICE);
}

#[test]
fn another_pool_on_the_gpu_stretches_the_bound() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_pool(
        PoolId(2),
        PoolConfig {
            weight: 300,
            ..PoolConfig::default()
        },
    );
    rig.add_vm(1, class(Class::Medium));
    rig.add_vm(2, class(Class::Medium));
    rig.add_vm(3, VmConfig::new(PoolId(2), Class::Medium));
    for vm in [3, 1, 2] {
        rig.works(vm);
    }
    let why = rig.why(1);
    assert_eq!(why.share_permille, 125, "half of a quarter of the GPU");
    let alone = 2 * SLICE + 2 * SLICE;
    assert_eq!(bounds(&why).0, 4 * alone + 2 * SLICE);
}

#[test]
fn an_overrunner_is_named() {
    let mut rig = Rig::with_vms(3);
    rig.works(1);
    rig.hangs(1);
    rig.works(2);
    rig.works(3);
    rig.pass(3 * MILLIS);
    rig.pass(25 * MILLIS);
    let why = rig.why(3);
    assert_eq!(why.holders.len(), 2, "{why:?}");
    assert!(why.holders[0].overrun && !why.holders[1].overrun);
    assert_eq!(why.holders[0].asked_ns, Some(25 * MILLIS));
}

#[test]
fn sjf_waits_until_nobody_is_filed_before_it_and_then_for_the_others() {
    let sjf = |aging| PoolConfig {
        policy: Policy::Sjf,
        aging,
        ..PoolConfig::default()
    };
    let mut rig = Rig::new(sjf(Some(Aging {
        after_ns: 300 * MILLIS,
        step_ns: 0,
    })));
    for vm in 1..=3 {
        rig.add_vm(vm, class(Class::Medium));
        rig.works(vm);
    }
    rig.pass(40 * MILLIS);
    let (usual, worst) = bounds(&rig.why(3));
    assert_eq!(
        (usual, worst),
        (260 * MILLIS + 3 * SLICE, 260 * MILLIS + 3 * WORST)
    );
    assert_eq!(rig.why(3).before, [VmId(2)]);
    rig.feed(Event::SetPool {
        pool: POOL,
        config: sjf(None),
    });
    assert_eq!(rig.why(3).wait, WaitBound::Never(NoBound::AgingOff));
}

#[test]
fn a_quarantine_that_ends_by_itself_has_a_bound() {
    let mut rig = Rig::new(PoolConfig {
        strike_limit: Some(1),
        quarantine_ns: Some(60 * SECONDS),
        ..PoolConfig::default()
    });
    rig.add_vm(1, class(Class::Medium));
    rig.feed(Event::Strike { vm: VmId(1) });
    rig.feed(Event::WorkerExited {
        session: SessionId(1),
    });
    rig.pass(10 * SECONDS);
    let why = rig.why(1);
    assert_eq!(why.reason, Reason::Waits(WaitReason::Quarantine));
    assert_eq!(why.quarantined_until_ns, Some(60 * SECONDS));
    assert_eq!(bounds(&why), (50 * SECONDS, 50 * SECONDS));
}
