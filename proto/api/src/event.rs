//! What happened: events (the daemon's doing) and the audit trail (the administrators').

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How much an event matters.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Severity {
    /// Normal course.
    Info,
    /// Abnormal; nobody else suffers.
    Warning,
    /// Something that was asked for did not happen, or needs an administrator.
    Error,
}

/// What kind of thing happened. Kinds are added, never renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// The daemon began to serve.
    DaemonStarted,
    /// The daemon drains and stops.
    DaemonStopping,
    /// The configuration file was read again.
    ConfigReloaded,
    /// An administrator changed something (the audit trail says who).
    ConfigChanged,
    /// A guest program was admitted.
    SessionStarted,
    /// A session ended by itself.
    SessionEnded,
    /// A session was ended by the daemon or by an administrator.
    SessionKilled,
    /// A guest was refused at the door.
    Refused,
    /// A turn passed its soft limit.
    SoftLimit,
    /// A turn passed its hard limit; the session was killed.
    HardLimit,
    /// A VM got a strike.
    Strike,
    /// A VM was quarantined.
    Quarantined,
    /// A VM was released.
    Released,
    /// A VM is held back by a rate limit.
    RateLimited,
    /// A GPU was seen for the first time, or again.
    GpuAppeared,
    /// A GPU is no longer seen.
    GpuVanished,
    /// A GPU takes nothing more until it was checked.
    GpuSuspect,
    /// A GPU takes work again.
    GpuResumed,
    /// A worker could not be started, or died.
    WorkerFailed,
    /// The state database cannot be written.
    StoreUnwritable,
    /// The state database can be written again.
    StoreRecovered,
    /// A kind newer than this program.
    #[serde(other)]
    Unknown,
}

/// One event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Event {
    /// Grows with every event; gaps appear after a restart.
    pub seq: u64,
    /// When.
    pub at_unix_ms: u64,
    /// What kind.
    pub kind: EventKind,
    /// How much it matters.
    pub severity: Severity,
    /// The VM concerned.
    pub vm_id: Option<u32>,
    /// The session concerned.
    pub session_id: Option<u64>,
    /// The GPU concerned.
    pub gpu_uuid: Option<String>,
    /// The pool concerned.
    pub pool: Option<String>,
    /// A sentence.
    pub message: String,
}

/// A part of the event list, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct EventPage {
    /// The events.
    pub events: Vec<Event>,
    /// Ask with `since=<next_since>` for what follows.
    pub next_since: u64,
}

/// One line of the audit trail: a command that was carried out.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditEntry {
    /// Grows with every line, without gaps.
    pub seq: u64,
    /// When.
    pub at_unix_ms: u64,
    /// Who: `uid:<n>`, `token:<name>`, or `vgpud` for the daemon's own doing.
    pub actor: String,
    /// The caller's process number, over the Unix socket.
    pub pid: Option<u32>,
    /// What was done (`register-vm`, `assign-gpu`, …).
    pub action: String,
    /// To what (`vm 1-7`, `gpu 0`, `pool A`).
    pub target: String,
    /// The command as it was understood, as JSON.
    pub detail: String,
}

/// A part of the audit trail, oldest first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AuditPage {
    /// The lines.
    pub entries: Vec<AuditEntry>,
    /// Ask with `since=<next_since>` for what follows.
    pub next_since: u64,
}
