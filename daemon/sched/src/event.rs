//! The events that the scheduler takes.
//!
//! The order matters in one place. Before [`Event::Timer`], feed all known reports: the messages
//! that wait on the workers' sockets, and one [`Event::Progress`] per lease holder from its hint
//! page. A limit must never fire while a report is unread. After an absence, feed [`Event::Away`]
//! first.

use serde::{Deserialize, Serialize};

use crate::config::{ClassWeights, GpuConfig, GpuHealth, PoolConfig, VmConfig};
use crate::depth::{Depth, HeadCost};
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};

/// Kind and place of memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Memory {
    /// Device memory of the session's first GPU.
    #[default]
    Device,
    /// Device memory of this GPU, which must be one of the session's.
    DeviceOn(GpuId),
    /// Pinned memory of the host.
    Pinned,
}

/// A quarantine that is in force.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Quarantine {
    /// Until an administrator releases the VM.
    UntilReleased,
    /// Until a time.
    For {
        /// Time left in ns.
        left_ns: u64,
    },
}

/// The history of a VM that outlives restarts; [`crate::Scheduler::past`] returns it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Past {
    /// GPU time in ns beyond the VM's share, still owed.
    pub debt_ns: u64,
    /// Strikes that are not forgotten.
    pub strikes: u32,
    /// Time in ns that already counts towards forgetting the next strike.
    pub strikes_age_ns: u64,
    /// The quarantine in force.
    pub quarantine: Option<Quarantine>,
    /// Quarantines by strikes that are not forgotten: each doubles the next.
    pub quarantines: u32,
    /// Time in ns that already counts towards forgetting the next quarantine.
    pub quarantines_age_ns: u64,
}

/// Credits used since the session began, as the worker counts them on its hint page. A smaller
/// value than last time counts as no use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Calls submitted.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// A GPU appears. `health` is [`GpuHealth::Unverified`] after a restart with orphaned workers.
    AddGpu {
        /// Number of the GPU.
        gpu: GpuId,
        /// All settings.
        config: GpuConfig,
        /// Health at the start.
        health: GpuHealth,
    },
    /// New settings for a GPU.
    SetGpu {
        /// The GPU.
        gpu: GpuId,
        /// All settings.
        config: GpuConfig,
    },
    /// A GPU is removed. Its sessions are killed, and its accounts are forgotten when the last
    /// worker is gone.
    RemoveGpu {
        /// The GPU.
        gpu: GpuId,
    },
    /// The probe or the administrator reports the health of a GPU.
    GpuState {
        /// The GPU.
        gpu: GpuId,
        /// Health from now on.
        health: GpuHealth,
    },
    /// A pool appears.
    AddPool {
        /// Number of the pool.
        pool: PoolId,
        /// All settings.
        config: PoolConfig,
    },
    /// New settings for a pool, its policy included.
    SetPool {
        /// The pool.
        pool: PoolId,
        /// All settings.
        config: PoolConfig,
    },
    /// A pool is removed, unless it still has VMs.
    RemovePool {
        /// The pool.
        pool: PoolId,
    },
    /// The pool's VMs may be placed on this GPU.
    AssignGpu {
        /// The GPU.
        gpu: GpuId,
        /// The pool.
        pool: PoolId,
    },
    /// No new placement of the pool's VMs on this GPU; sessions that are there finish there.
    UnassignGpu {
        /// The GPU.
        gpu: GpuId,
        /// The pool.
        pool: PoolId,
    },
    /// New class weights.
    SetClassWeights {
        /// The weights.
        weights: ClassWeights,
    },
    /// A VM is registered, or loaded from the store with its debt.
    AddVm {
        /// Number of the VM.
        vm: VmId,
        /// All settings.
        config: VmConfig,
        /// History from an earlier run; the default for a new VM.
        past: Past,
    },
    /// New settings for a VM. A new pool takes effect at once if it is served by the GPUs on which
    /// the VM's sessions run, otherwise for sessions that start after the present ones end.
    SetVm {
        /// The VM.
        vm: VmId,
        /// All settings.
        config: VmConfig,
    },
    /// A VM is unregistered: its sessions are killed.
    RemoveVm {
        /// The VM.
        vm: VmId,
    },
    /// Quarantine by command, or release of any quarantine. A release forgets the strikes but not
    /// the number of past quarantines: the next is as long as if this one had ended by time.
    SetQuarantine {
        /// The VM.
        vm: VmId,
        /// True: quarantine; false: release.
        on: bool,
    },
    /// The daemon saw a VM break the rules (a protocol violation, false reports of a worker): one
    /// strike.
    Strike {
        /// The VM.
        vm: VmId,
    },
    /// Resets counters and histograms. Everything that decides (debts, strikes, buckets, bookings)
    /// stays.
    ResetStats {
        /// The VM; `None`: all VMs and all GPUs.
        vm: Option<VmId>,
    },
    /// A guest process asks for a session. The answer is [`crate::Action::Admit`] or
    /// [`crate::Action::Refuse`].
    SessionAdded {
        /// Number of the session, never used before.
        session: SessionId,
        /// VM of the guest process.
        vm: VmId,
    },
    /// The guest has ended the session. Nothing more is granted, and its lease is revoked. Its
    /// resources are freed by [`Event::WorkerExited`], which must follow.
    SessionRemoved {
        /// The session.
        session: SessionId,
    },
    /// The session has work. Sent when the queue becomes non-empty, when a parked lease is retaken,
    /// and occasionally while the depth changes.
    Runnable {
        /// The session.
        session: SessionId,
        /// Waiting work.
        depth: Depth,
        /// Cost of the first waiting operation.
        head: HeadCost,
    },
    /// Nothing waits and nothing is in flight.
    Idle {
        /// The session.
        session: SessionId,
        /// For how long, in ns. A worker that already held the GPU idle for the hold time reports
        /// it here.
        idle_for_ns: u64,
    },
    /// The session's use since it began, including calls and bytes that needed no lease.
    Used {
        /// The session.
        session: SessionId,
        /// Cumulative use. During a lease it counts only if the worker dies; otherwise the end of
        /// the lease reports the use.
        used: Usage,
    },
    /// Cumulative counters of a session, from a message or from its hint page.
    Progress {
        /// The session.
        session: SessionId,
        /// Operations submitted since the session began.
        submitted: u64,
        /// Operations completed since the session began.
        completed: u64,
    },
    /// The lease is returned: everything submitted under it has completed.
    Released {
        /// The session.
        session: SessionId,
        /// The returned lease. Any but the present lease is ignored.
        epoch: Epoch,
        /// Credits used.
        used: Usage,
        /// Remaining work; `calls: 0` makes the session idle.
        depth: Depth,
    },
    /// The holder submits nothing more under this lease unless it is extended, and predicts the end
    /// of its work in flight. The next session is let in shortly before ([`crate::LET_IN_NS`]), so
    /// that the GPU does not idle during the handoff. A wrong prediction costs only the VM that
    /// sent it: it alone pays until its release is accepted.
    Ending {
        /// The session.
        session: SessionId,
        /// The lease. Any but the present lease is ignored.
        epoch: Epoch,
        /// End of the slice to which the announcement applies. An extension makes the announcement
        /// void.
        slice_end_ns: u64,
        /// Predicted time in ns until the work in flight is complete.
        in_ns: u64,
    },
    /// The credits of the lease are used up and work is left.
    CreditsSpent {
        /// The session.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
        /// Credits used.
        used: Usage,
    },
    /// The kernel reports that the worker process is gone.
    WorkerExited {
        /// The session.
        session: SessionId,
    },
    /// A check ordered by [`crate::Action::Canary`] has ended, or orphaned workers of an earlier
    /// run are known to be dead.
    Verified {
        /// The GPU.
        gpu: GpuId,
        /// Whether the canary kernel completed and the memory was freed.
        ok: bool,
    },
    /// The worker asks for memory. The answer is [`crate::Action::MemoryGranted`] or
    /// [`crate::Action::MemoryDenied`].
    MemoryReserve {
        /// The session.
        session: SessionId,
        /// Kind of memory.
        of: Memory,
        /// Number of bytes.
        bytes: u64,
        /// Returned in the answer.
        tag: u64,
    },
    /// The worker freed memory.
    MemoryRelease {
        /// The session.
        session: SessionId,
        /// Kind of memory.
        of: Memory,
        /// Number of bytes. A number above the booking sets the booking to 0.
        bytes: u64,
    },
    /// Ended sessions of a VM left pinned memory behind. It counts as pinned by the VM.
    PinnedLeft {
        /// The VM.
        vm: VmId,
        /// Total bytes left behind, not the change.
        bytes: u64,
    },
    /// The daemon could not feed the scheduler until now (it was stopped, or got no processor), so
    /// no reports arrived. This time does not count towards the limits of the watchdog.
    Away {
        /// Length in ns.
        for_ns: u64,
    },
    /// The time of the last [`crate::Action::SetTimer`] has come. An early event is harmless.
    Timer,
}
