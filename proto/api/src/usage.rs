//! Usage of VMs, and the reset of usage counters.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::VmUsage;

/// A bucket of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// Upper bound of the bucket, inclusive; the bound of the previous bucket is the lower bound.
    /// The last bucket may have no bound (18446744073709551615).
    pub up_to_ns: u64,
    /// Number of measurements in the bucket.
    pub count: u64,
}

/// The distribution of a duration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyHistogram {
    /// Number of measurements.
    pub count: u64,
    /// Sum of all measurements.
    pub sum_ns: u64,
    /// Median (the bound of a bucket, at most 12.5 % too high).
    pub p50_ns: u64,
    /// 95th percentile.
    pub p95_ns: u64,
    /// 99th percentile.
    pub p99_ns: u64,
    /// Maximum, exact.
    pub max_ns: u64,
    /// The non-empty buckets.
    pub buckets: Vec<LatencyBucket>,
}

/// `GET /v1/usage`: the usage of a VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// The VM.
    pub vm_id: u32,
    /// Name of the VM.
    pub name: String,
    /// Pool of the VM.
    pub pool: String,
    /// Start of the counts: the registration, or the last reset.
    pub since_unix_ms: u64,
    /// Totals since then, which survive restarts.
    pub usage: VmUsage,
    /// Waits from having work to having the GPU, since then or since the daemon started.
    pub wait: LatencyHistogram,
    /// GPU time charged per turn, over the same time.
    pub turn: LatencyHistogram,
    /// Present device memory.
    pub memory_bytes: u64,
    /// Present pinned host memory.
    pub pinned_bytes: u64,
}

/// `POST /v1/usage/reset`: set the usage counters to zero, for all listed VMs or none. Debts,
/// strikes and limits are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageReset {
    /// The VMs; `null`: all VMs.
    pub vm_ids: Option<Vec<u32>>,
}
