//! Commands of the store, their callers and their outcomes.

use serde::{Deserialize, Serialize};
use vgpu_api::{
    AssignRequest, ErrorCode, ErrorDetail, MoveRequest, PoolCreate, PoolPatch, QuarantineRequest,
    RegisterRequest, Session, UnassignRequest, UsageReset, VmIds, VmPatch, WeightsPatch,
};

use crate::mediation::Change;
use crate::model::ScanResult;

/// A change of the configuration. All commands are idempotent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Command {
    /// Create a pool.
    CreatePool(PoolCreate),
    /// Change a pool's settings.
    SetPool {
        /// The pool.
        name: String,
        /// The changes.
        patch: PoolPatch,
    },
    /// Delete a pool without VMs.
    DeletePool {
        /// The pool.
        name: String,
    },
    /// Assign a GPU to a pool.
    AssignGpu(AssignRequest),
    /// Remove a GPU from its pools.
    UnassignGpu(UnassignRequest),
    /// Record the result of a scan.
    ScanGpus(ScanResult),
    /// Let a GPU finish its work, and give it no new work.
    DrainGpu {
        /// Number or UUID, or [`Command::ALL_GPUS`].
        gpu: String,
    },
    /// Let a suspect or draining GPU take work again.
    ResumeGpu {
        /// Number or UUID.
        gpu: String,
    },
    /// Mark a GPU as suspect after a failed check.
    SuspectGpu {
        /// Number or UUID.
        gpu: String,
        /// Result of the check.
        reason: String,
    },
    /// Forget a vanished GPU.
    ForgetGpu {
        /// Number or UUID.
        gpu: String,
    },
    /// Register VMs.
    RegisterVm(RegisterRequest),
    /// Remove VMs.
    UnregisterVm(VmIds),
    /// Change VMs.
    SetVm(VmPatch),
    /// Move VMs to another pool.
    MoveVm(MoveRequest),
    /// Quarantine VMs.
    Quarantine(QuarantineRequest),
    /// End the quarantine of VMs.
    Release(VmIds),
    /// Set the usage counters of VMs to zero.
    ResetUsage(UsageReset),
    /// Change the weights of the host or of a pool.
    SetWeights(WeightsPatch),
    /// Add a line to the audit trail about an action outside the store (a session killed, the
    /// configuration file reloaded). Changes no configuration.
    Note {
        /// The action.
        action: String,
        /// The target of the action.
        target: String,
    },
}

impl Command {
    /// The word for all GPUs in [`Command::DrainGpu`].
    pub const ALL_GPUS: &str = "all";
}

/// Makes [`Command::action`] and [`Command::ACTIONS`] from one list.
macro_rules! actions {
    (
        commands { $($command:pat => $action:literal,)* }
        notes { $($name:ident = $noted:literal,)* }
    ) => {
        impl Command {
            /// Every action of the audit trail.
            pub const ACTIONS: &[&str] = &[$($action,)* $(Self::$name,)*];
            $(pub(crate) const $name: &str = $noted;)*

            /// The command's name in the audit trail, as `vgpu-admin` calls it.
            #[must_use]
            pub fn action(&self) -> &str {
                match self {
                    $($command => $action,)*
                    Self::Note { action, .. } => action,
                }
            }
        }
    };
}

actions! {
    commands {
        Self::CreatePool(_) => "pool-create",
        Self::SetPool { .. } => "pool-set",
        Self::DeletePool { .. } => "pool-delete",
        Self::AssignGpu(_) => "assign-gpu",
        Self::UnassignGpu(_) => "unassign-gpu",
        Self::ScanGpus(_) => "scan-gpus",
        Self::DrainGpu { .. } => "gpu-drain",
        Self::ResumeGpu { .. } => "gpu-resume",
        Self::SuspectGpu { .. } => "gpu-suspect",
        Self::ForgetGpu { .. } => "gpu-forget",
        Self::RegisterVm(_) => "register-vm",
        Self::UnregisterVm(_) => "unregister-vm",
        Self::SetVm(_) => "vm-set",
        Self::MoveVm(_) => "move-vm",
        Self::Quarantine(_) => "quarantine",
        Self::Release(_) => "release",
        Self::ResetUsage(_) => "usage-reset",
        Self::SetWeights(_) => "weights-set",
    }
    notes {
        RELOAD = "reload",
        RESTORE = "restore",
        SESSION_KILL = "session-kill",
        // The refusals of a caller beyond those that have a line each.
        REFUSED = "refused",
    }
}

/// Caller of a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditActor {
    /// `uid:<n>`, `token:<name>`, or `vgpud`.
    pub name: String,
    /// Process ID of the caller, if known.
    pub pid: Option<u32>,
}

impl AuditActor {
    /// The daemon itself.
    #[must_use]
    pub fn daemon() -> Self {
        Self {
            name: "vgpud".into(),
            pid: None,
        }
    }
}

/// Outcome of a command.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// Changes for the mediation, in order. Empty if nothing changed, and for a command that was
    /// repeated under its idempotency key.
    #[serde(skip)]
    pub changes: Vec<Change>,
    /// Whether anything changed (for a repeated command: the first time).
    pub changed: bool,
    /// Target of the command (`vm 1-7`).
    pub target: String,
    /// Result as a sentence.
    pub message: String,
    /// Warnings for the administrator.
    pub warnings: Vec<String>,
    /// Sessions that a dry run or a restore finds to end.
    #[serde(skip)]
    pub ends: Vec<Session>,
    /// Changes that a scan found.
    pub scan: Option<ScanDiff>,
}

/// Changes of a scan, as GPU numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanDiff {
    /// GPUs seen for the first time.
    pub added: Vec<u32>,
    /// GPUs that came back.
    pub returned: Vec<u32>,
    /// GPUs at another PCI address than before.
    pub moved: Vec<u32>,
    /// GPUs that are no longer seen.
    pub vanished: Vec<u32>,
}

/// A refusal with a hint.
pub(crate) fn refuse(
    code: ErrorCode,
    message: impl Into<String>,
    hint: impl Into<String>,
) -> ErrorDetail {
    ErrorDetail {
        code,
        message: message.into(),
        hint: Some(hint.into()).filter(|h| !h.is_empty()),
    }
}

/// The refusal of a value out of range.
pub(crate) fn invalid(message: String) -> ErrorDetail {
    refuse(ErrorCode::InvalidRequest, message, "")
}
