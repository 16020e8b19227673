//! Shares of GPU time and longest waits: checks the documented bounds in the simulator.

mod common;

use common::sim::{Load, Sim, backlog, bursts};
use common::{GPU, POOL, Rig, most_in_window};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use vgpu_sched::{
    Aging, Cap, Class, Event, MICROS, MILLIS, Policy, PoolConfig, PoolId, Rate, SECONDS, SessionId,
    Usage, VmConfig, VmId, VmStats, WaitReason,
};

const SWITCH: u64 = 60 * MICROS;

fn pool() -> PoolConfig {
    PoolConfig::default()
}

/// A VM of the default pool in class low (weight 1) with this weight factor.
fn weighted_vm(factor_milli: u32) -> VmConfig {
    VmConfig {
        factor_milli,
        ..VmConfig::new(POOL, Class::Low)
    }
}

/// One VM per weight that always has work, with operations of these lengths in ns.
fn backlogged(weights: &[u32], kernels: &[u64], slice_ns: u64) -> Sim {
    let mut sim = Sim::new(PoolConfig { slice_ns, ..pool() }, SWITCH);
    for (index, (&weight, &kernel)) in weights.iter().zip(kernels.iter().cycle()).enumerate() {
        let vm = index as u32 + 1;
        sim.add_vm_with(vm, weighted_vm(weight * 1000));
        sim.start(vm, backlog(kernel));
    }
    sim
}

/// Largest error in ns of any VM's share over windows of length `window`. A window begins every
/// quarter of a window.
fn largest_error(sim: &mut Sim, weights: &[u32], window: u64, windows: u64) -> u64 {
    let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
    let mut samples = vec![];
    let begin = sim.world().now;
    for quarter in 0..=windows * 4 {
        sim.run_until(begin + quarter * window / 4);
        samples.push(
            (1..=weights.len() as u32)
                .map(|vm| sim.gpu_ns(vm))
                .collect::<Vec<_>>(),
        );
    }
    let mut worst = 0;
    for (from, to) in samples.iter().zip(samples.iter().skip(4)) {
        let charged: u64 = to.iter().zip(from).map(|(to, from)| to - from).sum();
        for (index, &weight) in weights.iter().enumerate() {
            let got = to[index] - from[index];
            worst = worst.max(got.abs_diff(charged * u64::from(weight) / total));
        }
    }
    worst
}

#[test]
fn shares_follow_weights_within_a_quarter_point_at_ten_seconds() {
    for (weights, kernels) in [
        (vec![1, 1], vec![500 * MICROS]),
        (vec![16, 1], vec![5 * MICROS, MILLIS]),
        (vec![16, 4, 1], vec![MILLIS, 300 * MICROS, 20 * MICROS]),
        (vec![3, 1, 4, 1, 5, 9, 2, 6], vec![700 * MICROS]),
    ] {
        let mut sim = backlogged(&weights, &kernels, 2 * MILLIS);
        sim.run_until(SECONDS);
        let error = largest_error(&mut sim, &weights, 10 * SECONDS, 1);
        let at_one = largest_error(&mut sim, &weights, SECONDS, 4);
        sim.check_accounts();
        assert!(
            error <= 10 * SECONDS / 400,
            "{weights:?}: {error} ns of 10 s"
        );
        assert!(at_one <= SECONDS / 100, "{weights:?}: {at_one} ns of 1 s");
    }
}

#[test]
fn long_kernels_of_one_vm_do_not_take_from_the_others() {
    let weights = [1, 1, 1];
    let mut sim = backlogged(
        &weights,
        &[18 * MILLIS, 100 * MICROS, 50 * MICROS],
        2 * MILLIS,
    );
    sim.run_until(SECONDS);
    let error = largest_error(&mut sim, &weights, 10 * SECONDS, 1);
    assert!(
        error <= 2 * 20 * MILLIS + MILLIS,
        "{error}: the bound is 2C"
    );
}

#[test]
fn many_sessions_bring_a_vm_nothing() {
    let mut sim = backlogged(&[1, 1], &[200 * MICROS], 2 * MILLIS);
    for _ in 0..20 {
        sim.start(1, backlog(200 * MICROS));
    }
    sim.run_until(5 * SECONDS);
    let (greedy, honest) = (sim.gpu_ns(1), sim.gpu_ns(2));
    assert!(
        greedy.abs_diff(honest) <= 10 * MILLIS,
        "greedy {greedy} ns, honest {honest} ns"
    );
}

#[test]
fn a_vm_that_sleeps_does_not_launder_its_debt() {
    // The VM runs 15 ms kernels in a slice of 2 ms and sleeps a little after each.
    let mut sim = Sim::new(
        PoolConfig {
            overrun_grace_ns: None,
            ..pool()
        },
        SWITCH,
    );
    for vm in [1, 2] {
        sim.add_vm(vm, Class::Medium);
    }
    sim.start(1, bursts(15 * MILLIS, 1, 300 * MICROS));
    sim.start(2, backlog(100 * MICROS));
    sim.run_until(10 * SECONDS);
    let (sleeper, honest) = (sim.gpu_ns(1), sim.gpu_ns(2));
    assert!(sleeper <= 5 * SECONDS + 50 * MILLIS, "{sleeper}");
    assert!(honest >= 5 * SECONDS - 50 * MILLIS, "{honest}");
}

#[test]
fn a_vm_that_wants_less_than_its_share_saves_up_no_monopoly() {
    let slice_ns = 3 * MILLIS;
    let mut sim = Sim::new(PoolConfig { slice_ns, ..pool() }, SWITCH);
    sim.add_vm_with(1, weighted_vm(1000));
    sim.add_vm_with(2, weighted_vm(8000));
    sim.start(1, backlog(1400 * MICROS));
    for _ in 0..3 {
        sim.start(2, bursts(400 * MICROS, 3, 3 * MILLIS));
    }
    sim.run_until(3 * SECONDS);
    let claim = sim.sched().lag_ns(VmId(2)).unwrap();
    assert!(
        claim <= i128::from(2 * slice_ns + slice_ns + 1400 * MICROS + SWITCH),
        "{claim}"
    );
}

#[test]
fn a_joiner_neither_gains_nor_loses() {
    let mut sim = backlogged(&[1, 1], &[300 * MICROS], 2 * MILLIS);
    sim.add_vm_with(9, weighted_vm(1000));
    let from_ns = 7 * SECONDS;
    sim.start(
        9,
        Load {
            from_ns,
            ..backlog(300 * MICROS)
        },
    );
    sim.run_until(from_ns - 1);
    let before = [sim.gpu_ns(1), sim.gpu_ns(2)];
    sim.run_until(10 * SECONDS);
    let got = [
        sim.gpu_ns(1) - before[0],
        sim.gpu_ns(2) - before[1],
        sim.gpu_ns(9),
    ];
    for time in got {
        assert!(time.abs_diff(SECONDS) <= 10 * MILLIS, "{got:?}");
    }
}

#[test]
fn new_weights_take_effect_at_once() {
    let mut sim = backlogged(&[1, 1], &[300 * MICROS], 2 * MILLIS);
    sim.run_until(SECONDS);
    sim.feed(Event::SetVm {
        vm: VmId(1),
        config: weighted_vm(4000),
    });
    let weights = [4, 1];
    let error = largest_error(&mut sim, &weights, SECONDS, 2);
    assert!(error <= 10 * MILLIS, "{error}");
    let class_weights = vgpu_sched::ClassWeights {
        weights: [7, 7, 7, 7],
    };
    sim.feed(Event::SetClassWeights {
        weights: class_weights,
    });
    assert!(
        largest_error(&mut sim, &weights, SECONDS, 1) <= 10 * MILLIS,
        "the ratio stays the same"
    );
}

#[test]
fn several_pools_share_a_gpu_by_pool_weight() {
    let mut sim = backlogged(&[1, 1, 1], &[300 * MICROS], 2 * MILLIS);
    let other = PoolId(2);
    sim.add_pool(PoolConfig {
        weight: 300,
        ..pool()
    });
    sim.add_vm_with(9, VmConfig::new(other, Class::Low));
    sim.start(9, backlog(300 * MICROS));
    sim.run_until(4 * SECONDS);
    let first: u64 = (1..=3).map(|vm| sim.gpu_ns(vm)).sum();
    assert!(
        first.abs_diff(SECONDS) <= 10 * MILLIS,
        "{first}: the pool of three has weight 100 of 400"
    );
    assert!(sim.gpu_ns(1).abs_diff(sim.gpu_ns(3)) <= 10 * MILLIS);
    sim.check_accounts();
}

#[test]
fn throughput_is_kept_and_an_idle_gpu_is_given_at_once() {
    let mut sim = backlogged(&[1, 1, 1, 1], &[250 * MICROS], 2 * MILLIS);
    sim.run_until(2 * SECONDS);
    let work = (1..=4).map(|vm| sim.completed(vm)).sum::<u64>() * 250 * MICROS;
    assert!(work >= 2 * SECONDS * 96 / 100, "{work} ns of work in 2 s");
    // One VM works 10 % of the time beside a VM that always has work: no GPU time is lost.
    let mut sim = Sim::new(pool(), SWITCH);
    sim.add_vm(1, Class::Critical);
    sim.add_vm(2, Class::Low);
    sim.start(1, bursts(MILLIS, 1, 9 * MILLIS));
    sim.start(2, backlog(200 * MICROS));
    sim.run_until(2 * SECONDS);
    let account = sim.sched().gpu_stats(GPU).unwrap().account;
    assert_eq!((account.idle_ns, account.switch_ns), (0, 0));
    let wait = sim.sched().vm_stats(VmId(1)).unwrap().wait;
    assert!(
        wait.max_ns() <= 2 * MILLIS + 200 * MICROS,
        "the bound is one slice and one kernel: {wait:?}"
    );
}

#[test]
fn several_gpus_serve_a_pool() {
    let mut sim = Sim::new(pool(), SWITCH);
    sim.gpus(2);
    for vm in 1..=4 {
        sim.add_vm(vm, Class::Medium);
        sim.start(vm, backlog(300 * MICROS));
    }
    sim.run_until(2 * SECONDS);
    for vm in 1..=4 {
        assert!(sim.gpu_ns(vm).abs_diff(SECONDS) <= 10 * MILLIS);
    }
    sim.check_accounts();
}

#[test]
fn strict_serves_the_higher_class_and_ages_the_lower() {
    let aging = Aging {
        after_ns: 100 * MILLIS,
        step_ns: 50 * MILLIS,
    };
    let config = PoolConfig {
        policy: Policy::Strict,
        aging: Some(aging),
        ..pool()
    };
    let mut sim = Sim::new(config, SWITCH);
    let n = 5;
    for vm in 1..=n {
        let class = if vm == 1 { Class::Low } else { Class::Critical };
        sim.add_vm(vm, class);
        sim.start(vm, backlog(300 * MICROS));
    }
    sim.run_until(5 * SECONDS);
    let wait = sim.sched().vm_stats(VmId(1)).unwrap().wait;
    // The bound: `after` plus two steps to the highest level, the running slice, then one slice of
    // each VM that has waited longer.
    let turn = 2 * MILLIS + 300 * MICROS + SWITCH;
    let bound = 100 * MILLIS + 2 * 50 * MILLIS + u64::from(n) * turn;
    assert!(wait.max_ns() <= bound, "{} > {bound}", wait.max_ns());
    assert!(
        wait.max_ns() >= 200 * MILLIS,
        "a low VM is not served like the others"
    );
    assert!(sim.gpu_ns(1) < SECONDS / 10);
}

#[test]
fn strict_interrupts_a_lower_class_before_its_slice_ends() {
    let config = PoolConfig {
        policy: Policy::Strict,
        slice_ns: 50 * MILLIS,
        ..pool()
    };
    let mut sim = Sim::new(config, SWITCH);
    sim.add_vm(1, Class::Low);
    sim.add_vm(2, Class::High);
    sim.start(1, backlog(300 * MICROS));
    sim.start(2, bursts(300 * MICROS, 3, 20 * MILLIS));
    sim.run_until(SECONDS);
    let wait = sim.sched().vm_stats(VmId(2)).unwrap().wait;
    assert!(wait.count() >= 30);
    assert!(
        wait.max_ns() <= 300 * MICROS + SWITCH,
        "the bound is one kernel: {}",
        wait.max_ns()
    );
}

#[test]
fn fifo_gives_equal_slices_whatever_the_class() {
    let config = PoolConfig {
        policy: Policy::Fifo,
        ..pool()
    };
    let mut sim = Sim::new(config, SWITCH);
    for (vm, class) in [(1, Class::Low), (2, Class::Critical), (3, Class::Medium)] {
        sim.add_vm(vm, class);
        sim.start(vm, backlog(500 * MICROS));
    }
    sim.run_until(3 * SECONDS);
    for vm in 1..=3 {
        assert!(sim.gpu_ns(vm).abs_diff(SECONDS) <= 10 * MILLIS);
        let wait = sim.sched().vm_stats(VmId(vm)).unwrap().wait.max_ns();
        assert!(wait <= 2 * (2 * MILLIS + 500 * MICROS + SWITCH), "{wait}");
    }
}

#[test]
fn the_policy_changes_while_vms_run() {
    let mut sim = backlogged(&[4, 1], &[300 * MICROS], 2 * MILLIS);
    for policy in [
        Policy::Fifo,
        Policy::Weighted,
        Policy::Strict,
        Policy::Weighted,
    ] {
        sim.run_for(500 * MILLIS);
        sim.feed(Event::SetPool {
            pool: POOL,
            config: PoolConfig { policy, ..pool() },
        });
    }
    sim.run_for(SECONDS);
    let error = largest_error(&mut sim, &[4, 1], SECONDS, 2);
    assert!(error <= 10 * MILLIS, "{error}");
    sim.check_accounts();
}

#[test]
fn a_hang_costs_the_neighbours_at_most_half_and_only_until_the_limit() {
    let config = PoolConfig {
        hard_limit_ns: Some(SECONDS),
        ..pool()
    };
    let mut sim = Sim::new(config, SWITCH);
    for vm in 1..=3 {
        sim.add_vm(vm, Class::Medium);
    }
    sim.start(
        1,
        Load {
            hangs_at: Some(100),
            ..backlog(300 * MICROS)
        },
    );
    sim.start(2, backlog(300 * MICROS));
    sim.start(3, backlog(300 * MICROS));
    sim.run_until(4 * SECONDS);
    let killed: Vec<u32> = sim
        .world()
        .kills
        .iter()
        .map(|&(_, session)| session)
        .collect();
    assert_eq!(killed, [0], "the session of VM 1");
    sim.check_accounts();
    let (a, b) = (sim.gpu_ns(2), sim.gpu_ns(3));
    assert!(a.abs_diff(b) <= 10 * MILLIS);
    assert!(a + b >= 3 * SECONDS + 400 * MILLIS, "{} ns", a + b);
}

#[test]
fn calls_per_second_hold_over_all_sessions_of_a_vm_and_hurt_nobody_else() {
    let mut sim = Sim::new(pool(), SWITCH);
    let mut config = VmConfig::new(POOL, Class::High);
    config.limits.calls = Some(Rate {
        per_second: 1000,
        burst: 50,
    });
    sim.add_vm_with(1, config);
    sim.add_vm(2, Class::Low);
    for _ in 0..4 {
        sim.start(1, backlog(20 * MICROS));
    }
    sim.start(2, backlog(200 * MICROS));
    sim.run_until(3 * SECONDS);
    let times = sim.submissions(1);
    for window in [10 * MILLIS, 100 * MILLIS, SECONDS] {
        let most = most_in_window(&times, window);
        let bound = 50 + 1000 * window / SECONDS + 4;
        assert!(most <= bound, "{most} calls in {window} ns, bound {bound}");
    }
    assert!(
        times.len() as u64 >= 2900,
        "the rate is not used: {}",
        times.len()
    );
    let stats = sim.sched().vm_stats(VmId(1)).unwrap();
    assert!(
        stats.throttled_ns > 2 * SECONDS && stats.rate_limited > 100,
        "{stats:?}"
    );
    assert!(sim.gpu_ns(2) > 2 * SECONDS);
}

#[test]
fn bytes_per_second_hold_and_a_large_copy_pays_afterwards() {
    let mut sim = Sim::new(pool(), SWITCH);
    let mut config = VmConfig::new(POOL, Class::High);
    config.limits.bytes = Some(Rate {
        per_second: 100_000_000,
        burst: 1_000_000,
    });
    sim.add_vm_with(1, config);
    let mut copies = backlog(MILLIS);
    copies.kinds[0].bytes = 16_000_000;
    sim.start(1, copies);
    sim.run_until(10 * SECONDS);
    let copies = sim.completed(1);
    let bytes = copies * 16_000_000;
    assert!(bytes <= 1_000_000 + 1_000_000_000 + 16_000_000, "{bytes}");
    assert!(bytes >= 960_000_000, "{bytes}");
}

/// A rig in which VM 1 may use 1,000 bytes per second, with a burst of 1,000 bytes.
fn with_1000_bytes_a_second() -> Rig {
    let mut rig = Rig::new(pool());
    let mut config = VmConfig::new(POOL, Class::High);
    config.limits.bytes = Some(Rate {
        per_second: 1_000,
        burst: 1_000,
    });
    rig.add_vm_with(1, config);
    rig
}

fn assert_held_for_4_s(stats: &VmStats) {
    let held = |until: u64| until >= 4 * SECONDS;
    assert!(
        matches!(stats.waiting, Some(WaitReason::RateLimit { cap: Cap::Bytes, until_ns }) if held(until_ns)),
        "{stats:?}"
    );
}

/// The VM pays for the use of a worker that died while it held a lease.
#[test]
fn use_of_a_dead_worker_beyond_its_credit_is_paid_for() {
    let mut rig = with_1000_bytes_a_second();
    rig.add_session(10, 1);
    rig.add_session(11, 1);
    rig.runnable(10);
    assert_eq!(rig.holders(GPU), [10]);
    rig.feed(Event::Used {
        session: SessionId(10),
        used: Usage {
            calls: 1,
            bytes: 5_000,
        },
    });
    rig.exited(10);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!(stats.rate_limited, 0, "no work waits for the limit");
    rig.runnable(11);
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!(stats.rate_limited, 1);
    assert_held_for_4_s(&stats);
}

#[test]
fn bytes_that_need_no_lease_are_counted_and_paid_for() {
    let mut rig = with_1000_bytes_a_second();
    rig.add_session(10, 1);
    let used = |bytes| Event::Used {
        session: SessionId(10),
        used: Usage { calls: 3, bytes },
    };
    rig.feed(used(1_000));
    rig.feed(used(5_000));
    rig.runnable(10);
    assert!(rig.holders(GPU).is_empty(), "the VM owes for the bytes");
    let stats = rig.sched.vm_stats(VmId(1)).unwrap();
    assert_eq!(
        (stats.calls, stats.bytes),
        (3, 5_000),
        "the totals include them"
    );
    assert_held_for_4_s(&stats);
}

#[test]
fn gpu_time_per_second_holds_even_for_a_lone_vm() {
    for kernel in [50 * MICROS, 5 * MILLIS] {
        let mut sim = Sim::new(pool(), SWITCH);
        let mut config = VmConfig::new(POOL, Class::High);
        let rate = Rate {
            per_second: 250 * MILLIS,
            burst: 10 * MILLIS,
        };
        config.limits.gpu_time = Some(rate);
        sim.add_vm_with(1, config);
        sim.start(1, backlog(kernel));
        sim.start(1, backlog(kernel));
        sim.run_until(4 * SECONDS);
        let used = sim.gpu_ns(1);
        assert!(used <= SECONDS + 10 * MILLIS + kernel + SWITCH, "{used}");
        assert!(used >= SECONDS - 10 * MILLIS, "{used}");
        sim.check_accounts();
    }
}

#[test]
fn a_limit_set_while_running_takes_effect() {
    let mut sim = backlogged(&[1], &[50 * MICROS], 2 * MILLIS);
    sim.run_until(SECONDS);
    let before = sim.world().operations;
    let mut config = weighted_vm(1000);
    config.limits.calls = Some(Rate {
        per_second: 100,
        burst: 10,
    });
    sim.feed(Event::SetVm {
        vm: VmId(1),
        config,
    });
    sim.run_until(3 * SECONDS);
    let calls = sim.world().operations - before;
    assert!((200..=212).contains(&calls), "{calls} calls");
    sim.feed(Event::SetVm {
        vm: VmId(1),
        config: weighted_vm(1000),
    });
    let before = sim.world().operations;
    sim.run_until(4 * SECONDS);
    assert!(sim.world().operations - before > 15_000);
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        max_shrink_iters: 100,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/shares.proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    /// VMs that always have work: the error of the shares is at most 2C in any window.
    #[test]
    fn backlogged_shares_are_within_two_c(
        weights in proptest::collection::vec(1..17_u32, 2..9),
        kernel in 30 * MICROS..3 * MILLIS,
    ) {
        let mut sim = backlogged(&weights, &[kernel], 2 * MILLIS);
        sim.run_until(100 * MILLIS);
        let error = largest_error(&mut sim, &weights, 500 * MILLIS, 2);
        let c = 2 * MILLIS + kernel + SWITCH;
        prop_assert!(error <= 2 * c, "{error} > 2 × {c}");
    }

    /// `strict`: no VM waits longer than the documented bound.
    #[test]
    fn strict_waits_are_bounded(
        classes in proptest::collection::vec(0..4_usize, 1..9),
        kernel in 30 * MICROS..2 * MILLIS,
        after in 1..100_u64,
        step in 1..50_u64,
    ) {
        let aging = Aging { after_ns: after * MILLIS, step_ns: step * MILLIS };
        let config = PoolConfig { policy: Policy::Strict, aging: Some(aging), ..pool() };
        let mut sim = Sim::new(config, SWITCH);
        for (index, &class) in classes.iter().enumerate() {
            let vm = index as u32 + 1;
            sim.add_vm(vm, Class::ALL[class]);
            sim.start(vm, backlog(kernel));
        }
        sim.run_until(2 * SECONDS);
        let turn = 2 * MILLIS + kernel + SWITCH;
        let bound = aging.after_ns + 2 * aging.step_ns + classes.len() as u64 * turn;
        for vm in 1..=classes.len() as u32 {
            let wait = sim.sched().vm_stats(VmId(vm)).unwrap().wait.max_ns();
            prop_assert!(wait <= bound, "vm {vm}: {wait} > {bound}");
        }
        sim.check_accounts();
    }
}
