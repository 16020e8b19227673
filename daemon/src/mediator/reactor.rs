//! Waits for the mediator: epoll over workers, their deaths, a wake-up counter and one timer.

use std::collections::BTreeMap;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollCreateFlags, EpollEvent, EpollFlags, EpollTimeout};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::time::TimeSpec;
use nix::sys::timerfd::{ClockId, Expiration, TimerFd, TimerFlags, TimerSetTimeFlags};
use nix::time::clock_gettime;

/// Present time on CLOCK_MONOTONIC, in ns: the clock of the scheduler and of the lease pages.
#[must_use]
pub(super) fn now_ns() -> u64 {
    // Linux always has this clock, so the call cannot fail.
    let now =
        clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).map_or(Duration::ZERO, Duration::from);
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

/// A source that became ready.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    /// A command waits.
    Wake,
    /// The timer expired.
    Timer,
    /// The worker of a session sent a message, or closed its socket.
    Worker(u64),
    /// The worker of a session has ended.
    Death(u64),
}

impl Source {
    const KINDS: u64 = 4;

    fn token(self) -> u64 {
        match self {
            Source::Wake => 0,
            Source::Timer => 1,
            Source::Worker(session) => session * Self::KINDS + 2,
            Source::Death(session) => session * Self::KINDS + 3,
        }
    }

    fn of(token: u64) -> Source {
        match (token % Self::KINDS, token / Self::KINDS) {
            (0, _) => Source::Wake,
            (1, _) => Source::Timer,
            (2, session) => Source::Worker(session),
            (_, session) => Source::Death(session),
        }
    }
}

/// A deadline of the mediator, in addition to the scheduler's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Kill the worker: its time to end by itself is over.
    Kill(u64),
    /// Check whether the killed worker still exits, or is stuck.
    CheckExit(u64),
    /// Check whether the remaining processes of a dead worker have ended.
    Clear(u64),
    /// Read the messages of this worker again. vgpud paused the reading because the workers of
    /// its VM sent too many messages.
    ResumeReading(u64),
    /// Report the progress of the lease holders to the scheduler.
    Progress,
    /// The tick once a second.
    Tick,
}

/// Most epoll events per call.
const BATCH: usize = 64;

#[derive(Debug)]
pub(super) struct Reactor {
    epoll: Epoll,
    timer: TimerFd,
    wake: Arc<EventFd>,
    armed_ns: u64,
    due: BTreeMap<(u64, u64), Due>,
    order: u64,
}

impl Reactor {
    pub(super) fn new() -> io::Result<Reactor> {
        let epoll = Epoll::new(EpollCreateFlags::EPOLL_CLOEXEC)?;
        let flags = TimerFlags::TFD_CLOEXEC | TimerFlags::TFD_NONBLOCK;
        let timer = TimerFd::new(ClockId::CLOCK_MONOTONIC, flags)?;
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        let wake = Arc::new(EventFd::from_value_and_flags(0, flags)?);
        let reactor = Reactor {
            epoll,
            timer,
            wake,
            armed_ns: u64::MAX,
            due: BTreeMap::new(),
            order: 0,
        };
        reactor.watch(reactor.wake.as_ref(), Source::Wake)?;
        reactor.watch(&reactor.timer, Source::Timer)?;
        Ok(reactor)
    }

    /// The counter that wakes the mediator.
    pub(super) fn waker(&self) -> Arc<EventFd> {
        self.wake.clone()
    }

    /// Watches `fd` for input or end of file.
    pub(super) fn watch(&self, fd: impl AsFd, source: Source) -> io::Result<()> {
        Ok(self
            .epoll
            .add(fd, EpollEvent::new(EpollFlags::EPOLLIN, source.token()))?)
    }

    /// Stops watching `fd`.
    pub(super) fn forget(&self, fd: impl AsFd) {
        // An error means that `fd` was not watched.
        let _ = self.epoll.delete(fd);
    }

    /// Waits until a source is ready; with `look`, returns at once.
    pub(super) fn ready(&self, look: bool, found: &mut Vec<Source>) {
        found.clear();
        let mut events = [EpollEvent::empty(); BATCH];
        let timeout = if look {
            EpollTimeout::ZERO
        } else {
            EpollTimeout::NONE
        };
        match self.epoll.wait(&mut events, timeout) {
            Ok(n) => found.extend(events[..n].iter().map(|e| Source::of(e.data()))),
            Err(Errno::EINTR) => {}
            Err(e) => {
                // Cannot happen with valid descriptors. The pause prevents a busy loop.
                tracing::error!("the mediator cannot wait: {e}");
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        for source in found.iter() {
            match source {
                Source::Wake => drop(self.wake.read()),
                Source::Timer => drop(self.timer.wait()),
                Source::Worker(_) | Source::Death(_) => {}
            }
        }
    }

    /// Adds a deadline at `at_ns`.
    pub(super) fn at(&mut self, at_ns: u64, due: Due) {
        self.order += 1;
        self.due.insert((at_ns, self.order), due);
    }

    /// Time from which a thread that waits until `now_ns` should have been awake: the time of the
    /// timer, or now.
    pub(super) fn awake_since(&self, now_ns: u64) -> u64 {
        now_ns.min(self.armed_ns)
    }

    /// Removes and returns the first deadline that has passed.
    pub(super) fn take_due(&mut self, now_ns: u64) -> Option<Due> {
        let entry = self.due.first_entry()?;
        (entry.key().0 <= now_ns).then(|| entry.remove())
    }

    /// Sets the timer to the earlier of `at_ns` and the first deadline.
    pub(super) fn arm(&mut self, at_ns: u64) {
        let noted = self
            .due
            .first_key_value()
            .map_or(u64::MAX, |(&(at, _), _)| at);
        let at_ns = at_ns.min(noted);
        if at_ns == self.armed_ns {
            return;
        }
        let set = if at_ns == u64::MAX {
            self.timer.unset()
        } else {
            // 0 would disarm the timer; 1 ns after boot is in the past and fires at once.
            let at = Duration::from_nanos(at_ns.max(1));
            let once = Expiration::OneShot(TimeSpec::from_duration(at));
            self.timer.set(once, TimerSetTimeFlags::TFD_TIMER_ABSTIME)
        };
        match set {
            Ok(()) => self.armed_ns = at_ns,
            Err(e) => tracing::error!("the mediator's timer cannot be set: {e}"),
        }
    }

    /// The timer expired and is no longer set.
    pub(super) fn fired(&mut self) {
        self.armed_ns = u64::MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_timer_fires_in_order_and_the_wake_up_counts() {
        let mut reactor = Reactor::new().unwrap();
        let start = now_ns();
        reactor.at(start + 3_000_000, Due::Tick);
        reactor.at(start + 1_000_000, Due::Kill(4));
        reactor.arm(start + 2_000_000);
        let mut found = Vec::new();
        while !found.contains(&Source::Timer) {
            reactor.ready(false, &mut found);
        }
        reactor.fired();
        let now = now_ns();
        assert!(now >= start + 1_000_000);
        assert_eq!(reactor.take_due(start + 1_000_000), Some(Due::Kill(4)));
        assert_eq!(reactor.take_due(start + 1_000_000), None);

        reactor.ready(true, &mut found);
        assert!(found.is_empty());
        reactor.waker().write(1).unwrap();
        reactor.ready(false, &mut found);
        assert_eq!(found, [Source::Wake]);
        reactor.arm(0);
        reactor.ready(false, &mut found);
        assert_eq!(found, [Source::Timer], "a past time fires at once");
    }

    #[test]
    fn sources_survive_their_tokens() {
        for source in [
            Source::Wake,
            Source::Timer,
            Source::Worker(1 << 60),
            Source::Death(7),
        ] {
            assert_eq!(Source::of(source.token()), source);
        }
    }
}
