//! Sharing costs little: work done together against one VM alone.

use vgpu_sched::{MICROS, PoolConfig};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::Setup;

pub(super) const PROOF: Proof = Proof {
    name: "throughput",
    what: "work of several VMs together against one alone at equal work, slice ≥ 32 × switch",
    part: 20,
    run,
};

static RATIO: Measure = Measure {
    name: "throughput_ratio_min",
    what: "work done by all together / by one VM alone (slice ≥ 32 × switch)",
    unit: "ratio",
    rule: Rule::AtLeast,
};
static ALONE: Measure = Measure {
    name: "alone_busy_min",
    what: "busy time of the device with one VM that always has work",
    unit: "ratio",
    rule: Rule::AtLeast,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 4 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let slice_ns = switch_ns * rng.pick(&[32, 32, 40, 64, 100]);
    let pool = PoolConfig {
        slice_ns,
        ..PoolConfig::default()
    };
    let load = Load::backlog(short_kernels(&mut rng));
    let count = rng.pick(&[2, 2, 3, 4, 8, 16]);
    let mut found = Found::default();
    let mut work = [0, 0];
    for (index, vms) in [1, count].into_iter().enumerate() {
        let mut setup = Setup::new(plan.seed, switch_ns, pool.clone());
        setup.track = false;
        for _ in 0..vms {
            setup.weighted(1, load.clone());
        }
        let plan = Plan {
            // Both together are one run's length.
            seconds: plan.seconds.div_ceil(2),
            ..plan
        };
        let mut world = plan.simulate(&setup);
        work[index] = world.devices[0].truth().busy_ns;
        if vms == 1 {
            found.see(&ALONE, work[0] as f64 / world.now as f64, 0.99);
        }
        found.close(&mut world);
    }
    found.see(&RATIO, work[1] as f64 / work[0] as f64, 0.97);
    found
}
