//! The device's time, which events measure.
//!
//! A GPU is not slower because its host is busy, and a kernel of one block leaves the other
//! multiprocessors to other kernels. The processor that stands in for the device here is shared, so the wall
//! clock would show both otherwise. Therefore a kernel that lasts takes, on the device's timeline, the time that
//! its threads really computed ([`crate::exec::contract::RunStats::device_ns`]), on as many multiprocessors
//! as it has blocks, beside other kernels as long as there are free ones. A stream carries by how much
//! its place on the timeline is behind the wall clock ([`Lag`]); once it has nothing to do it is not. On a
//! machine that does nothing else both clocks agree.
//!
//! (`SOFT_GPU_CLOCK` is another thing: kernels that are not executed.)

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::attributes::MULTIPROCESSORS;
use super::sync::{lock, now_ns};

/// When each multiprocessor is free on the timeline, for kernels of this process that last.
#[derive(Debug, Default)]
pub struct Lanes(Mutex<[u64; MULTIPROCESSORS as usize]>);

impl Lanes {
    /// Places a kernel of so many blocks and nanoseconds behind `ready`; gives its end.
    pub fn place(&self, ready: u64, ns: u64, blocks: u64) -> u64 {
        let mut free = lock(&self.0);
        free.sort_unstable();
        let width = blocks.clamp(1, free.len() as u64) as usize;
        let end = ready.max(free[width - 1]) + ns;
        free[..width].fill(end);
        end
    }
}

/// By how much a stream is behind the wall clock. Only who executes the stream's work changes it.
#[derive(Debug, Default)]
pub struct Lag(AtomicU64);

impl Lag {
    /// The stream's time now.
    pub fn now(&self) -> u64 {
        now_ns() - self.0.load(Ordering::Relaxed)
    }

    /// The stream had nothing to do: it is where the clock is.
    pub fn catch_up(&self) {
        self.0.store(0, Ordering::Relaxed);
    }

    /// The stream's time is `at` now, or the clock's where that is earlier.
    pub fn set(&self, at: u64) {
        self.0.store(now_ns().saturating_sub(at), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_kernels_run_beside_each_other_and_large_ones_do_not() {
        let lanes = Lanes::default();
        for _ in 0..MULTIPROCESSORS {
            assert_eq!(lanes.place(1000, 50, 1), 1050);
        }
        assert_eq!(lanes.place(1000, 50, 1), 1100, "no multiprocessor is free");
        assert_eq!(lanes.place(1000, 10, 500), 1110, "all of them are needed");
        assert_eq!(lanes.place(1000, 10, 2), 1120);
        assert_eq!(lanes.place(2000, 10, 500), 2010);
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
