//! Compares the shares of saturating guests with their weights.

use std::time::Duration;

use anyhow::Result;
use vgpu_tests::device::{self, Kernels, Watch, error_points, normal};
use vgpu_tests::host::Host;

use super::{Pace, beside, host};
use crate::report::Figure;

/// Half of the GPU time, in ns, of the work that a guest keeps queued.
const BATCH_NS: u64 = 100_000_000;
/// Interval between two readings of the device.
const EVERY: Duration = Duration::from_millis(10);

/// A guest: class, factor in percent, the resulting weight, and the name of its kernel.
type Tenant = (&'static str, u32, f64, &'static str);

struct Case {
    name: &'static str,
    tenants: &'static [Tenant],
    /// The published error in percentage points, with its conditions.
    published: (f64, &'static str),
}

const XSCHED: &str = "XSched, 75/25 on GV100, quantum 50 ms: 0.26 points";
const HAMI: &str = "HAMi-core #314, caps 30/70: got 46/54, 16 points";
const AIMD: &str = "vgpu-manager's best controller: mean error 2.2 points, one pod a cap";

const MIX: [Tenant; 4] = [
    ("high", 100, 16.0, "short"),
    ("medium", 100, 4.0, "medium"),
    ("low", 100, 1.0, "short"),
    ("low", 200, 2.0, "long"),
];

/// The kernels take 0.1, 0.5 and 1 ms. The guests of lower weight run the longer kernels: a
/// scheduler that counts launches instead of time would favour these guests.
const CASES: [Case; 5] = [
    Case {
        name: "2_even",
        tenants: &[("medium", 100, 4.0, "short"), ("medium", 100, 4.0, "long")],
        published: (0.26, XSCHED),
    },
    Case {
        name: "2_75_25",
        tenants: &[("medium", 300, 12.0, "short"), ("medium", 100, 4.0, "long")],
        published: (0.26, XSCHED),
    },
    Case {
        name: "2_30_70",
        tenants: &[
            ("medium", 300, 12.0, "medium"),
            ("medium", 700, 28.0, "medium"),
        ],
        published: (16.0, HAMI),
    },
    Case {
        name: "4_16_4_1_2",
        tenants: &MIX,
        published: (2.2, AIMD),
    },
    Case {
        name: "16_mixed",
        tenants: &[
            MIX[0], MIX[1], MIX[2], MIX[3], MIX[0], MIX[1], MIX[2], MIX[3], MIX[0], MIX[1], MIX[2],
            MIX[3], MIX[0], MIX[1], MIX[2], MIX[3],
        ],
        published: (2.2, AIMD),
    },
];

pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    let alone = Alone::measure(pace)?;
    let mut figures = Vec::new();
    for case in &CASES {
        eprintln!("shares: {}", case.name);
        figures.extend(measure(case, pace, &alone)?);
    }
    Ok(figures)
}

fn kernel_ns(kernel: &str) -> u64 {
    let kernels = Kernels::default();
    match kernel {
        "short" => kernels.short,
        "medium" => kernels.medium,
        "long" => kernels.long,
        _ => kernels.longest,
    }
}

fn saturate(host: &Host, vm: u32, kernel: &str) -> Result<vgpu_tests::guest::Running> {
    let batch = u32::try_from(BATCH_NS / kernel_ns(kernel))?;
    device::saturate(host, vm, kernel, batch, 600)
}

/// For each kernel: the fraction of time for which the device is busy if one guest runs alone.
struct Alone(Vec<(&'static str, f64)>);

impl Alone {
    fn measure(pace: Pace) -> Result<Alone> {
        let busy = |kernel: &'static str| -> Result<_> {
            let host = host(Kernels::default())?;
            let _guest = saturate(&host, 1, kernel)?;
            let watch = Watch::start(&host, &[(1, 1)])?;
            let track = watch.record_for(pace.time(2), EVERY)?;
            Ok((
                kernel,
                track.busy().as_secs_f64() / track.wall().as_secs_f64(),
            ))
        };
        ["short", "medium", "long"]
            .into_iter()
            .map(busy)
            .collect::<Result<_>>()
            .map(Alone)
    }

    fn of(&self, kernel: &str) -> f64 {
        let found = self.0.iter().find(|(name, _)| *name == kernel);
        found.map_or(f64::NAN, |(_, busy)| *busy)
    }
}

fn measure(case: &Case, pace: Pace, alone: &Alone) -> Result<Vec<Figure>> {
    let host = host(Kernels::default())?;
    let vms: Vec<u32> = (1..).take(case.tenants.len()).collect();
    let mut guests = Vec::new();
    for (vm, (class, factor, _, kernel)) in vms.iter().zip(case.tenants) {
        if *vm > 1 {
            host.admin(&format!("register-vm --vm-id={vm} --pool=A"))?;
        }
        host.admin(&format!("vm set {vm} --priority={class} --factor={factor}"))?;
        guests.push(saturate(&host, *vm, kernel)?);
    }
    let watch = Watch::start(&host, &vms.iter().map(|vm| (*vm, 1)).collect::<Vec<_>>())?;
    // During this time, the scheduler evens out the lags from different start times.
    watch.record_for(pace.time(2), EVERY)?;
    let before = device::charged(&host)?;
    let track = watch.record_for(pace.time(11), EVERY)?;
    let after = device::charged(&host)?;
    drop(guests);

    let weights: Vec<f64> = case.tenants.iter().map(|t| t.2).collect();
    let charged: Vec<f64> = vms
        .iter()
        .map(|vm| (after[vm] - before[vm]) as f64)
        .collect();
    let charged = normal(&charged);
    let accounts = error_points(&track.shares(), &charged);
    let long = pace.time(10).min(track.wall());
    let name = case.name;
    let utilised = track.busy().as_secs_f64() / track.wall().as_secs_f64();
    let alone: f64 = normal(&weights)
        .iter()
        .zip(case.tenants)
        .map(|(share, tenant)| share * alone.of(tenant.3))
        .sum();
    const ACCOUNT: &str = "design: 0.25 points at 10 s";
    Ok(vec![
        beside(
            format!("share_error_10s_{name}"),
            track.worst_error(&weights, long),
            "points",
            case.published,
        ),
        beside(
            format!("share_error_1s_{name}"),
            track.worst_error(&weights, Duration::from_secs(1)),
            "points",
            (1.0, "design: 1 point at 1 s; none published"),
        ),
        beside(
            format!("share_error_charged_{name}"),
            error_points(&charged, &weights),
            "points",
            (0.25, ACCOUNT),
        ),
        super::alone(
            format!("share_charged_to_used_{name}"),
            accounts,
            "points",
            "charged by vgpud against used by soft-gpu's account",
        ),
        beside(
            format!("throughput_{name}"),
            utilised / alone,
            "of alone",
            (0.943, "XSched, 75/25 on GV100: 0.943 of standalone"),
        ),
    ])
}
