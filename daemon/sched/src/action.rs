//! The actions that the scheduler orders.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use vgpu_proto::text::counted;

use crate::id::{Epoch, GpuId, SessionId, VmId};

/// Upper limits of the calls and bytes that a lease holder has submitted since the session began.
/// Limits are totals, so that a repeated message does no harm. `u64::MAX`: no limit. A later total
/// may be smaller, because unused credit goes back at the end of a lease.
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
    /// GPU of the lease; for a gang, the first of its GPUs. Later actions about the lease carry
    /// this GPU.
    pub gpu: GpuId,
    /// The other GPUs of a gang, in ascending order: one lease covers all of them. Empty for a VM
    /// with a single GPU.
    pub also: Vec<GpuId>,
    /// Session that gets the lease.
    pub session: SessionId,
    /// Number of the lease. Every message about the lease repeats it.
    pub epoch: Epoch,
    /// Time in ns at which the slice ends if another session waits. The worker then submits nothing
    /// that is predicted to end after this time.
    pub slice_end_ns: u64,
    /// Credit for the lease. One operation may copy more bytes than the credit; later credit is
    /// reduced by the difference.
    pub credits: Credits,
    /// Longest time in ns for which the holder keeps the GPU without work before it parks or
    /// releases the lease.
    pub hold_ns: u64,
    /// Predicted GPU time in ns of the work that may be unfinished on the device
    /// ([`crate::gate::Gate::set_window`]).
    pub window_ns: u64,
    /// Whether another session waits for the GPU. [`Action::Want`] reports changes.
    pub wanted: bool,
}

/// Why a session is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum KillCause {
    /// Work made no progress within the hard limit. The guest gets `CUDA_ERROR_LAUNCH_TIMEOUT`.
    LaunchTimeout,
    /// Work made no progress within the contended limit, while another session waited. The guest
    /// gets `CUDA_ERROR_LAUNCH_TIMEOUT`.
    ContendedLimit,
    /// Work made no progress within the soft limit, which was the strike that quarantines the VM.
    /// The guest gets `CUDA_ERROR_LAUNCH_TIMEOUT`.
    SoftLimit,
    /// The session did not return a revoked lease, although it had nothing in flight.
    LeaseNotReturned,
    /// The VM is quarantined.
    Quarantined {
        /// Length of the quarantine in ns. `None`: until an administrator releases the VM.
        for_ns: Option<u64>,
    },
    /// The VM was unregistered.
    VmRemoved,
    /// The GPU is gone.
    GpuLost,
}

impl fmt::Display for KillCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            KillCause::LaunchTimeout => {
                "work on the GPU made no progress within the hard limit of the VM or of its pool"
            }
            KillCause::ContendedLimit => {
                "work on the GPU made no progress within the contended limit of its pool, which holds \
                 while other programs wait"
            }
            KillCause::SoftLimit => {
                "work on the GPU made no progress within the soft limit of the VM or of its pool, \
                 and the VM is quarantined for this and earlier strikes"
            }
            KillCause::LeaseNotReturned => "the GPU was asked back and not returned",
            KillCause::Quarantined { for_ns: Some(ns) } => {
                let seconds = Duration::from_nanos(*ns).as_secs_f64().ceil();
                return write!(f, "the VM is quarantined for {seconds} s, and its programs are ended");
            }
            KillCause::Quarantined { for_ns: None } => {
                "the VM is quarantined until the host's administrator releases it, and its programs are ended"
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
    /// Work made no progress within the contended limit, while others waited.
    ContendedLimit,
    /// A revoked lease was not returned.
    LeaseNotReturned,
    /// The daemon reported a breach of the rules ([`crate::Event::Strike`]).
    Breach,
}

impl fmt::Display for StrikeCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StrikeCause::SoftLimit => "its work on the GPU made no progress within the soft limit",
            StrikeCause::HardLimit => "its work on the GPU made no progress within the hard limit",
            StrikeCause::ContendedLimit => {
                "its work on the GPU made no progress within the contended limit while others waited"
            }
            StrikeCause::LeaseNotReturned => "it did not return the GPU when asked",
            StrikeCause::Breach => "it broke the protocol",
        })
    }
}

/// Why a session is not admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
    /// No GPU is assigned to the VM's pool, or the VM may use none of the assigned GPUs.
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
                f.write_str(
                "this VM is not registered; the host's administrator registers it: vgpu-admin register-vm",
            )
            }
            Refusal::Quarantined => f.write_str(
                "this VM is quarantined; the host's administrator sees why (vgpu-admin vm show) and can \
                 end it (vgpu-admin release)",
            ),
            Refusal::TooManySessions { limit } => {
                write!(
                    f,
                    "this VM already runs {}, its limit of sessions; end one, or ask the host's administrator \
                     for more (vgpu-admin vm set --sessions)",
                    counted(*limit, "program")
                )
            }
            Refusal::NoGpu => {
                f.write_str(
                "no GPU serves this VM's pool; the host's administrator assigns one: vgpu-admin assign-gpu",
            )
            }
            Refusal::GpuUnavailable => {
                f.write_str("no GPU of this VM's pool takes new programs now")
            }
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
    /// The request exceeds the pinned memory that the host allows for all VMs together, less the
    /// part that is reserved for other VMs.
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
        /// GPU of the session; for a gang, the first of its GPUs.
        gpu: GpuId,
        /// The other GPUs of a gang, in ascending order.
        also: Vec<GpuId>,
    },
    /// The session is refused. The scheduler keeps no record of the session.
    Refuse {
        /// The session.
        session: SessionId,
        /// The reason.
        reason: Refusal,
    },
    /// Give the lease. No other session holds this GPU, except possibly a session that has
    /// announced the end of its work ([`crate::Event::Ending`]).
    Grant(Terms),
    /// Give the lease although a session with a declared overrun is still on the GPU, and set the
    /// beside mark on the shared page.
    GrantBeside(Terms),
    /// The holder of a lease given by [`Action::GrantBeside`] is now alone on its GPUs: clear the
    /// beside mark.
    Alone {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
    },
    /// The previous holder announced the end of its work but still runs, and so overruns: set the
    /// beside mark on this lease, as with [`Action::GrantBeside`].
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
    /// Ask the worker for the lease. If the lease is parked, take the lease with one
    /// compare-and-swap and report [`crate::Event::Released`] at once. Otherwise set the revoke
    /// word of the shared page.
    Revoke {
        /// The GPU.
        gpu: GpuId,
        /// The holder.
        session: SessionId,
        /// The epoch of the lease.
        epoch: Epoch,
    },
    /// The answer to "does another session wait for this GPU" has changed: set the wanted word of
    /// the shared page.
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
    /// Report [`crate::Event::Timer`] at this time. The earlier timer is void. `u64::MAX`: no
    /// timer.
    SetTimer {
        /// Time in ns, on the clock of `handle`'s `now_ns`.
        at_ns: u64,
    },
    /// Send the cause to the guest, shut down its data socket and kill the worker. Report
    /// [`crate::Event::WorkerExited`] when the worker is gone.
    Kill {
        /// The session.
        session: SessionId,
        /// The cause.
        cause: KillCause,
    },
    /// Run a canary kernel in a fresh process and check that the device memory of the killed worker
    /// is free again. Report the result with [`crate::Event::Verified`].
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
    /// Strikes have quarantined the VM. Separate [`Action::Kill`]s end its sessions.
    Quarantine {
        /// The VM.
        vm: VmId,
        /// Strikes that the VM had.
        strikes: u32,
        /// Length of the quarantine in ns; `None`: until an administrator releases the VM.
        for_ns: Option<u64>,
    },
    /// A quarantine that strikes caused has ended by time. The strikes are forgotten.
    QuarantineOver {
        /// The VM.
        vm: VmId,
    },
    /// A kill could not be verified in time. The GPU is now [`crate::GpuHealth::Suspect`]. A GPU
    /// that was [`crate::GpuHealth::Unverified`] stays so, and nothing is granted on the GPU.
    GpuSuspect {
        /// The GPU.
        gpu: GpuId,
    },
    /// Work made no progress within the soft limit. For [`crate::Config::demotion_ns`], the VM
    /// counts as one class lower.
    SoftLimit {
        /// The session.
        session: SessionId,
        /// The VM.
        vm: VmId,
        /// Time in ns without progress, or since the revoke if the lease was revoked.
        kept_ns: u64,
    },
    /// The holder kept its lease past slice and grace. The scheduler may now give another VM a
    /// lease beside this session.
    Overrun {
        /// The GPU.
        gpu: GpuId,
        /// The session that overruns.
        session: SessionId,
    },
    /// The requested memory is booked on the VM's ledger.
    MemoryGranted {
        /// The session.
        session: SessionId,
        /// Tag of the request ([`crate::Event::MemoryReserve`]).
        tag: u64,
        /// Number of bytes.
        bytes: u64,
    },
    /// The request is denied, and nothing is booked.
    MemoryDenied {
        /// The session.
        session: SessionId,
        /// Tag of the request ([`crate::Event::MemoryReserve`]).
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
