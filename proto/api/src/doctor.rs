//! Self-check: faults of this host and their remedies.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The outcome of one check.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// No fault.
    Ok,
    /// The check does not apply to this host.
    Skipped,
    /// Works, but should be changed.
    Warning,
    /// Does not work.
    Error,
}

/// A check of the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorCheck {
    /// Stable name of the check (`store-integrity`).
    pub name: String,
    /// The outcome.
    pub status: CheckStatus,
    /// The finding, as a sentence.
    pub message: String,
    /// The remedy, if there is one.
    pub hint: Option<String>,
}

/// `GET /v1/doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// Whether no check ended in an error.
    pub ok: bool,
    /// The checks, in the order in which they ran.
    pub checks: Vec<DoctorCheck>,
}
