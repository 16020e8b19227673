//! The lease of this worker, connected to the shared pages and the control socket.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use vgpu_proto::lease::WorkerEnd;
use vgpu_proto::worker::FromWorker;
use vgpu_sched::gate::lease::{self, Message, Offer, Refused};
use vgpu_sched::gate::{Estimate, Gate};
use vgpu_sched::{Depth, HeadCost};

use crate::control::Vgpud;

/// The state machine of the lease ([`lease::Lease`]), the pages that it reads and writes, and the
/// channel for its messages to vgpud.
#[derive(Debug)]
pub(crate) struct Lease {
    machine: lease::Lease,
    pages: WorkerEnd<'static>,
    vgpud: Vgpud,
    submitted: u64,
    completed: u64,
}

impl Lease {
    /// A worker that holds no lease.
    pub(crate) fn new(pages: WorkerEnd<'static>, vgpud: Vgpud) -> Lease {
        Lease {
            machine: lease::Lease::default(),
            pages,
            vgpud,
            submitted: 0,
            completed: 0,
        }
    }

    /// Sends the collected messages of the state machine to vgpud.
    fn send(&mut self) {
        for message in self.machine.messages() {
            self.vgpud.send(match message {
                Message::Runnable(Depth { calls, bytes }) => FromWorker::Runnable {
                    calls,
                    bytes,
                    at_ns: now_ns(),
                },
                Message::Idle { epoch } => FromWorker::Idle {
                    epoch,
                    at_ns: now_ns(),
                },
                Message::Ending {
                    epoch,
                    slice_end_ns,
                    in_ns,
                } => FromWorker::Ending {
                    epoch,
                    slice_end_ns,
                    in_ns,
                },
                Message::Released { epoch, left } => FromWorker::Released {
                    epoch,
                    calls: left.calls,
                    bytes: left.bytes,
                },
            });
        }
    }

    /// Like [`lease::Lease::admit`]. `now` may be some operations old; while another session waits
    /// for the GPU, the clock is read again.
    ///
    /// # Errors
    /// [`Refused`]: the operation may not be submitted now.
    pub(crate) fn admit(
        &mut self,
        gate: &mut Gate,
        now: u64,
        offer: &Offer<'_>,
    ) -> Result<Option<Estimate>, Refused> {
        let now = if self.wanted() { now_ns() } else { now };
        let admitted = self.machine.admit(self.pages, gate, now, offer);
        self.send();
        admitted
    }

    /// Reads from the lease page that vgpud granted or revoked a lease.
    pub(crate) fn refresh(&mut self) {
        self.machine.refresh(self.pages);
    }

    /// Like [`lease::Lease::announce_end`].
    pub(crate) fn announce_end(&mut self, in_ns: u64) {
        self.machine.announce_end(self.pages, in_ns);
        self.send();
    }

    /// Whether the worker is returning the lease.
    pub(crate) fn closing(&self) -> bool {
        self.machine.closing()
    }

    /// Whether another session waits for the lease that this worker holds.
    pub(crate) fn wanted(&self) -> bool {
        self.machine.wanted(self.pages)
    }

    /// Like [`lease::Lease::moved`].
    pub(crate) fn moved(&mut self, bytes: u64, out: bool) {
        self.machine.moved(self.pages, bytes, out);
    }

    /// Like [`lease::Lease::pay`].
    pub(crate) fn pay(&mut self, depth: Depth) -> bool {
        let paid = self.machine.pay(self.pages, now_ns(), depth);
        self.send();
        paid
    }

    /// Time until [`Lease::pay`] must be called, which then repeats the request for credit to
    /// vgpud; `None` as for [`lease::Lease::asks_again_at`].
    pub(crate) fn asks_again_in(&self) -> Option<Duration> {
        self.machine.asks_again_at().map(until)
    }

    /// Like [`lease::Lease::release`].
    pub(crate) fn release(&mut self, left: Depth, head: HeadCost) {
        self.machine.release(self.pages, now_ns(), left, head);
        self.send();
    }

    /// Like [`lease::Lease::rest`]. Returns the time until the next call.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        let again = self.machine.rest(self.pages, now_ns());
        self.send();
        again.map(until)
    }

    /// Like [`lease::Lease::withdraw`].
    pub(crate) fn withdraw(&mut self) {
        self.machine.withdraw();
        self.send();
    }

    /// Adds bytes that go to the guest to the counter on the hint page. Credit was taken for these
    /// bytes before.
    pub(crate) fn count_out(&self, bytes: u64) {
        self.pages.count_out(bytes);
    }

    /// Adds submitted operations to the counter on the hint page.
    pub(crate) fn count_submitted(&mut self, n: u64) {
        self.submitted += n;
        self.pages.publish_submitted(self.submitted);
    }

    /// Adds completed operations to the counter on the hint page.
    pub(crate) fn count_completed(&mut self, n: u64) {
        self.completed += n;
        self.pages.publish_completed(self.completed);
    }

    /// Writes the waiting work, and the cost of its first operation, on the hint page.
    pub(crate) fn publish(&self, depth: Depth, head: HeadCost) {
        lease::publish(self.pages, depth, head);
    }
}

/// Time left until `at_ns` on the clock of [`now_ns`].
fn until(at_ns: u64) -> Duration {
    Duration::from_nanos(at_ns.saturating_sub(now_ns()))
}

/// The host's CLOCK_MONOTONIC in ns: the clock of the lease pages and of the gate.
pub(crate) fn now_ns() -> u64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| {
        t.tv_sec() as u64 * 1_000_000_000 + t.tv_nsec() as u64
    })
}
