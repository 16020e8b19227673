//! The seam between administration (store, API) and mediation (gateway, scheduler, workers).
//!
//! A command is validated, committed to the store together with its audit line, and then handed
//! over here as [`Change`]s, in the order of the commits; only then is it acknowledged. The other
//! way round the mediation tells what happened through [`crate::events::EventSink`], which never
//! waits for the disk.

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
    /// The GPUs known now, present or not, after a scan or after one's state changed. Complete: a
    /// GPU that is not in it is not known any more.
    GpuInventory(Vec<GpuRecord>),
    /// A pool is new or changed.
    PoolUpserted {
        /// The pool.
        pool: PoolRecord,
        /// The weights in force in it: its own, else the host's.
        weights: Weights,
    },
    /// A pool is gone. It had no VMs; its GPUs were unassigned before.
    PoolDeleted {
        /// Its name.
        name: String,
    },
    /// A GPU serves a pool.
    GpuAssigned(AssignmentRecord),
    /// A GPU serves a pool no longer: sessions placed on it by that pool's VMs end.
    GpuUnassigned(AssignmentRecord),
    /// A VM is new or changed (pool, class, limits, identity). Sessions that it may not have any
    /// more end. Strikes and quarantine count only for one that is new.
    VmUpserted {
        /// The VM.
        vm: VmRecord,
        /// Debt carried over from before a restart; `None` keeps what the scheduler has.
        debt_ns: Option<u64>,
    },
    /// A VM was quarantined or released by command.
    VmQuarantine {
        /// Its number.
        vm_id: u32,
        /// The registration that is meant.
        generation: u64,
        /// How it is now; a release forgets the strikes.
        quarantine: Option<Quarantine>,
    },
    /// A VM's usage is counted anew.
    UsageReset {
        /// Its number.
        vm_id: u32,
        /// The registration meant.
        generation: u64,
        /// When.
        at_unix_ms: u64,
    },
    /// A VM is gone: its sessions end.
    VmRemoved {
        /// Its number.
        vm_id: u32,
        /// The registration that ended.
        generation: u64,
    },
}

/// Why the mediation could not do what it was asked to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MediationError {
    /// No such session.
    #[error("no session {0} is open")]
    NoSession(u64),
    /// No such GPU.
    #[error("the mediation knows no GPU {0}")]
    NoGpu(String),
    /// The GPU scan (or check) did not finish.
    #[error("the GPU probe failed: {0}")]
    Probe(String),
    /// The daemon is stopping.
    #[error("the daemon is stopping")]
    Draining,
    /// Anything else.
    #[error("{0}")]
    Failed(String),
}

/// What a check of one GPU said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuCheck {
    /// Whether a canary kernel ran and its memory came back.
    pub passed: bool,
    /// What was done and seen, as a sentence.
    pub message: String,
}

/// The scheduler's answer about one VM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Explained {
    /// The answer.
    pub explanation: vgpu_sched::Explanation,
    /// The name of the pool under which the VM runs.
    pub pool: String,
}

/// A future of the mediation.
pub type MediationFuture<'a, T> =
    Pin<Box<dyn Future<Output = Result<T, MediationError>> + Send + 'a>>;

/// What administration asks of the mediation. Every method answers within a bounded time by its
/// own means (the API gives up earlier if not).
pub trait Mediation: Send + Sync + 'static {
    /// Takes committed changes over, all of them, in order. At start it is called once with
    /// everything configured (see [`Change`] order in `Catalog::start_changes`): GPUs, pools,
    /// assignments, VMs. Applying the same change twice does nothing the second time.
    fn apply(&self, changes: Vec<Change>) -> MediationFuture<'_, ()>;

    /// What runs now. Cheap: it is asked for at every status screen and scrape.
    fn snapshot(&self) -> MediationFuture<'_, RuntimeSnapshot>;

    /// Ends one session; returns once the guest was told and the worker was sent its kill. Never
    /// waits for the disk.
    fn kill_session(&self, session_id: u64, reason: String) -> MediationFuture<'_, ()>;

    /// Looks for GPUs in a probe process with a deadline.
    fn scan_gpus(&self) -> MediationFuture<'_, ScanResult>;

    /// Runs a canary on one GPU, in a process with a deadline.
    fn check_gpu(&self, uuid: String) -> MediationFuture<'_, GpuCheck>;

    /// The scheduler's decision log, as far as it is kept.
    fn sched_log(&self) -> MediationFuture<'_, vgpu_sched::log::View>;

    /// Why a VM waits, and for how long at most; `None` where the scheduler does not know it.
    fn explain(&self, vm_id: u32) -> MediationFuture<'_, Option<Explained>>;

    /// Takes over a configuration that was read again; only live keys differ.
    fn reconfigure(&self, config: Arc<Config>) -> MediationFuture<'_, ()>;

    /// What the mediation can say about itself for `vgpu-admin doctor`: listeners, left-over
    /// workers, probe.
    fn doctor(&self) -> MediationFuture<'_, Vec<DoctorCheck>>;
}
