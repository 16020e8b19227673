//! The session table.

use std::os::fd::OwnedFd;

use tokio::sync::{mpsc, oneshot};
use vgpu_proto::cuda::CuResult;
use vgpu_proto::lease::Hints;
use vgpu_sched::{Credits, GpuId};

use super::claims::Claim;
use super::handle::{Note, Ready};
use super::held::{ExplainedUse, Held};
use super::images::Images;
use super::unrequested::Unrequested;
use crate::events::EndCause;
use crate::model::{GpuRecord, VmIdentity};
use crate::worker::spawn::Worker;

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
    pub(super) unrequested: Unrequested,
    pub(super) images: Images,
    /// Bytes of host memory that vgpud booked for it: images, and what its worker began with. The
    /// worker's own releases do not reach them.
    pub(super) pinned_by_us: u64,
    /// The depth credit that its guest has: calls, bytes.
    pub(super) depth: (u32, u64),
    /// The device fault that the worker reported, if any.
    pub(super) fault: Option<(CuResult, String)>,
    pub(super) about: About,
    pub(super) message_rate: MessageRate,
}

/// A GPU that a session runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) id: GpuId,
    pub(super) uuid: String,
    pub(super) explained: ExplainedUse,
}

impl Placed {
    pub(super) fn on(gpu: &GpuRecord) -> Placed {
        Placed {
            id: GpuId(gpu.gpu_id),
            uuid: gpu.seen.uuid.clone(),
            explained: ExplainedUse::default(),
        }
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

/// The lease a session holds, by vgpud's account.
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

/// Counts the messages of a worker, to bound their rate.
#[derive(Debug, Default)]
pub(super) struct MessageRate {
    window_ns: u64,
    count: u32,
    pub(super) paused: bool,
}

impl MessageRate {
    /// Messages that a worker may send within one window. An honest worker sends a few per lease.
    const PER_WINDOW: u32 = 4_000;
    /// Length of a window.
    const WINDOW_NS: u64 = 100_000_000;

    /// Counts one message. If it was one too many: the time until which no more of this worker are
    /// read.
    pub(super) fn count(&mut self, now_ns: u64) -> Option<u64> {
        if now_ns >= self.window_ns + Self::WINDOW_NS {
            self.window_ns = now_ns;
            self.count = 0;
        }
        self.count += 1;
        (self.count > Self::PER_WINDOW).then_some(self.window_ns + Self::WINDOW_NS)
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

    /// Says something on the control connection, if it still listens. Never waits: a guest that
    /// does not read misses it.
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
    fn a_worker_that_floods_is_not_read_until_the_window_ends() {
        let mut message_rate = MessageRate::default();
        let start = 5 * MessageRate::WINDOW_NS;
        for _ in 0..MessageRate::PER_WINDOW {
            assert_eq!(message_rate.count(start), None);
        }
        assert_eq!(
            message_rate.count(start + 1),
            Some(start + MessageRate::WINDOW_NS)
        );
        assert_eq!(message_rate.count(start + MessageRate::WINDOW_NS), None);
    }
}
