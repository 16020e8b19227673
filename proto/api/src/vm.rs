//! Virtual machines: their identity, and their use of GPUs.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::settings::{VmLimits, VmLimitsPatch};
use crate::words::words;

words! {
    /// The class of a VM, in ascending order of importance.
    #[derive(PartialOrd, Ord, Default)]
    Priority {
        /// The lowest class.
        Low = "low",
        /// The default class.
        [default] Medium = "medium",
        /// Above medium.
        High = "high",
        /// The highest class.
        Critical = "critical",
    }
}

/// Whether a VM is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum VmState {
    /// Served.
    Active,
    /// Refused until an administrator releases the VM, or until the quarantine ends.
    Quarantined,
}

/// Cause and start of a quarantine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Quarantine {
    /// Reason, as a sentence.
    pub reason: String,
    /// Start of the quarantine.
    pub since_unix_ms: u64,
    /// Whether the daemon started the quarantine (strikes), not an administrator.
    pub automatic: bool,
    /// End of the quarantine; `null`: until an administrator releases the VM.
    #[serde(default)]
    pub until_unix_ms: Option<u64>,
}

/// Usage of a VM since its registration or the last reset; survives restarts of the daemon.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct VmUsage {
    /// GPU time charged.
    pub gpu_ns: u64,
    /// Time in which the VM had work and waited for its turn.
    pub wait_ns: u64,
    /// Time in which a limit held the VM back.
    pub throttled_ns: u64,
    /// Calls that were carried out.
    pub calls: u64,
    /// Number of turns.
    #[serde(default)]
    pub turns: u64,
    /// Payload bytes from the guest.
    pub bytes_in: u64,
    /// Payload bytes to the guest.
    pub bytes_out: u64,
    /// Sessions started.
    pub sessions: u64,
    /// Sessions that the daemon killed.
    pub kills: u64,
    /// Turns that exceeded the soft limit.
    pub soft_limits: u64,
    /// Connections that were refused.
    pub refusals: u64,
    /// Calls that waited for a token bucket.
    pub rate_limited: u64,
    /// Peak of device memory.
    #[serde(default)]
    pub memory_peak_bytes: u64,
    /// Peak of pinned host memory.
    #[serde(default)]
    pub pinned_peak_bytes: u64,
}

/// A registered VM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Vm {
    /// Number of the VM, from 1.
    pub vm_id: u32,
    /// Name of the VM; `vm<id>` by default.
    pub name: String,
    /// Pool of the VM.
    pub pool: String,
    /// Class of the VM.
    pub priority: Priority,
    /// Weight within the class, in percent: 100 is the weight of the class.
    pub factor_percent: u32,
    /// Longest turn of this VM; `null`: as in the pool.
    pub slice_us: Option<u64>,
    /// Whether programs of the VM get all GPUs that they may use at once, or none.
    pub gang: bool,
    /// Numbers of the GPUs that the VM may use; `null`: all GPUs of the pool.
    pub allowed_gpu_ids: Option<Vec<u32>>,
    /// Increases each time this number is registered, so that a reused number or CID inherits
    /// nothing.
    pub generation: u64,
    /// AF_VSOCK CID that identifies the VM.
    pub cid: Option<u32>,
    /// Unix socket that an administrator assigned to the VM.
    pub socket: Option<String>,
    /// The only uid (of the VMM) that may connect to the VM's sockets; `null`: any uid with access
    /// to the path.
    pub peer_uid: Option<u32>,
    /// Paths of all Unix sockets on which the daemon listens for this VM.
    pub socket_paths: Vec<String>,
    /// Limits of this VM.
    pub limits: VmLimits,
    /// The limits in force: of the VM, else the daemon's defaults. No field is `null`.
    pub effective_limits: VmLimits,
    /// Whether the VM is served.
    pub state: VmState,
    /// The quarantine, if there is one.
    pub quarantine: Option<Quarantine>,
    /// Strikes that are not forgotten.
    pub strikes: u32,
    /// Number of quarantines for strikes that vgpud has not forgotten yet; each quarantine doubles
    /// the length of the next.
    pub quarantines: u32,
    /// Whether the VM counts one class lower at present, because it exceeded the soft limit.
    pub demoted: bool,
    /// Time of the registration.
    pub registered_unix_ms: u64,
    /// VM of a hypervisor that an import registered: `libvirt:<uuid>`, `incus:<project>/<name>` or
    /// `proxmox:<vmid>`; `null`: registered by hand.
    #[serde(default)]
    pub origin: Option<String>,
    /// GPU of the VM, once placed; for a gang, the first.
    pub gpu_id: Option<u32>,
    /// The other GPUs of a gang.
    pub more_gpu_ids: Vec<u32>,
    /// Open sessions.
    pub sessions: u32,
    /// Present calls in the queue.
    pub queue_calls: u64,
    /// Present bytes in the queue.
    pub queue_bytes: u64,
    /// Present device memory.
    pub memory_bytes: u64,
    /// Present pinned host memory.
    pub pinned_bytes: u64,
    /// Share of the GPU's charged time over the last second, 0 to 1000.
    pub share_permille: u32,
    /// The reason for which the VM waits, if it waits.
    pub waiting: Option<super::WaitReason>,
    /// Waits for a turn since the daemon started.
    pub wait: super::LatencySummary,
    /// Totals since the registration or the last reset.
    pub usage: VmUsage,
}

/// `POST /v1/vms`: register VMs, all or none.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RegisterRequest {
    /// The numbers to register, from 1.
    pub vm_ids: Vec<u32>,
    /// The pool of the VMs, which must exist.
    pub pool: String,
    /// The class of the VMs.
    #[serde(default)]
    pub priority: Priority,
    /// Name; for several VMs a prefix, followed by `-<vm_id>`. Default: `vm<id>`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// CID of the first VM; each further VM gets the next CID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_cid: Option<u32>,
    /// Absolute path of a socket. For several VMs, the path must contain `{vm_id}`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<String>,
    /// The only uid that may connect to the Unix sockets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peer_uid: Option<u32>,
    /// Weight within the class in percent, 1 to 10000; default 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_percent: Option<u32>,
    /// Longest turn, 100 to 1000000, instead of the pool's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slice_us: Option<u64>,
    /// Whether programs of the VMs get all GPUs that they may use at once, or none.
    #[serde(default)]
    pub gang: bool,
    /// Numbers or UUIDs of the GPUs that the VMs may use; absent: all GPUs of the pool.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<String>>,
    /// Limits of each VM.
    #[serde(default)]
    pub limits: VmLimits,
    /// See [`Vm::origin`]; at most 128 characters, for one VM only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
}

/// `PATCH /v1/vms`: change VMs, all or none. Absent fields are unchanged.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmPatch {
    /// The VMs to change.
    pub vm_ids: Vec<u32>,
    /// New class.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<Priority>,
    /// New weight within the class in percent, 1 to 10000.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub factor_percent: Option<u32>,
    /// New name (one VM only).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// New CID (one VM only); `null` removes the CID. Ends the VM's sessions, because the identity
    /// of the VM changes.
    #[serde(
        default,
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u32>)]
    pub cid: Option<Option<u32>>,
    /// New longest turn, 100 to 1000000; `null`: as in the pool.
    #[serde(
        default,
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<u64>)]
    pub slice_us: Option<Option<u64>>,
    /// Whether programs of the VM get all GPUs that they may use at once, or none. Applies to
    /// programs that start after the present programs have ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<bool>,
    /// Numbers or UUIDs of the GPUs that the VM may use; `null`: all GPUs of the pool. Ends
    /// sessions on other GPUs.
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
    /// New origin (one VM only); `null` removes the origin. See [`Vm::origin`].
    #[serde(
        default,
        deserialize_with = "super::present",
        skip_serializing_if = "Option::is_none"
    )]
    #[schema(value_type = Option<String>)]
    pub origin: Option<Option<String>>,
}

/// A list of VMs, for commands without other arguments (`DELETE /v1/vms`, release).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmIds {
    /// The VMs.
    pub vm_ids: Vec<u32>,
}

/// `POST /v1/vms/move`: move VMs to another pool, all or none. Sessions on a GPU that does not
/// serve the new pool end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MoveRequest {
    /// The VMs.
    pub vm_ids: Vec<u32>,
    /// The new pool.
    pub pool: String,
}
