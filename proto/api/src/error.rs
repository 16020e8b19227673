//! Failures in answers of the API.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::exit;

/// The body of every answer with an error status.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorBody {
    /// The failure.
    pub error: ErrorDetail,
}

/// A failure and its remedy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ErrorDetail {
    /// For programs: stable across versions.
    pub code: ErrorCode,
    /// For people: a sentence.
    pub message: String,
    /// The next step, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

/// The cause of a failed request. Codes are added, never renamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The request cannot be parsed, or a value is out of range.
    InvalidRequest,
    /// The route does not exist.
    RouteNotFound,
    /// The route exists, with another method.
    MethodNotAllowed,
    /// No GPU with this number or UUID is known.
    GpuNotFound,
    /// No pool with this name exists.
    PoolNotFound,
    /// No VM with this number is registered.
    VmNotFound,
    /// No session with this number is open.
    SessionNotFound,
    /// A pool with this name exists with other settings.
    PoolExists,
    /// The pool still has VMs.
    PoolNotEmpty,
    /// The VM is registered with other settings.
    VmExists,
    /// Another VM has this name.
    NameInUse,
    /// Another VM has this CID.
    CidInUse,
    /// Another VM has this socket path.
    SocketInUse,
    /// Another VM has this origin.
    OriginInUse,
    /// The GPU serves another pool.
    GpuAssignedElsewhere,
    /// The GPU cannot take work: it vanished, or is suspect.
    GpuUnusable,
    /// The idempotency key was used before with another command.
    IdempotencyKeyReused,
    /// TCP: the token is missing or unknown.
    Unauthenticated,
    /// The caller lacks the permission.
    PermissionDenied,
    /// Too many admin requests.
    RateLimited,
    /// The request is larger than the daemon's limit.
    RequestTooLarge,
    /// The request took longer than the daemon's limit.
    Timeout,
    /// The state database cannot be written (disk full, I/O error, read-only).
    StoreUnwritable,
    /// The change is stored, but the running daemon could not apply it.
    NotApplied,
    /// The GPU scan failed.
    ScanFailed,
    /// The configuration file is not valid; nothing was changed.
    ConfigInvalid,
    /// The daemon is stopping.
    Draining,
    /// The daemon has a fault; its log says more.
    Internal,
    /// A code newer than this program.
    #[serde(other)]
    Unknown,
}

impl ErrorCode {
    /// The HTTP status of the code.
    #[must_use]
    pub fn http_status(self) -> u16 {
        match self {
            Self::InvalidRequest | Self::ConfigInvalid => 400,
            Self::Unauthenticated => 401,
            Self::PermissionDenied => 403,
            Self::RouteNotFound
            | Self::GpuNotFound
            | Self::PoolNotFound
            | Self::VmNotFound
            | Self::SessionNotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::PoolExists
            | Self::PoolNotEmpty
            | Self::VmExists
            | Self::NameInUse
            | Self::CidInUse
            | Self::SocketInUse
            | Self::OriginInUse
            | Self::GpuAssignedElsewhere
            | Self::GpuUnusable
            | Self::IdempotencyKeyReused => 409,
            Self::RequestTooLarge => 413,
            Self::RateLimited => 429,
            Self::NotApplied | Self::ScanFailed | Self::Internal | Self::Unknown => 500,
            Self::Draining => 503,
            Self::StoreUnwritable => 507,
        }
    }

    /// The exit code of `vgpu-admin` for this failure ([`exit`]).
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self.http_status() {
            400 | 405 | 413 => exit::USAGE,
            401 | 403 => exit::NOT_PERMITTED,
            404 => exit::NOT_FOUND,
            409 | 429 | 503 => exit::CONFLICT,
            _ => exit::FAILED,
        }
    }
}

impl std::fmt::Display for ErrorDetail {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.hint {
            Some(hint) => write!(f, "{} {hint}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_from_a_newer_daemon_is_still_read() {
        let body: ErrorBody =
            serde_json::from_str(r#"{"error":{"code":"sun_too_hot","message":"No."}}"#).unwrap();
        assert_eq!(body.error.code, ErrorCode::Unknown);
        assert_eq!(body.error.hint, None);
    }
}
