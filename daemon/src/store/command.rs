//! What can be asked of the store, by whom, and what comes of it.

use serde::{Deserialize, Serialize};
use vgpu_api::{
    AssignRequest, ErrorCode, ErrorDetail, MoveRequest, PoolCreate, PoolPatch, QuarantineRequest,
    RegisterRequest, UnassignRequest, UsageReset, VmIds, VmPatch, WeightsPatch,
};

use crate::mediation::Change;
use crate::model::ScanResult;

/// A change of the configuration. Doing one twice changes nothing the second time.
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
    /// Let a GPU serve a pool.
    AssignGpu(AssignRequest),
    /// Take a GPU out of its pools.
    UnassignGpu(UnassignRequest),
    /// Take over what a scan found.
    ScanGpus(ScanResult),
    /// Let a GPU finish what runs, and give it nothing new.
    DrainGpu {
        /// Number or UUID.
        gpu: String,
    },
    /// Let a suspect or draining GPU take work again.
    ResumeGpu {
        /// Number or UUID.
        gpu: String,
    },
    /// A check found that a GPU cannot be trusted.
    SuspectGpu {
        /// Number or UUID.
        gpu: String,
        /// What the check saw.
        reason: String,
    },
    /// Forget a GPU that vanished.
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
    /// Refuse VMs.
    Quarantine(QuarantineRequest),
    /// Serve VMs again.
    Release(VmIds),
    /// Count anew what VMs use.
    ResetUsage(UsageReset),
    /// Change the weights of the host or of a pool.
    SetWeights(WeightsPatch),
    /// Nothing of the configuration changes: a line for the audit trail about something done
    /// elsewhere (a session killed, the configuration file read again).
    Note {
        /// What was done.
        action: String,
        /// To what.
        target: String,
    },
}

impl Command {
    /// The command's name in the audit trail, as `vgpu-admin` calls it.
    #[must_use]
    pub fn action(&self) -> &str {
        match self {
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
            Self::Note { action, .. } => action,
        }
    }
}

/// Who asks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AuditActor {
    /// `uid:<n>`, `token:<name>`, or `vgpud`.
    pub name: String,
    /// The caller's process, where it is known.
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

/// What a command came to.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    /// For the mediation, in order. Empty when everything already was as asked, and for a command
    /// that was repeated under its idempotency key.
    #[serde(skip)]
    pub changes: Vec<Change>,
    /// Whether anything changed (as it was the first time, for a repeated command).
    pub changed: bool,
    /// To what it was done (`vm 1-7`).
    pub target: String,
    /// What was done, as a sentence.
    pub message: String,
    /// What else the administrator should know.
    pub warnings: Vec<String>,
    /// What a scan found next to what was known.
    pub scan: Option<ScanDiff>,
}

/// What a scan changed, by GPU number.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScanDiff {
    /// Seen for the first time.
    pub added: Vec<u32>,
    /// Came back.
    pub returned: Vec<u32>,
    /// At another PCI address than before.
    pub moved: Vec<u32>,
    /// No longer seen.
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

/// A value out of its range.
pub(crate) fn invalid(message: String) -> ErrorDetail {
    refuse(ErrorCode::InvalidRequest, message, "")
}
