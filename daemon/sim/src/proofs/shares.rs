//! Shares of charged time of VMs that always have work.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, SECONDS};

use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule, ms, points};
use crate::guest::Load;
use crate::measure::{Share, share_error};
use crate::rng::Rng;
use crate::setup::Setup;
use crate::world::World;

pub(super) const PROOF: Proof = Proof {
    name: "shares",
    what: "shares of charged time among backlogged VMs, any window",
    part: 100,
    run,
};

/// Largest error of a share in any window of 10 s.
pub(super) static AT_10S: Measure = Measure {
    name: "share_error_10s_max",
    what: "share error, any 10 s (slice ≤ 4 ms, kernels ≤ 1 ms)",
    unit: "points",
    rule: Rule::AtMost,
};
/// Largest error of a share in any window of 1 s.
pub(super) static AT_1S: Measure = Measure {
    name: "share_error_1s_max",
    what: "share error, any 1 s (slice ≤ 4 ms, kernels ≤ 1 ms)",
    unit: "points",
    rule: Rule::AtMost,
};
/// Largest error of a share, divided by 2C.
pub(super) static TO_BOUND: Measure = Measure {
    name: "error_ratio_to_bound",
    what: "share error / 2C, any 0.1, 1 and 10 s, all slices and kernels",
    unit: "ratio",
    rule: Rule::AtMost,
};
/// Longest wait, divided by its bound.
pub(super) static WAIT_TO_BOUND: Measure = Measure {
    name: "max_wait_ratio_to_bound",
    what: "longest wait / (C_i·Σw/w_i·(1 + switch/slice) + 2C)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static LAG: Measure = Measure {
    name: "lag_ms_max",
    what: "largest |lag| at the begin or end of a lease",
    unit: "ms",
    rule: Rule::Told,
};
static OVERSHOOT: Measure = Measure {
    name: "overshoot_ms_max",
    what: "longest time of a lease past the end of its slice",
    unit: "ms",
    rule: Rule::Told,
};

/// Length in ns of the start of a run that is left out: the VMs join, and kernels have no
/// prediction yet.
pub(super) const WARM_NS: u64 = SECONDS;

/// The parameters of one run.
pub(super) struct Drawn {
    pub(super) setup: Setup,
    pub(super) weights: Vec<u32>,
    pub(super) slice_ns: u64,
    pub(super) switch_ns: u64,
    /// Longest kernel in ns.
    pub(super) longest_ns: u64,
}

/// Kernels of 5 µs to 1 ms.
pub(super) fn short_kernels(rng: &mut Rng) -> Length {
    match rng.below(5) {
        0 => Length::Const(rng.between(5 * MICROS, MILLIS)),
        1 => Length::Uniform(5 * MICROS, rng.between(10 * MICROS, MILLIS)),
        2 => Length::Exp(rng.between(5 * MICROS, 62 * MICROS)),
        3 => Length::LogNormal {
            median: rng.between(5 * MICROS, 15 * MICROS),
            sigma_milli: 800,
        },
        _ => Length::Bimodal {
            short: rng.between(5 * MICROS, 100 * MICROS),
            long: rng.between(100 * MICROS, MILLIS),
            long_permille: 100,
        },
    }
}

/// Kernels of 5 µs to 80 ms.
fn long_kernels(rng: &mut Rng) -> Length {
    match rng.below(4) {
        0 => Length::Const(rng.between(MILLIS, 80 * MILLIS)),
        1 => Length::Exp(rng.between(100 * MICROS, 5 * MILLIS)),
        2 => Length::Bimodal {
            short: rng.between(50 * MICROS, MILLIS),
            long: rng.between(5 * MILLIS, 80 * MILLIS),
            long_permille: 20,
        },
        _ => Length::Const(rng.between(5 * MICROS, MILLIS)),
    }
}

/// A setup of VMs that always have work.
pub(super) fn draw(seed: u64) -> Drawn {
    let mut rng = Rng::part(seed, 1 << 40);
    let short = rng.chance(700);
    let n = rng.pick(&[2, 2, 3, 4, 4, 8, 16, 32, 64]);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let slice_ns = if short {
        rng.pick(&[1, 2, 2, 3, 4]) * MILLIS
    } else {
        rng.pick(&[1, 2, 4, 10]) * MILLIS
    };
    let pool = PoolConfig {
        slice_ns,
        // Overruns are off: another proof checks the shares beside a declared overrunner.
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(seed, switch_ns, pool);
    let mut weights = Vec::new();
    let same = rng.chance(200);
    for index in 0..n {
        let weight = match index {
            0 => 1,
            1 if !same => 16,
            _ if same => 1,
            _ => rng.between(1, 16) as u32,
        };
        weights.push(weight);
        let length = if short {
            short_kernels(&mut rng)
        } else {
            long_kernels(&mut rng)
        };
        let load = Load::backlog(length);
        setup.weighted(weight, load);
    }
    let longest_ns = longest(&setup);
    Drawn {
        setup,
        weights,
        slice_ns,
        switch_ns,
        longest_ns,
    }
}

fn longest(setup: &Setup) -> u64 {
    let loads = setup.vms.iter().flat_map(|vm| &vm.guests);
    loads
        .map(|guest| guest.load.longest_ns())
        .max()
        .unwrap_or(0)
}

/// C in ns: the slice, the largest unfinished work on the device at a revoke, and the messages of a
/// handoff.
pub(super) fn c_of(world: &World, slice_ns: u64) -> u64 {
    let residue = world.books.vms.iter().map(|vm| vm.residue_ns).max();
    slice_ns + residue.unwrap_or(0) + world.handoff_ns()
}

fn run(plan: Plan) -> Found {
    let drawn = draw(plan.seed);
    let mut world = plan.simulate(&drawn.setup);
    let mut found = Found::default();
    check_shares(&world, &drawn, &mut found);
    check_waits(&world, &drawn, &mut found);
    for vm in &world.books.vms {
        found.tell(&LAG, vm.lag_ns as f64 / 1e6);
    }
    found.tell(&OVERSHOOT, ms(world.books.gpus[0].overshoot_ns));
    found.close(&mut world);
    found
}

fn check_shares(world: &World, drawn: &Drawn, found: &mut Found) {
    let all = drawn.weights.iter().map(|&w| u64::from(w)).sum();
    let bound = 2 * c_of(world, drawn.slice_ns);
    let fine = drawn.slice_ns <= 4 * MILLIS && drawn.longest_ns <= MILLIS;
    for (vm, &weight) in drawn.weights.iter().enumerate() {
        let share = Share {
            of: u64::from(weight),
            all,
        };
        let track = &world.books.vms[vm].track;
        for window in [SECONDS / 10, SECONDS, 10 * SECONDS] {
            let period = (WARM_NS, world.now);
            if world.now < WARM_NS + window {
                continue;
            }
            let total = &world.books.gpus[0].track;
            let (less, more) = share_error(track, total, share, window, period);
            let error = less.max(more);
            found.see(&TO_BOUND, error as f64 / bound as f64, 1.0);
            match window {
                SECONDS if fine => found.see(&AT_1S, points(error, window), 1.0),
                w if w > SECONDS && fine => found.see(&AT_10S, points(error, w), 0.25),
                _ => {}
            }
        }
    }
}

fn check_waits(world: &World, drawn: &Drawn, found: &mut Found) {
    let all: u64 = drawn.weights.iter().map(|&w| u64::from(w)).sum();
    let c = c_of(world, drawn.slice_ns) as f64;
    for (vm, &weight) in drawn.weights.iter().enumerate() {
        let turns = c * all as f64 / f64::from(weight);
        let switching = 1.0 + drawn.switch_ns as f64 / drawn.slice_ns as f64;
        let bound = turns * switching + 2.0 * c;
        let wait = world.books.longest_wait(vm as u32, world.now);
        world.note(|| {
            format!(
                "VM {vm} of weight {weight}/{all} waited {wait} of {bound:.0} ns until {}; C {c:.0}",
                world.books.vms[vm].longest_wait_at_ns
            )
        });
        found.see(&WAIT_TO_BOUND, wait as f64 / bound, 1.0);
    }
}
