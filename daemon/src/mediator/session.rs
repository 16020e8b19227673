//! The session table.

use std::collections::HashSet;

use tokio::sync::{mpsc, oneshot};
use vgpu_proto::call::MemoryLimit;
use vgpu_proto::cuda::CuResult;
use vgpu_proto::lease::Hints;
use vgpu_sched::{Credits, GpuId};

use super::claims::Claim;
use super::handle::{Note, Ready, Refused};
use super::held::{ExplainedUse, Held};
use super::images::Images;
use super::unrequested::Unrequested;
use crate::events::EndCause;
use crate::model::{GpuRecord, VmIdentity};
use crate::system::guarded::Guarded;
use crate::worker::process::Scheduled;
use crate::worker::spawn::Worker;

/// A session: one guest process.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) id: u64,
    pub(super) vm: VmIdentity,
    pub(super) begun_ns: u64,
    /// Last totals of the worker that passed the checks.
    pub(super) claimed: Claim,
    /// GPUs in the order of the devices that the guest sees; never empty, and several for a gang.
    pub(super) gpus: Vec<Placed>,
    pub(super) phase: Phase,
    pub(super) worker: Option<Worker>,
    /// Answered when the worker is ready or has failed.
    pub(super) ready: Option<oneshot::Sender<Result<Ready, Refused>>>,
    /// The control connection; `None` after the last note.
    pub(super) notes: Option<mpsc::Sender<Note>>,
    /// vgpud's copy of the data connection, only to shut it down.
    pub(super) data: Option<Guarded>,
    pub(super) lease: Option<Lease>,
    pub(super) held: Held,
    pub(super) unrequested: Unrequested,
    pub(super) images: Images,
    /// Limits whose refusals of memory are reported already.
    pub(super) shortages: HashSet<MemoryLimit>,
    /// Bytes of host memory that vgpud booked for the session: images, and the initial memory of
    /// the worker. Releases by the worker do not reduce it.
    pub(super) pinned_by_us: u64,
    /// Depth credit of the guest: calls, bytes.
    pub(super) depth: (u32, u64),
    /// The device fault that the worker reported, if any.
    pub(super) fault: Option<(CuResult, String)>,
    pub(super) about: About,
    pub(super) reading: Reading,
    /// The last check of the worker after its kill.
    pub(super) dying: Option<Dying>,
}

/// A GPU that a session runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) id: GpuId,
    pub(super) uuid: String,
    pub(super) explained: ExplainedUse,
    /// Bytes of device memory that the worker requested and has not released.
    pub(super) requested: u64,
}

impl Placed {
    pub(super) fn on(gpu: &GpuRecord) -> Placed {
        Placed {
            id: GpuId(gpu.gpu_id),
            uuid: gpu.seen.uuid.clone(),
            explained: ExplainedUse::default(),
            requested: 0,
        }
    }
}

/// Facts for administrators.
#[derive(Debug)]
pub(super) struct About {
    pub(super) guest_pid: u32,
    pub(super) program: String,
    pub(super) peer: String,
    pub(super) since_unix_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Phase {
    /// Admitted; the worker is not started, or the driver is not ready.
    Starting,
    /// Serving its guest.
    Live,
    /// Being ended; the worker is not yet verified gone.
    Ending(EndCause, String),
}

/// The lease of a session, by vgpud's account.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lease {
    pub(super) epoch: u64,
    /// Credit totals on the page.
    pub(super) credits: Credits,
    pub(super) hold_ns: u64,
    /// The worker reported that the lease is parked, and has not taken it since.
    pub(super) parked: bool,
    /// The worker reported that it submits nothing more in this slice.
    pub(super) ending: bool,
}

/// A killed worker whose end is not verified yet.
#[derive(Debug, Clone, Copy)]
pub(super) struct Dying {
    /// Time of the kill, in ns.
    begun_ns: u64,
    /// Last time at which the worker was seen to exit, in ns.
    alive_ns: u64,
    /// Time in ns that its threads had used or waited for a processor, at the last check.
    scheduled_ns: Option<u64>,
    /// Whether the VM gets a strike if the worker is stuck.
    pub(super) is_breach: bool,
}

/// What a check of a killed worker found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ExitCheck {
    /// The worker still exits.
    Exits,
    /// The worker neither used nor waited for a processor since the last check.
    Unclear,
    /// The worker is stuck in the driver, or takes too long.
    Stuck,
}

/// Number of checks of a killed worker within the time after which it counts as stuck.
pub(super) const EXIT_CHECKS: u64 = 4;

/// A killed worker still exits if it used or waited for a processor for at least one part in this
/// number of the time since the last check. A driver that waits for its device uses less.
const EXITING_PART: u64 = 8;

/// Number of times that the time after which a worker counts as stuck may pass while it still
/// exits.
const EXITING_MOST: u64 = 6;

impl Dying {
    /// `begun_ns`: time of the kill. `is_breach`: whether the VM gets a strike if the worker is
    /// stuck.
    pub(super) fn since(begun_ns: u64, is_breach: bool) -> Dying {
        Dying {
            begun_ns,
            alive_ns: begun_ns,
            scheduled_ns: None,
            is_breach,
        }
    }

    /// vgpud did not run for `for_ns`, which the worker's time to exit does not count.
    pub(super) fn shift(&mut self, for_ns: u64) {
        self.begun_ns = self.begun_ns.saturating_add(for_ns);
        self.alive_ns = self.alive_ns.saturating_add(for_ns);
    }

    /// `scheduled`: what the kernel tells about the worker's threads. `verify_ns`: time after which
    /// a worker that does not end counts as stuck.
    pub(super) fn check(&mut self, now_ns: u64, scheduled: Scheduled, verify_ns: u64) -> ExitCheck {
        // The sum falls when threads end.
        let before = self.scheduled_ns.replace(scheduled.ns);
        let moved = before.map_or(0, |before| scheduled.ns.abs_diff(before));
        let exits = scheduled.runnable || moved >= verify_ns / EXIT_CHECKS / EXITING_PART;
        let most = verify_ns.saturating_mul(EXITING_MOST);
        if now_ns.saturating_sub(self.begun_ns) >= most {
            return ExitCheck::Stuck;
        }
        if exits {
            self.alive_ns = now_ns;
            return ExitCheck::Exits;
        }
        match now_ns.saturating_sub(self.alive_ns) >= verify_ns {
            true => ExitCheck::Stuck,
            false => ExitCheck::Unclear,
        }
    }
}

/// Whether a worker's messages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// The worker's messages are read and counted.
    Counted,
    /// The workers of the VM sent too many messages: none is read for a while.
    Paused,
    /// The worker has ended: its remaining messages are read without a count.
    Last,
}

impl Session {
    /// UUID of the first GPU, by which events name the session's GPUs; empty if there is no GPU.
    pub(super) fn gpu_uuid(&self) -> &str {
        self.gpus.first().map_or("", |gpu| &gpu.uuid)
    }

    pub(super) fn is_on(&self, gpu: GpuId) -> bool {
        self.gpus.iter().any(|placed| placed.id == gpu)
    }

    pub(super) fn is_ending(&self) -> bool {
        matches!(self.phase, Phase::Ending(..))
    }

    /// The hints on the worker's page.
    pub(super) fn hints(&self) -> Hints {
        self.worker
            .as_ref()
            .map(|worker| worker.pages.end().hints())
            .unwrap_or_default()
    }

    /// Sends a note on the control connection, if it is still open. Never waits: a guest that does
    /// not read loses the note.
    pub(super) fn note(&self, note: Note) {
        if let Some(notes) = &self.notes {
            let _ = notes.try_send(note);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Time of the kill in ns, and time after which a worker counts as stuck.
    const BEGUN: u64 = 5_000;
    const VERIFY: u64 = 4_000;

    /// Checks four times per `VERIFY`, with what `scheduled` says at each check, until the worker
    /// is stuck. Returns the time from the kill to that check.
    fn stuck_after(scheduled: impl Fn(u64) -> (u64, bool)) -> u64 {
        let mut dying = Dying::since(BEGUN, false);
        (1..)
            .map(|check| check * VERIFY / EXIT_CHECKS)
            .find(|&after| {
                let (ns, runnable) = scheduled(after);
                let scheduled = Scheduled { ns, runnable };
                dying.check(BEGUN + after, scheduled, VERIFY) == ExitCheck::Stuck
            })
            .expect("each worker is stuck in the end")
    }

    #[test]
    fn a_killed_worker_is_stuck_unless_it_uses_or_waits_for_a_processor() {
        assert_eq!(stuck_after(|_| (777, false)), VERIFY);
        // A little: a driver that waits for its device.
        assert_eq!(stuck_after(|after| (after / 9, false)), VERIFY);
        assert_eq!(stuck_after(|after| (after / 8, false)), 6 * VERIFY);
        // Threads end, and with them their share of the sum.
        assert_eq!(stuck_after(|after| (100_000 - after, false)), 6 * VERIFY);
        // The kernel counts a wait for a processor only when the wait is over.
        assert_eq!(stuck_after(|_| (777, true)), 6 * VERIFY);
        // The worker moves at first, then no more.
        assert_eq!(stuck_after(|after| (after.min(VERIFY), false)), 2 * VERIFY);
    }

    #[test]
    fn the_time_in_which_vgpud_did_not_run_does_not_count() {
        const AWAY: u64 = 100 * VERIFY;
        let mut dying = Dying::since(BEGUN, false);
        dying.shift(AWAY);
        let mut check = |after| dying.check(BEGUN + AWAY + after, Scheduled::default(), VERIFY);
        assert_eq!(check(VERIFY - 1), ExitCheck::Unclear);
        assert_eq!(check(VERIFY), ExitCheck::Stuck);
    }
}
