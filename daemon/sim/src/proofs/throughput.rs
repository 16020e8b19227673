//! The cost of sharing: work of several VMs together, compared with the work of one VM alone.

use vgpu_sched::{MICROS, PoolConfig};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::{Host, Setup};

pub(super) const PROOF: Proof = Proof {
    name: "throughput",
    what: "work of several VMs together against one VM alone with the same load, slice ≥ 34 handoffs",
    part: 20,
    run,
};

static RATIO: Measure = Measure {
    name: "throughput_ratio_min",
    what: "work done by all together / by one VM alone (slice ≥ 34 handoffs)",
    unit: "ratio",
    rule: Rule::AtLeast,
};
static OVERSHOOT: Measure = Measure {
    name: "overshoot_ratio_to_bound",
    what: "time of a lease past the end of its slice, equal kernels / (one kernel + a handoff)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static ALONE: Measure = Measure {
    name: "alone_busy_min",
    what: "busy time of the device with one VM that always has work",
    unit: "ratio",
    rule: Rule::Told,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 4 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    // A handoff costs its messages and the loading of the context. With a slice of 32 handoffs, at
    // most 1 - 1/32 = 0.969 of the time is left for work; with 34 handoffs the bound of 0.97 is
    // possible.
    let handoff_ns = switch_ns + Host::default().handoff_ns();
    let slice_ns = handoff_ns * rng.pick(&[34, 34, 40, 64, 100]);
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
            // Each of the two runs has half of the planned length.
            seconds: plan.seconds.div_ceil(2),
            ..plan
        };
        let mut world = plan.simulate(&setup);
        let truth = world.devices[0].truth();
        world.note(|| {
            let grants: u64 = world.books.vms.iter().map(|vm| vm.grants).sum();
            format!("{vms} VMs, {switch_ns} in {slice_ns} ns, {load:?}: {truth:?}, {grants} leases")
        });
        work[index] = truth.busy_ns;
        if vms == 1 {
            found.tell(&ALONE, work[0] as f64 / world.now as f64);
        }
        found.close(&mut world);
    }
    found.see(&RATIO, work[1] as f64 / work[0] as f64, 0.97);
    overshoot(plan, switch_ns, &mut found);
    found
}

/// A VM whose kernels have predictions exceeds its slice by at most one kernel, regardless of the
/// number of waiting VMs.
fn overshoot(plan: Plan, switch_ns: u64, found: &mut Found) {
    let mut rng = Rng::part(plan.seed, 5 << 40);
    let kernel_ns = rng.between(10, 200) * MICROS;
    let mut setup = Setup::new(plan.seed, switch_ns, PoolConfig::default());
    setup.track = false;
    for _ in 0..2 {
        setup.weighted(1, Load::backlog(Length::Const(kernel_ns)));
    }
    let mut world = Plan { seconds: 1, ..plan }.simulate(&setup);
    let bound = kernel_ns + world.handoff_ns();
    let over = world.books.gpus[0].overshoot_ns;
    found.see(&OVERSHOOT, over as f64 / bound as f64, 1.0);
    found.close(&mut world);
}
