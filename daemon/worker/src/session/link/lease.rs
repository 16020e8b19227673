//! The lease machine of this worker on the shared pages and the control socket.

use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use vgpu_proto::lease::WorkerEnd;
use vgpu_proto::worker::FromWorker;
use vgpu_sched::gate::lease::{self, Message, Offer, Refused};
use vgpu_sched::gate::{Estimate, Gate};
use vgpu_sched::{Depth, HeadCost};

use crate::control::Vgpud;

/// The lease of this worker: [`lease::Lease`], the pages that it reads and writes, and vgpud, which
/// gets its messages.
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

    /// Sends what the machine has to say.
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

    /// As [`lease::Lease::admit`]. `now` may be the time of some operations ago: while another
    /// session waits for the GPU, the clock is read again.
    ///
    /// # Errors
    /// [`Refused`].
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

    /// vgpud granted a lease or asked one back.
    pub(crate) fn refresh(&mut self) {
        self.machine.refresh(self.pages);
    }

    /// As [`lease::Lease::announce_end`].
    pub(crate) fn announce_end(&mut self, in_ns: u64) {
        self.machine.announce_end(self.pages, in_ns);
        self.send();
    }

    /// Whether the lease is being given back.
    pub(crate) fn closing(&self) -> bool {
        self.machine.closing()
    }

    /// Whether another session waits for the lease that this worker holds.
    pub(crate) fn wanted(&self) -> bool {
        self.machine.wanted(self.pages)
    }

    /// As [`lease::Lease::moved`].
    pub(crate) fn moved(&mut self, bytes: u64, out: bool) {
        self.machine.moved(self.pages, bytes, out);
    }

    /// As [`lease::Lease::pay`].
    pub(crate) fn pay(&mut self, depth: Depth) -> bool {
        let paid = self.machine.pay(self.pages, now_ns(), depth);
        self.send();
        paid
    }

    /// How long until vgpud has to be asked for credit again, while [`Lease::pay`] finds none.
    pub(crate) fn asks_again_in(&self) -> Option<Duration> {
        self.machine.asks_again_at().map(until)
    }

    /// As [`lease::Lease::release`].
    pub(crate) fn release(&mut self, left: Depth, head: HeadCost) {
        self.machine.release(self.pages, now_ns(), left, head);
        self.send();
    }

    /// As [`lease::Lease::rest`]. Returns how long until the next call.
    pub(crate) fn rest(&mut self) -> Option<Duration> {
        let again = self.machine.rest(self.pages, now_ns());
        self.send();
        again.map(until)
    }

    /// As [`lease::Lease::withdraw`].
    pub(crate) fn withdraw(&mut self) {
        self.machine.withdraw();
        self.send();
    }

    /// Counts bytes that go to the guest, after credit was taken for them.
    pub(crate) fn count_out(&self, bytes: u64) {
        self.pages.count_out(bytes);
    }

    /// Counts operations given to the device.
    pub(crate) fn count_submitted(&mut self, n: u64) {
        self.submitted += n;
        self.pages.publish_submitted(self.submitted);
    }

    /// Counts operations that completed.
    pub(crate) fn count_completed(&mut self, n: u64) {
        self.completed += n;
        self.pages.publish_completed(self.completed);
    }

    /// Publishes what waits, and the cost of the first of it.
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
