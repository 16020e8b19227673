//! Several pools on one GPU, and several GPUs in a pool.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, PoolId, SECONDS, VmConfig};

use super::gang::on_gpus;
use super::shares::{WARM_NS, c_of, short_kernels};
use super::{Plan, Proof};
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::measure::{Share, share_error};
use crate::rng::Rng;
use crate::setup::{Setup, weighted};

pub(super) const PROOF: Proof = Proof {
    name: "topology",
    what: "shares with several pools on a GPU (two tree levels) and several GPUs in a pool",
    part: 20,
    run,
};

static POOLS: Measure = Measure {
    name: "pools_error_ratio_to_bound",
    what: "share error of pools / 2C, and of VMs in pools / 4C (two levels), any 0.1, 1 and 10 s",
    unit: "ratio",
    rule: Rule::AtMost,
};
static GPUS: Measure = Measure {
    name: "gpus_error_ratio_to_bound",
    what: "share error of VMs on their GPUs / 2C, several GPUs in a pool",
    unit: "ratio",
    rule: Rule::AtMost,
};
static PLACEMENT: Measure = Measure {
    name: "placement_imbalance_max",
    what: "weights on the fullest GPU minus weights on the emptiest / the largest weight",
    unit: "ratio",
    rule: Rule::AtMost,
};

const WINDOWS: [u64; 3] = [SECONDS / 10, SECONDS, 10 * SECONDS];

fn run(plan: Plan) -> Found {
    if plan.seed.is_multiple_of(2) {
        pools(plan)
    } else {
        gpus(plan)
    }
}

fn pools(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 11 << 40);
    let slice_ns = rng.pick(&[1, 2, 4]) * MILLIS;
    let config = |weight| PoolConfig {
        slice_ns,
        weight,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, rng.pick(&[20, 60, 150]) * MICROS, config(100));
    setup.pools.clear();
    let mut members = Vec::new();
    for pool in 0..rng.between(2, 4) as u32 {
        let weight = rng.between(1, 16) as u32 * 100;
        setup.pools.push((config(weight), vec![0]));
        for _ in 0..rng.between(1, 6) {
            let own = rng.between(1, 16) as u32;
            let vm = VmConfig {
                pool: PoolId(pool),
                ..weighted(own)
            };
            setup.vm(vm, vec![Load::backlog(short_kernels(&mut rng))]);
            members.push((pool, u64::from(weight), u64::from(own)));
        }
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let c = c_of(&world, slice_ns);
    let all_pools: u64 = setup.pools.iter().map(|(p, _)| u64::from(p.weight)).sum();
    for (vm, &(pool, weight, own)) in members.iter().enumerate() {
        let mates = members.iter().filter(|(other, ..)| *other == pool);
        let in_pool: u64 = mates.map(|(_, _, own)| own).sum();
        let share = Share {
            of: weight * own,
            all: all_pools * in_pool,
        };
        let (track, total) = (&world.books.vms[vm].track, &world.books.gpus[0].track);
        for window in WINDOWS {
            let (less, more) = share_error(track, total, share, window, (WARM_NS, world.now));
            found.see(&POOLS, less.max(more) as f64 / (4 * c) as f64, 1.0);
        }
    }
    found.close(&mut world);
    found
}

fn gpus(plan: Plan) -> Found {
    let (mut rng, mut setup) = on_gpus(plan, 12 << 40, 8);
    let slice_ns = setup.pools[0].0.slice_ns;
    let count = setup.gpus.len() as u32;
    let mut weights = Vec::new();
    for _ in 0..rng.between(u64::from(count), 24) {
        let weight = rng.between(1, 16);
        weights.push(weight);
        let load = Load::backlog(short_kernels(&mut rng));
        setup.weighted(weight as u32, load);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let bound = 2 * c_of(&world, slice_ns);
    let placed = |vm: usize| world.gpu_of(vm as u32);
    let loads: Vec<u64> = (0..count)
        .map(|gpu| {
            let here = (0..weights.len()).filter(|&vm| placed(vm) == gpu);
            here.map(|vm| weights[vm]).sum()
        })
        .collect();
    for (vm, &of) in weights.iter().enumerate() {
        let gpu = placed(vm) as usize;
        let share = Share {
            of,
            all: loads[gpu],
        };
        let (track, total) = (&world.books.vms[vm].track, &world.books.gpus[gpu].track);
        for window in WINDOWS {
            let (less, more) = share_error(track, total, share, window, (WARM_NS, world.now));
            found.see(&GPUS, less.max(more) as f64 / bound as f64, 1.0);
        }
    }
    let (most, least) = (loads.iter().max(), loads.iter().min());
    let largest = weights.iter().max().copied().unwrap_or(1);
    let apart = most.copied().unwrap_or(0) - least.copied().unwrap_or(0);
    found.see(&PLACEMENT, apart as f64 / largest as f64, 1.0);
    found.close(&mut world);
    found
}
