//! What the scheduler wants done, in order.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, GpuId, SessionId, VmId};

/// Up to which totals, counted since the session began, a lease holder may submit. Totals make a
/// repeated message harmless. `u64::MAX` is "no limit". A later total may be smaller: what was not used
/// under a lease goes back when it ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Credits {
    /// Calls.
    pub calls: u64,
    /// Bytes to copy.
    pub bytes: u64,
}

impl Credits {
    /// No limit.
    pub const UNLIMITED: Credits = Credits {
        calls: u64::MAX,
        bytes: u64::MAX,
    };
}

/// The terms of a lease.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Terms {
    /// The GPU; of a gang, its first. It names the lease in later actions about it.
    pub gpu: GpuId,
    /// The other GPUs of a gang, in order: one lease for all of them. Empty for one GPU.
    pub also: Vec<GpuId>,
    /// Who gets it.
    pub session: SessionId,
    /// The lease's number, to be repeated in every message about it.
    pub epoch: Epoch,
    /// Until then, while others wait; nothing whose predicted end lies beyond should be submitted.
    pub slice_end_ns: u64,
    /// What may be submitted under it. One operation may exceed the bytes: the debt is paid afterwards.
    pub credits: Credits,
    /// How long to keep the GPU without work before parking or releasing it.
    pub hold_ns: u64,
    /// How much may be unfinished on the device, in predicted ns ([`crate::gate::Gate::set_window`]).
    pub window_ns: u64,
    /// Does anybody else wait now? ([`Action::Want`] tells of changes.)
    pub wanted: bool,
}

/// Why a session is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum KillCause {
    /// Work without progress past the hard limit: the guest gets `CUDA_ERROR_LAUNCH_TIMEOUT`.
    LaunchTimeout,
    /// The lease was asked back and not returned although nothing was in flight.
    LeaseNotReturned,
    /// Its VM is quarantined.
    Quarantined,
    /// Its VM was unregistered.
    VmRemoved,
    /// Its GPU is gone.
    GpuLost,
}

impl fmt::Display for KillCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KillCause::LaunchTimeout => {
                "work on the GPU made no progress within the hard limit (vgpu-admin pool set --hard-limit)"
            }
            KillCause::LeaseNotReturned => "the GPU was asked back and not returned",
            KillCause::Quarantined => {
                "the VM is quarantined; see vgpu-admin vm show, then vgpu-admin release"
            }
            KillCause::VmRemoved => "the VM was unregistered",
            KillCause::GpuLost => "the GPU is gone",
        })
    }
}

/// What a strike was for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StrikeCause {
    /// Work without progress past the soft limit.
    SoftLimit,
    /// Work without progress past the hard limit.
    HardLimit,
    /// A lease that was not returned.
    LeaseNotReturned,
    /// [`crate::Event::Strike`].
    Breach,
}

impl fmt::Display for StrikeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StrikeCause::SoftLimit => "its work on the GPU made no progress within the soft limit",
            StrikeCause::HardLimit => "its work on the GPU made no progress within the hard limit",
            StrikeCause::LeaseNotReturned => "it did not return the GPU when asked",
            StrikeCause::Breach => "it broke the protocol",
        })
    }
}

/// Why a session is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Refusal {
    /// No such VM.
    UnknownVm,
    /// The VM is quarantined.
    Quarantined,
    /// The VM has as many sessions as it may have.
    TooManySessions {
        /// How many it may have.
        limit: u32,
    },
    /// No GPU is assigned to the VM's pool (or none that the VM may use).
    NoGpu,
    /// The GPUs it could use are draining, suspect or lost.
    GpuUnavailable,
    /// There is not enough device memory (or quota) left for a context.
    NoMemory,
    /// The session number was used before: a mistake of the caller.
    DuplicateSession,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refusal::UnknownVm => {
                f.write_str("this VM is not registered; register it with vgpu-admin register-vm")
            }
            Refusal::Quarantined => f.write_str(
                "this VM is quarantined; see vgpu-admin vm show, then vgpu-admin release",
            ),
            Refusal::TooManySessions { limit } => {
                write!(
                    f,
                    "this VM has as many sessions as it may ({limit}); end a program, or on the host: vgpu-admin vm set --sessions"
                )
            }
            Refusal::NoGpu => {
                f.write_str("no GPU serves this VM's pool; assign one with vgpu-admin assign-gpu")
            }
            Refusal::GpuUnavailable => f.write_str(
                "the GPUs of this VM's pool are draining, suspect or lost; see vgpu-admin status",
            ),
            Refusal::NoMemory => f.write_str(
                "no device memory is left for another context within the VM's quota and the GPU",
            ),
            Refusal::DuplicateSession => f.write_str("this session number is already in use"),
        }
    }
}

/// Why memory is not granted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MemoryRefusal {
    /// The VM's quota would be exceeded.
    Quota,
    /// The GPU has no more.
    Gpu,
    /// The VM's limit of pinned memory would be exceeded.
    Pinned,
    /// What all VMs together may have pinned would be exceeded, or what is reserved for others.
    Host,
    /// The session does not run on that GPU.
    NotItsGpu,
}

/// Why an event had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Ignored {
    /// It names a GPU that is not known.
    UnknownGpu,
    /// It names a pool that is not known.
    UnknownPool,
    /// It names a VM that is not known.
    UnknownVm,
    /// It names a session that is gone or never was.
    UnknownSession,
    /// It names a lease that is not the session's present one.
    StaleEpoch,
    /// What it adds is there already.
    Exists,
    /// The pool still has VMs.
    PoolInUse,
}

/// One thing to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Action {
    /// The session is admitted on this GPU: start its worker there.
    Admit {
        /// Which.
        session: SessionId,
        /// Its VM.
        vm: VmId,
        /// Where; of a gang, its first GPU.
        gpu: GpuId,
        /// The other GPUs of a gang, in order.
        also: Vec<GpuId>,
    },
    /// The session is refused; nothing is remembered of it.
    Refuse {
        /// Which.
        session: SessionId,
        /// Why.
        reason: Refusal,
    },
    /// Give the lease: nobody else holds this GPU, or nobody but one whose work is about to end.
    Grant(Terms),
    /// Give the lease although a declared overrunner is still on the GPU, and mark it so on the page.
    GrantBeside(Terms),
    /// A lease given by [`Action::GrantBeside`] has its GPUs to itself now: clear the mark.
    Alone {
        /// Which GPU.
        gpu: GpuId,
        /// Who holds it.
        session: SessionId,
        /// Under which lease.
        epoch: Epoch,
    },
    /// Whoever was to be done on the GPU by now overruns: mark the lease as one that [`Action::GrantBeside`]
    /// gave.
    Beside {
        /// Which GPU.
        gpu: GpuId,
        /// Who holds it.
        session: SessionId,
        /// Under which lease.
        epoch: Epoch,
    },
    /// The running lease goes on for another slice.
    Extend {
        /// Which GPU.
        gpu: GpuId,
        /// Who holds it.
        session: SessionId,
        /// Under which lease.
        epoch: Epoch,
        /// The new end.
        slice_end_ns: u64,
    },
    /// Ask the lease back. If the session's lease is parked, take it by one CAS and report
    /// [`crate::Event::Released`] at once; otherwise set the page's revoke word.
    Revoke {
        /// Which GPU.
        gpu: GpuId,
        /// Who holds it.
        session: SessionId,
        /// Which lease.
        epoch: Epoch,
    },
    /// Somebody else waits, or nobody does any more: set the page's wanted word.
    Want {
        /// Which GPU.
        gpu: GpuId,
        /// Who holds it.
        session: SessionId,
        /// Which lease.
        epoch: Epoch,
        /// Does anybody wait?
        wanted: bool,
    },
    /// New credit totals for the running lease.
    Credit {
        /// For whom.
        session: SessionId,
        /// Under which lease.
        epoch: Epoch,
        /// The totals.
        credits: Credits,
    },
    /// Report [`crate::Event::Timer`] at this time; replaces the earlier one. `u64::MAX`: none.
    SetTimer {
        /// When, on the clock of `handle`'s `now_ns`.
        at_ns: u64,
    },
    /// Tell the guest the cause, shut its data socket, kill the worker, and report
    /// [`crate::Event::WorkerExited`] when it is gone.
    Kill {
        /// Which.
        session: SessionId,
        /// Why.
        cause: KillCause,
    },
    /// Run a canary kernel in a fresh process and check that memory came back; report
    /// [`crate::Event::Verified`].
    Canary {
        /// Where.
        gpu: GpuId,
    },
    /// The VM has got a strike.
    Struck {
        /// Which.
        vm: VmId,
        /// How many it has now that are not forgotten.
        strikes: u32,
        /// What for.
        cause: StrikeCause,
    },
    /// The VM has been quarantined by its strikes (its sessions are killed by actions of their own).
    Quarantine {
        /// Which.
        vm: VmId,
        /// How many strikes it had.
        strikes: u32,
        /// For how long; `None`: until it is released.
        for_ns: Option<u64>,
    },
    /// A quarantine by strikes has ended by itself; the strikes are forgotten.
    QuarantineOver {
        /// Which VM.
        vm: VmId,
    },
    /// A kill could not be verified in time: the GPU is [`crate::GpuHealth::Suspect`] now (or stays
    /// [`crate::GpuHealth::Unverified`], under which nothing is granted).
    GpuSuspect {
        /// Which.
        gpu: GpuId,
    },
    /// Work passed its soft limit; the VM counts one class lower for a while.
    SoftLimit {
        /// Which session.
        session: SessionId,
        /// Its VM.
        vm: VmId,
        /// For how long it made no progress, or was not given back.
        kept_ns: u64,
    },
    /// A holder outlasted slice and grace; the next VM may run beside it.
    Overrun {
        /// Which GPU.
        gpu: GpuId,
        /// Who overruns.
        session: SessionId,
    },
    /// The memory is booked.
    MemoryGranted {
        /// For whom.
        session: SessionId,
        /// As in the request.
        tag: u64,
        /// How much.
        bytes: u64,
    },
    /// The memory is not booked.
    MemoryDenied {
        /// For whom.
        session: SessionId,
        /// As in the request.
        tag: u64,
        /// Why.
        reason: MemoryRefusal,
        /// What could be had.
        available: u64,
    },
    /// The event had no effect.
    Ignored {
        /// Why.
        reason: Ignored,
    },
}
