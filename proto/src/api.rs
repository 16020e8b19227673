//! The admin API's JSON types, shared by `vgpud` (which serves them) and `vgpu-admin` (which reads
//! them).
//!
//! Rules of these types:
//! - A number carries its unit in its name: `slice_us`, `aging_ms`, `memory_bytes`, `gpu_ns`.
//! - A moment is `*_unix_ms`: milliseconds since 1970-01-01 UTC by the host's clock.
//! - In answers, unknown is `null`; readers ignore fields they do not know.
//! - In requests, unknown fields are refused, so that a typing error never passes silently. In a
//!   patch an absent field means "leave as it is" and `null` means "back to the default".
//! - Every failure is an [`ErrorBody`] with a stable [`ErrorCode`].
//!
//! The routes are listed in `docs/openapi.json`.

mod command;
mod doctor;
mod error;
mod event;
mod gpu;
mod pool;
mod session;
mod status;
mod vm;

pub use command::{ApplyReport, KillRequest, QuarantineRequest, ReloadReport};
pub use doctor::{CheckStatus, DoctorCheck, DoctorReport};
pub use error::{ErrorBody, ErrorCode, ErrorDetail};
pub use event::{AuditEntry, AuditPage, Event, EventKind, EventPage, Severity};
pub use gpu::{
    AssignRequest, Assignment, Gpu, GpuCheckReport, GpuHealth, GpuSource, GpuState, MigInstance,
    ScanReport, ScanResult, ScannedGpu, UnassignRequest,
};
pub use pool::{
    Pool, PoolCreate, PoolPatch, PoolPolicy, PoolSettings, Weights, WeightsPatch, WeightsReport,
};
pub use session::{Session, SessionState, WaitReason};
pub use status::{DaemonStatus, HostState, LatencySummary, PoolStatus, Status};
pub use vm::{
    MoveRequest, Priority, Quarantine, RegisterRequest, Vm, VmIds, VmLimits, VmLimitsPatch,
    VmPatch, VmState, VmUsage,
};

use serde::{Deserialize, Deserializer};

/// The version of this API, the first part of every route.
pub const API_VERSION: &str = "v1";

/// Where the daemon listens for administrators unless it is configured otherwise.
pub const DEFAULT_ADMIN_SOCKET: &str = "/run/vgpu/admin.sock";

/// The request header that makes a command safe to repeat: a command that was already done under
/// the same key is answered as it was then, and not done again.
pub const IDEMPOTENCY_HEADER: &str = "idempotency-key";

/// Reads a patch field: present (also as `null`) is `Some`, absent is left to `#[serde(default)]`.
fn present<'de, T, D>(deserializer: D) -> Result<Option<Option<T>>, D::Error>
where
    T: Deserialize<'de>,
    D: Deserializer<'de>,
{
    Option::<T>::deserialize(deserializer).map(Some)
}
