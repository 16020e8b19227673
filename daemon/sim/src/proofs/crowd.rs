//! Thousands of VMs on one GPU.

use vgpu_sched::{MICROS, PoolConfig, SECONDS};

use super::shares::{TO_BOUND, c_of};
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::measure::{Share, share_error};
use crate::rng::Rng;
use crate::setup::Setup;

pub(super) const PROOF: Proof = Proof {
    name: "crowd",
    what: "shares among 256 to 4,096 VMs",
    part: 3,
    run,
};

static VMS: Measure = Measure {
    name: "vms_max",
    what: "VMs simulated on one GPU at once",
    unit: "",
    rule: Rule::Told,
};

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 14 << 40);
    let n = [4096, 256, 1024][(plan.seed % 3) as usize];
    let slice_ns = 500 * MICROS;
    let pool = PoolConfig {
        slice_ns,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, 20 * MICROS, pool);
    let weights: Vec<u64> = (0..n).map(|_| rng.between(1, 16)).collect();
    for &weight in &weights {
        let kernel = Length::Const(rng.between(20, 500) * MICROS);
        setup.weighted(weight as u32, Load::backlog(kernel));
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    found.tell(&VMS, f64::from(n));
    let all = weights.iter().sum();
    let bound = 2 * c_of(&world, slice_ns);
    for (vm, &of) in weights.iter().enumerate() {
        let (track, total) = (&world.books.vms[vm].track, &world.books.gpus[0].track);
        let share = Share { of, all };
        let period = (0, world.now);
        let (less, more) = share_error(track, total, share, 10 * SECONDS, period);
        found.see(&TO_BOUND, less.max(more) as f64 / bound as f64, 1.0);
    }
    found.close(&mut world);
    found
}
