//! Small requests and answers of admin commands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::Session;

/// The answer to a command that changes something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyReport {
    /// Whether anything changed; `false` if every value already was as requested.
    pub changed: bool,
    /// The effect of the command, as a sentence.
    pub message: String,
    /// Further notes for the administrator, as sentences.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// Whether the command was only tried (`dry_run=true`). Nothing was changed then, and the other
    /// fields say what the command would do.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub dry_run: bool,
    /// In a dry run: the sessions that would end.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ends: Vec<Session>,
}

/// `POST /v1/vms/quarantine`: refuse VMs and end their sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantineRequest {
    /// The VMs.
    pub vm_ids: Vec<u32>,
    /// Reason for the event log and for the guest; up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/sessions/{session_id}/kill`: end one session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KillRequest {
    /// Reason for the event log and for the guest; up to 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/reload`: what a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadReport {
    /// Keys whose new value is in force now.
    pub applied: Vec<String>,
    /// Keys whose new value takes effect only after a restart of the daemon.
    pub restart_needed: Vec<String>,
}
