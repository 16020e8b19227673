//! How long the threads of a launch computed: the device's time.
//!
//! A GPU is not slower because its host is busy. So the time of a launch that lasts is the time that its
//! threads had the processor, asleep or waiting for the device's turn, and not the time in which the
//! system ran something else.

use std::time::{Duration, Instant};

/// From here on a launch lasts: it gets help by other threads.
pub(super) const LASTING: Duration = Duration::from_micros(100);

/// CLOCK_THREAD_CPUTIME_ID in nanoseconds.
fn processor_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec; the call only writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// The meter of one thread. It counts processor time once the thread has run some instructions or the launch
/// lasts; asking at every launch would take as long as a short one does.
pub(super) struct Meter {
    started: Instant,
    lasts: bool,
    /// Wall time until processor time was counted, and the clock's value then.
    counted: Option<(u64, u64)>,
    idle: u64,
}

impl Meter {
    /// Of a launch's first thread.
    pub(super) fn start() -> Meter {
        Meter {
            started: Instant::now(),
            lasts: false,
            counted: None,
            idle: 0,
        }
    }

    /// Of a thread that helps.
    pub(super) fn helper() -> Meter {
        Meter {
            lasts: true,
            counted: Some((0, processor_ns())),
            ..Meter::start()
        }
    }

    /// True once the launch lasts.
    pub(super) fn lasts(&mut self) -> bool {
        if !self.lasts && self.started.elapsed() >= LASTING {
            self.lasts = true;
            self.count();
        }
        self.lasts
    }

    /// Counts processor time from here on at the latest.
    pub(super) fn count(&mut self) {
        if self.counted.is_none() {
            let wall = self.started.elapsed().as_nanos() as u64;
            self.counted = Some((wall, processor_ns()));
        }
    }

    /// The device was somebody else's for so long, which counts.
    pub(super) fn waited(&mut self, ns: u64) {
        self.idle += ns;
    }

    /// Runs `sleep`, whose time counts.
    pub(super) fn asleep(&mut self, sleep: impl FnOnce()) {
        let (start, before) = (Instant::now(), processor_ns());
        sleep();
        let computed = processor_ns() - before;
        let slept = (start.elapsed().as_nanos() as u64).saturating_sub(computed);
        self.idle += slept;
    }

    /// Nanoseconds before and since processor time is counted; `None` if it is not.
    pub(super) fn read(&self) -> Option<(u64, u64)> {
        let (before, from) = self.counted?;
        Some((before, processor_ns().saturating_sub(from) + self.idle))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleep_counts_and_so_does_work() {
        let mut m = Meter::helper();
        m.asleep(|| std::thread::sleep(Duration::from_millis(3)));
        m.waited(1_000_000);
        let (_, ns) = m.read().expect("helpers are counted from the start");
        assert!(ns >= 4_000_000, "{ns}");
        let mut first = Meter::start();
        assert!(first.read().is_none());
        while !first.lasts() {}
        let (before, _) = first.read().expect("it lasts now");
        assert!(before >= LASTING.as_nanos() as u64);
        let mut busy = Meter::start();
        busy.count();
        assert!(busy.read().is_some());
    }
}
