//! Ordered policies: no VM waits longer than the documented bound.

use vgpu_sched::{Aging, Class, MICROS, MILLIS, Policy, PoolConfig, VmConfig};

use super::mixtures::any_load;
use super::shares::{c_of, short_kernels};
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::{POOL, Setup};

pub(super) const PROOF: Proof = Proof {
    name: "aging",
    what: "longest wait under strict, sjf and fifo",
    part: 25,
    run,
};

static RATIO: Measure = Measure {
    name: "aging_wait_ratio_to_bound",
    what: "longest wait / (after + 2 steps + n·(C + switch)); fifo: / n·(C + switch)",
    unit: "ratio",
    rule: Rule::AtMost,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 7 << 40);
    let policy = rng.pick(&[Policy::Strict, Policy::Strict, Policy::Sjf, Policy::Fifo]);
    let aging = Aging {
        after_ns: rng.between(10, 500) * MILLIS,
        step_ns: rng.between(5, 500) * MILLIS,
    };
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let pool = PoolConfig {
        policy,
        aging: Some(aging),
        slice_ns: rng.pick(&[1, 2, 4]) * MILLIS,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let slice_ns = pool.slice_ns;
    let mut setup = Setup::new(plan.seed, switch_ns, pool);
    // In every second run, all VMs always have work; in the other runs they have any load.
    let backlogged = plan.seed.is_multiple_of(2);
    let n = rng.between(2, if backlogged { 12 } else { 24 });
    for index in 0..n {
        let class = if index == 0 {
            Class::Low
        } else {
            rng.pick(&Class::ALL)
        };
        let loads = if !backlogged {
            any_load(&mut rng, slice_ns)
        } else if rng.chance(200) {
            vec![Load::backlog(Length::Const(rng.between(1, 20) * MILLIS))]
        } else {
            vec![Load::backlog(short_kernels(&mut rng))]
        };
        setup.vm(VmConfig::new(POOL, class), loads);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let turns = n * (c_of(&world, slice_ns) + switch_ns);
    let bound = match policy {
        Policy::Fifo => turns,
        _ => aging.after_ns + 2 * aging.step_ns + turns,
    };
    for vm in 0..n as u32 {
        let wait = world.books.longest_wait(vm, world.now);
        world.note(|| format!("{policy:?}: VM {vm} waited {wait} of {bound} ns"));
        found.see(&RATIO, wait as f64 / bound as f64, 1.0);
    }
    found.close(&mut world);
    found
}
