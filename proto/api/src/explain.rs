//! Why a VM waits, and for how long at most.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{PoolPolicy, Priority};

/// What a VM is doing, or what it waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ExplainReason {
    /// It has the GPU.
    Running,
    /// It keeps the GPU without work, because nobody else wants it.
    Parked,
    /// Its programs have nothing for the GPU to do.
    Idle,
    /// It has no program open.
    NoProgram,
    /// A program that starts now is refused; the summary says why.
    Refused,
    /// Others are due first.
    Turn,
    /// It had its slice, and others have theirs.
    Slice,
    /// One of its rate limits: see `cap`.
    RateLimit,
    /// Its queue is full: its callers wait in the guest.
    Depth,
    /// Its last request for device memory was over its quota.
    Quota,
    /// It is quarantined.
    Quarantine,
    /// It is a gang, and has not all of its GPUs yet.
    Gang,
    /// Its GPU takes no work now.
    GpuUnavailable,
    /// No GPU serves its pool.
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

/// Who has the GPU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ExplainHolder {
    /// The VM.
    pub vm_id: u32,
    /// Its session.
    pub session_id: u64,
    /// For how long it has had it.
    pub held_ns: u64,
    /// It is a gang that only keeps the GPU reserved until it has its others.
    pub reserved: bool,
    /// How much of its slice is left.
    pub slice_left_ns: u64,
    /// How long ago the GPU was asked back, if it was.
    pub asked_ns: Option<u64>,
    /// It has outlasted its slice and the grace: the next VM may run beside it.
    pub overrun: bool,
}

/// `GET /v1/vms/{vm_id}/explain`: why a VM waits (or does not), and for how long at most.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Explain {
    /// The VM.
    pub vm_id: u32,
    /// The answer as a paragraph.
    pub summary: String,
    /// What it does, or what it waits for.
    pub reason: ExplainReason,
    /// Which rate limit holds it back, when one does.
    pub cap: Option<Cap>,
    /// After how long that limit lets it go on, at the latest; `null` with a cap: never.
    pub cap_left_ns: Option<u64>,
    /// For how long a quarantine that ends by itself goes on.
    pub quarantine_left_ns: Option<u64>,
    /// It has outlasted its own slice and the grace lately, and is not let in beside the overrunner that
    /// has the GPU now.
    pub held_off: bool,
    /// For how long it has had work that does not run.
    pub waiting_ns: Option<u64>,
    /// How long it waits at most, from now, when the others give the GPU back as they did so far. For
    /// one that has nothing to do: if it had work now. `null`: nothing bounds it, see `no_bound`.
    pub wait_usual_ns: Option<u64>,
    /// The same when every other VM lets its work hang until the contended limit ends it.
    pub wait_worst_ns: Option<u64>,
    /// Why nothing bounds the wait, as a sentence.
    pub no_bound: Option<String>,
    /// The pool under which it runs.
    pub pool: String,
    /// The pool's policy.
    pub policy: PoolPolicy,
    /// The GPU on which it is placed; of a gang, the one for which it waits, or its first.
    pub gpu_id: Option<u32>,
    /// All the GPUs of a gang, in the order in which it takes them; empty for others.
    pub gang_gpu_ids: Vec<u32>,
    /// How many of them it keeps reserved.
    pub gang_held: u32,
    /// Who has that GPU.
    pub holders: Vec<ExplainHolder>,
    /// The VMs of its pool that go before it, as it stands now, the first first.
    pub before_vm_ids: Vec<u32>,
    /// VMs of its pool that compete on its GPU, itself included.
    pub competing: u32,
    /// Its class now.
    pub class: Priority,
    /// For how long it still counts one class lower for having passed the soft limit.
    pub demoted_ns: Option<u64>,
    /// Its weight in thousandths: class weight times factor.
    pub weight_milli: u64,
    /// The weights of all that compete, itself included.
    pub competing_weight_milli: u64,
    /// The part of the GPU's time that it may expect among those that compete now, 0 to 1000.
    pub share_permille: u32,
    /// GPU time that it is owed; negative: that it owes.
    pub lag_ns: i64,
}
