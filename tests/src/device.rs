//! The device's own records: soft-gpu's account of each process, with which the tests compare the
//! shares and accounts of vgpud.
//!
//! With soft-gpu's device clock, a kernel of [`crate::guest::LOAD`] takes exactly its defined time
//! on one timeline that all processes share, without using a processor. So the device time of a VM
//! is the number of its finished kernels times their length, independent of the machine's speed.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::time::{ClockId, clock_gettime};
use soft_gpu::driver::share::{SlotView, read_slots};

use crate::guest::{Guest, LOAD, Running, Target};
use crate::host::{Host, Options};
use crate::wait;

/// Durations of the kernels of [`LOAD`] on the device clock, in ns.
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
    /// The environment variables of soft-gpu for these durations.
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

    /// Options for one device with this clock, on which the kernel `hang` never ends (and uses no
    /// processor).
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
/// If the program does not compile.
pub fn saturating(target: Target, kernel: &str, batch: u32, seconds: u64) -> Result<Guest> {
    Ok(Guest::new(LOAD, target)?
        .arg("saturate")
        .arg(kernel)
        .arg(batch.to_string())
        .arg(seconds.to_string()))
}

/// Starts a guest of [`saturating`] in `vm`.
///
/// # Errors
/// If the program does not start.
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

/// GPU time that vgpud has charged to each VM for its open sessions, in ns, in one snapshot.
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

/// Every process that has ever used device 0.
///
/// # Errors
/// If there is no device 0.
pub fn slots(host: &Host) -> Result<Vec<SlotView>> {
    let dir = host.dir().join("run/soft-gpu");
    read_slots(&dir, 0).with_context(|| format!("the device's state in {}", dir.display()))
}

/// The device time of some VMs' workers, which are already running.
#[derive(Debug, Clone)]
pub struct Watch<'a> {
    host: &'a Host,
    vms: Vec<u32>,
    workers: BTreeMap<u32, Vec<u32>>,
}

impl<'a> Watch<'a> {
    /// Waits until each of these VMs has `sessions` computing programs.
    ///
    /// # Errors
    /// If a VM does not within the deadline.
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

    /// Takes a sample.
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

    /// Takes samples every `every` while `go_on` returns true.
    ///
    /// # Errors
    /// If a sample fails.
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

    /// Takes samples for a time.
    ///
    /// # Errors
    /// If a sample fails.
    pub fn record_for(&self, time: Duration, every: Duration) -> Result<Track> {
        let start = Instant::now();
        self.record(every, |_| start.elapsed() < time)
    }

    /// Takes samples until these VMs together have used `busy` of device time.
    ///
    /// # Errors
    /// If a sample fails, or the VMs do not within a generous deadline.
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

/// A sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Point {
    /// Time of the sample, in ns.
    pub at_ns: u64,
    /// Device time of each watched VM since its workers started, in ns.
    pub busy_ns: Vec<u64>,
}

/// Consecutive samples.
#[derive(Debug, Clone)]
pub struct Track {
    /// Samples in order of time.
    pub points: Vec<Point>,
}

/// Shares of the device time used between two samples, by VM.
pub fn shares_between(from: &Point, to: &Point) -> Vec<f64> {
    let used: Vec<u64> = to
        .busy_ns
        .iter()
        .zip(&from.busy_ns)
        .map(|(to, from)| to.saturating_sub(*from))
        .collect();
    normal(&used.iter().map(|ns| *ns as f64).collect::<Vec<_>>())
}

/// Normalises values to a sum of 1.
pub fn normal(values: &[f64]) -> Vec<f64> {
    let whole: f64 = values.iter().sum();
    values.iter().map(|v| v / whole).collect()
}

/// The largest difference between a share and the share by weight, in percentage points.
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

    /// Shares over the whole track, by VM.
    pub fn shares(&self) -> Vec<f64> {
        self.ends()
            .map(|(from, to)| shares_between(from, to))
            .unwrap_or_default()
    }

    /// Device time used during the track.
    pub fn busy(&self) -> Duration {
        let sum = |p: &Point| p.busy_ns.iter().sum::<u64>();
        let used = self
            .ends()
            .map_or(0, |(from, to)| sum(to).saturating_sub(sum(from)));
        Duration::from_nanos(used)
    }

    /// Duration of the track.
    pub fn wall(&self) -> Duration {
        let wall = self.ends().map_or(0, |(from, to)| to.at_ns - from.at_ns);
        Duration::from_nanos(wall)
    }

    /// Pairs of samples at a distance of `window` (the first that is at least as long), in order.
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
