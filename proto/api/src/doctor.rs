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

impl DoctorCheck {
    /// A check without a fault.
    #[must_use]
    pub fn ok(name: &str, message: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(CheckStatus::Ok, name, message, "")
    }

    /// A check that does not apply to this host.
    #[must_use]
    pub fn skipped(name: &str, message: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(CheckStatus::Skipped, name, message, "")
    }

    /// A check of something that works and should be changed. An empty hint is no hint.
    #[must_use]
    pub fn warning(name: &str, message: impl Into<String>, hint: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(CheckStatus::Warning, name, message, hint)
    }

    /// A check of something that does not work. An empty hint is no hint.
    #[must_use]
    pub fn error(name: &str, message: impl Into<String>, hint: impl Into<String>) -> DoctorCheck {
        DoctorCheck::new(CheckStatus::Error, name, message, hint)
    }

    fn new(
        status: CheckStatus,
        name: &str,
        message: impl Into<String>,
        hint: impl Into<String>,
    ) -> DoctorCheck {
        DoctorCheck {
            name: name.to_owned(),
            status,
            message: message.into(),
            hint: Some(hint.into()).filter(|hint| !hint.is_empty()),
        }
    }
}

/// `GET /v1/doctor`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DoctorReport {
    /// Whether no check ended in an error.
    pub ok: bool,
    /// The checks, in the order in which they ran.
    pub checks: Vec<DoctorCheck>,
}
