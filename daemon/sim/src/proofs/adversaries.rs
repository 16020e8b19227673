//! An honest VM that always has work, beside VMs that try to get more than their share.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, SECONDS};

use super::shares::{WAIT_TO_BOUND, WARM_NS, c_of, short_kernels};
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule, points};
use crate::guest::{Kind, Load, Pattern};
use crate::measure::{Share, share_error};
use crate::rng::Rng;
use crate::setup::{Conduct, Setup, weighted};

pub(super) const PROOF: Proof = Proof {
    name: "adversaries",
    what: "an honest VM beside floods, loops, long kernels, graphs, timed bursts, poisoned predictions, many processes, hoarders",
    part: 70,
    run,
};

/// Part of its share that an honest VM lacks beside adversaries.
static SHORT_10S: Measure = Measure {
    name: "share_error_adversary_10s_max",
    what: "part of its share that an honest VM lacks beside adversaries, any 10 s",
    unit: "points",
    rule: Rule::AtMost,
};

/// Kinds of adversaries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kinds {
    Flood,
    Synchronising,
    LongKernels,
    Graphs,
    TimedBursts,
    Poisoner,
    ManyProcesses,
    /// Holds the GPU without work and does not report that it is idle.
    Hoarder,
}

const KINDS: [Kinds; 8] = [
    Kinds::Flood,
    Kinds::Synchronising,
    Kinds::LongKernels,
    Kinds::Graphs,
    Kinds::TimedBursts,
    Kinds::Poisoner,
    Kinds::ManyProcesses,
    Kinds::Hoarder,
];

fn loads(kind: Kinds, slice_ns: u64, rng: &mut Rng) -> Vec<Load> {
    let one = |load| vec![load];
    match kind {
        Kinds::Flood => one(Load {
            streams: rng.pick(&[1, 1, 4]),
            ..Load::backlog(Length::Const(MICROS))
        }),
        Kinds::Synchronising | Kinds::Hoarder => {
            let kernel = Length::Const(rng.between(2, 200) * MICROS);
            let pause = Length::Const(rng.between(1, 150) * MICROS);
            one(Load::looping(rng.between(1, 3), kernel, pause))
        }
        Kinds::LongKernels => one(Load::backlog(Length::Const(80 * MILLIS))),
        Kinds::Graphs => {
            let length = Length::Const(rng.between(1, 40) * MILLIS);
            one(Load::new(Pattern::Backlog, vec![Kind::graph(length)]))
        }
        Kinds::TimedBursts => {
            // The adversary works for about a slice, sleeps a little longer than the hold, and then
            // works again.
            let kernel = 100 * MICROS;
            let ops = (slice_ns / kernel).saturating_sub(rng.between(0, 2)).max(1);
            let pause = Length::Const(rng.between(60, 400) * MICROS);
            one(Load::looping(ops, Length::Const(kernel), pause))
        }
        Kinds::Poisoner => one(Load::backlog(if rng.chance(500) {
            Length::Alternate(MICROS, 50 * MILLIS)
        } else {
            Length::Lure {
                short: MICROS,
                long: rng.between(10, 50) * MILLIS,
                every: rng.pick(&[30, 100, 1000]),
            }
        })),
        Kinds::ManyProcesses => {
            let kernel = Length::Const(rng.between(10, 1000) * MICROS);
            vec![Load::backlog(kernel); rng.between(4, 32) as usize]
        }
    }
}

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 2 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let slice_ns = rng.pick(&[1, 2, 2, 4]) * MILLIS;
    let pool = PoolConfig {
        slice_ns,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, switch_ns, pool);
    let own = rng.pick(&[1, 1, 2, 4, 16]);
    let honest = setup.weighted(own, Load::backlog(short_kernels(&mut rng)));
    let mut all = u64::from(own);
    // The seed number selects the first adversary; the further adversaries are random.
    let first = KINDS[(plan.seed % KINDS.len() as u64) as usize];
    for index in 0..rng.between(1, 4) {
        let kind = if index == 0 { first } else { rng.pick(&KINDS) };
        let weight = rng.pick(&[1, 1, 4, 16]);
        let vm = setup.vm(weighted(weight), loads(kind, slice_ns, &mut rng));
        if kind == Kinds::Hoarder {
            for guest in &mut setup.vms[vm as usize].guests {
                guest.conduct = Conduct::Hoarder;
            }
        }
        all += u64::from(weight);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let share = Share {
        of: u64::from(own),
        all,
    };
    let track = &world.books.vms[honest as usize].track;
    let total = &world.books.gpus[0].track;
    let window = 10 * SECONDS;
    let (less, _) = share_error(track, total, share, window, (WARM_NS, world.now));
    world.note(|| format!("the honest VM lacks {less} ns of any {window}"));
    if world.now >= WARM_NS + window {
        found.see(&SHORT_10S, points(less, window), 1.0);
    }
    let c = c_of(&world, slice_ns) as f64;
    let switching = 1.0 + switch_ns as f64 / slice_ns as f64;
    let bound = c * all as f64 / f64::from(own) * switching + 2.0 * c;
    let wait = world.books.longest_wait(honest, world.now) as f64;
    found.see(&WAIT_TO_BOUND, wait / bound, 1.0);
    found.close(&mut world);
    found
}
