//! The session table.

use std::os::fd::OwnedFd;

use tokio::sync::{mpsc, oneshot};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::lease::Hints;
use vgpu_sched::{Credits, GpuId};

use super::VmIdentity;
use super::claims::Claim;
use super::found::Found;
use super::handle::{Note, Ready};
use crate::events::EndCause;
use crate::model::GpuRecord;
use crate::supervisor::spawn::Worker;

/// One guest process.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) vm: VmIdentity,
    /// When it was admitted.
    pub(super) begun_ns: u64,
    /// What its worker has counted, as far as that can be.
    pub(super) claimed: Claim,
    /// In the order of the devices that the guest sees; never empty, and more than one for a gang.
    pub(super) gpus: Vec<Placed>,
    pub(super) phase: Phase,
    pub(super) worker: Option<Worker>,
    /// Answered when the worker is up, or will not be.
    pub(super) ready: Option<oneshot::Sender<Result<Ready, String>>>,
    /// The control connection; closed when there is nothing more to say.
    pub(super) notes: Option<mpsc::Sender<Note>>,
    /// Our copy of the data connection, only to shut it down.
    pub(super) data: Option<OwnedFd>,
    pub(super) lease: Option<Lease>,
    pub(super) held: Held,
    pub(super) found: Found,
    /// The depth credit that its guest has: calls, bytes.
    pub(super) depth: (u32, u64),
    /// The device fault that the worker reported, if any.
    pub(super) fault: Option<(CuResult, String)>,
    pub(super) about: About,
    pub(super) hearing: Hearing,
}

/// A GPU that a session runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) id: GpuId,
    pub(super) uuid: String,
    /// What the device said at the last look, and the session's lease time at that look.
    used_ns: u64,
    before_ns: u64,
    /// Lease time up to then that use has not been said of: the device may still say it.
    unsaid_ns: u64,
}

/// How far a device's account may lag behind use: a device made of threads counts a kernel's time when the
/// kernel's thread runs again, which on a busy host takes a while.
const LAG_NS: u64 = 250 * vgpu_sched::MILLIS;

impl Placed {
    pub(super) fn on(gpu: &GpuRecord) -> Placed {
        Placed {
            id: GpuId(gpu.gpu_id),
            uuid: gpu.seen.uuid.clone(),
            used_ns: 0,
            before_ns: 0,
            unsaid_ns: 0,
        }
    }

    /// The device says that the session has used it for `used_ns` in all, at some moment since the
    /// mark. What of that, since it said so before, no lease can explain?
    pub(super) fn unexplained(&mut self, held: &Held, used_ns: u64, now_ns: u64) -> u64 {
        let used = used_ns.saturating_sub(self.used_ns);
        let covered = held.until(now_ns).saturating_sub(self.before_ns);
        (self.used_ns, self.before_ns) = (used_ns, held.mark_ns);
        let explained = covered + self.unsaid_ns;
        // Nothing lags for longer than from one look to the next.
        let late = if covered == 0 { 0 } else { LAG_NS };
        self.unsaid_ns = explained.saturating_sub(used).min(late);
        used.saturating_sub(explained)
    }
}

/// For people.
#[derive(Debug)]
pub(super) struct About {
    pub(super) guest_pid: u32,
    pub(super) program: String,
    pub(super) peer: String,
    pub(super) since_unix_ms: u64,
}

/// Where a session is in its life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Admitted; no worker yet, or its driver is not up.
    Starting,
    /// Serving its guest.
    Live,
    /// Being ended; the worker is not yet verified gone.
    Ending(EndCause, String),
}

/// The lease a session holds, by our books.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) epoch: u64,
    /// The credit totals on the page.
    pub(super) credits: Credits,
    pub(super) hold_ns: u64,
    /// Its worker said that it lies parked, and has not taken it up since.
    pub(super) parked: bool,
    /// Its worker said that it submits nothing more in this slice.
    pub(super) ending: bool,
}

/// How long a session has held the lease, for comparison with what the device says.
#[derive(Debug, Default)]
pub(super) struct Held {
    total_ns: u64,
    since_ns: Option<u64>,
    /// `total` when the devices were last asked.
    pub(super) mark_ns: u64,
}

impl Held {
    pub(super) fn begin(&mut self, now_ns: u64) {
        self.since_ns.get_or_insert(now_ns);
    }

    pub(super) fn end(&mut self, now_ns: u64) {
        self.total_ns = self.until(now_ns);
        self.since_ns = None;
    }

    pub(super) fn until(&self, now_ns: u64) -> u64 {
        let since = self
            .since_ns
            .map_or(0, |since| now_ns.saturating_sub(since));
        self.total_ns.saturating_add(since)
    }
}

/// How much a worker has said lately.
#[derive(Debug, Default)]
pub(super) struct Hearing {
    window_ns: u64,
    heard: u32,
    pub(super) paused: bool,
}

impl Hearing {
    /// Messages that a worker may send within one window. An honest one sends a few per lease.
    const PER_WINDOW: u32 = 4_000;
    /// Length of a window.
    const WINDOW_NS: u64 = 100_000_000;

    /// Counts one message; gives the time until which the worker is not heard if it was one too many.
    pub(super) fn hears(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns >= self.window_ns + Self::WINDOW_NS {
            self.window_ns = now_ns;
            self.heard = 0;
        }
        self.heard += 1;
        (self.heard > Self::PER_WINDOW).then_some(self.window_ns + Self::WINDOW_NS)
    }
}

impl Session {
    /// The first GPU, which names the others.
    pub(super) fn gpu_uuid(&self) -> &str {
        self.gpus.first().map_or("", |gpu| &gpu.uuid)
    }

    pub(super) fn is_on(&self, gpu: GpuId) -> bool {
        self.gpus.iter().any(|placed| placed.id == gpu)
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(..))
    }

    /// What the worker claims on its page.
    pub(super) fn hints(&self) -> Hints {
        self.worker
            .as_ref()
            .map(|worker| worker.pages.end().hints())
            .unwrap_or_default()
    }

    /// Says something on the control connection, if it still listens. Never waits: a guest that does
    /// not read misses it.
    pub(super) fn note(&self, note: Note) {
        if let Some(notes) = &self.notes {
            let _ = notes.try_send(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn use_is_explained_by_leases_of_the_same_time() {
        let mut held = Held::default();
        let mut gpu = Placed {
            id: GpuId(0),
            uuid: String::new(),
            used_ns: 0,
            before_ns: 0,
            unsaid_ns: 0,
        };
        held.begin(1_000);
        held.mark_ns = held.until(1_500);
        assert_eq!(gpu.unexplained(&held, 550, 1_600), 0);
        held.end(2_000);
        // What was used after the device was last asked and before that was heard is explained.
        held.mark_ns = held.until(3_000);
        assert_eq!(gpu.unexplained(&held, 990, 3_100), 0);
        held.mark_ns = held.until(4_000);
        assert_eq!(gpu.unexplained(&held, 990, 4_100), 0);
        // A lease that was held long ago does not pay for use without one.
        held.mark_ns = held.until(5_000);
        assert_eq!(gpu.unexplained(&held, 1_290, 5_100), 300);
        held.mark_ns = held.until(6_000);
        assert_eq!(gpu.unexplained(&held, 1_290, 6_100), 0);
    }

    #[test]
    fn use_that_the_device_counts_late_is_explained_by_the_lease_it_was_made_under() {
        let mut held = Held::default();
        let mut gpu = Placed {
            id: GpuId(0),
            uuid: String::new(),
            used_ns: 0,
            before_ns: 0,
            unsaid_ns: 0,
        };
        const SECOND: u64 = 1_000 * vgpu_sched::MILLIS;
        const LATE: u64 = 30 * vgpu_sched::MILLIS;
        held.begin(0);
        // Held all the time, used all the time, counted late twice and then in time.
        for (look, used_ns) in [(1, SECOND - LATE), (2, 2 * SECOND - LATE), (3, 3 * SECOND)] {
            held.mark_ns = held.until(look * SECOND);
            assert_eq!(gpu.unexplained(&held, used_ns, look * SECOND), 0, "{look}");
        }
        // Idle leases do not add up to a permit.
        for look in 4..=9 {
            held.mark_ns = held.until(look * SECOND);
            assert_eq!(gpu.unexplained(&held, 3 * SECOND, look * SECOND), 0);
        }
        held.end(9 * SECOND);
        held.mark_ns = held.until(10 * SECOND);
        let beyond = gpu.unexplained(&held, 4 * SECOND, 10 * SECOND);
        assert_eq!(beyond, SECOND - LAG_NS);
    }

    #[test]
    fn a_worker_that_floods_is_not_heard_until_the_window_ends() {
        let mut hearing = Hearing::default();
        let start = 5 * Hearing::WINDOW_NS;
        for _ in 0..Hearing::PER_WINDOW {
            assert_eq!(hearing.hears(start), None);
        }
        assert_eq!(hearing.hears(start + 1), Some(start + Hearing::WINDOW_NS));
        assert_eq!(hearing.hears(start + Hearing::WINDOW_NS), None);
    }
}
