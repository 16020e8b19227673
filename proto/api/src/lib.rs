//! The admin API's JSON types, shared by `vgpud` (which serves them) and `vgpu-admin` (which reads
//! them).
//!
//! Rules of these types:
//! - A number carries its unit in its name: `slice_us`, `aging_ms`, `memory_bytes`, `gpu_ns`.
//! - A time is `*_unix_ms`: milliseconds since 1970-01-01 UTC by the host's clock.
//! - In answers, an unknown value is `null`; readers ignore unknown fields.
//! - In requests, unknown fields are refused, so that a misspelt name is never ignored. In a patch,
//!   an absent field means "unchanged" and `null` means "the default".
//! - Every failure is an [`ErrorBody`] with a stable [`ErrorCode`].
//!
//! The routes are listed in `docs/openapi.json`.
#![cfg_attr(
    not(test),
    deny(
        clippy::cast_possible_truncation,
        clippy::cast_possible_wrap,
        clippy::cast_sign_loss
    )
)]

mod command;
mod doctor;
mod error;
mod event;
mod explain;
mod gpu;
mod pool;
mod session;
mod status;
mod usage;
mod vm;

pub use command::{ApplyReport, KillRequest, QuarantineRequest, ReloadReport};
pub use doctor::{CheckStatus, DoctorCheck, DoctorReport};
pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use event::{AuditEntry, AuditPage, Event, EventKind, EventPage, Severity};
pub use explain::{Cap, Explain, ExplainHolder, ExplainReason};
pub use gpu::{
    AssignRequest, Assignment, Gpu, GpuAccount, GpuCheckReport, GpuHealth, GpuSource, GpuState,
    MigInstance, ScanReport, ScanResult, ScannedGpu, UnassignRequest,
};
pub use pool::{
    Pool, PoolCreate, PoolPatch, PoolPolicy, PoolSettings, Weights, WeightsPatch, WeightsReport,
};
pub use session::{Session, SessionState, WaitReason};
pub use status::{DaemonStatus, HostState, LatencySummary, PoolStatus, Status};
pub use usage::{LatencyBucket, LatencyHistogram, UsageReport, UsageReset};
pub use vm::{
    MoveRequest, Priority, Quarantine, RegisterRequest, Vm, VmIds, VmLimits, VmLimitsPatch,
    VmPatch, VmState, VmUsage,
};

use serde::{Deserialize, Deserializer};

/// The version of this API, the first part of every route.
pub const API_VERSION: &str = "v1";

/// Default address of the daemon's admin listener.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/vgpu/admin.sock";

/// The request header that makes a command safe to repeat: a command whose key was already used is
/// not carried out again, and gets the first answer.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";

/// Marks the state database and its backups as files of vgpud (`PRAGMA application_id` of SQLite):
/// "vgpu".
pub const APPLICATION_ID: i32 = 0x7667_7075;

/// Reads a patch field: present (also as `null`) is `Some`, absent is left to `#[serde(default)]`.
fn present<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_a_patch_absent_null_and_a_value_are_three_things() {
        let read = |text: &str| serde_json::from_str::<VmLimitsPatch>(text).unwrap();
        let mut limits = VmLimits {
            sessions: Some(7),
            ..VmLimits::default()
        };
        read("{}").apply_to(&mut limits);
        assert_eq!(limits.sessions, Some(7));
        read(r#"{"sessions": 0}"#).apply_to(&mut limits);
        assert_eq!(limits.sessions, Some(0), "0 is no limit, not the default");
        read(r#"{"sessions": null}"#).apply_to(&mut limits);
        assert_eq!(limits.sessions, None);
        // A parsed patch is written in the same way.
        for text in ["{}", r#"{"sessions":null}"#, r#"{"sessions":3}"#] {
            assert_eq!(serde_json::to_string(&read(text)).unwrap(), text);
        }
    }

    #[test]
    fn a_priority_is_named_as_json_writes_it() {
        use Priority::{Critical, High, Low, Medium};
        for priority in [Low, Medium, High, Critical] {
            let json = serde_json::to_string(&priority).unwrap();
            assert_eq!(json, format!("{:?}", priority.name()));
        }
    }

    #[test]
    fn a_typing_error_in_a_request_is_refused() {
        let text = r#"{"vm_ids": [1], "pool": "A", "priorty": "high"}"#;
        let error = serde_json::from_str::<RegisterRequest>(text).unwrap_err();
        assert!(error.to_string().contains("priorty"), "{error}");
    }

    #[test]
    fn a_pool_patch_reaches_every_setting() {
        let every = PoolSettings {
            policy: PoolPolicy::Fifo,
            weight: 2,
            slice_us: 3,
            min_run_us: 12,
            aging_ms: 4,
            weights: Some(Weights::default()),
            soft_limit_ms: 5,
            hard_limit_ms: 6,
            contended_limit_ms: 7,
            overrun_grace_ms: 8,
            idle_hold_us: 9,
            window_us: 15,
            quarantine_strikes: 10,
            strike_decay_s: 11,
            quarantine_s: 13,
            quarantine_max_s: 14,
        };
        // All settings as JSON are a patch that sets every field (the store relies on this).
        let json = serde_json::to_string(&every).unwrap();
        let patch: PoolPatch = serde_json::from_str(&json).unwrap();
        let mut settings = PoolSettings::default();
        patch.apply_to(&mut settings);
        assert_eq!(settings, every);
    }
}
