//! Virtual machines: who may use a GPU, how much, and how it is told apart.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The class of a VM. Ordered: a later one is more important.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Default,
    Serialize,
    Deserialize,
    ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// May wait.
    Low,
    /// The usual one.
    #[default]
    Medium,
    /// Before the usual ones.
    High,
    /// Before everything else.
    Critical,
}

impl Priority {
    /// Its name, as JSON and people write it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Priority::Low => "low",
            Priority::Medium => "medium",
            Priority::High => "high",
            Priority::Critical => "critical",
        }
    }
}

/// Whether a VM is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Served.
    Active,
    /// Refused until an administrator releases it, or its time is over.
    Quarantined,
}

/// Why and since when a VM is not served.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quarantine {
    /// A sentence.
    pub reason: String,
    /// Since when.
    pub since_unix_ms: u64,
    /// Whether the daemon did it (strikes) rather than an administrator.
    pub automatic: bool,
    /// When it ends by itself; `null`: when an administrator releases the VM.
    #[serde(default)]
    pub until_unix_ms: Option<u64>,
}

/// What a VM may use, over all its programs. `null` takes the daemon's default (`[defaults.vm]` of
/// its configuration); 0 means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VmLimits {
    /// Calls per second.
    pub calls_per_s: Option<u64>,
    /// Calls that may come at once after a pause.
    pub calls_burst: Option<u64>,
    /// Payload bytes per second, both directions together.
    pub bytes_per_s: Option<u64>,
    /// Payload bytes that may come at once after a pause.
    pub bytes_burst: Option<u64>,
    /// GPU time per second of wall time, in ms; above 1000 only means something on several GPUs.
    pub gpu_ms_per_s: Option<u64>,
    /// GPU time that may be used at once after a pause, in ms.
    pub gpu_ms_burst: Option<u64>,
    /// Calls that may wait in the queue.
    pub queue_calls: Option<u64>,
    /// Bytes that may wait in the queue.
    pub queue_bytes: Option<u64>,
    /// Programs at once.
    pub sessions: Option<u64>,
    /// Device memory.
    pub memory_bytes: Option<u64>,
    /// Host memory that is pinned for its programs' copies; each program takes its part when it starts.
    pub pinned_bytes: Option<u64>,
    /// In place of the pool's [`super::PoolSettings::soft_limit_ms`].
    pub soft_limit_ms: Option<u64>,
    /// In place of the pool's [`super::PoolSettings::hard_limit_ms`].
    pub hard_limit_ms: Option<u64>,
}

/// Changes to [`VmLimits`]: absent stays, `null` takes the default again, 0 means no limit.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct VmLimitsPatch {
    /// See [`VmLimits::calls_per_s`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub calls_per_s: Option<Option<u64>>,
    /// See [`VmLimits::calls_burst`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub calls_burst: Option<Option<u64>>,
    /// See [`VmLimits::bytes_per_s`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub bytes_per_s: Option<Option<u64>>,
    /// See [`VmLimits::bytes_burst`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub bytes_burst: Option<Option<u64>>,
    /// See [`VmLimits::gpu_ms_per_s`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub gpu_ms_per_s: Option<Option<u64>>,
    /// See [`VmLimits::gpu_ms_burst`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub gpu_ms_burst: Option<Option<u64>>,
    /// See [`VmLimits::queue_calls`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub queue_calls: Option<Option<u64>>,
    /// See [`VmLimits::queue_bytes`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub queue_bytes: Option<Option<u64>>,
    /// See [`VmLimits::sessions`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub sessions: Option<Option<u64>>,
    /// See [`VmLimits::memory_bytes`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub memory_bytes: Option<Option<u64>>,
    /// See [`VmLimits::pinned_bytes`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub pinned_bytes: Option<Option<u64>>,
    /// See [`VmLimits::soft_limit_ms`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub soft_limit_ms: Option<Option<u64>>,
    /// See [`VmLimits::hard_limit_ms`].
    #[serde(
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub hard_limit_ms: Option<Option<u64>>,
}

impl VmLimitsPatch {
    /// Writes the changes into `limits`. A rate that is lifted takes its burst with it, unless the changes have one.
    pub fn apply_to(&self, limits: &mut VmLimits) {
        let bursts = [
            (self.calls_per_s, &mut limits.calls_burst),
            (self.bytes_per_s, &mut limits.bytes_burst),
            (self.gpu_ms_per_s, &mut limits.gpu_ms_burst),
        ];
        for (rate, burst) in bursts {
            if rate == Some(Some(0)) {
                *burst = None;
            }
        }
        let pairs = [
            (self.calls_per_s, &mut limits.calls_per_s),
            (self.calls_burst, &mut limits.calls_burst),
            (self.bytes_per_s, &mut limits.bytes_per_s),
            (self.bytes_burst, &mut limits.bytes_burst),
            (self.gpu_ms_per_s, &mut limits.gpu_ms_per_s),
            (self.gpu_ms_burst, &mut limits.gpu_ms_burst),
            (self.queue_calls, &mut limits.queue_calls),
            (self.queue_bytes, &mut limits.queue_bytes),
            (self.sessions, &mut limits.sessions),
            (self.memory_bytes, &mut limits.memory_bytes),
            (self.pinned_bytes, &mut limits.pinned_bytes),
            (self.soft_limit_ms, &mut limits.soft_limit_ms),
            (self.hard_limit_ms, &mut limits.hard_limit_ms),
        ];
        for (change, value) in pairs {
            if let Some(new) = change {
                *value = new;
            }
        }
    }
}

/// What a VM has used since it was registered, or since its usage was reset; survives restarts of the
/// daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmUsage {
    /// GPU time charged.
    pub gpu_ns: u64,
    /// Time in which it had work ready and waited for its turn.
    pub wait_ns: u64,
    /// Time in which one of its own limits held it back.
    pub throttled_ns: u64,
    /// Calls carried out.
    pub calls: u64,
    /// Times it was given the GPU.
    #[serde(default)]
    pub turns: u64,
    /// Payload bytes from the guest.
    pub bytes_in: u64,
    /// Payload bytes to the guest.
    pub bytes_out: u64,
    /// Sessions started.
    pub sessions: u64,
    /// Sessions ended by the daemon against the guest's will.
    pub kills: u64,
    /// Turns past the soft limit.
    pub soft_limits: u64,
    /// Connections refused at the door.
    pub refusals: u64,
    /// Calls that had to wait for a token bucket.
    pub rate_limited: u64,
    /// The most device memory that it held at once.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// The most host memory that was pinned for it at once.
    #[serde(default)]
    pub pinned_peak_bytes: u64,
}

/// A registered VM as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vm {
    /// Its number, from 1.
    pub vm_id: u32,
    /// Its name; `vm<id>` unless one was given.
    pub name: String,
    /// Its pool.
    pub pool: String,
    /// Its class.
    pub priority: Priority,
    /// Its weight within the class, in percent: 100 is the class's own.
    pub factor_percent: u32,
    /// Its own longest turn, 100 to 1000000; `null`: its pool's.
    pub slice_us: Option<u64>,
    /// Whether its programs get all GPUs that it may use at once, or none of them.
    pub gang: bool,
    /// Numbers of the GPUs that it may use; `null`: all of its pool.
    pub allowed_gpu_ids: Option<Vec<u32>>,
    /// Grows each time this number is registered, so that a reused number or CID inherits nothing.
    pub generation: u64,
    /// The AF_VSOCK CID by which it is known.
    pub cid: Option<u32>,
    /// The Unix socket given to it by an administrator.
    pub socket: Option<String>,
    /// Only this uid (the VMM's) may connect on its sockets; `null`: whoever reaches the path.
    pub peer_uid: Option<u32>,
    /// Every Unix socket path on which the daemon listens for it.
    pub socket_paths: Vec<String>,
    /// Its own limits.
    pub limits: VmLimits,
    /// The limits in force: its own, else the daemon's defaults; 0 = no limit.
    pub effective_limits: VmLimits,
    /// Whether it is served.
    pub state: VmState,
    /// Why not, when it is not.
    pub quarantine: Option<Quarantine>,
    /// Strikes that are not yet forgotten.
    pub strikes: u32,
    /// Quarantines by strikes that are not yet forgotten: each doubles the next one.
    pub quarantines: u32,
    /// Whether it counts one class lower for now, because it passed its soft limit.
    pub demoted: bool,
    /// When it was registered.
    pub registered_unix_ms: u64,
    /// The GPU it is placed on, once it has been; of a gang, its first.
    pub gpu_id: Option<u32>,
    /// The other GPUs that a gang is placed on.
    pub more_gpu_ids: Vec<u32>,
    /// Open sessions.
    pub sessions: u32,
    /// Calls that wait now.
    pub queue_calls: u64,
    /// Bytes that wait now.
    pub queue_bytes: u64,
    /// Device memory held now.
    pub memory_bytes: u64,
    /// Host memory pinned for it now.
    pub pinned_bytes: u64,
    /// Part of its GPU's charged time over the last second, 0 to 1000.
    pub share_permille: u32,
    /// Why it waits, when it waits.
    pub waiting: Option<super::WaitReason>,
    /// Waiting for a turn, since the daemon started.
    pub wait: super::LatencySummary,
    /// Totals since it was registered.
    pub usage: VmUsage,
}

/// `POST /v1/vms`: register VMs, all or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// The numbers to register, from 1.
    pub vm_ids: Vec<u32>,
    /// The pool of all of them; it must exist.
    pub pool: String,
    /// The class of all of them.
    #[serde(default)]
    pub priority: Priority,
    /// Name; with several VMs it is the beginning, and `-<vm_id>` follows. Default: `vm<id>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The CID of the first; each further VM gets the next one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_cid: Option<u32>,
    /// An absolute socket path; with several VMs it must contain `{vm_id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// Only this uid may connect on the Unix sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_uid: Option<u32>,
    /// Weight within the class in percent, 1 to 10000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_percent: Option<u32>,
    /// Longest turn, in place of the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_us: Option<u64>,
    /// Whether their programs get all GPUs that they may use at once, or none of them.
    #[serde(default)]
    pub gang: bool,
    /// Numbers or UUIDs of the GPUs that they may use; absent: all of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<String>>,
    /// Limits of each of them.
    #[serde(default)]
    pub limits: VmLimits,
}

/// `PATCH /v1/vms`: change VMs, all or none. Absent fields stay.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmPatch {
    /// The VMs to change.
    pub vm_ids: Vec<u32>,
    /// New class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// New weight within the class, in percent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_percent: Option<u32>,
    /// New name (one VM only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// New CID (one VM only); `null` takes it away. Ends the VM's sessions: its identity changed.
    #[serde(
        default,
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u32>)]
    pub cid: Option<Option<u32>>,
    /// New longest turn; `null`: the pool's again.
    #[serde(
        default,
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub slice_us: Option<Option<u64>>,
    /// Whether its programs get all GPUs that it may use at once; counts for programs that start after
    /// the present ones ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<bool>,
    /// The GPUs that it may use, by number or UUID; `null`: all of its pool. Ends its sessions on others.
    #[serde(
        default,
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<Vec<String>>)]
    pub gpus: Option<Option<Vec<String>>>,
    /// New limits.
    #[serde(default)]
    pub limits: VmLimitsPatch,
}

/// A list of VMs, for commands that need nothing else (`DELETE /v1/vms`, release).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmIds {
    /// The VMs.
    pub vm_ids: Vec<u32>,
}

/// `POST /v1/vms/move`: move VMs to another pool, all or none. Their open sessions end where no GPU
/// of the new pool is the one they run on.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The VMs.
    pub vm_ids: Vec<u32>,
    /// Where they go.
    pub pool: String,
}
