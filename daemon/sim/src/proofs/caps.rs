//! A VM keeps its rate limits over all its processes, in every window, under any load.

use vgpu_sched::{Limits, MICROS, MILLIS, PoolConfig, Rate, SECONDS, VmConfig};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::books::VmBook;
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::{Kind, Load, Pattern};
use crate::rng::Rng;
use crate::setup::{Setup, weighted};
use crate::world::World;

pub(super) const PROOF: Proof = Proof {
    name: "caps",
    what: "calls/s, bytes/s and GPU-ms/s are never exceeded, in any window",
    part: 20,
    run,
};

static CALLS: Measure = Measure {
    name: "cap_calls_ratio_to_bound",
    what: "calls beyond the rate in any window / (burst + 1)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static BYTES: Measure = Measure {
    name: "cap_bytes_ratio_to_bound",
    what: "bytes beyond the rate in any window / (burst + the largest copy)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static GPU_TIME: Measure = Measure {
    name: "cap_gpu_time_ratio_to_bound",
    what: "charged time beyond the rate in any window / (burst + work in flight + messages)",
    unit: "ratio",
    rule: Rule::AtMost,
};
static USED: Measure = Measure {
    name: "cap_used_min",
    what: "part of its rate that a capped VM with enough work gets",
    unit: "ratio",
    rule: Rule::AtLeast,
};

fn loads(rng: &mut Rng) -> Vec<Load> {
    let streams = rng.pick(&[1, 1, 4]);
    let load = match rng.below(4) {
        0 => Load::backlog(short_kernels(rng)),
        1 => {
            let length = Length::Const(rng.between(100, 3000) * MICROS);
            Load::new(Pattern::Backlog, vec![Kind::graph(length)])
        }
        2 => {
            let large = rng.pick(&[1 << 16, 1 << 20, 16 << 20]);
            let kinds = vec![Kind::copy(large), Kind::copy(4096)];
            Load::new(Pattern::Backlog, kinds)
        }
        _ => {
            let pause = Length::Const(rng.between(1, 80) * MICROS);
            Load::looping(1, short_kernels(rng), pause)
        }
    };
    vec![Load { streams, ..load }; rng.pick(&[1, 1, 3, 8])]
}

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 8 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let mut setup = Setup::new(plan.seed, switch_ns, PoolConfig::default());
    let mut limits = Limits::default();
    match plan.seed % 3 {
        0 => {
            limits.calls = Some(Rate {
                per_second: rng.between(10, 5000),
                burst: rng.between(1, 200),
            });
        }
        1 => {
            limits.bytes = Some(Rate {
                per_second: rng.between(1 << 20, 1 << 30),
                burst: rng.between(1, 64 << 20),
            });
        }
        _ => {
            limits.gpu_time = Some(Rate {
                per_second: rng.between(10, 800) * MILLIS,
                burst: rng.between(1, 50) * MILLIS,
            });
        }
    }
    let config = VmConfig {
        limits: limits.clone(),
        ..weighted(rng.pick(&[1, 16]))
    };
    setup.vm(config, loads(&mut rng));
    for _ in 0..rng.below(3) {
        let load = Load::backlog(short_kernels(&mut rng));
        setup.weighted(rng.pick(&[1, 4]), load);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    check(&world, &setup, &limits, &mut found);
    found.close(&mut world);
    found
}

/// Largest use in any window beyond the rate. The worst window begins and ends at a use.
pub(super) fn excess(used: impl Iterator<Item = (u64, u64, u64)>, rate: Rate) -> f64 {
    let mut least = 0.0_f64;
    let mut worst = 0.0_f64;
    for (at, before, after) in used {
        let brought = rate.per_second as f64 * (at as f64 / 1e9);
        least = least.min(before as f64 - brought);
        worst = worst.max(after as f64 - brought - least);
    }
    worst
}

/// Time in ns, total before and total after each use.
fn steps(book: &VmBook, of: fn(&(u64, u64, u64)) -> u64) -> impl Iterator<Item = (u64, u64, u64)> {
    let mut before = 0;
    book.used.iter().map(move |used| {
        let after = of(used);
        (used.0, std::mem::replace(&mut before, after), after)
    })
}

fn check(world: &World, setup: &Setup, limits: &Limits, found: &mut Found) {
    let book = &world.books.vms[0];
    let seconds = world.now as f64 / SECONDS as f64;
    let alone = setup.vms.len() == 1;
    if let Some(rate) = limits.calls {
        let over = excess(steps(book, |used| used.1), rate);
        found.see(&CALLS, over / (rate.burst + 1) as f64, 1.0);
    }
    if let Some(rate) = limits.bytes {
        let copies = setup.vms[0].guests.iter().flat_map(|g| &g.load.kinds);
        let largest = copies.map(|kind| kind.bytes).max().unwrap_or(0);
        let over = excess(steps(book, |used| used.2), rate);
        found.see(&BYTES, over / (rate.burst + largest) as f64, 1.0);
    }
    if let Some(rate) = limits.gpu_time {
        let points = book.track.points().iter().map(|&(at, ns)| (at, ns, ns));
        let over = excess(points, rate);
        let bound = rate.burst + book.residue_ns + world.handoff_ns();
        world.note(|| {
            format!(
                "{over} ns beyond the rate; burst {}, bound {bound}",
                rate.burst
            )
        });
        found.see(&GPU_TIME, over / bound as f64, 1.0);
        if alone && matches!(setup.vms[0].guests[0].load.pattern, Pattern::Backlog) {
            let got = book.charged_ns as f64 / seconds;
            found.see(&USED, got / rate.per_second as f64, 0.9);
        }
    }
}
