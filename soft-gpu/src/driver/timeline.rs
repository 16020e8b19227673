//! The timeline of the device, which events measure.
//!
//! A GPU is not slower because its host is busy, and a kernel of one block leaves the other
//! multiprocessors to other kernels. The wall clock does not show this here, because all kernels
//! share the processor that emulates the device. On the timeline, a long kernel therefore takes the
//! time that its threads really computed ([`crate::exec::contract::RunStats::device_ns`]). The
//! kernel occupies as many multiprocessors as it has blocks, and runs beside other kernels while
//! multiprocessors are free. Each stream stores the time by which it is behind the wall clock
//! ([`Lag`]); an idle stream is not behind. On an otherwise idle machine, the timeline and the wall
//! clock agree.
//!
//! `SOFT_GPU_CLOCK` is a separate feature. It gives kernels fixed times instead of executing them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::part::Part;
use super::sync::{lock, now_ns};
use crate::exec::contract::MULTIPROCESSORS;

/// For each multiprocessor, the time in ns at which it is free on the timeline. Only long kernels
/// of this process count.
#[derive(Debug, Default)]
pub struct Lanes(Mutex<[u64; MULTIPROCESSORS as usize]>);

impl Lanes {
    /// Places a kernel of `blocks` blocks that takes `ns` nanoseconds on a part of the device. The
    /// kernel starts at `ready` or later. Returns its end, in ns.
    pub fn place(&self, ready: u64, ns: u64, blocks: u64, part: Part) -> u64 {
        let mut lanes = lock(&self.0);
        let lanes = lanes.iter_mut().enumerate();
        let mut free: Vec<&mut u64> = lanes.filter(|(i, _)| part.has(*i)).map(|l| l.1).collect();
        free.sort_unstable();
        let width = blocks.clamp(1, free.len().max(1) as u64) as usize;
        free.truncate(width);
        let end = ready.max(free.last().map_or(0, |at| **at)) + ns;
        free.into_iter().for_each(|at| *at = end);
        end
    }
}

/// The time in ns by which a stream is behind the wall clock. Only the thread that runs the
/// stream's work changes the value.
#[derive(Debug, Default)]
pub struct Lag(AtomicU64);

impl Lag {
    /// The stream's present time on the timeline, in ns.
    pub fn now(&self) -> u64 {
        now_ns() - self.0.load(Ordering::Relaxed)
    }

    /// Sets the stream's time to the wall clock, after the stream was idle.
    pub fn catch_up(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// Sets the stream's time to `at`, in ns, or to the wall clock if `at` is in the future.
    pub fn set(&self, at: u64) {
        self.0.store(now_ns().saturating_sub(at), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_kernels_run_concurrently_and_large_ones_in_turn() {
        let lanes = Lanes::default();
        let place = |ready, ns, blocks| lanes.place(ready, ns, blocks, Part::ALL);
        for _ in 0..MULTIPROCESSORS {
            assert_eq!(place(1000, 50, 1), 1050);
        }
        assert_eq!(place(1000, 50, 1), 1100, "no multiprocessor is free");
        assert_eq!(place(1000, 10, 500), 1110, "all of them are needed");
        assert_eq!(place(1000, 10, 2), 1120);
        assert_eq!(place(2000, 10, 500), 2010);
    }

    #[test]
    fn parts_of_the_device_do_not_wait_for_each_other() {
        let lanes = Lanes::default();
        let [a, b] = [0x000f, 0x00f0].map(|bits| Part::from_bits(bits).expect("a part"));
        assert_eq!(lanes.place(1000, 50, 500, a), 1050);
        assert_eq!(lanes.place(1000, 50, 500, b), 1050);
        assert_eq!(lanes.place(1000, 50, 1, a), 1100);
        assert_eq!(lanes.place(1000, 50, 500, Part::ALL), 1150);
    }

    #[test]
    fn a_stream_is_behind_until_it_catches_up() {
        let lag = Lag::default();
        let at = now_ns() - 1_000_000_000;
        lag.set(at);
        let behind = || {
            let then = lag.now();
            now_ns() - then
        };
        let long = behind();
        assert!((1_000_000_000..=2_000_000_000).contains(&long), "{long}");
        lag.set(u64::MAX);
        assert!(behind() < 900_000_000);
        lag.set(at);
        lag.catch_up();
        assert!(behind() < 900_000_000);
    }
}
