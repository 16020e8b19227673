//! Properties of the scheduler for random mixtures of tenants: accounting, lag bound, bounded wait,
//! work conservation, cap bound, live change. (After every step, the simulator also checks that
//! each GPU has one holder and that no GPU idles while a session could run.)

mod common;

use common::sim::{Sim, backlog, load};
use common::{POOL, most_in_window};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use vgpu_sched::{Class, Event, MICROS, MILLIS, PoolConfig, Rate, SECONDS, VmConfig, VmId};

/// One VM and its load.
#[derive(Debug, Clone)]
struct Tenant {
    weight: u32,
    kernel: u64,
    sessions: u64,
    bursts: Option<(u64, u64)>,
}

fn tenants(most: usize) -> impl Strategy<Value = Vec<Tenant>> {
    let bursts = proptest::option::of((1..20_u64, 10 * MICROS..20 * MILLIS));
    let tenant = (1..17_u32, 30 * MICROS..3 * MILLIS, 1..4_u64, bursts).prop_map(
        |(weight, kernel, sessions, bursts)| Tenant {
            weight,
            kernel,
            sessions,
            bursts,
        },
    );
    proptest::collection::vec(tenant, 1..most)
}

fn weighted(weight: u32) -> VmConfig {
    VmConfig {
        factor_milli: weight * 1000,
        ..VmConfig::new(POOL, Class::Low)
    }
}

fn id(index: usize) -> u32 {
    index as u32 + 1
}

/// Starts all tenants on one GPU.
fn simulate(tenants: &[Tenant], slice_ns: u64, switch: u64) -> Sim {
    let pool = PoolConfig {
        slice_ns,
        ..PoolConfig::default()
    };
    let mut sim = Sim::new(pool, switch);
    for (index, tenant) in tenants.iter().enumerate() {
        sim.add_vm_with(id(index), weighted(tenant.weight));
        for _ in 0..tenant.sessions {
            sim.start(id(index), load(tenant.kernel, tenant.bursts));
        }
    }
    sim
}

/// Longest turn: slice, longest kernel and switch.
fn turn(tenants: &[Tenant], slice_ns: u64, switch: u64) -> u64 {
    let longest = tenants.iter().map(|tenant| tenant.kernel).max();
    slice_ns + longest.unwrap_or(0) + switch
}

fn movers(tenants: &[Tenant]) -> u64 {
    tenants.iter().filter(|t| t.bursts.is_some()).count() as u64
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 24,
        max_shrink_iters: 100,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/properties.proptest-regressions",
        ))),
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn conservation(
        tenants in tenants(9),
        slice in 1..4_u64,
        switch in 20 * MICROS..150 * MICROS,
        looks in proptest::collection::vec(1..50 * MILLIS, 1..10),
    ) {
        let mut sim = simulate(&tenants, slice * MILLIS, switch);
        for look in looks {
            sim.run_for(look);
            sim.check_accounts();
            let sessions = 0..tenants.iter().map(|t| t.sessions).sum();
            let by_session: u64 = sessions
                .map(|s: u64| sim.sched().session_stats(s.into()).map_or(0, |stats| stats.gpu_ns))
                .sum();
            let by_vm: u64 = (0..tenants.len()).map(|index| sim.gpu_ns(id(index))).sum();
            prop_assert_eq!(by_session, by_vm);
        }
    }

    /// Lags are bounded, and the lags of competing VMs add up to zero.
    #[test]
    fn lag_bound(
        tenants in tenants(9),
        slice in 1..4_u64,
        switch in 20 * MICROS..150 * MICROS,
    ) {
        let slice_ns = slice * MILLIS;
        let mut sim = simulate(&tenants, slice_ns, switch);
        let bound = u128::from((2 + movers(&tenants)) * turn(&tenants, slice_ns, switch)) + 1;
        for step in 1..20 {
            sim.run_until(step * 37 * MILLIS);
            let lags: Vec<i128> = (0..tenants.len())
                .map(|index| sim.sched().lag_ns(VmId(id(index))).unwrap_or(i128::MAX))
                .collect();
            for (index, lag) in lags.iter().enumerate() {
                prop_assert!(lag.unsigned_abs() <= bound, "vm {}: lag {lag}, bound {bound}", id(index));
            }
            if movers(&tenants) == 0 && tenants.len() > 1 {
                let sum: i128 = lags.iter().sum();
                prop_assert!(sum.abs() <= 2 + tenants.len() as i128, "lags add up to {sum}");
            }
        }
    }

    #[test]
    fn bounded_wait(
        tenants in tenants(9),
        slice in 1..4_u64,
        switch in 20 * MICROS..150 * MICROS,
    ) {
        let slice_ns = slice * MILLIS;
        let mut sim = simulate(&tenants, slice_ns, switch);
        sim.run_until(SECONDS);
        let c = turn(&tenants, slice_ns, switch);
        let total: u64 = tenants.iter().map(|tenant| u64::from(tenant.weight)).sum();
        for (index, tenant) in tenants.iter().enumerate() {
            let turns = c * total / u64::from(tenant.weight) * tenant.sessions;
            let bound = turns + turns * switch / slice_ns + (2 + movers(&tenants)) * c;
            let wait = sim.sched().vm_stats(VmId(id(index))).map_or(0, |s| s.wait.max_ns());
            prop_assert!(wait <= bound, "vm {}: waited {wait}, bound {bound}", id(index));
        }
    }

    /// While one VM always has work, the GPU is never idle, regardless of the other VMs.
    #[test]
    fn work_conservation(
        tenants in tenants(8),
        slice in 1..4_u64,
        switch in 20 * MICROS..150 * MICROS,
    ) {
        let mut sim = simulate(&tenants, slice * MILLIS, switch);
        let greedy = id(tenants.len());
        sim.add_vm_with(greedy, weighted(1));
        sim.start(greedy, backlog(200 * MICROS));
        sim.run_until(SECONDS);
        let account = sim.sched().gpu_stats(common::GPU).map(|stats| stats.account);
        let account = account.unwrap_or_default();
        prop_assert_eq!((account.idle_ns, account.switch_ns), (0, 0));
    }

    /// In any window, all sessions of a VM together make at most burst + rate × window calls, plus
    /// one operation per session. They use up the rate if they have enough work.
    #[test]
    fn cap_bound(
        per_second in 100..3_000_u64,
        burst in 1..200_u64,
        sessions in 1..5_u64,
        kernel in 20 * MICROS..200 * MICROS,
        rival in any::<bool>(),
    ) {
        let mut sim = Sim::new(PoolConfig::default(), 50 * MICROS);
        let mut config = weighted(4);
        config.limits.calls = Some(Rate { per_second, burst });
        sim.add_vm_with(1, config);
        for _ in 0..sessions {
            sim.start(1, backlog(kernel));
        }
        if rival {
            sim.add_vm_with(2, weighted(1));
            sim.start(2, backlog(300 * MICROS));
        }
        sim.run_until(2 * SECONDS);
        let times = sim.submissions(1);
        for window in [10 * MILLIS, 100 * MILLIS, SECONDS] {
            let most = most_in_window(&times, window);
            let bound = burst + per_second * window / SECONDS + 1 + sessions;
            prop_assert!(most <= bound, "{most} calls in {window} ns, bound {bound}");
        }
        // A full bucket earns nothing: the rate can be used up only if the burst holds at least 10
        // ms of the rate.
        if burst * 100 >= per_second {
            let could = per_second.min(SECONDS / (2 * (kernel + 100 * MICROS)));
            let batch = per_second / 200 + sessions + 1;
            let least = (2 * could).saturating_sub(2 * batch) * 9 / 10;
            prop_assert!(times.len() as u64 >= least, "{} calls, {least} could be made", times.len());
        }
    }

    /// New weights and a new slice apply from the next turn on, and all lags stay.
    #[test]
    fn live_change(
        weights in proptest::collection::vec((1..17_u32, 1..17_u32), 2..6),
        slice in 1..4_u64,
        kernel in 30 * MICROS..MILLIS,
    ) {
        let tenants: Vec<Tenant> = weights
            .iter()
            .map(|&(weight, _)| Tenant { weight, kernel, sessions: 1, bursts: None })
            .collect();
        let mut sim = simulate(&tenants, 2 * MILLIS, 50 * MICROS);
        sim.run_until(300 * MILLIS);
        let before: Vec<i128> = lags(&sim, weights.len());
        for (index, &(_, weight)) in weights.iter().enumerate() {
            sim.feed(Event::SetVm { vm: VmId(id(index)), config: weighted(weight) });
        }
        for (before, after) in before.iter().zip(lags(&sim, weights.len())) {
            prop_assert!((before - after).abs() <= 100, "lag {before} became {after}");
        }
        let slice_ns = slice * MILLIS;
        let pool = PoolConfig { slice_ns, ..PoolConfig::default() };
        sim.feed(Event::SetPool { pool: POOL, config: pool });
        prop_assert_eq!(&sim.world().kills, &[]);
        let begin: Vec<u64> = (0..weights.len()).map(|index| sim.gpu_ns(id(index))).collect();
        sim.run_until(800 * MILLIS);
        let total: u64 = weights.iter().map(|&(_, weight)| u64::from(weight)).sum();
        let got: Vec<u64> = begin.iter().enumerate().map(|(i, b)| sim.gpu_ns(id(i)) - b).collect();
        let all: u64 = got.iter().sum();
        let c = slice_ns.max(2 * MILLIS) + kernel + 50 * MICROS;
        for (got, (_, weight)) in got.iter().zip(&weights) {
            let due = all * u64::from(*weight) / total;
            prop_assert!(got.abs_diff(due) <= 4 * c, "{got} ns, due {due} ± {}", 4 * c);
        }
    }
}

fn lags(sim: &Sim, vms: usize) -> Vec<i128> {
    (0..vms)
        .filter_map(|index| sim.sched().lag_ns(VmId(id(index))))
        .collect()
}
