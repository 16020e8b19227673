//! Tests which sessions run beside overrunners, and how long two overrunners can keep a third VM
//! from the GPU.

mod common;

use common::sim::{Sim, backlog, bursts};
use common::{GPU, Rig, granted};
use vgpu_sched::{Action, Class, Event, MICROS, MILLIS, PoolConfig, SECONDS, SessionId, VmId};

/// A GPU on which contexts run almost as if at the same time, each at half the speed.
fn shared(pool: PoolConfig) -> Sim {
    let mut sim = Sim::new(pool, 0);
    sim.turns_of(50 * MICROS);
    sim
}

#[test]
fn two_that_overrun_do_not_lock_the_others_out() {
    let mut sim = shared(PoolConfig::default());
    for vm in 1..=5 {
        sim.add_vm(vm, Class::Medium);
    }
    for vm in [1, 2, 3] {
        sim.start(vm, backlog(400 * MILLIS));
    }
    for vm in [4, 5] {
        sim.start(vm, backlog(200 * MICROS));
    }
    // Each of the three VMs may overrun once before its overruns count.
    sim.run_until(3 * SECONDS);
    sim.check_accounts();
    sim.feed(Event::ResetStats { vm: None });
    let begin = sim.world().overruns.len();
    sim.run_until(13 * SECONDS);
    let honest = sim.gpu_ns(4) + sim.gpu_ns(5);
    assert!(honest >= 4 * SECONDS - 100 * MILLIS, "{honest} of 10 s");
    let longest = sim.longest_wait(4).max(sim.longest_wait(5));
    // An honest VM that got more than its share beside an overrunner (half of the time instead of
    // two fifths) gives way to the next VM. The older kernel then blocks the honest VM: in turns
    // with the next VM's kernel, the older kernel takes twice its time.
    let block = 2 * 400 * MILLIS;
    assert!(longest <= block, "{longest}");
    assert!(sim.world().overruns.len() > begin + 10);
    let account = sim.sched().gpu_stats(GPU).unwrap().account;
    let by_vm: u64 = (1..=5).map(|vm| sim.gpu_ns(vm)).sum();
    assert_eq!(account.charged_ns, by_vm);
    assert_eq!(by_vm + account.idle_ns + account.switch_ns, 10 * SECONDS);
}

#[test]
fn one_that_overran_waits_for_the_end_of_another_overrun_and_is_let_in_later() {
    let mut rig = Rig::new(PoolConfig::default());
    for vm in [1, 2, 3] {
        rig.add_vm(vm, Class::Medium);
        rig.add_session(u64::from(vm) * 10, vm);
    }
    let overrun = |rig: &mut Rig, session: u64| {
        rig.progress(session, 1, 0);
        let declared = |a: &Action| matches!(a, Action::Overrun { .. });
        let mut actions = vec![];
        while !actions.iter().any(declared) {
            actions = rig.pass(MILLIS);
            assert!(rig.now < SECONDS, "no overrun");
        }
        actions
    };
    let first = granted(&rig.runnable(10));
    rig.runnable(20);
    let beside = granted(
        &overrun(&mut rig, 10)[..]
            .iter()
            .rev()
            .take(1)
            .cloned()
            .collect::<Vec<_>>(),
    );
    assert_eq!(beside.session, SessionId(20));
    granted(
        &[
            rig.release(10, first.epoch, 1),
            rig.release(20, beside.epoch, 0),
        ]
        .concat(),
    );
    // VM 1 overran. Now VM 2 overruns: VM 1 may not run beside VM 2, but VM 3 may.
    let holder = rig.holders(GPU);
    assert_eq!(holder, [10]);
    let epoch = rig.sched.gpu_stats(GPU).unwrap().holders[0].2;
    rig.runnable(20);
    rig.pass(2 * MILLIS);
    granted(&rig.release(10, epoch, 1));
    rig.runnable(30);
    overrun(&mut rig, 20);
    assert_eq!(rig.holders(GPU), [20, 30], "not beside each other");
    // The contended limit still kills the overrunner.
    let actions = rig.pass(10 * SECONDS);
    let killed = |a: &Action| {
        matches!(
            a,
            Action::Kill {
                session: SessionId(20),
                ..
            }
        )
    };
    assert!(actions.iter().any(killed), "{actions:?}");
}

/// Without others, VM 3 asks for 0.2 ms every 5.2 ms. When an overrun begins, VM 3 waits for slice
/// and grace. Because it seldom has work, it is seldom waiting when an overrun of VM 1 or VM 2
/// ends.
#[test]
fn two_that_overrun_do_not_lock_out_one_that_pauses() {
    let cases = [
        (9 * SECONDS, 15_000),
        (SECONDS, 15_000),
        (200 * MILLIS, 12_000),
        (30 * MILLIS, 5_000),
    ];
    for (kernel, least) in cases {
        let config = PoolConfig {
            soft_limit_ns: None,
            // Two kernels that run in turns take twice as long.
            hard_limit_ns: None,
            contended_limit_ns: 20 * SECONDS,
            ..PoolConfig::default()
        };
        let mut sim = shared(config);
        for vm in 1..=3 {
            sim.add_vm(vm, Class::Medium);
        }
        for vm in [1, 2] {
            sim.start(vm, backlog(kernel));
        }
        sim.start(3, bursts(200 * MICROS, 1, 5 * MILLIS));
        // Both VMs may overrun once before their overruns count.
        let surprised = 3 * kernel.max(SECONDS);
        sim.run_until(surprised);
        sim.feed(Event::ResetStats { vm: None });
        let before = sim.completed(3);
        sim.run_until(surprised + 100 * SECONDS);
        let served = sim.completed(3) - before;
        assert!(served >= least, "{kernel}: {served} requests in 100 s");
        // An overrun is declared after slice and grace. Before that, VM 3 gives back the time that
        // it got beside the previous overrunner (with the hold of its worker), for which the next
        // overrunner had to wait.
        let longest = sim.longest_wait(3);
        assert!(
            longest <= kernel / 7 + 25 * MILLIS,
            "{kernel}: waited {longest}"
        );
        for vm in [1, 2] {
            assert!(
                sim.gpu_ns(vm) > 39 * SECONDS,
                "{kernel}: VM {vm} has {} ns",
                sim.gpu_ns(vm)
            );
        }
    }
}

/// Completions in one stream do not show that the operation that blocks the GPU in another stream
/// makes progress.
#[test]
fn completions_beside_what_overruns_do_not_avoid_the_soft_limit() {
    let mut rig = Rig::new(PoolConfig::default());
    for vm in [1, 2] {
        rig.add_vm(vm, Class::Medium);
        rig.add_session(u64::from(vm) * 10, vm);
    }
    granted(&rig.runnable(10));
    rig.progress(10, 1, 0);
    rig.runnable(20);
    let mut actions = vec![];
    for small in 1..=45 {
        actions.extend(rig.pass(200 * MILLIS));
        rig.progress(10, 1 + small, small);
    }
    let soft = |a: &&Action| matches!(a, Action::SoftLimit { .. });
    assert_eq!(
        actions.iter().filter(soft).count(),
        1,
        "the soft limit is passed once in 9 s: {actions:?}"
    );
    assert_eq!(rig.sched.vm_stats(VmId(1)).unwrap().strikes, 1);
}
