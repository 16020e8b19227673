//! The events that the scheduler takes.
//!
//! The order of events matters in one place. Before [`Event::Timer`], the caller feeds all reports
//! that it can read: the messages on the workers' sockets, and one [`Event::Progress`] per lease
//! holder from its hint page. Otherwise a limit could fire while a report of progress is unread. If
//! the caller was stopped for a while, it feeds [`Event::Away`] first.

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
    /// Device memory of this GPU, which must be one of the session's GPUs.
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
    /// GPU time in ns that the VM used beyond its share and has not yet given back.
    pub debt_ns: u64,
    /// Strikes that are not forgotten.
    pub strikes: u32,
    /// Time in ns that already counts towards the decay of the next strike.
    pub strikes_age_ns: u64,
    /// The quarantine in force.
    pub quarantine: Option<Quarantine>,
    /// Past quarantines by strikes that are not forgotten: each doubles the length of the next.
    pub quarantines: u32,
    /// Time in ns that already counts towards the decay of the next past quarantine.
    pub quarantines_age_ns: u64,
}

/// Calls and bytes used since the session began, as the worker counts them on its hint page. If a
/// total is smaller than the previous total, the difference counts as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Calls submitted.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
}

/// An event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Event {
    /// A GPU is added. `health` is [`GpuHealth::Unverified`] after a restart with orphaned workers.
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
    /// A GPU is removed. Its sessions are killed. Its accounts are deleted when the last worker is
    /// gone.
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
    /// A pool is added.
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
    /// The pool's VMs may be placed on this GPU from now on.
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
    /// A VM is registered, or loaded from the store with its history.
    AddVm {
        /// Number of the VM.
        vm: VmId,
        /// All settings.
        config: VmConfig,
        /// History from an earlier run; the default for a new VM.
        past: Past,
    },
    /// New settings for a VM. If the new pool serves the GPUs on which the VM's sessions run, the
    /// change of pool takes effect at once; otherwise for sessions that start after all present
    /// sessions have ended.
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
    /// An administrator quarantines the VM or releases it from any quarantine. A release forgets
    /// the strikes but not the number of past quarantines: the next quarantine is as long as after
    /// a quarantine that ended by time.
    SetQuarantine {
        /// The VM.
        vm: VmId,
        /// True: quarantine; false: release.
        on: bool,
    },
    /// The daemon saw a VM break the rules (a protocol violation, false reports of a worker). The
    /// VM gets one strike.
    Strike {
        /// The VM.
        vm: VmId,
    },
    /// Resets counters and histograms. State that affects decisions (debts, strikes, buckets,
    /// bookings) stays.
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
    /// The guest has ended the session. The session gets nothing more, and its lease is revoked.
    /// [`Event::WorkerExited`], which must follow, frees its resources.
    SessionRemoved {
        /// The session.
        session: SessionId,
    },
    /// The session has work. The worker reports this when its queue becomes non-empty, when it
    /// retakes a parked lease, and occasionally when the depth changes.
    Runnable {
        /// The session.
        session: SessionId,
        /// Waiting work.
        depth: Depth,
        /// Cost of the first waiting operation.
        head: HeadCost,
    },
    /// The session has no waiting work and nothing in flight.
    Idle {
        /// The session.
        session: SessionId,
        /// Time in ns for which the session has been idle. It includes the hold during which the
        /// worker kept the GPU without work.
        idle_for_ns: u64,
    },
    /// Total use of the session since it began, including calls and bytes that needed no lease.
    Used {
        /// The session.
        session: SessionId,
        /// Total use. While the session has a granted lease, the scheduler uses this total only if
        /// the worker dies; otherwise the message that ends the lease has the total. Use without a
        /// granted lease, also of a gang that gathers GPUs, is charged at once.
        used: Usage,
    },
    /// Counters of a session since it began, from a message or from its hint page.
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
        /// The returned lease. An epoch other than the present lease's is ignored.
        epoch: Epoch,
        /// Credits used.
        used: Usage,
        /// Remaining work. Without calls, the session becomes idle.
        depth: Depth,
    },
    /// The holder submits nothing more under this lease unless the slice is extended, and predicts
    /// the end of its work in flight. The scheduler grants the next lease shortly before that end
    /// ([`crate::LET_IN_NS`]), so that the GPU does not idle during the handoff. If the prediction
    /// is wrong, only the announcing VM pays: it is charged alone until its release is accepted.
    Ending {
        /// The session.
        session: SessionId,
        /// The lease. An epoch other than the present lease's is ignored.
        epoch: Epoch,
        /// End of the slice, in ns, to which the announcement applies. If the slice is extended,
        /// the announcement is void.
        slice_end_ns: u64,
        /// Predicted time in ns until the work in flight is complete.
        in_ns: u64,
    },
    /// The worker has used up the credits of the lease and has work left.
    CreditsSpent {
        /// The session.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
        /// Credits used.
        used: Usage,
    },
    /// The kernel reports that the worker process has exited.
    WorkerExited {
        /// The session.
        session: SessionId,
    },
    /// A check ordered by [`crate::Action::Canary`] has ended, or the orphaned workers of an
    /// earlier run are known to be dead.
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
        /// Number that the answer repeats.
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
    /// Ended sessions of a VM left pinned memory behind (module images that are not freed yet,
    /// say). This memory counts as pinned by the VM.
    PinnedLeft {
        /// The VM.
        vm: VmId,
        /// Total bytes left behind, not the change.
        bytes: u64,
    },
    /// The daemon could not feed the scheduler for a while (it was stopped, or got no processor),
    /// so it read no reports. This time does not count towards the limits of the watchdog.
    Away {
        /// Length in ns.
        for_ns: u64,
    },
    /// The time of the last [`crate::Action::SetTimer`] has come. An event that comes early does no
    /// harm.
    Timer,
    /// A killed worker has not exited yet, and uses or waits for a processor: it is not stuck. The
    /// time within which its exit must be reported starts again.
    WorkerExiting {
        /// The session.
        session: SessionId,
    },
}
