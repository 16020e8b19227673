//! The reason for which a VM waits, and the longest possible wait.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{PoolPolicy, Priority};

/// The activity of a VM, or the reason for which the VM waits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExplainReason {
    /// The VM has the GPU.
    Running,
    /// The VM keeps the GPU without work, because no other VM needs the GPU.
    Parked,
    /// The programs of the VM have no work for the GPU.
    Idle,
    /// No program of the VM uses the GPU.
    NoProgram,
    /// A program that starts now is refused; the summary gives the reason.
    Refused,
    /// Other VMs are due first.
    Turn,
    /// The slice of the VM is used up, and other VMs have their turns.
    Slice,
    /// A rate limit of the VM: see `cap`.
    RateLimit,
    /// The queue of the VM is full: callers wait in the guest.
    Depth,
    /// The last request for device memory exceeded the quota of the VM.
    Quota,
    /// The VM is quarantined.
    Quarantine,
    /// The VM is a gang and does not have all of its GPUs yet.
    Gang,
    /// The GPU of the VM takes no work now.
    GpuUnavailable,
    /// No GPU serves the pool of the VM.
    NoGpu,
}

/// A rate limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Cap {
    /// Calls per second.
    Calls,
    /// Bytes per second.
    Bytes,
    /// GPU time per second.
    GpuTime,
}

/// A holder of the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainHolder {
    /// The VM.
    pub vm_id: u32,
    /// Session of the VM.
    pub session_id: u64,
    /// Time since the session got the GPU, in ns.
    pub held_ns: u64,
    /// Whether the holder is a gang that only reserves the GPU while the gang waits for its other
    /// GPUs.
    pub reserved: bool,
    /// Rest of the slice, in ns.
    pub slice_left_ns: u64,
    /// Time since the daemon revoked the lease of the holder, in ns; `null`: not revoked.
    pub asked_ns: Option<u64>,
    /// Whether the holder exceeded its slice and the grace, so that the next VM may run beside the
    /// holder.
    pub overrun: bool,
}

/// `GET /v1/vms/{vm_id}/explain`: the reason for which a VM waits (or not), and the longest
/// possible wait.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explain {
    /// The VM.
    pub vm_id: u32,
    /// The answer as a paragraph.
    pub summary: String,
    /// The activity of the VM, or the reason for which the VM waits.
    pub reason: ExplainReason,
    /// The rate limit that holds the VM back, if there is one.
    pub cap: Option<Cap>,
    /// Longest time until that limit lets the VM go on, in ns; `null` with a cap: never.
    pub cap_left_ns: Option<u64>,
    /// Rest of a quarantine that ends by itself, in ns.
    pub quarantine_left_ns: Option<u64>,
    /// Whether the VM recently exceeded its own slice and the grace, and is therefore not let in
    /// beside the overrunner that has the GPU now.
    pub held_off: bool,
    /// Time for which the VM has had work that does not run, in ns.
    pub waiting_ns: Option<u64>,
    /// Longest wait from now, in ns, if the other VMs give the GPU back as they did so far. While a
    /// holder does not do so: as `wait_worst_ns`. For a VM without work: the longest wait if work
    /// arrived now. `null`: the wait has no bound, see `no_bound`.
    pub wait_usual_ns: Option<u64>,
    /// Longest wait from now, in ns, if the work of every other VM hangs until the contended limit
    /// ends it.
    pub wait_worst_ns: Option<u64>,
    /// The reason for which the wait has no bound, as a sentence.
    pub no_bound: Option<String>,
    /// Pool of the VM.
    pub pool: String,
    /// Policy of the pool.
    pub policy: PoolPolicy,
    /// GPU of the VM; for a gang, the GPU for which the gang waits, or the first GPU.
    pub gpu_id: Option<u32>,
    /// All GPUs of a gang, in the order in which the gang takes them; empty for other VMs.
    pub gang_gpu_ids: Vec<u32>,
    /// Number of GPUs that the gang keeps reserved.
    pub gang_held: u32,
    /// Holders of the GPU `gpu_id`.
    pub holders: Vec<ExplainHolder>,
    /// VMs of the pool that would now get the GPU before this VM, in order.
    pub before_vm_ids: Vec<u32>,
    /// Number of VMs of the pool that compete for the GPU `gpu_id`, including this VM.
    pub competing: u32,
    /// Present class of the VM.
    pub class: Priority,
    /// Time for which the VM still counts one class lower because it exceeded the soft limit, in
    /// ns.
    pub demoted_ns: Option<u64>,
    /// Weight of the VM in thousandths: class weight times factor.
    pub weight_milli: u64,
    /// Sum of the weights of all competing VMs, including this VM.
    pub competing_weight_milli: u64,
    /// Share of the GPU's time that the VM may expect among the competing VMs, 0 to 1000.
    pub share_permille: u32,
    /// GPU time that others owe to the VM, in ns; negative: GPU time that the VM owes to others.
    pub lag_ns: i64,
}
