//! Events of the mediation, and their texts.

use std::time::Duration;

use vgpu_api::{EventKind, Severity};
use vgpu_proto::text::printable;
use vgpu_sched::Cap;

use super::journal::{Draft, GpuNote, QuarantineNote, VmNote};

/// Why a session ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EndCause {
    /// The guest program finished, or the VM stopped.
    Guest,
    /// The guest broke the protocol.
    Protocol,
    /// The work of the session caused a device fault.
    Fault,
    /// The worker died.
    WorkerDied,
    /// The work exceeded the watchdog's hard limit.
    HardLimit,
    /// The work exceeded the watchdog's soft limit, and the VM is quarantined for that.
    SoftLimit,
    /// An administrator's command (kill, unregister, quarantine, move, unassign).
    Administrator,
    /// The worker cheated (leases, memory).
    Cheating,
    /// The session holds far more device memory than its VM may have.
    Memory,
    /// The GPU vanished or is suspect.
    GpuLost,
    /// vgpud stopped.
    Draining,
}

impl EndCause {
    /// A stable short name, for metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Guest => "guest",
            Self::Protocol => "protocol",
            Self::Fault => "fault",
            Self::WorkerDied => "worker_died",
            Self::HardLimit => "hard_limit",
            Self::SoftLimit => "soft_limit",
            Self::Administrator => "administrator",
            Self::Cheating => "cheating",
            Self::Memory => "memory",
            Self::GpuLost => "gpu_lost",
            Self::Draining => "draining",
        }
    }

    fn severity(self) -> Severity {
        match self {
            Self::Guest | Self::Draining | Self::Administrator => Severity::Info,
            Self::Protocol | Self::Fault | Self::HardLimit | Self::SoftLimit => Severity::Warning,
            Self::WorkerDied | Self::Cheating | Self::Memory | Self::GpuLost => Severity::Error,
        }
    }

    fn kind(self) -> EventKind {
        match self {
            Self::Guest | Self::Protocol | Self::Fault => EventKind::SessionEnded,
            Self::WorkerDied => EventKind::WorkerFailed,
            Self::HardLimit => EventKind::HardLimit,
            Self::SoftLimit
            | Self::Administrator
            | Self::Cheating
            | Self::Memory
            | Self::GpuLost
            | Self::Draining => EventKind::SessionKilled,
        }
    }
}

/// An event of the mediation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Report {
    /// A guest program was admitted.
    SessionStarted {
        /// The VM.
        vm_id: u32,
        /// The session.
        session_id: u64,
        /// GPU of the session.
        gpu_uuid: String,
        /// Name of the program, as the guest reports it.
        program: String,
    },
    /// A session ended.
    SessionEnded {
        /// The VM.
        vm_id: u32,
        /// The session.
        session_id: u64,
        /// GPU of the session.
        gpu_uuid: Option<String>,
        /// The cause.
        cause: EndCause,
        /// Details, as a sentence.
        detail: String,
    },
    /// Work passed the soft limit.
    SoftLimit {
        /// The VM.
        vm_id: u32,
        /// The session.
        session_id: u64,
        /// GPU of the session.
        gpu_uuid: String,
        /// Time without progress.
        after: Duration,
    },
    /// A VM got a strike.
    Strike {
        /// The VM.
        vm_id: u32,
        /// Number of the registration.
        generation: u64,
        /// Strikes that count, including this one.
        strikes: u32,
        /// The offence.
        reason: String,
    },
    /// The scheduler quarantined a VM. The quarantine survives restarts, until its time is over or
    /// an administrator releases the VM.
    Quarantined {
        /// The VM.
        vm_id: u32,
        /// Number of the registration.
        generation: u64,
        /// The reason.
        reason: String,
        /// End of the quarantine; `None`: until released.
        until_unix_ms: Option<u64>,
        /// Length of the quarantine.
        lasts: Option<Duration>,
        /// Quarantines that count, including this one.
        quarantines: u32,
    },
    /// The time of a quarantine by strikes is over.
    QuarantineOver {
        /// The VM.
        vm_id: u32,
        /// Number of the registration.
        generation: u64,
    },
    /// A guest was refused before a session started.
    Refused {
        /// The VM, if known.
        vm_id: Option<u32>,
        /// Address of the guest (`vsock:7`, a socket path).
        peer: String,
        /// A stable short name of the reason (`unknown_vm`).
        code: &'static str,
        /// Sentence that the guest got.
        message: String,
    },
    /// A rate limit started to hold back a VM. While the limit goes on to do so, once an hour.
    RateLimited {
        /// The VM.
        vm_id: u32,
        /// The limit.
        cap: Cap,
    },
    /// A session holds device memory that was not requested, and for which the VM or the GPU has no
    /// room. Told once for each session.
    MemoryBeyond {
        /// The VM.
        vm_id: u32,
        /// The session.
        session_id: u64,
        /// GPU of the session.
        gpu_uuid: String,
        /// Bytes without room.
        bytes: u64,
    },
    /// A session was refused memory, and a call of its program failed. Told once for each session
    /// and limit.
    MemoryRefused {
        /// The VM.
        vm_id: u32,
        /// The session.
        session_id: u64,
        /// GPU of the memory; `None`: pinned memory.
        gpu_uuid: Option<String>,
        /// A stable short name of the limit (`quota`).
        limit: &'static str,
        /// The limit with its values.
        values: String,
    },
    /// A GPU takes no new work until it passes a check. This state survives restarts.
    GpuSuspect {
        /// The GPU.
        gpu_uuid: String,
        /// The reason.
        reason: String,
    },
    /// A GPU no longer answers.
    GpuVanished {
        /// The GPU.
        gpu_uuid: String,
        /// The sign by which vgpud noticed this, as a sentence.
        reason: String,
    },
    /// A worker could not be started.
    WorkerFailed {
        /// VM of the worker.
        vm_id: Option<u32>,
        /// Session of the worker.
        session_id: Option<u64>,
        /// The reason.
        message: String,
    },
}

impl Report {
    pub(super) fn vm_note(&self) -> Option<(u32, VmNote)> {
        match self {
            Self::Strike {
                vm_id,
                generation,
                strikes,
                ..
            } => Some((*vm_id, VmNote::strike(*generation, *strikes))),
            Self::Quarantined {
                vm_id,
                generation,
                reason,
                until_unix_ms,
                quarantines,
                ..
            } => {
                let begun = QuarantineNote::Begun {
                    reason: reason.clone(),
                    until_unix_ms: *until_unix_ms,
                    quarantines: *quarantines,
                };
                Some((*vm_id, VmNote::quarantine(*generation, begun)))
            }
            Self::QuarantineOver { vm_id, generation } => Some((
                *vm_id,
                VmNote::quarantine(*generation, QuarantineNote::Over),
            )),
            _ => None,
        }
    }

    pub(super) fn gpu_note(&self) -> Option<(String, GpuNote)> {
        match self {
            Self::GpuSuspect { gpu_uuid, reason } => {
                Some((gpu_uuid.clone(), GpuNote::Suspect(reason.clone())))
            }
            Self::GpuVanished { gpu_uuid, reason } => {
                Some((gpu_uuid.clone(), GpuNote::Vanished(reason.clone())))
            }
            _ => None,
        }
    }

    /// The text of the event.
    fn sentence(&self) -> String {
        match self {
            Self::SessionStarted {
                vm_id,
                session_id,
                program,
                ..
            } => format!(
                "VM {vm_id} started {} as session {session_id}",
                clean(program)
            ),
            Self::SessionEnded {
                vm_id,
                session_id,
                detail,
                ..
            } => format!(
                "Session {session_id} of VM {vm_id} ended: {}",
                clean(detail)
            ),
            Self::SoftLimit {
                vm_id,
                session_id,
                after,
                ..
            } => format!(
                "Session {session_id} of VM {vm_id} held the GPU for {} ms without progress, or \
                 after it was asked back (soft limit)",
                after.as_millis()
            ),
            Self::Strike {
                vm_id,
                strikes,
                reason,
                ..
            } => format!("VM {vm_id} got strike {strikes}: {}", clean(reason)),
            Self::Quarantined {
                vm_id,
                reason,
                lasts,
                ..
            } => format!(
                "VM {vm_id} is quarantined{}: {}. `vgpu-admin release {vm_id}` ends it.",
                lasts.map_or(String::new(), |t| format!(" for {} s", t.as_secs())),
                clean(reason)
            ),
            Self::QuarantineOver { vm_id, .. } => format!("The quarantine of VM {vm_id} is over."),
            Self::Refused { peer, message, .. } => {
                format!("Refused {}: {}", clean(peer), clean(message))
            }
            Self::RateLimited { vm_id, cap } => {
                format!("VM {vm_id} is held back by its limit of {}", cap.name())
            }
            Self::MemoryBeyond {
                vm_id,
                session_id,
                bytes,
                ..
            } => format!(
                "Session {session_id} of VM {vm_id} holds {} MiB of device memory that it did not \
                 request (its modules, as a rule), beyond the limit of the VM or the free memory \
                 of the GPU",
                bytes.div_ceil(1 << 20)
            ),
            Self::MemoryRefused {
                vm_id,
                session_id,
                values,
                ..
            } => format!("Session {session_id} of VM {vm_id} was refused memory: {values}"),
            Self::GpuSuspect { gpu_uuid, reason } => format!(
                "GPU {gpu_uuid} takes no more work until it was checked: {}",
                clean(reason)
            ),
            Self::GpuVanished { gpu_uuid, reason } => {
                format!("GPU {gpu_uuid} is gone: {}", clean(reason))
            }
            Self::WorkerFailed { message, .. } => clean(message),
        }
    }

    pub(super) fn into_draft(self) -> Draft {
        use EventKind as Kind;
        use Severity::{Error, Info, Warning};

        let text = self.sentence();
        match self {
            Self::SessionStarted {
                vm_id,
                session_id,
                gpu_uuid,
                ..
            } => Draft::vm(Kind::SessionStarted, Info, vm_id, text)
                .of_session(session_id)
                .on_gpu(gpu_uuid),
            Self::SessionEnded {
                vm_id,
                session_id,
                gpu_uuid,
                cause,
                ..
            } => Draft::vm(cause.kind(), cause.severity(), vm_id, text)
                .of_session(session_id)
                .on_gpu(gpu_uuid)
                .labelled(cause.name()),
            Self::SoftLimit {
                vm_id,
                session_id,
                gpu_uuid,
                ..
            } => Draft::vm(Kind::SoftLimit, Warning, vm_id, text)
                .of_session(session_id)
                .on_gpu(gpu_uuid),
            Self::Strike { vm_id, .. } => Draft::vm(Kind::Strike, Warning, vm_id, text),
            Self::Quarantined { vm_id, .. } => Draft::vm(Kind::Quarantined, Error, vm_id, text),
            Self::QuarantineOver { vm_id, .. } => Draft::vm(Kind::Released, Info, vm_id, text),
            Self::Refused { vm_id, code, .. } => Draft::daemon(Kind::Refused, Warning, text)
                .of_vm(vm_id)
                .labelled(code),
            Self::RateLimited { vm_id, cap } => {
                Draft::vm(Kind::RateLimited, Info, vm_id, text).labelled(label(cap))
            }
            Self::MemoryBeyond {
                vm_id,
                session_id,
                gpu_uuid,
                ..
            } => Draft::vm(Kind::MemoryBeyond, Warning, vm_id, text)
                .of_session(session_id)
                .on_gpu(gpu_uuid),
            Self::MemoryRefused {
                vm_id,
                session_id,
                gpu_uuid,
                limit,
                ..
            } => Draft::vm(Kind::MemoryRefused, Info, vm_id, text)
                .of_session(session_id)
                .on_gpu(gpu_uuid)
                .labelled(limit),
            Self::GpuSuspect { gpu_uuid, .. } => {
                Draft::daemon(Kind::GpuSuspect, Error, text).on_gpu(gpu_uuid)
            }
            Self::GpuVanished { gpu_uuid, .. } => {
                Draft::daemon(Kind::GpuVanished, Error, text).on_gpu(gpu_uuid)
            }
            Self::WorkerFailed {
                vm_id, session_id, ..
            } => Draft::daemon(Kind::WorkerFailed, Error, text)
                .of_vm(vm_id)
                .of_session(session_id),
        }
    }
}

/// A stable short name of a limit, for metrics.
fn label(cap: Cap) -> &'static str {
    match cap {
        Cap::Calls => "calls",
        Cap::Bytes => "bytes",
        Cap::GpuTime => "gpu_time",
    }
}

/// Makes text that may come from a guest safe for a single line.
pub(super) fn clean(text: &str) -> String {
    const LONGEST: usize = 500;
    printable(text, LONGEST)
}
