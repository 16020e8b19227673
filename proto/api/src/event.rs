//! Events (actions of the daemon) and the audit trail (commands of administrators).

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::words::words;

/// The severity of an event.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Normal operation.
    Info,
    /// Abnormal, without harm to other VMs.
    Warning,
    /// A requested action failed, or an administrator is needed.
    Error,
}

words! {
    /// The kind of an event. Kinds are added, never renamed.
    #[derive()]
    EventKind {
        /// The daemon began to serve.
        DaemonStarted = "daemon_started",
        /// The daemon drains and stops.
        DaemonStopping = "daemon_stopping",
        /// The configuration file was read again.
        ConfigReloaded = "config_reloaded",
        /// An administrator changed a setting (the audit trail names the administrator).
        ConfigChanged = "config_changed",
        /// A guest program was admitted.
        SessionStarted = "session_started",
        /// A session ended by itself.
        SessionEnded = "session_ended",
        /// A session was ended by the daemon or by an administrator.
        SessionKilled = "session_killed",
        /// A connection of a guest was refused.
        Refused = "refused",
        /// A turn exceeded the soft limit.
        SoftLimit = "soft_limit",
        /// A turn exceeded the hard limit; the session was killed.
        HardLimit = "hard_limit",
        /// A VM got a strike.
        Strike = "strike",
        /// A VM was quarantined.
        Quarantined = "quarantined",
        /// A VM was released from quarantine.
        Released = "released",
        /// A rate limit began to hold back a VM, or still does after an hour.
        RateLimited = "rate_limited",
        /// A session holds device memory beyond the limit of its VM, or beyond the GPU's memory.
        MemoryBeyond = "memory_beyond",
        /// A session was refused memory; told once for each session and limit.
        MemoryRefused = "memory_refused",
        /// A GPU was seen for the first time, or again.
        GpuAppeared = "gpu_appeared",
        /// A GPU is no longer seen.
        GpuVanished = "gpu_vanished",
        /// A scan for GPUs failed: their present state is unknown.
        ScanFailed = "scan_failed",
        /// A GPU takes no new work until a check passes.
        GpuSuspect = "gpu_suspect",
        /// An administrator drains a GPU, or all: no new sessions.
        GpuDraining = "gpu_draining",
        /// A GPU takes work again.
        GpuResumed = "gpu_resumed",
        /// A worker could not be started, or died.
        WorkerFailed = "worker_failed",
        /// The state database cannot be written.
        StoreUnwritable = "store_unwritable",
        /// The state database can be written again.
        StoreRecovered = "store_recovered",
        /// A kind newer than this program.
        [serde(other)] Unknown = "unknown",
    }
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Number of the event; ascending, with gaps after a restart.
    pub seq: u64,
    /// Time of the event.
    pub at_unix_ms: u64,
    /// Kind of the event.
    pub kind: EventKind,
    /// Severity of the event.
    pub severity: Severity,
    /// The VM concerned.
    pub vm_id: Option<u32>,
    /// The session concerned.
    pub session_id: Option<u64>,
    /// The GPU concerned.
    pub gpu_uuid: Option<String>,
    /// The pool concerned.
    pub pool: Option<String>,
    /// Description, as a sentence.
    pub message: String,
}

/// A part of the event list, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// Start of the next part: request it with `since=<next_since>`.
    pub next_since: u64,
}

/// An entry of the audit trail: a command that was carried out or refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Number of the entry; ascending without gaps.
    pub seq: u64,
    /// Time of the command.
    pub at_unix_ms: u64,
    /// Actor: `uid:<n>`, `token:<name>`, or `vgpud` for the daemon itself.
    pub actor: String,
    /// Process ID of a caller on the Unix socket.
    pub pid: Option<u32>,
    /// The action (`register-vm`, `assign-gpu`, …).
    pub action: String,
    /// The target (`vm 1-7`, `gpu 0`, `pool A`). Ends with `(nothing changed)`, or with `(refused:
    /// …)` and the reason.
    pub target: String,
    /// The command as parsed, as JSON, without absent values. `changed` lists the changed fields of
    /// VMs, pools and GPUs (`vm 7: priority medium -> high`).
    pub detail: String,
}

/// A part of the audit trail, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The entries.
    pub entries: Vec<AuditEntry>,
    /// Start of the next part: request it with `since=<next_since>`.
    pub next_since: u64,
}
