//! The actions that the scheduler orders.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::id::{Epoch, GpuId, SessionId, VmId};

/// Totals of calls and bytes, counted since the session began, up to which a lease holder may
/// submit. Totals make a repeated message harmless. `u64::MAX` is "no limit". A later total may be
/// smaller, because unused credit goes back at the end of a lease.
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
    /// GPU of the lease; of a gang, the first. Later actions name the lease by it.
    pub gpu: GpuId,
    /// The other GPUs of a gang, in order: one lease covers all. Empty for a single GPU.
    pub also: Vec<GpuId>,
    /// Session that gets the lease.
    pub session: SessionId,
    /// Number of the lease. Every message about the lease repeats it.
    pub epoch: Epoch,
    /// End of the slice in ns, while others wait. The worker submits nothing that is predicted to
    /// end later.
    pub slice_end_ns: u64,
    /// Credit for the lease. One operation may exceed the bytes; the difference is then owed.
    pub credits: Credits,
    /// How long, in ns, the holder keeps the GPU without work before it parks or releases the
    /// lease.
    pub hold_ns: u64,
    /// Work that may be unfinished on the device, in predicted ns
    /// ([`crate::gate::Gate::set_window`]).
    pub window_ns: u64,
    /// Whether another session waits now. [`Action::Want`] reports changes.
    pub wanted: bool,
}

/// Why a session is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum KillCause {
    /// Work made no progress within the hard limit. The guest gets `CUDA_ERROR_LAUNCH_TIMEOUT`.
    LaunchTimeout,
    /// The lease was revoked and not returned, although nothing was in flight.
    LeaseNotReturned,
    /// The VM is quarantined.
    Quarantined,
    /// The VM was unregistered.
    VmRemoved,
    /// The GPU is gone.
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

/// The offence for which a VM gets a strike.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StrikeCause {
    /// Work made no progress within the soft limit.
    SoftLimit,
    /// Work made no progress within the hard limit.
    HardLimit,
    /// A revoked lease was not returned.
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
    /// The VM already has its limit of sessions.
    TooManySessions {
        /// The limit of sessions.
        limit: u32,
    },
    /// No GPU is assigned to the VM's pool (or none that the VM may use).
    NoGpu,
    /// The GPUs of the pool are draining, suspect or lost.
    GpuUnavailable,
    /// The GPU or the quota has too little device memory left for a context.
    NoMemory,
    /// The session number was used before: a fault of the caller.
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
                    "this VM already runs {limit} programs, which is its limit of sessions; end one, or on the host: vgpu-admin vm set --sessions"
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

/// Why a memory request is denied.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MemoryRefusal {
    /// The request exceeds the quota of the VM.
    Quota,
    /// The request exceeds the free memory of the GPU.
    Gpu,
    /// The request exceeds the VM's limit of pinned memory.
    Pinned,
    /// The request exceeds the pinned memory that the host allows all VMs, or that is not reserved
    /// for others.
    Host,
    /// The session does not run on that GPU.
    NotItsGpu,
}

/// Why an event had no effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Ignored {
    /// The event names an unknown GPU.
    UnknownGpu,
    /// The event names an unknown pool.
    UnknownPool,
    /// The event names an unknown VM.
    UnknownVm,
    /// The event names an unknown or ended session.
    UnknownSession,
    /// The event names a lease that is not the session's present lease.
    StaleEpoch,
    /// The object to be added already exists.
    Exists,
    /// The pool still has VMs.
    PoolInUse,
}

/// An order to the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Action {
    /// The session is admitted on this GPU: start its worker there.
    Admit {
        /// The session.
        session: SessionId,
        /// VM of the session.
        vm: VmId,
        /// GPU of the session; of a gang, the first.
        gpu: GpuId,
        /// The other GPUs of a gang, in order.
        also: Vec<GpuId>,
    },
    /// The session is refused. The scheduler keeps no record of it.
    Refuse {
        /// The session.
        session: SessionId,
        /// The reason.
        reason: Refusal,
    },
    /// Give the lease. No other session holds this GPU, or only a session whose work is about to
    /// end.
    Grant(Terms),
    /// Give the lease although a declared overrunner is still on the GPU, and set the beside mark
    /// on the page.
    GrantBeside(Terms),
    /// A lease given by [`Action::GrantBeside`] now has its GPUs to itself: clear the beside mark.
    Alone {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
    },
    /// The previous holder, which should be done by now, overruns: mark the lease as if it had been
    /// given by [`Action::GrantBeside`].
    Beside {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
    },
    /// The running lease goes on for another slice.
    Extend {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
        /// New end of the slice, in ns.
        slice_end_ns: u64,
    },
    /// Ask for the lease back. If the lease is parked, take it by one compare-and-swap and report
    /// [`crate::Event::Released`] at once. Otherwise set the revoke word of the page.
    Revoke {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
    },
    /// Whether another session waits has changed: set the wanted word of the page.
    Want {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
        /// Whether another session waits.
        wanted: bool,
    },
    /// New credit totals for the running lease.
    Credit {
        /// The session.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
        /// New totals.
        credits: Credits,
    },
    /// Report [`crate::Event::Timer`] at this time. Replaces the earlier timer. `u64::MAX`: no
    /// timer.
    SetTimer {
        /// Time in ns, on the clock of `handle`'s `now_ns`.
        at_ns: u64,
    },
    /// Tell the guest the cause, shut its data socket and kill the worker. Report
    /// [`crate::Event::WorkerExited`] when the worker is gone.
    Kill {
        /// The session.
        session: SessionId,
        /// The cause.
        cause: KillCause,
    },
    /// Run a canary kernel in a fresh process and check that the memory was freed. Report
    /// [`crate::Event::Verified`].
    Canary {
        /// The GPU.
        gpu: GpuId,
    },
    /// The VM got a strike.
    Struck {
        /// The VM.
        vm: VmId,
        /// Strikes of the VM that are not forgotten.
        strikes: u32,
        /// The offence.
        cause: StrikeCause,
    },
    /// Strikes have quarantined the VM. Further actions kill its sessions.
    Quarantine {
        /// The VM.
        vm: VmId,
        /// Strikes that the VM had.
        strikes: u32,
        /// Length in ns; `None`: until an administrator releases the VM.
        for_ns: Option<u64>,
    },
    /// The time of a quarantine by strikes is over. The strikes are forgotten.
    QuarantineOver {
        /// The VM.
        vm: VmId,
    },
    /// A kill could not be verified in time. The GPU is now [`crate::GpuHealth::Suspect`], or stays
    /// [`crate::GpuHealth::Unverified`], under which nothing is granted.
    GpuSuspect {
        /// The GPU.
        gpu: GpuId,
    },
    /// Work passed the soft limit. The VM counts one class lower for a while.
    SoftLimit {
        /// The session.
        session: SessionId,
        /// The VM.
        vm: VmId,
        /// Time in ns without progress, or since the revoke.
        kept_ns: u64,
    },
    /// A holder kept its lease past slice and grace. The next VM may run beside it.
    Overrun {
        /// The GPU.
        gpu: GpuId,
        /// The overrunner.
        session: SessionId,
    },
    /// The memory is booked.
    MemoryGranted {
        /// The session.
        session: SessionId,
        /// Tag of the request.
        tag: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The memory is not booked.
    MemoryDenied {
        /// The session.
        session: SessionId,
        /// Tag of the request.
        tag: u64,
        /// The reason.
        reason: MemoryRefusal,
        /// Number of bytes that would have been granted.
        available: u64,
    },
    /// The event had no effect.
    Ignored {
        /// The reason.
        reason: Ignored,
    },
}
