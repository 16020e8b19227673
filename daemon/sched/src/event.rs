//! What the scheduler is told.
//!
//! Order matters in one place: before [`Event::Timer`] feed everything that is already known: messages
//! waiting on the workers' sockets, and one [`Event::Progress`] per lease holder from its hint page. A
//! limit must never fire on a report that lies unread. After an absence, feed [`Event::Away`] first.

use serde::{Deserialize, Serialize};

use crate::config::{ClassWeights, GpuConfig, GpuHealth, PoolConfig, VmConfig};
use crate::depth::{Depth, HeadCost};
use crate::id::{Epoch, GpuId, PoolId, SessionId, VmId};

/// Memory of which kind, and where.
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
    /// It ends by itself.
    For {
        /// After so much time.
        left_ns: u64,
    },
}

/// What is remembered of a VM over restarts; [`crate::Scheduler::past`] tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Past {
    /// GPU time it had beyond its share and still owes.
    pub debt_ns: u64,
    /// Strikes that are not forgotten.
    pub strikes: u32,
    /// How long the next of them to be forgotten has already waited for that.
    pub strikes_age_ns: u64,
    /// A quarantine that goes on.
    pub quarantine: Option<Quarantine>,
    /// How many quarantines by strikes are not forgotten: each doubles the next one.
    pub quarantines: u32,
    /// How long the next of them to be forgotten has already waited for that.
    pub quarantines_age_ns: u64,
}

/// Credits used, cumulative since the session began, by the worker's account (its hint page). Less
/// than last time counts as nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Usage {
    /// Calls submitted.
    pub calls: u64,
    /// Bytes copied.
    pub bytes: u64,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Event {
    /// A GPU appears. `health` is [`GpuHealth::Unverified`] after a restart with workers left over.
    AddGpu {
        /// Its name.
        gpu: GpuId,
        /// Its settings.
        config: GpuConfig,
        /// Whether it may be used at once.
        health: GpuHealth,
    },
    /// New settings for a GPU.
    SetGpu {
        /// Which.
        gpu: GpuId,
        /// All its settings.
        config: GpuConfig,
    },
    /// A GPU goes: its sessions are killed, its accounts forgotten when the last worker is gone.
    RemoveGpu {
        /// Which.
        gpu: GpuId,
    },
    /// The probe or the administrator says how a GPU is.
    GpuState {
        /// Which.
        gpu: GpuId,
        /// Its health from now on.
        health: GpuHealth,
    },
    /// A pool appears.
    AddPool {
        /// Its name.
        pool: PoolId,
        /// Its settings.
        config: PoolConfig,
    },
    /// New settings for a pool, its policy included.
    SetPool {
        /// Which.
        pool: PoolId,
        /// All its settings.
        config: PoolConfig,
    },
    /// A pool without VMs goes (one with VMs is refused).
    RemovePool {
        /// Which.
        pool: PoolId,
    },
    /// The pool's VMs may be placed on this GPU.
    AssignGpu {
        /// Which GPU.
        gpu: GpuId,
        /// For which pool.
        pool: PoolId,
    },
    /// No new placement of the pool's VMs on this GPU; sessions that are there finish there.
    UnassignGpu {
        /// Which GPU.
        gpu: GpuId,
        /// For which pool.
        pool: PoolId,
    },
    /// New class weights.
    SetClassWeights {
        /// The weights.
        weights: ClassWeights,
    },
    /// A VM is registered, or loaded from the store with what it owes.
    AddVm {
        /// Its name.
        vm: VmId,
        /// Its settings.
        config: VmConfig,
        /// What is remembered of an earlier run; the default for a new VM.
        past: Past,
    },
    /// New settings for a VM. A new pool takes effect at once where it shares the GPU on which the VM's
    /// sessions run, otherwise for sessions that start after the present ones ended.
    SetVm {
        /// Which.
        vm: VmId,
        /// All its settings.
        config: VmConfig,
    },
    /// A VM is unregistered: its sessions are killed.
    RemoveVm {
        /// Which.
        vm: VmId,
    },
    /// Quarantine by command, or release of any quarantine (which also forgets the strikes, but not how
    /// many quarantines there were: the next one is as long as if this one had ended by itself).
    SetQuarantine {
        /// Which VM.
        vm: VmId,
        /// In or out.
        on: bool,
    },
    /// The daemon saw a VM break the rules (a protocol breach, a worker that lies): one strike.
    Strike {
        /// Which VM.
        vm: VmId,
    },
    /// Counters and histograms begin anew; what decides anything (debts, strikes, buckets, bookings)
    /// stays.
    ResetStats {
        /// Of which VM; `None`: of all VMs and all GPUs.
        vm: Option<VmId>,
    },
    /// A guest process asks to be served. Answered by [`crate::Action::Admit`] or
    /// [`crate::Action::Refuse`].
    SessionAdded {
        /// Its name, never used before.
        session: SessionId,
        /// The VM it comes from.
        vm: VmId,
    },
    /// The session is over: nothing more is granted to it, and a lease is asked back. What it holds is
    /// freed by [`Event::WorkerExited`], which must follow.
    SessionRemoved {
        /// Which.
        session: SessionId,
    },
    /// The session has work. Sent when its queue becomes non-empty, when a parked lease was retaken, and
    /// now and then while the depth changes.
    Runnable {
        /// Which.
        session: SessionId,
        /// What waits.
        depth: Depth,
        /// What the first of it costs.
        head: HeadCost,
    },
    /// Nothing waits and nothing is in flight.
    Idle {
        /// Which.
        session: SessionId,
        /// How long that has been so (a worker that held the GPU for the hold time by itself says so).
        idle_for_ns: u64,
    },
    /// What a session has used since it began, calls and bytes that needed no lease included.
    Used {
        /// Which.
        session: SessionId,
        /// Cumulative. While the session holds a lease, it counts only if the worker dies; otherwise the end of the lease
        /// reports what was used.
        used: Usage,
    },
    /// Cumulative counters of a session, from a message or from its hint page.
    Progress {
        /// Which.
        session: SessionId,
        /// Operations given to the device since the session began.
        submitted: u64,
        /// Operations completed since the session began.
        completed: u64,
    },
    /// The lease is returned: everything submitted under it has completed.
    Released {
        /// By which session.
        session: SessionId,
        /// Which lease. Any other than the present one is ignored.
        epoch: Epoch,
        /// Credits used.
        used: Usage,
        /// Work left; `calls: 0` makes the session idle.
        depth: Depth,
    },
    /// The holder submits nothing more under this lease, unless it is extended: what is in flight is
    /// predicted to be over then. The next one is let in shortly before ([`crate::LET_IN_NS`]), so that
    /// the GPU does not idle while the lease changes hands. A wrong word costs whoever gives it: it pays
    /// alone until its release is accepted.
    Ending {
        /// By which session.
        session: SessionId,
        /// Which lease. Any other than the present one is ignored.
        epoch: Epoch,
        /// The end of the slice for which that holds: if it was extended meanwhile, it holds no more.
        slice_end_ns: u64,
        /// In how long, by prediction.
        in_ns: u64,
    },
    /// The credits of the lease are used up and work is left.
    CreditsSpent {
        /// By which session.
        session: SessionId,
        /// Under which lease.
        epoch: Epoch,
        /// Credits used.
        used: Usage,
    },
    /// The worker's process is gone (its exit was seen by the kernel's word, not by its own).
    WorkerExited {
        /// Which.
        session: SessionId,
    },
    /// A check that [`crate::Action::Canary`] asked for has ended, or left-over workers of an earlier run
    /// are known dead.
    Verified {
        /// Which GPU.
        gpu: GpuId,
        /// Did the canary kernel complete and the memory come back?
        ok: bool,
    },
    /// The worker wants memory. Answered by [`crate::Action::MemoryGranted`] or
    /// [`crate::Action::MemoryDenied`].
    MemoryReserve {
        /// For which session.
        session: SessionId,
        /// Which memory.
        of: Memory,
        /// How much.
        bytes: u64,
        /// Returned with the answer.
        tag: u64,
    },
    /// The worker gave memory back.
    MemoryRelease {
        /// Of which session.
        session: SessionId,
        /// Which memory.
        of: Memory,
        /// How much; more than is booked empties the account.
        bytes: u64,
    },
    /// Memory that ended sessions of a VM had pinned and that is still there. It counts as pinned by the VM.
    PinnedLeft {
        /// Whose.
        vm: VmId,
        /// All of it, and not what is new.
        bytes: u64,
    },
    /// Whoever feeds the scheduler was kept from it until now (vgpud was stopped, or got no processor): what
    /// happened meanwhile could not be told. That time counts towards no limit of the watchdog.
    Away {
        /// How long.
        for_ns: u64,
    },
    /// The time of the last [`crate::Action::SetTimer`] has come (early is harmless).
    Timer,
}
