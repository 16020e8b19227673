//! Sessions: one per guest process that uses a GPU.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The state of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SessionState {
    /// Admitted; its worker is not ready yet.
    Starting,
    /// No work.
    Idle,
    /// Has work and waits.
    Waiting,
    /// A gang with some of its GPUs, waiting for the others.
    Gathering,
    /// Holds the lease of the GPU.
    Running,
    /// The lease is revoked; the session's work drains.
    Revoking,
    /// Ending; the end of the worker is not verified yet.
    Ending,
}

/// The reason for which work waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum WaitReason {
    /// Other VMs are due first.
    Turn,
    /// The slice of the VM is used up.
    Slice,
    /// A rate limit (calls, bytes or GPU time).
    RateLimit,
    /// The queue of the VM is full.
    Depth,
    /// The last request for device memory exceeded the quota of the VM.
    Quota,
    /// The VM is quarantined.
    Quarantine,
    /// The VM is a gang with some of its GPUs, waiting for the others.
    Gang,
    /// No GPU of the pool takes work.
    NoGpu,
}

/// An open session.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Session {
    /// Number of the session; never reused.
    pub session_id: u64,
    /// VM of the session.
    pub vm_id: u32,
    /// Process ID in the guest, as reported by the guest.
    pub guest_pid: u32,
    /// Name of the program, as reported by the guest (shortened, control characters replaced).
    pub program: String,
    /// GPU of the session; for a gang, the first.
    pub gpu_id: Option<u32>,
    /// UUID of that GPU.
    pub gpu_uuid: Option<String>,
    /// The other GPUs of a gang.
    pub more_gpu_ids: Vec<u32>,
    /// State of the session.
    pub state: SessionState,
    /// The reason for which the session waits, if it waits.
    pub waiting: Option<super::WaitReason>,
    /// Address of the guest: `vsock:<cid>`, or the path of the socket.
    pub peer: String,
    /// Process ID of the worker on the host.
    pub worker_pid: Option<u32>,
    /// Time of the start.
    pub since_unix_ms: u64,
    /// GPU time charged to the session.
    pub gpu_ns: u64,
    /// Device memory of the session.
    pub memory_bytes: u64,
    /// Calls that wait in the queue.
    pub queue_calls: u64,
    /// Bytes that wait in the queue.
    pub queue_bytes: u64,
    /// Calls that were carried out.
    pub calls: u64,
    /// Payload bytes that were transferred, both directions.
    pub bytes: u64,
}
