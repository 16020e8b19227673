//! All data of the status screen, in one object.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Event, Gpu, Pool, Session, Vm, Weights};

/// The state of the daemon.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// Cleans up after an earlier daemon; grants nothing yet.
    Starting,
    /// Serving.
    Serving,
    /// Finishing; admits no sessions.
    Draining,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonStatus {
    /// Version of the daemon.
    pub version: String,
    /// Process ID of the daemon.
    pub pid: u32,
    /// State of the daemon.
    pub state: HostState,
    /// Time of the start.
    pub started_unix_ms: u64,
    /// The host's clock when this answer was made.
    pub now_unix_ms: u64,
    /// Conditions that need an administrator, as sentences; empty if there are none.
    pub warnings: Vec<String>,
    /// The host's weights.
    pub weights: Weights,
}

/// A pool with its waiting work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// Open sessions of the pool's VMs.
    pub sessions: u32,
    /// Calls that wait.
    pub queue_calls: u64,
    /// VMs that have work and wait.
    pub waiting_vms: u32,
}

/// The distribution of a duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// Number of measurements.
    pub count: u64,
    /// Median.
    pub p50_us: u64,
    /// 95th percentile.
    pub p95_us: u64,
    /// 99th percentile.
    pub p99_us: u64,
    /// Maximum.
    #[serde(default)]
    pub max_us: u64,
}

/// `GET /v1/status`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Status {
    /// The daemon.
    pub daemon: DaemonStatus,
    /// GPUs, by number.
    pub gpus: Vec<Gpu>,
    /// Pools, by name.
    pub pools: Vec<PoolStatus>,
    /// VMs, by number.
    pub vms: Vec<Vm>,
    /// Open sessions, by number.
    pub sessions: Vec<Session>,
    /// The latest warnings and errors, newest last.
    pub recent_events: Vec<Event>,
}
