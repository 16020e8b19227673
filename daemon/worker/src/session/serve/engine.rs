//! The session's thread: reads requests, executes work, sleeps.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;
use vgpu_proto::worker::PROGRAM_ENDED;
use vgpu_sched::Depth;

use super::{Ending, Session};
use crate::session::flow::Stop;
use crate::session::link::now_ns;
use crate::session::objects::Bulk;
use crate::wire::{Filled, Reader};

/// Reads of the socket before the queue gets its turn.
const READS: usize = 4;
/// Time for which a session with work in flight and nothing waiting records no markers. So a
/// program that submits in bursts costs one marker per burst.
const IDLE_LOOK: Duration = Duration::from_micros(100);
/// Time for which this thread polls for a completion, or for the next request after an answer,
/// before it sleeps. A wake-up costs about as much.
const SPIN: Duration = Duration::from_micros(20);
/// On hosts with fewer processors, the thread does not poll for the next request: the guest that
/// sends the request may need this processor.
const SPIN_PROCESSORS: usize = 8;
/// Maximum number of polls that are skipped after failed polls.
const MOST_SKIPPED: u32 = 127;
/// Number of rounds without sleep after which the thread checks for messages of vgpud in any case.
const ROUNDS: u32 = 16;
/// Interval at which the session's thread checks for completions itself, if there are more streams
/// than waiting threads.
const SATURATED_LOOK: Duration = Duration::from_micros(500);

/// The state of the session's thread.
pub(super) struct Engine {
    reader: Reader<Bulk>,
    session: Session,
    /// Whether the socket may have data.
    readable: bool,
    /// Result of a read from the socket whose frames are not all handled yet.
    filled: Option<Filled>,
    /// Whether the guest closed its end while the worker was not reading.
    gone: bool,
    /// Time at which streams with unmarked operations get markers although no part of the worker
    /// waits for these operations.
    marks_due: Option<Instant>,
    /// Whether polling for completions has failed since the last event.
    spun: bool,
    for_completion: Spinning,
    for_requests: Spinning,
    /// Whether requests arrived since this thread last slept.
    active: bool,
    /// Whether vgpud may have sent a message.
    told: bool,
    /// Number of rounds since this thread last checked for messages of vgpud.
    rounds: u32,
}

/// Decides whether to poll instead of sleeping: as long as polling succeeds. Each failure doubles
/// the number of opportunities that are skipped. So polling is rare on a busy host, where it takes
/// the processor from the process that is waited for.
#[derive(Debug, Default)]
struct Spinning {
    never: bool,
    skip: u32,
    penalty: u32,
}

impl Spinning {
    fn try_now(&mut self) -> bool {
        if self.skip > 0 {
            self.skip -= 1;
            return false;
        }
        !self.never
    }

    fn ended(&mut self, success: bool) {
        self.penalty = if success {
            0
        } else {
            (self.penalty * 2 + 1).min(MOST_SKIPPED)
        };
        self.skip = self.penalty;
    }
}

impl Engine {
    /// A session's thread before the first frame.
    pub(super) fn new(session: Session, reader: Reader<Bulk>) -> Engine {
        Engine {
            reader,
            session,
            readable: true,
            filled: None,
            gone: false,
            marks_due: None,
            spun: false,
            for_completion: Spinning::default(),
            for_requests: Spinning {
                never: std::thread::available_parallelism().map_or(1, usize::from)
                    < SPIN_PROCESSORS,
                ..Spinning::default()
            },
            active: false,
            told: true,
            rounds: 0,
        }
    }

    /// Serves the guest until the session ends.
    pub(super) fn run(&mut self) -> Ending {
        loop {
            if let Err(text) = self.take_messages() {
                return Ending::closed(text);
            }
            if let Some(ending) = self.read() {
                return ending;
            }
            let stop = self.session.work();
            if stop == Stop::Empty {
                self.session.link.out.tell();
            }
            if let Some(text) = self.session.link.out.failure() {
                return Ending::closed(text);
            }
            let queued = self.session.link.out.queued();
            if let Err(e) = self.session.link.out.flush() {
                return Ending::closed(format!("the guest is gone: {e}"));
            }
            if stop == Stop::Staging && self.session.link.out.queued() < queued {
                // The write freed staging blocks, and no event would wake the thread for a copy
                // that waits for them.
                continue;
            }
            if (!self.readable || self.session.link.out.congested() || self.session.link.owing)
                && let Err(e) = self.wait(stop)
            {
                return Ending::closed(format!("waiting failed: {e}"));
            }
        }
    }

    /// Handles messages of vgpud and of the session's other threads. A grant or a revoke is on the
    /// page; its message only wakes this thread.
    fn take_messages(&mut self) -> Result<(), String> {
        self.session.link.lease.refresh();
        self.rounds += 1;
        if self.told || self.rounds >= ROUNDS {
            (self.told, self.rounds) = (false, 0);
            self.session.hear()?;
        }
        self.session.take_done();
        Ok(())
    }

    /// Reads requests from the socket and handles them.
    fn read(&mut self) -> Option<Ending> {
        let paid = self.session.pay();
        if self.gone {
            return Some(Ending::closed(PROGRAM_ENDED));
        }
        if !self.readable || self.session.link.out.congested() || !paid {
            return None;
        }
        for _ in 0..READS {
            let filled = match self.filled.take().map_or_else(|| self.reader.fill(), Ok) {
                Ok(filled) => filled,
                Err(e) => return Some(Ending::closed(format!("reading from the guest: {e}"))),
            };
            if filled == Filled::Closed {
                return Some(Ending::closed(PROGRAM_ENDED));
            }
            loop {
                let staging = &mut self.session.objects.staging;
                let frame = match self.reader.next_frame(|r, len| staging.place(r, len)) {
                    Ok(Some(frame)) => frame,
                    Ok(None) => break,
                    Err(e) => return Some(Ending::broken(e.to_string())),
                };
                self.spun = false;
                self.active = true;
                self.marks_due = None;
                if let Err(ending) = self.session.receive(frame) {
                    return Some(ending);
                }
                if !self.session.pay() || self.session.link.out.congested() {
                    // The remaining requests in the buffer could cause replies many times as long
                    // as themselves. When reading continues, the frames in the reader come first.
                    self.filled = Some(filled);
                    return None;
                }
            }
            if filled != Filled::More {
                self.readable = false;
                return None;
            }
        }
        None
    }

    /// Prepares every event that must wake this thread, then sleeps.
    fn wait(&mut self, stop: Stop) -> io::Result<()> {
        let stop = match stop {
            // The worker must not release the lease: credit comes only with a lease.
            Stop::Empty | Stop::Staging if self.session.link.owing => Stop::Turn,
            stop => stop,
        };
        if self.spin_for_completion() || self.spin_for_requests()? {
            return Ok(());
        }
        let mut timeout = self.session.before_sleep(stop, &mut self.marks_due);
        if !self.session.flow.streams.due.is_empty() {
            return Ok(());
        }
        if self.session.flow.waiters.saturated() {
            timeout = earlier(timeout, Some(SATURATED_LOOK));
        }
        self.sleep(timeout)?;
        if self.session.flow.waiters.saturated() {
            self.session.harvest_all();
        }
        if self.session.held_back(stop)
            && self.session.flow.streams.gate.stalled(now_ns())
            && !self.session.harvest_all()
        {
            self.session.flow.relieve(&self.session.link);
        }
        Ok(())
    }

    /// Polls for completions that other parts of the worker wait for. Returns true if there was
    /// one.
    fn spin_for_completion(&mut self) -> bool {
        if self.spun || !self.session.flow.streams.awaited() || !self.for_completion.try_now() {
            return false;
        }
        self.spun = true;
        let until = Instant::now() + SPIN;
        let mut found = false;
        while !found && Instant::now() < until {
            found = self.session.harvest_awaited();
            std::hint::spin_loop();
        }
        self.for_completion.ended(found);
        self.spun = !found;
        found
    }

    /// Polls for the next request of a guest that was just answered. Returns true if there is one.
    fn spin_for_requests(&mut self) -> io::Result<bool> {
        let answered = std::mem::take(&mut self.active)
            && !self.session.link.owing
            && self.session.flow.streams.in_flight() == 0
            && self.session.link.out.queued() == 0;
        if !answered || !self.for_requests.try_now() {
            return Ok(false);
        }
        let until = Instant::now() + SPIN;
        let mut found = false;
        while !found && Instant::now() < until && !self.session.waiting_messages() {
            let filled = self.reader.fill()?;
            found = filled != Filled::Nothing;
            if found {
                self.readable = true;
                self.filled = Some(filled);
            }
        }
        self.for_requests.ended(found);
        Ok(found)
    }

    fn sleep(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        let session = &self.session;
        let mut wanted = PollFlags::empty();
        if !session.link.out.congested() && !session.link.owing {
            wanted |= PollFlags::POLLIN;
        }
        if session.link.out.queued() > 0 {
            wanted |= PollFlags::POLLOUT;
        }
        let mut from_vgpud = PollFlags::POLLIN;
        if session.link.vgpud.send_kept() {
            from_vgpud |= PollFlags::POLLOUT;
        }
        let mut fds = [
            PollFd::new(self.reader.as_fd(), wanted),
            PollFd::new(session.waker.fd().as_fd(), PollFlags::POLLIN),
            PollFd::new(session.control.fd().as_fd(), from_vgpud),
        ];
        match ppoll(&mut fds, timeout.map(TimeSpec::from), None) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        let socket = fds[0].revents().unwrap_or(PollFlags::empty());
        let woken = fds[1].any().unwrap_or(false);
        if fds[2].any().unwrap_or(false) {
            self.told = true;
            self.spun = false;
        }
        let heard = PollFlags::POLLIN | PollFlags::POLLHUP | PollFlags::POLLERR;
        if socket.intersects(heard) {
            self.readable = true;
            self.gone = !wanted.contains(PollFlags::POLLIN);
        }
        if woken {
            self.session.waker.clear();
            self.spun = false;
        }
        Ok(())
    }
}

impl Session {
    /// Checks every stream that has actions to perform. Returns true if operations have completed.
    fn harvest_awaited(&mut self) -> bool {
        self.flow.harvest_awaited(&mut self.objects, &mut self.link)
    }

    /// Checks every stream with work. Returns true if operations have completed.
    fn harvest_all(&mut self) -> bool {
        self.flow.harvest_all(&mut self.objects, &mut self.link)
    }

    /// Does all work that is possible now.
    fn work(&mut self) -> Stop {
        loop {
            self.flow.do_due(&mut self.objects, &mut self.link);
            let stop = self.flow.run_queue(&mut self.objects, &mut self.link);
            if !self.flow.do_due(&mut self.objects, &mut self.link) {
                return stop;
            }
        }
    }

    /// Pays for the data frames of the guest that needed no lease. Returns false if credit is
    /// missing: then no more requests are read.
    fn pay(&mut self) -> bool {
        let mut waiting = self.flow.queue.waiting();
        waiting.calls += 1;
        self.link.owing = self.link.poison.is_none() && !self.link.lease.pay(waiting);
        !self.link.owing
    }

    /// Prepares the events that must wake this thread. Returns the longest time to sleep.
    fn before_sleep(&mut self, stop: Stop, marks_due: &mut Option<Instant>) -> Option<Duration> {
        let mut timeout = None;
        let mut waiting = self.flow.queue.waiting();
        if self.link.owing {
            // The guest's next request waits, too.
            waiting.calls += 1;
        }
        if self.flow.streams.in_flight() == 0 {
            *marks_due = None;
        } else {
            let wanted =
                stop != Stop::Empty || self.link.lease.closing() || self.flow.drains.len() > 0;
            let now = Instant::now();
            let due = *marks_due.get_or_insert(if wanted { now } else { now + IDLE_LOOK });
            if wanted || due <= now {
                self.flow
                    .mark_all(&mut self.objects, &mut self.link, !wanted);
            } else if self.flow.streams.any_unmarked() {
                timeout = Some(due - now);
            }
            self.flow.streams.watch_all(&mut self.flow.waiters);
            self.foretell_end();
        }
        // Operations that take no GPU time do not need the lease: a wait for a value in memory may
        // never end.
        if self.flow.streams.gate.in_flight() == 0 {
            if self.link.lease.closing() {
                let left = if stop == Stop::Staging {
                    Depth::default()
                } else {
                    waiting
                };
                self.link.lease.release(left, self.flow.head());
            } else if stop == Stop::Empty || stop == Stop::Staging {
                timeout = earlier(timeout, self.link.lease.rest());
            }
        }
        if self.held_back(stop) {
            let now = now_ns();
            let again = self.flow.streams.ask_again.map(|at| at.saturating_sub(now));
            let stall = self.flow.streams.gate.stall_in(now);
            for wake in [again, stall].into_iter().flatten() {
                timeout = earlier(timeout, Some(Duration::from_nanos(wake)));
            }
        }
        if self.link.owing {
            timeout = earlier(timeout, self.link.lease.asks_again_in());
        }
        timeout = earlier(timeout, self.objects.images.give_up(Instant::now()));
        self.link.lease.publish(waiting, self.flow.head());
        timeout
    }

    /// Announces to vgpud when the work in flight ends, if nothing more is submitted under the
    /// lease.
    fn foretell_end(&mut self) {
        let closes = self.link.lease.closing() || self.flow.streams.slice_full;
        if closes && let Some(in_ns) = self.flow.streams.gate.ends_in(now_ns()) {
            self.link.lease.announce_end(in_ns);
        }
    }

    /// Whether work waits only because of work in flight.
    fn held_back(&self, stop: Stop) -> bool {
        stop == Stop::Window || stop == Stop::Turn && self.link.lease.closing()
    }
}

fn earlier(a: Option<Duration>, b: Option<Duration>) -> Option<Duration> {
    match (a, b) {
        (Some(a), Some(b)) => Some(a.min(b)),
        (a, b) => a.or(b),
    }
}
