//! A change of weight while guests run. Measures the time until the shares follow.

use std::time::Duration;

use anyhow::{Context, Result};
use vgpu_tests::device::{self, Kernels, Point, Track, Watch};

use super::{Pace, beside, host, p};
use crate::report::Figure;

const EVERY: Duration = Duration::from_millis(1);
/// Recording time before and after the change.
const SIDE: Duration = Duration::from_millis(800);
/// Device time in ns after the change whose points the line does not use.
const MARGIN_NS: u64 = 50_000_000;

pub(super) fn figures(pace: Pace) -> Result<Vec<Figure>> {
    eprintln!("live");
    let host = host(Kernels::default())?;
    host.admin("register-vm --vm-id=2 --pool=A")?;
    let _guests = [1, 2]
        .map(|vm| device::saturate(&host, vm, "short", 1_000, 600))
        .into_iter()
        .collect::<Result<Vec<_>>>()?;
    let watch = Watch::start(&host, &[(1, 1), (2, 1)])?;
    watch.record_for(pace.time(2), EVERY)?;
    let rounds = match pace {
        Pace::Full => 3,
        Pace::Quick => 1,
    };
    let mut follow = Vec::new();
    for _ in 0..rounds {
        for class in ["high", "medium"] {
            follow.push(change(&watch, || {
                host.admin(&format!("vm set 2 --priority={class}"))
            })?);
        }
    }
    const LIVE: (f64, &str) = (
        2.0,
        "design: one quantum (2 ms) after the answer; published: NVIDIA vGPU only with no VM running",
    );
    Ok(vec![
        beside(
            "weight_change_follows_p50",
            p(&follow, 0.5),
            "ms used",
            LIVE,
        ),
        beside(
            "weight_change_follows_max",
            p(&follow, 1.0),
            "ms used",
            LIVE,
        ),
    ])
}

/// Milliseconds of device time from the answer to the command until VM 2 has its new share. The
/// result is the intersection of two lines, which fit VM 2's time before and after the change.
/// Device time is used so that other load on the machine does not distort the lines. The duration
/// of the command is not included; if the change takes effect before the answer arrives, the result
/// is negative.
fn change(watch: &Watch<'_>, command: impl FnOnce() -> Result<String>) -> Result<f64> {
    let before = watch.record_for(SIDE, EVERY)?;
    command()?;
    let answered = used(&watch.look()?);
    let after = watch.record_for(SIDE, EVERY)?;
    let before = line(&before, |_| true).context("no line before")?;
    let settled = |point: &Point| used(point) > answered + MARGIN_NS;
    let after = line(&after, settled).context("no line after")?;
    // y = offset + slope × (x − origin) on both sides.
    let at_answer = |line: &Line| line.offset + line.slope * (answered as f64 - line.origin as f64);
    Ok((at_answer(&after) - at_answer(&before)) / (before.slope - after.slope) / 1e6)
}

/// Device time in ns used by both VMs.
fn used(point: &Point) -> u64 {
    point.busy_ns.iter().sum()
}

struct Line {
    origin: u64,
    offset: f64,
    slope: f64,
}

/// The least-squares line through VM 2's device time as a function of both VMs' device time.
fn line(track: &Track, take: impl Fn(&Point) -> bool) -> Option<Line> {
    let points: Vec<&Point> = track.points.iter().filter(|p| take(p)).collect();
    let origin = used(points.first()?);
    let n = points.len() as f64;
    let x = |p: &Point| (used(p) - origin) as f64;
    let y = |p: &Point| p.busy_ns.get(1).map_or(f64::NAN, |ns| *ns as f64);
    let mean = |of: &dyn Fn(&Point) -> f64| points.iter().map(|p| of(p)).sum::<f64>() / n;
    let (mx, my) = (mean(&x), mean(&y));
    let over: f64 = points.iter().map(|p| (x(p) - mx) * (y(p) - my)).sum();
    let under: f64 = points.iter().map(|p| (x(p) - mx).powi(2)).sum();
    let slope = over / under;
    Some(Line {
        origin,
        offset: my - slope * mx,
        slope,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_found() {
        let points = (0..50u64).map(|i| Point {
            at_ns: 7 + i * i,
            busy_ns: vec![i * 5, 100 + i * 5],
        });
        let track = Track {
            points: points.collect(),
        };
        let line = line(&track, |_| true).unwrap();
        assert!((line.slope - 0.5).abs() < 1e-9 && (line.offset - 100.0).abs() < 1e-6);
    }
}
