//! The GPU of an idle holder goes to a waiting VM within the hold, the messages and a switch.

use vgpu_sched::{MICROS, MILLIS, PoolConfig};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::Setup;

pub(super) const PROOF: Proof = Proof {
    name: "reclaim",
    what: "idle time while another VM waits: at most the hold and a handoff",
    part: 15,
    run,
};

static IDLE: Measure = Measure {
    name: "idle_reclaim_ratio_to_bound",
    what: "longest idle time while another VM waits / (hold + switch + messages)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static IDLE_US: Measure = Measure {
    name: "idle_reclaim_us_max",
    what: "the same in time: idle time of a GPU before the next VM has it",
    unit: "µs",
    rule: Rule::AtMost,
};
static PER_LEASE: Measure = Measure {
    name: "idle_per_lease_us_max",
    what: "idle time in one lease while another VM waits, all gaps of a synchronising loop together",
    unit: "µs",
    rule: Rule::Told,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 5 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let hold_ns = rng.pick(&[50, 100, 200]) * MICROS;
    let pool = PoolConfig {
        slice_ns: rng.pick(&[1, 2, 4]) * MILLIS,
        hold_ns,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, switch_ns, pool);
    setup.weighted(1, Load::backlog(short_kernels(&mut rng)));
    for _ in 0..rng.between(1, 3) {
        let kernel = short_kernels(&mut rng);
        let pause = match rng.below(3) {
            0 => Length::Exp(rng.between(10, 300) * MICROS),
            1 => Length::Uniform(MICROS, 2 * hold_ns),
            _ => Length::Exp(rng.between(1, 20) * MILLIS),
        };
        let load = Load::looping(rng.between(1, 20), kernel, pause);
        setup.weighted(rng.pick(&[1, 4, 16]), load);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let book = &world.books.gpus[0];
    // The worker's timer ends the hold; then release, grant and the first submission follow.
    let bound = hold_ns + switch_ns + world.handoff_ns();
    found.see(&IDLE, book.longest_idle_ns as f64 / bound as f64, 1.0);
    found.see(&IDLE_US, book.longest_idle_ns as f64 / 1e3, 1000.0);
    found.tell(&PER_LEASE, book.idle_per_lease_ns as f64 / 1e3);
    found.close(&mut world);
    found
}
