//! Work that does not end, leases that are not returned, killed workers that do not exit.

mod common;

use common::{GPU, POOL, Rig, granted, revoked};
use vgpu_sched::{
    Action, Class, Config, Event, GpuHealth, KillCause, LimitOverride, MILLIS, Memory, PoolConfig,
    Quarantine, Refusal, SECONDS, SessionId, StrikeCause, VmConfig, VmId,
};

fn rig(pool: PoolConfig) -> Rig {
    let mut rig = Rig::new(pool);
    for vm in [1, 2, 3] {
        rig.add_vm(vm, Class::High);
        rig.add_session(u64::from(vm) * 10, vm);
    }
    rig
}

fn position(actions: &[Action], wanted: impl Fn(&Action) -> bool) -> Option<usize> {
    actions.iter().position(wanted)
}

fn killed(actions: &[Action]) -> Option<(u64, KillCause)> {
    actions.iter().find_map(|action| match action {
        Action::Kill { session, cause } => Some((session.0, *cause)),
        _ => None,
    })
}

/// The kernel of session 10 hangs, and session 20 waits, which gets no turn beside it.
fn hung_beside_a_waiting_session() -> Rig {
    let mut rig = rig(PoolConfig {
        overrun_grace_ns: None,
        ..PoolConfig::default()
    });
    granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    rig.runnable(20);
    rig
}

#[test]
fn a_hung_kernel_is_noted_then_killed_then_verified_and_the_next_vm_is_granted() {
    let mut rig = hung_beside_a_waiting_session();
    let actions = rig.pass(10 * SECONDS - 1);
    assert_eq!(revoked(&actions), Some(10));
    let soft = Action::SoftLimit {
        session: SessionId(10),
        vm: VmId(1),
        kept_ns: 2 * SECONDS,
    };
    assert!(actions.contains(&soft), "{actions:?}");
    assert_eq!(killed(&actions), None);
    assert_eq!(
        killed(&rig.pass(1)),
        Some((10, KillCause::LaunchTimeout)),
        "exactly at the limit"
    );
    assert_eq!(rig.holders(GPU), [10]);
    rig.pass(50 * MILLIS);
    let actions = rig.exited(10);
    assert_eq!(
        granted(&actions).session,
        SessionId(20),
        "granted before the canary reports"
    );
    assert!(actions.contains(&Action::Canary { gpu: GPU }));
    rig.feed(Event::Verified { gpu: GPU, ok: true });
    assert_eq!(rig.sched.gpu_stats(GPU).unwrap().health, GpuHealth::Healthy);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!((stats.kills, stats.soft_limits, stats.strikes), (1, 1, 2));
    assert!(stats.demoted);
    rig.pass(10 * SECONDS);
    assert!(
        !rig.sched.vm_stats(VmId(1)).unwrap().demoted,
        "the demotion is over"
    );
}

/// A lease is revoked half a second before the limit; then vgpud is absent for an hour.
#[test]
fn an_absence_counts_towards_no_limit() {
    const AWAY: u64 = 3600 * SECONDS;
    for in_flight in [0, 1] {
        let mut rig = rig(PoolConfig {
            soft_limit_ns: None,
            overrun_grace_ns: None,
            ..PoolConfig::default()
        });
        granted(&rig.runnable(10));
        rig.progress(10, 1, 1 - in_flight);
        rig.runnable(20);
        let asked = rig.pass(9_500 * MILLIS);
        assert_eq!(revoked(&asked), Some(10));
        rig.now += AWAY;
        rig.feed(Event::Away { for_ns: AWAY });
        let mut actions = rig.feed(Event::Timer);
        actions.extend(rig.pass(400 * MILLIS));
        assert_eq!(killed(&actions), None, "{actions:?}");
        let stats = rig.sched.vm_stats(VmId(1)).unwrap();
        assert_eq!((stats.kills, stats.strikes), (0, 0));
        // The rest of the limit still applies after the absence.
        let (session, _) = killed(&rig.pass(SECONDS)).expect("killed");
        assert_eq!(session, 10);
    }
}

/// During an absence the exit of a worker and the check of its GPU cannot be reported. The GPU must
/// not become suspect because of this.
#[test]
fn an_absence_condemns_no_gpu() {
    const AWAY: u64 = 3600 * SECONDS;
    let mut rig = rig(PoolConfig::default());
    granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    rig.runnable(20);
    let actions = rig.pass(10 * SECONDS);
    assert_eq!(killed(&actions), Some((10, KillCause::LaunchTimeout)));
    let suspect = Action::GpuSuspect { gpu: GPU };
    for exited in [false, true] {
        if exited {
            assert!(rig.exited(10).contains(&Action::Canary { gpu: GPU }));
        }
        rig.now += AWAY;
        rig.feed(Event::Away { for_ns: AWAY });
        assert!(!rig.feed(Event::Timer).contains(&suspect), "{exited}");
    }
    assert!(rig.pass(AWAY).contains(&suspect), "the check is overdue");
}

/// A killed worker may need long to free its memory, or get little processor time.
#[test]
fn a_worker_that_still_exits_condemns_no_gpu_and_others_run_beside_it() {
    let mut rig = hung_beside_a_waiting_session();
    let actions = rig.pass(10 * SECONDS);
    assert_eq!(killed(&actions), Some((10, KillCause::LaunchTimeout)));
    let suspect = Action::GpuSuspect { gpu: GPU };
    let exiting = Event::WorkerExiting {
        session: SessionId(10),
    };
    let mut beside = Vec::new();
    for _ in 0..20 {
        rig.feed(exiting.clone());
        beside.extend(rig.pass(SECONDS));
    }
    assert!(!beside.contains(&suspect), "{beside:?}");
    let runs = |action: &Action| matches!(action, Action::GrantBeside(terms) if terms.session == SessionId(20));
    assert!(beside.iter().any(runs), "{beside:?}");
    let told = rig.sched.explain(VmId(2)).expect("a VM");
    let killed_ns = told.holders.iter().find_map(|holder| holder.killed_ns);
    assert!(killed_ns.is_some_and(|ago| ago >= 15 * SECONDS), "{told:?}");
    assert!(rig.pass(10 * SECONDS).contains(&suspect), "no more news");
    rig.exited(10);
    let gone = rig.feed(exiting);
    assert!(matches!(gone[..], [Action::Ignored { .. }]), "{gone:?}");
}

#[test]
fn progress_is_no_hang_however_long_it_goes_on() {
    let mut rig = rig(PoolConfig::default());
    granted(&rig.runnable(10));
    for step in 0..100 {
        rig.progress(10, step + 2, step + 1);
        assert_eq!(rig.pass(SECONDS), vec![]);
    }
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().strikes, 0);
}

#[test]
fn without_a_hard_limit_a_lone_kernel_may_run_for_ever_but_not_against_others() {
    let pool = PoolConfig {
        soft_limit_ns: None,
        hard_limit_ns: None,
        contended_limit_ns: 3 * SECONDS,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut rig = rig(pool);
    granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    assert_eq!(rig.pass(1_000 * SECONDS), vec![]);
    rig.runnable(20);
    let actions = rig.pass(10 * MILLIS);
    assert_eq!(killed(&actions), Some((10, KillCause::ContendedLimit)));
    let strike = |action: &Action| match action {
        Action::Struck { cause, .. } => Some(*cause),
        _ => None,
    };
    let strike = actions.iter().find_map(strike);
    assert_eq!(strike, Some(StrikeCause::ContendedLimit));
}

#[test]
fn limits_of_a_vm_override_those_of_its_pool() {
    let mut rig = rig(PoolConfig::default());
    let mut config = VmConfig::new(POOL, Class::High);
    config.soft_limit = LimitOverride::Unlimited;
    config.hard_limit = LimitOverride::At(SECONDS);
    rig.feed(Event::SetVm {
        vm: VmId(1),
        config,
    });
    granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    assert_eq!(rig.pass(SECONDS - 1), vec![]);
    assert_eq!(killed(&rig.pass(1)), Some((10, KillCause::LaunchTimeout)));
}

#[test]
fn a_session_beside_an_overrunner_pays_half_like_it() {
    let mut rig = rig(PoolConfig::default());
    let long = granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    rig.runnable(20);
    rig.runnable(30);
    let actions = rig.pass(22 * MILLIS);
    let overrun = position(&actions, |a| matches!(a, Action::Overrun { .. })).expect("declared");
    let beside = position(&actions, |a| matches!(a, Action::GrantBeside(_))).expect("let in");
    assert!(overrun < beside);
    assert_eq!(rig.holders(GPU), [10, 20]);
    let (before_1, before_2) = (rig.gpu_ns(1), rig.gpu_ns(2));
    // The other sessions take turns beside the overrunner; a third session never gets a lease.
    let turn = PoolConfig::BESIDE_NS;
    assert_eq!(
        revoked(&rig.pass(turn - 1)),
        None,
        "a turn beside is longer than a slice"
    );
    assert_eq!(revoked(&rig.pass(1)), Some(20));
    assert_eq!(
        (rig.gpu_ns(1) - before_1, rig.gpu_ns(2) - before_2),
        (turn / 2, turn / 2)
    );
    let epoch = rig.sched.gpu_stats(GPU).unwrap().holders[1].2;
    assert_eq!(granted(&rig.release(20, epoch, 1)).session, SessionId(30));
    assert_eq!(rig.holders(GPU), [10, 30]);
    let epoch = rig.sched.gpu_stats(GPU).unwrap().holders[1].2;
    let actions = rig.release(10, long.epoch, 1);
    let alone = Action::Alone {
        gpu: GPU,
        session: SessionId(30),
        epoch,
    };
    assert!(actions.contains(&alone), "{actions:?}");
    assert_eq!(
        rig.holders(GPU),
        [30],
        "alone now, so no other session is let in"
    );
    rig.feed(Event::Timer);
    let account = rig.sched.gpu_stats(GPU).unwrap().account;
    assert_eq!(account.charged_ns, rig.now);
    assert_eq!(rig.gpu_ns(1) + rig.gpu_ns(2) + rig.gpu_ns(3), rig.now);
}

#[test]
fn a_lease_that_is_not_returned_although_nothing_runs_is_ended_by_a_kill() {
    let pool = PoolConfig {
        contended_limit_ns: SECONDS,
        ..PoolConfig::default()
    };
    let mut rig = rig(pool);
    granted(&rig.runnable(10));
    rig.runnable(20);
    let actions = rig.pass(2 * MILLIS + SECONDS);
    assert_eq!(killed(&actions), Some((10, KillCause::LeaseNotReturned)));
}

#[test]
fn a_worker_that_cannot_be_killed_blocks_nobody_and_makes_the_gpu_suspect() {
    let mut rig = hung_beside_a_waiting_session();
    assert!(killed(&rig.pass(10 * SECONDS)).is_some());
    let actions = rig.pass(2 * SECONDS);
    let beside = actions
        .iter()
        .any(|action| matches!(action, Action::GrantBeside(_)));
    assert!(beside, "the others run again within 2 s: {actions:?}");
    let actions = rig.pass(8 * SECONDS);
    assert!(
        actions.contains(&Action::GpuSuspect { gpu: GPU }),
        "{actions:?}"
    );
    assert_eq!(rig.sched.can_admit(VmId(3)), Err(Refusal::GpuUnavailable));
    assert_eq!(rig.pass(100 * SECONDS), vec![], "reported once");
    rig.feed(Event::GpuState {
        gpu: GPU,
        health: GpuHealth::Healthy,
    });
    assert_eq!(rig.sched.can_admit(VmId(3)), Ok(GPU));
}

#[test]
fn a_canary_that_fails_or_stays_away_makes_the_gpu_suspect() {
    for answers in [true, false] {
        let mut rig = rig(PoolConfig::default());
        granted(&rig.runnable(10));
        rig.progress(10, 1, 0);
        rig.pass(10 * SECONDS);
        rig.exited(10);
        let actions = if answers {
            rig.feed(Event::Verified {
                gpu: GPU,
                ok: false,
            })
        } else {
            rig.pass(10 * SECONDS)
        };
        assert!(actions.contains(&Action::GpuSuspect { gpu: GPU }));
    }
}

#[test]
fn strikes_quarantine_and_are_forgotten_with_time() {
    let pool = PoolConfig {
        soft_limit_ns: None,
        hard_limit_ns: Some(SECONDS),
        strike_limit: Some(2),
        strike_decay_ns: Some(60 * SECONDS),
        ..PoolConfig::default()
    };
    let mut rig = Rig::with(Config::default(), pool);
    rig.add_vm(1, Class::High);
    let mut hang = |session: u64| {
        rig.add_session(session, 1);
        rig.add_session(session + 100, 1);
        granted(&rig.runnable(session));
        rig.progress(session, 1, 0);
        let actions = rig.pass(SECONDS);
        rig.exited(session);
        rig.exited(session + 100);
        rig.feed(Event::Verified { gpu: GPU, ok: true });
        let strikes = rig.sched.vm_stats(VmId(1)).unwrap().strikes;
        rig.pass(if session == 1 { 60 * SECONDS } else { SECONDS });
        (actions, strikes)
    };
    assert_eq!(hang(1).1, 1);
    assert_eq!(hang(2).1, 1, "the first strike was forgotten");
    let (actions, strikes) = hang(3);
    assert_eq!(strikes, 2);
    assert!(actions.contains(&Action::Quarantine {
        vm: VmId(1),
        strikes: 2,
        for_ns: Some(60 * SECONDS)
    }));
    let bystander = Action::Kill {
        session: SessionId(103),
        cause: KillCause::Quarantined {
            for_ns: Some(60 * SECONDS),
        },
    };
    assert!(actions.contains(&bystander), "all sessions of the VM end");
    assert_eq!(rig.sched.can_admit(VmId(1)), Err(Refusal::Quarantined));
    rig.feed(Event::SetQuarantine {
        vm: VmId(1),
        on: false,
    });
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().strikes, 0);
    assert_eq!(rig.sched.can_admit(VmId(1)), Ok(GPU));
}

/// The program whose kernel earned the last strike learns of its own kernel, the others of the
/// quarantine.
#[test]
fn a_soft_limit_that_quarantines_ends_its_session_for_the_soft_limit() {
    let mut rig = rig(PoolConfig {
        soft_limit_ns: Some(SECONDS),
        hard_limit_ns: None,
        strike_limit: Some(1),
        quarantine_ns: Some(60 * SECONDS),
        ..PoolConfig::default()
    });
    rig.add_session(11, 1);
    granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    let actions = rig.pass(SECONDS);
    let kills: Vec<_> = actions
        .iter()
        .filter(|action| matches!(action, Action::Kill { .. }))
        .collect();
    let kill = |session, cause| Action::Kill {
        session: SessionId(session),
        cause,
    };
    let for_ns = Some(60 * SECONDS);
    assert_eq!(
        kills,
        [
            &kill(10, KillCause::SoftLimit),
            &kill(11, KillCause::Quarantined { for_ns }),
        ]
    );
}

fn quarantined(actions: &[Action]) -> Option<u64> {
    actions.iter().find_map(|action| match action {
        Action::Quarantine { for_ns, .. } => *for_ns,
        _ => None,
    })
}

fn back_off() -> Rig {
    let pool = PoolConfig {
        strike_limit: Some(3),
        strike_decay_ns: Some(600 * SECONDS),
        quarantine_ns: Some(60 * SECONDS),
        quarantine_max_ns: 200 * SECONDS,
        ..PoolConfig::default()
    };
    let mut rig = Rig::new(pool);
    rig.add_vm(1, Class::High);
    rig
}

fn three_strikes(rig: &mut Rig) -> Option<u64> {
    let strike = || Event::Strike { vm: VmId(1) };
    assert_eq!(quarantined(&rig.feed(strike())), None);
    assert_eq!(quarantined(&rig.feed(strike())), None);
    quarantined(&rig.feed(strike()))
}

#[test]
fn quarantines_end_by_themselves_and_each_is_twice_as_long_as_the_one_before() {
    let mut rig = back_off();
    for seconds in [60, 120, 200, 200] {
        let session = seconds * 1_000_000 + rig.now / SECONDS;
        rig.add_session(session, 1);
        assert_eq!(three_strikes(&mut rig), Some(seconds * SECONDS));
        rig.exited(session);
        assert_eq!(rig.sched.can_admit(VmId(1)), Err(Refusal::Quarantined));
        let left = rig.sched.vm_stats(VmId(1)).unwrap().quarantine;
        let all = Quarantine::For {
            left_ns: seconds * SECONDS,
        };
        assert_eq!(left, Some(all));
        assert_eq!(rig.pass(seconds * SECONDS - 1), vec![]);
        let over = Action::QuarantineOver { vm: VmId(1) };
        assert_eq!(rig.pass(1), vec![over]);
        assert_eq!(rig.sched.can_admit(VmId(1)), Ok(GPU));
        assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().strikes, 0);
    }
}

#[test]
fn a_release_forgets_strikes_but_not_the_back_off_until_that_fades() {
    let mut rig = back_off();
    let release = Event::SetQuarantine {
        vm: VmId(1),
        on: false,
    };
    assert_eq!(three_strikes(&mut rig), Some(60 * SECONDS));
    rig.feed(release.clone());
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().strikes, 0);
    assert_eq!(three_strikes(&mut rig), Some(120 * SECONDS));
    rig.feed(release.clone());
    rig.pass(600 * SECONDS);
    rig.feed(Event::Timer);
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().quarantines, 1);
    assert_eq!(
        three_strikes(&mut rig),
        Some(120 * SECONDS),
        "one doubling less"
    );
    rig.feed(release);
    rig.pass(1200 * SECONDS);
    assert_eq!(three_strikes(&mut rig), Some(60 * SECONDS));
}

#[test]
fn what_is_remembered_of_a_vm_survives_a_restart() {
    let mut rig = back_off();
    three_strikes(&mut rig);
    rig.pass(20 * SECONDS);
    rig.feed(Event::Timer);
    let past = rig.sched.past(VmId(1)).unwrap();
    assert_eq!(
        past.quarantine,
        Some(Quarantine::For {
            left_ns: 40 * SECONDS
        })
    );
    let mut next = back_off();
    next.pass(5 * SECONDS);
    next.feed(Event::RemoveVm { vm: VmId(1) });
    next.feed(Event::AddVm {
        vm: VmId(1),
        config: VmConfig::new(POOL, Class::High),
        past,
    });
    assert_eq!(next.sched.past(VmId(1)), Some(past));
    assert_eq!(next.sched.can_admit(VmId(1)), Err(Refusal::Quarantined));
    let over = Action::QuarantineOver { vm: VmId(1) };
    assert_eq!(next.pass(40 * SECONDS), vec![over]);
    assert_eq!(three_strikes(&mut next), Some(120 * SECONDS));
    // Strikes that do not yet cause a quarantine, and their age.
    let mut rig = back_off();
    rig.feed(Event::Strike { vm: VmId(1) });
    rig.pass(599 * SECONDS);
    rig.feed(Event::Timer);
    let past = rig.sched.past(VmId(1)).unwrap();
    assert_eq!((past.strikes, past.strikes_age_ns), (1, 599 * SECONDS));
}

#[test]
fn pinned_memory_is_one_account_per_vm() {
    let mut rig = Rig::new(PoolConfig::default());
    let mut config = VmConfig::new(POOL, Class::High);
    config.limits.pinned_bytes = Some(100);
    rig.add_vm_with(1, config);
    rig.add_session(10, 1);
    rig.add_session(11, 1);
    let mut pin = |session: u64, bytes: u64| {
        let (session, of) = (SessionId(session), Memory::Pinned);
        let event = Event::MemoryReserve {
            session,
            of,
            bytes,
            tag: 3,
        };
        matches!(rig.feed(event)[0], Action::MemoryGranted { tag: 3, .. })
    };
    assert!(pin(10, 60) && !pin(11, 41) && pin(11, 40) && !pin(10, 1));
    rig.exited(11);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!((stats.pinned_bytes, stats.pinned_peak_bytes), (60, 100));
    rig.feed(Event::MemoryRelease {
        session: SessionId(10),
        of: Memory::Pinned,
        bytes: 999,
    });
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().pinned_bytes, 0);
}
