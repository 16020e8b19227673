//! Latency of a high VM's requests beside low VMs that always have work.

use vgpu_sched::{Class, MICROS, MILLIS, Policy, PoolConfig, VmConfig};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule, ms};
use crate::guest::Load;
use crate::measure::percentile;
use crate::rng::Rng;
use crate::setup::{POOL, Setup};

pub(super) const PROOF: Proof = Proof {
    name: "latency",
    what: "requests of a high VM, alone and beside saturating low VMs",
    part: 60,
    run,
};

static P50: Measure = Measure {
    name: "latency_high_p50_added_ms_max",
    what: "median latency of a high VM's requests beside low VMs, minus the latency alone",
    unit: "ms",
    rule: Rule::Told,
};
static P99: Measure = Measure {
    name: "latency_high_p99_added_ms_max",
    what: "p99 latency of the same, minus the latency alone",
    unit: "ms",
    rule: Rule::Told,
};
static P99_RATIO: Measure = Measure {
    name: "latency_high_p99_ratio_max",
    what: "p99 beside / p99 alone",
    unit: "ratio",
    rule: Rule::Told,
};
static WAIT: Measure = Measure {
    name: "latency_high_wait_ratio_to_bound",
    what: "longest wait of a high VM that wakes up and owes nothing / (slice + work in flight + messages)",
    unit: "ratio",
    rule: Rule::AtMost,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 6 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let policy = rng.pick(&[Policy::Weighted, Policy::Weighted, Policy::Strict]);
    let pool = PoolConfig {
        slice_ns: rng.pick(&[1, 2, 4]) * MILLIS,
        policy,
        ..PoolConfig::default()
    };
    let slice_ns = pool.slice_ns;
    // The high VM needs at most a fifth of the GPU: much less than its share of 16 against 1 to 4.
    let kernel = rng.between(50, 500) * MICROS;
    let ops = rng.between(1, 4);
    let gap = Length::Exp(kernel * ops * rng.between(5, 20));
    let request = Load::requests(ops, Length::Const(kernel), gap);
    let lows = rng.between(1, 4);
    let low_kernels: Vec<Length> = (0..lows).map(|_| short_kernels(&mut rng)).collect();
    let mut found = Found::default();
    let mut latency = [(0, 0); 2];
    for beside in [false, true] {
        let mut setup = Setup::new(plan.seed, switch_ns, pool.clone());
        setup.vm(VmConfig::new(POOL, Class::High), vec![request.clone()]);
        for &length in low_kernels.iter().filter(|_| beside) {
            let load = Load::backlog(length);
            setup.vm(VmConfig::new(POOL, Class::Low), vec![load]);
        }
        let plan = Plan {
            seconds: plan.seconds.div_ceil(2),
            ..plan
        };
        let mut world = plan.simulate(&setup);
        let mut all = world.latencies(0);
        latency[usize::from(beside)] = (percentile(&mut all, 50), percentile(&mut all, 99));
        if beside {
            let residue = world.books.vms.iter().map(|vm| vm.residue_ns).max();
            let bound = slice_ns + residue.unwrap_or(0) + world.handoff_ns();
            // The proof `shares` checks the waits between the turns of a VM that still has work,
            // because these waits depend on the share.
            let wait = world.books.vms[0].longest_wake_ns;
            // A strict pool may first serve a low VM that has risen by aging: one more turn.
            let turns = if policy == Policy::Strict { 2.0 } else { 1.0 };
            if policy == Policy::Strict || ops * kernel <= slice_ns {
                found.see(&WAIT, wait as f64 / (turns * bound as f64), 1.0);
            }
        }
        found.close(&mut world);
    }
    let [(p50, p99), (beside_p50, beside_p99)] = latency;
    found.tell(&P50, ms(beside_p50.saturating_sub(p50)));
    found.tell(&P99, ms(beside_p99.saturating_sub(p99)));
    found.tell(&P99_RATIO, beside_p99 as f64 / p99.max(1) as f64);
    found
}
