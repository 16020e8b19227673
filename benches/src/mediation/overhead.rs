//! The cost of the scheduler for a guest that is alone. Pairs of runs compare the same guest on
//! `vgpu-worker` and on a worker whose lease never ends (`vgpu-bench-worker`). A run on soft-gpu in
//! the guest's own process gives the cost of remoting as a whole.

use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_tests::device::{Kernels, saturating};
use vgpu_tests::guest::Target;
use vgpu_tests::host::{Host, Options, one_vm};
use vgpu_tests::paths;

use super::{Pace, beside, latencies, p, printed, requests};
use crate::report::Figure;

/// Kernels of 0.1 ms without pause: the cost for a busy guest.
const BUSY: (&str, u32) = ("short", 200);
/// One kernel of 0.1 ms and a synchronisation, repeated: the lease is parked and retaken each time.
const REQUEST: (&str, u32) = ("short", 1);
/// Kernels without duration: only the cost of the calls.
const NULL: (&str, u32) = ("null", 2_000);

/// Length of each run in s.
const SECONDS: u64 = 1;

pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    let rounds = match pace {
        Pace::Full => 5,
        Pace::Quick => 2,
    };
    let (on, off) = (leased(true)?, leased(false)?);
    let mut pairs = Pairs::default();
    for i in 1..=rounds {
        eprintln!("overhead: pair {i} of {rounds}");
        // The second run of a pair starts from another state of the machine than the first, so the
        // order alternates.
        let order = if i % 2 == 0 {
            [true, false]
        } else {
            [false, true]
        };
        for with in order {
            let host = if with { &on } else { &off };
            let side = if with { &mut pairs.on } else { &mut pairs.off };
            side.busy.push(rate(&host.target(1), BUSY, SECONDS)?);
            side.null.push(rate(&host.target(1), NULL, SECONDS)?);
            let request = requests(host, 1, REQUEST, Duration::ZERO, SECONDS)?;
            side.request.push(p(&latencies(request, SECONDS)?, 0.5));
        }
        pairs.direct.push(rate(&Target::SoftGpu, BUSY, SECONDS)?);
    }
    Ok(pairs.figures())
}

/// A host whose workers request leases from vgpud (`asked`), or have a lease that never ends.
fn leased(asked: bool) -> Result<Host> {
    let config = if asked {
        String::new()
    } else {
        let worker = paths::built("vgpu-bench-worker")?;
        format!("[worker]\nbinary = {:?}\n", worker.display().to_string())
    };
    // Each worker has its own software device: vgpud would kill a worker that computes on a shared
    // device without a lease. Both hosts are set so, to be comparable.
    let soft_env = vec![("SOFT_GPU_STATE".into(), String::new())];
    one_vm(&Kernels::default().on(Options {
        strict: false,
        config,
        soft_env,
        ..Options::default()
    }))
}

/// Kernels per second of a saturating guest.
fn rate(target: &Target, (kernel, batch): (&str, u32), seconds: u64) -> Result<f64> {
    let mut guest = saturating(target.clone(), kernel, batch, seconds)?;
    if let Target::SoftGpu = target {
        for (name, value) in Kernels::default().environment() {
            guest = guest.env(name, value);
        }
    }
    let ends: Vec<u64> = printed(guest.spawn()?, seconds)?
        .into_iter()
        .flatten()
        .collect();
    let (first, last) = (
        ends.first().context("no batch ended")?,
        ends.last().context("no batch ended")?,
    );
    Ok((ends.len() - 1) as f64 * f64::from(batch) * 1e9 / (last - first) as f64)
}

#[derive(Debug, Default)]
struct Side {
    busy: Vec<f64>,
    null: Vec<f64>,
    request: Vec<f64>,
}

#[derive(Debug, Default)]
struct Pairs {
    on: Side,
    off: Side,
    direct: Vec<f64>,
}

impl Pairs {
    fn figures(&self) -> Vec<Figure> {
        // The percentage by which `a` is worse than `b`: median over the pairs.
        let percent = |a: &[f64], b: &[f64], more_is_better: bool| {
            let each: Vec<f64> = a
                .iter()
                .zip(b)
                .map(|(a, b)| if more_is_better { b / a } else { a / b })
                .map(|ratio| (ratio - 1.0) * 100.0)
                .collect();
            p(&each, 0.5)
        };
        let (on, off) = (&self.on, &self.off);
        const XSCHED: (f64, &str) = (
            0.8,
            "XSched Lv1 on GV100: 0.8 % (design: <= 1 %); kernels of 0.1 ms, lease on to off in pairs",
        );
        vec![
            beside(
                "lease_overhead_busy",
                percent(&on.busy, &off.busy, true),
                "%",
                XSCHED,
            ),
            beside(
                "lease_overhead_request",
                percent(&on.request, &off.request, false),
                "%",
                (
                    1.0,
                    "design: <= 1 %; one kernel of 0.1 ms and a synchronisation, p50",
                ),
            ),
            beside(
                "lease_overhead_null_kernels",
                percent(&on.null, &off.null, true),
                "%",
                (1.0, "the worst case: kernels without length, calls alone"),
            ),
            beside(
                "single_guest_rate",
                p(&on.busy, 0.5),
                "1/s",
                (
                    p(&self.direct, 0.5),
                    "the same program on soft-gpu directly, kernels of 0.1 ms",
                ),
            ),
        ]
    }
}
