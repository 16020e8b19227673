//! What can be asked of the scheduler: counters, reasons, summaries.

use serde::{Deserialize, Serialize};

use crate::histogram::Histogram;
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};
use crate::{Class, Depth, GpuHealth, Quarantine};

/// Which rate limit holds a VM back.
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
    /// For people: `calls per second`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Cap::Calls => "calls per second",
            Cap::Bytes => "bytes per second",
            Cap::GpuTime => "GPU time per second",
        }
    }
}

/// Why a VM or a session that has work does not run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WaitReason {
    /// Others are due first.
    Turn {
        /// How many other VMs compete for the same GPU.
        rivals: u32,
    },
    /// Its slice is used up and others have their turn.
    Slice,
    /// A rate limit.
    RateLimit {
        /// Which.
        cap: Cap,
        /// When it may go on, at the latest.
        until_ns: u64,
    },
    /// Its queue is as long as it may be: its callers are held back in the guest.
    Depth,
    /// Its last request for device memory was over its quota.
    Quota,
    /// The VM is quarantined.
    Quarantine,
    /// It is a gang, has some of its GPUs and waits for the others.
    Gang {
        /// How many it has.
        held: u32,
        /// How many it needs.
        of: u32,
    },
    /// Its GPU may not be used now.
    GpuUnavailable {
        /// How it is.
        health: GpuHealth,
    },
    /// No GPU serves its pool.
    NoGpu,
}

/// What a session is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SessionState {
    /// Nothing to run.
    Idle,
    /// Has work and waits for a lease.
    Waiting,
    /// A gang that keeps some of its GPUs reserved and waits for the others.
    Gathering,
    /// Holds the lease.
    Running,
    /// Holds the lease without work, unwanted and uncharged.
    Parked,
    /// Asked to give the lease back.
    Revoking,
    /// Being ended; its worker is not yet known dead.
    Ending,
}

/// Everything counted for one VM, over all its sessions, since it was added.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VmStats {
    /// Its pool.
    pub pool: PoolId,
    /// Its class as configured.
    pub class: Class,
    /// Is it demoted now for having passed the soft limit?
    pub demoted: bool,
    /// The GPU it is placed on; of a gang, its first.
    pub gpu: Option<GpuId>,
    /// The other GPUs of a gang, in order.
    pub also: Vec<GpuId>,
    /// Quarantined?
    pub quarantined: bool,
    /// How long.
    pub quarantine: Option<Quarantine>,
    /// Quarantines by strikes that are not forgotten: each doubles the next.
    pub quarantines: u32,
    /// Strikes that are not forgotten.
    pub strikes: u32,
    /// Live sessions.
    pub sessions: u32,
    /// Charged GPU time.
    pub gpu_ns: u64,
    /// Time in which it had work and waited for its turn.
    pub wait_ns: u64,
    /// Time in which it had work and one of its limits held it back.
    pub throttled_ns: u64,
    /// Times a rate limit began to hold it back.
    pub rate_limited: u64,
    /// The limit that held it back the last time.
    pub rate_limited_by: Option<Cap>,
    /// Leases granted.
    pub grants: u64,
    /// Kills by the watchdog.
    pub kills: u64,
    /// Soft limits passed.
    pub soft_limits: u64,
    /// Memory requests denied.
    pub memory_denied: u64,
    /// Submitted calls, as settled by releases.
    pub calls: u64,
    /// Copied bytes, as settled by releases.
    pub bytes: u64,
    /// GPU time it had beyond its share and still owes; to be stored and given back at the next start.
    pub debt_ns: u64,
    /// Work queued now.
    pub depth: Depth,
    /// Device memory booked now.
    pub memory_bytes: u64,
    /// The most that was ever booked.
    pub memory_peak_bytes: u64,
    /// Pinned host memory booked now.
    pub pinned_bytes: u64,
    /// The most that was ever booked.
    pub pinned_peak_bytes: u64,
    /// Why it waits, if it has work and nothing of it runs.
    pub waiting: Option<WaitReason>,
    /// From having work to the grant.
    pub wait: Histogram,
    /// Charged time per lease.
    pub service: Histogram,
}

/// Everything counted for one session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionStats {
    /// Its VM.
    pub vm: VmId,
    /// Its GPU; of a gang, its first.
    pub gpu: GpuId,
    /// The other GPUs of a gang, in order.
    pub also: Vec<GpuId>,
    /// What it is doing.
    pub state: SessionState,
    /// Why it waits, if it does.
    pub waiting: Option<WaitReason>,
    /// Charged GPU time (of a gang, summed up over its GPUs).
    pub gpu_ns: u64,
    /// Device memory booked now (of a gang, over its GPUs).
    pub memory_bytes: u64,
    /// Pinned host memory booked now.
    pub pinned_bytes: u64,
    /// Work queued now.
    pub depth: Depth,
    /// Submitted calls, as settled by releases.
    pub calls: u64,
    /// Copied bytes, as settled by releases.
    pub bytes: u64,
}

/// Where a GPU's time went. The three sum up to the time since it was added, to the nanosecond.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Account {
    /// Charged to VMs.
    pub charged_ns: u64,
    /// Nobody had work (or the holder was parked).
    pub idle_ns: u64,
    /// Somebody had work and nobody held the GPU: verification, an unavailable GPU.
    pub switch_ns: u64,
}

/// Everything counted for one GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GpuStats {
    /// How it is.
    pub health: GpuHealth,
    /// Who holds it: two only while an overrunner is on it, or one whose work is about to end.
    pub holders: Vec<(SessionId, VmId, Epoch)>,
    /// The gang that keeps it reserved until it has all its GPUs.
    pub reserved: Option<(SessionId, VmId)>,
    /// Sessions placed here.
    pub sessions: u32,
    /// Sessions that wait here.
    pub waiting: u32,
    /// Where its time went.
    pub account: Account,
    /// The time since it was added, which the account must sum up to.
    pub wall_ns: u64,
    /// Times the lease went from one session to another.
    pub handoffs: u64,
    /// From asking the lease back to having it.
    pub handoff: Histogram,
    /// Memory booked now.
    pub memory_bytes: u64,
    /// Memory that may be booked.
    pub memory_total_bytes: u64,
}
