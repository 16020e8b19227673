//! Kernels that outlast every slice, and kernels that never end: the other VMs run beside them
//! until the hard limit kills the worker.

use vgpu_sched::{MICROS, MILLIS, PoolConfig, SECONDS};

use super::shares::short_kernels;
use super::{Plan, Proof};
use crate::dist::Length;
use crate::found::{Found, Measure, Rule, ms};
use crate::guest::Load;
use crate::rng::Rng;
use crate::setup::{Conduct, Setup, weighted};
use crate::world::World;

pub(super) const PROOF: Proof = Proof {
    name: "overrun",
    what: "honest VMs get at least half beside overrunners; hangs and kept leases are ended in time",
    part: 25,
    run,
};

static HALF: Measure = Measure {
    name: "overrun_honest_share_min",
    what: "charged time of the honest VMs together, from slice + grace to the limit",
    unit: "ratio",
    rule: Rule::AtLeast,
};
static HALF_TRUTH: Measure = Measure {
    name: "overrun_honest_busy_min",
    what: "the same of the device's busy time (in driver turns of 1 ms)",
    unit: "ratio",
    rule: Rule::AtLeast,
};
/// Honest VMs get half of the device, except for one driver turn per lease: at each handoff they
/// have no work on the device for a moment, and the overrunner gets a whole turn. So in a lease in
/// which the honest VM has h turns, the overrunner has at most h + 1. If loading a context costs
/// 150 µs per turn, a lease of 20 ms has h ≥ (20 - 1) / 2.3 = 8.2, and the honest part is at least
/// 8.2 / 17.4.
const TURNS: f64 = 0.47;
static LATE: Measure = Measure {
    name: "kill_after_limit_ms_max",
    what: "from the hard limit to the kill",
    unit: "ms",
    rule: Rule::AtMost,
};
static UNKILLED: Measure = Measure {
    name: "hangs_not_ended",
    what: "hung or deaf workers that were not killed",
    unit: "",
    rule: Rule::AtMost,
};
static NEIGHBOURS: Measure = Measure {
    name: "hang_neighbour_wait_s_max",
    what: "longest wait of an honest VM beside a hang",
    unit: "s",
    rule: Rule::AtMost,
};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Story {
    /// Long kernels without pause.
    Long,
    /// One kernel that never ends.
    Hang,
    /// The worker ignores the revoke and continues to submit.
    Deaf,
    /// Like `Deaf`, and the worker also reports false progress.
    Boaster,
}

fn run(plan: Plan) -> Found {
    let mut rng = Rng::part(plan.seed, 3 << 40);
    let stories = [Story::Long, Story::Hang, Story::Deaf, Story::Boaster];
    let story = stories[(plan.seed % 4) as usize];
    let limit = rng.pick(&[1, 2, 10]) * SECONDS;
    let pool = PoolConfig {
        slice_ns: rng.pick(&[1, 2, 4]) * MILLIS,
        contended_limit_ns: limit,
        hard_limit_ns: rng.pick(&[None, Some(limit)]),
        soft_limit_ns: None,
        strike_limit: None,
        ..PoolConfig::default()
    };
    let (slice, grace) = (pool.slice_ns, pool.overrun_grace_ns.unwrap_or(0));
    let mut setup = Setup::new(plan.seed, rng.pick(&[20, 60, 150]) * MICROS, pool);
    let bad = setup.vms.len() as u32;
    let begins = rng.between(1, 500);
    let load = match story {
        Story::Long => Load::backlog(Length::Const(rng.between(200, 900) * MILLIS)),
        _ => Load {
            hangs_at: (story == Story::Hang).then_some(begins),
            ..Load::backlog(Length::Const(100 * MICROS))
        },
    };
    setup.vm(weighted(rng.pick(&[1, 4, 16])), vec![load]);
    setup.vms[0].guests[0].conduct = match story {
        Story::Deaf => Conduct::Deaf,
        Story::Boaster => Conduct::Boaster,
        _ => Conduct::Honest,
    };
    if story == Story::Boaster {
        setup.vms[0].guests[0].load.hangs_at = Some(begins);
    }
    let honest = rng.between(1, 4) as u32;
    for _ in 0..honest {
        let load = Load::backlog(short_kernels(&mut rng));
        setup.weighted(rng.pick(&[1, 1, 4]), load);
    }
    let mut world = plan.simulate(&setup);
    let mut found = Found::default();
    check_half(&world, bad, &mut found);
    if story != Story::Long {
        // The hang may start seconds after the start of the run, because other VMs have their turns
        // first.
        if world.now > limit + 4 * SECONDS {
            let unkilled = world.kills.is_empty();
            found.see(&UNKILLED, f64::from(u8::from(unkilled)), 0.0);
        }
        check_kill(&world, slice + grace, limit, &mut found);
    }
    for vm in (1..=honest).filter(|_| story != Story::Long) {
        let wait = world.books.longest_wait(vm, world.now);
        found.see(&NEIGHBOURS, wait as f64 / 1e9, 2.0);
    }
    found.close(&mut world);
    found
}

/// Checks the shares of the honest VMs during each declared overrun.
fn check_half(world: &World, bad: u32, found: &mut Found) {
    let gpu = &world.books.gpus[0];
    let (mut honest, mut all) = (0, 0);
    for &(from, to, vm) in &gpu.overruns {
        if vm != bad {
            continue;
        }
        for (index, book) in world.books.vms.iter().enumerate() {
            let got = book.track.at(to) - book.track.at(from);
            all += got;
            if index as u32 != bad {
                honest += got;
            }
        }
    }
    if all > 0 {
        // Rounded up, because charges are whole ns. The error is at most one millionth.
        let millionths = (honest * 1_000_000).div_ceil(all);
        found.see(&HALF, millionths as f64 / 1e6, 0.5);
    }
    if let Some((honest, all)) = world.overrun_busy_ns.filter(|&(_, all)| all > 0) {
        found.see(&HALF_TRUTH, honest as f64 / all as f64, TURNS);
    }
}

/// Checks that the kill follows at the limit, counted from the revoke, which was one grace before
/// the declared overrun.
fn check_kill(world: &World, before: u64, limit: u64, found: &mut Found) {
    let Some(&(killed, _)) = world.kills.first() else {
        return;
    };
    let mut declared = world.overruns.iter().rev();
    let Some(&(at, _)) = declared.find(|(at, _)| *at <= killed) else {
        return;
    };
    // The lease was revoked one grace before the declaration, and the last progress was at most one
    // slice earlier.
    let latest = at.max(before) + limit;
    found.see(&LATE, ms(killed.saturating_sub(latest)), 10.0);
}
