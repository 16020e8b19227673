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
    /// The last look at the worker after its kill.
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
    pub(super) begun_ns: u64,
    /// Last time at which the worker was seen to end, in ns.
    pub(super) alive_ns: u64,
    /// Time in ns that its threads had used or waited for a processor, at the last look.
    pub(super) scheduled_ns: Option<u64>,
}

/// Whether a worker's messages are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reading {
    /// They are read and counted.
    Counted,
    /// The workers of the VM sent too many: no messages are read for a while.
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
