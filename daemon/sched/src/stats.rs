//! Counters, wait reasons and summaries that the scheduler reports.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::{Class, Depth, GpuHealth, Quarantine};

/// The rate limits that can hold a VM back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Cap {
    /// Calls per second.
    Calls,
    /// Bytes per second.
    Bytes,
    /// GPU time per second.
    GpuTime,
}

impl Cap {
    /// The limit's name in messages, such as `calls per second`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cap::Calls => "calls per second",
            Cap::Bytes => "bytes per second",
            Cap::GpuTime => "GPU time per second",
        }
    }
}

/// The reason for which a VM or a session with work does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// Other VMs are due first.
    Turn {
        /// Number of other VMs that compete for the same GPU.
        rivals: u32,
    },
    /// The VM used up its slice, and now others have their turns.
    Slice,
    /// A rate limit holds the VM back.
    RateLimit {
        /// The limit.
        cap: Cap,
        /// Latest time in ns at which the VM may go on.
        until_ns: u64,
    },
    /// The queue has reached its depth limit: callers in the guest block.
    Depth,
    /// The last request for device memory exceeded the quota.
    Quota,
    /// The VM is quarantined.
    Quarantine,
    /// A gang has a part of its GPUs and waits for its remaining GPUs.
    Gang {
        /// GPUs that the gang has.
        held: u32,
        /// GPUs that the gang needs.
        of: u32,
    },
    /// The GPU may not be used now.
    GpuUnavailable {
        /// Health of the GPU.
        health: GpuHealth,
    },
    /// No GPU serves the pool of the VM.
    NoGpu,
}

/// State of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionState {
    /// The session has nothing to run.
    Idle,
    /// The session has work and waits for a lease.
    Waiting,
    /// A gang session has a part of its GPUs and waits for its remaining GPUs.
    Gathering,
    /// The session holds the lease.
    Running,
    /// The session holds the lease without work. No other session waits, and the VM does not pay.
    Parked,
    /// The lease is revoked and not returned yet.
    Revoking,
    /// The session is being ended. The worker may still exist.
    Ending,
}

/// All counters of one VM, over all its sessions, since the VM was added or the counters were
/// reset.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmStats {
    /// Pool of the VM.
    pub pool: PoolId,
    /// Configured class.
    pub class: Class,
    /// Whether the VM is demoted because it passed the soft limit.
    pub demoted: bool,
    /// GPU on which the VM is placed; for a gang, the first of its GPUs.
    pub gpu: Option<GpuId>,
    /// The other GPUs of a gang, in ascending order.
    pub also: Vec<GpuId>,
    /// Whether the VM is quarantined.
    pub quarantined: bool,
    /// The quarantine in force.
    pub quarantine: Option<Quarantine>,
    /// Past quarantines by strikes that are not forgotten: each doubles the length of the next.
    pub quarantines: u32,
    /// Strikes that are not forgotten.
    pub strikes: u32,
    /// Number of sessions whose workers have not exited.
    pub sessions: u32,
    /// Charged GPU time in ns.
    pub gpu_ns: u64,
    /// Time in ns during which the VM had work and waited for its turn.
    pub wait_ns: u64,
    /// Time in ns during which the VM had work and a rate limit of the VM held it back.
    pub throttled_ns: u64,
    /// Number of times that a rate limit began to hold the VM back.
    pub rate_limited: u64,
    /// The last rate limit that held the VM back.
    pub rate_limited_by: Option<Cap>,
    /// Number of granted leases.
    pub grants: u64,
    /// Number of kills by the watchdog.
    pub kills: u64,
    /// Number of times that work reached the soft limit.
    pub soft_limits: u64,
    /// Number of denied memory requests.
    pub memory_denied: u64,
    /// Number of submitted calls, as reported at the ends of leases.
    pub calls: u64,
    /// Number of copied bytes, as reported at the ends of leases.
    pub bytes: u64,
    /// GPU time in ns that the VM used beyond its share. The daemon stores this debt and passes it
    /// back at the next start.
    pub debt_ns: u64,
    /// Work that is queued now.
    pub depth: Depth,
    /// Device memory booked now, in bytes.
    pub memory_bytes: u64,
    /// Peak of booked device memory, in bytes.
    pub memory_peak_bytes: u64,
    /// Pinned host memory booked now, in bytes.
    pub pinned_bytes: u64,
    /// Peak of pinned host memory, in bytes.
    pub pinned_peak_bytes: u64,
    /// Why the VM waits, if it has work and no session of it runs.
    pub waiting: Option<WaitReason>,
    /// Times in ns from the arrival of work to the grant.
    pub wait: Histogram,
    /// Charged times of leases in ns.
    pub service: Histogram,
}

/// All counters of one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStats {
    /// VM of the session.
    pub vm: VmId,
    /// GPU of the session; for a gang, the first of its GPUs.
    pub gpu: GpuId,
    /// The other GPUs of a gang, in ascending order.
    pub also: Vec<GpuId>,
    /// State of the session.
    pub state: SessionState,
    /// Why the session waits; `None` if it does not wait.
    pub waiting: Option<WaitReason>,
    /// Charged GPU time in ns; for a gang, the sum over its GPUs.
    pub gpu_ns: u64,
    /// Device memory booked now, in bytes; for a gang, the sum over its GPUs.
    pub memory_bytes: u64,
    /// Pinned host memory booked now, in bytes.
    pub pinned_bytes: u64,
    /// Work that is queued now.
    pub depth: Depth,
    /// Number of submitted calls, as reported at the ends of leases.
    pub calls: u64,
    /// Number of copied bytes, as reported at the ends of leases.
    pub bytes: u64,
}

/// How the time of a GPU was used. The three times add up exactly to the time since the GPU was
/// added or the counters were reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Account {
    /// Time in ns charged to VMs.
    pub charged_ns: u64,
    /// Time in ns in which the GPU had no work or its lease was parked.
    pub idle_ns: u64,
    /// Time in ns with work and without a holder: during a verification, or while the GPU was
    /// unavailable.
    pub switch_ns: u64,
}

/// All counters of one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuStats {
    /// Health of the GPU.
    pub health: GpuHealth,
    /// The sessions with a lease of the GPU. There are two only beside an overrunner, or while the
    /// work of the first session is about to end.
    pub holders: Vec<(SessionId, VmId, Epoch)>,
    /// The gang session that reserves the GPU while it gathers its other GPUs.
    pub reserved: Option<(SessionId, VmId)>,
    /// Sessions placed here.
    pub sessions: u32,
    /// Sessions that wait for this GPU.
    pub waiting: u32,
    /// How the time was used.
    pub account: Account,
    /// Time in ns since the GPU was added or the counters were reset: the sum of the account.
    pub wall_ns: u64,
    /// Number of times the lease passed from one session to another.
    pub handoffs: u64,
    /// Times in ns from a revoke to the release.
    pub handoff: Histogram,
    /// Memory booked now, in bytes.
    pub memory_bytes: u64,
    /// Memory that may be booked, in bytes.
    pub memory_total_bytes: u64,
}
