//! Bounds of the policies besides shares: waits under `sjf`, interruption by VMs that wake up,
//! slices of single VMs, and changes while VMs run.

mod common;

use common::sim::{Conduct, Sim, backlog, bursts, load};
use common::{POOL, Rig, granted, revoked};
use proptest::prelude::*;
use proptest::test_runner::FileFailurePersistence;
use vgpu_sched::{
    Aging, Class, Event, MICROS, MILLIS, Policy, PoolConfig, SECONDS, SessionId, VmConfig, VmId,
};

const SWITCH: u64 = 60 * MICROS;

fn weighted(factor_milli: u32) -> VmConfig {
    VmConfig {
        factor_milli,
        ..VmConfig::new(POOL, Class::Low)
    }
}

#[test]
fn sjf_serves_the_short_before_the_long() {
    let mean_wait = |policy: Policy| {
        let config = PoolConfig {
            policy,
            slice_ns: 8 * MILLIS,
            ..PoolConfig::default()
        };
        let mut sim = Sim::new(config, SWITCH);
        for vm in 1..=4 {
            sim.add_vm(vm, Class::Medium);
            sim.start(vm, backlog(7 * MILLIS));
        }
        sim.add_vm(9, Class::Low);
        sim.start(9, bursts(200 * MICROS, 1, 20 * MILLIS));
        sim.run_until(4 * SECONDS);
        sim.sched().vm_stats(VmId(9)).unwrap().wait.mean_ns()
    };
    let (sjf, fifo) = (mean_wait(Policy::Sjf), mean_wait(Policy::Fifo));
    assert!(
        sjf <= 16 * MILLIS,
        "at most one turn of one other VM: {sjf}"
    );
    assert!(sjf * 3 < fifo, "sjf waits {sjf} ns, fifo {fifo} ns");
}

#[test]
fn false_short_predictions_gain_nothing() {
    let config = PoolConfig {
        policy: Policy::Sjf,
        ..PoolConfig::default()
    };
    let mut sim = Sim::new(config, SWITCH);
    for vm in [1, 2] {
        sim.add_vm(vm, Class::Medium);
    }
    let long = 6 * MILLIS;
    sim.start_as(1, bursts(long, 1, MILLIS), Conduct::Claims(1));
    sim.start(2, bursts(long, 1, MILLIS));
    sim.run_until(4 * SECONDS);
    let (liar, honest) = (sim.gpu_ns(1), sim.gpu_ns(2));
    assert!(
        liar.abs_diff(honest) <= 100 * MILLIS,
        "{liar} against {honest}"
    );
}

#[test]
fn a_high_vm_that_wakes_up_waits_for_the_least_run_not_for_the_slice() {
    let config = PoolConfig {
        slice_ns: 20 * MILLIS,
        ..PoolConfig::default()
    };
    let (kernel, least) = (300 * MICROS, config.min_run_ns);
    let mut sim = Sim::new(config, SWITCH);
    for vm in 1..=4 {
        sim.add_vm(vm, Class::Low);
        sim.start(vm, backlog(kernel));
    }
    sim.add_vm(9, Class::High);
    sim.start(9, bursts(200 * MICROS, 1, 7 * MILLIS));
    sim.run_until(4 * SECONDS);
    let wait = sim.sched().vm_stats(VmId(9)).unwrap().wait;
    assert!(wait.count() > 300);
    assert!(
        wait.quantile_ns(990) <= least + kernel + SWITCH,
        "{} at most {}",
        wait.quantile_ns(990),
        wait.max_ns()
    );
    assert!(wait.max_ns() <= 20 * MILLIS + kernel + SWITCH);
    sim.check_accounts();
    let lows: Vec<u64> = (1..=4).map(|vm| sim.gpu_ns(vm)).collect();
    let (least, most) = (lows.iter().min().unwrap(), lows.iter().max().unwrap());
    assert!(most - least <= 2 * (20 * MILLIS + kernel), "{lows:?}");
}

#[test]
fn nobody_is_interrupted_before_the_least_run_or_by_one_that_owes() {
    let mut rig = Rig::new(PoolConfig::default());
    for (vm, class) in [(1, Class::Low), (2, Class::High)] {
        rig.add_vm(vm, class);
        rig.add_session(u64::from(vm) * 10, vm);
    }
    let first = granted(&rig.runnable(10));
    rig.pass(100 * MICROS);
    assert_eq!(revoked(&rig.runnable(20)), None);
    assert_eq!(revoked(&rig.pass(399 * MICROS)), None);
    assert_eq!(revoked(&rig.pass(MICROS)), Some(10), "revoked after 500 µs");
    let second = granted(&rig.release(10, first.epoch, 1));
    assert_eq!(second.session, SessionId(20));
    // The VM takes more than its share, sleeps a moment and gets work again: with its debt it may
    // not interrupt the holder.
    rig.pass(10 * MILLIS);
    let holder = granted(&rig.release(20, second.epoch, 0));
    assert_eq!(holder.session, SessionId(10));
    rig.pass(100 * MICROS);
    assert_eq!(revoked(&rig.runnable(20)), None);
    assert_eq!(
        revoked(&rig.pass(1899 * MICROS)),
        None,
        "the holder keeps its whole slice"
    );
}

#[test]
fn a_shorter_slice_of_its_own_brings_shorter_waits_and_the_same_share() {
    let waits = |own: Option<u64>| {
        let config = PoolConfig {
            slice_ns: 4 * MILLIS,
            ..PoolConfig::default()
        };
        let mut sim = Sim::new(config, 20 * MICROS);
        for vm in 1..=4 {
            let slice_ns = own.filter(|_| vm == 1);
            sim.add_vm_with(
                vm,
                VmConfig {
                    slice_ns,
                    ..weighted(1000)
                },
            );
            sim.start(vm, backlog(50 * MICROS));
        }
        sim.run_until(8 * SECONDS);
        let got = sim.gpu_ns(1);
        assert!(got.abs_diff(2 * SECONDS) <= 20 * MILLIS, "{got}");
        sim.longest_wait(1)
    };
    let (usual, short) = (waits(None), waits(Some(MILLIS)));
    assert!(short * 2 <= usual, "{short} against {usual}");
}

#[derive(Debug, Clone)]
struct Tenant {
    kernel: u64,
    claims: Option<u64>,
    bursts: Option<(u64, u64)>,
}

fn tenants() -> impl Strategy<Value = Vec<Tenant>> {
    let bursts = proptest::option::of((1..9_u64, 100 * MICROS..20 * MILLIS));
    let claims = proptest::option::weighted(0.3, prop_oneof![Just(1), Just(u64::MAX)]);
    let tenant = (30 * MICROS..5 * MILLIS, claims, bursts);
    let tenant = tenant.prop_map(|(kernel, claims, bursts)| Tenant {
        kernel,
        claims,
        bursts,
    });
    proptest::collection::vec(tenant, 1..9)
}

#[derive(Debug, Clone)]
enum Change {
    Weight(u32),
    Slice(u64),
    OwnSlice(u64),
    Policy(Policy),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        (1..17_u32).prop_map(Change::Weight),
        (1..8_u64).prop_map(|ms| Change::Slice(ms * MILLIS)),
        (1..8_u64).prop_map(|ms| Change::OwnSlice(ms * MILLIS)),
        Just(Change::Policy(Policy::Fifo)),
        Just(Change::Policy(Policy::Strict)),
        Just(Change::Policy(Policy::Sjf)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 32,
        max_shrink_iters: 100,
        failure_persistence: Some(Box::new(FileFailurePersistence::Direct(
            "tests/policies.proptest-regressions",
        ))),
        ..ProptestConfig::default()
    })]

    /// `sjf`: no VM waits longer than the bound, regardless of the costs that workers claim.
    #[test]
    fn sjf_waits_are_bounded(tenants in tenants(), after in 1..100_u64) {
        let after_ns = after * MILLIS;
        let aging = Some(Aging { after_ns, step_ns: 0 });
        let config = PoolConfig { policy: Policy::Sjf, aging, ..PoolConfig::default() };
        let mut sim = Sim::new(config, SWITCH);
        for (index, tenant) in tenants.iter().enumerate() {
            let vm = index as u32 + 1;
            sim.add_vm(vm, Class::Medium);
            let conduct = tenant.claims.map_or(Conduct::Honest, Conduct::Claims);
            sim.start_as(vm, load(tenant.kernel, tenant.bursts), conduct);
        }
        sim.run_until(2 * SECONDS);
        sim.check_accounts();
        let turn = 2 * MILLIS + 5 * MILLIS + SWITCH;
        let bound = after_ns + tenants.len() as u64 * turn;
        for vm in 1..=tenants.len() as u32 {
            let wait = sim.longest_wait(vm);
            prop_assert!(wait <= bound, "vm {vm}: {wait} > {bound}");
        }
    }

    /// Lags of VMs that always have work stay within 2C, also with VMs' own slices and with
    /// interruptions.
    #[test]
    fn lags_are_within_two_c(
        weights in proptest::collection::vec(1..17_u32, 2..9),
        slices in proptest::collection::vec(proptest::option::of(1..5_u64), 9),
        kernel in 30 * MICROS..2 * MILLIS,
        sleeper in 1..50_u64,
    ) {
        let mut sim = Sim::new(PoolConfig::default(), SWITCH);
        for (index, &weight) in weights.iter().enumerate() {
            let vm = index as u32 + 1;
            let slice_ns = slices[index].map(|ms| ms * MILLIS);
            sim.add_vm_with(vm, VmConfig { slice_ns, ..weighted(weight * 1000) });
            sim.start(vm, backlog(kernel));
        }
        sim.add_vm_with(99, weighted(16_000));
        sim.start(99, bursts(100 * MICROS, 2, sleeper * MILLIS));
        let longest = slices.iter().flatten().max().map_or(2, |&ms| ms.max(2)) * MILLIS;
        let c = i128::from(longest + kernel + SWITCH);
        for step in 1..200 {
            sim.run_until(step * 5 * MILLIS);
            for vm in 1..=weights.len() as u32 {
                let lag = sim.sched().lag_ns(VmId(vm)).unwrap();

                prop_assert!(lag.abs() <= 2 * c, "vm {vm}: {lag}, C {c}");
            }
        }
    }

    /// A change takes effect when the running turn (by the new slices) and the work in flight have
    /// ended.
    #[test]
    fn changes_take_effect_within_one_slice(
        weights in proptest::collection::vec(1..17_u32, 2..6),
        kernel in 30 * MICROS..2 * MILLIS,
        at in 0..8_000_u64,
        change in change(),
    ) {
        let mut sim = Sim::new(PoolConfig { slice_ns: 8 * MILLIS, ..PoolConfig::default() }, SWITCH);
        for (index, &weight) in weights.iter().enumerate() {
            let vm = index as u32 + 1;
            sim.add_vm_with(vm, weighted(weight * 1000));
            sim.start(vm, backlog(kernel));
        }
        sim.run_until(200 * MILLIS + at * MICROS);
        let mut pool = PoolConfig { slice_ns: 8 * MILLIS, ..PoolConfig::default() };
        let mut own = weighted(weights[0] * 1000);
        match change {
            Change::Weight(weight) => own.factor_milli = weight * 1000,
            Change::Slice(slice_ns) => pool.slice_ns = slice_ns,
            Change::OwnSlice(slice_ns) => own.slice_ns = Some(slice_ns),
            Change::Policy(policy) => pool.policy = policy,
        }
        let slice = own.slice_ns.unwrap_or(0).max(pool.slice_ns);
        let (changed, turns) = (sim.world().now, sim.world().turns);
        sim.feed(Event::SetPool { pool: POOL, config: pool.clone() });
        sim.feed(Event::SetVm { vm: VmId(1), config: own.clone() });
        sim.run_until(changed + slice + kernel + SWITCH);
        // The running turn was ended or extended under the new rules. (It may have been revoked
        // just before the change; then the next turn runs under the new rules.)
        prop_assert!(sim.world().turns > turns, "no turn ended since {changed}");
        // The new weights apply from now on.
        if pool.policy == Policy::Weighted {
            let from: Vec<u64> = (1..=weights.len() as u32).map(|vm| sim.gpu_ns(vm)).collect();
            sim.run_for(SECONDS);
            let total: u64 = weights.iter().skip(1).map(|&w| u64::from(w) * 1000).sum::<u64>() + u64::from(own.factor_milli);
            for (index, &weight) in weights.iter().enumerate() {
                let weight = if index == 0 { u64::from(own.factor_milli) } else { u64::from(weight) * 1000 };
                let got = sim.gpu_ns(index as u32 + 1) - from[index];
                let error = got.abs_diff(SECONDS * weight / total);
                let c = 8 * MILLIS + kernel + SWITCH;
                prop_assert!(error <= 2 * c, "vm {}: {error} of a second, C {c}", index + 1);
            }
        }
    }
}
