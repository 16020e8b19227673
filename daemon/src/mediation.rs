//! The interface between administration (store, API) and mediation (gateway, scheduler, workers).
//!
//! A command is validated, committed to the store with its audit line, passed on here as
//! [`Change`]s, and then acknowledged. Changes come in the order of the commits. In the other
//! direction, the mediation reports through [`crate::events::EventSink`], which never waits for the
//! disk.

use std::pin::Pin;
use std::sync::Arc;

use vgpu_api::{DoctorCheck, Quarantine, Weights};

use crate::config::Config;
use crate::model::{
    AssignmentRecord, GpuRecord, PoolRecord, RuntimeSnapshot, ScanResult, VmRecord,
};

/// A committed change of the configuration.
#[expect(
    clippy::large_enum_variant,
    reason = "a handful exist at a time, and only in passing"
)]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// All known GPUs, present or not, after a scan or after a change of state. The list is
    /// complete: a GPU that is missing from it is forgotten.
    GpuInventory(Vec<GpuRecord>),
    /// A pool is new or changed.
    PoolUpserted {
        /// The pool.
        pool: PoolRecord,
        /// Effective weights of the pool: its own, else the host's.
        weights: Weights,
    },
    /// A pool was deleted. It had no VMs, and its GPUs were unassigned before.
    PoolDeleted {
        /// Name of the pool.
        name: String,
    },
    /// A GPU was assigned to a pool.
    GpuAssigned(AssignmentRecord),
    /// A GPU was removed from a pool: sessions of that pool's VMs on the GPU end.
    GpuUnassigned(AssignmentRecord),
    /// A VM is new or changed (pool, class, limits, identity). Sessions that the VM may no longer
    /// have end. Strikes and quarantine only matter for a new VM.
    VmUpserted {
        /// The VM.
        vm: VmRecord,
        /// Debt in ns from before a restart; `None` keeps the scheduler's value.
        debt_ns: Option<u64>,
    },
    /// A VM was quarantined or released by command.
    VmQuarantine {
        /// Number of the VM.
        vm_id: u32,
        /// Number of the registration.
        generation: u64,
        /// The new quarantine; `None`: released. A release clears the strikes.
        quarantine: Option<Quarantine>,
    },
    /// The usage counters of a VM are set to zero.
    UsageReset {
        /// Number of the VM.
        vm_id: u32,
        /// Number of the registration.
        generation: u64,
        /// Time of the reset.
        at_unix_ms: u64,
    },
    /// A VM was removed: its sessions end.
    VmRemoved {
        /// Number of the VM.
        vm_id: u32,
        /// The registration that ended.
        generation: u64,
    },
}

/// Why the mediation could not carry out a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediationError {
    /// The session is not open.
    #[error("no session {0} is open")]
    NoSession(u64),
    /// The GPU is unknown.
    #[error("the mediation knows no GPU {0}")]
    NoGpu(String),
    /// The GPU scan (or check) did not finish.
    #[error("the GPU probe failed: {0}")]
    Probe(String),
    /// vgpud is stopping.
    #[error("the daemon is stopping")]
    Draining,
    /// Any other failure.
    #[error("{0}")]
    Failed(String),
}

/// Result of a check of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuCheck {
    /// What the check found.
    pub found: CheckFound,
    /// Action and observation, as a sentence.
    pub message: String,
}

/// What a check of a GPU found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckFound {
    /// A canary kernel ran and its memory was freed.
    Passed,
    /// Nothing about the GPU, because the device memory was full.
    MemoryFull,
    /// Nothing about the GPU, because the host could not start another process.
    HostFull,
    /// Nothing about the GPU, because a killed worker has not ended yet.
    WorkerLeft,
    /// The GPU does not work, or memory was not freed.
    Failed,
}

impl CheckFound {
    /// Whether the check says something about the GPU.
    #[must_use]
    pub fn is_about_the_gpu(self) -> bool {
        matches!(self, CheckFound::Passed | CheckFound::Failed)
    }
}

/// The scheduler's explanation for one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The explanation.
    pub explanation: vgpu_sched::Explanation,
    /// Name of the VM's pool.
    pub pool: String,
}

/// A future of the mediation.
pub type MediationFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, MediationError>> + Send + 'a>>;

/// Requests of administration to the mediation. Every method answers within a bounded time of its
/// own; the API has a shorter timeout.
pub trait Mediation: Send + Sync + 'static {
    /// Applies committed changes, all of them, in order. At start it is called once with the whole
    /// configuration, in the order of `Catalog::start_changes`: GPUs, pools, assignments, VMs.
    /// Idempotent.
    fn apply(&self, changes: Vec<Change>) -> MediationFuture<'_, ()>;

    /// The present runtime state. Cheap: it is read for every status screen and scrape.
    fn snapshot(&self) -> MediationFuture<'_, RuntimeSnapshot>;

    /// Ends one session. Returns after the guest was informed and the kill of the worker was
    /// ordered. Never waits for the disk.
    fn kill_session(&self, session_id: u64, reason: String) -> MediationFuture<'_, ()>;

    /// Scans for GPUs in a probe process with a deadline.
    fn scan_gpus(&self) -> MediationFuture<'_, ScanResult>;

    /// Runs a canary on one GPU, in a process with a deadline.
    fn check_gpu(&self, uuid: String) -> MediationFuture<'_, GpuCheck>;

    /// The part of the scheduler's decision log that is kept.
    fn sched_log(&self) -> MediationFuture<'_, vgpu_sched::log::View>;

    /// Why a VM waits, and for how long at most; `None` if the scheduler does not know the VM.
    fn explain(&self, vm_id: u32) -> MediationFuture<'_, Option<Explained>>;

    /// Applies a reloaded configuration; only live keys differ.
    fn reconfigure(&self, config: Arc<Config>) -> MediationFuture<'_, ()>;

    /// The checks of the mediation for `vgpu-admin doctor`. They cover the listeners, the host, the
    /// time that vgpud counts for the GPUs, and workers that an earlier vgpud left.
    fn doctor(&self) -> MediationFuture<'_, Vec<DoctorCheck>>;
}
