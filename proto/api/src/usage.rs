//! What VMs used: exported, and reset.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::VmUsage;

/// A part of a distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyBucket {
    /// At most so long, and longer than the bucket before. The last bucket may have no bound
    /// (18446744073709551615).
    pub up_to_ns: u64,
    /// So many times.
    pub count: u64,
}

/// The distribution of a duration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencyHistogram {
    /// How many were measured.
    pub count: u64,
    /// Their sum.
    pub sum_ns: u64,
    /// Half were at most this long (a bucket's bound, at most 12.5 % too high).
    pub p50_ns: u64,
    /// 95 % were at most this long.
    pub p95_ns: u64,
    /// 99 % were at most this long.
    pub p99_ns: u64,
    /// The longest, exactly.
    pub max_ns: u64,
    /// The buckets that are not empty.
    pub buckets: Vec<LatencyBucket>,
}

/// `GET /v1/usage`: what a VM used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct UsageReport {
    /// The VM.
    pub vm_id: u32,
    /// Its name.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Since when it is counted: the registration, or the last reset.
    pub since_unix_ms: u64,
    /// The totals since then; they survive restarts.
    pub usage: VmUsage,
    /// From having work to having the GPU, since then or since the daemon started.
    pub wait: LatencyHistogram,
    /// GPU time charged per turn, likewise.
    pub turn: LatencyHistogram,
    /// Device memory held now.
    pub memory_bytes: u64,
    /// Pinned host memory held now.
    pub pinned_bytes: u64,
}

/// `POST /v1/usage/reset`: count anew, for all or for none of them. Debts, strikes and limits stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct UsageReset {
    /// The VMs; `null`: all.
    pub vm_ids: Option<Vec<u32>>,
}
