//! Small requests and answers of commands.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The answer to a command that changes something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ApplyReport {
    /// Whether anything changed; `false` when everything already was as asked.
    pub changed: bool,
    /// What was done, as a sentence.
    pub message: String,
    /// What else the administrator should know, as sentences.
    #[serde(default)]
    pub warnings: Vec<String>,
}

/// `POST /v1/vms/quarantine`: refuse VMs and end their sessions.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct QuarantineRequest {
    /// The VMs.
    pub vm_ids: Vec<u32>,
    /// Why, for the record and for the guest; up to 200 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/sessions/{session_id}/kill`: end one session.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct KillRequest {
    /// Why, for the record and for the guest; up to 200 characters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// `POST /v1/reload`: what a reload changed.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReloadReport {
    /// Keys whose new value is in force now.
    pub applied: Vec<String>,
    /// Keys whose new value counts only after a restart of the daemon.
    pub restart_needed: Vec<String>,
}
