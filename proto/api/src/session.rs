//! Sessions: one per guest process that uses a GPU.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Admitted; its worker is not ready yet.
    Starting,
    /// Nothing to run.
    Idle,
    /// Has work and waits.
    Waiting,
    /// A gang that has some of its GPUs and waits for the others.
    Gathering,
    /// Holds the lease of its GPU.
    Running,
    /// Asked to give the lease back; its work drains.
    Revoking,
    /// Being ended; its worker is not yet verified gone.
    Ending,
}

/// Why work waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Others are due first.
    Turn,
    /// Its slice is used up.
    Slice,
    /// A rate limit (calls, bytes or GPU time).
    RateLimit,
    /// Its queue is full.
    Depth,
    /// Its device memory quota.
    Quota,
    /// The VM is quarantined.
    Quarantine,
    /// It is a gang, has some of its GPUs and waits for the others.
    Gang,
    /// No GPU of its pool takes work.
    NoGpu,
}

/// One open session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Its number; never used again.
    pub session_id: u64,
    /// Its VM.
    pub vm_id: u32,
    /// The process number in the guest, as the guest says.
    pub guest_pid: u32,
    /// The program's name, as the guest says (shortened, control characters replaced).
    pub program: String,
    /// The GPU it is placed on; of a gang, its first.
    pub gpu_id: Option<u32>,
    /// The same, by identity.
    pub gpu_uuid: Option<String>,
    /// The other GPUs of a gang.
    pub more_gpu_ids: Vec<u32>,
    /// What it is doing.
    pub state: SessionState,
    /// Why it waits, when it waits.
    pub waiting: Option<super::WaitReason>,
    /// How it reached the daemon: `vsock:<cid>` or the socket's path.
    pub peer: String,
    /// The worker's process number on the host.
    pub worker_pid: Option<u32>,
    /// When it began.
    pub since_unix_ms: u64,
    /// GPU time charged to it.
    pub gpu_ns: u64,
    /// Device memory it holds.
    pub memory_bytes: u64,
    /// Calls that wait in its queue.
    pub queue_calls: u64,
    /// Bytes that wait in its queue.
    pub queue_bytes: u64,
    /// Calls carried out.
    pub calls: u64,
    /// Payload bytes carried, both directions.
    pub bytes: u64,
}
