//! VMs that use several GPUs at the same time, together with VMs on one GPU: no deadlock.

use std::collections::BTreeSet;

use vgpu_sched::{GpuId, MICROS, MILLIS, PoolConfig, VmConfig};

use super::shares::{c_of, short_kernels};
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::{Setup, weighted};

pub(super) const PROOF: Proof = Proof {
    name: "gang",
    what: "VMs on several GPUs at once run on all or none, and no VM waits forever",
    part: 12,
    run,
};

static WAIT: Measure = Measure {
    name: "gang_wait_s_max",
    what: "longest wait of a VM among gangs that share GPUs (infinite in a deadlock)",
    unit: "s",
    rule: Rule::AtMost,
};
static WAIT_RATIO: Measure = Measure {
    name: "gang_wait_ratio",
    what: "the same / (GPUs × (C·Σw/w_i·(1 + switch/slice) + 2C))",
    unit: "ratio",
    rule: Rule::Told,
};
static SERVED: Measure = Measure {
    name: "gang_operations_min",
    what: "operations per second of the least served VM",
    unit: "1/s",
    rule: Rule::AtLeast,
};

/// Random draws from `salt`, and a setup of one pool with 2 to `most` equal GPUs.
pub(super) fn on_gpus(plan: Plan, salt: u64, most: u64) -> (Rng, Setup) {
    let mut rng = Rng::part(plan.seed, salt);
    let pool = PoolConfig {
        slice_ns: rng.pick(&[1, 2, 4]) * MILLIS,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let mut setup = Setup::new(plan.seed, switch_ns, pool);
    let gpus = rng.between(2, most);
    setup.gpus = vec![setup.gpus[0]; gpus as usize];
    setup.pools[0].1 = (0..gpus as u32).collect();
    (rng, setup)
}

/// Random GPUs of a VM: one, or at least two for a gang.
pub(super) fn seats(rng: &mut Rng, gpus: u64, gang: bool) -> BTreeSet<GpuId> {
    let mut mine = BTreeSet::new();
    while mine.len() < if gang { 2 } else { 1 } || gang && rng.chance(300) {
        mine.insert(GpuId(rng.below(gpus) as u32));
    }
    mine
}

fn run(plan: Plan) -> Found {
    let (mut rng, mut setup) = on_gpus(plan, 15 << 40, 4);
    let (slice_ns, switch_ns) = (setup.pools[0].0.slice_ns, setup.gpus[0].switch_ns);
    let gpus = setup.gpus.len() as u64;
    let mut weights = Vec::new();
    for index in 0..rng.between(3, 8) {
        let weight = rng.between(1, 8) as u32;
        // The first two VMs are gangs, which usually share GPUs.
        let gang = index < 2 || rng.chance(400);
        let mine = seats(&mut rng, gpus, gang);
        weights.push((u64::from(weight), mine.clone()));
        let load = if rng.chance(700) {
            Load::backlog(short_kernels(&mut rng))
        } else {
            let pause = Length::Exp(rng.between(50, 5000) * MICROS);
            Load::looping(rng.between(1, 20), short_kernels(&mut rng), pause)
        };
        let config = VmConfig {
            gang,
            gpus: Some(mine),
            ..weighted(weight)
        };
        setup.vm(config, vec![load]);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let c = c_of(&world, slice_ns) as f64;
    for (vm, (weight, mine)) in weights.iter().enumerate() {
        let meets = |other: &&(u64, BTreeSet<GpuId>)| !other.1.is_disjoint(mine);
        let all: u64 = weights.iter().filter(meets).map(|(w, _)| w).sum();
        let switching = 1.0 + switch_ns as f64 / slice_ns as f64;
        let own = c * all as f64 / *weight as f64 * switching + 2.0 * c;
        // A gang waits for each further GPU while it reserves the earlier GPUs.
        let bound = own * gpus as f64;
        let wait = world.books.longest_wait(vm as u32, world.now) as f64;
        world.note(|| format!("VM {vm} of {mine:?} waited {wait} of {bound} ns"));
        found.see(&WAIT, wait / 1e9, 2.0);
        found.tell(&WAIT_RATIO, wait / bound);
        let rate = world.completed(vm as u32) as f64 * 1e9 / world.now as f64;
        found.see(&SERVED, rate, 1.0);
    }
    found.close(&mut world);
    found
}
