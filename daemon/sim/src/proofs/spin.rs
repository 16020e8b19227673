//! Kernels that spin until a kernel of another stream has run: the gate delays such kernels but
//! never stops such kernels.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, SECONDS};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::{Kind, Load, Pattern};
use crate::rng::Rng;
use crate::setup::Setup;

pub(super) const PROOF: Proof = Proof {
    name: "spin",
    what: "kernels that spin for another stream's kernel make progress",
    part: 10,
    run,
};

static PROGRESS: Measure = Measure {
    name: "spin_pairs_min",
    what: "completed pairs of spinning and awaited kernels / the number that a stall of 1 ms and a turn for each allow",
    unit: "ratio",
    rule: Rule::AtLeast,
};
static KILLED: Measure = Measure {
    name: "spin_killed",
    what: "sessions with spinning kernels that were killed",
    unit: "",
    rule: Rule::AtMost,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 13 << 40);
    let slice_ns = rng.pick(&[1, 2, 4]) * MILLIS;
    let pool = PoolConfig {
        slice_ns,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, rng.pick(&[20, 60, 150]) * MICROS, pool);
    let kernel = rng.between(10, 500) * MICROS;
    let pattern = if rng.chance(500) {
        Pattern::Backlog
    } else {
        Pattern::Loop {
            ops: 2 * rng.between(1, 10),
            pause: Length::Const(50 * MICROS),
        }
    };
    let spinner = setup.weighted(
        1,
        Load {
            spins: true,
            ..Load::new(pattern, vec![Kind::kernel(Length::Const(kernel))])
        },
    );
    let others = rng.below(3);
    for _ in 0..others {
        let load = Load::backlog(short_kernels(&mut rng));
        setup.weighted(1, load);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let pairs = world.completed(spinner) / 2;
    // A pair of kernels needs at most one stall until its second kernel is submitted; then both
    // run. The program's share of the GPU is 1 / (others + 1), and a turn may have time for one
    // pair only.
    let each = slice_ns + 2 * MILLIS + 2 * kernel + MILLIS;
    let least = plan.seconds * SECONDS / (each * (others + 1));
    found.see(&PROGRESS, pairs as f64 / least as f64, 1.0);
    found.see(&KILLED, world.kills.len() as f64, 0.0);
    found.close(&mut world);
    found
}
