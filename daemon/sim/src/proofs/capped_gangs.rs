//! A gang keeps its limit of GPU time, both while it gathers its GPUs and while it runs.

use vgpu_sched::{MICROS, MILLIS, Rate, VmConfig};

use super::caps::excess;
use super::gang::{on_gpus, seats};
use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::setup::weighted;
use crate::world::World;

pub(super) const PROOF: Proof = Proof {
    name: "capped-gangs",
    what: "a VM on several GPUs keeps its GPU-ms/s limit over all of them, and still runs",
    part: 8,
    run,
};

static EXCESS: Measure = Measure {
    name: "cap_gang_ratio_to_bound",
    what: "time charged to a gang beyond its rate in any window / (the larger of burst and twice a gathering + slices, + work in flight + messages on each GPU)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static STRICT: Measure = Measure {
    name: "cap_gang_strict_ratio",
    what: "the same of gangs whose burst was always enough for gathering and a slice on each GPU / (burst + work in flight + messages on each GPU)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static SERVED: Measure = Measure {
    name: "capped_gang_operations_min",
    what: "operations per second of the least served capped gang",
    unit: "1/s",
    rule: Rule::AtLeast,
};
static USED: Measure = Measure {
    name: "capped_gang_used_min",
    what: "part of its rate that a capped gang got, with other VMs on its GPUs",
    unit: "ratio",
    rule: Rule::Told,
};

/// A gang with a limit of GPU time.
#[derive(Debug)]
struct Gang {
    vm: u32,
    gpus: u64,
    rate: Rate,
}

fn run(plan: Plan) -> Found {
    let (mut rng, mut setup) = on_gpus(plan, 21 << 40, 4);
    let slice_ns = setup.pools[0].0.slice_ns;
    let gpus = setup.gpus.len() as u64;
    let mut gangs = Vec::new();
    for index in 0..rng.between(2, 6) {
        let gang = index == 0 || rng.chance(500);
        let mine = seats(&mut rng, gpus, gang);
        let mut config = VmConfig {
            gang,
            gpus: Some(mine.clone()),
            ..weighted(rng.between(1, 8) as u32)
        };
        let wide = mine.len() as u64;
        if gang {
            // The burst of every third gang is smaller than the cost of gathering its GPUs while
            // other VMs run.
            let burst = match rng.below(3) {
                0 => rng.between(100, 2_000) * MICROS,
                _ => rng.between(20, 200) * MILLIS,
            };
            let rate = Rate {
                per_second: wide * rng.between(100, 800) * MILLIS,
                burst,
            };
            config.limits.gpu_time = Some(rate);
            gangs.push(Gang {
                vm: setup.vms.len() as u32,
                gpus: wide,
                rate,
            });
        }
        let load = Load::backlog(short_kernels(&mut rng));
        let programs = rng.pick(&[1, 1, 3]);
        setup.vm(config, vec![load; programs]);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    for gang in &gangs {
        check(&world, gang, slice_ns, &mut found);
    }
    found.close(&mut world);
    found
}

fn check(world: &World, gang: &Gang, slice_ns: u64, found: &mut Found) {
    let book = &world.books.vms[gang.vm as usize];
    let points = book.track.points().iter().map(|&(at, ns)| (at, ns, ns));
    let over = excess(points, gang.rate);
    let late = gang.gpus * (book.residue_ns + world.handoff_ns());
    let turn = 2 * book.gathered_ns + gang.gpus * slice_ns;
    let enough = turn <= gang.rate.burst;
    world.note(|| format!("{gang:?}: {over} ns beyond the rate, late {late}, turn {turn}"));
    let bound = gang.rate.burst.max(turn) + late;
    found.see(&EXCESS, over / bound as f64, 1.0);
    if enough {
        found.see(&STRICT, over / (gang.rate.burst + late) as f64, 1.0);
    }
    let seconds = world.now as f64 / 1e9;
    found.see(&SERVED, world.completed(gang.vm) as f64 / seconds, 1.0);
    let got = book.charged_ns as f64 / seconds;
    found.tell(&USED, got / gang.rate.per_second as f64);
}
