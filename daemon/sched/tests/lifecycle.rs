//! The life of leases, step by step: grant, wanted, slice, revoke, hold, parked, death, refusal.

mod common;

use common::{GPU, POOL, Rig, granted, revoked};
use vgpu_sched::{
    Action, Class, Epoch, Event, GpuConfig, GpuHealth, GpuId, Ignored, KillCause, Limits, MICROS,
    MILLIS, Memory, MemoryRefusal, Policy, PoolConfig, PoolId, Rate, Refusal, SECONDS, SessionId,
    SessionState, Usage, VmConfig, VmId, WaitReason,
};

fn two_vms() -> Rig {
    let mut rig = Rig::new(PoolConfig::default());
    for vm in [1, 2] {
        rig.add_vm(vm, Class::Medium);
        rig.add_session(u64::from(vm) * 10, vm);
    }
    rig
}

fn two_gpus() -> (Rig, GpuId) {
    let mut rig = Rig::new(PoolConfig::default());
    let other = GpuId(1);
    rig.add_gpu(other);
    rig.feed(Event::AssignGpu {
        gpu: other,
        pool: POOL,
    });
    (rig, other)
}

#[test]
fn a_lone_session_keeps_its_lease_without_messages() {
    let mut rig = two_vms();
    let terms = granted(&rig.runnable(10));
    assert_eq!(
        (terms.gpu, terms.session, terms.wanted),
        (GPU, SessionId(10), false)
    );
    assert_eq!(rig.pass(SECONDS), vec![]);
    assert_eq!(rig.runnable(10), vec![]);
    rig.feed(Event::Timer);
    assert_eq!(rig.gpu_ns(1), SECONDS);
}

#[test]
fn the_slice_ends_when_others_wait_and_epochs_are_never_reused() {
    let mut rig = two_vms();
    let first = granted(&rig.runnable(10));
    rig.pass(MILLIS / 2);
    let want = rig.runnable(20);
    assert_eq!(
        want,
        vec![Action::Want {
            gpu: GPU,
            session: SessionId(10),
            epoch: first.epoch,
            wanted: true
        }]
    );
    assert_eq!(
        revoked(&rig.pass(MILLIS * 3 / 2)),
        Some(10),
        "revoked at the end of the slice"
    );
    assert_eq!(
        rig.sched.session_stats(SessionId(10)).unwrap().state,
        SessionState::Revoking
    );
    assert_eq!(rig.holders(GPU), [10], "a revoke is a request");
    rig.pass(MILLIS);
    let second = granted(&rig.release(10, first.epoch, 5));
    assert_eq!(second.session, SessionId(20));
    assert!(second.epoch > first.epoch && second.wanted);
    assert_eq!(
        rig.gpu_ns(1),
        3 * MILLIS,
        "charged until the release, not until the revoke"
    );
    let waits = rig.sched.vm_stats(VmId(1)).unwrap().waiting;
    assert_eq!(waits, Some(WaitReason::Slice));
    assert_eq!(
        rig.sched.vm_stats(VmId(2)).unwrap().wait.max_ns(),
        5 * MILLIS / 2
    );
}

#[test]
fn stale_epochs_and_unknown_sessions_change_nothing() {
    let mut rig = two_vms();
    let first = granted(&rig.runnable(10));
    rig.runnable(20);
    let before = rig.sched.clone();
    let stale = Epoch(first.epoch.0 + 7);
    for (actions, reason) in [
        (rig.release(10, stale, 0), Ignored::StaleEpoch),
        (rig.release(20, first.epoch, 0), Ignored::StaleEpoch),
        (rig.release(99, first.epoch, 0), Ignored::UnknownSession),
        (rig.exited(99), Ignored::UnknownSession),
        (rig.idle(99), Ignored::UnknownSession),
    ] {
        assert_eq!(actions, vec![Action::Ignored { reason }]);
    }
    assert_eq!(rig.sched, before);
    granted(&rig.release(10, first.epoch, 0));
    let again = rig.release(10, first.epoch, 0);
    assert_eq!(
        again,
        vec![Action::Ignored {
            reason: Ignored::StaleEpoch
        }],
        "a lease is released only once"
    );
}

#[test]
fn an_idle_holder_pays_for_its_hold_and_then_loses_the_lease() {
    let mut rig = two_vms();
    let first = granted(&rig.runnable(10));
    rig.pass(200 * MICROS);
    rig.idle(10);
    rig.runnable(20);
    let actions = rig.pass(200 * MICROS);
    assert_eq!(
        revoked(&actions),
        Some(10),
        "revoked after the hold of 200 µs, long before the end of the slice"
    );
    granted(&rig.release(10, first.epoch, 0));
    assert_eq!(rig.gpu_ns(1), 400 * MICROS);
}

#[test]
fn work_during_the_hold_keeps_the_lease() {
    let mut rig = two_vms();
    granted(&rig.runnable(10));
    rig.idle(10);
    rig.runnable(20);
    rig.pass(50 * MICROS);
    assert_eq!(rig.runnable(10), vec![]);
    assert_eq!(revoked(&rig.pass(MILLIS)), None);
    assert_eq!(rig.holders(GPU), [10]);
}

#[test]
fn an_unwanted_idle_lease_parks_uncharged_and_is_asked_back_at_once() {
    let mut rig = two_vms();
    let first = granted(&rig.runnable(10));
    rig.idle(10);
    rig.pass(SECONDS);
    assert_eq!(
        rig.sched.session_stats(SessionId(10)).unwrap().state,
        SessionState::Parked
    );
    assert_eq!(rig.gpu_ns(1), 200 * MICROS, "only the hold is charged");
    // The worker retakes the parked lease, and the VM pays from now on.
    rig.runnable(10);
    rig.pass(MILLIS);
    rig.idle(10);
    rig.pass(SECONDS);
    assert_eq!(rig.gpu_ns(1), MILLIS + 400 * MICROS);
    assert_eq!(revoked(&rig.runnable(20)), Some(10), "the hold is over");
    rig.pass(5 * MICROS);
    let second = granted(&rig.release(10, first.epoch, 0));
    assert_eq!(second.session, SessionId(20));
    assert_eq!(
        rig.gpu_ns(1),
        MILLIS + 405 * MICROS,
        "a revoked lease is charged until its release"
    );
    rig.feed(Event::Timer);
    let account = rig.sched.gpu_stats(GPU).unwrap().account;
    assert_eq!(
        account.charged_ns + account.idle_ns + account.switch_ns,
        rig.now
    );
}

#[test]
fn a_worker_that_says_it_was_idle_already_gets_no_second_hold() {
    let mut rig = two_vms();
    granted(&rig.runnable(10));
    rig.runnable(20);
    let event = Event::Idle {
        session: SessionId(10),
        idle_for_ns: 200 * MICROS,
    };
    assert_eq!(revoked(&rig.feed(event)), Some(10));
}

#[test]
fn only_verified_death_frees_a_lease_whose_session_is_gone() {
    let mut rig = two_vms();
    granted(&rig.runnable(10));
    rig.progress(10, 3, 1);
    rig.runnable(20);
    let actions = rig.feed(Event::SessionRemoved {
        session: SessionId(10),
    });
    assert_eq!(revoked(&actions), Some(10));
    assert_eq!(rig.holders(GPU), [10]);
    let actions = rig.exited(10);
    assert_eq!(granted(&actions).session, SessionId(20));
    assert!(
        actions.contains(&Action::Canary { gpu: GPU }),
        "a canary runs: the worker died with work in flight"
    );
}

#[test]
fn sessions_of_a_vm_take_turns_in_order() {
    let mut rig = two_vms();
    rig.add_session(11, 1);
    rig.add_session(12, 1);
    let mut terms = granted(&rig.runnable(10));
    rig.runnable(11);
    rig.runnable(12);
    let mut order = vec![];
    for _ in 0..6 {
        order.push(terms.session.0);
        assert_eq!(revoked(&rig.pass(2 * MILLIS)), Some(terms.session.0));
        terms = granted(&rig.release(terms.session.0, terms.epoch, 1));
    }
    assert_eq!(order, [10, 11, 12, 10, 11, 12]);
}

#[test]
fn nothing_is_granted_after_a_restart_until_the_gpu_is_verified() {
    let mut rig = two_vms();
    let gpu = GpuId(5);
    let config = GpuConfig {
        memory_bytes: 1,
        context_bytes: 0,
        overcommit: true,
    };
    rig.feed(Event::AddGpu {
        gpu,
        config,
        health: GpuHealth::Unverified,
    });
    rig.add_pool(PoolId(5), PoolConfig::default());
    rig.feed(Event::AssignGpu {
        gpu,
        pool: PoolId(5),
    });
    rig.add_vm_with(5, VmConfig::new(PoolId(5), Class::High));
    assert_eq!(rig.add_session(50, 5), gpu);
    assert_eq!(rig.runnable(50), vec![]);
    let waits = rig.sched.vm_stats(VmId(5)).unwrap().waiting;
    assert_eq!(
        waits,
        Some(WaitReason::GpuUnavailable {
            health: GpuHealth::Unverified
        })
    );
    rig.pass(MILLIS);
    assert_eq!(
        granted(&rig.feed(Event::Verified { gpu, ok: true })).session,
        SessionId(50)
    );
    rig.feed(Event::Timer);
    assert_eq!(rig.sched.gpu_stats(gpu).unwrap().account.switch_ns, MILLIS);
}

#[test]
fn refusals_say_why() {
    let mut rig = Rig::new(PoolConfig::default());
    let mut config = VmConfig::new(POOL, Class::Low);
    config.limits = Limits {
        sessions: Some(1),
        ..Limits::default()
    };
    rig.add_vm_with(1, config);
    rig.add_pool(PoolId(7), PoolConfig::default());
    rig.add_vm_with(7, VmConfig::new(PoolId(7), Class::Low));
    rig.add_session(10, 1);
    let mut refused = |session: u64, vm: u32| {
        let event = Event::SessionAdded {
            session: SessionId(session),
            vm: VmId(vm),
        };
        match rig.feed(event).as_slice() {
            [Action::Refuse { reason, .. }] => *reason,
            other => panic!("expected a refusal: {other:?}"),
        }
    };
    assert_eq!(refused(11, 1), Refusal::TooManySessions { limit: 1 });
    assert_eq!(refused(10, 1), Refusal::DuplicateSession);
    assert_eq!(refused(12, 3), Refusal::UnknownVm);
    assert_eq!(refused(12, 7), Refusal::NoGpu);
    rig.feed(Event::AssignGpu {
        gpu: GPU,
        pool: PoolId(7),
    });
    rig.feed(Event::GpuState {
        gpu: GPU,
        health: GpuHealth::Draining,
    });
    assert_eq!(rig.sched.can_admit(VmId(7)), Err(Refusal::GpuUnavailable));
    rig.feed(Event::GpuState {
        gpu: GPU,
        health: GpuHealth::Healthy,
    });
    rig.feed(Event::SetQuarantine {
        vm: VmId(7),
        on: true,
    });
    assert_eq!(rig.sched.can_admit(VmId(7)), Err(Refusal::Quarantined));
    rig.feed(Event::SetQuarantine {
        vm: VmId(7),
        on: false,
    });
    assert_eq!(rig.sched.can_admit(VmId(7)), Ok(GPU));
}

#[test]
fn memory_is_one_account_per_vm_over_all_its_sessions() {
    let mut rig = Rig::new(PoolConfig::default());
    let gpu = GpuConfig {
        memory_bytes: 1000,
        context_bytes: 50,
        overcommit: false,
    };
    rig.feed(Event::SetGpu {
        gpu: GPU,
        config: gpu,
    });
    let mut config = VmConfig::new(POOL, Class::Low);
    config.limits.memory_bytes = Some(400);
    rig.add_vm_with(1, config);
    rig.add_vm(2, Class::Low);
    rig.add_session(10, 1);
    rig.add_session(11, 1);
    rig.add_session(20, 2);
    let mut reserve = |session: u64, bytes: u64| {
        let event = Event::MemoryReserve {
            session: SessionId(session),
            of: Memory::Device,
            bytes,
            tag: bytes,
        };
        match rig.feed(event).as_slice() {
            [Action::MemoryGranted { tag, .. }] if *tag == bytes => Ok(()),
            [
                Action::MemoryDenied {
                    reason, available, ..
                },
            ] => Err((*reason, *available)),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(
        reserve(10, 200),
        Ok(()),
        "the contexts of two sessions are booked, too"
    );
    assert_eq!(reserve(11, 101), Err((MemoryRefusal::Quota, 100)));
    assert_eq!(reserve(11, 100), Ok(()));
    assert_eq!(reserve(20, 551), Err((MemoryRefusal::Gpu, 550)));
    assert_eq!(reserve(20, 550), Ok(()));
    assert_eq!(reserve(20, u64::MAX), Err((MemoryRefusal::Gpu, 0)));
    assert_eq!(rig.sched.can_admit(VmId(2)), Err(Refusal::NoMemory));
    rig.feed(Event::MemoryRelease {
        session: SessionId(10),
        of: Memory::Device,
        bytes: u64::MAX,
    });
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().memory_bytes, 150);
    rig.exited(11);
    rig.exited(20);
    assert_eq!(rig.sched.gpu_stats(GPU).unwrap().memory_bytes, 0);
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().memory_peak_bytes, 400);
}

#[test]
fn vms_are_placed_on_the_least_loaded_gpu_they_may_use() {
    let (mut rig, other) = two_gpus();
    rig.add_vm(1, Class::High);
    rig.add_vm(2, Class::Low);
    rig.add_vm(3, Class::Low);
    let mut bound = VmConfig::new(POOL, Class::Low);
    bound.gpus = Some([GPU].into());
    rig.add_vm_with(4, bound);
    assert_eq!(rig.add_session(10, 1), GPU);
    assert_eq!(rig.add_session(20, 2), other);
    assert_eq!(
        rig.add_session(30, 3),
        other,
        "two low VMs weigh less than a high one"
    );
    assert_eq!(rig.add_session(40, 4), GPU, "the VM may use no other GPU");
    assert_eq!(
        rig.add_session(11, 1),
        GPU,
        "the sessions of a VM stay together"
    );
    assert_eq!(granted(&rig.runnable(10)).gpu, GPU);
    assert_eq!(granted(&rig.runnable(30)).gpu, other);
}

#[test]
fn a_look_does_not_change_with_what_other_vms_do() {
    let (mut rig, other) = two_gpus();
    rig.add_vm(1, Class::High);
    rig.add_vm(2, Class::High);
    assert_eq!(rig.sched.gpus_for(VmId(2)), [GPU]);
    assert_eq!(rig.add_session(10, 1), GPU);
    assert_eq!(
        rig.sched.gpus_for(VmId(2)),
        [GPU],
        "the load of other VMs does not change the answer"
    );
    assert_eq!(
        rig.add_session(20, 2),
        other,
        "a placed VM gets its actual GPU"
    );
    assert_eq!(rig.sched.gpus_for(VmId(2)), [other]);
}

#[test]
fn a_vm_moves_to_another_pool_of_its_gpu_with_its_lease() {
    let mut rig = two_vms();
    rig.add_pool(
        PoolId(2),
        PoolConfig {
            policy: Policy::Strict,
            ..PoolConfig::default()
        },
    );
    rig.feed(Event::AssignGpu {
        gpu: GPU,
        pool: PoolId(2),
    });
    let first = granted(&rig.runnable(10));
    rig.runnable(20);
    for (vm, pool) in [(1, PoolId(2)), (2, PoolId(2)), (1, POOL)] {
        rig.pass(100 * MICROS);
        let config = VmConfig::new(pool, Class::High);
        assert_eq!(
            rig.feed(Event::SetVm {
                vm: VmId(vm),
                config
            }),
            vec![]
        );
    }
    rig.pass(5 * MILLIS);
    assert_eq!(
        granted(&rig.release(10, first.epoch, 0)).session,
        SessionId(20)
    );
    let stats = rig.sched.vm_stats(VmId(2)).unwrap();
    assert_eq!((stats.pool, stats.class), (PoolId(2), Class::High));
    assert_eq!(
        rig.feed(Event::RemovePool { pool: POOL }),
        vec![Action::Ignored {
            reason: Ignored::PoolInUse
        }]
    );
}

#[test]
fn removing_what_is_in_use_ends_its_sessions_first() {
    let mut rig = two_vms();
    granted(&rig.runnable(10));
    let killed = |session: u64, cause: KillCause| Action::Kill {
        session: SessionId(session),
        cause,
    };
    let actions = rig.feed(Event::RemoveVm { vm: VmId(1) });
    assert_eq!(actions, vec![killed(10, KillCause::VmRemoved)]);
    assert_eq!(
        rig.holders(GPU),
        [10],
        "the lease stays until the death is confirmed"
    );
    rig.exited(10);
    assert_eq!(rig.sched.vm_stats(VmId(1)), None);
    rig.runnable(20);
    let actions = rig.feed(Event::RemoveGpu { gpu: GPU });
    assert_eq!(actions, vec![killed(20, KillCause::GpuLost)]);
    rig.exited(20);
    assert_eq!(rig.sched.gpu_stats(GPU), None);
}

/// What the workers of a removed VM use or claim until they have ended costs the next VM with that
/// number nothing.
#[test]
fn the_last_workers_of_a_vm_cost_the_next_vm_with_its_number_nothing() {
    let mut rig = two_vms();
    granted(&rig.runnable(10));
    rig.feed(Event::RemoveVm { vm: VmId(1) });
    let rate = |per_second| {
        Some(Rate {
            per_second,
            burst: per_second,
        })
    };
    let mut config = VmConfig::new(POOL, Class::Low);
    config.limits.bytes = rate(1_000);
    config.limits.gpu_time = rate(MILLIS);
    rig.add_vm_with(1, config);
    let (session, used) = (
        SessionId(10),
        Usage {
            calls: 9,
            bytes: 1 << 42,
        },
    );
    rig.feed(Event::Used { session, used });
    rig.pass(100 * MILLIS);
    rig.feed(Event::Timer);
    rig.exited(10);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!((stats.calls, stats.bytes, stats.gpu_ns), (0, 0, 0));
    assert_eq!(stats.debt_ns, 0);
    rig.add_session(13, 1);
    granted(&rig.runnable(13));
}

#[test]
fn a_vm_number_that_is_used_again_at_once_inherits_nothing_but_the_memory_still_held() {
    let mut rig = two_vms();
    granted(&rig.runnable(10));
    rig.feed(Event::MemoryReserve {
        session: SessionId(10),
        of: Memory::Device,
        bytes: 77,
        tag: 0,
    });
    rig.runnable(20);
    rig.pass(MILLIS);
    rig.feed(Event::Timer);
    assert!(
        rig.sched.vm_stats(VmId(1)).unwrap().debt_ns > 0,
        "the former owner owes time"
    );
    rig.feed(Event::RemoveVm { vm: VmId(1) });
    rig.add_vm(1, Class::Low);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!(
        (stats.gpu_ns, stats.memory_bytes, stats.class),
        (0, 77, Class::Low)
    );
    assert_eq!(stats.debt_ns, 0, "the new VM does not inherit the debt");
    rig.add_session(13, 1);
    rig.exited(10);
    let beside = rig.holders(GPU);
    assert_eq!(beside, [20], "the other VM goes on");
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().memory_bytes, 0);
    rig.runnable(13);
    let revoke = rig.pass(4 * MILLIS);
    assert_eq!(revoked(&revoke), Some(20), "the new VM gets its turn");
}
