//! Device time of a launch: the time for which its threads computed.
//!
//! A GPU is not slower because its host is busy. The device time of a long launch is therefore the
//! time for which its threads ran, slept, or waited for another process's turn on the device. Time
//! in which the host ran other threads in their place does not count.

use std::time::{Duration, Instant};

/// Duration from which a launch counts as long: other threads help, and CPU time is measured.
pub(super) const LASTING: Duration = Duration::from_micros(100);

/// CPU time of this thread (CLOCK_THREAD_CPUTIME_ID), in ns.
fn processor_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: `t` is a valid timespec; the call only writes it.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Time measurement of one thread of a launch. CPU time is measured only from some instructions on,
/// or when the launch is long, because the system call takes as long as a short launch.
pub(super) struct Meter {
    started: Instant,
    lasts: bool,
    /// When CPU time was first read: the wall time since the start, and the CPU time, in ns.
    counted: Option<(u64, u64)>,
    idle: u64,
}

impl Meter {
    /// The meter of the first thread of a launch.
    pub(super) fn start() -> Meter {
        Meter {
            started: Instant::now(),
            lasts: false,
            counted: None,
            idle: 0,
        }
    }

    /// The meter of a thread that helps with a long launch.
    pub(super) fn helper() -> Meter {
        Meter {
            lasts: true,
            counted: Some((0, processor_ns())),
            ..Meter::start()
        }
    }

    /// Whether the launch is long.
    pub(super) fn lasts(&mut self) -> bool {
        if !self.lasts && self.started.elapsed() >= LASTING {
            self.lasts = true;
            self.count();
        }
        self.lasts
    }

    /// Measures CPU time from now on, unless already started.
    pub(super) fn count(&mut self) {
        if self.counted.is_none() {
            let wall = self.started.elapsed().as_nanos() as u64;
            self.counted = Some((wall, processor_ns()));
        }
    }

    /// Adds time in ns for which another process computed on the device.
    pub(super) fn waited(&mut self, ns: u64) {
        self.idle += ns;
    }

    /// Runs `sleep`, and adds the time for which the thread slept.
    pub(super) fn asleep(&mut self, sleep: impl FnOnce()) {
        let (start, before) = (Instant::now(), processor_ns());
        sleep();
        let computed = processor_ns() - before;
        let slept = (start.elapsed().as_nanos() as u64).saturating_sub(computed);
        self.idle += slept;
    }

    /// Returns, in ns, the wall time before the CPU clock was first read, and the device time since
    /// then. `None` if the CPU clock was not read.
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
