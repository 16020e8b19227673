//! VMs start and end, and an administrator changes weights and policies, while others run.

use vgpu_sched::{Event, MICROS, MILLIS, Policy, PoolConfig, SECONDS};

use super::shares::{c_of, short_kernels};
use super::{Plan, Proof};
use crate::found::{Found, Measure, Rule};
use crate::guest::Load;
use crate::measure::{Share, share_error};
use crate::rng::Rng;
use crate::setup::{POOL, Setup};

pub(super) const PROOF: Proof = Proof {
    name: "changes",
    what: "joins, leaves and new weights keep lags; a live change is in force within a quantum",
    part: 20,
    run,
};

static LAG_KEPT: Measure = Measure {
    name: "lag_moved_by_change_ns_max",
    what: "change of a VM's lag by a new weight, a join or the leaving of another VM",
    unit: "ns",
    rule: Rule::AtMost,
};
static IN_FORCE: Measure = Measure {
    name: "live_change_ratio_to_bound",
    what: "share error over any 0.1 s and 1 s from one quantum after a change / 2C",
    unit: "ratio",
    rule: Rule::AtMost,
};
static MEMBERS: Measure = Measure {
    name: "membership_ratio_to_bound",
    what: "difference of two equal VMs while others come and go / 2C",
    unit: "ratio",
    rule: Rule::AtMost,
};

fn run(plan: Plan) -> Found {
    if plan.seed.is_multiple_of(2) {
        reweigh(plan)
    } else {
        come_and_go(plan)
    }
}

/// A run in which weights and the policy change every 1.2 to 2.5 s.
fn reweigh(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 9 << 40);
    let slice_ns = rng.pick(&[1, 2, 4]) * MILLIS;
    let pool = PoolConfig {
        slice_ns,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, rng.pick(&[20, 60, 150]) * MICROS, pool.clone());
    let n = rng.between(2, 8) as usize;
    let mut weights: Vec<u32> = Vec::new();
    for _ in 0..n {
        let weight = rng.between(1, 16) as u32;
        weights.push(weight);
        let load = Load::backlog(short_kernels(&mut rng));
        setup.weighted(weight, load);
    }
    let mut periods = vec![(SECONDS, weights.clone())];
    let mut at = SECONDS;
    let end = plan.seconds * SECONDS;
    loop {
        at += rng.between(1200, 2500) * MILLIS;
        if at + 1200 * MILLIS > end {
            break;
        }
        let vm = rng.below(n as u64) as u32;
        match rng.below(4) {
            0 => {
                // The pool changes to another policy and back. All lags must stay.
                for (after, policy) in [(0, Policy::Fifo), (1, Policy::Weighted)] {
                    let config = PoolConfig {
                        policy,
                        ..pool.clone()
                    };
                    setup.at(at + after, Event::SetPool { pool: POOL, config });
                }
            }
            _ => {
                let weight = rng.between(1, 16) as u32;
                weights[vm as usize] = weight;
                setup.reweigh(at, vm, weight);
            }
        }
        periods.push((at, weights.clone()));
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let bound = 2 * c_of(&world, slice_ns);
    for (index, (from, weights)) in periods.iter().enumerate() {
        let to = periods.get(index + 1).map_or(end, |(at, _)| *at);
        let all = weights.iter().map(|&w| u64::from(w)).sum();
        for (vm, &weight) in weights.iter().enumerate() {
            let of = u64::from(weight);
            let share = Share { of, all };
            for window in [SECONDS / 10, SECONDS] {
                let (track, total) = (&world.books.vms[vm].track, &world.books.gpus[0].track);
                let period = (from + slice_ns, to);
                let (less, more) = share_error(track, total, share, window, period);
                found.see(&IN_FORCE, less.max(more) as f64 / bound as f64, 1.0);
            }
        }
    }
    found.see(&LAG_KEPT, world.lag_moved_ns as f64, 8.0);
    found.close(&mut world);
    found
}

/// A run in which two equal VMs stay while others start and end.
fn come_and_go(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 10 << 40);
    let slice_ns = rng.pick(&[1, 2, 4]) * MILLIS;
    let pool = PoolConfig {
        slice_ns,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, rng.pick(&[20, 60, 150]) * MICROS, pool);
    for _ in 0..2 {
        let load = Load::backlog(short_kernels(&mut rng));
        setup.weighted(2, load);
    }
    let end = plan.seconds * SECONDS;
    for _ in 0..rng.between(2, 20) {
        let from_ns = rng.between(SECONDS, end);
        let load = Load {
            from_ns,
            ..Load::backlog(short_kernels(&mut rng))
        };
        let vm = setup.weighted(rng.pick(&[1, 4, 16]), load);
        let stays = rng.between(5, 3000) * MILLIS;
        setup.vms[vm as usize].guests[0].ends_ns = from_ns + stays;
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let bound = 2 * c_of(&world, slice_ns);
    let [first, second] = [&world.books.vms[0].track, &world.books.vms[1].track];
    for &(at, ns) in first.points().iter().filter(|(at, _)| *at >= SECONDS) {
        let apart = ns.abs_diff(second.at(at));
        // The error of each VM is half of the difference.
        found.see(&MEMBERS, apart as f64 / 2.0 / bound as f64, 1.0);
    }
    found.see(&LAG_KEPT, world.lag_moved_ns as f64, 8.0);
    found.close(&mut world);
    found
}
