//! Self-examination: what is wrong with this host, and what cures it.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The outcome of one check.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum CheckStatus {
    /// Good.
    Ok,
    /// Does not apply here.
    Skipped,
    /// Works, but should be changed.
    Warning,
    /// Does not work.
    Error,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorCheck {
    /// Its stable name (`store-integrity`).
    pub name: String,
    /// The outcome.
    pub status: CheckStatus,
    /// What was seen.
    pub message: String,
    /// What to do about it.
    pub hint: Option<String>,
}

/// `GET /v1/doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// No check ended in an error.
    pub ok: bool,
    /// The checks, in the order they were made.
    pub checks: Vec<DoctorCheck>,
}
