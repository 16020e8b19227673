//! A kernel that never ends, beside a VM with work. Measures the time from the hard limit to the
//! kill, and to the next completed kernels of the other VM.

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use vgpu_tests::device::{self, Kernels, Watch};
use vgpu_tests::guest::{Guest, LOAD};
use vgpu_tests::host::Host;

use super::{Pace, alone, beside, host, p, printed};
use crate::report::Figure;

/// The hard limit of a kernel, in ms.
const LIMIT_MS: u64 = 1_000;
/// Number of kernels in a batch of the other VM. The VM reports each batch of kernels of 0.1 ms.
const BATCH: u32 = 10;
const SECONDS: u64 = 3;

pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    let rounds = match pace {
        Pace::Full => 3,
        Pace::Quick => 1,
    };
    let runs = |grace: &str| -> Result<Vec<Run>> {
        (1..=rounds)
            .map(|i| {
                eprintln!("hang: grace {grace}, {i} of {rounds}");
                run(grace)
            })
            .collect()
    };
    // With a grace longer than the hard limit, vgpud lets no VM in beside the hanging kernel: this
    // case measures the watchdog alone.
    let (killed, default) = (runs("10s")?, runs("20ms")?);
    let worst = |runs: &[Run], of: fn(&Run) -> f64| runs.iter().map(of).fold(f64::NAN, f64::max);
    let middle =
        |runs: &[Run], of: fn(&Run) -> f64| p(&runs.iter().map(of).collect::<Vec<_>>(), 0.5);
    const GIM: &str = "AMD GIM: 1500 ms to notice; none on NVIDIA (design: <= 2000 ms)";
    Ok(vec![
        beside(
            "hang_limit_to_detection",
            middle(&killed, |r| r.detection_ms),
            "ms",
            (
                10.0,
                "design: <= 10 ms, none published; events have whole ms",
            ),
        ),
        beside(
            "hang_limit_to_detection_max",
            worst(&killed, |r| r.detection_ms),
            "ms",
            (10.0, "design: <= 10 ms"),
        ),
        beside(
            "hang_limit_to_neighbour",
            middle(&killed, |r| r.neighbour_ms),
            "ms",
            (
                2_000.0,
                "design: <= 2000 ms to neighbours' first finished kernels",
            ),
        ),
        beside(
            "hang_limit_to_neighbour_max",
            worst(&killed, |r| r.neighbour_ms),
            "ms",
            (2_000.0, "design: <= 2000 ms"),
        ),
        beside(
            "hang_neighbour_stands_still",
            worst(&default, |r| r.gap_ms),
            "ms",
            (1_500.0, GIM),
        ),
        alone(
            "hang_guest_told",
            middle(&killed, |r| r.told_ms),
            "ms",
            "limit to CUDA_ERROR_LAUNCH_TIMEOUT in the guest",
        ),
    ])
}

/// The times of one hang, in ms.
#[derive(Debug)]
struct Run {
    /// From the hard limit to the event of the kill.
    detection_ms: f64,
    /// From the hard limit to the other VM's next batch.
    neighbour_ms: f64,
    /// From the hard limit to the error in the hanging guest.
    told_ms: f64,
    /// Longest time between two batches of the other VM.
    gap_ms: f64,
}

fn run(grace: &str) -> Result<Run> {
    let host = host(Kernels::default())?;
    let limit = format!("{LIMIT_MS}ms");
    host.admin(&format!(
        "pool set A --hard-limit={limit} --contended-limit={limit} --soft-limit=500ms \
         --overrun-grace={grace} --strikes=unlimited"
    ))?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let neighbour = device::saturate(&host, 2, "short", BATCH, SECONDS)?;
    Watch::start(&host, &[(2, 1)])?;
    let hang = Guest::new(LOAD, host.target(1))?.arg("hang").spawn()?;
    let told = printed(hang, SECONDS)?;
    let [_, told, code] = told.first().context("the hang printed nothing")?[..] else {
        anyhow::bail!("the hang printed {told:?}")
    };
    ensure!(code == 702, "the hang ended with {code}");
    let batches: Vec<u64> = printed(neighbour, SECONDS)?.into_iter().flatten().collect();
    let (begin, end) = batches
        .windows(2)
        .map(|pair| (pair[0], pair[1]))
        .max_by_key(|(from, to)| to - from)
        .context("the neighbour did not run")?;
    let detected = killed_at(&host)?;
    // The hanging kernel got its turn when the other VM's last batch ended: the hard limit counts
    // from then.
    let due = begin as f64 + LIMIT_MS as f64 * 1e6;
    let since = |at: f64| (at - due) / 1e6;
    Ok(Run {
        detection_ms: since(detected),
        neighbour_ms: since(end as f64),
        told_ms: since(told as f64),
        gap_ms: (end - begin) as f64 / 1e6,
    })
}

/// Time of the kill on CLOCK_MONOTONIC, in ns. The event gives the time in whole milliseconds.
fn killed_at(host: &Host) -> Result<f64> {
    let events = host.admin_json("events")?;
    let list = events.as_array().or_else(|| events["events"].as_array());
    let at_ms = list
        .context("a list of events")?
        .iter()
        .find(|event| event["kind"] == "hard_limit")
        .and_then(|event| event["at_unix_ms"].as_u64())
        .context("no event of the hard limit")?;
    let real = clock_gettime(ClockId::CLOCK_REALTIME)?;
    let real = real.tv_sec() as f64 * 1e9 + real.tv_nsec() as f64;
    Ok(at_ms as f64 * 1e6 - (real - device::now_ns() as f64))
}
