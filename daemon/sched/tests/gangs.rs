//! VMs that use all their GPUs at the same time: gathering, all or nothing, no deadlock.

mod common;

use common::sim::{Sim, load};
use common::{GIB, GPU, POOL, Rig, granted, revoked};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use vgpu_sched::{
    Action, Class, Epoch, Event, GpuConfig, GpuHealth, GpuId, KillCause, MICROS, MILLIS, Memory,
    MemoryRefusal, PoolConfig, Rate, Refusal, SECONDS, SessionId, SessionState, Usage, VmConfig,
    VmId, WaitReason,
};

const SECOND: GpuId = GpuId(1);

fn gang(gpus: Option<&[u32]>) -> VmConfig {
    VmConfig {
        gang: true,
        gpus: gpus.map(|gpus| gpus.iter().map(|&gpu| GpuId(gpu)).collect()),
        ..VmConfig::new(POOL, Class::Medium)
    }
}

fn on(gpu: GpuId) -> VmConfig {
    VmConfig {
        gpus: Some([gpu].into()),
        ..VmConfig::new(POOL, Class::Medium)
    }
}

/// A rig with `gpus` GPUs, a gang on all of them (VM 1, session 10), and one VM on each GPU (VM
/// 2.., session 20..).
fn rig(gpus: u32) -> Rig {
    let mut rig = Rig::new(PoolConfig::default());
    for gpu in 1..gpus {
        let gpu = GpuId(gpu);
        rig.add_gpu(gpu);
        rig.feed(Event::AssignGpu { gpu, pool: POOL });
    }
    rig.add_vm_with(1, gang(None));
    rig.add_session(10, 1);
    for gpu in 0..gpus {
        rig.add_vm_with(2 + gpu, on(GpuId(gpu)));
        rig.add_session(20 + u64::from(gpu), 2 + gpu);
    }
    rig
}

fn state(rig: &Rig) -> SessionState {
    rig.sched.session_stats(SessionId(10)).unwrap().state
}

/// Bytes that a gang moves while it gathers GPUs are charged at once, not only when it has them.
#[test]
fn what_a_gathering_gang_uses_counts_before_its_lease() {
    let mut rig = rig(2);
    let mut config = gang(None);
    config.limits.bytes = Some(Rate {
        per_second: 1_000,
        burst: 1_000,
    });
    let vm = VmId(1);
    rig.feed(Event::SetVm { vm, config });
    rig.runnable(21);
    rig.runnable(10);
    assert_eq!(state(&rig), SessionState::Gathering);
    let (session, used) = (
        SessionId(10),
        Usage {
            calls: 0,
            bytes: 5_000,
        },
    );
    rig.feed(Event::Used { session, used });
    let stats = rig.sched.vm_stats(vm).unwrap();
    assert_eq!(stats.bytes, 5_000);
    assert!(
        matches!(stats.waiting, Some(WaitReason::RateLimit { .. })),
        "{stats:?}"
    );
    assert_eq!(rig.sched.gpu_stats(GPU).unwrap().reserved, None);
}

#[test]
fn a_gang_is_granted_once_when_it_has_all_its_gpus_and_pays_for_what_it_keeps_reserved() {
    let mut rig = rig(2);
    let single = granted(&rig.runnable(21));
    assert_eq!(single.gpu, SECOND);
    // The first GPU is free, so the gang reserves it at once; then the gang waits for the second.
    let actions = rig.runnable(10);
    assert!(
        !actions.iter().any(|a| matches!(a, Action::Grant(_))),
        "{actions:?}"
    );
    assert_eq!(state(&rig), SessionState::Gathering);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!(stats.waiting, Some(WaitReason::Gang { held: 1, of: 2 }));
    assert_eq!((stats.gpu, stats.also), (Some(GPU), vec![SECOND]));
    let first = rig.sched.gpu_stats(GPU).unwrap();
    assert_eq!(first.reserved, Some((SessionId(10), VmId(1))));
    assert_eq!(first.holders, []);
    assert_eq!(rig.runnable(20), vec![], "a reserved GPU is not free");
    assert_eq!(revoked(&rig.pass(2 * MILLIS)), Some(21));
    rig.pass(MILLIS);
    let terms = granted(&rig.release(21, single.epoch, 1));
    assert_eq!(
        (terms.session, terms.gpu, terms.also.as_slice()),
        (SessionId(10), GPU, &[SECOND][..])
    );
    assert_eq!(
        rig.gpu_ns(1),
        3 * MILLIS,
        "the gang pays for the reserved time"
    );
    assert_eq!(
        (rig.holders(GPU), rig.holders(SECOND)),
        (vec![10], vec![10])
    );
    rig.pass(MILLIS);
    rig.feed(Event::Timer);
    assert_eq!(rig.gpu_ns(1), 5 * MILLIS, "the gang pays for both GPUs");
    // The wait for one GPU revokes the gang's lease once, and both GPUs are released together.
    let asked = rig.pass(2 * MILLIS);
    let revokes = asked.iter().filter(|a| matches!(a, Action::Revoke { .. }));
    assert_eq!(revokes.count(), 1, "{asked:?}");
    let actions = rig.release(10, terms.epoch, 1);
    let next: Vec<u64> = actions
        .iter()
        .filter_map(|action| match action {
            Action::Grant(terms) => Some(terms.session.0),
            _ => None,
        })
        .collect();
    assert_eq!(next, [20, 21]);
    for gpu in [GPU, SECOND] {
        let account = rig.sched.gpu_stats(gpu).unwrap().account;
        let sum = account.charged_ns + account.idle_ns + account.switch_ns;
        assert_eq!(sum, rig.now, "{gpu}");
    }
}

#[test]
fn death_of_the_worker_and_loss_of_a_gpu_end_the_whole_gang() {
    let mut rig = rig(3);
    let terms = granted(&rig.runnable(10));
    assert_eq!(terms.also, [SECOND, GpuId(2)]);
    for single in 20..23 {
        rig.runnable(single);
    }
    rig.progress(10, 3, 1);
    let actions = rig.exited(10);
    let count = |what: fn(&Action) -> bool| actions.iter().filter(|a| what(a)).count();
    assert_eq!(count(|a| matches!(a, Action::Grant(_))), 3);
    assert_eq!(
        count(|a| matches!(a, Action::Canary { .. })),
        3,
        "a canary on each GPU"
    );
    rig.add_session(11, 1);
    let lost = Event::GpuState {
        gpu: GpuId(2),
        health: GpuHealth::Lost,
    };
    let killed = Action::Kill {
        session: SessionId(11),
        cause: KillCause::GpuLost,
    };
    assert!(rig.feed(lost).contains(&killed));
}

#[test]
fn what_a_gang_gathered_is_free_at_once_when_it_cannot_go_on() {
    type Change = (&'static str, fn(&mut Rig) -> Vec<Action>);
    let changes: [Change; 6] = [
        ("no more work", |rig| rig.idle(10)),
        ("closed", |rig| {
            let session = SessionId(10);
            rig.feed(Event::SessionRemoved { session })
        }),
        ("died", |rig| rig.exited(10)),
        ("quarantined", |rig| {
            let (vm, on) = (VmId(1), true);
            rig.feed(Event::SetQuarantine { vm, on })
        }),
        ("another GPU is not verified", |rig| {
            let (gpu, health) = (SECOND, GpuHealth::Unverified);
            rig.feed(Event::GpuState { gpu, health })
        }),
        ("its GPU time is used up", |rig| {
            let mut config = gang(None);
            config.limits.gpu_time = Some(Rate {
                per_second: MILLIS,
                burst: 100 * MICROS,
            });
            let vm = VmId(1);
            let mut actions = rig.feed(Event::SetVm { vm, config });
            actions.extend(rig.pass(MILLIS));
            actions
        }),
    ];
    for (why, change) in changes {
        let mut rig = rig(2);
        granted(&rig.runnable(21));
        rig.runnable(10);
        assert_eq!(state(&rig), SessionState::Gathering, "{why}");
        assert_eq!(rig.runnable(20), vec![]);
        let actions = change(&mut rig);
        let granted_20 = actions
            .iter()
            .any(|a| matches!(a, Action::Grant(terms) if terms.session == SessionId(20)));
        assert!(granted_20, "{why}: {actions:?}");
        assert_eq!(rig.sched.gpu_stats(GPU).unwrap().reserved, None, "{why}");
    }
}

/// A gang of two GPUs with this limit of GPU time, and VM 3, which holds the second GPU.
fn capped(per_second: u64, burst: u64) -> (Rig, Epoch) {
    let mut rig = rig(2);
    let mut config = gang(None);
    config.limits.gpu_time = Some(Rate { per_second, burst });
    rig.feed(Event::SetVm {
        vm: VmId(1),
        config,
    });
    let epoch = granted(&rig.runnable(21)).epoch;
    (rig, epoch)
}

fn is_capped(rig: &Rig) -> bool {
    let waiting = rig.sched.vm_stats(VmId(1)).unwrap().waiting;
    matches!(waiting, Some(WaitReason::RateLimit { .. }))
}

#[test]
fn a_gang_gives_up_what_it_keeps_reserved_when_its_gpu_time_is_used_up() {
    let (mut rig, _) = capped(MILLIS, 3 * MILLIS);
    rig.runnable(10);
    rig.runnable(20);
    // The burst of 3 ms, plus 3 µs that were earned meanwhile.
    assert_eq!(revoked(&rig.pass(3 * MILLIS)), Some(21));
    assert_eq!(state(&rig), SessionState::Gathering);
    let terms = granted(&rig.pass(10 * MICROS));
    assert_eq!(
        terms.session,
        SessionId(20),
        "the first GPU is free at once"
    );
    assert!(is_capped(&rig), "{:?}", rig.sched.vm_stats(VmId(1)));
    let depth = rig.sched.vm_stats(VmId(1)).unwrap().depth;
    assert_eq!(depth.calls, 1, "no work is dropped");
    let used = rig.gpu_ns(1);
    assert!(used.abs_diff(3 * MILLIS + 3 * MICROS) <= MICROS, "{used}");
}

#[test]
fn a_gang_without_gpu_time_is_not_granted_what_it_gathered() {
    // The second GPU is released after the time at which a timer should have ended the gathering.
    let (mut rig, single) = capped(MILLIS, 3 * MILLIS);
    rig.runnable(10);
    rig.now += 4 * MILLIS;
    let actions = rig.release(21, single, 0);
    assert!(
        !actions.iter().any(|a| matches!(a, Action::Grant(_))),
        "{actions:?}"
    );
    assert!(is_capped(&rig));
    assert_eq!(rig.sched.reserved_by(GPU), None);
}

#[test]
fn a_running_gang_uses_its_gpu_time_on_all_its_gpus() {
    let (mut rig, single) = capped(MILLIS, 10 * MILLIS);
    rig.release(21, single, 0);
    let terms = granted(&rig.runnable(10));
    assert_eq!(revoked(&rig.pass(5 * MILLIS)), None);
    assert_eq!(
        revoked(&rig.pass(10 * MICROS)),
        Some(10),
        "2 × 5 ms are used up"
    );
    let actions = rig.release(10, terms.epoch, 1);
    assert_eq!(actions, [], "the gang waits with its work");
    assert!(is_capped(&rig));
    // The gang goes on when its bucket has a slice for each of its GPUs.
    let waits = 4 * SECONDS;
    assert_eq!(rig.pass(waits - 100 * MILLIS), []);
    assert_eq!(granted(&rig.pass(200 * MILLIS)).session, SessionId(10));
}

#[test]
fn a_gang_whose_gathering_costs_more_than_its_burst_runs_and_pays_afterwards() {
    // The burst is 100 µs, but the other VM keeps its GPU for 2 ms or more each time.
    let (mut rig, mut single) = capped(100 * MILLIS, 100 * MICROS);
    rig.runnable(10);
    let mut runs = 0;
    let begun = rig.now;
    let mut single_asked = false;
    while rig.now - begun < 4 * SECONDS {
        for action in rig.pass(100 * MICROS) {
            match action {
                Action::Revoke {
                    session: SessionId(10),
                    epoch,
                    ..
                } => {
                    rig.release(10, epoch, 1);
                }
                Action::Revoke { .. } => single_asked = true,
                _ => {}
            }
        }
        if std::mem::take(&mut single_asked) {
            let actions = rig.release(21, single, 1);
            for action in actions {
                if let Action::Grant(terms) = action {
                    runs += u64::from(terms.session == SessionId(10));
                }
            }
        }
        for (session, _, epoch) in rig.sched.gpu_stats(SECOND).unwrap().holders {
            if session == SessionId(21) {
                single = epoch;
            }
        }
    }
    assert!(runs >= 20, "{runs} turns in 4 s");
    // At most the cost of one turn remains as a debt, so the rate holds.
    let used = rig.gpu_ns(1);
    assert!(used <= 400 * MILLIS + 20 * MILLIS, "{used}");
    assert!(used >= 300 * MILLIS, "{used}");
}

#[test]
fn another_session_of_the_gang_gathers_when_the_first_gives_up() {
    let mut rig = rig(2);
    rig.add_session(11, 1);
    granted(&rig.runnable(21));
    rig.runnable(10);
    rig.runnable(11);
    rig.feed(Event::SessionRemoved {
        session: SessionId(10),
    });
    let reserved = rig.sched.gpu_stats(GPU).unwrap().reserved;
    assert_eq!(reserved, Some((SessionId(11), VmId(1))));
}

#[test]
fn memory_of_a_gang_is_booked_on_each_of_its_gpus() {
    let mut rig = Rig::new(PoolConfig::default());
    rig.add_gpu(SECOND);
    let (gpu, pool) = (SECOND, POOL);
    rig.feed(Event::AssignGpu { gpu, pool });
    for gpu in [GPU, SECOND] {
        let config = GpuConfig {
            memory_bytes: GIB,
            context_bytes: 100,
            overcommit: false,
        };
        rig.feed(Event::SetGpu { gpu, config });
    }
    let mut config = gang(None);
    config.limits.memory_bytes = Some(GIB);
    rig.add_vm_with(1, config);
    rig.add_session(10, 1);
    let mut reserve = |of: Memory, bytes: u64| {
        let (session, tag) = (SessionId(10), 0);
        let event = Event::MemoryReserve {
            session,
            of,
            bytes,
            tag,
        };
        match rig.feed(event)[0] {
            Action::MemoryGranted { .. } => Ok(()),
            Action::MemoryDenied { reason, .. } => Err(reason),
            ref other => panic!("{other:?}"),
        }
    };
    assert_eq!(reserve(Memory::Device, 11), Ok(()), "on the first GPU");
    assert_eq!(reserve(Memory::DeviceOn(SECOND), 22), Ok(()));
    let elsewhere = Memory::DeviceOn(GpuId(9));
    assert_eq!(reserve(elsewhere, 1), Err(MemoryRefusal::NotItsGpu));
    assert_eq!(
        reserve(Memory::DeviceOn(SECOND), GIB),
        Err(MemoryRefusal::Quota)
    );
    let on = |rig: &Rig, gpu| rig.sched.gpu_stats(gpu).unwrap().memory_bytes;
    assert_eq!((on(&rig, GPU), on(&rig, SECOND)), (111, 122));
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().memory_bytes, 233);
    rig.feed(Event::MemoryRelease {
        session: SessionId(10),
        of: Memory::DeviceOn(SECOND),
        bytes: 22,
    });
    assert_eq!((on(&rig, GPU), on(&rig, SECOND)), (111, 100));
    rig.exited(10);
    assert_eq!((on(&rig, GPU), on(&rig, SECOND)), (0, 0));
}

#[test]
fn a_gang_is_admitted_on_all_its_gpus_or_refused() {
    let mut rig = rig(2);
    rig.add_vm_with(8, gang(Some(&[0, 7])));
    assert_eq!(rig.sched.can_admit(VmId(8)), Err(Refusal::NoGpu));
    rig.add_vm_with(9, gang(Some(&[1])));
    assert_eq!(
        rig.add_session(90, 9),
        SECOND,
        "a gang of one GPU is like a VM that is no gang"
    );
    rig.feed(Event::GpuState {
        gpu: SECOND,
        health: GpuHealth::Draining,
    });
    assert_eq!(rig.sched.can_admit(VmId(1)), Err(Refusal::GpuUnavailable));
}

#[derive(Debug, Clone)]
struct Member {
    gpus: Vec<u32>,
    gang: bool,
    weight: u32,
    kernel: u64,
    bursts: Option<(u64, u64)>,
}

fn members() -> impl Strategy<Value = Vec<Member>> {
    let bursts = proptest::option::of((1..6_u64, 50 * MICROS..5 * MILLIS));
    let member = (
        proptest::collection::btree_set(0..4_u32, 1..5),
        proptest::bool::weighted(0.6),
        1..5_u32,
        30 * MICROS..2 * MILLIS,
        bursts,
    );
    let member = member.prop_map(|(gpus, gang, weight, kernel, bursts)| Member {
        gpus: gpus.into_iter().collect(),
        gang,
        weight,
        kernel,
        bursts,
    });
    proptest::collection::vec(member, 2..9)
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 48,
        max_shrink_iters: 200,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/gangs.proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    /// For gangs on any GPUs and VMs on one GPU: no VM waits forever, and every nanosecond is
    /// accounted for.
    #[test]
    fn gangs_never_deadlock(members in members()) {
        let mut sim = Sim::new(PoolConfig::default(), 20 * MICROS);
        sim.gpus(4);
        for (index, member) in members.iter().enumerate() {
            let vm = index as u32 + 1;
            let mut config = gang(Some(&member.gpus));
            config.gang = member.gang;
            config.factor_milli = member.weight * 1000;
            sim.add_vm_with(vm, config);
            sim.start(vm, load(member.kernel, member.bursts));
        }
        sim.run_until(3 * SECONDS);
        sim.check_accounts();
        let turn = 2 * MILLIS + 2 * MILLIS + 20 * MICROS;
        let weights: u32 = members.iter().map(|member| member.weight).sum();
        let sizes = members.iter().filter(|member| member.gang).map(|member| member.gpus.len() as u64);
        let gpus = sizes.max().unwrap_or(1);
        for (index, member) in members.iter().enumerate() {
            let id = VmId(index as u32 + 1);
            // The bound has six rounds of turns for each GPU, where each turn is as long as a gang
            // may gather. The bound also covers a VM of one GPU, which waits while a gang that
            // holds that GPU gathers the others. Six rounds are measured, not derived: in the worst
            // case so far, a gang of four GPUs waited 1.6 s, between four and six rounds.
            let round = turn * u64::from(weights) / u64::from(member.weight) + 2 * turn;
            let bound = gpus * 6 * round + members.len() as u64 * turn;
            let longest = sim.longest_wait(id.0);
            prop_assert!(longest <= bound, "{id}: {longest} > {bound} of {member:?}");
            prop_assert!(sim.completed(id.0) >= 3, "{id} runs: {member:?}");
        }
    }
}
