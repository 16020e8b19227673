//! Random mixtures of many VMs: no VM waits longer than the bound.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, SECONDS};

use super::shares::{WAIT_TO_BOUND, short_kernels};
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule};
use crate::guest::{Kind, Load, Pattern};
use crate::rng::Rng;
use crate::setup::{Setup, weighted};

pub(super) const PROOF: Proof = Proof {
    name: "mixtures",
    what: "longest wait in random mixtures of 12 to 24 VMs, all settings varied",
    part: 40,
    run,
};

static CUT: Measure = Measure {
    name: "mixtures_turns_per_slice_max",
    what: "turns / slices of charged time: how often promises cut a turn short",
    unit: "ratio",
    rule: Rule::Told,
};

/// Load of one VM in a mixture.
pub(super) fn any_load(rng: &mut Rng, slice_ns: u64) -> Vec<Load> {
    let short = short_kernels(rng);
    let one = |load| vec![load];
    match rng.below(10) {
        0..=4 => one(Load::backlog(short)),
        5 => one(Load::backlog(Length::Const(
            rng.between(MILLIS, 4 * MILLIS),
        ))),
        6 => {
            let pause = Length::Exp(rng.between(20, 2000) * MICROS);
            one(Load::looping(rng.between(1, 20), short, pause))
        }
        7 => {
            let kernel = rng.between(20, 500) * MICROS;
            let ops = rng.between(1, 8);
            let gap = Length::Exp(kernel * ops * rng.between(5, 40));
            one(Load::requests(ops, Length::Const(kernel), gap))
        }
        8 => {
            // About a slice of work, then a pause, again and again.
            let kernel = 100 * MICROS;
            let ops = (slice_ns / kernel).max(1);
            let pause = Length::Const(rng.between(60, 20_000) * MICROS);
            one(Load::looping(ops, Length::Const(kernel), pause))
        }
        _ => match rng.below(3) {
            0 => vec![Load::backlog(short); rng.between(2, 4) as usize],
            1 => one(Load {
                streams: 4,
                ..Load::backlog(short)
            }),
            _ => one(Load::new(
                Pattern::Backlog,
                vec![
                    Kind::graph(Length::Const(rng.between(100, 3000) * MICROS)),
                    Kind::copy(rng.between(1, 16) << 20),
                    Kind::kernel(short),
                ],
            )),
        },
    }
}

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 15 << 40);
    let switch_ns = rng.pick(&[20, 60, 150]) * MICROS;
    let slice_ns = rng.pick(&[1, 2, 2, 4]) * MILLIS;
    let pool = PoolConfig {
        slice_ns,
        min_run_ns: rng.pick(&[100 * MICROS, 500 * MICROS, slice_ns]),
        hold_ns: rng.pick(&[0, 100, 200]) * MICROS,
        overrun_grace_ns: None,
        ..PoolConfig::default()
    };
    let mut setup = Setup::new(plan.seed, switch_ns, pool);
    // In every second run, VMs have any load. In the other runs, all VMs always have work; half of
    // these runs have turns of equal length. Equal turns are the hardest case: the waits come very
    // near to the bound.
    let backlogged = plan.seed.is_multiple_of(2);
    let alike = plan
        .seed
        .is_multiple_of(4)
        .then(|| rng.between(10, 100) * MICROS);
    let slices = alike.is_none() && rng.chance(300);
    let mut vms = Vec::new();
    for index in 0..rng.between(12, 24) {
        let weight = match index {
            0 => 1,
            1 => 16,
            _ => rng.between(1, 16) as u32,
        };
        let mut config = weighted(weight);
        let mut own_ns = slice_ns;
        if slices && rng.chance(500) {
            own_ns = slice_ns / rng.pick(&[2, 4, 8]);
            config.slice_ns = Some(own_ns);
        }
        let loads = if let Some(kernel) = alike {
            vec![Load::backlog(Length::Const(kernel))]
        } else if backlogged && rng.chance(800) {
            vec![Load::backlog(short_kernels(&mut rng))]
        } else if backlogged {
            vec![Load::backlog(Length::Const(
                rng.between(MILLIS, 4 * MILLIS),
            ))]
        } else {
            any_load(&mut rng, slice_ns)
        };
        let vm = setup.vm(config, loads);
        if !backlogged && rng.chance(200) {
            let from_ns = rng.between(0, plan.seconds * SECONDS / 2);
            for guest in &mut setup.vms[vm as usize].guests {
                guest.load.from_ns = from_ns;
            }
        }
        vms.push((weight, own_ns));
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    let all: u64 = vms.iter().map(|&(weight, _)| u64::from(weight)).sum();
    let residue = world.books.vms.iter().map(|vm| vm.residue_ns).max();
    let back_ns = residue.unwrap_or(0) + world.handoff_ns();
    let longest_ns = vms
        .iter()
        .map(|&(_, own_ns)| own_ns)
        .max()
        .unwrap_or(slice_ns);
    let c = (longest_ns + back_ns) as f64;
    let (mut charged, mut turns) = (0.0, 0.0);
    for (vm, &(weight, own_ns)) in vms.iter().enumerate() {
        let round = (own_ns + back_ns) as f64 * all as f64 / f64::from(weight);
        let switching = 1.0 + switch_ns as f64 / own_ns as f64;
        let bound = round * switching + 2.0 * c;
        let wait = world.books.longest_wait(vm as u32, world.now);
        let book = &world.books.vms[vm];
        charged += book.charged_ns as f64 / own_ns as f64;
        turns += book.grants as f64;
        world.note(|| {
            let until = book.longest_wait_at_ns;
            format!("VM {vm} of {weight}/{all}, slice {own_ns}, waited {wait} of {bound:.0} until {until}; C {c:.0}")
        });
        found.see(&WAIT_TO_BOUND, wait as f64 / bound, 1.0);
    }
    if backlogged {
        found.tell(&CUT, turns / charged);
    }
    found.close(&mut world);
    found
}
