//! Programs whose kernels run for other times than the predictor learned: their work on the device
//! at a revoke is bounded.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, VmId};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::{Setup, weighted};

pub(super) const PROOF: Proof = Proof {
    name: "poison",
    what: "a program that always mispredicts has at most one operation and a window in flight at a revoke",
    part: 12,
    run,
};

static IN_FLIGHT: Measure = Measure {
    name: "mispredicted_in_flight_ratio",
    what: "work in flight at a revoke of programs that poison the predictor / (their longest operation + window; where each is a little longer than predicted, half an operation and a window more)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static WARMED: Measure = Measure {
    name: "slow_first_launch_fed_min",
    what: "part of its turns in which kernels run, of a program whose first launch took long",
    unit: "ratio",
    rule: Rule::AtLeast,
};
static FED: Measure = Measure {
    name: "poisoner_fed_min",
    what: "part of its turns in which a poisoner's operations run",
    unit: "ratio",
    rule: Rule::AtLeast,
};

/// Length in ns of the start of a run that is left out: before its first misprediction a program
/// may have more in flight.
const FIRST_NS: u64 = vgpu_sched::SECONDS;

/// A prediction that is too small by less than this, in ns, counts as right, as in the gate.
const SURPRISE_NS: u64 = 250 * MICROS;

/// How learned and actual times differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lie {
    /// Many new kernels, each first short and then long.
    ManyKeys,
    /// No wrong prediction: the first launch takes long because the driver loads the code; later
    /// launches are short.
    SlowFirst,
    /// One kernel, alternately short and long.
    Alternates,
    /// Many short launches, then one long launch, with the same key.
    Lures,
    /// Each launch takes a little longer than the launch before.
    Grows,
}

const LIES: [Lie; 5] = [
    Lie::ManyKeys,
    Lie::SlowFirst,
    Lie::Alternates,
    Lie::Lures,
    Lie::Grows,
];

fn load(lie: Lie, rng: &mut Rng) -> Load {
    let long = rng.between(2, 50) * MILLIS;
    match lie {
        Lie::SlowFirst => Load::backlog(Length::Warm {
            first: long,
            then: rng.between(2, 6) * MICROS,
        }),
        Lie::Alternates => Load::backlog(Length::Alternate(MICROS, long)),
        Lie::Lures => Load::backlog(Length::Lure {
            short: MICROS,
            long,
            every: rng.pick(&[3, 30, 100]),
        }),
        Lie::Grows => Load::backlog(Length::Grow {
            from: MICROS,
            percent: rng.between(200, 400) as u32,
            to: long.max(10 * MILLIS),
        }),
        Lie::ManyKeys => Load {
            poison: rng.pick(&[8, 16, 32]),
            ..Load::backlog(Length::Const(long / 4))
        },
    }
}

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 22 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let pool = PoolConfig {
        slice_ns: rng.pick(&[1, 2, 4]) * MILLIS,
        window_ns: rng.pick(&[200, 500, 500]) * MICROS,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, switch_ns, pool.clone());
    let lie = LIES[(plan.seed % LIES.len() as u64) as usize];
    let load = load(lie, &mut rng);
    let longest = load.longest_ns();
    // A higher weight than the others, so that the program has many turns.
    let poisoner = setup.vm(weighted(rng.pick(&[4, 16])), vec![load]);
    for _ in 0..rng.between(1, 3) {
        setup.weighted(1, Load::backlog(short_kernels(&mut rng)));
    }
    let mut world = plan.begin(&setup);
    world.run_until(FIRST_NS);
    world.books.vms[poisoner as usize].residue_ns = 0;
    world.run_until(plan.end_ns());
    let mut found = Found::default();
    let residue = world.books.vms[poisoner as usize].residue_ns;
    world.note(|| format!("{lie:?}: {residue} ns in flight, longest {longest} ns"));
    let bound = match lie {
        // A prediction of half the actual time still counts as right. When the next operation
        // follows because the first should be nearly complete, half of the first may be left.
        Lie::Grows => longest + longest / 2 + 2 * pool.window_ns + SURPRISE_NS,
        _ => longest + pool.window_ns,
    };
    found.see(&IN_FLIGHT, residue as f64 / bound as f64, 1.0);
    let charged = world.sched.vm_stats(VmId(poisoner)).map_or(1, |s| s.gpu_ns);
    let fed = world.busy_ns(poisoner) as f64 / charged as f64;
    if lie == Lie::SlowFirst {
        found.see(&WARMED, fed, 0.75);
    } else {
        found.see(&FED, fed, 0.5);
    }
    found.close(&mut world);
    found
}
