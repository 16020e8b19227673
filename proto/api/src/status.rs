//! Everything the status screen shows, in one object.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Event, Gpu, Pool, Session, Vm, Weights};

/// What the daemon as a whole is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum HostState {
    /// Reconciling with what was left over; grants nothing yet.
    Starting,
    /// Serving.
    Serving,
    /// Finishing; admits nobody.
    Draining,
}

/// The daemon itself.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DaemonStatus {
    /// Its version.
    pub version: String,
    /// Its process number.
    pub pid: u32,
    /// What it is doing.
    pub state: HostState,
    /// Since when it runs.
    pub started_unix_ms: u64,
    /// The host's clock when this was made.
    pub now_unix_ms: u64,
    /// What needs an administrator, as sentences; empty is good.
    pub warnings: Vec<String>,
    /// The host's weights.
    pub weights: Weights,
}

/// A pool with what waits in it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PoolStatus {
    /// The pool.
    #[serde(flatten)]
    pub pool: Pool,
    /// Open sessions of its VMs.
    pub sessions: u32,
    /// Calls that wait.
    pub queue_calls: u64,
    /// VMs that have work and wait.
    pub waiting_vms: u32,
}

/// The distribution of a duration.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LatencySummary {
    /// How many were measured.
    pub count: u64,
    /// Half were at most this long.
    pub p50_us: u64,
    /// 95 % were at most this long.
    pub p95_us: u64,
    /// 99 % were at most this long.
    pub p99_us: u64,
    /// The longest.
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
