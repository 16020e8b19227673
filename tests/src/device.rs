//! What the device itself says: soft-gpu's own account of each process, against which the shares and
//! the books of vgpud are held.
//!
//! With soft-gpu's device clock a kernel of [`crate::guest::LOAD`] takes exactly its time on one timeline
//! that all processes share, and needs no processor for it. So what a VM got is a count of finished
//! kernels times their length: it does not depend on how fast the machine is.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use soft_gpu::driver::share::{SlotView, read_slots};

use crate::guest::{Guest, LOAD, Running, Target};
use crate::host::{Host, Options};
use crate::wait;

/// How long the kernels of [`LOAD`] take on the device clock, in ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Kernels {
    /// `short`.
    pub short: u64,
    /// `medium`.
    pub medium: u64,
    /// `long`.
    pub long: u64,
    /// `longest`.
    pub longest: u64,
}

impl Default for Kernels {
    fn default() -> Self {
        Kernels {
            short: 100_000,
            medium: 500_000,
            long: 1_000_000,
            longest: 2_000_000,
        }
    }
}

impl Kernels {
    /// The variables of soft-gpu that say so.
    #[must_use]
    pub fn environment(self) -> [(String, String); 2] {
        let Kernels {
            short,
            medium,
            long,
            longest,
        } = self;
        let clock = format!("short:{short},medium:{medium},long:{long},longest:{longest},null:0");
        [
            ("SOFT_GPU_CLOCK".into(), clock),
            ("SOFT_GPU_FAULT".into(), "hang:0:hang".into()),
        ]
    }

    /// One device with this clock, on which the kernel `hang` never ends (and takes no processor
    /// while it does not).
    #[must_use]
    pub fn on(self, options: Options) -> Options {
        let mut soft_env = options.soft_env;
        soft_env.extend(self.environment());
        Options {
            devices: 1,
            soft_env,
            ..options
        }
    }
}

/// CLOCK_MONOTONIC in ns: the clock of the device, the guests and vgpud.
pub fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}

/// A guest that always has two batches of `batch` kernels queued.
///
/// # Errors
/// If it does not compile.
pub fn saturating(target: Target, kernel: &str, batch: u32, seconds: u64) -> Result<Guest> {
    Ok(Guest::new(LOAD, target)?
        .arg("saturate")
        .arg(kernel)
        .arg(batch.to_string())
        .arg(seconds.to_string()))
}

/// Starts such a guest of `vm`.
///
/// # Errors
/// If it does not start.
pub fn saturate(host: &Host, vm: u32, kernel: &str, batch: u32, seconds: u64) -> Result<Running> {
    saturating(host.target(vm), kernel, batch, seconds)?.spawn()
}

/// The worker processes of each VM.
///
/// # Errors
/// If the daemon does not answer.
pub fn workers(host: &Host) -> Result<BTreeMap<u32, Vec<u32>>> {
    let mut workers: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
    for session in sessions(host)? {
        let number = |name: &str| session[name].as_u64().and_then(|n| u32::try_from(n).ok());
        if let (Some(vm), Some(pid)) = (number("vm_id"), number("worker_pid")) {
            workers.entry(vm).or_default().push(pid);
        }
    }
    Ok(workers)
}

fn sessions(host: &Host) -> Result<Vec<serde_json::Value>> {
    let list = host.admin_json("session list")?;
    Ok(list.as_array().context("a list of sessions")?.clone())
}

/// GPU time that vgpud has charged to each VM for its open sessions, in ns, all at one moment.
///
/// # Errors
/// If the daemon does not answer.
pub fn charged(host: &Host) -> Result<BTreeMap<u32, u64>> {
    let mut charged = BTreeMap::new();
    for session in sessions(host)? {
        let vm = session["vm_id"].as_u64().context("a VM's number")?;
        let ns = session["gpu_ns"].as_u64().context("GPU time")?;
        *charged.entry(u32::try_from(vm)?).or_default() += ns;
    }
    Ok(charged)
}

/// Every process that ever used device 0.
///
/// # Errors
/// If there is no such device.
pub fn slots(host: &Host) -> Result<Vec<SlotView>> {
    let dir = host.dir().join("run/soft-gpu");
    read_slots(&dir, 0).with_context(|| format!("the device's state in {}", dir.display()))
}

/// The device as seen through some VMs' workers, which run already.
#[derive(Debug, Clone)]
pub struct Watch<'a> {
    host: &'a Host,
    vms: Vec<u32>,
    workers: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Watch<'a> {
    /// Waits until each of these VMs has `sessions` programs that compute.
    ///
    /// # Errors
    /// If one does not within a deadline.
    pub fn start(host: &'a Host, vms: &[(u32, usize)]) -> Result<Watch<'a>> {
        wait::until("every VM computes", 4 * wait::SOON, || {
            let watch = Watch {
                host,
                vms: vms.iter().map(|(vm, _)| *vm).collect(),
                workers: workers(host).ok()?,
            };
            let slots = slots(host).ok()?;
            let computes = |pid: &u32| slots.iter().any(|s| s.pid == *pid && s.kernels > 0);
            let all = vms.iter().all(|(vm, sessions)| {
                let pids = watch.workers.get(vm);
                pids.is_some_and(|p| p.len() == *sessions && p.iter().all(computes))
            });
            all.then_some(watch)
        })
        .with_context(|| host.log())
    }

    /// One look.
    ///
    /// # Errors
    /// If the device's state cannot be read.
    pub fn look(&self) -> Result<Point> {
        let slots = slots(self.host)?;
        let busy_of = |vm: &u32| -> u64 {
            let pids = self.workers.get(vm).map_or(&[][..], Vec::as_slice);
            let mine = slots.iter().filter(|s| pids.contains(&s.pid));
            mine.map(|s| s.busy_ns).sum()
        };
        Ok(Point {
            at_ns: now_ns(),
            busy_ns: self.vms.iter().map(busy_of).collect(),
        })
    }

    /// Looks every `every` for as long as `go_on` says.
    ///
    /// # Errors
    /// If a look fails.
    pub fn record(&self, every: Duration, mut go_on: impl FnMut(&Track) -> bool) -> Result<Track> {
        let mut track = Track {
            points: vec![self.look()?],
        };
        while go_on(&track) {
            std::thread::sleep(every);
            track.points.push(self.look()?);
        }
        Ok(track)
    }

    /// Looks for a time.
    ///
    /// # Errors
    /// If a look fails.
    pub fn record_for(&self, time: Duration, every: Duration) -> Result<Track> {
        let start = Instant::now();
        self.record(every, |_| start.elapsed() < time)
    }

    /// Looks until these VMs together have used the device for `busy`.
    ///
    /// # Errors
    /// If a look fails, or they have not within a generous deadline.
    pub fn record_busy(&self, busy: Duration, every: Duration) -> Result<Track> {
        let (start, deadline) = (Instant::now(), 10 * busy + 4 * wait::SOON);
        let track = self.record(every, |track| {
            track.busy() < busy && start.elapsed() < deadline
        })?;
        ensure!(
            track.busy() >= busy,
            "the device was used for {:?} only in {deadline:?}",
            track.busy()
        );
        Ok(track)
    }
}

/// One look at the device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// When.
    pub at_ns: u64,
    /// Device time used by each watched VM since its workers started.
    pub busy_ns: Vec<u64>,
}

/// Looks in a row.
#[derive(Debug, Clone)]
pub struct Track {
    /// In order of time.
    pub points: Vec<Point>,
}

/// Part of all that was used between two looks, by VM.
pub fn shares_between(from: &Point, to: &Point) -> Vec<f64> {
    let used: Vec<u64> = to
        .busy_ns
        .iter()
        .zip(&from.busy_ns)
        .map(|(to, from)| to.saturating_sub(*from))
        .collect();
    normal(&used.iter().map(|ns| *ns as f64).collect::<Vec<_>>())
}

/// Parts of the whole.
pub fn normal(values: &[f64]) -> Vec<f64> {
    let whole: f64 = values.iter().sum();
    values.iter().map(|v| v / whole).collect()
}

/// The largest difference between a share and what weights demand, in percentage points.
pub fn error_points(shares: &[f64], weights: &[f64]) -> f64 {
    let wanted = normal(weights);
    let errors = shares
        .iter()
        .zip(wanted)
        .map(|(is, wanted)| (is - wanted).abs());
    errors.fold(0.0, f64::max) * 100.0
}

impl Track {
    fn ends(&self) -> Option<(&Point, &Point)> {
        Some((self.points.first()?, self.points.last()?))
    }

    /// Shares over all of it, by VM.
    pub fn shares(&self) -> Vec<f64> {
        self.ends()
            .map(|(from, to)| shares_between(from, to))
            .unwrap_or_default()
    }

    /// Device time used in it.
    pub fn busy(&self) -> Duration {
        let sum = |p: &Point| p.busy_ns.iter().sum::<u64>();
        let used = self
            .ends()
            .map_or(0, |(from, to)| sum(to).saturating_sub(sum(from)));
        Duration::from_nanos(used)
    }

    /// How long it is.
    pub fn wall(&self) -> Duration {
        let wall = self.ends().map_or(0, |(from, to)| to.at_ns - from.at_ns);
        Duration::from_nanos(wall)
    }

    /// Pairs of looks `window` apart (the first that are at least so), in order.
    pub fn windows(&self, window: Duration) -> impl Iterator<Item = (&Point, &Point)> {
        let window = window.as_nanos() as u64;
        let mut end = 0;
        self.points.iter().map_while(move |from| {
            while self.points.get(end)?.at_ns < from.at_ns + window {
                end += 1;
            }
            self.points.get(end).map(|to| (from, to))
        })
    }

    /// The largest error of any VM in any window of this length, in percentage points; NaN if the
    /// track is shorter.
    pub fn worst_error(&self, weights: &[f64], window: Duration) -> f64 {
        let errors = self
            .windows(window)
            .map(|(from, to)| error_points(&shares_between(from, to), weights));
        errors.fold(f64::NAN, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn track(points: &[(u64, [u64; 2])]) -> Track {
        let points = points.iter().map(|(at_ms, busy)| Point {
            at_ns: at_ms * 1_000_000,
            busy_ns: busy.to_vec(),
        });
        Track {
            points: points.collect(),
        }
    }

    #[test]
    fn windows_slide_and_the_worst_counts() {
        let track = track(&[(0, [0, 0]), (10, [10, 0]), (20, [15, 5]), (30, [20, 10])]);
        let window = Duration::from_millis(20);
        assert_eq!(track.windows(window).count(), 2);
        assert!((track.worst_error(&[1.0, 1.0], window) - 25.0).abs() < 1e-9);
        assert!((track.worst_error(&[2.0, 1.0], 3 * window / 2)).abs() < 1e-9);
        assert!(track.worst_error(&[1.0, 1.0], 2 * window).is_nan());
        assert_eq!(track.busy(), Duration::from_nanos(30));
    }
}
